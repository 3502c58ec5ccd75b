//! Sends batches of equal datagrams, and handles the kernel's errors.
//!
//! | error                              | meaning             | action |
//! |------------------------------------|---------------------|--------|
//! | `EAGAIN`                           | send buffer full    | [`SendStatus::Blocked`]; the caller keeps the rest |
//! | `EINVAL`, more than 64 segments    | kernel before 6.9   | batches of 64 from then on; retry |
//! | `EIO`, `EINVAL`, `EMSGSIZE`, `EOPNOTSUPP`; single datagrams pass | no GSO on this interface | permanent fallback |
//! | any other, once                    | error of an earlier datagram | retry |
//! | any, twice                         | no route, too large, `ENOBUFS` | [`SendStatus::Failed`]; not fatal |
//!
//! `EIO` comes late: the route leads to a device without checksum offload (before 6.11), or through IPsec.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::libc;

use super::{FallbackReason, Offload, Socket};
use crate::sys::message;

/// A batch of datagrams to one address.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams<'a> {
    /// The destination.
    pub to: SocketAddr,
    /// The outer TOS or traffic class: DSCP and ECN.
    pub tos: u8,
    /// Bytes of every datagram but the last, which may be shorter. At least 1.
    pub segment: usize,
    /// The datagrams, one after the other.
    pub bytes: &'a [u8],
}

/// The result of sending a batch.
#[derive(Debug)]
#[must_use = "datagrams that were not taken are lost unless they are sent again"]
pub struct Sent {
    /// Number of datagrams that the kernel accepted, from the front.
    pub datagrams: usize,
    /// The status of the others.
    pub status: SendStatus,
}

/// The reason why the kernel accepted no more datagrams of a batch.
#[derive(Debug)]
pub enum SendStatus {
    /// All were accepted.
    Complete,
    /// The send buffer is full: send the rest when the socket is writable.
    Blocked,
    /// The kernel rejected the first of the rest twice.
    Failed(io::Error),
}

impl Socket {
    /// Sends a batch with as few system calls as possible, and returns how many datagrams the kernel accepted.
    pub fn send(&mut self, batch: &Datagrams<'_>) -> Sent {
        let mut sent = Sent { datagrams: 0, status: SendStatus::Complete };
        let mut retried = false;
        while let Some(rest) = batch.after(sent.datagrams) {
            match self.send_once(&rest) {
                Ok(accepted) => {
                    sent.datagrams += accepted;
                    retried = false;
                }
                Err(error) if is_full(&error) => return Sent { status: SendStatus::Blocked, ..sent },
                Err(_) if !retried => retried = true,
                Err(error) => return Sent { status: SendStatus::Failed(error), ..sent },
            }
        }
        sent
    }

    /// Sends the front of a batch with one system call, two if GSO is rejected. Returns how many datagrams the kernel
    /// accepted.
    fn send_once(&mut self, batch: &Datagrams<'_>) -> io::Result<usize> {
        let chunk = batch.front(self.max_segments);
        if chunk.count() == 1 {
            return self.send_message(&chunk, None);
        }
        if self.gso != Offload::Enabled {
            return self.send_singly(batch);
        }
        let segment = u16::try_from(chunk.segment).expect("two segments fit into 65507 bytes");
        match self.send_message(&chunk, Some(segment)) {
            Err(error) if is_gso_error(&error) => self.send_without_gso(&chunk, &error),
            result => result,
        }
    }

    fn send_message(&self, batch: &Datagrams<'_>, segment: Option<u16>) -> io::Result<usize> {
        message::send(self.as_fd(), batch.to, batch.tos, segment, batch.bytes)?;
        Ok(batch.count())
    }

    fn send_singly(&self, batch: &Datagrams<'_>) -> io::Result<usize> {
        message::send_each(self.as_fd(), batch.to, batch.tos, batch.bytes.chunks(batch.segment))
    }

    /// Sends a batch that GSO rejected. If the single datagrams pass, GSO was the cause.
    fn send_without_gso(&mut self, batch: &Datagrams<'_>, error: &io::Error) -> io::Result<usize> {
        let errno = error.raw_os_error().unwrap_or_default();
        let accepted = self.send_singly(batch)?;
        if errno == libc::EINVAL && batch.count() > OLD_MAX_SEGMENTS {
            self.max_segments = OLD_MAX_SEGMENTS;
        } else {
            self.gso = Offload::Fallback(FallbackReason::Refused(errno));
        }
        Ok(accepted)
    }
}

impl<'a> Datagrams<'a> {
    /// Returns the number of datagrams.
    pub fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.step())
    }

    /// Returns the bytes from one datagram to the next. A batch without a segment size is one datagram.
    fn step(&self) -> usize {
        if self.segment == 0 { self.bytes.len().max(1) } else { self.segment }
    }

    /// Returns the batch without its first `datagrams`, if any are left.
    fn after(&self, datagrams: usize) -> Option<Self> {
        let segment = self.step();
        let bytes = self.bytes.get(datagrams * segment..).filter(|bytes| !bytes.is_empty())?;
        Some(Self { segment, bytes, ..*self })
    }

    /// Returns the front of the batch that one send can take. Splits evenly: a batch of 45 with a limit of 44 is sent
    /// as 23 and 22, not as 44 and a single datagram that costs a whole message.
    fn front(&self, max_segments: usize) -> Self {
        let max_count = (MAX_PAYLOAD / self.segment).clamp(1, max_segments);
        let sends = self.count().div_ceil(max_count);
        let len = self.count().div_ceil(sends) * self.segment;
        Self { bytes: &self.bytes[..len.min(self.bytes.len())], ..*self }
    }
}

/// The socket becomes writable later. After `ENOBUFS`, from a full queue of a device, it is writable at once: waiting
/// for that would be a busy loop, so such a datagram counts as lost.
fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// Returns true for errors by which the kernel rejects GSO. Each has other causes too; the single sends reveal them.
fn is_gso_error(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP))
}

/// Maximum number of segments of one GSO send in any kernel (`UDP_MAX_SEGMENTS`, 6.9 and later).
pub(super) const MAX_SEGMENTS: usize = 128;
/// The same before Linux 6.9.
const OLD_MAX_SEGMENTS: usize = 64;
/// Maximum bytes of one send: the largest IPv4 packet without its headers. IPv6 would allow 20 more.
const MAX_PAYLOAD: usize = 65_535 - 20 - 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(segment: usize, bytes: &[u8]) -> Datagrams<'_> {
        Datagrams { to: ([127, 0, 0, 1], 9).into(), tos: 0, segment, bytes }
    }

    #[test]
    fn an_oversized_batch_is_split_evenly() {
        let bytes = vec![0; 48 * 1388];
        // 65507 / 1388 = 47 datagrams fit, so 48 take two sends of 24.
        assert_eq!(batch(1388, &bytes).front(128).count(), 24);
        assert_eq!(batch(1388, &bytes[..47 * 1388]).front(128).count(), 47);
        // 300 datagrams of 64 bytes in batches of 128 at most: three sends of 100.
        assert_eq!(batch(64, &bytes[..300 * 64]).front(128).count(), 100);
        assert_eq!(batch(64, &bytes[..300 * 64]).front(64).count(), 60);
    }

    #[test]
    fn only_a_full_send_buffer_is_waited_for() {
        let is_full = |errno| is_full(&io::Error::from_raw_os_error(errno));
        assert_eq!([libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM].map(is_full), [true, false, false]);
    }

    #[test]
    fn the_last_datagram_may_be_shorter_and_one_datagram_may_be_short() {
        let bytes = vec![0; 2500];
        assert_eq!(batch(1000, &bytes).count(), 3);
        assert_eq!(batch(1000, &bytes).after(2).unwrap().bytes.len(), 500);
        assert!(batch(1000, &bytes).after(3).is_none());
        assert_eq!(batch(9000, &bytes).front(128).bytes.len(), 2500);
    }

    #[test]
    fn a_datagram_larger_than_ip_is_left_to_the_kernel_to_refuse() {
        let bytes = vec![0; 140_000];
        assert_eq!(batch(70_000, &bytes).front(128).count(), 1);
        assert_eq!((batch(0, &bytes).count(), batch(0, &bytes).after(0).unwrap().count()), (1, 1));
        assert!(batch(0, &[]).after(0).is_none());
    }
}
