//! Traffic between the two hosts, and what it measures.
//!
//! [`iperf`] for the figures that papers publish, [`ping`] for round trips, [`bulk`] for a TCP flow whose progress is seen
//! to 10 ms. [`mptcp`] prepares the kernel's multipath TCP, the first thing to be compared with. Goodput is what arrives at
//! the receiver, in bits of TCP or UDP payload.

pub mod acks;
pub mod background;
pub mod bulk;
pub mod download;
pub mod iperf;
pub mod mptcp;
pub mod ping;
pub mod quic;
pub mod voice;

use std::process::Child;

/// A program that is killed when this is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
