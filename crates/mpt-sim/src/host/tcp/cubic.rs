//! CUBIC (RFC 9438) in segments, with both HyStart tests (Ha and Rhee, "Taming the Elephants", 2011) and Linux's
//! bounds.

use mpt_proto::time::Time;
use std::time::Duration;

/// A CUBIC congestion window.
#[derive(Clone, Debug)]
pub(super) struct Cubic {
    /// The window in segments.
    pub(super) window: f64,
    threshold: f64,
    /// The window before the last reduction (W_max).
    w_max: f64,
    epoch: Option<Epoch>,
    round: Round,
}

/// State since the last reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Time,
    /// Time until the window is back at W_max (K).
    k: f64,
    origin: f64,
    /// Reno's window estimate (RFC 9438 section 4.3).
    reno: f64,
}

/// HyStart's state of one round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// The segment that ends the round.
    end: u64,
    samples: u32,
    min_rtt: Option<Duration>,
    began: Time,
    /// Time of the last ACK of the current ACK train.
    train: Time,
}

impl Cubic {
    pub(super) fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    pub(super) fn new() -> Self {
        let round = Round::default();
        Self { window: INITIAL_WINDOW, threshold: f64::MAX, w_max: 0.0, epoch: None, round }
    }

    /// Handles the ACK of `count` segments with the RTT sample `rtt`; `next` is the next segment to be sent.
    pub(super) fn on_ack(&mut self, now: Time, count: f64, rtt: Duration, min_rtt: Duration, acked: u64, next: u64) {
        if self.window < self.threshold {
            self.window += count;
            self.check_hystart(now, rtt, min_rtt, acked, next);
            return;
        }
        let epoch = self.epoch.get_or_insert_with(|| {
            let origin = self.w_max.max(self.window);
            Epoch { began: now, k: ((origin - self.window) / C).cbrt(), origin, reno: self.window }
        });
        let t = (now - epoch.began + rtt).as_secs_f64();
        let target = (epoch.origin + C * (t - epoch.k).powi(3)).clamp(self.window, 1.5 * self.window);
        epoch.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) * count / self.window;
        let step = (target - self.window) / self.window;
        // As in Linux, the cubic function counts as too conservative as long as nothing has been lost.
        let step = if self.w_max == 0.0 { step.max(MIN_GROWTH) } else { step };
        self.window = (self.window + step * count).max(epoch.reno);
    }

    /// Handles the first loss in this window.
    pub(super) fn on_loss(&mut self) {
        // Fast convergence (section 4.7): a flow that did not reach its former window releases capacity.
        self.w_max = if self.window < self.w_max { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
    }

    /// Handles a retransmission timeout.
    pub(super) fn on_timeout(&mut self) {
        self.on_loss();
        self.window = 1.0;
        self.w_max = 0.0;
    }

    /// Leaves slow start if the round's minimum RTT exceeds the minimum RTT by an eighth, limited to 4 to 16 ms, or if
    /// an ACK train has lasted for half a minimum RTT.
    fn check_hystart(&mut self, now: Time, rtt: Duration, min_rtt: Duration, acked: u64, next: u64) {
        if acked > self.round.end {
            self.round = Round { end: next, began: now, train: now, ..Round::default() };
        }
        let round = &mut self.round;
        round.samples += 1;
        round.min_rtt = Some(round.min_rtt.map_or(rtt, |known| known.min(rtt)));
        let margin = (min_rtt / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        let delayed = round.samples > 8 && round.min_rtt > Some(min_rtt + margin);
        if now.since(round.train) <= MAX_TRAIN_GAP {
            round.train = now;
        }
        let is_long = round.train == now && now.since(round.began) > min_rtt / 2;
        if (delayed || is_long) && self.window >= 16.0 {
            self.threshold = self.window;
        }
    }
}

/// Maximum distance of the ACKs of one train.
const MAX_TRAIN_GAP: Duration = Duration::from_millis(2);
/// RFC 6928.
const INITIAL_WINDOW: f64 = 10.0;
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// Minimum growth of the window per RTT before the first loss (5 %, as in tcp_cubic).
const MIN_GROWTH: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_back_at_w_max_after_k_seconds() {
        let mut cubic = Cubic { window: 100.0, ..Cubic::new() };
        cubic.on_loss();
        assert_eq!(cubic.window, 70.0);
        // K = cbrt(100 * 0.3 / 0.4) = 4.217 s with an RTT of 200 ms.
        let rtt = Duration::from_millis(200);
        let mut now = Time::START;
        while cubic.window < 99.0 {
            cubic.on_ack(now, cubic.window, rtt, rtt, 0, 0);
            now += rtt;
        }
        let seconds = (now - Time::START).as_secs_f64();
        assert!((3.0..4.6).contains(&seconds), "{seconds}");
    }

    #[test]
    fn the_window_grows_by_5_percent_per_rtt_before_the_first_loss_and_by_the_cubic_function_after_it() {
        let mut cubic = Cubic { window: 1_000.0, threshold: 1_000.0, ..Cubic::new() };
        let rtt = Duration::from_millis(10);
        cubic.on_ack(Time::START, 1_000.0, rtt, rtt, 0, 0);
        assert_eq!(cubic.window, 1_050.0);
        cubic.on_loss();
        cubic.on_ack(Time::START, 735.0, rtt, rtt, 0, 0);
        assert!(cubic.window < 740.0, "{}", cubic.window);
    }

    #[test]
    fn slow_start_ends_when_the_rtt_grows() {
        let mut cubic = Cubic::new();
        let min_rtt = Duration::from_millis(20);
        for number in 0..30 {
            cubic.on_ack(Time::START, 1.0, min_rtt + Duration::from_millis(5), min_rtt, number, 1_000);
        }
        assert!(cubic.threshold < 30.0);
    }
}
