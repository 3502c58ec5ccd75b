//! A UDP socket for both IP versions on one port, for the few messages of a control plane: one datagram per call,
//! non-blocking.
//!
//! It is an IPv6 socket with `IPV6_V6ONLY` off (RFC 4291 section 2.5.5.2), or an IPv4 socket on a host without IPv6.
//! IPv4 addresses are never exposed in their IPv4-mapped form.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};

use super::open_hint;
use crate::Error;

/// An open dual-stack socket.
#[derive(Debug)]
pub struct DualStackSocket {
    socket: UdpSocket,
    v6: bool,
}

impl DualStackSocket {
    /// Opens a socket on `port` of every local address.
    ///
    /// Fails if the port is in use.
    pub fn open(port: u16) -> Result<Self, Error> {
        let opened = match open(AddressFamily::Inet6, (Ipv6Addr::UNSPECIFIED, port).into()) {
            Err(Errno::EAFNOSUPPORT) => open(AddressFamily::Inet, (Ipv4Addr::UNSPECIFIED, port).into()),
            opened => opened,
        };
        let fail = |errno| Error::new(format!("open UDP port {port}"), errno).with_hint(open_hint(errno));
        let socket = opened.map_err(fail)?;
        let v6 = socket.local_addr().is_ok_and(|local| local.is_ipv6());
        Ok(Self { socket, v6 })
    }

    /// Receives one datagram into `buffer`, if there is one. Returns its length, which `buffer` may have truncated, and
    /// its sender.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<Option<(usize, SocketAddr)>, Error> {
        match self.socket.recv_from(buffer) {
            Ok((len, from)) => Ok(Some((len, canonical(from)))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(Error::new("receive on a UDP socket", error)),
        }
    }

    /// Sends one datagram; a link-local address needs its scope. If the send buffer is full, the datagram is dropped.
    pub fn send(&self, to: SocketAddr, bytes: &[u8]) -> Result<(), Error> {
        let known = match to.ip() {
            IpAddr::V4(v4) if self.v6 => SocketAddr::new(v4.to_ipv6_mapped().into(), to.port()),
            _ => to,
        };
        match self.socket.send_to(bytes, known) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(Error::new(format!("send to {to}"), error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl AsFd for DualStackSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Converts an IPv4-mapped address to IPv4. An IPv6 address keeps its scope.
fn canonical(from: SocketAddr) -> SocketAddr {
    match from.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), from.port()),
        IpAddr::V6(_) => from,
    }
}

fn open(family: AddressFamily, local: SocketAddr) -> nix::Result<UdpSocket> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket::socket(family, SockType::Datagram, flags, None)?;
    if family == AddressFamily::Inet6 {
        socket::setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
    }
    socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(local))?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &DualStackSocket) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 64];
        let (len, from) = loop {
            if let Some(received) = socket.recv(&mut buffer).unwrap() {
                break received;
            }
            std::thread::yield_now();
        };
        (buffer[..len].to_vec(), from)
    }

    #[test]
    fn both_ip_versions_work_on_one_port() {
        let socket = DualStackSocket::open(0).unwrap();
        let port = socket.socket.local_addr().unwrap().port();
        for host in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let Ok(peer) = UdpSocket::bind((host, 0)) else { continue };
            peer.send_to(b"hello", (host, port)).unwrap();
            let (bytes, from) = received(&socket);
            assert_eq!((bytes.as_slice(), from), (&b"hello"[..], peer.local_addr().unwrap()));
            socket.send(from, b"yes").unwrap();
            let mut answer = [0; 8];
            assert_eq!(peer.recv(&mut answer).unwrap(), 3);
        }
    }

    #[test]
    fn an_empty_queue_is_no_error() {
        assert_eq!(DualStackSocket::open(0).unwrap().recv(&mut [0; 8]).unwrap(), None);
    }
}
