//! `sendmsg`, `sendmmsg` and `recvmmsg` with the control messages of a tunnel: TOS, GSO and GRO segment size.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime};

use nix::libc::{self, c_int};
use nix::sys::socket::{SockaddrLike, SockaddrStorage};

use super::check;
use super::control::{self, Control};

/// Maximum number of datagrams of one [`send_each`].
pub const SEND_BATCH: usize = 64;

/// Maximum number of messages of one [`receive`].
pub const RECEIVE_BATCH: usize = 16;

/// Metadata of one received message.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Bytes in the message's buffer.
    pub len: usize,
    /// The sender.
    pub from: SocketAddr,
    /// TOS or traffic class; zero if the kernel did not report it.
    pub tos: u8,
    /// Size of the datagrams that GRO merged, if it merged any.
    pub segment: Option<usize>,
    /// The time of day at which the kernel received it, or the first of those that GRO merged.
    pub time: Option<SystemTime>,
}

impl Arrival {
    /// An empty message without a sender.
    pub const NONE: Self = Self {
        len: 0,
        from: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
        tos: 0,
        segment: None,
        time: None,
    };
}

/// Sends `bytes` as one message: one datagram, or datagrams of `segment` bytes of which the last may be shorter.
pub fn send(fd: BorrowedFd<'_>, to: SocketAddr, tos: u8, segment: Option<u16>, bytes: &[u8]) -> io::Result<()> {
    let to = SockaddrStorage::from(to);
    let mut control = Control::EMPTY;
    push_tos(&mut control, &to, tos);
    if let Some(segment) = segment {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment);
    }
    let mut part = io_part(bytes);
    let message = outgoing(&to, &control, &mut part);
    // SAFETY: `message` points at the address, the control messages and the bytes, which all outlive the call, and
    // sendmsg only reads them.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) } as i64).map(drop)
}

/// Sends the first [`SEND_BATCH`] of `datagrams` as single messages, and returns how many the kernel accepted. An error
/// means that it rejected the first.
pub fn send_each<'a>(
    fd: BorrowedFd<'_>,
    to: SocketAddr,
    tos: u8,
    datagrams: impl Iterator<Item = &'a [u8]>,
) -> io::Result<usize> {
    let to = SockaddrStorage::from(to);
    let mut control = Control::EMPTY;
    push_tos(&mut control, &to, tos);
    let mut parts = [io_part(&[]); SEND_BATCH];
    // SAFETY: all zeroes is a valid `mmsghdr`: integers and null pointers.
    let mut messages: [libc::mmsghdr; SEND_BATCH] = unsafe { mem::zeroed() };
    let mut count = 0;
    for ((message, part), bytes) in messages.iter_mut().zip(&mut parts).zip(datagrams) {
        *part = io_part(bytes);
        message.msg_hdr = outgoing(&to, &control, part);
        count += 1;
    }
    // SAFETY: the first `count` messages point at the address, the control messages, `parts` and the datagrams, which
    // all outlive the call; sendmmsg only writes each `msg_len`.
    check(unsafe { libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) })
}

/// Receives up to one message into each of `buffers`, stores their metadata in `arrivals` and returns their number.
pub fn receive<'a>(
    fd: BorrowedFd<'_>,
    buffers: impl Iterator<Item = &'a mut [u8]>,
    arrivals: &mut [Arrival; RECEIVE_BATCH],
) -> io::Result<usize> {
    // SAFETY: all zeroes is a valid value of each of these types: integers, arrays of them, null pointers.
    let (mut parts, mut names, mut messages): (
        [libc::iovec; RECEIVE_BATCH],
        [libc::sockaddr_in6; RECEIVE_BATCH],
        [libc::mmsghdr; RECEIVE_BATCH],
    ) = unsafe { mem::zeroed() };
    let mut controls = [Control::EMPTY; RECEIVE_BATCH];
    let mut room = 0;
    for (i, buffer) in buffers.take(RECEIVE_BATCH).enumerate() {
        parts[i] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let header = &mut messages[i].msg_hdr;
        header.msg_name = (&raw mut names[i]).cast();
        header.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
        header.msg_iov = &raw mut parts[i];
        header.msg_iovlen = 1;
        controls[i].room(header);
        room += 1;
    }
    let flags = libc::MSG_DONTWAIT as _;
    // SAFETY: each of the first `room` messages points at a name, a control buffer and a byte buffer of its own, with
    // their true lengths, all borrowed mutably or owned here for as long as the call lasts. The timeout is null.
    let count =
        check(unsafe { libc::recvmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), room, flags, std::ptr::null_mut()) })?;
    for ((message, name), arrival) in messages[..count].iter().zip(&names).zip(arrivals) {
        // SAFETY: recvmmsg has filled in `message`; `controls` is still alive.
        *arrival = unsafe { arrived(message, name) };
    }
    Ok(count)
}

/// # Safety
/// recvmmsg has filled in `message`, and its control buffer is alive.
unsafe fn arrived(message: &libc::mmsghdr, name: &libc::sockaddr_in6) -> Arrival {
    let mut arrival = Arrival { len: message.msg_len as usize, from: socket_addr(name), ..Arrival::NONE };
    let note = |level, kind, payload: &[u8]| match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            arrival.tos = integer(payload).unwrap_or_default() as u8;
        }
        (libc::SOL_UDP, libc::UDP_GRO) => {
            arrival.segment = integer(payload).and_then(|segment| usize::try_from(segment).ok());
        }
        (libc::SOL_SOCKET, TIMESTAMP) => arrival.time = time(payload),
        _ => {}
    };
    // SAFETY: guaranteed by the caller.
    unsafe { control::for_each(&message.msg_hdr, note) };
    arrival
}

/// Returns a payload of a byte or an `int`.
fn integer(payload: &[u8]) -> Option<c_int> {
    match *payload {
        [byte] => Some(c_int::from(byte)),
        _ => payload.try_into().ok().map(c_int::from_ne_bytes),
    }
}

/// Returns a payload of seconds and nanoseconds since 1970, of 64 bits each.
fn time(payload: &[u8]) -> Option<SystemTime> {
    let (seconds, nanos) = payload.split_at_checked(8)?;
    let [seconds, nanos] = [seconds, nanos].map(|field| field.try_into().ok().map(i64::from_ne_bytes));
    let (seconds, nanos) = (u64::try_from(seconds?).ok()?, u32::try_from(nanos?).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
}

/// `SO_TIMESTAMPNS_NEW` (Linux 5.1): messages have the time at which the kernel received them, in 64 bits.
pub const TIMESTAMP: c_int = 64;

fn socket_addr(name: &libc::sockaddr_in6) -> SocketAddr {
    if c_int::from(name.sin6_family) == libc::AF_INET6 {
        let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
        return SocketAddrV6::new(address, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into();
    }
    // SAFETY: `sockaddr_in` is smaller than `sockaddr_in6`, no more aligned, and valid in every bit pattern.
    let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
    SocketAddrV4::new(Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr)), u16::from_be(name.sin_port)).into()
}

/// New sockets have TOS zero, so zero needs no control message.
fn push_tos(control: &mut Control, to: &SockaddrStorage, tos: u8) {
    match (tos, to.family()) {
        (0, _) => {}
        (_, Some(nix::sys::socket::AddressFamily::Inet6)) => {
            control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, c_int::from(tos));
        }
        _ => control.push(libc::IPPROTO_IP, libc::IP_TOS, c_int::from(tos)),
    }
}

fn outgoing(to: &SockaddrStorage, control: &Control, part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: all zeroes is a valid `msghdr`: integers and null pointers.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len();
    message.msg_iov = part;
    message.msg_iovlen = 1;
    control.attach(&mut message);
    message
}

fn io_part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}
