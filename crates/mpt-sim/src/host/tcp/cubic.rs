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
    highest: f64,
    epoch: Option<Epoch>,
    round: Round,
}

/// State since the last reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Time,
    /// Time until the window is back at W_max (K).
    time_back: f64,
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
    least: Option<Duration>,
    began: Time,
    /// Time of the last ACK of the current ACK train.
    train: Time,
}

impl Cubic {
    pub(super) fn new() -> Self {
        let round = Round::default();
        Self { window: INITIAL, threshold: f64::MAX, highest: 0.0, epoch: None, round }
    }

    /// Handles the ACK of `count` segments with the RTT sample `trip`; `next` is the next segment to be sent.
    pub(super) fn on_ack(&mut self, now: Time, count: f64, trip: Duration, least: Duration, acked: u64, next: u64) {
        if self.window < self.threshold {
            self.window += count;
            self.look_for_the_end(now, trip, least, acked, next);
            return;
        }
        let epoch = self.epoch.get_or_insert_with(|| {
            let origin = self.highest.max(self.window);
            Epoch { began: now, time_back: ((origin - self.window) / C).cbrt(), origin, reno: self.window }
        });
        let t = (now - epoch.began + trip).as_secs_f64();
        let target = (epoch.origin + C * (t - epoch.time_back).powi(3)).clamp(self.window, 1.5 * self.window);
        epoch.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) * count / self.window;
        let step = (target - self.window) / self.window;
        // As in Linux, the cubic function counts as too conservative as long as nothing has been lost.
        let step = if self.highest == 0.0 { step.max(UNKNOWN) } else { step };
        self.window = (self.window + step * count).max(epoch.reno);
    }

    /// Handles the first loss in this window.
    pub(super) fn on_loss(&mut self) {
        // Fast convergence (section 4.7): a flow that did not reach its former window releases capacity.
        self.highest = if self.window < self.highest { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
    }

    /// Handles a retransmission timeout.
    pub(super) fn on_timeout(&mut self) {
        self.on_loss();
        self.window = 1.0;
        self.highest = 0.0;
    }

    /// Leaves slow start if the round's minimum RTT exceeds the minimum RTT by an eighth, limited to 4 to 16 ms, or if
    /// an ACK train has lasted for half a minimum RTT.
    fn look_for_the_end(&mut self, now: Time, trip: Duration, least: Duration, acked: u64, next: u64) {
        if acked > self.round.end {
            self.round = Round { end: next, began: now, train: now, ..Round::default() };
        }
        let round = &mut self.round;
        round.samples += 1;
        round.least = Some(round.least.map_or(trip, |known| known.min(trip)));
        let margin = (least / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        let delayed = round.samples > 8 && round.least > Some(least + margin);
        if now.since(round.train) <= TRAIN {
            round.train = now;
        }
        let is_long = round.train == now && now.since(round.began) > least / 2;
        if (delayed || is_long) && self.window >= 16.0 {
            self.threshold = self.window;
        }
    }
}

/// Maximum distance of the ACKs of one train.
const TRAIN: Duration = Duration::from_millis(2);
/// RFC 6928.
const INITIAL: f64 = 10.0;
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// Minimum growth of the window per RTT before the first loss (5 %, as in tcp_cubic).
const UNKNOWN: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_back_after_the_time_of_the_formula() {
        let mut cubic = Cubic { window: 100.0, ..Cubic::new() };
        cubic.on_loss();
        assert_eq!(cubic.window, 70.0);
        // K = cbrt(100 * 0.3 / 0.4) = 4.217 s with an RTT of 200 ms.
        let trip = Duration::from_millis(200);
        let mut now = Time::START;
        while cubic.window < 99.0 {
            cubic.on_ack(now, cubic.window, trip, trip, 0, 0);
            now += trip;
        }
        let seconds = (now - Time::START).as_secs_f64();
        assert!((3.0..4.6).contains(&seconds), "{seconds}");
    }

    #[test]
    fn before_the_first_loss_it_grows_by_a_twentieth_a_round_trip_and_then_by_the_cube() {
        let mut cubic = Cubic { window: 1_000.0, threshold: 1_000.0, ..Cubic::new() };
        let trip = Duration::from_millis(10);
        cubic.on_ack(Time::START, 1_000.0, trip, trip, 0, 0);
        assert_eq!(cubic.window, 1_050.0);
        cubic.on_loss();
        cubic.on_ack(Time::START, 735.0, trip, trip, 0, 0);
        assert!(cubic.window < 740.0, "{}", cubic.window);
    }

    #[test]
    fn slow_start_ends_when_trips_grow() {
        let mut cubic = Cubic::new();
        let least = Duration::from_millis(20);
        for number in 0..30 {
            cubic.on_ack(Time::START, 1.0, least + Duration::from_millis(5), least, number, 1_000);
        }
        assert!(cubic.threshold < 30.0);
    }
}
