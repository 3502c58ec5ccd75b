//! What loss is the path's own, and what is too much.
//!
//! A radio link loses packets whatever the rate; a full buffer or a policer loses those that are too many. The first kind
//! is learned while nothing is being tried (cruising, no queue) and from then on expected; only what exceeds it means
//! congestion.

/// Loss on one path: the expected fraction, and the count of the current round.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossModel {
    baseline_lost: f64,
    baseline_total: f64,
    acked: u64,
    lost: u64,
}

impl LossModel {
    /// Counts packets that arrived; `calm` when they were sent while nothing was being tried.
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

    /// Counts packets that did not; `calm` as above.
    pub fn on_lost(&mut self, packets: u64, cruising: bool) {
        self.lost += packets;
        if cruising {
            self.baseline_lost += packets as f64;
            self.baseline_total += packets as f64;
        }
    }

    /// Takes back packets that were counted as lost.
    pub fn on_spurious(&mut self, packets: u64) {
        let (this_round, earlier) = (self.lost.min(packets), packets.saturating_sub(self.lost));
        self.lost -= this_round;
        self.baseline_lost = (self.baseline_lost - earlier as f64).max(0.0);
    }

    /// The fraction that is lost whatever the rate, at most [`MOST`]; none while too little has been seen.
    pub fn baseline(&self) -> Option<f64> {
        self.uncapped_baseline().map(|seen| seen.min(MAX_BASELINE))
    }

    fn uncapped_baseline(&self) -> Option<f64> {
        (self.baseline_total >= MIN_BASELINE_PACKETS).then(|| self.baseline_lost / self.baseline_total)
    }

    /// The same, zero while nothing is known.
    pub fn baseline_or_zero(&self) -> f64 {
        self.baseline().unwrap_or(0.0)
    }

    /// Whether the round lost more than usual by more than `margin`, beyond what chance explains (three sigma).
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

    /// Ends the round. One of too few packets goes on with the next.
    pub fn end_round(&mut self) {
        if (self.acked + self.lost) as f64 >= MIN_ROUND_PACKETS {
            (self.acked, self.lost) = (0, 0);
        }
    }
}

/// Rounds of fewer packets prove nothing: a burst of jitter looks like loss until it is over.
const MIN_ROUND_PACKETS: f64 = 40.0;
/// Packets before a fraction is believed.
const MIN_BASELINE_PACKETS: f64 = 100.0;
/// Packets after which the past counts half: 1 % is then known to within a third.
const BASELINE_MEMORY: f64 = 2_000.0;
/// A path that loses a third of everything is not worth sending faster on to make up for it.
const MAX_BASELINE: f64 = 0.3;
/// Some loss is always possible: what the spread of chance is computed from when none has been seen.
const MIN_SIGMA_LOSS: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    fn round(loss: &mut LossModel, acked: u64, lost: u64, cruising: bool) {
        loss.end_round();
        loss.on_acked(acked, cruising);
        loss.on_lost(lost, cruising);
    }

    #[test]
    fn five_percent_is_usual_once_it_was_lost_in_calm() {
        let mut loss = LossModel::default();
        (0..10).for_each(|_| round(&mut loss, 95, 5, true));
        assert!((loss.baseline_or_zero() - 0.05).abs() < 1e-9);
        round(&mut loss, 950, 50, false);
        assert!(!loss.is_excessive(0.02));
        round(&mut loss, 850, 150, false);
        assert!(loss.is_excessive(0.02));
        assert!((loss.baseline_or_zero() - 0.05).abs() < 1e-9, "what a probe lost is not usual");
    }

    #[test]
    fn a_few_losses_of_a_few_packets_mean_nothing_until_there_are_more() {
        let mut loss = LossModel::default();
        for _ in 0..3 {
            round(&mut loss, 10, 2, false);
            assert!(!loss.is_excessive(0.05));
        }
        round(&mut loss, 10, 2, false);
        assert!(loss.is_excessive(0.05), "8 of 48");
        round(&mut loss, 10, 2, false);
        assert!(!loss.is_excessive(0.05), "a new beginning");
    }
}
