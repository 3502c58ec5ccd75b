//! BBR version 1 as in Linux: draft-cardwell-iccrg-bbr-congestion-control-00, and the compensation for aggregated ACKs
//! (draft-ietf-ccwg-bbr section 5.5.9) with Linux' bound. Windows are in segments. The detection of policers is
//! omitted, and the gain cycle always begins at the same phase.

use mpt_proto::time::Time;
use std::time::Duration;

/// A BBR sender.
#[derive(Clone, Debug)]
pub(super) struct Bbr {
    /// The congestion window.
    pub(super) window: f64,
    phase: Phase,
    /// Bottleneck rate in segments per second: the maximum of the last [`RATE_ROUNDS`] rounds.
    rate: MaxFilter,
    min_rtt: Option<Duration>,
    /// Time of the minimum RTT.
    min_rtt_at: Time,
    /// Segments per second that the pacer permits.
    pacing: f64,
    round: u64,
    /// A round ends when a segment is delivered that was sent after this number of deliveries.
    round_end: u64,
    /// The highest rate in start-up, and the rounds in which it has not grown by a quarter.
    full: (f64, u32),
    /// The pipe was filled.
    is_filled: bool,
    recovery: Option<Recovery>,
    aggregation: Aggregation,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Startup,
    Drain,
    /// Phase of the gain cycle, and its begin.
    Probe(usize, Time),
    /// The window before, and the end once the window is empty.
    ProbeRtt {
        window: f64,
        end: Option<Time>,
    },
}

/// State from a loss until all data in flight at that time has been acknowledged.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// The window before the loss.
    window: f64,
    /// The round of the loss, in which each ACK releases as much as it acknowledges; none after a timeout.
    round: Option<u64>,
}

/// Data that is acknowledged beyond the bottleneck's rate.
#[derive(Clone, Debug, Default)]
struct Aggregation {
    extra: MaxFilter,
    began: Time,
    acked: f64,
}

/// A maximum over rounds, with a value for each round that may become it.
#[derive(Clone, Debug, Default)]
struct MaxFilter(Vec<(u64, f64)>);

/// The content of an ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSample {
    pub(super) now: Time,
    /// Newly delivered segments.
    pub(super) acked: f64,
    pub(super) rtt: Duration,
    /// Segments delivered so far, and when the newest delivered segment was sent.
    pub(super) delivered: u64,
    pub(super) delivered_before: u64,
    /// The longer one of the times in which they were sent and acknowledged.
    pub(super) interval: Duration,
    /// Segments in flight after the ACK.
    pub(super) in_flight: usize,
    /// Losses are being repaired.
    pub(super) in_recovery: bool,
    /// The sender had less in flight than the path holds.
    pub(super) is_limited: bool,
}

impl Bbr {
    pub(super) fn new() -> Self {
        Self {
            window: INITIAL_WINDOW,
            phase: Phase::Startup,
            rate: MaxFilter::default(),
            min_rtt: None,
            min_rtt_at: Time::START,
            pacing: 0.0,
            round: 0,
            round_end: 0,
            full: (0.0, 0),
            is_filled: false,
            recovery: None,
            aggregation: Aggregation::default(),
        }
    }

    /// Returns the time between two segments.
    pub(super) fn spacing(&self) -> Duration {
        let first = HIGH_GAIN * INITIAL_WINDOW * 1e3;
        Duration::from_secs_f64(1.0 / if self.pacing > 0.0 { self.pacing } else { first })
    }

    pub(super) fn probes_rtt(&self) -> bool {
        matches!(self.phase, Phase::ProbeRtt { .. })
    }

    pub(super) fn on_ack(&mut self, ack: &AckSample) {
        let starts_round = ack.delivered_before >= self.round_end;
        if starts_round {
            (self.round, self.round_end) = (self.round + 1, ack.delivered);
        }
        if ack.interval >= self.min_rtt.unwrap_or_default() && !ack.interval.is_zero() {
            let rate = (ack.delivered - ack.delivered_before) as f64 / ack.interval.as_secs_f64();
            if !ack.is_limited || rate >= self.rate.get() {
                self.rate.add(self.round, RATE_ROUNDS, rate);
            }
        }
        self.note_aggregation(ack);
        self.check_full(starts_round && !ack.is_limited);
        self.advance(ack);
        self.update_min_rtt(ack);
        self.set_pacing();
        self.set_window(ack);
    }

    /// Handles the first loss in this window: a round that begins now keeps what is in flight.
    pub(super) fn on_loss(&mut self, in_flight: usize, delivered: u64) {
        self.enter_recovery(Some(self.round));
        self.round_end = delivered;
        self.window = (in_flight as f64 + 1.0).max(MIN_WINDOW);
    }

    pub(super) fn on_timeout(&mut self) {
        self.enter_recovery(None);
        self.full = (0.0, 0);
        self.window = 1.0;
    }

    fn enter_recovery(&mut self, round: Option<u64>) {
        let window = self.recovery.map_or(self.window, |recovery| recovery.window);
        self.recovery = Some(Recovery { window, round });
    }

    /// Until the pipe is filled, the pacing rate only grows.
    fn set_pacing(&mut self) {
        let gain = match self.phase {
            Phase::Startup => HIGH_GAIN,
            Phase::Drain => 1.0 / HIGH_GAIN,
            Phase::Probe(index, _) => CYCLE[index],
            Phase::ProbeRtt { .. } => 1.0,
        };
        if self.pacing == 0.0 {
            let rtt = self.min_rtt.unwrap_or(Duration::from_millis(1));
            self.pacing = HIGH_GAIN * INITIAL_WINDOW / rtt.as_secs_f64().max(1e-6);
        }
        let rate = gain * self.rate.get() * PACING_MARGIN;
        if rate > 0.0 && (self.is_filled || rate > self.pacing) {
            self.pacing = rate;
        }
    }

    fn bdp(&self, gain: f64) -> f64 {
        self.min_rtt.map_or(INITIAL_WINDOW, |rtt| gain * self.rate.get() * rtt.as_secs_f64()).ceil()
    }

    /// Returns `gain` times the segments that the path holds, and three bursts of a millisecond.
    fn inflight(&self, gain: f64) -> f64 {
        self.bdp(gain) + 3.0 * (self.pacing * BURST.as_secs_f64()).floor().clamp(MIN_BURST, MAX_BURST)
    }

    fn check_full(&mut self, starts_round: bool) {
        if self.is_filled || !starts_round {
            return;
        }
        self.full = match self.rate.get() >= self.full.0 * FULL_GROWTH {
            true => (self.rate.get(), 0),
            false => (self.full.0, self.full.1 + 1),
        };
        self.is_filled = self.full.1 >= FULL_ROUNDS;
    }

    fn advance(&mut self, ack: &AckSample) {
        if self.phase == Phase::Startup && self.is_filled {
            self.phase = Phase::Drain;
        }
        if self.phase == Phase::Drain && ack.in_flight as f64 <= self.inflight(1.0) {
            self.phase = Phase::Probe(FIRST_OF_CYCLE, ack.now);
        }
        let Phase::Probe(index, began) = self.phase else { return };
        let is_long = ack.now.since(began) > self.min_rtt.unwrap_or_default();
        // Before this ACK.
        let in_flight = ack.in_flight as f64 + ack.acked;
        let ends = match CYCLE[index] {
            gain if gain > 1.0 => is_long && (ack.in_recovery || in_flight >= self.inflight(gain)),
            gain if gain < 1.0 => is_long || in_flight <= self.inflight(1.0),
            _ => is_long,
        };
        if ends {
            self.phase = Phase::Probe((index + 1) % CYCLE.len(), ack.now);
        }
    }

    /// Remembers the minimum RTT for ten seconds, and then measures it with four segments in flight.
    fn update_min_rtt(&mut self, ack: &AckSample) {
        let has_expired = self.min_rtt.is_some() && ack.now.since(self.min_rtt_at) > MIN_RTT_AGE;
        if has_expired || self.min_rtt.is_none_or(|known| ack.rtt < known) {
            (self.min_rtt, self.min_rtt_at) = (Some(ack.rtt), ack.now);
        }
        if has_expired && !self.probes_rtt() {
            self.phase = Phase::ProbeRtt { window: self.window, end: None };
        }
        let Phase::ProbeRtt { window, end } = self.phase else { return };
        let is_empty = ack.in_flight as f64 <= MIN_WINDOW;
        let end = end.or_else(|| is_empty.then(|| ack.now + PROBE_RTT.max(self.min_rtt.unwrap_or_default())));
        self.phase = Phase::ProbeRtt { window, end };
        if end.is_some_and(|end| end <= ack.now) {
            self.min_rtt_at = ack.now;
            self.window = self.window.max(window);
            self.phase = if self.is_filled { Phase::Probe(FIRST_OF_CYCLE, ack.now) } else { Phase::Startup };
        }
    }

    fn set_window(&mut self, ack: &AckSample) {
        match self.recovery {
            Some(recovery) if !ack.in_recovery => {
                self.window = self.window.max(recovery.window);
                self.recovery = None;
            }
            Some(recovery) if recovery.round == Some(self.round) => {
                self.window = self.window.max(ack.in_flight as f64 + ack.acked);
                return self.clamp_window();
            }
            _ => {}
        }
        let gain = if matches!(self.phase, Phase::Startup | Phase::Drain) { HIGH_GAIN } else { WINDOW_GAIN };
        let extra = if self.is_filled { self.extra() } else { 0.0 };
        let target = self.inflight(gain) + extra;
        if self.is_filled {
            self.window = (self.window + ack.acked).min(target);
        } else if self.window < target || (ack.delivered as f64) < INITIAL_WINDOW {
            self.window += ack.acked;
        }
        self.window = self.window.max(MIN_WINDOW);
        self.clamp_window();
    }

    fn clamp_window(&mut self) {
        if self.probes_rtt() {
            self.window = self.window.min(MIN_WINDOW);
        }
    }

    fn note_aggregation(&mut self, ack: &AckSample) {
        let rate = self.rate.get();
        let expected = rate * ack.now.since(self.aggregation.began).as_secs_f64();
        if self.aggregation.acked <= expected {
            (self.aggregation.began, self.aggregation.acked) = (ack.now, 0.0);
        }
        self.aggregation.acked += ack.acked;
        let expected = rate * ack.now.since(self.aggregation.began).as_secs_f64();
        let extra = (self.aggregation.acked - expected).clamp(0.0, self.window);
        self.aggregation.extra.add(self.round, EXTRA_ROUNDS, extra);
    }

    fn extra(&self) -> f64 {
        self.aggregation.extra.get().min(self.rate.get() * MAX_EXTRA.as_secs_f64())
    }
}

impl MaxFilter {
    fn get(&self) -> f64 {
        self.0.first().map_or(0.0, |(_, value)| *value)
    }

    /// Adds a value, and removes those that are older than `rounds`.
    fn add(&mut self, round: u64, rounds: u64, value: f64) {
        self.0.retain(|(at, known)| at + rounds > round && *known > value);
        self.0.push((round, value));
    }
}

/// RFC 6928.
const INITIAL_WINDOW: f64 = 10.0;
const MIN_WINDOW: f64 = 4.0;
/// 2 / ln 2.
const HIGH_GAIN: f64 = 2.885;
const WINDOW_GAIN: f64 = 2.0;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Linux draws the first phase by chance, but never the second one.
const FIRST_OF_CYCLE: usize = 2;
const RATE_ROUNDS: u64 = 10;
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
const MIN_RTT_AGE: Duration = Duration::from_secs(10);
const PROBE_RTT: Duration = Duration::from_millis(200);
/// Linux paces 1 % below the estimate.
const PACING_MARGIN: f64 = 0.99;
/// Time that a burst takes at the pacing rate, and its segments: at least 2, at most 64 KiB.
const BURST: Duration = Duration::from_millis(1);
const MIN_BURST: f64 = 2.0;
const MAX_BURST: f64 = 45.0;
const EXTRA_ROUNDS: u64 = 10;
const MAX_EXTRA: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(20);

    /// Returns a sender after `rounds` round trips of 20 ms over a path that carries 1,000 segments a second.
    fn after(rounds: u64) -> Bbr {
        let mut bbr = Bbr::new();
        let (mut delivered, mut now) = (0, Time::START);
        for _ in 0..rounds {
            let window = bbr.window.floor() as u64;
            let interval = RTT.max(Duration::from_millis(window));
            now += interval;
            bbr.on_ack(&AckSample {
                now,
                acked: window as f64,
                rtt: interval,
                delivered: delivered + window,
                delivered_before: delivered,
                interval,
                in_flight: 0,
                in_recovery: false,
                is_limited: false,
            });
            delivered += window;
        }
        bbr
    }

    #[test]
    fn the_window_holds_two_of_the_shortest_round_trips() {
        let bbr = after(40);
        assert_eq!((bbr.rate.get().round(), bbr.min_rtt, bbr.is_filled), (1_000.0, Some(RTT), true));
        assert!((40.0..=41.0).contains(&bbr.bdp(WINDOW_GAIN)));
        assert_eq!(bbr.window, bbr.inflight(WINDOW_GAIN) + bbr.extra());
    }

    #[test]
    fn after_ten_seconds_the_round_trip_is_measured_with_four_segments() {
        let mut bbr = after(40);
        let now = bbr.min_rtt_at + MIN_RTT_AGE + RTT;
        let ack = AckSample {
            now,
            acked: 1.0,
            rtt: RTT * 2,
            delivered: 100_000,
            delivered_before: 99_960,
            interval: RTT * 2,
            in_flight: 3,
            in_recovery: false,
            is_limited: false,
        };
        bbr.on_ack(&ack);
        assert_eq!((bbr.window, bbr.min_rtt), (4.0, Some(RTT * 2)));
        bbr.on_ack(&AckSample { now: now + PROBE_RTT, ..ack });
        assert!(bbr.window > 40.0, "{}", bbr.window);
    }

    #[test]
    fn a_loss_keeps_what_is_in_flight_for_a_round() {
        let mut bbr = after(40);
        let before = bbr.window;
        bbr.on_loss(20, bbr.round_end);
        assert_eq!(bbr.window, 21.0);
        let now = bbr.min_rtt_at + Duration::from_secs(1);
        let (delivered, delivered_before) = (bbr.round_end + 40, bbr.round_end);
        let ack = AckSample {
            now,
            acked: 1.0,
            rtt: RTT,
            delivered,
            delivered_before,
            interval: RTT * 2,
            in_flight: 20,
            in_recovery: false,
            is_limited: false,
        };
        bbr.on_ack(&ack);
        assert!(bbr.window >= before.min(bbr.bdp(2.0)), "{} of {before}", bbr.window);
    }
}
