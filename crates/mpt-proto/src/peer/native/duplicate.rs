//! What goes over several paths: copies that are owed, packets that are rescued from a path that blocks, and those with which a path is tried.
//!
//! A copy is owed until it has been sent on as many paths as were asked for, until the packet is known to have arrived, or until it is of no use.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::Peer;
use super::Native;
use super::outbound::Scheduled;
use crate::classify::Class;
use crate::path::PathId;
use crate::queue::InnerPacket;
use crate::repair::{REALTIME_DEADLINE, RetransmitQueue, Token};
use crate::sched::{self, PathSnapshot, SchedInput, Schedule, Scheduler};
use crate::time::Time;
use crate::tx::TxQueue;

/// Copies that are still to be sent, oldest first.
#[derive(Debug, Default)]
pub(super) struct PendingDuplicates {
    urgent: VecDeque<PendingDuplicate>,
    others: VecDeque<PendingDuplicate>,
    /// What leaves in this turn for the first time: on which path, and how long the datagram is.
    first_sends: Vec<(PathId, Token, usize)>,
}

#[derive(Debug)]
struct PendingDuplicate {
    token: Token,
    /// Of the datagram.
    len: usize,
    /// The slots on which it was sent, as a bit set.
    sent_on: u32,
    /// How many more.
    remaining: u32,
    until: Time,
}

impl PendingDuplicate {
    /// Whether it may go on the path in `slot`: it has not yet, and is no longer than the `limit` there.
    fn is_for(&self, slot: u8, limit: impl Fn(u8) -> usize) -> bool {
        self.sent_on & 1 << slot == 0 && self.len <= limit(slot)
    }
}

/// More is in flight on a path than of a question or a keystroke.
const BUSY: u64 = 4 * super::DATAGRAM;
/// What a path may be tried with before it has shown anything, and for how many round trips at the rate that it has shown. To double in each
/// takes two, and twice that where some are lost.
const FIRST_TRIAL: u64 = 256 * super::DATAGRAM;
const TRIAL: u32 = 4;

/// Whether another path, which has something to do, is known to be faster.
fn is_behind(path: &PathSnapshot, input: &[PathSnapshot]) -> bool {
    input.iter().any(|other| other.id != path.id && other.in_flight >= BUSY && other.rate > path.rate)
}

/// How many bytes of copies may be spent on finding out what a path takes: more if they show that it takes more.
fn probe_budget(path: &PathSnapshot) -> u64 {
    FIRST_TRIAL + path.rate.bytes_in(path.srtt * TRIAL)
}

impl PendingDuplicates {
    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.others.is_empty()
    }

    /// Forgets everything, because the peer has begun anew.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The path and the token of a copy that can be sent. `limit` tells the largest datagram of the path in a slot.
    fn next(&mut self, now: Time, input: &[PathSnapshot], limit: impl Fn(u8) -> usize) -> Option<(PathId, Token)> {
        let with_room = |owed: &PendingDuplicate| {
            let mut open = input.iter().filter(|path| path.room >= owed.len as u64).map(|path| path.id);
            open.find(|path| owed.is_for(path.slot, &limit))
        };
        let urgent = |owed: &PendingDuplicate| {
            let closed = input.iter().map(|path| path.id.slot).filter(|slot| !owed.is_for(*slot, &limit));
            sched::urgent(owed.len, input, closed.fold(0, |closed, slot| closed | 1 << slot))
        };
        take(&mut self.urgent, now, urgent).or_else(|| {
            let is_open = input.iter().any(|path| path.room > 0);
            if is_open { take(&mut self.others, now, with_room) } else { None }
        })
    }

    /// When the pacer of a path lets go that is owed a copy of what has not arrived. Calls do not ask it.
    pub(super) fn opens_in(
        &self,
        now: Time,
        input: &[PathSnapshot],
        repair: &RetransmitQueue,
        limit: impl Fn(u8) -> usize,
    ) -> Option<Duration> {
        let paced = input.iter().filter(|path| path.paced && !path.opens_in.is_zero());
        let is_owed = |path: &&PathSnapshot| {
            let waits =
                |owed: &PendingDuplicate| owed.is_for(path.id.slot, &limit) && owed.until >= now + path.opens_in;
            self.others.iter().any(|owed| waits(owed) && repair.needs_copy(owed.token))
        };
        paced.filter(is_owed).map(|path| path.opens_in).min()
    }

    /// Forgets the oldest, up to the first that has not arrived: what a slow path cannot take is not kept longer than that.
    fn drop_acked(&mut self, repair: &RetransmitQueue) {
        for list in [&mut self.urgent, &mut self.others] {
            while list.front().is_some_and(|owed| !repair.needs_copy(owed.token)) {
                list.pop_front();
            }
        }
    }

    /// Nothing more is owed of the packet.
    fn cancel(&mut self, token: Token) {
        for list in [&mut self.urgent, &mut self.others] {
            list.retain(|owed| owed.token != token);
        }
    }
}

/// Takes one copy of the first packet that has somewhere to go.
fn take(
    list: &mut VecDeque<PendingDuplicate>,
    now: Time,
    path: impl Fn(&PendingDuplicate) -> Option<PathId>,
) -> Option<(PathId, Token)> {
    while list.front().is_some_and(|owed| owed.until < now) {
        list.pop_front();
    }
    let (index, path) = list.iter().enumerate().find_map(|(index, owed)| Some((index, path(owed)?)))?;
    let owed = &mut list[index];
    owed.sent_on |= 1 << path.slot;
    owed.remaining -= 1;
    let token = owed.token;
    if owed.remaining == 0 {
        list.remove(index);
    }
    Some((path, token))
}

impl Peer {
    /// Notes on how many more paths a packet must go that is leaving on `path`.
    pub(super) fn duplicate(
        &mut self,
        now: Time,
        path: PathId,
        token: Token,
        packet: &InnerPacket,
        native: &mut Native,
    ) {
        let copies = if self.scheduler.is_redundant() { u32::MAX } else { self.classifier.copies(packet.mark()) };
        let len = super::NATIVE_OVERHEAD + packet.len();
        let more = copies.min(self.count_carrying(len, native)).saturating_sub(1);
        if more == 0 {
            return;
        }
        let urgent = packet.mark().class == Class::Realtime;
        let until = now + if urgent { REALTIME_DEADLINE } else { native.retransmit_limit() };
        let owed = PendingDuplicate { token, len, sent_on: 1 << path.slot, remaining: more, until };
        if urgent { native.duplicates.urgent.push_back(owed) } else { native.duplicates.others.push_back(owed) }
    }

    /// What was lost and goes again on `path` holds its flow up, and to lose it again holds it up for so long that the flow inside takes the
    /// path for dead. So it goes on another as well if that costs nothing, because nothing else waits, or next to nothing, because it was lost
    /// twice.
    pub(super) fn duplicate_retransmit(
        &mut self,
        now: Time,
        path: PathId,
        token: Token,
        len: usize,
        native: &mut Native,
    ) {
        let matters = self.queue.is_empty() || native.retransmit.losses(token) > 1;
        if matters && self.count_carrying(len, native) > 1 {
            let until = now + native.retransmit_limit();
            native.duplicates.others.push_back(PendingDuplicate {
                token,
                len,
                sent_on: 1 << path.slot,
                remaining: 1,
                until,
            });
        }
    }

    /// How many paths carry a datagram of `len` bytes.
    fn count_carrying(&self, len: usize, native: &Native) -> u32 {
        self.snapshots.iter().filter(|path| len <= native.limit(path.id.slot)).count() as u32
    }

    /// Sends the copies for which there is room.
    pub(super) fn send_copies(&mut self, now: Time, native: &mut Native, tx: &mut TxQueue, spare: &mut Vec<Vec<u8>>) {
        native.duplicates.drop_acked(&native.retransmit);
        if native.duplicates.is_empty() {
            return;
        }
        loop {
            let Native { duplicates: copies, carriers, .. } = &mut *native;
            let limit = |slot: u8| carriers[usize::from(slot)].pmtu.limit();
            let Some((path, token)) = copies.next(now, &self.snapshots, limit) else { break };
            if !self.send_copy(now, path, token, native, tx, spare) {
                native.duplicates.cancel(token);
            }
        }
    }

    /// Whether a path is to be tried with what leaves on others.
    pub(super) fn has_unfilled_path(&self, native: &Native) -> bool {
        let may_spread = matches!(self.scheduler, Scheduler::Earliest(_)) && self.snapshots.len() > 1;
        may_spread && self.snapshots.iter().any(|path| native.cc.never_filled(path.id))
    }

    /// Notes a packet that has left on `path` for the first time, if another may be tried with it.
    pub(super) fn note_first_send(&self, path: PathId, token: Token, packet: &InnerPacket, native: &mut Native) {
        if packet.mark().class == Class::Bulk && self.choice(packet.mark()).is_none() {
            native.duplicates.first_sends.push((path, token, super::NATIVE_OVERHEAD + packet.len()));
        }
    }

    /// A path that was never filled gets copies of what leaves on another, as long as that is faster: it will be needed when the other one is
    /// full, and to find its rate only then takes longer than a flow inside waits before it believes that this was all. Repair knows
    /// nothing of these copies: what is lost goes again whether or not one is under way.
    pub(super) fn probe_with_duplicates(
        &mut self,
        now: Time,
        native: &mut Native,
        tx: &mut TxQueue,
        spare: &mut Vec<Vec<u8>>,
    ) {
        let fresh = std::mem::take(&mut native.duplicates.first_sends);
        for index in 0..self.snapshots.len() {
            let path = self.snapshots[index];
            if !native.cc.never_filled(path.id) || !is_behind(&path, &self.snapshots) {
                continue;
            }
            let limit = native.limit(path.id.slot);
            for (_, token, len) in fresh.iter().filter(|(from, _, len)| *from != path.id && *len <= limit) {
                let tried = native.carriers[usize::from(path.id.slot)].probe_copy_bytes;
                if self.snapshots[index].room < *len as u64 || tried >= probe_budget(&path) {
                    break;
                }
                let Some((place, packet)) = native.retransmit.peek(*token) else { continue };
                let copy = Scheduled { path: path.id, token: Token::NONE, place, packet };
                let sent = self.seal_packet(now, copy, native, tx, spare);
                native.carriers[usize::from(path.id.slot)].probe_copy_bytes += sent;
                self.after_run(now, path.id, sent, native);
            }
        }
    }

    /// When nothing waits, a scheduler may want the packet that blocks sent on another path: once.
    pub(super) fn opportunistic_retransmit(
        &mut self,
        now: Time,
        native: &mut Native,
        tx: &mut TxQueue,
        spare: &mut Vec<Vec<u8>>,
    ) {
        let input = SchedInput { paths: &self.snapshots, now, ..SchedInput::default() };
        let Some(rescue) = self.scheduler.on_idle(&input) else { return };
        let oldest = native.feedback(rescue.from.slot).oldest().map(|(_, token)| Token(token));
        let room = native.limit(rescue.to.slot).saturating_sub(super::NATIVE_OVERHEAD);
        let mut fits = |token| native.retransmit.peek(token).is_some_and(|(_, packet)| packet.len() <= room);
        let oldest = oldest.filter(|token| fits(*token));
        if let Some(token) = oldest.filter(|token| native.retransmit.is_single(*token)) {
            self.send_copy(now, rescue.to, token, native, tx, spare);
        }
    }

    /// Sends a packet once more; false when it needs no more copies.
    fn send_copy(
        &mut self,
        now: Time,
        path: PathId,
        token: Token,
        native: &mut Native,
        tx: &mut TxQueue,
        spare: &mut Vec<Vec<u8>>,
    ) -> bool {
        let Some((place, packet)) = native.retransmit.take_copy(token) else { return false };
        let sent = self.seal_packet(now, Scheduled { path, token, place, packet }, native, tx, spare);
        self.after_run(now, path, sent, native);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::packet::{Offload, SuperPacket};
    use crate::path::sent_packets::Outcome;
    use crate::repair::FlowSeq;
    use crate::time::Rate;

    /// All paths carry everything.
    const WIDE: fn(u8) -> usize = |_| usize::MAX;

    fn path(slot: u8, room: u64) -> PathSnapshot {
        PathSnapshot { id: PathId { slot, generation: 0 }, room, window: room, ..PathSnapshot::default() }
    }

    fn owed(token: u64, more: u32) -> PendingDuplicate {
        PendingDuplicate {
            token: Token(token),
            len: 1_000,
            sent_on: 1,
            remaining: more,
            until: Time::after(REALTIME_DEADLINE),
        }
    }

    #[test]
    fn a_copy_goes_once_on_each_other_path_as_it_opens() {
        let mut copies = PendingDuplicates::default();
        copies.others.extend([owed(1, 2), owed(2, 2)]);
        let mut next =
            |input: &[PathSnapshot]| copies.next(Time::START, input, WIDE).map(|(path, token)| (path.slot, token.0));
        let input = [path(0, 9_000), path(1, 9_000), path(2, 0)];
        assert_eq!([next(&input), next(&input), next(&input)], [Some((1, 1)), Some((1, 2)), None]);
        let input = [path(0, 9_000), path(1, 9_000), path(2, 9_000)];
        assert_eq!([next(&input), next(&input), next(&input)], [Some((2, 1)), Some((2, 2)), None]);
        assert!(copies.is_empty());
    }

    #[test]
    fn a_copy_goes_on_no_path_that_is_too_narrow_for_it() {
        let (mut copies, mut repair) = (PendingDuplicates::default(), RetransmitQueue::default());
        let narrow = |slot| if slot == 1 { 999 } else { 1_000 };
        let input = [path(0, 9_000), path(1, 9_000), path(2, 9_000)];
        for urgent in [false, true] {
            let list = if urgent { &mut copies.urgent } else { &mut copies.others };
            list.push_back(owed(1, 2));
            assert_eq!(copies.next(Time::START, &input, narrow), Some((input[2].id, Token(1))), "urgent: {urgent}");
            assert_eq!(copies.next(Time::START, &input, narrow), None, "urgent: {urgent}");
        }
        let token = in_flight(&mut repair, 1)[0];
        copies.others = [PendingDuplicate { token, ..owed(0, 1) }].into();
        let paced = |slot, ms| PathSnapshot { paced: true, opens_in: Duration::from_millis(ms), ..path(slot, 0) };
        let opens_in = copies.opens_in(Time::START, &[paced(1, 1), paced(2, 3)], &repair, narrow);
        assert_eq!(opens_in, Some(Duration::from_millis(3)));
    }

    /// So many packets in flight.
    fn in_flight(repair: &mut RetransmitQueue, count: u32) -> Vec<Token> {
        let mut bytes = vec![0; 40];
        bytes[..4].copy_from_slice(&[0x45, 0, 0, 40]);
        let packet = Arc::new(SuperPacket::new(bytes, 40, Offload::default()).unwrap());
        let packets = (0..count).map(|sequence| (InnerPacket::new(packet.clone(), 0, false), sequence));
        packets.map(|(packet, sequence)| repair.on_sent(Time::START, packet, FlowSeq { bucket: 7, sequence })).collect()
    }

    #[test]
    fn a_copy_waits_for_the_pacer_of_a_path_that_has_not_sent_it() {
        let (mut copies, mut repair) = (PendingDuplicates::default(), RetransmitQueue::default());
        let token = in_flight(&mut repair, 1)[0];
        copies.others.push_back(PendingDuplicate { token, ..owed(0, 1) });
        let paced = |slot, ms| PathSnapshot { paced: true, opens_in: Duration::from_millis(ms), ..path(slot, 0) };
        let input = [paced(0, 1), paced(1, 5), PathSnapshot { paced: false, ..paced(2, 3) }];
        assert_eq!(copies.opens_in(Time::START, &input, &repair, WIDE), Some(Duration::from_millis(5)));
        assert_eq!(
            copies.opens_in(Time::after(REALTIME_DEADLINE), &input, &repair, WIDE),
            None,
            "it is of no use by then"
        );
        repair.on_outcome(token, Outcome::Acked);
        assert_eq!(copies.opens_in(Time::START, &input, &repair, WIDE), None);
    }

    #[test]
    fn what_has_arrived_is_not_kept_for_a_path_that_cannot_take_it() {
        let (mut copies, mut repair) = (PendingDuplicates::default(), RetransmitQueue::default());
        let tokens = in_flight(&mut repair, 3);
        copies.others.extend(tokens.iter().map(|token| PendingDuplicate { token: *token, ..owed(0, 1) }));
        [0, 1].into_iter().for_each(|n| drop(repair.on_outcome(tokens[n], Outcome::Acked)));
        copies.drop_acked(&repair);
        assert_eq!(copies.others.iter().map(|owed| owed.token).collect::<Vec<_>>(), tokens[2..]);
    }

    #[test]
    fn a_path_is_tried_while_a_busy_one_is_faster_and_with_more_when_it_shows_more() {
        let rated = |slot, mbit: u64, in_flight| PathSnapshot {
            rate: Rate::from_bits(mbit * 1_000_000),
            srtt: Duration::from_millis(50),
            in_flight,
            ..path(slot, 9_000)
        };
        let input = [rated(0, 20, BUSY), rated(1, 10, 0), rated(2, 30, 0)];
        assert_eq!(input.map(|path| is_behind(&path, &input)), [false, true, false]);
        assert!(!is_behind(&input[1], &[rated(0, 20, BUSY - 1), input[1]]), "a keystroke");
        // 10 Mbit/s for 200 ms are 250 kB.
        assert_eq!(probe_budget(&input[1]), FIRST_TRIAL + 250_000);
    }

    #[test]
    fn urgent_ones_go_first_and_late_ones_nowhere() {
        let mut copies = PendingDuplicates::default();
        copies.others.push_back(owed(1, 1));
        copies.urgent.push_back(owed(2, 1));
        let input = [path(0, 9_000), path(1, 9_000)];
        assert_eq!(copies.next(Time::START, &input, WIDE).map(|(_, token)| token.0), Some(2));
        assert_eq!(copies.next(Time::after(REALTIME_DEADLINE * 2), &input, WIDE), None);
        assert!(copies.is_empty());
    }
}
