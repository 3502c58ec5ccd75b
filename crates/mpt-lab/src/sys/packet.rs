//! Packet sockets (packet(7)): whole Ethernet frames of one interface, in batches, with kernel receive timestamps.
//!
//! Uses `recvmmsg` and `sendmmsg`, not the mapped ring: at the frame rates of the laboratory a system call per batch is
//! a small part of the cost, and no memory is shared with the kernel.

use nix::{
    errno::Errno,
    libc,
    sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt},
};
use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    time::Duration,
};

/// Maximum frames per system call.
pub const BATCH: usize = 32;

/// Holds a burst while the reader is off the processor: 16 MB are some 5,000 full-sized frames.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Limits the bytes between the send call and the receiver's stack.
const SEND_BUFFER: usize = 8 << 20;

/// A frame in a buffer of fixed size.
#[derive(Debug)]
pub struct Frame {
    buffer: Box<[u8]>,
    len: usize,
}

impl Frame {
    /// Creates an empty frame with a buffer of `size` bytes.
    pub fn with_room(size: usize) -> Self {
        Self { buffer: vec![0; size].into_boxed_slice(), len: 0 }
    }

    /// Returns the frame, starting at the destination address.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// Metadata of a received frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// Wall-clock receive time at the interface; zero if unknown.
    pub stamp: Duration,
    /// True if the frame exceeded its buffer and was truncated: a super-frame, so offloads are on.
    pub truncated: bool,
}

/// A socket that receives all frames of one interface and sends through it.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens the interface `name` in the calling thread's network namespace.
    pub fn open(name: &str) -> io::Result<Self> {
        let index = nix::net::if_::if_nametoindex(name)?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        // Protocol 0: the socket receives nothing before it is bound to its interface.
        let fd = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        // Only root of the initial namespace may exceed the system's limit.
        setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER)
            .or_else(|_| setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BUFFER))?;
        setsockopt(&fd, sockopt::SndBufForce, &SEND_BUFFER)
            .or_else(|_| setsockopt(&fd, sockopt::SndBuf, &SEND_BUFFER))?;
        setsockopt(&fd, sockopt::ReceiveTimestampns, &true)?;
        let socket = Self { fd };
        socket.set_packet_option(libc::PACKET_IGNORE_OUTGOING, 1)?;
        socket.set_packet_option(libc::PACKET_QDISC_BYPASS, 1)?;
        socket.bind(index)?;
        Ok(socket)
    }

    /// Receives pending frames into the front of `frames`, with metadata; returns their number. Zero is not an error.
    pub fn receive(&self, frames: &mut [Frame; BATCH], arrivals: &mut [Arrival; BATCH]) -> io::Result<usize> {
        let mut control = [Control::default(); BATCH];
        let mut parts: [libc::iovec; BATCH] = std::array::from_fn(|i| libc::iovec {
            iov_base: frames[i].buffer.as_mut_ptr().cast(),
            iov_len: frames[i].buffer.len(),
        });
        let mut headers: [libc::mmsghdr; BATCH] = std::array::from_fn(|i| header(&mut parts[i], Some(&mut control[i])));
        // SAFETY: each header points to one live iovec over a live, exclusively borrowed buffer and to its own control
        // buffer; all outlive the call. No timeout.
        let count = unsafe {
            libc::recvmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), BATCH as u32, libc::MSG_DONTWAIT, ptr::null_mut())
        };
        let count = match Errno::result(count) {
            // Loss of carrier is reported once and is not an error here.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => 0,
            other => other? as usize,
        };
        for i in 0..count {
            frames[i].len = (headers[i].msg_len as usize).min(frames[i].buffer.len());
            arrivals[i] = Arrival {
                stamp: time_stamp(&headers[i].msg_hdr),
                truncated: headers[i].msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            };
        }
        Ok(count)
    }

    /// Sends as many of `frames` as the kernel accepts, at most [`BATCH`], and returns their number.
    pub fn send(&self, frames: &[Frame]) -> nix::Result<usize> {
        let count = frames.len().min(BATCH);
        let mut parts: [libc::iovec; BATCH] = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        for (part, frame) in parts.iter_mut().zip(frames) {
            *part = libc::iovec { iov_base: frame.buffer.as_ptr().cast_mut().cast(), iov_len: frame.len };
        }
        let mut headers: [libc::mmsghdr; BATCH] = std::array::from_fn(|i| header(&mut parts[i], None));
        // SAFETY: the first `count` headers point to live iovecs over live buffers, which the call only reads.
        let sent =
            unsafe { libc::sendmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT) };
        Errno::result(sent).map(|sent| sent as usize)
    }

    /// Returns the number of frames that the kernel dropped since the last call because the socket buffer was full.
    pub fn take_dropped(&self) -> io::Result<u32> {
        // SAFETY: a struct of two integers; all zeros is a value of it.
        let mut stats: libc::tpacket_stats = unsafe { mem::zeroed() };
        let mut len = size_of_val(&stats) as libc::socklen_t;
        // SAFETY: `stats` and `len` are valid for writing, and `len` is the size of `stats`.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        Errno::result(result)?;
        Ok(stats.tp_drops)
    }

    fn bind(&self, index: u32) -> io::Result<()> {
        // SAFETY: a struct of integers; all zeros is a value of it.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: `address` is valid for reading and its length is given.
        let result = unsafe {
            libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        };
        Errno::result(result)?;
        Ok(())
    }

    fn set_packet_option(&self, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        // SAFETY: `value` is valid for reading and its length is given.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        Errno::result(result)?;
        Ok(())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Buffer for one control message with a timestamp, aligned as `cmsghdr` requires.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
struct Control([u8; 32]);

fn header(part: &mut libc::iovec, control: Option<&mut Control>) -> libc::mmsghdr {
    // SAFETY: pointers and integers only; all zeros is a value of it.
    let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
    header.msg_hdr.msg_iov = part;
    header.msg_hdr.msg_iovlen = 1;
    if let Some(control) = control {
        header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = control.0.len() as _;
    }
    header
}

fn time_stamp(header: &libc::msghdr) -> Duration {
    // SAFETY: the kernel has filled in `msg_control` and `msg_controllen`, and the buffer they describe is alive.
    let Some(message) = (unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }) else { return Duration::ZERO };
    if (message.cmsg_level, message.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
        return Duration::ZERO;
    }
    // SAFETY: the kernel puts a timespec into a message of this type; it may be unaligned.
    let stamp = unsafe { libc::CMSG_DATA(message).cast::<libc::timespec>().read_unaligned() };
    Duration::new(stamp.tv_sec as u64, stamp.tv_nsec as u32)
}
