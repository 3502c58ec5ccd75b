//! Retransmission of inner packets.
//!
//! Every inner packet that a native session sends is stored here, by reference, until it is acknowledged. ACKs give the
//! outcome of a packet by its [`PacketKey`]. A packet that is lost on one path is retransmitted on the path with the
//! earliest arrival. After its deadline the receiver gets a SKIP frame ([`RetransmitQueue::pop_skip`]). Packets of
//! class realtime have a short deadline, are retransmitted before others, and need no SKIP frame, because the receiver
//! does not wait for them.

pub mod fec;

use std::collections::VecDeque;
use std::time::Duration;

use crate::classify::Class;
use crate::path::sent_packets::{Outcome, PacketKey};
use crate::queue::InnerPacket;
use crate::time::Time;
use crate::tuning::repair::retransmit::REALTIME_DEADLINE;

/// The position of a packet in the order of its flow bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSeq {
    /// The bucket.
    pub bucket: u16,
    /// The packet's sequence number in the bucket.
    pub sequence: u32,
}

impl PacketKey {
    fn new(index: usize, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | index as u64)
    }

    fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Packets in flight, and those to be retransmitted.
#[derive(Debug, Default)]
pub struct RetransmitQueue {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Generation of new entries.
    first_generation: u32,
    /// Each packet once. Realtime packets come first, the most recently lost one before the others.
    lost: VecDeque<PacketKey>,
    suspended: bool,
    skips: Vec<FlowSeq>,
    resent: u64,
    given_up: u64,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    carried: Option<InFlight>,
}

#[derive(Debug)]
struct InFlight {
    packet: InnerPacket,
    flow_seq: FlowSeq,
    sent: Time,
    /// Copies in flight.
    copies: u32,
    /// True if more than one copy was sent.
    repeated: bool,
    /// Number of times that all copies were lost.
    losses: u32,
    /// True if it is to be retransmitted.
    queued: bool,
}

impl InFlight {
    fn is_realtime(&self) -> bool {
        self.packet.mark().class == Class::Realtime
    }

    /// Returns the age up to which it is retransmitted; `limit` is that of other packets.
    fn deadline(&self, limit: Duration) -> Duration {
        if self.is_realtime() { limit.min(REALTIME_DEADLINE) } else { limit }
    }
}

impl RetransmitQueue {
    /// Stores a packet that is sent for the first time.
    pub fn on_sent(&mut self, now: Time, packet: InnerPacket, flow_seq: FlowSeq) -> PacketKey {
        let index = self.free.pop().map_or_else(
            || {
                self.entries.push(Entry { generation: self.first_generation, carried: None });
                self.entries.len() - 1
            },
            |index| index as usize,
        );
        let entry = &mut self.entries[index];
        entry.carried =
            Some(InFlight { packet, flow_seq, sent: now, copies: 1, repeated: false, losses: 0, queued: false });
        PacketKey::new(index, entry.generation)
    }

    /// Applies the outcome of one copy of a packet; returns the packet if it arrived.
    pub fn on_outcome(&mut self, key: PacketKey, outcome: Outcome) -> Option<InnerPacket> {
        let carried = self.carried(key)?;
        match outcome {
            Outcome::Acked | Outcome::Spurious => self.forget(key).map(|carried| carried.packet),
            Outcome::Lost => {
                carried.copies -= 1;
                if carried.copies > 0 {
                    return None;
                }
                carried.losses += 1;
                self.enqueue(key);
                None
            }
        }
    }

    /// Removes and returns the lost packets that were first sent more than `limit` ago.
    pub fn give_up(&mut self, now: Time, limit: Duration) -> impl Iterator<Item = (FlowSeq, InnerPacket)> {
        let is_late = |packet: &InFlight| now.since(packet.sent) > packet.deadline(limit);
        let (mut expired, mut index) = (Vec::new(), 0);
        while let Some(key) = self.lost.get(index).copied() {
            match self.carried(key) {
                Some(carried) if !is_late(carried) && carried.is_realtime() => {
                    index += 1;
                    continue;
                }
                Some(carried) if !is_late(carried) => break,
                Some(_) => {
                    let carried = self.forget(key).expect("just seen");
                    if !carried.is_realtime() {
                        self.skips.push(carried.flow_seq);
                    }
                    self.given_up += 1;
                    expired.push((carried.flow_seq, carried.packet));
                }
                None => {}
            }
            self.lost.remove(index);
        }
        expired.into_iter()
    }

    /// Returns the first packet to be retransmitted and its bucket; `None` while suspended.
    pub fn head(&mut self) -> Option<(u16, &InnerPacket)> {
        if self.suspended {
            return None;
        }
        while let Some(key) = self.lost.front().copied() {
            if self.carried(key).is_some() {
                break;
            }
            self.lost.pop_front();
        }
        let key = *self.lost.front()?;
        self.entries[key.index()].carried.as_ref().map(|carried| (carried.flow_seq.bucket, &carried.packet))
    }

    /// Suspends retransmission until [`Self::resume`], because no path has room for the first packet.
    pub fn suspend(&mut self) {
        self.suspended = true;
    }

    /// Resumes retransmission.
    pub fn resume(&mut self) {
        self.suspended = false;
    }

    /// Returns one more copy of a packet, if it is in flight.
    pub fn take_copy(&mut self, key: PacketKey) -> Option<(FlowSeq, InnerPacket)> {
        let carried = self.carried(key).filter(|carried| carried.copies > 0)?;
        (carried.copies, carried.repeated) = (carried.copies + 1, true);
        Some((carried.flow_seq, carried.packet.clone()))
    }

    /// Returns true if a packet is in flight and not acknowledged, so that one more copy may help.
    pub fn needs_copy(&self, key: PacketKey) -> bool {
        self.known(key).is_some_and(|carried| carried.copies > 0)
    }

    /// Returns a packet that is not acknowledged.
    pub fn peek(&mut self, key: PacketKey) -> Option<(FlowSeq, InnerPacket)> {
        self.carried(key).map(|carried| (carried.flow_seq, carried.packet.clone()))
    }

    /// Returns true if one copy of a packet is in flight and no other was sent.
    pub fn is_single(&self, key: PacketKey) -> bool {
        self.known(key).is_some_and(|carried| carried.copies == 1 && !carried.repeated)
    }

    /// Returns the number of times that a packet was lost.
    pub fn losses(&mut self, key: PacketKey) -> u32 {
        self.carried(key).map_or(0, |carried| carried.losses)
    }

    /// Returns the number of a packet that is not acknowledged, and how many copies of it are in flight.
    pub fn in_flight(&self, key: PacketKey) -> Option<(FlowSeq, u32)> {
        self.known(key).map(|packet| (packet.flow_seq, packet.copies))
    }

    /// Removes the packet that [`Self::head`] returned, without sending it, and returns it.
    pub fn give_up_head(&mut self) -> Option<(FlowSeq, InnerPacket)> {
        let key = self.lost.pop_front()?;
        self.carried(key)?;
        let carried = self.forget(key)?;
        self.skips.push(carried.flow_seq);
        self.given_up += 1;
        Some((carried.flow_seq, carried.packet))
    }

    /// Removes and returns the lost packets that are worth sending by another way. The receiver gets SKIP frames for
    /// them.
    pub fn take_lost(&mut self) -> Vec<InnerPacket> {
        let mut taken = Vec::new();
        while let Some(key) = self.lost.pop_front() {
            if self.carried(key).is_none() {
                continue;
            }
            let carried = self.forget(key).expect("just seen");
            self.given_up += 1;
            if !carried.is_realtime() {
                self.skips.push(carried.flow_seq);
                taken.push(carried.packet);
            }
        }
        taken
    }

    /// Removes the packet that [`Self::head`] returned, to be retransmitted.
    pub fn pop(&mut self) -> Option<(PacketKey, FlowSeq, InnerPacket)> {
        let key = self.lost.pop_front()?;
        let carried = self.carried(key)?;
        (carried.copies, carried.repeated, carried.queued) = (carried.copies + 1, true, false);
        let sent = (key, carried.flow_seq, carried.packet.clone());
        self.resent += 1;
        Some(sent)
    }

    /// Queues a packet in flight for retransmission, because its acknowledgement is overdue.
    pub fn retransmit(&mut self, key: PacketKey) {
        if self.carried(key).is_some_and(|carried| carried.copies == 1) {
            self.enqueue(key);
        }
    }

    /// Adds a sequence number that will not be sent.
    pub fn skip(&mut self, flow_seq: FlowSeq) {
        self.skips.push(flow_seq);
    }

    /// Takes a sequence number for a SKIP frame; the newest first.
    pub fn pop_skip(&mut self) -> Option<FlowSeq> {
        self.skips.pop()
    }

    /// Returns true if there are sequence numbers for SKIP frames.
    pub fn has_skips(&self) -> bool {
        !self.skips.is_empty()
    }

    /// Returns the numbers of packets that were retransmitted and that were given up.
    pub fn counts(&self) -> (u64, u64) {
        (self.resent, self.given_up)
    }

    /// Returns true if no packet is stored.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    /// Releases memory if no packet is stored.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.skips.is_empty() {
            self.clear();
        }
    }

    /// Removes everything, because the peer restarted or the session ended.
    pub fn clear(&mut self) {
        let newest = self.entries.iter().map(|entry| entry.generation).max();
        // Old keys must not identify new packets.
        let first_generation = newest.map_or(self.first_generation, |newest| newest.wrapping_add(1));
        *self = Self { resent: self.resent, given_up: self.given_up, first_generation, ..Self::default() };
    }

    fn enqueue(&mut self, key: PacketKey) {
        let Some(carried) = self.carried(key).filter(|carried| !carried.queued) else { return };
        carried.queued = true;
        if carried.is_realtime() {
            self.lost.push_front(key);
        } else {
            self.lost.push_back(key);
        }
    }

    fn known(&self, key: PacketKey) -> Option<&InFlight> {
        let entry = self.entries.get(key.index()).filter(|entry| entry.generation == key.generation())?;
        entry.carried.as_ref()
    }

    fn carried(&mut self, key: PacketKey) -> Option<&mut InFlight> {
        let entry = self.entries.get_mut(key.index()).filter(|entry| entry.generation == key.generation())?;
        entry.carried.as_mut()
    }

    fn forget(&mut self, key: PacketKey) -> Option<InFlight> {
        let entry = &mut self.entries[key.index()];
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.index() as u32);
        entry.carried.take()
    }
}

#[cfg(test)]
mod tests;
