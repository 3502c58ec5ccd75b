//! The protocol of the original MPT (5.3): its control channel, its datagrams and its keepalives.

pub mod control;
mod keepalive;
pub mod wire;

pub use keepalive::{Keepalive, KeepaliveConfig};
