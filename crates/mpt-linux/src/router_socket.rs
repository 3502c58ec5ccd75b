//! The socket of an IPv6 router on one link (RFC 4861): sends router advertisements, and receives solicitations.

use std::io;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use nix::libc::{self, sock_filter};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::Error;
use crate::sys::{filter, option};

/// An open socket. It is on no link until [`RouterSocket::attach`].
#[derive(Debug)]
pub struct RouterSocket {
    /// A raw socket, with the calls of a datagram socket.
    socket: UdpSocket,
    link: Option<u32>,
}

impl RouterSocket {
    /// Opens the socket. Needs CAP_NET_RAW; nothing else here does.
    pub fn open() -> Result<Self, Error> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let open = || -> io::Result<UdpSocket> {
            let fd = socket(AddressFamily::Inet6, SockType::Raw, flags, SockProtocol::IcmpV6)?;
            filter::attach(fd.as_fd(), &mut solicitations_of(NO_LINK))?;
            // Receivers discard other values, which show that a router has forwarded the message (RFC 4861 6.1.2).
            option::set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, 255)?;
            option::set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 0)?;
            Ok(UdpSocket::from(fd))
        };
        let hint = |error: &io::Error| {
            let refused = error.raw_os_error() == Some(libc::EPERM);
            refused.then_some("needs root or CAP_NET_RAW; a service of systemd needs the drop-in delegate.conf")
        };
        match open() {
            Ok(socket) => Ok(Self { socket, link: None }),
            Err(error) => {
                let hint = hint(&error);
                Err(Error::new("open a socket for router advertisements", error).with_hint(hint))
            }
        }
    }

    /// Takes solicitations from a link, and joins the group of all routers there. Does nothing if it is on it. The
    /// socket is not bound to the link: to bind it to another one, as after the loss of an adapter, needs CAP_NET_RAW.
    pub fn attach(&mut self, index: u32, name: &str) -> Result<(), Error> {
        if self.link == Some(index) {
            return Ok(());
        }
        let attach = || {
            filter::attach(self.socket.as_fd(), &mut solicitations_of(index))?;
            match self.socket.join_multicast_v6(&ALL_ROUTERS, index) {
                Err(error) if error.raw_os_error() != Some(libc::EADDRINUSE) => Err(error),
                _ => Ok(()),
            }
        };
        attach().map_err(|error: io::Error| Error::new(format!("receive router solicitations on {name}"), error))?;
        self.link = Some(index);
        Ok(())
    }

    /// Forgets the link, which is gone.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// Returns true if a host has solicited an advertisement. Takes [`PER_CALL`] messages at most, so that a flood of
    /// them leaves the event loop time for others.
    pub fn take_solicited(&self) -> bool {
        let mut buffer = [0; 64];
        let messages = (0..PER_CALL).map_while(|_| self.socket.recv(&mut buffer).ok().map(|len| (len, buffer[0])));
        messages.filter(|message| matches!(message, (1.., SOLICITATION))).count() > 0
    }

    /// Sends an ICMPv6 message to all nodes on the link. The kernel adds the checksum (RFC 3542 section 3.1).
    pub fn send(&self, message: &[u8]) -> Result<(), Error> {
        let Some(link) = self.link else { return Ok(()) };
        let sent = self.socket.send_to(message, SocketAddrV6::new(ALL_NODES, 0, 0, link));
        sent.map(drop).map_err(|error| Error::new("send a router advertisement", error))
    }
}

impl AsFd for RouterSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// More hosts than start at once.
const PER_CALL: usize = 32;
/// Type of a router solicitation (RFC 4861 section 4.1).
const SOLICITATION: u8 = 133;

/// No interface has this index.
const NO_LINK: u32 = 0;

/// Accepts messages from a link whose first byte is the type of a solicitation.
fn solicitations_of(link: u32) -> [sock_filter; 6] {
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let received_on = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX) as u32;
    [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, received_on),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, link),
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::from(SOLICITATION)),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
}
