//! A TCP with those properties of Linux's TCP that affect goodput: CUBIC (RFC 9438) with HyStart, or BBR, SACK (RFC
//! 2018, RFC 2883), time-based loss detection (RACK, RFC 8985), delayed ACKs, TCP small queues.
//!
//! The packets are real ones of MTU size with timestamps, so tunnels handle them as real traffic. Features without
//! influence on goodput are omitted: the data does not wait for the answer to the SYN by default, the connection never
//! closes, the application has data up to its limit, if any, and always reads, and receive windows are 128 MiB.
//! smoltcp is not used because it has no SACK and returns to the first loss, and because its CUBIC counts bytes where
//! the formula counts segments.

mod bbr;
mod cubic;
mod delivery_rate;
mod receiver;
mod segment;
mod sender;

pub use receiver::TcpSink;
pub use segment::{request, sink_port, source_port};
pub use sender::TcpSource;

/// IPv4 and TCP headers, TCP with timestamps (RFC 7323).
pub const HEADERS: usize = 20 + 32;
