//! A TCP that behaves as Linux' does where it matters for goodput: CUBIC (RFC 9438) with HyStart, selective acknowledgements
//! (RFC 2018, RFC 2883), loss detection by time (RACK, RFC 8985), delayed acknowledgements, small queues towards the device.
//!
//! The packets are real ones, of the MTU's size and with time stamps, so tunnels see what they would see. What has no
//! influence on goodput is left out: the connection is born established and never ends, its application always has data and
//! always reads, and windows are as large as they need to be. Reasons why not smoltcp: it knows no selective
//! acknowledgements and goes back to the first loss; its CUBIC counts bytes where the formula counts segments.

mod cubic;
mod receiver;
mod segment;
mod sender;

pub use receiver::TcpSink;
pub use sender::TcpSource;

/// IPv4 and TCP headers, the latter with time stamps (RFC 7323).
pub const HEADERS: usize = 20 + 32;
