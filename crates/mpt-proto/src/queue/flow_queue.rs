//! The queue of one flow, with its state of fair queueing and CoDel.

use super::codel::{Codel, CodelParams};
use super::inner::InnerPacket;
use super::slab::{Chain, QueuedPacket, Slab};
use crate::classify::Mark;
use crate::packet::{SuperPacket, ecn};
use crate::time::Time;

/// The queue of one flow, or of the few flows that share a bucket.
#[derive(Debug, Default)]
pub(super) struct FlowQueue {
    chain: Chain,
    /// Index of the front packet in the first super-packet.
    next: usize,
    /// Bytes of the waiting packets.
    pub backlog: usize,
    /// Bytes that the flow may still send in its turn.
    pub deficit: i64,
    pub list: List,
    codel: Codel,
    /// The receive window limits this queue, so CoDel drops only at a multiple of its target.
    pub limited: bool,
    /// CoDel's decision for the packet at the front.
    codel_action: Option<CodelAction>,
    /// Packets behind the front that have left ahead of it.
    ahead: u32,
    /// Number of packets among these without a number, because numbering restarted.
    unnumbered: u32,
}

/// A packet taken from the front.
#[derive(Debug)]
pub(super) struct Dequeued {
    pub packet: InnerPacket,
    /// By how many numbers the front has advanced.
    pub advance: u32,
    /// Bytes of the super-packets that have left completely.
    pub released: usize,
}

/// The list that a flow is in (RFC 8290 section 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum List {
    /// It had nothing to send for a whole round of the scheduler.
    #[default]
    Inactive,
    /// It has just become active: sparse.
    New,
    /// It has a backlog.
    Old,
}

/// CoDel's decision for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodelAction {
    Send,
    Mark,
    Drop,
}

impl FlowQueue {
    /// Appends a super-packet.
    pub fn push(&mut self, slab: &mut Slab, now: Time, packet: SuperPacket) {
        self.backlog += packet.len_of_all();
        slab.push(&mut self.chain, QueuedPacket::new(packet, now));
    }

    /// Returns the length in bytes of the packet at the front.
    pub fn front_len(&self, slab: &Slab) -> Option<usize> {
        slab.front(&self.chain).map(|first| first.packet.len_of(self.next))
    }

    /// Returns the classifier's result for the packet at the front.
    pub fn front_mark(&self, slab: &Slab) -> Option<Mark> {
        slab.front(&self.chain).map(|first| first.packet.mark())
    }

    /// Takes the packet at the front, ECN-marked if CoDel marked it.
    pub fn take(&mut self, slab: &mut Slab) -> Option<Dequeued> {
        let first = slab.front_mut(&self.chain)?;
        let marked = self.codel_action.take() == Some(CodelAction::Mark);
        let packet = InnerPacket::new(first.packet.clone(), self.next, marked);
        first.remaining -= packet.len();
        self.backlog -= packet.len();
        let (advance, released) = self.advance_front(slab);
        Some(Dequeued { packet, advance, released })
    }

    /// Takes the first packet that has at least `before` bytes in front of it, or else the last packet, and returns its
    /// offset from the front in packets. Returns `None` if that is the front itself, is longer than `max_len` bytes, or
    /// is classified differently, because the decision made for the front does not apply to it.
    pub fn take_ahead(&mut self, slab: &mut Slab, before: usize, max_len: usize) -> Option<(InnerPacket, u32)> {
        if self.unnumbered > 0 {
            return None;
        }
        let mark = self.front_mark(slab)?;
        let (slot, index, offset) = self.find_ahead(slab, before).filter(|(_, _, offset)| *offset > 0)?;
        let waiting = slab.at(slot)?;
        let packet = InnerPacket::new(waiting.packet.clone(), index, false);
        if packet.len() > max_len || packet.mark() != mark {
            return None;
        }
        waiting.mark_left(index);
        self.backlog -= packet.len();
        self.ahead += 1;
        Some((packet, offset))
    }

    /// Returns true if dropping the front leaves a hole: a later packet has left with a number.
    pub fn leaves_hole(&self) -> bool {
        self.ahead > self.unnumbered
    }

    /// Restarts the numbering.
    pub fn renumber(&mut self) {
        self.unnumbered = self.ahead;
    }

    /// Returns CoDel's decision for the packet at the front. CoDel runs once per packet.
    pub fn run_codel(&mut self, slab: &Slab, now: Time, params: CodelParams) -> Option<CodelAction> {
        let first = slab.front(&self.chain)?;
        if self.codel_action.is_none() {
            let params = if self.limited { params.of_limited_flow() } else { params };
            let behind = self.backlog - first.packet.len_of(self.next);
            let should_drop = self.codel.should_drop(now, first.arrived, behind, params);
            self.codel_action = Some(match first.packet.ip().tos & ecn::MASK {
                _ if !should_drop => CodelAction::Send,
                ecn::NOT_ECT => CodelAction::Drop,
                _ => CodelAction::Mark,
            });
        }
        self.codel_action
    }

    /// Returns slot, index and offset of the first packet with at least `before` bytes in front of it, or of the last.
    fn find_ahead(&self, slab: &Slab, before: usize) -> Option<(u32, usize, u32)> {
        let (mut bytes, mut packets, mut from) = (0, 0, self.next);
        let mut last = None;
        for (slot, waiting) in slab.walk(&self.chain) {
            let offset = |index: usize| packets + (index - from) as u32;
            if bytes + waiting.remaining > before {
                let mut passed = bytes;
                for index in waiting.candidates(from) {
                    if passed >= before {
                        return Some((slot, index, offset(index)));
                    }
                    passed += waiting.packet.len_of(index);
                }
            }
            last = waiting.candidates(from).next_back().map(|index| (slot, index, offset(index))).or(last);
            bytes += waiting.remaining;
            packets += (waiting.packet.count() - from) as u32;
            from = 0;
        }
        last
    }

    /// Advances the front past the packet that has left and those that left ahead of it.
    fn advance_front(&mut self, slab: &mut Slab) -> (u32, usize) {
        let (mut advance, mut released) = (0, 0);
        while let Some(first) = slab.front(&self.chain) {
            if advance > 0 && !first.has_left(self.next) {
                break;
            }
            if advance > 0 {
                self.ahead -= 1;
            }
            advance += 1;
            self.next += 1;
            if self.next == first.packet.count() {
                released += first.packet.bytes().len();
                self.next = 0;
                slab.pop(&mut self.chain);
            }
        }
        let unnumbered = self.unnumbered.min(advance - 1);
        self.unnumbered -= unnumbered;
        (advance - unnumbered, released)
    }

    /// Records that the flow had its turn and was empty.
    pub fn on_empty(&mut self) {
        self.codel.on_empty();
        self.limited = false;
    }
}
