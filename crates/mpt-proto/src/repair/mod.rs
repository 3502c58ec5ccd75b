//! What was sent and may have to be sent again.
//!
//! Every inner packet that leaves under a native session is remembered here, by reference, until it is known to have
//! arrived. Feedback knows packets by their [`PacketKey`] and tells their fate; what is lost on one path is sent again on
//! whichever path brings it soonest. When that is no longer worth it, the receiver is told not to wait ([`Repair::pop_skip`]). For a packet of class
//! realtime it is worth little for long: it goes again before all others or not at all, and nobody waits for it.

pub mod fec;

use std::collections::VecDeque;
use std::time::Duration;

use crate::classify::Class;
use crate::path::sent_packets::{Outcome, PacketKey};
use crate::queue::InnerPacket;
use crate::time::Time;

/// A packet's place in the order of its flow bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSeq {
    /// The bucket.
    pub bucket: u16,
    /// The packet's number there.
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

/// Packets that are under way, and those that must go again.
#[derive(Debug, Default)]
pub struct RetransmitQueue {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Of entries that are made from now on.
    first_generation: u32,
    /// Each packet once. Calls stand in front, the one that was lost last before the others.
    lost: VecDeque<PacketKey>,
    parked: bool,
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
    place: FlowSeq,
    sent: Time,
    copies: u32,
    /// More than one copy was sent.
    repeated: bool,
    /// How often all of them were lost.
    losses: u32,
    /// It must go again.
    queued: bool,
}

impl InFlight {
    fn is_realtime(&self) -> bool {
        self.packet.mark().class == Class::Realtime
    }

    /// For how long it is worth sending again, where others are for `usual`.
    fn useful(&self, usual: Duration) -> Duration {
        if self.is_realtime() { usual.min(REALTIME_DEADLINE) } else { usual }
    }
}

/// What comes later than this in a call has missed its turn to be played: 150 ms are the most that people do not mind (ITU-T
/// G.114), and the way itself takes some of them.
pub const REALTIME_DEADLINE: Duration = Duration::from_millis(100);

impl RetransmitQueue {
    /// Remembers a packet that is being sent for the first time.
    pub fn on_sent(&mut self, now: Time, packet: InnerPacket, place: FlowSeq) -> PacketKey {
        let index = self.free.pop().map_or_else(
            || {
                self.entries.push(Entry { generation: self.first_generation, carried: None });
                self.entries.len() - 1
            },
            |index| index as usize,
        );
        let entry = &mut self.entries[index];
        entry.carried =
            Some(InFlight { packet, place, sent: now, copies: 1, repeated: false, losses: 0, queued: false });
        PacketKey::new(index, entry.generation)
    }

    /// Learns the fate of one copy of a packet; returns the packet when it needs no more care.
    pub fn on_outcome(&mut self, key: PacketKey, fate: Outcome) -> Option<InnerPacket> {
        let carried = self.carried(key)?;
        match fate {
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

    /// Gives up what was first sent more than `useful` ago and is lost; returns the packets.
    pub fn give_up(&mut self, now: Time, useful: Duration) -> impl Iterator<Item = (FlowSeq, InnerPacket)> {
        let is_late = |carried: &InFlight| now.since(carried.sent) > carried.useful(useful);
        let (mut done, mut index) = (Vec::new(), 0);
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
                        self.skips.push(carried.place);
                    }
                    self.given_up += 1;
                    done.push((carried.place, carried.packet));
                }
                None => {}
            }
            self.lost.remove(index);
        }
        done.into_iter()
    }

    /// The first packet that must go again, and its bucket; none while parked.
    pub fn head(&mut self) -> Option<(u16, &InnerPacket)> {
        if self.parked {
            return None;
        }
        while let Some(key) = self.lost.front().copied() {
            if self.carried(key).is_some() {
                break;
            }
            self.lost.pop_front();
        }
        let key = *self.lost.front()?;
        self.entries[key.index()].carried.as_ref().map(|carried| (carried.place.bucket, &carried.packet))
    }

    /// What must go again waits until [`Self::unpark`], because the first of it has nowhere to go.
    pub fn park(&mut self) {
        self.parked = true;
    }

    /// Asks for what must go again.
    pub fn unpark(&mut self) {
        self.parked = false;
    }

    /// One more copy of a packet, unless it needs none.
    pub fn take_copy(&mut self, key: PacketKey) -> Option<(FlowSeq, InnerPacket)> {
        let carried = self.carried(key).filter(|carried| carried.copies > 0)?;
        (carried.copies, carried.repeated) = (carried.copies + 1, true);
        Some((carried.place, carried.packet.clone()))
    }

    /// Whether a packet is under way and not known to have arrived, so that one more copy may help.
    pub fn needs_copy(&self, key: PacketKey) -> bool {
        self.known(key).is_some_and(|carried| carried.copies > 0)
    }

    /// A packet that is under way.
    pub fn peek(&mut self, key: PacketKey) -> Option<(FlowSeq, InnerPacket)> {
        self.carried(key).map(|carried| (carried.place, carried.packet.clone()))
    }

    /// Whether one copy of a packet is under way, and no other ever was.
    pub fn is_single(&self, key: PacketKey) -> bool {
        self.known(key).is_some_and(|carried| carried.copies == 1 && !carried.repeated)
    }

    /// How often a packet was lost.
    pub fn losses(&mut self, key: PacketKey) -> u32 {
        self.carried(key).map_or(0, |carried| carried.losses)
    }

    /// Returns the number of a packet that is not acknowledged, and how many copies of it are in flight.
    pub fn in_flight(&self, key: PacketKey) -> Option<(FlowSeq, u32)> {
        self.known(key).map(|carried| (carried.place, carried.copies))
    }

    /// Gives up the packet that [`Self::head`] showed, and returns it.
    pub fn give_up_head(&mut self) -> Option<(FlowSeq, InnerPacket)> {
        let key = self.lost.pop_front()?;
        self.carried(key)?;
        let carried = self.forget(key)?;
        self.skips.push(carried.place);
        self.given_up += 1;
        Some((carried.place, carried.packet))
    }

    /// Takes the packet that [`Self::head`] showed, to be sent once more.
    pub fn pop(&mut self) -> Option<(PacketKey, FlowSeq, InnerPacket)> {
        let key = self.lost.pop_front()?;
        let carried = self.carried(key)?;
        (carried.copies, carried.repeated, carried.queued) = (carried.copies + 1, true, false);
        let sent = (key, carried.place, carried.packet.clone());
        self.resent += 1;
        Some(sent)
    }

    /// A packet that is in flight must go again, because nothing has been heard of it for too long.
    pub fn retransmit(&mut self, key: PacketKey) {
        if self.carried(key).is_some_and(|carried| carried.copies == 1) {
            self.enqueue(key);
        }
    }

    /// Nothing will be sent in this place.
    pub fn skip(&mut self, place: FlowSeq) {
        self.skips.push(place);
    }

    /// A place that the receiver need not wait for, told once; the newest first.
    pub fn pop_skip(&mut self) -> Option<FlowSeq> {
        self.skips.pop()
    }

    /// Whether there are places to tell the receiver about.
    pub fn has_skips(&self) -> bool {
        !self.skips.is_empty()
    }

    /// How many packets were sent again, and how many given up.
    pub fn counts(&self) -> (u64, u64) {
        (self.resent, self.given_up)
    }

    /// Whether no packet is cared for.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    /// Gives memory back while no packet is cared for.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.skips.is_empty() {
            self.clear();
        }
    }

    /// Forgets everything, because the peer has begun anew or nobody asks any more.
    pub fn clear(&mut self) {
        let newest = self.entries.iter().map(|entry| entry.generation).max();
        // Old keys must not name new packets.
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
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::classify::Mark;
    use crate::packet::{Offload, SuperPacket};

    fn packet() -> InnerPacket {
        of(Class::Bulk)
    }

    fn of(class: Class) -> InnerPacket {
        let mut bytes = vec![0u8; 40];
        bytes[..4].copy_from_slice(&[0x45, 0, 0, 40]);
        let mut packet = SuperPacket::new(bytes, 40, Offload::default()).unwrap();
        packet.set_mark(Mark { class, ..Mark::default() });
        InnerPacket::new(Arc::new(packet), 0, false)
    }

    fn place(sequence: u32) -> FlowSeq {
        FlowSeq { bucket: 7, sequence }
    }

    const USEFUL: Duration = Duration::from_secs(1);

    #[test]
    fn a_lost_packet_goes_again_and_an_acknowledged_one_is_forgotten() {
        let mut repair = RetransmitQueue::default();
        let keys = [1, 2].map(|n| repair.on_sent(Time::START, packet(), place(n)));
        assert!(repair.on_outcome(keys[0], Outcome::Acked).is_some());
        assert!(repair.on_outcome(keys[1], Outcome::Lost).is_none());
        assert_eq!(repair.pop().map(|(key, place, _)| (key, place.sequence)), Some((keys[1], 2)));
        assert!(repair.head().is_none());
        assert!(repair.on_outcome(keys[1], Outcome::Acked).is_some());
        assert!(
            repair.on_outcome(keys[1], Outcome::Lost).is_none(),
            "the first copy's fate is of no interest any more"
        );
        assert!(repair.head().is_none());
    }

    #[test]
    fn a_packet_is_lost_when_all_its_copies_are() {
        let mut repair = RetransmitQueue::default();
        let key = repair.on_sent(Time::START, packet(), place(1));
        repair.on_outcome(key, Outcome::Lost);
        repair.pop();
        repair.take_copy(key).unwrap();
        repair.on_outcome(key, Outcome::Lost);
        assert_eq!((repair.losses(key), repair.head().is_none()), (1, true));
        repair.on_outcome(key, Outcome::Lost);
        assert_eq!((repair.losses(key), repair.head().is_none()), (2, false));
    }

    #[test]
    fn what_arrives_after_all_is_not_sent_again() {
        let mut repair = RetransmitQueue::default();
        let key = repair.on_sent(Time::START, packet(), place(1));
        repair.on_outcome(key, Outcome::Lost);
        repair.on_outcome(key, Outcome::Spurious);
        assert!(repair.head().is_none());
    }

    #[test]
    fn what_is_too_old_is_given_up_and_the_receiver_told_once() {
        let mut repair = RetransmitQueue::default();
        let key = repair.on_sent(Time::START, packet(), place(9));
        repair.on_outcome(key, Outcome::Lost);
        assert_eq!(repair.give_up(Time::START + USEFUL, USEFUL).count(), 0);
        assert_eq!(repair.give_up(Time::START + 2 * USEFUL, USEFUL).count(), 1);
        assert_eq!((repair.pop_skip(), repair.pop_skip()), (Some(place(9)), None));
        assert!(repair.head().is_none());
    }

    #[test]
    fn a_packet_goes_again_once_however_often_that_is_asked() {
        let mut repair = RetransmitQueue::default();
        let key = repair.on_sent(Time::START, packet(), place(1));
        repair.retransmit(key);
        repair.retransmit(key);
        repair.on_outcome(key, Outcome::Lost);
        assert!(repair.pop().is_some() && repair.pop().is_none());
        repair.on_outcome(key, Outcome::Lost);
        assert!(repair.pop().is_some(), "this copy was lost as well");
    }

    #[test]
    fn calls_go_again_before_bulk_and_late_ones_not_at_all() {
        let mut repair = RetransmitQueue::default();
        let bulk = repair.on_sent(Time::START, packet(), place(1));
        let [late, timely] = [0, 150].map(|ms| {
            let sent = Time::after(Duration::from_millis(ms));
            repair.on_sent(sent, of(Class::Realtime), place(2 + ms as u32))
        });
        [bulk, late, timely].into_iter().for_each(|key| repair.retransmit(key));
        let order = |repair: &RetransmitQueue| repair.lost.iter().copied().collect::<Vec<_>>();
        assert_eq!(order(&repair), [timely, late, bulk]);
        // 200 ms are twice what a call bears.
        assert_eq!(repair.give_up(Time::after(2 * REALTIME_DEADLINE), USEFUL).count(), 1);
        assert_eq!(order(&repair), [timely, bulk]);
    }

    #[test]
    fn a_key_of_a_cleared_queue_identifies_no_later_packet() {
        let mut repair = RetransmitQueue::default();
        let key = repair.on_sent(Time::START, packet(), place(1));
        let second = repair.on_sent(Time::START, packet(), place(1));
        repair.clear();
        repair.on_sent(Time::START, packet(), place(2));
        repair.on_sent(Time::START, packet(), place(2));
        assert!(repair.on_outcome(key, Outcome::Acked).is_none());
        assert!(repair.on_outcome(second, Outcome::Acked).is_none());
    }
}
