//! The core of MPT: everything a multipath tunnel decides, and nothing it touches.
//!
//! Time and bytes are handed in, bytes and deadlines are handed out. There is no socket, clock, thread, file or source of
//! randomness in this crate, so the same code runs in the daemon, in virtual time in `mpt-sim`, under the fuzzer and on
//! `wasm32-unknown-unknown`. [`endpoint::Endpoint`] is the door; `ARCHITECTURE.md` follows a packet through the rooms.
#![forbid(unsafe_code)]

pub mod cc;
pub mod classify;
pub mod config;
pub mod crypto;
pub mod datagram;
pub mod drops;
pub mod endpoint;
pub mod flow;
pub mod header_compression;
pub mod id;
mod inner;
pub mod legacy;
pub mod packet;
pub mod path;
pub mod path_manager;
pub mod peer;
pub mod queue;
mod ready;
pub mod reorder;
pub mod repair;
pub mod routes;
pub mod sched;
pub mod sessions;
pub mod stats;
pub mod time;
pub mod trace;
pub mod tuning;
pub mod tx;
pub mod wake;
pub mod wire;
