//! Sources and destinations of datagrams.

use std::net::SocketAddr;

use crate::id::LinkId;
use crate::time::Time;

/// A socket of ours, and an address of the other end. A host may reach one address over several sockets.
pub type RemoteAddress = (LinkId, SocketAddr);

/// Describes datagrams from one address that one receive call returned.
#[derive(Clone, Copy, Debug)]
pub struct RecvMeta {
    /// The socket.
    pub link: LinkId,
    /// The sender's address.
    pub from: SocketAddr,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
    /// Bytes in each datagram but the last.
    pub segment: usize,
    /// The time at which they arrived, if the socket reports it: RTT and delay do not contain for how long they waited
    /// to be read. Otherwise they arrived now.
    pub arrived_at: Option<Time>,
}

impl RecvMeta {
    /// Returns the time of arrival, which is not after `now`.
    pub(crate) fn arrived(&self, now: Time) -> Time {
        self.arrived_at.map_or(now, |at| at.min(now))
    }
}
