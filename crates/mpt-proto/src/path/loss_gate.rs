//! Whether so much of what a path carries is lost that it is better left alone.
//!
//! What is lost on one path holds up the packets behind it on all: the inner flow sees the delay of the repair. Some loss is
//! worth it, half is not. Loss alone is no verdict, though, because every controller loses packets while it finds out
//! how fast a path is. Its rate is cut after a round trip of that; a path is taken for worthless only when round trip after
//! round trip is lossy.
//!
//! A path is judged by a few probes before there is data for it, or an inner flow would pay for finding out with its slow start.
//! A path that has been set aside carries probes, which tell when it is worth using again.

use std::time::Duration;

use crate::time::Time;

/// What became of the packets of one path, by round trips.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossGate {
    round: LossCount,
    /// Round trips in a row that were lossy, and since when.
    lossy: u32,
    since: Time,
    /// The first packets have been counted.
    vetted: bool,
    worthless: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct LossCount {
    arrived: u64,
    lost: u64,
}

impl LossCount {
    fn total(self) -> u64 {
        self.arrived + self.lost
    }

    fn share(self) -> f64 {
        self.lost as f64 / self.total().max(1) as f64
    }
}

impl LossGate {
    /// Packets arrived, were taken for lost, or arrived after they had been taken for lost; `round` says that a round trip
    /// has ended.
    pub fn on_fates(&mut self, now: Time, arrived: u64, lost: u64, spurious: u64, round: bool) {
        self.round.arrived += arrived + spurious;
        self.round.lost = (self.round.lost + lost).saturating_sub(spurious);
        match self.worthless {
            _ if !self.vetted => self.vet(),
            true if self.round.total() >= ENOUGH_PROBES => self.reconsider(),
            false if round && self.round.total() >= ENOUGH => self.end_round(now),
            _ => {}
        }
    }

    /// Whether the path is better left alone.
    pub fn is_too_lossy(&self) -> bool {
        self.worthless
    }

    /// The first packets on a path are probes, which no controller sends too many of.
    fn vet(&mut self) {
        if self.round.total() >= u64::from(INITIAL_PROBES) {
            self.worthless = std::mem::take(&mut self.round).share() >= VETTED;
            self.vetted = true;
        }
    }

    fn end_round(&mut self, now: Time) {
        let round = std::mem::take(&mut self.round);
        if round.share() < LOSSY {
            self.lossy = 0;
            return;
        }
        if self.lossy == 0 {
            self.since = now;
        }
        self.lossy += 1;
        self.worthless = self.lossy >= LOSSY_ROUNDS && now.since(self.since) >= LOSSY_FOR;
    }

    fn reconsider(&mut self) {
        let round = std::mem::take(&mut self.round);
        if round.share() <= GOOD {
            *self = Self { vetted: true, ..Self::default() };
        }
    }
}

/// Probes that a new path carries, by which it is judged before there is data for it.
pub const INITIAL_PROBES: u32 = 64;
/// The share of them that may be lost. At 30 % lost, chance calls a path good in one case of a thousand; at 5 %, bad in one of a thousand.
const VETTED: f64 = 0.15;
/// The share of lost packets from which on a round trip is lossy. In simulation (two paths of 50 Mbit/s and 20 ms, one TCP flow of
/// 10 s), a second path that loses 5 % adds 36 Mbit/s, and one that loses 20 % costs 14 when it is used: the inner flow sees every
/// repair as a longer round trip, and takes that for the end of its slow start.
const LOSSY: f64 = 0.12;
/// What must be reached before the path is used again; far enough below that chance does not let it flap.
const GOOD: f64 = 0.08;
/// A controller needs three round trips to find the top of a path, and one to cut its rate; twice as many are no accident.
const LOSSY_ROUNDS: u32 = 8;
/// On short paths round trips pass faster than queues drain.
const LOSSY_FOR: Duration = Duration::from_millis(150);
/// Packets that make a round. At 5 % lost, chance calls one round of twenty-five lossy.
const ENOUGH: u64 = 50;
/// Probes that make a verdict: at 5 % lost one in twelve is wrong, at 20 % one in ten thousand.
const ENOUGH_PROBES: u64 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    /// A path whose first probes all arrived.
    fn vetted() -> LossGate {
        let mut worth = LossGate::default();
        worth.on_fates(at(0), 64, 0, 0, false);
        worth
    }

    /// Round trips of 40 ms with a hundred packets, of which so many are lost.
    fn rounds(worth: &mut LossGate, lost: &[u64]) -> Vec<bool> {
        (1..)
            .zip(lost)
            .map(|(n, lost)| {
                worth.on_fates(at(40 * n), 100 - lost, *lost, 0, true);
                worth.is_too_lossy()
            })
            .collect()
    }

    #[test]
    fn a_path_that_loses_half_is_found_out_in_eight_round_trips() {
        assert_eq!(rounds(&mut vetted(), &[50; 8]).iter().position(|worthless| *worthless), Some(7));
    }

    #[test]
    fn a_path_that_loses_half_from_the_start_is_found_out_by_its_first_probes() {
        let mut worth = LossGate::default();
        (0..63).for_each(|n| worth.on_fates(at(n), n % 2, (n + 1) % 2, 0, false));
        assert!(!worth.is_too_lossy());
        worth.on_fates(at(63), 1, 0, 0, false);
        assert!(worth.is_too_lossy());
    }

    #[test]
    fn what_a_controller_loses_while_it_looks_for_the_top_is_no_verdict() {
        let mut worth = vetted();
        assert!(!rounds(&mut worth, &[64, 64, 40, 30, 0, 64, 64, 40, 0]).contains(&true));
    }

    #[test]
    fn packets_that_come_late_are_not_lost() {
        let mut worth = vetted();
        for n in 0..20 {
            worth.on_fates(at(40 * n), 40, 60, 0, false);
            worth.on_fates(at(40 * n), 0, 0, 60, true);
        }
        assert!(!worth.is_too_lossy());
    }

    #[test]
    fn a_path_is_used_again_when_its_probes_arrive() {
        let mut worth = vetted();
        rounds(&mut worth, &[50; 8]);
        (0..128).for_each(|n| worth.on_fates(at(1_000 + n), (n % 10 != 0).into(), (n % 10 == 0).into(), 0, true));
        assert!(worth.is_too_lossy(), "a tenth is too much");
        (0..128).for_each(|n| worth.on_fates(at(2_000 + n), (n % 32 != 0).into(), (n % 32 == 0).into(), 0, true));
        assert!(!worth.is_too_lossy());
    }
}
