//! A UDP socket that sends and receives batches of equal datagrams, one system call per batch.
//!
//! Offload: `UDP_SEGMENT` (GSO, Linux 4.18) splits one large send as late as in the network card, `UDP_GRO` (5.0)
//! merges arrivals into one large receive. Fallback: `sendmmsg` and `recvmmsg` of single datagrams. The datagrams on
//! the wire are the same. Each direction has its own state. Sending falls back permanently when the kernel rejects a
//! batch whose datagrams it accepts one by one, which some interfaces only do at the first batch.
//!
//! Sockets are never connected: one socket serves peers that roam, and ICMP messages, which anybody can forge, cause no
//! socket errors. An IPv6 socket is IPv6 only; IPv4 has its own.
//!
//! *Fragmentation.* Path MTU discovery is `PROBE`: every datagram carries DF, and the kernel's path MTU, which it takes
//! from ICMP messages, is ignored. The tunnel finds the MTU with authenticated probes (RFC 8899), which must be allowed
//! to exceed the kernel's value; `DO` would reject them, `WANT` and `DONT` would fragment. A datagram larger than the
//! interface's MTU fails with `EMSGSIZE`.
//!
//! *ECN and DSCP.* The outer TOS is set for every batch and reported with every message. GRO never merges datagrams
//! with different TOS, so one value holds for the whole message.

mod dual_stack;
mod handshake_filter;
mod receive;
mod send;
mod worker_group;

pub use dual_stack::DualStackSocket;
pub use receive::{Receive, Received};
pub use send::{Datagrams, SendStatus, Sent};
pub use worker_group::Group;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};

use crate::Error;
use crate::sys;

/// Parameters for opening a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// Address and port to bind to; the unspecified address leaves the source to routing, port 0 selects a free one.
    pub local: SocketAddr,
    /// The interface that every datagram must leave and arrive by, regardless of routes (`SO_BINDTODEVICE`).
    pub device: Option<String>,
    /// The mark of every datagram, with which routing rules distinguish the tunnel's own datagrams from its payload.
    pub mark: Option<u32>,
    /// Use GSO and GRO if available.
    pub offload: bool,
    /// Bytes of receive buffer in the kernel's accounting: a 64 KiB message costs about 70 KiB.
    pub receive_buffer: usize,
    /// Workers that share the address: [`Socket::open_group`]. [`Socket::open`] ignores it.
    pub workers: u8,
}

impl Default for SocketSpec {
    fn default() -> Self {
        let local = (Ipv4Addr::UNSPECIFIED, 0).into();
        Self { local, device: None, mark: None, offload: true, receive_buffer: RECEIVE_BUFFER, workers: 1 }
    }
}

/// An open socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    local: SocketAddr,
    gso: Offload,
    gro: Offload,
    /// Maximum number of segments of one GSO send that this kernel has not rejected.
    max_segments: usize,
}

/// The offload state of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Batches of datagrams.
    Enabled,
    /// Single datagrams.
    Fallback(FallbackReason),
}

/// The reason for the fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackReason {
    /// Offload is disabled by configuration.
    Disabled,
    /// The kernel rejected it, with this error number.
    Refused(i32),
}

impl Socket {
    /// Opens and binds a socket.
    ///
    /// Fails if the address is not local or in use, if the device does not exist, without CAP_NET_ADMIN if there is a
    /// mark, and, on kernels before 5.7, without CAP_NET_RAW if there is a device.
    pub fn open(spec: &SocketSpec) -> Result<Self, Error> {
        Self::open_with(spec, |_| Ok(()))
    }

    /// Does the same; `set` sets more options before the bind.
    fn open_with(spec: &SocketSpec, set: impl FnOnce(&OwnedFd) -> nix::Result<()>) -> Result<Self, Error> {
        let fail = |errno: Errno| Error::new(spec.to_string(), errno).with_hint(open_hint(errno));
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket::socket(family(spec.local), SockType::Datagram, flags, None).map_err(fail)?;
        set_options(&fd, spec).and_then(|()| set(&fd)).map_err(fail)?;
        socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(spec.local)).map_err(fail)?;
        let local = bound_address(&fd, spec.local).map_err(fail)?;
        let (gso, gro) = (try_gso(&fd, spec.offload), try_gro(&fd, spec.offload));
        Ok(Self { fd, local, gso, gro, max_segments: send::MAX_SEGMENTS })
    }

    /// Returns the address and port that the socket is bound to.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the bytes of the receive buffer in the unit of the request; the kernel has doubled it.
    pub fn receive_buffer(&self) -> Result<usize, Error> {
        let size = socket::getsockopt(&self.fd, sockopt::RcvBuf);
        Ok(size.map_err(|errno| Error::new("read the size of a receive buffer", errno))? / 2)
    }

    /// Returns the offload state of sending.
    pub fn gso(&self) -> Offload {
        self.gso
    }

    /// Returns the offload state of receiving.
    pub fn gro(&self) -> Offload {
        self.gro
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Display for SocketSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "open UDP socket {}", self.local)?;
        self.device.as_ref().map_or(Ok(()), |device| write!(f, " on {device}"))
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enabled => f.write_str("enabled"),
            Self::Fallback(FallbackReason::Disabled) => f.write_str("disabled by configuration"),
            Self::Fallback(FallbackReason::Refused(errno)) => {
                write!(f, "disabled: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Sets the options before the bind, so that no datagram arrives without them.
fn set_options(fd: &OwnedFd, spec: &SocketSpec) -> nix::Result<()> {
    if let Some(device) = &spec.device {
        socket::setsockopt(fd, sockopt::BindToDevice, &device.into())?;
    }
    if let Some(mark) = spec.mark {
        socket::setsockopt(fd, sockopt::Mark, &mark)?;
    }
    if spec.local.is_ipv4() {
        socket::setsockopt(fd, sockopt::IpRecvTos, &true)?;
        set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
    } else {
        socket::setsockopt(fd, sockopt::Ipv6V6Only, &true)?;
        socket::setsockopt(fd, sockopt::Ipv6RecvTClass, &true)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
    }
    // Kernels before 5.1 have no such option: datagrams then arrive when they are read.
    let _ = set(fd, libc::SOL_SOCKET, sys::message::TIMESTAMP, 1);
    // Only CAP_NET_ADMIN may exceed net.core.rmem_max; without it the kernel clamps to that.
    socket::setsockopt(fd, sockopt::RcvBufForce, &spec.receive_buffer)
        .or_else(|_| socket::setsockopt(fd, sockopt::RcvBuf, &spec.receive_buffer))
}

fn set(fd: &OwnedFd, level: i32, name: i32, value: i32) -> nix::Result<()> {
    sys::option::set(fd.as_fd(), level, name, value)
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))
}

fn bound_address(fd: &OwnedFd, requested: SocketAddr) -> nix::Result<SocketAddr> {
    let bound: SockaddrStorage = socket::getsockname(fd.as_raw_fd())?;
    let v4 = bound.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    Ok(v4.or_else(|| bound.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into()))).unwrap_or(requested))
}

/// A segment size of zero changes nothing; kernels without GSO reject the option.
fn try_gso(fd: &OwnedFd, offload: bool) -> Offload {
    probe_offload(offload, || socket::setsockopt(fd, sockopt::UdpGsoSegment, &0))
}

fn try_gro(fd: &OwnedFd, offload: bool) -> Offload {
    probe_offload(offload, || socket::setsockopt(fd, sockopt::UdpGroSegment, &true))
}

fn probe_offload(offload: bool, enable: impl FnOnce() -> nix::Result<()>) -> Offload {
    match offload.then(enable) {
        None => Offload::Fallback(FallbackReason::Disabled),
        Some(Ok(())) => Offload::Enabled,
        Some(Err(errno)) => Offload::Fallback(FallbackReason::Refused(errno as i32)),
    }
}

fn open_hint(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::ENODEV => Some("no such interface: `ip link` lists them"),
        Errno::EADDRNOTAVAIL => Some("no interface of this host has this address: `ip address` lists them"),
        Errno::EADDRINUSE => Some(
            "another socket uses this port: see `ss -ulpn`. If it is that of this tunnel, restart the tunnel: mpt down, then mpt up",
        ),
        Errno::EAFNOSUPPORT => Some("this IP version is disabled on this host"),
        Errno::EACCES => Some(
            "a port below 1024 needs CAP_NET_BIND_SERVICE, which a running tunnel gets at its next start: mpt down, then mpt up",
        ),
        Errno::EPERM => Some(
            "needs CAP_NET_RAW for an interface and CAP_NET_ADMIN for a mark: run as root; or for a group, `chgrp GROUP`, \
             `chmod 750` and then `setcap cap_net_admin,cap_net_raw+ep` on the program",
        ),
        _ => None,
    }
}

/// Buffers a 10 Gbit/s path for 3 ms, longer than the event loop is ever busy.
pub const RECEIVE_BUFFER: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a UDP checksum the kernel rejects GSO (`EINVAL`), but sends single datagrams.
    fn socket_without_checksum() -> Socket {
        let spec = SocketSpec { local: (Ipv4Addr::LOCALHOST, 0).into(), ..SocketSpec::default() };
        let socket = Socket::open(&spec).unwrap();
        set(&socket.fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        socket
    }

    fn lengths(socket: &mut Socket) -> Vec<usize> {
        let (mut received, mut lengths) = (Receive::new(), Vec::new());
        while socket.recv(&mut received).unwrap() > 0 {
            lengths.extend(
                received.iter_mut().flat_map(|m| m.bytes.chunks(m.segment).map(<[u8]>::len).collect::<Vec<_>>()),
            );
        }
        lengths
    }

    #[test]
    fn a_gso_error_disables_offload_without_loss() {
        let (mut near, mut far) = (socket_without_checksum(), socket_without_checksum());
        assert_eq!(near.gso(), Offload::Enabled);

        let sent = near.send(&Datagrams { to: far.local(), tos: 0, segment: 500, bytes: &[7; 30 * 500 + 100] });

        assert_eq!(sent.datagrams, 31);
        assert_eq!(near.gso(), Offload::Fallback(FallbackReason::Refused(libc::EINVAL)));
        assert_eq!(near.gso().to_string(), "disabled: Invalid argument (os error 22)");
        assert_eq!(lengths(&mut far), [vec![500; 30], vec![100]].concat());
    }

    #[test]
    fn a_gso_error_for_a_large_batch_first_lowers_the_batch_size() {
        let (mut near, mut far) = (socket_without_checksum(), socket_without_checksum());

        let sent = near.send(&Datagrams { to: far.local(), tos: 0, segment: 10, bytes: &[7; 100 * 10] });

        assert_eq!((sent.datagrams, near.max_segments), (100, 64));
        assert_eq!(lengths(&mut far), [10; 100]);
    }
}
