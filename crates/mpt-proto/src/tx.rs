//! Datagrams on their way to the sockets, written in place and grouped as one send takes them.
//!
//! A [`Transmit`] is a run of datagrams to one address with one type of service, all of one length but the last, which may
//! be shorter: what UDP generic segmentation offload sends in one system call. One run per destination is open at a
//! time. A slot reserved and not committed leaves no trace.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::path::LinkId;

/// A run of datagrams for one send.
#[derive(Debug)]
pub struct Transmit {
    /// The socket to send from.
    pub link: LinkId,
    /// Where to.
    pub to: SocketAddr,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
    /// Bytes in each datagram but the last.
    pub segment: usize,
    buffer: Box<[u8]>,
    used: usize,
    full: bool,
}

impl Transmit {
    /// The datagrams, one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    /// How many datagrams it holds.
    pub fn count(&self) -> usize {
        self.used.div_ceil(self.segment.max(1))
    }

    fn takes(&self, tos: u8, len: usize) -> bool {
        !self.full
            && self.tos == tos
            && len <= self.segment
            && self.used + len <= MAX_BYTES
            && self.count() < MAX_SEGMENTS
    }
}

/// The largest UDP payload over IPv4, which also bounds a send with segmentation offload.
pub const MAX_BYTES: usize = 65_507;
/// Linux before 6.9 takes no more segments in one send.
const MAX_SEGMENTS: usize = 64;
/// Buffers that are kept for runs to come: 4 MB, more than leaves in most turns.
const MAX_SPARE: usize = 64;

/// Where datagrams wait for the sockets.
#[derive(Debug, Default)]
pub struct TxQueue {
    open: Vec<Transmit>,
    ready: VecDeque<Transmit>,
    spare: Vec<Box<[u8]>>,
}

impl TxQueue {
    /// Reserves `len` bytes for one datagram.
    pub fn reserve(&mut self, link: LinkId, to: SocketAddr, tos: u8, len: usize) -> TxSlot<'_> {
        let at = self.open_run(link, to, tos, len);
        TxSlot { run: &mut self.open[at], len }
    }

    /// Declares every run complete: the turn is over.
    pub fn flush(&mut self) {
        self.ready.extend(self.open.drain(..).filter(|run| run.used > 0));
    }

    /// The next run to send. Runs for one destination come in the order in which they were written.
    pub fn poll(&mut self) -> Option<Transmit> {
        self.ready.pop_front()
    }

    /// Takes a sent run's buffer back.
    pub fn recycle(&mut self, sent: Transmit) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(sent.buffer);
        }
    }

    fn open_run(&mut self, link: LinkId, to: SocketAddr, tos: u8, len: usize) -> usize {
        let found = self.open.iter().position(|run| run.link == link && run.to == to);
        if let Some(at) = found {
            if self.open[at].takes(tos, len) {
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

/// Room for one datagram in a run.
#[derive(Debug)]
pub struct TxSlot<'a> {
    run: &'a mut Transmit,
    len: usize,
}

impl TxSlot<'_> {
    /// The datagram's bytes. What they hold before they are written is undefined.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.run.buffer[self.run.used..self.run.used + self.len]
    }

    /// Keeps the datagram.
    pub fn commit(self) {
        self.run.used += self.len;
        self.run.full = self.len < self.run.segment;
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

    fn runs(tx: &mut TxQueue) -> Vec<(u16, usize, usize)> {
        tx.flush();
        std::iter::from_fn(|| tx.poll()).map(|t| (t.to.port(), t.segment, t.bytes().len())).collect()
    }

    #[test]
    fn equal_datagrams_to_one_address_share_a_run_and_a_shorter_one_ends_it() {
        let mut tx = TxQueue::default();
        for len in [100, 100, 60, 60] {
            write(&mut tx, 1, 0, len);
        }
        assert_eq!(runs(&mut tx), [(1, 100, 260), (1, 60, 60)]);
    }

    #[test]
    fn destination_type_of_service_and_a_longer_datagram_begin_a_new_run() {
        let mut tx = TxQueue::default();
        for (port, tos, len) in [(1, 0, 100), (2, 0, 100), (1, 0, 100), (1, 3, 100), (1, 3, 101)] {
            write(&mut tx, port, tos, len);
        }
        let mut seen = runs(&mut tx);
        seen.sort_unstable();
        assert_eq!(seen, [(1, 100, 100), (1, 100, 200), (1, 101, 101), (2, 100, 100)]);
    }

    #[test]
    fn a_run_holds_what_one_send_takes() {
        let mut tx = TxQueue::default();
        (0..70).for_each(|_| write(&mut tx, 1, 0, 100));
        (0..50).for_each(|_| write(&mut tx, 2, 0, 1_400));
        let mut seen = runs(&mut tx);
        seen.sort_unstable();
        assert_eq!(seen, [(1, 100, 600), (1, 100, 6_400), (2, 1_400, 4 * 1_400), (2, 1_400, 46 * 1_400)]);
    }

    #[test]
    fn the_buffers_of_a_peak_are_not_all_kept() {
        let mut tx = TxQueue::default();
        (0..MAX_SPARE + 9).for_each(|port| write(&mut tx, port as u16, 0, 100));
        tx.flush();
        while let Some(sent) = tx.poll() {
            tx.recycle(sent);
        }
        assert_eq!(tx.spare.len(), MAX_SPARE);
    }

    #[test]
    fn a_slot_that_is_not_committed_leaves_no_trace() {
        let mut tx = TxQueue::default();
        tx.reserve(LinkId(0), to(1), 0, 100).bytes().fill(1);
        assert_eq!(runs(&mut tx), []);
    }
}
