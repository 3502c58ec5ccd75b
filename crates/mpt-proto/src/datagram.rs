//! Sources and destinations of datagrams.

use std::net::SocketAddr;

use crate::id::LinkId;

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
}
