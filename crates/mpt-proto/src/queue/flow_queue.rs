//! The packets of one flow, and what fair queueing and CoDel know about it.

use super::codel::{Codel, CodelParams};
use super::inner::InnerPacket;
use super::slab::{Chain, QueuedPacket, Slab};
use crate::classify::Mark;
use crate::packet::{SuperPacket, ecn};
use crate::time::Time;

/// One flow, or those few that share a hash.
#[derive(Debug, Default)]
pub(super) struct FlowQueue {
    chain: Chain,
    /// The next packet of the first super-packet.
    next: usize,
    /// Bytes of the packets that wait.
    pub backlog: usize,
    /// Bytes that it may yet send before it is another's turn.
    pub deficit: i64,
    pub list: List,
    codel: Codel,
    /// What CoDel said about the packet at the front.
    verdict: Option<Dequeue>,
    /// How many packets behind the front have left ahead of it.
    ahead: u32,
    /// How many of these have no number, because numbering began anew.
    unnumbered: u32,
}

/// A packet that leaves.
#[derive(Debug)]
pub(super) struct Taken {
    pub packet: InnerPacket,
    /// By how many numbers the front has moved.
    pub places: u32,
    /// Bytes of the super-packets that are done with.
    pub released: usize,
}

/// In which list of flows it is (RFC 8290 section 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum List {
    /// It had nothing to send for a whole round.
    #[default]
    Neither,
    /// It has just begun: sparse.
    New,
    /// It is backlogged.
    Old,
}

/// What CoDel says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dequeue {
    Send,
    Mark,
    Drop,
}

impl FlowQueue {
    /// Takes a super-packet.
    pub fn push(&mut self, store: &mut Slab, now: Time, packet: SuperPacket) {
        self.backlog += packet.len_of_all();
        store.push(&mut self.chain, QueuedPacket::new(packet, now));
    }

    /// The length in bytes of the packet at the front.
    pub fn front_len(&self, store: &Slab) -> Option<usize> {
        store.front(&self.chain).map(|first| first.packet.len_of(self.next))
    }

    /// What the classifier found out about the packet at the front.
    pub fn front_mark(&self, store: &Slab) -> Option<Mark> {
        store.front(&self.chain).map(|first| first.packet.mark())
    }

    /// Takes out the packet at the front, with the mark that CoDel gave it.
    pub fn take(&mut self, store: &mut Slab) -> Option<Taken> {
        let first = store.front_mut(&self.chain)?;
        let marked = self.verdict.take() == Some(Dequeue::Mark);
        let packet = InnerPacket::new(first.packet.clone(), self.next, marked);
        first.left -= packet.len();
        self.backlog -= packet.len();
        let (places, released) = self.move_on(store);
        Some(Taken { packet, places, released })
    }

    /// Takes out the first packet that has `before` bytes in front of it, or else the last, and says how many places it stands behind the
    /// front. None for the front itself, and for one that is longer than `longest` bytes or marked otherwise: what was decided for the
    /// front does not hold for it.
    pub fn take_ahead(&mut self, store: &mut Slab, before: usize, longest: usize) -> Option<(InnerPacket, u32)> {
        if self.unnumbered > 0 {
            return None;
        }
        let mark = self.front_mark(store)?;
        let (slot, index, places) = self.find_ahead(store, before).filter(|(_, _, places)| *places > 0)?;
        let waiting = store.at(slot)?;
        let packet = InnerPacket::new(waiting.packet.clone(), index, false);
        if packet.len() > longest || packet.mark() != mark {
            return None;
        }
        waiting.set_gone(index);
        self.backlog -= packet.len();
        self.ahead += 1;
        Some((packet, places))
    }

    /// Whether a packet that is dropped at the front leaves a hole in the order of those that have left.
    pub fn leaves_hole(&self) -> bool {
        self.ahead > self.unnumbered
    }

    /// Numbering begins anew.
    pub fn renumber(&mut self) {
        self.unnumbered = self.ahead;
    }

    /// What CoDel says about the packet at the front. It is asked once and said again.
    pub fn judge(&mut self, store: &Slab, now: Time, delay: CodelParams) -> Option<Dequeue> {
        let first = store.front(&self.chain)?;
        if self.verdict.is_none() {
            let behind = self.backlog - first.packet.len_of(self.next);
            let wanted = self.codel.wants(now, first.arrived, behind, delay);
            self.verdict = Some(match first.packet.ip().tos & ecn::MASK {
                _ if !wanted => Dequeue::Send,
                ecn::NOT_ECT => Dequeue::Drop,
                _ => Dequeue::Mark,
            });
        }
        self.verdict
    }

    /// Slot, index and place of the first packet that has `before` bytes in front of it, or of the last.
    fn find_ahead(&self, store: &Slab, before: usize) -> Option<(u32, usize, u32)> {
        let (mut bytes, mut places, mut from) = (0, 0, self.next);
        let mut last = None;
        for (slot, waiting) in store.walk(&self.chain) {
            let place = |index: usize| places + (index - from) as u32;
            if bytes + waiting.left > before {
                let mut passed = bytes;
                for index in waiting.candidates(from) {
                    if passed >= before {
                        return Some((slot, index, place(index)));
                    }
                    passed += waiting.packet.len_of(index);
                }
            }
            last = waiting.candidates(from).next_back().map(|index| (slot, index, place(index))).or(last);
            bytes += waiting.left;
            places += (waiting.packet.count() - from) as u32;
            from = 0;
        }
        last
    }

    /// Moves the front past the packet that has left, and past those that had left ahead of it.
    fn move_on(&mut self, store: &mut Slab) -> (u32, usize) {
        let (mut places, mut released) = (0, 0);
        while let Some(first) = store.front(&self.chain) {
            if places > 0 && !first.is_gone(self.next) {
                break;
            }
            if places > 0 {
                self.ahead -= 1;
            }
            places += 1;
            self.next += 1;
            if self.next == first.packet.count() {
                released += first.packet.bytes().len();
                self.next = 0;
                store.pop(&mut self.chain);
            }
        }
        let unnumbered = self.unnumbered.min(places - 1);
        self.unnumbered -= unnumbered;
        (places - unnumbered, released)
    }

    /// See [`Codel::on_squeeze`].
    pub fn on_squeeze(&mut self, now: Time) {
        self.codel.on_squeeze(now);
    }

    /// It was its turn and it had nothing.
    pub fn on_empty(&mut self) {
        self.codel.on_empty();
    }
}
