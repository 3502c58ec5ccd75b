//! What goes over several paths: copies that are owed, packets that are rescued from a path that blocks, and those with which a path is tried.
//!
//! A copy is owed until it has been sent on as many paths as were asked for, until the packet is known to have arrived, or until it is of no use.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::Peer;
use super::Native;
use super::outbound::Scheduled;
use crate::classify::Class;
use crate::outbox::Outbox;
use crate::path::PathId;
use crate::queue::InnerPacket;
use crate::repair::{CALL, Repair, Token};
use crate::sched::{self, Scene, Schedule, Scheduler, View};
use crate::time::Time;

/// Copies that are still to be sent, oldest first.
#[derive(Debug, Default)]
pub(super) struct Copies {
    urgent: VecDeque<Owed>,
    others: VecDeque<Owed>,
    /// What leaves in this turn for the first time: on which path, and how long the datagram is.
    fresh: Vec<(PathId, Token, usize)>,
}

#[derive(Debug)]
struct Owed {
    token: Token,
    /// Of the datagram.
    len: usize,
    /// The slots on which it was sent, as a bit set.
    taken: u32,
    /// How many more.
    more: u32,
    until: Time,
}

impl Owed {
    /// Whether it may go on the path in `slot`: it has not yet, and is no longer than the `limit` there.
    fn is_for(&self, slot: u8, limit: impl Fn(u8) -> usize) -> bool {
        self.taken & 1 << slot == 0 && self.len <= limit(slot)
    }
}

/// More is in flight on a path than of a question or a keystroke.
const BUSY: u64 = 4 * super::DATAGRAM;
/// What a path may be tried with before it has shown anything, and for how many round trips at the rate that it has shown. To double in each
/// takes two, and twice that where some are lost.
const FIRST_TRIAL: u64 = 256 * super::DATAGRAM;
const TRIAL: u32 = 4;

/// Whether another path, which has something to do, is known to be faster.
fn is_behind(path: &View, scene: &[View]) -> bool {
    scene.iter().any(|other| other.id != path.id && other.in_flight >= BUSY && other.rate > path.rate)
}

/// How many bytes of copies may be spent on finding out what a path takes: more if they show that it takes more.
fn trial(path: &View) -> u64 {
    FIRST_TRIAL + path.rate.bytes_in(path.srtt * TRIAL)
}

impl Copies {
    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.others.is_empty()
    }

    /// Forgets everything, because the peer has begun anew.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The path and the token of a copy that can be sent. `limit` tells the largest datagram of the path in a slot.
    fn next(&mut self, now: Time, scene: &[View], limit: impl Fn(u8) -> usize) -> Option<(PathId, Token)> {
        let with_room = |owed: &Owed| {
            let mut open = scene.iter().filter(|path| path.room >= owed.len as u64).map(|path| path.id);
            open.find(|path| owed.is_for(path.slot, &limit))
        };
        let urgent = |owed: &Owed| {
            let closed = scene.iter().map(|path| path.id.slot).filter(|slot| !owed.is_for(*slot, &limit));
            sched::urgent(owed.len, scene, closed.fold(0, |closed, slot| closed | 1 << slot))
        };
        take(&mut self.urgent, now, urgent).or_else(|| {
            let is_open = scene.iter().any(|path| path.room > 0);
            if is_open { take(&mut self.others, now, with_room) } else { None }
        })
    }

    /// When the pacer of a path lets go that is owed a copy of what has not arrived. Calls do not ask it.
    pub(super) fn opens_in(
        &self,
        now: Time,
        scene: &[View],
        repair: &Repair,
        limit: impl Fn(u8) -> usize,
    ) -> Option<Duration> {
        let paced = scene.iter().filter(|path| path.paced && !path.opens_in.is_zero());
        let is_owed = |path: &&View| {
            let waits = |owed: &Owed| owed.is_for(path.id.slot, &limit) && owed.until >= now + path.opens_in;
            self.others.iter().any(|owed| waits(owed) && repair.needs_copy(owed.token))
        };
        paced.filter(is_owed).map(|path| path.opens_in).min()
    }

    /// Forgets the oldest, up to the first that has not arrived: what a slow path cannot take is not kept longer than that.
    fn forget_arrived(&mut self, repair: &Repair) {
        for list in [&mut self.urgent, &mut self.others] {
            while list.front().is_some_and(|owed| !repair.needs_copy(owed.token)) {
                list.pop_front();
            }
        }
    }

    /// Nothing more is owed of the packet.
    fn settle(&mut self, token: Token) {
        for list in [&mut self.urgent, &mut self.others] {
            list.retain(|owed| owed.token != token);
        }
    }
}

/// Takes one copy of the first packet that has somewhere to go.
fn take(list: &mut VecDeque<Owed>, now: Time, path: impl Fn(&Owed) -> Option<PathId>) -> Option<(PathId, Token)> {
    while list.front().is_some_and(|owed| owed.until < now) {
        list.pop_front();
    }
    let (index, path) = list.iter().enumerate().find_map(|(index, owed)| Some((index, path(owed)?)))?;
    let owed = &mut list[index];
    owed.taken |= 1 << path.slot;
    owed.more -= 1;
    let token = owed.token;
    if owed.more == 0 {
        list.remove(index);
    }
    Some((path, token))
}

impl Peer {
    /// Notes on how many more paths a packet must go that is leaving on `path`.
    pub(super) fn owe_copies(
        &mut self,
        now: Time,
        path: PathId,
        token: Token,
        packet: &InnerPacket,
        native: &mut Native,
    ) {
        let copies = if self.scheduler.is_redundant() { u32::MAX } else { self.classifier.copies(packet.mark()) };
        let len = super::NATIVE_OVERHEAD + packet.len();
        let more = copies.min(self.count_wide(len, native)).saturating_sub(1);
        if more == 0 {
            return;
        }
        let urgent = packet.mark().class == Class::Realtime;
        let until = now + if urgent { CALL } else { native.useful() };
        let owed = Owed { token, len, taken: 1 << path.slot, more, until };
        if urgent { native.copies.urgent.push_back(owed) } else { native.copies.others.push_back(owed) }
    }

    /// What was lost and goes again on `path` holds its flow up, and to lose it again holds it up for so long that the flow inside takes the
    /// path for dead. So it goes on another as well if that costs nothing, because nothing else waits, or next to nothing, because it was lost
    /// twice.
    pub(super) fn owe_second(&mut self, now: Time, path: PathId, token: Token, len: usize, native: &mut Native) {
        let matters = self.queue.is_empty() || native.repair.losses(token) > 1;
        if matters && self.count_wide(len, native) > 1 {
            let until = now + native.useful();
            native.copies.others.push_back(Owed { token, len, taken: 1 << path.slot, more: 1, until });
        }
    }

    /// How many paths carry a datagram of `len` bytes.
    fn count_wide(&self, len: usize, native: &Native) -> u32 {
        self.scene.iter().filter(|path| len <= native.limit(path.id.slot)).count() as u32
    }

    /// Sends the copies for which there is room.
    pub(super) fn send_copies(
        &mut self,
        now: Time,
        native: &mut Native,
        outbox: &mut Outbox,
        spare: &mut Vec<Vec<u8>>,
    ) {
        native.copies.forget_arrived(&native.repair);
        if native.copies.is_empty() {
            return;
        }
        loop {
            let Native { copies, carriers, .. } = &mut *native;
            let limit = |slot: u8| carriers[usize::from(slot)].pmtu.limit();
            let Some((path, token)) = copies.next(now, &self.scene, limit) else { break };
            if !self.send_copy(now, path, token, native, outbox, spare) {
                native.copies.settle(token);
            }
        }
    }

    /// Whether a path is to be tried with what leaves on others.
    pub(super) fn has_untried_path(&self, native: &Native) -> bool {
        let may_spread = matches!(self.scheduler, Scheduler::Earliest(_)) && self.scene.len() > 1;
        may_spread && self.scene.iter().any(|path| native.control.is_untried(path.id))
    }

    /// Notes a packet that has left on `path` for the first time, if another may be tried with it.
    pub(super) fn note_fresh(&self, path: PathId, token: Token, packet: &InnerPacket, native: &mut Native) {
        if packet.mark().class == Class::Bulk && self.choice(packet.mark()).is_none() {
            native.copies.fresh.push((path, token, super::NATIVE_OVERHEAD + packet.len()));
        }
    }

    /// A path that was never filled gets copies of what leaves on another, as long as that is faster: it will be needed when the other one is
    /// full, and to find its rate only then takes longer than a flow inside waits before it believes that this was all. Repair knows
    /// nothing of these copies: what is lost goes again whether or not one is under way.
    pub(super) fn try_paths(&mut self, now: Time, native: &mut Native, outbox: &mut Outbox, spare: &mut Vec<Vec<u8>>) {
        let fresh = std::mem::take(&mut native.copies.fresh);
        for index in 0..self.scene.len() {
            let path = self.scene[index];
            if !native.control.is_untried(path.id) || !is_behind(&path, &self.scene) {
                continue;
            }
            let limit = native.limit(path.id.slot);
            for (_, token, len) in fresh.iter().filter(|(from, _, len)| *from != path.id && *len <= limit) {
                let tried = native.carriers[usize::from(path.id.slot)].tried;
                if self.scene[index].room < *len as u64 || tried >= trial(&path) {
                    break;
                }
                let Some((place, packet)) = native.repair.peek(*token) else { continue };
                let copy = Scheduled { path: path.id, token: Token::NONE, place, packet };
                let sent = self.seal_packet(now, copy, native, outbox, spare);
                native.carriers[usize::from(path.id.slot)].tried += sent;
                self.after_run(now, path.id, sent, native);
            }
        }
    }

    /// When nothing waits, a scheduler may want the packet that blocks sent on another path: once.
    pub(super) fn rescue(&mut self, now: Time, native: &mut Native, outbox: &mut Outbox, spare: &mut Vec<Vec<u8>>) {
        let scene = Scene { paths: &self.scene, now, ..Scene::default() };
        let Some(rescue) = self.scheduler.on_idle(&scene) else { return };
        let oldest = native.feedback(rescue.from.slot).oldest().map(|(_, token)| Token(token));
        let room = native.limit(rescue.to.slot).saturating_sub(super::NATIVE_OVERHEAD);
        let mut fits = |token| native.repair.peek(token).is_some_and(|(_, packet)| packet.len() <= room);
        let oldest = oldest.filter(|token| fits(*token));
        if let Some(token) = oldest.filter(|token| native.repair.is_single(*token)) {
            self.send_copy(now, rescue.to, token, native, outbox, spare);
        }
    }

    /// Sends a packet once more; false when it needs no more copies.
    fn send_copy(
        &mut self,
        now: Time,
        path: PathId,
        token: Token,
        native: &mut Native,
        outbox: &mut Outbox,
        spare: &mut Vec<Vec<u8>>,
    ) -> bool {
        let Some((place, packet)) = native.repair.take_copy(token) else { return false };
        let sent = self.seal_packet(now, Scheduled { path, token, place, packet }, native, outbox, spare);
        self.after_run(now, path, sent, native);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::packet::{Offload, SuperPacket};
    use crate::path::sent::Fate;
    use crate::repair::Place;
    use crate::time::Rate;

    /// All paths carry everything.
    const WIDE: fn(u8) -> usize = |_| usize::MAX;

    fn path(slot: u8, room: u64) -> View {
        View { id: PathId { slot, generation: 0 }, room, window: room, ..View::default() }
    }

    fn owed(token: u64, more: u32) -> Owed {
        Owed { token: Token(token), len: 1_000, taken: 1, more, until: Time::after(CALL) }
    }

    #[test]
    fn a_copy_goes_once_on_each_other_path_as_it_opens() {
        let mut copies = Copies::default();
        copies.others.extend([owed(1, 2), owed(2, 2)]);
        let mut next = |scene: &[View]| copies.next(Time::START, scene, WIDE).map(|(path, token)| (path.slot, token.0));
        let scene = [path(0, 9_000), path(1, 9_000), path(2, 0)];
        assert_eq!([next(&scene), next(&scene), next(&scene)], [Some((1, 1)), Some((1, 2)), None]);
        let scene = [path(0, 9_000), path(1, 9_000), path(2, 9_000)];
        assert_eq!([next(&scene), next(&scene), next(&scene)], [Some((2, 1)), Some((2, 2)), None]);
        assert!(copies.is_empty());
    }

    #[test]
    fn a_copy_goes_on_no_path_that_is_too_narrow_for_it() {
        let (mut copies, mut repair) = (Copies::default(), Repair::default());
        let narrow = |slot| if slot == 1 { 999 } else { 1_000 };
        let scene = [path(0, 9_000), path(1, 9_000), path(2, 9_000)];
        for urgent in [false, true] {
            let list = if urgent { &mut copies.urgent } else { &mut copies.others };
            list.push_back(owed(1, 2));
            assert_eq!(copies.next(Time::START, &scene, narrow), Some((scene[2].id, Token(1))), "urgent: {urgent}");
            assert_eq!(copies.next(Time::START, &scene, narrow), None, "urgent: {urgent}");
        }
        let token = in_flight(&mut repair, 1)[0];
        copies.others = [Owed { token, ..owed(0, 1) }].into();
        let paced = |slot, ms| View { paced: true, opens_in: Duration::from_millis(ms), ..path(slot, 0) };
        let opens_in = copies.opens_in(Time::START, &[paced(1, 1), paced(2, 3)], &repair, narrow);
        assert_eq!(opens_in, Some(Duration::from_millis(3)));
    }

    /// So many packets in flight.
    fn in_flight(repair: &mut Repair, count: u32) -> Vec<Token> {
        let mut bytes = vec![0; 40];
        bytes[..4].copy_from_slice(&[0x45, 0, 0, 40]);
        let packet = Arc::new(SuperPacket::new(bytes, 40, Offload::default()).unwrap());
        let packets = (0..count).map(|sequence| (InnerPacket::new(packet.clone(), 0, false), sequence));
        packets.map(|(packet, sequence)| repair.remember(Time::START, packet, Place { bucket: 7, sequence })).collect()
    }

    #[test]
    fn a_copy_waits_for_the_pacer_of_a_path_that_has_not_sent_it() {
        let (mut copies, mut repair) = (Copies::default(), Repair::default());
        let token = in_flight(&mut repair, 1)[0];
        copies.others.push_back(Owed { token, ..owed(0, 1) });
        let paced = |slot, ms| View { paced: true, opens_in: Duration::from_millis(ms), ..path(slot, 0) };
        let scene = [paced(0, 1), paced(1, 5), View { paced: false, ..paced(2, 3) }];
        assert_eq!(copies.opens_in(Time::START, &scene, &repair, WIDE), Some(Duration::from_millis(5)));
        assert_eq!(copies.opens_in(Time::after(CALL), &scene, &repair, WIDE), None, "it is of no use by then");
        repair.on_fate(token, Fate::Acked);
        assert_eq!(copies.opens_in(Time::START, &scene, &repair, WIDE), None);
    }

    #[test]
    fn what_has_arrived_is_not_kept_for_a_path_that_cannot_take_it() {
        let (mut copies, mut repair) = (Copies::default(), Repair::default());
        let tokens = in_flight(&mut repair, 3);
        copies.others.extend(tokens.iter().map(|token| Owed { token: *token, ..owed(0, 1) }));
        [0, 1].into_iter().for_each(|n| drop(repair.on_fate(tokens[n], Fate::Acked)));
        copies.forget_arrived(&repair);
        assert_eq!(copies.others.iter().map(|owed| owed.token).collect::<Vec<_>>(), tokens[2..]);
    }

    #[test]
    fn a_path_is_tried_while_a_busy_one_is_faster_and_with_more_when_it_shows_more() {
        let rated = |slot, mbit: u64, in_flight| View {
            rate: Rate::from_bits(mbit * 1_000_000),
            srtt: Duration::from_millis(50),
            in_flight,
            ..path(slot, 9_000)
        };
        let scene = [rated(0, 20, BUSY), rated(1, 10, 0), rated(2, 30, 0)];
        assert_eq!(scene.map(|path| is_behind(&path, &scene)), [false, true, false]);
        assert!(!is_behind(&scene[1], &[rated(0, 20, BUSY - 1), scene[1]]), "a keystroke");
        // 10 Mbit/s for 200 ms are 250 kB.
        assert_eq!(trial(&scene[1]), FIRST_TRIAL + 250_000);
    }

    #[test]
    fn urgent_ones_go_first_and_late_ones_nowhere() {
        let mut copies = Copies::default();
        copies.others.push_back(owed(1, 1));
        copies.urgent.push_back(owed(2, 1));
        let scene = [path(0, 9_000), path(1, 9_000)];
        assert_eq!(copies.next(Time::START, &scene, WIDE).map(|(_, token)| token.0), Some(2));
        assert_eq!(copies.next(Time::after(CALL * 2), &scene, WIDE), None);
        assert!(copies.is_empty());
    }
}
