//! A socket beside the tunnel's own that can send anything to its port.

use mpt_lab::topology::Netns;
use mpt_proto::wire::gre;
use nix::sys::socket::{setsockopt, sockopt};
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// A sender of arbitrary datagrams.
pub struct RawSender {
    socket: UdpSocket,
    to: SocketAddr,
}

impl RawSender {
    /// Opens a socket at an address of `host` that sends to the tunnel's port at `to`.
    pub fn at(host: &Netns, own: IpAddr, to: IpAddr) -> Self {
        let socket = host.enter(|| UdpSocket::bind((own, 0))).expect("a namespace").expect("a socket");
        Self { socket, to: (to, gre::PORT).into() }
    }

    /// Sends a datagram under an outer type of service.
    pub fn send(&self, tos: u8, datagram: &[u8]) {
        let tos = i32::from(tos);
        let set = match self.to {
            SocketAddr::V4(_) => setsockopt(&self.socket, sockopt::Ipv4Tos, &tos),
            SocketAddr::V6(_) => setsockopt(&self.socket, sockopt::Ipv6TClass, &tos),
        };
        set.expect("a type of service");
        self.socket.send_to(datagram, self.to).expect("sent");
    }
}
