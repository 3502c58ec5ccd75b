//! The reserved path: the one with the lowest RTT, where it would add next to nothing to bulk flows. Flows that send
//! little have it to themselves, and do not wait behind long packets on a slow link.
//!
//! A path without bulk is not measured: one that was slow by chance, or was slow when it was last used, would stay
//! reserved. So while bulk flows have packets, a short packet train probes its rate every few seconds
//! (`path::packet_train`). If the train shows a fast path, bulk may use it for as long as congestion control
//! needs to measure it.

use std::time::Duration;

use crate::time::Time;
use crate::tuning::sched::reserve::{DEMAND_GAP, MAX_REPROBE_INTERVAL, OPEN_ROUNDS, REPROBE_INTERVAL};

/// Times at which bulk may use a reserved path.
#[derive(Debug, Default)]
pub struct ReservedPath(Option<Reservation>);

#[derive(Debug)]
struct Reservation {
    /// Time of the next train.
    train: Time,
    interval: Duration,
    /// End of the time in which bulk may use the path.
    until: Time,
    /// Time at which bulk last had a packet for it.
    wanted: Time,
}

/// Decision on a bulk packet that could use the reserved path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reprobe {
    /// It may not use the path.
    Reserved,
    /// It may not use the path, and a train is sent there.
    Train,
    /// It may use the path.
    Open,
}

impl ReservedPath {
    /// Decides for a bulk packet at `now`. `fast` is true if a train has just shown that the path is fast, `grows` if
    /// it is in start-up.
    pub fn reprobe(&mut self, now: Time, rtt: Duration, fast: bool, grows: bool) -> Reprobe {
        let Some(next) = self.0.as_mut().filter(|next| now.since(next.wanted) < DEMAND_GAP) else {
            let (train, interval) = (now + REPROBE_INTERVAL, REPROBE_INTERVAL);
            self.0 = Some(Reservation { train, interval, until: now, wanted: now });
            return Reprobe::Reserved;
        };
        next.wanted = now;
        let open = now < next.until;
        if fast && !open {
            next.interval = (next.interval * 2).min(MAX_REPROBE_INTERVAL);
        }
        if fast || open && grows {
            next.until = now + rtt * OPEN_ROUNDS;
        }
        let verdict = match now < next.until {
            true => Reprobe::Open,
            false if now >= next.train => Reprobe::Train,
            false => return Reprobe::Reserved,
        };
        next.train = now + next.interval;
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    #[test]
    fn continuous_bulk_causes_a_train_every_four_seconds() {
        let mut reserved = ReservedPath::default();
        let probed = |ms: &u64| reserved.reprobe(at(*ms), RTT, false, false) == Reprobe::Train;
        let times: Vec<u64> = (0..13_000).step_by(10).chain((20_000..25_000).step_by(10)).filter(probed).collect();
        assert_eq!(times, [4_000, 8_000, 12_000, 24_000]);
    }

    #[test]
    fn a_fast_path_opens_for_eight_round_trips_or_while_it_is_in_startup() {
        let mut reserved = ReservedPath::default();
        assert_eq!(reserved.reprobe(at(0), RTT, true, false), Reprobe::Reserved, "a train of long ago");
        assert_eq!(reserved.reprobe(at(10), RTT, true, false), Reprobe::Open);
        assert_eq!(reserved.reprobe(at(400), RTT, false, true), Reprobe::Open);
        assert_eq!(reserved.reprobe(at(790), RTT, false, false), Reprobe::Open);
        assert_eq!(reserved.reprobe(at(800), RTT, false, true), Reprobe::Reserved);
    }

    #[test]
    fn openings_without_gain_become_rare() {
        let mut reserved = ReservedPath::default();
        let mut begun = Vec::new();
        let mut probed = false;
        for ms in (0..150_000).step_by(10) {
            let was_probed = std::mem::take(&mut probed);
            let verdict = reserved.reprobe(at(ms), RTT, was_probed, false);
            probed = verdict == Reprobe::Train;
            if was_probed {
                begun.push(ms / 1_000);
            }
        }
        assert_eq!(begun, [4, 12, 28, 61, 93, 126]);
    }
}
