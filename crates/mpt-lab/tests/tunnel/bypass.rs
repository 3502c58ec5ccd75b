//! Attempts of an unprivileged program to send past the tunnel: every way by which Linux lets a socket select the
//! interface.
#![expect(unsafe_code, reason = "the kernel's options for one packet and one thread have no safe wrapper")]

use mpt_lab::topology::Netns;
use nix::{
    libc,
    sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg, setsockopt, sockopt},
};
use std::{
    io::{self, IoSlice},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd as _,
};

/// A way to select the interface of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Left to the routes.
    Route,
    /// `SO_BINDTODEVICE`.
    Device,
    /// `IP_UNICAST_IF`, `IPV6_UNICAST_IF`.
    Unicast,
    /// `IP_PKTINFO`, `IPV6_PKTINFO`.
    PacketInfo,
    /// The address of the interface as source.
    Source,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 5] = [Self::Route, Self::Device, Self::Unicast, Self::PacketInfo, Self::Source];

    /// Returns the port to which [`Self::send`] sends, so that a capture shows the way.
    pub fn port(self) -> u16 {
        9_001 + self as u16
    }

    /// Sends a datagram from a host as user 65534. `own` is the address of `interface`. A refusal is no error.
    pub fn send(self, host: &Netns, interface: &str, own: IpAddr, to: IpAddr) {
        let to = SocketAddr::new(to, self.port());
        // The error is what the kill switch is for.
        let _ = host.enter(|| become_nobody().and_then(|()| self.try_send(interface, own, to))).expect("a namespace");
    }

    fn try_send(self, interface: &str, own: IpAddr, to: SocketAddr) -> io::Result<()> {
        let any: IpAddr = if own.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((if self == Self::Source { own } else { any }, 0))?;
        let index = nix::net::if_::if_nametoindex(interface)?;
        match self {
            Self::Route | Self::Source => {}
            Self::Device => setsockopt(&socket, sockopt::BindToDevice, &interface.into())?,
            Self::Unicast => set_unicast_interface(&socket, own.is_ipv6(), index)?,
            Self::PacketInfo => return send_with_packet_info(&socket, index, to),
        }
        socket.send_to(b"past the tunnel", to).map(drop)
    }
}

/// Changes the user of the calling thread alone, unlike the function of the C library.
fn become_nobody() -> io::Result<()> {
    // SAFETY: the call takes numbers and touches no memory.
    match unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_unicast_interface(socket: &UdpSocket, ipv6: bool, index: u32) -> io::Result<()> {
    let (level, option) = if ipv6 { (libc::IPPROTO_IPV6, IPV6_UNICAST_IF) } else { (libc::IPPROTO_IP, IP_UNICAST_IF) };
    let value = index.to_be();
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value outlives the call, and its size is given.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn send_with_packet_info(socket: &UdpSocket, index: u32, to: SocketAddr) -> io::Result<()> {
    let bytes = [IoSlice::new(b"past the tunnel")];
    let none = libc::in_addr { s_addr: 0 };
    let v4 = libc::in_pktinfo { ipi_ifindex: index as i32, ipi_spec_dst: none, ipi_addr: none };
    let v6 = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: [0; 16] }, ipi6_ifindex: index };
    let info = if to.is_ipv4() { ControlMessage::Ipv4PacketInfo(&v4) } else { ControlMessage::Ipv6PacketInfo(&v6) };
    let to = SockaddrStorage::from(to);
    Ok(sendmsg(socket.as_raw_fd(), &bytes, &[info], MsgFlags::empty(), Some(&to)).map(drop)?)
}

/// `linux/in.h`, `linux/in6.h`.
const IP_UNICAST_IF: libc::c_int = 50;
const IPV6_UNICAST_IF: libc::c_int = 76;
