//! The lane: the quickest path, where it would add next to nothing to what is full of packets. Flows that send little have it to
//! themselves, and do not wait for long packets on a slow line.
//!
//! What is kept off a path does not measure it: one that was taken for slow by chance, or was slow when it was last used, would be a lane for
//! ever. So while bulk wants it, a short packet train asks it now and then how fast it is ([`crate::path::train`]). If it seems to be fast, bulk is let in
//! for as long as the controller needs to see for itself.

use std::time::Duration;

use super::super::Peer;
use super::Native;
use super::snapshot::sum;
use crate::repair::Token;
use crate::sched::{PathSnapshot, Scheduler};
use crate::time::Time;
use crate::tx::TxQueue;

/// When bulk is let onto a path that is a lane.
#[derive(Debug, Default)]
pub(super) struct ReservedPath(Option<Reservation>);

#[derive(Debug)]
struct Reservation {
    /// When a train is to ask.
    ask: Time,
    pause: Duration,
    /// Until when bulk is let in.
    until: Time,
    /// When bulk last wanted the lane.
    wanted: Time,
}

/// What becomes of bulk that wants the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reprobe {
    /// It stays off.
    Stay,
    /// It stays off, and the lane is asked how fast it is.
    Ask,
    /// It is let in.
    Enter,
}

impl ReservedPath {
    /// What bulk that wants the lane now may do, when the lane has just shown itself `fast` or still `grows`.
    fn reprobe(&mut self, now: Time, round_trip: Duration, fast: bool, grows: bool) -> Reprobe {
        let Some(next) = self.0.as_mut().filter(|next| now.since(next.wanted) < DEMAND_GAP) else {
            self.0 =
                Some(Reservation { ask: now + REPROBE_INTERVAL, pause: REPROBE_INTERVAL, until: now, wanted: now });
            return Reprobe::Stay;
        };
        next.wanted = now;
        let visits = now < next.until;
        if fast && !visits {
            next.pause = (next.pause * 2).min(MAX_REPROBE_INTERVAL);
        }
        if fast || visits && grows {
            next.until = now + round_trip * OPEN_ROUNDS;
        }
        let verdict = match now < next.until {
            true => Reprobe::Enter,
            false if now >= next.ask => Reprobe::Ask,
            false => return Reprobe::Stay,
        };
        next.ask = now + next.pause;
        verdict
    }
}

impl Peer {
    /// Takes the lane out of the scene, if there is one and bulk is not let in. While another path is yet being found to be faster, a line that
    /// is known to be slow counts as one.
    pub(super) fn exclude_reserved(&mut self, now: Time, native: &mut Native) -> Option<PathSnapshot> {
        let known = self.snapshots.len() > 1 && self.snapshots.iter().all(|view| !view.srtt.is_zero());
        if !known || !matches!(self.scheduler, Scheduler::Earliest(_)) {
            return None;
        }
        let is_slow = |view: &PathSnapshot| native.feedback(view.id.slot).link_rate().is_some();
        let grows = |view: &PathSnapshot| native.cc.in_startup(view.id);
        let fast_ones_open = self.snapshots.iter().any(|view| grows(view) && !is_slow(view));
        let is_lane = |view: &PathSnapshot| {
            view.rate.bytes() * RESERVED_RATIO < sum(&self.snapshots) || is_slow(view) && fast_ones_open
        };
        let quickest = (0..self.snapshots.len()).min_by_key(|&index| self.snapshots[index].srtt);
        let lane = quickest.filter(|&index| is_lane(&self.snapshots[index]))?;
        let view = self.snapshots[lane];
        let (slot, grows) = (usize::from(view.id.slot), grows(&view));
        let carrier = &mut native.carriers[slot];
        let shown = carrier.feedback.take_train_rate();
        let fast = shown.is_some_and(|rate| rate.bytes() * RESERVED_RATIO >= sum(&self.snapshots));
        match carrier.reserved.reprobe(now, view.srtt, fast, grows) {
            Reprobe::Enter => return None,
            Reprobe::Ask => native.reprobe = Some(slot),
            Reprobe::Stay => {}
        }
        Some(self.snapshots.remove(lane))
    }

    /// Asks a lane how fast it is.
    pub(super) fn send_train(&mut self, now: Time, slot: usize, native: &mut Native, tx: &mut TxQueue) {
        let size = native.limit(self.paths[slot].id.slot);
        for _ in 0..TRAIN {
            if let Some(number) = self.send_padded(now, slot, size, Token::NONE, native, tx) {
                native.carriers[slot].feedback.on_train(now, number, size as u64);
            }
        }
    }
}

/// A path is a lane if all together are so many times as fast.
const RESERVED_RATIO: u64 = 20;
/// Datagrams in a train: at 2 Mbit/s others wait 24 ms for it.
const TRAIN: usize = 4;
/// Round trips of a visit: the controller asks whether a path is faster in four, and once more.
const OPEN_ROUNDS: u32 = 8;
/// Between trains, and at most if they seemed to show a fast path that was none.
const REPROBE_INTERVAL: Duration = Duration::from_secs(4);
const MAX_REPROBE_INTERVAL: Duration = Duration::from_secs(32);
/// Bulk that wants nothing for so long is over.
const DEMAND_GAP: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    #[test]
    fn bulk_that_goes_on_asks_every_four_seconds() {
        let mut visits = ReservedPath::default();
        let asked = |ms: &u64| visits.reprobe(at(*ms), RTT, false, false) == Reprobe::Ask;
        let times: Vec<u64> = (0..13_000).step_by(10).chain((20_000..25_000).step_by(10)).filter(asked).collect();
        assert_eq!(times, [4_000, 8_000, 12_000, 24_000]);
    }

    #[test]
    fn a_visit_takes_eight_round_trips_or_as_long_as_the_path_grows() {
        let mut visits = ReservedPath::default();
        assert_eq!(visits.reprobe(at(0), RTT, true, false), Reprobe::Stay, "an answer of long ago");
        assert_eq!(visits.reprobe(at(10), RTT, true, false), Reprobe::Enter);
        assert_eq!(visits.reprobe(at(400), RTT, false, true), Reprobe::Enter);
        assert_eq!(visits.reprobe(at(790), RTT, false, false), Reprobe::Enter);
        assert_eq!(visits.reprobe(at(800), RTT, false, true), Reprobe::Stay);
    }

    #[test]
    fn vain_visits_become_rare() {
        let mut visits = ReservedPath::default();
        let mut begun = Vec::new();
        let mut asked = false;
        for ms in (0..150_000).step_by(10) {
            let was_asked = std::mem::take(&mut asked);
            let verdict = visits.reprobe(at(ms), RTT, was_asked, false);
            asked = verdict == Reprobe::Ask;
            if was_asked {
                begun.push(ms / 1_000);
            }
        }
        assert_eq!(begun, [4, 12, 28, 61, 93, 126]);
    }
}
