//! Datagrams to be sent, written in place and grouped into batches of one system call.
//!
//! A [`Transmit`] is a batch of datagrams for UDP generic segmentation offload (GSO): one address, one type of service,
//! and one length, but for the last datagram, which may be shorter. One batch per destination is open at a time. A slot
//! that is reserved and not committed has no effect.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::id::LinkId;

/// A batch of datagrams for one system call.
#[derive(Debug)]
pub struct Transmit {
    /// The socket that sends it.
    pub link: LinkId,
    /// The destination.
    pub to: SocketAddr,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
    /// Length of each datagram but the last.
    pub segment: usize,
    buffer: Box<[u8]>,
    used: usize,
    full: bool,
}

impl Transmit {
    /// Returns the datagrams, one after the other.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    /// Returns the number of datagrams.
    pub fn count(&self) -> usize {
        self.used.div_ceil(self.segment.max(1))
    }

    fn accepts(&self, tos: u8, len: usize) -> bool {
        !self.full
            && self.tos == tos
            && len <= self.segment
            && self.used + len <= MAX_BYTES
            && self.count() < MAX_SEGMENTS
    }
}

/// The largest UDP payload over IPv4, which also limits a send with segmentation offload.
pub const MAX_BYTES: usize = 65_507;
/// UDP_MAX_SEGMENTS of Linux before 6.9.
const MAX_SEGMENTS: usize = 64;
/// Buffers kept for reuse: 4 MB, more than most turns of the event loop send.
const MAX_SPARE: usize = 64;

/// The datagrams to be sent, of all sockets.
#[derive(Debug, Default)]
pub struct TxQueue {
    open: Vec<Transmit>,
    ready: VecDeque<Transmit>,
    spare: Vec<Box<[u8]>>,
}

impl TxQueue {
    /// Reserves `len` bytes for one datagram.
    pub fn reserve(&mut self, link: LinkId, to: SocketAddr, tos: u8, len: usize) -> TxSlot<'_> {
        let at = self.open_batch(link, to, tos, len);
        TxSlot { batch: &mut self.open[at], len }
    }

    /// Completes every batch, at the end of a turn.
    pub fn flush(&mut self) {
        self.ready.extend(self.open.drain(..).filter(|batch| batch.used > 0));
    }

    /// Returns the next batch to send. Batches for one destination are in the order in which they were written.
    pub fn poll(&mut self) -> Option<Transmit> {
        self.ready.pop_front()
    }

    /// Reuses the buffer of a batch that was sent.
    pub fn recycle(&mut self, sent: Transmit) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(sent.buffer);
        }
    }

    fn open_batch(&mut self, link: LinkId, to: SocketAddr, tos: u8, len: usize) -> usize {
        let found = self.open.iter().position(|batch| batch.link == link && batch.to == to);
        if let Some(at) = found {
            if self.open[at].accepts(tos, len) {
                return at;
            }
            let done = self.open.swap_remove(at);
            if done.used > 0 {
                self.ready.push_back(done);
            } else {
                self.spare.push(done.buffer);
            }
        }
        let buffer = self.spare.pop().unwrap_or_else(|| vec![0; MAX_BYTES].into_boxed_slice());
        self.open.push(Transmit { link, to, tos, segment: len, buffer, used: 0, full: false });
        self.open.len() - 1
    }
}

/// Space for one datagram in a batch.
#[derive(Debug)]
pub struct TxSlot<'a> {
    batch: &'a mut Transmit,
    len: usize,
}

impl TxSlot<'_> {
    /// Returns the bytes of the datagram. Their content is undefined before they are written.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.batch.buffer[self.batch.used..self.batch.used + self.len]
    }

    /// Adds the datagram to the batch.
    pub fn commit(self) {
        self.batch.used += self.len;
        self.batch.full = self.len < self.batch.segment;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn write(tx: &mut TxQueue, port: u16, tos: u8, len: usize) {
        tx.reserve(LinkId(0), to(port), tos, len).commit();
    }

    fn batches(tx: &mut TxQueue) -> Vec<(u16, usize, usize)> {
        tx.flush();
        std::iter::from_fn(|| tx.poll()).map(|t| (t.to.port(), t.segment, t.bytes().len())).collect()
    }

    #[test]
    fn equal_datagrams_to_one_address_share_a_batch_and_a_shorter_one_ends_it() {
        let mut tx = TxQueue::default();
        for len in [100, 100, 60, 60] {
            write(&mut tx, 1, 0, len);
        }
        assert_eq!(batches(&mut tx), [(1, 100, 260), (1, 60, 60)]);
    }

    #[test]
    fn another_destination_or_type_of_service_or_a_longer_datagram_starts_a_batch() {
        let mut tx = TxQueue::default();
        for (port, tos, len) in [(1, 0, 100), (2, 0, 100), (1, 0, 100), (1, 3, 100), (1, 3, 101)] {
            write(&mut tx, port, tos, len);
        }
        let mut seen = batches(&mut tx);
        seen.sort_unstable();
        assert_eq!(seen, [(1, 100, 100), (1, 100, 200), (1, 101, 101), (2, 100, 100)]);
    }

    #[test]
    fn a_batch_is_limited_to_one_system_call() {
        let mut tx = TxQueue::default();
        (0..70).for_each(|_| write(&mut tx, 1, 0, 100));
        (0..50).for_each(|_| write(&mut tx, 2, 0, 1_400));
        let mut seen = batches(&mut tx);
        seen.sort_unstable();
        assert_eq!(seen, [(1, 100, 600), (1, 100, 6_400), (2, 1_400, 4 * 1_400), (2, 1_400, 46 * 1_400)]);
    }

    #[test]
    fn the_number_of_spare_buffers_is_bounded() {
        let mut tx = TxQueue::default();
        (0..MAX_SPARE + 9).for_each(|port| write(&mut tx, port as u16, 0, 100));
        tx.flush();
        while let Some(sent) = tx.poll() {
            tx.recycle(sent);
        }
        assert_eq!(tx.spare.len(), MAX_SPARE);
    }

    #[test]
    fn a_slot_that_is_not_committed_has_no_effect() {
        let mut tx = TxQueue::default();
        tx.reserve(LinkId(0), to(1), 0, 100).bytes().fill(1);
        assert_eq!(batches(&mut tx), []);
    }
}
