//! Sending a run of equal datagrams, and what to do when the kernel will not.
//!
//! | the kernel says                  | what it means             | what happens |
//! |----------------------------------|---------------------------|--------------|
//! | `EAGAIN`, `ENOBUFS`              | no room                   | [`Rest::Full`]; the caller keeps the rest |
//! | `EINVAL`, more than 64 segments  | a kernel before 6.9       | runs of 64 from then on, and again |
//! | `EIO`, `EINVAL`, `EMSGSIZE`, `EOPNOTSUPP`, and the same datagrams pass one by one | no GSO on this way out | the slow twin, for good |
//! | anything else, once              | the error of an earlier datagram | again |
//! | anything, twice                  | no route, too large, forbidden | [`Rest::Failed`]; never fatal to the socket |
//!
//! `EIO` is the late refusal: the route leads to a device without checksum offload (before 6.11), or through IPsec.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::libc;

use super::{FallbackReason, Offload, Socket};
use crate::sys::message;

/// A run of datagrams to one address.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams<'a> {
    /// Where they go.
    pub to: SocketAddr,
    /// The outer TOS or traffic class: DSCP and ECN.
    pub tos: u8,
    /// Bytes of every datagram but the last, which may be shorter. At least 1.
    pub segment: usize,
    /// The datagrams, one after the other.
    pub bytes: &'a [u8],
}

/// What became of a run.
#[derive(Debug)]
#[must_use = "datagrams that were not taken are lost unless they are sent again"]
pub struct Sent {
    /// How many datagrams the kernel took, counted from the front.
    pub datagrams: usize,
    /// What about the others.
    pub status: SendStatus,
}

/// Why the kernel took no more datagrams of a run.
#[derive(Debug)]
pub enum SendStatus {
    /// It took all.
    Complete,
    /// It has no room: send the rest when the socket is writable.
    Blocked,
    /// It refuses the first of the rest, and did so twice.
    Failed(io::Error),
}

/// The most segments of one GSO send in any kernel (`UDP_MAX_SEGMENTS`, 6.9 and up).
pub(super) const MAX_SEGMENTS: usize = 128;

/// The same before Linux 6.9.
const OLD_MAX_SEGMENTS: usize = 64;

/// The most bytes of one send: the largest IPv4 packet without its headers. IPv6 would allow 20 more.
const MAX_PAYLOAD: usize = 65_535 - 20 - 8;

impl Socket {
    /// Sends a run of datagrams, as few system calls as it takes, and says how many the kernel took.
    pub fn send(&mut self, run: &Datagrams<'_>) -> Sent {
        let mut sent = Sent { datagrams: 0, status: SendStatus::Complete };
        let mut tried = false;
        while let Some(rest) = run.after(sent.datagrams) {
            match self.send_once(&rest) {
                Ok(taken) => {
                    sent.datagrams += taken;
                    tried = false;
                }
                Err(error) if is_full(&error) => return Sent { status: SendStatus::Blocked, ..sent },
                Err(_) if !tried => tried = true,
                Err(error) => return Sent { status: SendStatus::Failed(error), ..sent },
            }
        }
        sent
    }

    /// Sends the front of a run with one system call, two if GSO is refused. Returns how many datagrams the kernel took.
    fn send_once(&mut self, run: &Datagrams<'_>) -> io::Result<usize> {
        let chunk = run.front(self.max_segments);
        if chunk.count() == 1 {
            return self.send_message(&chunk, None);
        }
        if self.gso != Offload::Enabled {
            return self.send_singly(run);
        }
        let segment = u16::try_from(chunk.segment).expect("two segments fit into 65507 bytes");
        match self.send_message(&chunk, Some(segment)) {
            Err(error) if is_gso_error(&error) => self.send_without_gso(&chunk, &error),
            result => result,
        }
    }

    fn send_message(&self, run: &Datagrams<'_>, segment: Option<u16>) -> io::Result<usize> {
        message::send(self.as_fd(), run.to, run.tos, segment, run.bytes)?;
        Ok(run.count())
    }

    fn send_singly(&self, run: &Datagrams<'_>) -> io::Result<usize> {
        message::send_each(self.as_fd(), run.to, run.tos, run.bytes.chunks(run.segment))
    }

    /// Sends a run that GSO refused. If its datagrams pass one by one, GSO was to blame.
    fn send_without_gso(&mut self, run: &Datagrams<'_>, error: &io::Error) -> io::Result<usize> {
        let errno = error.raw_os_error().unwrap_or_default();
        let taken = self.send_singly(run)?;
        if errno == libc::EINVAL && run.count() > OLD_MAX_SEGMENTS {
            self.max_segments = OLD_MAX_SEGMENTS;
        } else {
            self.gso = Offload::Fallback(FallbackReason::Refused(errno));
        }
        Ok(taken)
    }
}

impl<'a> Datagrams<'a> {
    /// How many datagrams there are.
    pub fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.step())
    }

    /// Bytes from one datagram to the next. A run without a segment size is one datagram.
    fn step(&self) -> usize {
        if self.segment == 0 { self.bytes.len().max(1) } else { self.segment }
    }

    /// The run without its first `datagrams`, if anything is left.
    fn after(&self, datagrams: usize) -> Option<Self> {
        let segment = self.step();
        let bytes = self.bytes.get(datagrams * segment..).filter(|bytes| !bytes.is_empty())?;
        Some(Self { segment, bytes, ..*self })
    }

    /// As much of the run as one send can take. The sends are of about equal length: a run of 45 that fits 44 goes as 23
    /// and 22, not as 44 and a straggler that costs a whole message.
    fn front(&self, max_segments: usize) -> Self {
        let most = (MAX_PAYLOAD / self.segment).clamp(1, max_segments);
        let sends = self.count().div_ceil(most);
        let len = self.count().div_ceil(sends) * self.segment;
        Self { bytes: &self.bytes[..len.min(self.bytes.len())], ..*self }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS))
}

/// Errors by which the kernel refuses GSO. Each can also have a reason of its own, which shows in the single datagrams.
fn is_gso_error(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(segment: usize, bytes: &[u8]) -> Datagrams<'_> {
        Datagrams { to: ([127, 0, 0, 1], 9).into(), tos: 0, segment, bytes }
    }

    #[test]
    fn a_run_that_does_not_fit_is_cut_evenly() {
        let bytes = vec![0; 48 * 1388];
        // 65507 / 1388 = 47 datagrams fit, so 48 take two sends of 24.
        assert_eq!(run(1388, &bytes).front(128).count(), 24);
        assert_eq!(run(1388, &bytes[..47 * 1388]).front(128).count(), 47);
        // 300 datagrams of 64 bytes in runs of 128 at most: three sends of 100.
        assert_eq!(run(64, &bytes[..300 * 64]).front(128).count(), 100);
        assert_eq!(run(64, &bytes[..300 * 64]).front(64).count(), 60);
    }

    #[test]
    fn the_last_datagram_may_be_shorter_and_one_datagram_may_be_short() {
        let bytes = vec![0; 2500];
        assert_eq!(run(1000, &bytes).count(), 3);
        assert_eq!(run(1000, &bytes).after(2).unwrap().bytes.len(), 500);
        assert!(run(1000, &bytes).after(3).is_none());
        assert_eq!(run(9000, &bytes).front(128).bytes.len(), 2500);
    }

    #[test]
    fn a_datagram_larger_than_ip_is_left_to_the_kernel_to_refuse() {
        let bytes = vec![0; 140_000];
        assert_eq!(run(70_000, &bytes).front(128).count(), 1);
        assert_eq!((run(0, &bytes).count(), run(0, &bytes).after(0).unwrap().count()), (1, 1));
        assert!(run(0, &[]).after(0).is_none());
    }
}
