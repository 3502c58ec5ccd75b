//! Traffic between the two hosts, and its measurement.
//!
//! [`iperf`] measures the figures that papers publish, [`ping`] round-trip times, [`bulk`] the progress of a TCP flow
//! to 10 ms. [`mptcp`] configures kernel MPTCP, the main reference. Goodput is counted at the receiver, in bits of TCP
//! or UDP payload.

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

/// A child process; dropping this kills it.
pub(crate) struct ChildProcess(pub(crate) Child);

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
