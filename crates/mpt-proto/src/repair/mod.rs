//! What was sent and may have to be sent again.
//!
//! Every inner packet that leaves under a native session is remembered here, by reference, until it is known to have
//! arrived. Feedback knows packets by their [`Token`] and tells their fate; what is lost on one path is sent again on
//! whichever path brings it soonest. When that is no longer worth it, the receiver is told not to wait ([`Repair::pop_skip`]). For a packet of class
//! realtime it is worth little for long: it goes again before all others or not at all, and nobody waits for it.

pub mod fec;

use std::collections::VecDeque;
use std::time::Duration;

use crate::classify::Class;
use crate::path::sent_packets::Outcome;
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

/// Names a packet that is remembered. One that was forgotten has a name that no other packet gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

impl Token {
    /// Names no packet: what was sent need not be sent again.
    pub const NONE: Self = Self(u64::MAX);

    /// Names no packet either, but a probe of this size.
    pub const fn probe(size: usize) -> Self {
        Self(PROBE << 32 | size as u64)
    }

    /// The size of the probe that it names.
    pub fn probed_size(self) -> Option<usize> {
        (self.0 >> 32 == PROBE && self != Self::NONE).then_some((self.0 & 0xffff_ffff) as usize)
    }

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

/// A generation that no packet has: [`after`] leaves it out.
const PROBE: u64 = u32::MAX as u64;

/// The generation that follows one.
fn after(generation: u32) -> u32 {
    generation.checked_add(1).filter(|next| u64::from(*next) != PROBE).unwrap_or(0)
}

/// Packets that are under way, and those that must go again.
#[derive(Debug, Default)]
pub struct RetransmitQueue {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Of entries that are made from now on.
    first_generation: u32,
    /// Each packet once. Calls stand in front, the one that was lost last before the others.
    lost: VecDeque<Token>,
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
    pub fn on_sent(&mut self, now: Time, packet: InnerPacket, place: FlowSeq) -> Token {
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
        Token::new(index, entry.generation)
    }

    /// Learns the fate of one copy of a packet; returns the packet when it needs no more care.
    pub fn on_outcome(&mut self, token: Token, fate: Outcome) -> Option<InnerPacket> {
        let carried = self.carried(token)?;
        match fate {
            Outcome::Acked | Outcome::Spurious => self.forget(token).map(|carried| carried.packet),
            Outcome::Lost => {
                carried.copies -= 1;
                if carried.copies > 0 {
                    return None;
                }
                carried.losses += 1;
                self.enqueue(token);
                None
            }
        }
    }

    /// Gives up what was first sent more than `useful` ago and is lost; returns the packets.
    pub fn give_up(&mut self, now: Time, useful: Duration) -> impl Iterator<Item = InnerPacket> {
        let is_late = |carried: &InFlight| now.since(carried.sent) > carried.useful(useful);
        let (mut done, mut index) = (Vec::new(), 0);
        while let Some(token) = self.lost.get(index).copied() {
            match self.carried(token) {
                Some(carried) if !is_late(carried) && carried.is_realtime() => {
                    index += 1;
                    continue;
                }
                Some(carried) if !is_late(carried) => break,
                Some(_) => {
                    let carried = self.forget(token).expect("just seen");
                    if !carried.is_realtime() {
                        self.skips.push(carried.place);
                    }
                    self.given_up += 1;
                    done.push(carried.packet);
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
        while let Some(token) = self.lost.front().copied() {
            if self.carried(token).is_some() {
                break;
            }
            self.lost.pop_front();
        }
        let token = *self.lost.front()?;
        self.entries[token.index()].carried.as_ref().map(|carried| (carried.place.bucket, &carried.packet))
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
    pub fn take_copy(&mut self, token: Token) -> Option<(FlowSeq, InnerPacket)> {
        let carried = self.carried(token).filter(|carried| carried.copies > 0)?;
        (carried.copies, carried.repeated) = (carried.copies + 1, true);
        Some((carried.place, carried.packet.clone()))
    }

    /// Whether a packet is under way and not known to have arrived, so that one more copy may help.
    pub fn needs_copy(&self, token: Token) -> bool {
        self.known(token).is_some_and(|carried| carried.copies > 0)
    }

    /// A packet that is under way.
    pub fn peek(&mut self, token: Token) -> Option<(FlowSeq, InnerPacket)> {
        self.carried(token).map(|carried| (carried.place, carried.packet.clone()))
    }

    /// Whether one copy of a packet is under way, and no other ever was.
    pub fn is_single(&self, token: Token) -> bool {
        self.known(token).is_some_and(|carried| carried.copies == 1 && !carried.repeated)
    }

    /// How often a packet was lost.
    pub fn losses(&mut self, token: Token) -> u32 {
        self.carried(token).map_or(0, |carried| carried.losses)
    }

    /// Gives up the packet that [`Self::head`] showed, and returns it.
    pub fn give_up_head(&mut self) -> Option<InnerPacket> {
        let token = self.lost.pop_front()?;
        self.carried(token)?;
        let carried = self.forget(token)?;
        self.skips.push(carried.place);
        self.given_up += 1;
        Some(carried.packet)
    }

    /// Takes the packet that [`Self::head`] showed, to be sent once more.
    pub fn pop(&mut self) -> Option<(Token, FlowSeq, InnerPacket)> {
        let token = self.lost.pop_front()?;
        let carried = self.carried(token)?;
        (carried.copies, carried.repeated, carried.queued) = (carried.copies + 1, true, false);
        let sent = (token, carried.place, carried.packet.clone());
        self.resent += 1;
        Some(sent)
    }

    /// A packet that is in flight must go again, because nothing has been heard of it for too long.
    pub fn retransmit(&mut self, token: Token) {
        if self.carried(token).is_some_and(|carried| carried.copies == 1) {
            self.enqueue(token);
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
        // Old tokens must not name new packets.
        let first_generation = newest.map_or(self.first_generation, after);
        *self = Self { resent: self.resent, given_up: self.given_up, first_generation, ..Self::default() };
    }

    fn enqueue(&mut self, token: Token) {
        let Some(carried) = self.carried(token).filter(|carried| !carried.queued) else { return };
        carried.queued = true;
        if carried.is_realtime() {
            self.lost.push_front(token);
        } else {
            self.lost.push_back(token);
        }
    }

    fn known(&self, token: Token) -> Option<&InFlight> {
        let entry = self.entries.get(token.index()).filter(|entry| entry.generation == token.generation())?;
        entry.carried.as_ref()
    }

    fn carried(&mut self, token: Token) -> Option<&mut InFlight> {
        let entry = self.entries.get_mut(token.index()).filter(|entry| entry.generation == token.generation())?;
        entry.carried.as_mut()
    }

    fn forget(&mut self, token: Token) -> Option<InFlight> {
        let entry = &mut self.entries[token.index()];
        entry.generation = after(entry.generation);
        self.free.push(token.index() as u32);
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
        let tokens = [1, 2].map(|n| repair.on_sent(Time::START, packet(), place(n)));
        assert!(repair.on_outcome(tokens[0], Outcome::Acked).is_some());
        assert!(repair.on_outcome(tokens[1], Outcome::Lost).is_none());
        assert_eq!(repair.pop().map(|(token, place, _)| (token, place.sequence)), Some((tokens[1], 2)));
        assert!(repair.head().is_none());
        assert!(repair.on_outcome(tokens[1], Outcome::Acked).is_some());
        assert!(
            repair.on_outcome(tokens[1], Outcome::Lost).is_none(),
            "the first copy's fate is of no interest any more"
        );
        assert!(repair.head().is_none());
    }

    #[test]
    fn a_packet_is_lost_when_all_its_copies_are() {
        let mut repair = RetransmitQueue::default();
        let token = repair.on_sent(Time::START, packet(), place(1));
        repair.on_outcome(token, Outcome::Lost);
        repair.pop();
        repair.take_copy(token).unwrap();
        repair.on_outcome(token, Outcome::Lost);
        assert_eq!((repair.losses(token), repair.head().is_none()), (1, true));
        repair.on_outcome(token, Outcome::Lost);
        assert_eq!((repair.losses(token), repair.head().is_none()), (2, false));
    }

    #[test]
    fn what_arrives_after_all_is_not_sent_again() {
        let mut repair = RetransmitQueue::default();
        let token = repair.on_sent(Time::START, packet(), place(1));
        repair.on_outcome(token, Outcome::Lost);
        repair.on_outcome(token, Outcome::Spurious);
        assert!(repair.head().is_none());
    }

    #[test]
    fn what_is_too_old_is_given_up_and_the_receiver_told_once() {
        let mut repair = RetransmitQueue::default();
        let token = repair.on_sent(Time::START, packet(), place(9));
        repair.on_outcome(token, Outcome::Lost);
        assert_eq!(repair.give_up(Time::START + USEFUL, USEFUL).count(), 0);
        assert_eq!(repair.give_up(Time::START + 2 * USEFUL, USEFUL).count(), 1);
        assert_eq!((repair.pop_skip(), repair.pop_skip()), (Some(place(9)), None));
        assert!(repair.head().is_none());
    }

    #[test]
    fn a_packet_goes_again_once_however_often_that_is_asked() {
        let mut repair = RetransmitQueue::default();
        let token = repair.on_sent(Time::START, packet(), place(1));
        repair.retransmit(token);
        repair.retransmit(token);
        repair.on_outcome(token, Outcome::Lost);
        assert!(repair.pop().is_some() && repair.pop().is_none());
        repair.on_outcome(token, Outcome::Lost);
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
        [bulk, late, timely].into_iter().for_each(|token| repair.retransmit(token));
        let order = |repair: &RetransmitQueue| repair.lost.iter().copied().collect::<Vec<_>>();
        assert_eq!(order(&repair), [timely, late, bulk]);
        // 200 ms are twice what a call bears.
        assert_eq!(repair.give_up(Time::after(2 * REALTIME_DEADLINE), USEFUL).count(), 1);
        assert_eq!(order(&repair), [timely, bulk]);
    }

    #[test]
    fn no_packet_is_taken_for_a_probe() {
        let mut repair = RetransmitQueue { first_generation: u32::MAX - 1, ..RetransmitQueue::default() };
        let last = repair.on_sent(Time::START, packet(), place(1));
        repair.on_outcome(last, Outcome::Acked);
        let next = repair.on_sent(Time::START, packet(), place(2));
        assert_eq!((last.generation(), next.generation()), (u32::MAX - 1, 0));
        assert_eq!(next.probed_size(), None);
    }

    #[test]
    fn a_token_of_a_cleared_store_names_nothing_new() {
        let mut repair = RetransmitQueue::default();
        let token = repair.on_sent(Time::START, packet(), place(1));
        let second = repair.on_sent(Time::START, packet(), place(1));
        repair.clear();
        repair.on_sent(Time::START, packet(), place(2));
        repair.on_sent(Time::START, packet(), place(2));
        assert!(repair.on_outcome(token, Outcome::Acked).is_none());
        assert!(repair.on_outcome(second, Outcome::Acked).is_none());
        assert!(repair.on_outcome(Token::NONE, Outcome::Lost).is_none());
    }
}
