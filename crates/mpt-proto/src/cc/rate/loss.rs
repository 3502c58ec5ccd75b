//! Distinguishes the path's own loss from congestion loss.
//!
//! A radio link loses packets at any rate; a full buffer or a policer drops only the excess. The first kind is measured
//! while cruising without a queue, and is then expected. Only loss beyond it counts as congestion.
use crate::tuning::cc::loss::{BASELINE_MEMORY, MAX_BASELINE, MIN_BASELINE_PACKETS, MIN_ROUND_PACKETS, MIN_SIGMA_LOSS};

/// Loss on one path: the baseline fraction, and the counts of the current round.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossModel {
    baseline_lost: f64,
    baseline_total: f64,
    acked: u64,
    lost: u64,
}

impl LossModel {
    /// Counts packets that arrived. `cruising`: they were sent while cruising without a queue.
    pub fn on_acked(&mut self, packets: u64, cruising: bool) {
        self.acked += packets;
        if cruising {
            self.baseline_total += packets as f64;
            if self.baseline_total > BASELINE_MEMORY {
                self.baseline_lost /= 2.0;
                self.baseline_total /= 2.0;
            }
        }
    }

    /// Counts packets that were declared lost; `cruising` as above.
    pub fn on_lost(&mut self, packets: u64, cruising: bool) {
        self.lost += packets;
        if cruising {
            self.baseline_lost += packets as f64;
            self.baseline_total += packets as f64;
        }
    }

    /// Subtracts packets that were declared lost and have arrived.
    pub fn on_spurious(&mut self, packets: u64) {
        let (this_round, earlier) = (self.lost.min(packets), packets.saturating_sub(self.lost));
        self.lost -= this_round;
        self.baseline_lost = (self.baseline_lost - earlier as f64).max(0.0);
    }

    /// Returns the fraction that is lost at any rate, at most [`MAX_BASELINE`]; `None` while unknown.
    pub fn baseline(&self) -> Option<f64> {
        self.uncapped_baseline().map(|fraction| fraction.min(MAX_BASELINE))
    }

    fn uncapped_baseline(&self) -> Option<f64> {
        (self.baseline_total >= MIN_BASELINE_PACKETS).then(|| self.baseline_lost / self.baseline_total)
    }

    /// Returns the baseline, or 0 while it is unknown.
    pub fn baseline_or_zero(&self) -> f64 {
        self.baseline().unwrap_or(0.0)
    }

    /// Returns true if the round's loss exceeds baseline plus `margin` by more than three standard deviations.
    pub fn is_excessive(&self, margin: f64) -> bool {
        let total = (self.acked + self.lost) as f64;
        if total < MIN_ROUND_PACKETS {
            return false;
        }
        let baseline = self.uncapped_baseline().unwrap_or(0.0);
        let p = baseline.max(MIN_SIGMA_LOSS);
        let bound = total * (baseline + margin) + 3.0 * (total * p * (1.0 - p)).sqrt();
        self.lost as f64 > bound
    }

    /// Ends the round, or extends it if it has too few packets.
    pub fn end_round(&mut self) {
        if (self.acked + self.lost) as f64 >= MIN_ROUND_PACKETS {
            (self.acked, self.lost) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(loss: &mut LossModel, acked: u64, lost: u64, cruising: bool) {
        loss.end_round();
        loss.on_acked(acked, cruising);
        loss.on_lost(lost, cruising);
    }

    #[test]
    fn loss_while_cruising_becomes_the_baseline() {
        let mut loss = LossModel::default();
        (0..10).for_each(|_| round(&mut loss, 95, 5, true));
        assert!((loss.baseline_or_zero() - 0.05).abs() < 1e-9);
        round(&mut loss, 950, 50, false);
        assert!(!loss.is_excessive(0.02));
        round(&mut loss, 850, 150, false);
        assert!(loss.is_excessive(0.02));
        assert!((loss.baseline_or_zero() - 0.05).abs() < 1e-9, "loss in a probe does not change the baseline");
    }

    #[test]
    fn losses_of_a_small_round_are_judged_with_the_next_packets() {
        let mut loss = LossModel::default();
        for _ in 0..3 {
            round(&mut loss, 10, 2, false);
            assert!(!loss.is_excessive(0.05));
        }
        round(&mut loss, 10, 2, false);
        assert!(loss.is_excessive(0.05), "8 of 48");
        round(&mut loss, 10, 2, false);
        assert!(!loss.is_excessive(0.05), "the next round");
    }
}
