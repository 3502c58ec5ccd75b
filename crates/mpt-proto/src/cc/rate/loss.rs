//! What loss is the path's own, and what is too much.
//!
//! A radio link loses packets whatever the rate; a full buffer or a policer loses those that are too many. The first kind
//! is learned while nothing is being tried (cruising, no queue) and from then on expected; only what exceeds it means
//! congestion.

/// Loss on one path: the expected fraction, and the count of the current round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loss {
    usual_lost: f64,
    usual_total: f64,
    acked: u64,
    lost: u64,
}

impl Loss {
    /// Counts packets that arrived.
    pub fn on_acked(&mut self, packets: u64) {
        self.acked += packets;
    }

    /// Counts packets that did not.
    pub fn on_lost(&mut self, packets: u64) {
        self.lost += packets;
    }

    /// Takes back packets that were counted as lost.
    pub fn on_spurious(&mut self, packets: u64) {
        let (here, before) = (self.lost.min(packets), packets.saturating_sub(self.lost));
        self.lost -= here;
        self.usual_lost = (self.usual_lost - before as f64).max(0.0);
    }

    /// The fraction that is lost whatever the rate, at most [`MOST`].
    pub fn usual(&self) -> f64 {
        if self.usual_total < ENOUGH { 0.0 } else { (self.usual_lost / self.usual_total).min(MOST) }
    }

    /// Whether the round lost more than usual by more than `margin`, beyond what chance explains (three sigma).
    pub fn is_excessive(&self, margin: f64) -> bool {
        let total = (self.acked + self.lost) as f64;
        let p = self.usual().max(LEAST);
        let bound = total * (self.usual() + margin) + 3.0 * (total * p * (1.0 - p)).sqrt();
        self.lost as f64 > bound
    }

    /// Ends the round; when it was a quiet one, what it lost is usual.
    pub fn end_round(&mut self, quiet: bool) {
        if quiet {
            self.usual_lost += self.lost as f64;
            self.usual_total += (self.acked + self.lost) as f64;
            if self.usual_total > MEMORY {
                self.usual_lost /= 2.0;
                self.usual_total /= 2.0;
            }
        }
        (self.acked, self.lost) = (0, 0);
    }
}

/// Packets before a fraction is believed.
const ENOUGH: f64 = 100.0;
/// Packets after which the past counts half: 1 % is then known to within a third.
const MEMORY: f64 = 2_000.0;
/// A path that loses a third of everything is not worth sending faster on to make up for it.
const MOST: f64 = 0.3;
/// Some loss is always possible: what the spread of chance is computed from when none has been seen.
const LEAST: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    fn round(loss: &mut Loss, acked: u64, lost: u64) {
        loss.on_acked(acked);
        loss.on_lost(lost);
    }

    #[test]
    fn five_percent_is_usual_after_some_quiet_rounds() {
        let mut loss = Loss::default();
        for _ in 0..10 {
            round(&mut loss, 95, 5);
            loss.end_round(true);
        }
        assert!((loss.usual() - 0.05).abs() < 1e-9);
        round(&mut loss, 950, 50);
        assert!(!loss.is_excessive(0.02));
        loss.end_round(false);
        round(&mut loss, 850, 150);
        assert!(loss.is_excessive(0.02));
    }

    #[test]
    fn a_few_losses_of_a_few_packets_mean_nothing() {
        let mut loss = Loss::default();
        round(&mut loss, 10, 2);
        assert!(!loss.is_excessive(0.05));
    }
}
