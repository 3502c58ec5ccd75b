//! Packets that are sent on several paths: duplicates that a rule or a redundant scheduler requires, opportunistic
//! retransmission (Raiciu et al., "How Hard Can It Be?", NSDI 2012), and duplicates that measure a new path.
//!
//! A duplicate is pending until the packet was sent on the required number of paths, until the packet is acknowledged,
//! or until it is too late.

use std::collections::VecDeque;
use std::time::Duration;

use super::send::Scheduled;
use super::{NATIVE_OVERHEAD, Native};
use crate::classify::Class;
use crate::id::{PathId, PathSet};
use crate::path::sent_packets::{PacketKey, Payload};
use crate::peer::{Common, Turn};
use crate::repair::RetransmitQueue;
use crate::sched::{self, PathSnapshot, SchedInput, Schedule};
use crate::time::Time;
use crate::trace::TraceEvent;
use crate::tuning::Heuristic;
use crate::tuning::peer::duplicate::{BUSY, FIRST_PROBE_BUDGET, PROBE_BUDGET_RTTS};
use crate::tuning::repair::retransmit::REALTIME_DEADLINE;

/// Duplicates that are still to be sent, oldest first.
#[derive(Debug, Default)]
pub(super) struct PendingDuplicates {
    realtime: VecDeque<PendingDuplicate>,
    others: VecDeque<PendingDuplicate>,
    /// Packets sent for the first time in this turn: path, packet, and length of the datagram.
    first_sends: Vec<(PathId, PacketKey, usize)>,
}

#[derive(Debug)]
struct PendingDuplicate {
    key: PacketKey,
    /// Bytes of the datagram.
    len: usize,
    /// The paths on which it was sent.
    sent_on: PathSet,
    /// Further paths on which it is to be sent.
    remaining: u32,
    until: Time,
}

impl PendingDuplicate {
    /// Returns true if it may be sent on `path`: it was not yet, and it is not longer than the `limit` there.
    fn is_for(&self, path: PathId, limit: impl Fn(PathId) -> usize) -> bool {
        !self.sent_on.contains(path) && self.len <= limit(path)
    }
}

/// Returns true if another path that is in use is known to be faster.
fn is_behind(path: &PathSnapshot, all: &[PathSnapshot]) -> bool {
    all.iter().any(|other| other.id != path.id && other.in_flight >= BUSY && other.rate > path.rate)
}

/// Returns the bytes of duplicates that may be spent on finding the rate of a path: more once they show a higher rate.
fn probe_budget(path: &PathSnapshot) -> u64 {
    FIRST_PROBE_BUDGET + path.rate.bytes_in(path.srtt * PROBE_BUDGET_RTTS)
}

impl PendingDuplicates {
    pub(super) fn is_empty(&self) -> bool {
        self.realtime.is_empty() && self.others.is_empty()
    }

    /// Discards everything, because the peer restarted.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes the next duplicate that can be sent: its path and its packet. `limit` is the largest datagram of a path.
    fn next(
        &mut self,
        now: Time,
        snapshots: &[PathSnapshot],
        limit: impl Fn(PathId) -> usize,
    ) -> Option<(PathId, PacketKey)> {
        let with_room = |pending: &PendingDuplicate| {
            let mut open = snapshots.iter().filter(|path| path.room >= pending.len as u64).map(|path| path.id);
            open.find(|path| pending.is_for(*path, &limit))
        };
        let earliest = |pending: &PendingDuplicate| {
            let open = snapshots.iter().map(|path| path.id).filter(|path| pending.is_for(*path, &limit));
            sched::urgent(pending.len, snapshots, open.collect())
        };
        take(&mut self.realtime, now, earliest).or_else(|| {
            let is_open = snapshots.iter().any(|path| path.room > 0);
            if is_open { take(&mut self.others, now, with_room) } else { None }
        })
    }

    /// Returns when the pacer permits a duplicate of a packet that is not acknowledged. Realtime packets bypass it.
    pub(super) fn opens_in(
        &self,
        now: Time,
        snapshots: &[PathSnapshot],
        retransmit: &RetransmitQueue,
        limit: impl Fn(PathId) -> usize,
    ) -> Option<Duration> {
        let paced = snapshots.iter().filter(|path| path.paced && !path.opens_in.is_zero());
        let has_pending = |path: &&PathSnapshot| {
            let waits =
                |pending: &PendingDuplicate| pending.is_for(path.id, &limit) && pending.until >= now + path.opens_in;
            self.others.iter().any(|pending| waits(pending) && retransmit.needs_copy(pending.key))
        };
        paced.filter(has_pending).map(|path| path.opens_in).min()
    }

    /// Discards the oldest, up to the first whose packet is not acknowledged: so a slow path does not retain them.
    fn drop_acked(&mut self, retransmit: &RetransmitQueue) {
        for list in [&mut self.realtime, &mut self.others] {
            while list.front().is_some_and(|pending| !retransmit.needs_copy(pending.key)) {
                list.pop_front();
            }
        }
    }

    /// Discards the duplicates of a packet.
    fn cancel(&mut self, key: PacketKey) {
        for list in [&mut self.realtime, &mut self.others] {
            list.retain(|pending| pending.key != key);
        }
    }
}

/// Takes one copy of the first duplicate for which `path` finds a path.
fn take(
    list: &mut VecDeque<PendingDuplicate>,
    now: Time,
    path: impl Fn(&PendingDuplicate) -> Option<PathId>,
) -> Option<(PathId, PacketKey)> {
    while list.front().is_some_and(|pending| pending.until < now) {
        list.pop_front();
    }
    let (index, path) = list.iter().enumerate().find_map(|(index, pending)| Some((index, path(pending)?)))?;
    let pending = &mut list[index];
    pending.sent_on.insert(path);
    pending.remaining -= 1;
    let key = pending.key;
    if pending.remaining == 0 {
        list.remove(index);
    }
    Some((path, key))
}

impl Native {
    /// Adds the duplicates of a packet that is sent on `path`, as its class or the scheduler requires. `candidates` are
    /// the paths that the packet may take.
    pub(super) fn duplicate(
        &mut self,
        common: &Common,
        now: Time,
        sent: &Scheduled,
        key: PacketKey,
        candidates: PathSet,
    ) {
        let mark = sent.packet.mark();
        let copies = if common.scheduler.is_redundant() { u32::MAX } else { common.classifier.copies(mark) };
        let len = NATIVE_OVERHEAD + sent.packet.len();
        let remaining = copies.min(self.count_carrying(len, candidates)).saturating_sub(1);
        if remaining == 0 {
            return;
        }
        let realtime = mark.class == Class::Realtime;
        let until = now + if realtime { REALTIME_DEADLINE } else { self.retransmit_limit() };
        let pending = PendingDuplicate { key, len, sent_on: PathSet::only(sent.path), remaining, until };
        let list = if realtime { &mut self.duplicates.realtime } else { &mut self.duplicates.others };
        list.push_back(pending);
    }

    /// Returns how many of the `candidates` carry a datagram of `len` bytes.
    fn count_carrying(&self, len: usize, candidates: PathSet) -> u32 {
        let paths = self.snapshots.iter().filter(|path| candidates.contains(path.id));
        paths.filter(|path| len <= self.limit(path.id)).count() as u32
    }

    /// Sends the pending duplicates for which there is room.
    pub(super) fn send_duplicates(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        self.duplicates.drop_acked(&self.retransmit);
        while !self.duplicates.is_empty() {
            let Self { duplicates, paths, snapshots, .. } = self;
            let limit = |id: PathId| paths[id].pmtu.limit();
            let Some((path, key)) = duplicates.next(turn.now, snapshots, limit) else { break };
            if !self.send_copy(common, turn, path, key) {
                self.duplicates.cancel(key);
            }
        }
    }

    /// Returns true if duplicates may measure a path that was never filled.
    pub(super) fn has_unfilled_path(&self, common: &Common) -> bool {
        let may_spread = common.scheduler.predicts_arrival() && self.snapshots.len() > 1;
        let may_spread = may_spread && self.tuning.has(Heuristic::DuplicateProbes);
        may_spread && self.snapshots.iter().any(|path| self.cc.never_filled(path.id))
    }

    /// Notes a packet that was sent for the first time on `path`, if its duplicate may measure another.
    pub(super) fn note_first_send(&mut self, common: &Common, sent: &Scheduled, key: PacketKey, candidates: PathSet) {
        let mark = sent.packet.mark();
        if mark.class == Class::Bulk && self.bound_path(common, mark, candidates).is_none() {
            self.duplicates.first_sends.push((sent.path, key, NATIVE_OVERHEAD + sent.packet.len()));
        }
    }

    /// Sends duplicates of this turn's packets on a path that was never filled, while a faster path is in use. The path
    /// will be needed when that one is full, and to find its rate only then takes longer than an inner flow waits
    /// before it takes the first path's rate for all there is. These duplicates are not tracked: a lost packet is
    /// retransmitted whether or not one is in flight.
    pub(super) fn probe_with_duplicates(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        let first_sends = std::mem::take(&mut self.duplicates.first_sends);
        for index in 0..self.snapshots.len() {
            let path = self.snapshots[index];
            if !self.cc.never_filled(path.id) || !is_behind(&path, &self.snapshots) {
                continue;
            }
            let limit = self.limit(path.id);
            for (_, key, len) in first_sends.iter().filter(|(from, _, len)| *from != path.id && *len <= limit) {
                let spent = self.paths[path.id].probe_copy_bytes;
                if self.snapshots[index].room < *len as u64 || spent >= probe_budget(&path) {
                    break;
                }
                let Some((seq, packet)) = self.retransmit.peek(*key) else { continue };
                self.trace.record(turn.now, || TraceEvent::Duplicated { path: path.id, seq });
                let copy = Scheduled { path: path.id, payload: Payload::Control, seq, packet };
                let sent = self.seal_packet(turn, copy);
                self.paths[path.id].probe_copy_bytes += sent;
                self.after_batch(common, turn.now, path.id, sent, PathSet::ALL);
            }
        }
    }

    /// Sends the packet that blocks a flow on another path, once, if nothing waits and the scheduler requires it.
    pub(super) fn opportunistic_retransmit(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        let input = SchedInput { snapshots: &self.snapshots, now: turn.now, ..SchedInput::default() };
        let is_up = |id: PathId| self.snapshots.iter().any(|path| path.id == id);
        let chosen = common.scheduler.on_idle(&input).filter(|chosen| is_up(chosen.from) && is_up(chosen.to));
        let Some(moved) = chosen else { return };
        let room = self.limit(moved.to).saturating_sub(NATIVE_OVERHEAD);
        let Some((_, Payload::Packet(key))) = self.paths[moved.from].estimator.oldest() else { return };
        let fits = self.retransmit.peek(key).is_some_and(|(_, packet)| packet.len() <= room);
        if fits && self.retransmit.is_single(key) {
            self.send_copy(common, turn, moved.to, key);
        }
    }

    /// Sends a packet once more. Returns false if it needs no more copies.
    fn send_copy(&mut self, common: &mut Common, turn: &mut Turn<'_>, path: PathId, key: PacketKey) -> bool {
        let Some((seq, packet)) = self.retransmit.take_copy(key) else { return false };
        self.trace.record(turn.now, || TraceEvent::Duplicated { path, seq });
        let sent = self.seal_packet(turn, Scheduled { path, payload: Payload::Packet(key), seq, packet });
        self.after_batch(common, turn.now, path, sent, PathSet::ALL);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::packet::{Offload, SuperPacket};
    use crate::path::sent_packets::Outcome;
    use crate::queue::InnerPacket;
    use crate::repair::FlowSeq;
    use crate::time::Rate;

    /// All paths carry everything.
    const WIDE: fn(PathId) -> usize = |_| usize::MAX;

    fn path(slot: u8, room: u64) -> PathSnapshot {
        PathSnapshot { id: PathId { slot, generation: 0 }, room, window: room, ..PathSnapshot::default() }
    }

    fn owed(key: u64, more: u32) -> PendingDuplicate {
        PendingDuplicate {
            key: PacketKey(key),
            len: 1_000,
            sent_on: PathSet::only(path(0, 0).id),
            remaining: more,
            until: Time::after(REALTIME_DEADLINE),
        }
    }

    #[test]
    fn a_copy_goes_once_on_each_other_path_as_it_opens() {
        let mut copies = PendingDuplicates::default();
        copies.others.extend([owed(1, 2), owed(2, 2)]);
        let mut next =
            |input: &[PathSnapshot]| copies.next(Time::START, input, WIDE).map(|(path, key)| (path.slot, key.0));
        let input = [path(0, 9_000), path(1, 9_000), path(2, 0)];
        assert_eq!([next(&input), next(&input), next(&input)], [Some((1, 1)), Some((1, 2)), None]);
        let input = [path(0, 9_000), path(1, 9_000), path(2, 9_000)];
        assert_eq!([next(&input), next(&input), next(&input)], [Some((2, 1)), Some((2, 2)), None]);
        assert!(copies.is_empty());
    }

    #[test]
    fn a_copy_goes_on_no_path_that_is_too_narrow_for_it() {
        let (mut copies, mut repair) = (PendingDuplicates::default(), RetransmitQueue::default());
        let narrow = |path: PathId| if path.slot == 1 { 999 } else { 1_000 };
        let input = [path(0, 9_000), path(1, 9_000), path(2, 9_000)];
        for urgent in [false, true] {
            let list = if urgent { &mut copies.realtime } else { &mut copies.others };
            list.push_back(owed(1, 2));
            assert_eq!(copies.next(Time::START, &input, narrow), Some((input[2].id, PacketKey(1))), "urgent: {urgent}");
            assert_eq!(copies.next(Time::START, &input, narrow), None, "urgent: {urgent}");
        }
        let key = in_flight(&mut repair, 1)[0];
        copies.others = [PendingDuplicate { key, ..owed(0, 1) }].into();
        let paced = |slot, ms| PathSnapshot { paced: true, opens_in: Duration::from_millis(ms), ..path(slot, 0) };
        let opens_in = copies.opens_in(Time::START, &[paced(1, 1), paced(2, 3)], &repair, narrow);
        assert_eq!(opens_in, Some(Duration::from_millis(3)));
    }

    /// So many packets in flight.
    fn in_flight(repair: &mut RetransmitQueue, count: u32) -> Vec<PacketKey> {
        let mut bytes = vec![0; 40];
        bytes[..4].copy_from_slice(&[0x45, 0, 0, 40]);
        let packet = Arc::new(SuperPacket::new(bytes, 40, Offload::default()).unwrap());
        let packets = (0..count).map(|sequence| (InnerPacket::new(packet.clone(), 0, false), sequence));
        packets.map(|(packet, sequence)| repair.on_sent(Time::START, packet, FlowSeq { bucket: 7, sequence })).collect()
    }

    #[test]
    fn a_copy_waits_for_the_pacer_of_a_path_that_has_not_sent_it() {
        let (mut copies, mut repair) = (PendingDuplicates::default(), RetransmitQueue::default());
        let key = in_flight(&mut repair, 1)[0];
        copies.others.push_back(PendingDuplicate { key, ..owed(0, 1) });
        let paced = |slot, ms| PathSnapshot { paced: true, opens_in: Duration::from_millis(ms), ..path(slot, 0) };
        let input = [paced(0, 1), paced(1, 5), PathSnapshot { paced: false, ..paced(2, 3) }];
        assert_eq!(copies.opens_in(Time::START, &input, &repair, WIDE), Some(Duration::from_millis(5)));
        assert_eq!(
            copies.opens_in(Time::after(REALTIME_DEADLINE), &input, &repair, WIDE),
            None,
            "it is of no use by then"
        );
        repair.on_outcome(key, Outcome::Acked);
        assert_eq!(copies.opens_in(Time::START, &input, &repair, WIDE), None);
    }

    #[test]
    fn what_has_arrived_is_not_kept_for_a_path_that_cannot_take_it() {
        let (mut copies, mut repair) = (PendingDuplicates::default(), RetransmitQueue::default());
        let keys = in_flight(&mut repair, 3);
        copies.others.extend(keys.iter().map(|key| PendingDuplicate { key: *key, ..owed(0, 1) }));
        [0, 1].into_iter().for_each(|n| drop(repair.on_outcome(keys[n], Outcome::Acked)));
        copies.drop_acked(&repair);
        assert_eq!(copies.others.iter().map(|owed| owed.key).collect::<Vec<_>>(), keys[2..]);
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
        assert_eq!(probe_budget(&input[1]), FIRST_PROBE_BUDGET + 250_000);
    }

    #[test]
    fn urgent_ones_go_first_and_late_ones_nowhere() {
        let mut copies = PendingDuplicates::default();
        copies.others.push_back(owed(1, 1));
        copies.realtime.push_back(owed(2, 1));
        let input = [path(0, 9_000), path(1, 9_000)];
        assert_eq!(copies.next(Time::START, &input, WIDE).map(|(_, key)| key.0), Some(2));
        assert_eq!(copies.next(Time::after(REALTIME_DEADLINE * 2), &input, WIDE), None);
        assert!(copies.is_empty());
    }
}
