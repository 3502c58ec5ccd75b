//! The loss gate: excludes a path that loses too much from carrying data.
//!
//! A loss on one path delays the packets behind it on all: the inner flow sees the delay of the retransmission. Some
//! loss is worth that, half is not. Loss alone is no evidence, because each controller loses packets while it finds the
//! rate of a path. It reduces its rate a round trip later; a path is too lossy only if many round trips in a row are
//! lossy.
//!
//! A path is judged by a few probes before it carries data, because otherwise an inner flow would lose packets in its
//! slow start. A path that is excluded carries probes, whose loss decides when it is used again.

use crate::time::Time;
use crate::tuning::path::loss_gate::{
    CLEAN_PROBES, INITIAL_PROBES, LOSSY_ROUND, LOSSY_ROUNDS, MAX_INITIAL_LOSS, MAX_RETURN_LOSS, MIN_LOSSY_TIME,
    MIN_ROUND_PACKETS, RETURN_PROBES,
};

/// The outcomes of the packets of one path, by round trips.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossGate {
    round: LossCount,
    /// Lossy round trips in a row, and their beginning.
    lossy: u32,
    since: Time,
    /// The initial probes have been judged.
    checked: bool,
    too_lossy: bool,
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
    /// Counts packets that arrived, that were declared lost, or that arrived after they had been declared lost; `round`
    /// is true if a round trip has ended.
    pub fn on_outcomes(&mut self, now: Time, arrived: u64, lost: u64, spurious: u64, round: bool) {
        self.round.arrived += arrived + spurious;
        self.round.lost = (self.round.lost + lost).saturating_sub(spurious);
        match self.too_lossy {
            _ if !self.checked => self.initial_check(),
            true if self.round.total() >= RETURN_PROBES => self.reconsider(),
            false if round && self.round.total() >= MIN_ROUND_PACKETS => self.end_round(now),
            _ => {}
        }
    }

    /// Returns true if the path should not carry data.
    pub fn is_too_lossy(&self) -> bool {
        self.too_lossy
    }

    /// Returns true if one of the initial probes was lost, so that all of them are needed.
    pub fn has_initial_loss(&self) -> bool {
        !self.checked && self.round.lost > 0
    }

    /// Returns true if the initial probes have been judged.
    pub fn is_checked(&self) -> bool {
        self.checked
    }

    /// Judges the first outcomes: those of initial probes, or of data on a path that was the only one. No controller
    /// sends too many probes.
    fn initial_check(&mut self) {
        let is_clean = self.round.lost == 0 && self.round.arrived >= u64::from(CLEAN_PROBES);
        if is_clean || self.round.total() >= u64::from(INITIAL_PROBES) {
            self.too_lossy = std::mem::take(&mut self.round).share() >= MAX_INITIAL_LOSS;
            self.checked = true;
        }
    }

    fn end_round(&mut self, now: Time) {
        let round = std::mem::take(&mut self.round);
        if round.share() < LOSSY_ROUND {
            self.lossy = 0;
            return;
        }
        if self.lossy == 0 {
            self.since = now;
        }
        self.lossy += 1;
        self.too_lossy = self.lossy >= LOSSY_ROUNDS && now.since(self.since) >= MIN_LOSSY_TIME;
    }

    fn reconsider(&mut self) {
        let round = std::mem::take(&mut self.round);
        if round.share() <= MAX_RETURN_LOSS {
            *self = Self { checked: true, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    /// A path whose initial probes all arrived.
    fn checked() -> LossGate {
        let mut gate = LossGate::default();
        gate.on_outcomes(at(0), 20, 0, 0, false);
        assert!(gate.is_checked());
        gate
    }

    #[test]
    fn a_loss_among_the_first_probes_means_that_all_are_needed() {
        let mut gate = LossGate::default();
        gate.on_outcomes(at(0), 19, 1, 0, false);
        gate.on_outcomes(at(1), 43, 0, 0, false);
        assert!(!gate.is_checked(), "63 of 64");
        gate.on_outcomes(at(2), 1, 0, 0, false);
        assert!(gate.is_checked() && !gate.is_too_lossy());
    }

    /// Round trips of 40 ms with 100 packets, of which the numbers in `lost` are lost.
    fn rounds(gate: &mut LossGate, lost: &[u64]) -> Vec<bool> {
        (1..)
            .zip(lost)
            .map(|(n, lost)| {
                gate.on_outcomes(at(40 * n), 100 - lost, *lost, 0, true);
                gate.is_too_lossy()
            })
            .collect()
    }

    #[test]
    fn a_path_that_loses_half_is_too_lossy_after_eight_round_trips() {
        assert_eq!(rounds(&mut checked(), &[50; 8]).iter().position(|too_lossy| *too_lossy), Some(7));
    }

    #[test]
    fn a_path_that_loses_half_from_the_start_fails_its_initial_check() {
        let mut gate = LossGate::default();
        (0..63).for_each(|n| gate.on_outcomes(at(n), n % 2, (n + 1) % 2, 0, false));
        assert!(!gate.is_too_lossy());
        gate.on_outcomes(at(63), 1, 0, 0, false);
        assert!(gate.is_too_lossy());
    }

    #[test]
    fn losses_of_a_controller_that_probes_for_the_rate_do_not_count() {
        let mut gate = checked();
        assert!(!rounds(&mut gate, &[64, 64, 40, 30, 0, 64, 64, 40, 0]).contains(&true));
    }

    #[test]
    fn late_packets_do_not_count_as_lost() {
        let mut gate = checked();
        for n in 0..20 {
            gate.on_outcomes(at(40 * n), 40, 60, 0, false);
            gate.on_outcomes(at(40 * n), 0, 0, 60, true);
        }
        assert!(!gate.is_too_lossy());
    }

    #[test]
    fn a_path_is_used_again_when_its_probes_arrive() {
        let mut gate = checked();
        rounds(&mut gate, &[50; 8]);
        (0..128).for_each(|n| gate.on_outcomes(at(1_000 + n), (n % 10 != 0).into(), (n % 10 == 0).into(), 0, true));
        assert!(gate.is_too_lossy(), "10 % is above the return threshold");
        (0..128).for_each(|n| gate.on_outcomes(at(2_000 + n), (n % 32 != 0).into(), (n % 32 == 0).into(), 0, true));
        assert!(!gate.is_too_lossy());
    }
}
