//! The estimates that a path's sender computes from ACKs.
//!
//! ```text
//! on_sent ──> SentPackets (packets in flight) ──> DeliveryRate (snapshot kept with the packet)
//! on_ack ───> SentPackets: outcomes ─> Rtt, OneWayDelay ─> DeliveryRate: sample ─> SentPackets: losses
//!             └─> an AckSample and perhaps a LossSample for the congestion controller
//! on_deadline: losses by time, a probe for a lost tail, suspicion of a failed path
//! ```
//!
//! Packets are identified by an opaque payload; their content and their retransmission are the caller's concern.

use std::time::Duration;

use super::ack::Ack;
use super::delivery_rate::{DeliveryRate, RateSample};
use super::loss_gate::LossGate;
use super::packet_pair::LinkRate;
use super::packet_train::DispersionProbe;
use super::rtt::{OneWayDelay, OneWayTime, Rtt};
use super::sample::{AckSample, LossSample};
use super::sent_packets::{Confirmed, Outcome, Payload, SentPackets};
use super::windowed_filter::WindowedMin;
use crate::id::PathSeq;
use crate::time::{Rate, Time};
use crate::tuning::path::estimator::{
    FIRST_SOJOURN_PACKETS, HIGH_JITTER_DIVISOR, LOSS_SPAN, MAX_PROBE_BACKOFF, MAX_SOJOURN_PACKETS, MIN_RATE_WINDOW,
    MIN_SOJOURN_PACKETS, SILENT_ROUNDS, SOJOURN_SPREAD_FACTOR,
};
use crate::tuning::path::rtt::MIN_FILTER_LEN;
use crate::tuning::path::sent_packets::MAX_ACK_DELAY;
use crate::tuning::{Heuristic, Tuning};

/// The sender's estimates of one path.
#[derive(Clone, Debug, Default)]
pub struct PathEstimator {
    sent: SentPackets,
    rtt: Rtt,
    tuning: Tuning,
    delay: OneWayDelay,
    link_rate: LinkRate,
    train: DispersionProbe,
    delivery: DeliveryRate,
    rounds: RoundCounter,
    sojourn: Sojourn,
    losses: LossRate,
    loss_gate: LossGate,
    ce: Option<u64>,
    /// The latest delivery rate, over about a round trip.
    rate: Rate,
    /// The highest rate over 1/8 of the recent window, in this round and in the last one.
    peak_rates: [Rate; 2],
    last_sent: Time,
    last_ack_at: Time,
    probes: u32,
    suspected: bool,
}

/// The result of an ACK.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckOutcome {
    /// For the controller, if anything was acknowledged for the first time.
    pub ack: Option<AckSample>,
    /// For the controller, if packets were declared lost.
    pub loss: Option<LossSample>,
    /// Packets that had been declared lost and arrived.
    pub spurious: u64,
    /// Packets newly reported as marked Congestion Experienced.
    pub ce: u64,
}

/// The purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutKind {
    /// A packet that others have overtaken becomes lost.
    Loss,
    /// The last packets sent have not been acknowledged: send a probe.
    Probe,
    /// Nothing has been acknowledged for three round trips.
    Silence,
}

/// The result of a deadline.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeoutOutcome {
    /// For the controller, if packets were declared lost.
    pub loss: Option<LossSample>,
    /// An ack-eliciting packet is to be sent on this path, even beyond the window.
    pub probe: bool,
    /// The path has just become suspect: what is in flight on it is to be retransmitted on another.
    pub suspect: bool,
}

impl PathEstimator {
    /// Makes an empty one, with the heuristics in `tuning`.
    pub fn new(tuning: Tuning) -> Self {
        let delay = OneWayDelay::new(tuning.has(Heuristic::JitterMemory));
        Self { tuning, delay, ..Self::default() }
    }

    /// Adds a packet that must be acknowledged.
    pub fn on_sent(&mut self, now: Time, seq: PathSeq, bytes: u32, payload: Payload) {
        if self.sent.in_flight() == 0 {
            self.last_ack_at = now;
        }
        let snapshot = self.delivery.on_sent(now, self.sent.in_flight());
        self.sent.on_sent(now, seq, bytes, payload, snapshot);
        self.last_sent = now;
    }

    /// Adds a packet to a train, whose packets leave at once.
    pub fn on_train(&mut self, now: Time, seq: PathSeq, bytes: u64) {
        self.train.on_sent(now, seq, bytes);
    }

    /// Returns true, once, if a large datagram is to be sent: see [`LinkRate::take_second_large`].
    pub fn take_second_large(&mut self) -> bool {
        self.delay.never_busy() && self.link_rate.take_second_large()
    }

    /// Returns the lower bound of the rate that the last train has just measured, once.
    pub fn take_train_rate(&mut self) -> Option<Rate> {
        self.train.take_rate()
    }

    /// Processes an ACK of this path from any path; `on_outcome` gets the outcome and the payload of each packet.
    pub fn on_ack(&mut self, now: Time, ack: &Ack, mut on_outcome: impl FnMut(Outcome, Payload)) -> AckOutcome {
        let largest_sent = self.sent.find(ack.largest);
        let confirmed = self.sent.on_ack(now, ack, &mut on_outcome);
        let round =
            (confirmed.newest.is_some() || confirmed.spurious > 0) && self.measure(now, ack, largest_sent, &confirmed);
        let loss = self.sent.detect(now, &self.rtt, &mut on_outcome);
        let lost = loss.map_or(0, |loss| loss.packets);
        self.losses.on_outcomes(now, confirmed.packets, lost, confirmed.spurious);
        self.loss_gate.on_outcomes(now, confirmed.packets, lost, confirmed.spurious, round);
        // The peer counts the marks of all paths that have used the slot.
        let ce = ack.ce.saturating_sub(self.ce.unwrap_or(ack.ce));
        self.ce = self.ce.max(Some(ack.ce));
        AckOutcome { ack: self.sample(now, &confirmed, round), loss, spurious: confirmed.spurious, ce }
    }

    /// Notes that the sender has nothing more to send on this path: until what is in flight has arrived, samples are
    /// the rate of the application, not of the path.
    pub fn on_app_limited(&mut self) {
        self.delivery.on_app_limited(self.sent.in_flight());
    }

    /// Handles the deadlines that have passed by `now`.
    pub fn on_deadline(&mut self, now: Time, mut on_outcome: impl FnMut(Outcome, Payload)) -> TimeoutOutcome {
        let due = |deadline: Option<Time>| deadline.is_some_and(|at| at <= now);
        let (probe, suspect) = (due(self.probe_deadline()), due(self.silence_deadline()));
        let loss = self.sent.detect(now, &self.rtt, &mut on_outcome);
        let lost = loss.map_or(0, |loss| loss.packets);
        self.losses.on_outcomes(now, 0, lost, 0);
        self.loss_gate.on_outcomes(now, 0, lost, 0, false);
        self.suspected |= suspect;
        if probe {
            self.probes += 1;
            self.last_sent = now;
        }
        TimeoutOutcome { loss, probe, suspect }
    }

    /// Returns the next time at which [`Self::on_deadline`] has something to do, and its purpose.
    pub fn next_deadline(&self) -> Option<(Time, TimeoutKind)> {
        [
            (self.sent.loss_deadline(&self.rtt), TimeoutKind::Loss),
            (self.probe_deadline(), TimeoutKind::Probe),
            (self.silence_deadline(), TimeoutKind::Silence),
        ]
        .into_iter()
        .filter_map(|(at, kind)| Some((at?, kind)))
        .min_by_key(|(at, _)| *at)
    }

    /// Declares everything in flight lost, because the path is gone or its packets were sent on another. A packet that
    /// arrives later is reported as [`Outcome::Spurious`].
    pub fn abandon(&mut self, now: Time, mut on_outcome: impl FnMut(Outcome, Payload)) -> Option<LossSample> {
        // Silence is no evidence of the loss rate, so the losses are not counted.
        self.sent.abandon(now, &mut on_outcome)
    }

    /// Releases memory while little is in flight; the estimates stay.
    pub fn shrink(&mut self) {
        self.sent.shrink();
    }

    /// Returns the round-trip time.
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Returns one-way delay, standing queue and jitter.
    pub fn delay(&self) -> &OneWayDelay {
        &self.delay
    }

    /// Returns the one-way delay within which nearly all packets arrive: the current delay and the margin.
    pub fn expected_one_way_delay(&self) -> Option<OneWayTime> {
        Some(self.delay.current()?.later(self.delay_margin()))
    }

    /// Returns the margin by which nearly all packets are at most later than the fastest, because of jitter or of
    /// reordering.
    pub fn delay_margin(&self) -> Duration {
        (self.delay.jitter() * 2).max(self.sent.max_reordering())
    }

    /// Returns the round trip of nearly all packets, which is that of a flow that is delivered in order.
    pub fn in_order_rtt(&self) -> Duration {
        self.rtt.smoothed() + self.delay_margin()
    }

    /// Returns the round trip of nearly all packets from the peer whose answers leave on an empty path: without the
    /// queue on the way out.
    pub fn inbound_rtt(&self) -> Duration {
        self.in_order_rtt().saturating_sub(self.delay.queue()).max(self.rtt.min())
    }

    /// Returns the mean time of a packet in flight while the path is empty: the least mean of the last 10 s. By
    /// Little's law this times the rate is the required amount in flight, whatever jitter and delayed ACKs add to a
    /// round trip.
    pub fn base_rtt(&self) -> Duration {
        self.sojourn.least.get().unwrap_or(self.sojourn.recent.max(self.rtt.smoothed()))
    }

    /// Returns the rate of a slow link, measured before it was filled.
    pub fn link_rate(&self) -> Option<Rate> {
        self.link_rate.rate()
    }

    /// Returns the fraction of the packets of the last seconds that were lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        self.losses.fraction()
    }

    /// Returns the packets that arrived and those that were lost since the path began.
    pub fn outcomes(&self) -> (u64, u64) {
        self.losses.total
    }

    /// Returns the bytes delivered since the path began.
    pub fn delivered(&self) -> u64 {
        self.delivery.delivered()
    }

    /// Returns true if the path loses too much to carry data.
    pub fn is_too_lossy(&self) -> bool {
        self.loss_gate.is_too_lossy()
    }

    /// Returns true if the path has been judged by its first packets.
    pub fn is_checked(&self) -> bool {
        self.loss_gate.is_checked()
    }

    /// Returns true if an initial probe of the path was lost.
    pub fn has_initial_loss(&self) -> bool {
        self.loss_gate.has_initial_loss()
    }

    /// Returns the time since the last packet was sent.
    pub fn idle_for(&self, now: Time) -> Duration {
        now.since(self.last_sent)
    }

    /// Returns the bytes allocated for datagrams in flight that have no inner packet, and for numbers between them.
    pub fn excess_memory(&self) -> usize {
        self.sent.excess_memory()
    }

    /// Releases memory that what is in flight does not need.
    pub fn trim_memory(&mut self) {
        self.sent.trim_memory();
    }

    /// Returns the bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.sent.in_flight()
    }

    /// Returns the payloads of the packets in flight, the last one first.
    pub fn tail(&self) -> impl Iterator<Item = Payload> {
        self.sent.tail()
    }

    /// Returns send time and payload of the oldest packet in flight.
    pub fn oldest(&self) -> Option<(Time, Payload)> {
        self.sent.oldest()
    }

    /// Returns true if the path has been silent for three round trips; an ACK of anything new clears this.
    pub fn is_suspected(&self) -> bool {
        self.suspected
    }

    /// Updates all estimates from an ACK of anything new; returns true if a round ended.
    fn measure(&mut self, now: Time, ack: &Ack, largest_sent: Option<(Time, u32)>, confirmed: &Confirmed) -> bool {
        (self.last_ack_at, self.probes, self.suspected) = (now, 0, false);
        self.delivery.on_spurious(confirmed.spurious_bytes);
        self.delivery.on_delivered(now, ack.written_at(), confirmed.bytes);
        let prior = confirmed.newest.map_or(0, |(_, _, snapshot)| snapshot.delivered());
        if let Some((sent_at, bytes)) = largest_sent {
            let (one_way, round) = (OneWayTime::between(sent_at, ack.received_at), self.delivery.delivered() - prior);
            self.rtt.on_sample(now, now.since(sent_at).max(self.mean_sojourn(confirmed)), ack.delay);
            let path_delay = one_way.earlier(self.link_rate.serialization_delay(bytes.into()));
            self.delay.verify(path_delay, now.since(sent_at));
            self.delay.on_sample(now, path_delay, self.sent.reordering() / 2, round);
            if self.delay.never_busy() && self.tuning.has(Heuristic::LinkRate) {
                self.link_rate.on_sample(sent_at, one_way, bytes.into());
            }
        }
        if let Some(floor) = self.delay.floor() {
            self.train.on_arrival(ack.largest, ack.received_at, floor, self.delay.jitter());
        }
        let peak = self.delivery.mark(ack.written_at(), self.recent_window() / 8);
        self.peak_rates[0] = self.peak_rates[0].max(peak.unwrap_or_default());
        let spread = self.delay.jitter().as_secs_f64() / self.rtt.smoothed().as_secs_f64();
        let counted = self.tuning.has(Heuristic::SojournSpread);
        self.sojourn.on_ack(now, confirmed, if counted { spread } else { 0.0 });
        self.rounds.on_ack(prior, self.delivery.delivered())
    }

    fn sample(&mut self, now: Time, confirmed: &Confirmed, round: bool) -> Option<AckSample> {
        let (_, newest_sent, snapshot) = confirmed.newest?;
        let rate = self.delivery.sample(newest_sent, &snapshot);
        self.rate = rate.map_or(self.rate, |sample: RateSample| sample.rate);
        if self.link_rate.invalidate(self.rate) {
            self.delay.forget_floor();
        }
        let peak = self.peak_rates[0].max(self.peak_rates[1]);
        if round {
            self.peak_rates = [Rate::ZERO, self.peak_rates[0]];
        }
        Some(AckSample {
            now,
            acked: confirmed.bytes,
            packets: confirmed.packets,
            newest_sent,
            in_flight: self.sent.in_flight(),
            round,
            app_limited: snapshot.app_limited(),
            srtt: self.rtt.smoothed(),
            min_rtt: self.rtt.min(),
            base_rtt: self.base_rtt(),
            sojourn: self.sojourn.recent,
            queue: self.queue(),
            jitter: self.delay.jitter(),
            rate,
            recent: self.delivery.recent(self.recent_window()),
            peak,
            link_rate: self.link_rate.rate().filter(|_| self.delay.never_busy()),
        })
    }

    /// Returns the mean time in flight of the packets of an ACK on a path that reorders, zero on others: with
    /// reordering, the highest number is that of a fast packet.
    fn mean_sojourn(&self, confirmed: &Confirmed) -> Duration {
        let arrived = u32::try_from(confirmed.packets + confirmed.spurious).unwrap_or(u32::MAX).max(1);
        if self.sent.max_reordering().is_zero() { Duration::ZERO } else { confirmed.sojourn / arrived }
    }

    /// Returns the standing queue. With high jitter, the fastest of a few samples may be late by chance; a queue raises
    /// the mean, too.
    fn queue(&self) -> Duration {
        let base = self.base_rtt();
        let mean = self.sojourn.recent.saturating_sub(base);
        let queue = self.delay.queue();
        if self.delay.jitter() < base / HIGH_JITTER_DIVISOR { queue } else { queue.min(mean) }
    }

    /// Returns the shortest interval over which arrivals yield a rate: half a round trip, more with jitter.
    fn recent_window(&self) -> Duration {
        let base = self.base_rtt();
        (base / 2).max((self.delay.jitter() * 4).min(base)).max(MIN_RATE_WINDOW)
    }

    /// Returns the time of the tail-loss probe (RFC 9002 section 6.2), which doubles with each unanswered probe.
    fn probe_deadline(&self) -> Option<Time> {
        let backoff = 1 << self.probes.min(MAX_PROBE_BACKOFF);
        (self.sent.in_flight() > 0).then(|| self.last_sent + self.rtt.probe_timeout(MAX_ACK_DELAY) * backoff)
    }

    /// Returns the time of suspicion: after three round trips, or on a short path after a probe and its ACK, because
    /// one lost packet is no silence.
    fn silence_deadline(&self) -> Option<Time> {
        let waiting = self.sent.in_flight() > 0 && !self.suspected;
        let (rtt, probe) = (self.rtt.smoothed(), self.rtt.probe_timeout(MAX_ACK_DELAY));
        waiting.then(|| self.last_ack_at + (rtt * SILENT_ROUNDS).max(probe + rtt) + MAX_ACK_DELAY)
    }
}

/// Counts rounds: a round ends when a packet that was sent after its beginning is acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct RoundCounter {
    ends_at: u64,
}

impl RoundCounter {
    fn on_ack(&mut self, prior_delivered: u64, delivered: u64) -> bool {
        let ended = prior_delivered >= self.ends_at;
        if ended {
            self.ends_at = delivered;
        }
        ended
    }
}

/// Mean time of a packet in flight: path, jitter, and the receiver's ACK delay.
#[derive(Clone, Debug, Default)]
struct Sojourn {
    total: Duration,
    packets: u64,
    since: Time,
    recent: Duration,
    least: WindowedMin<Duration>,
}

impl Sojourn {
    /// Adds the packets of an ACK. `spread` is the jitter as a fraction of the round trip. A mean of n packets is off
    /// by `spread / sqrt(n)`, and the least of many means by about three times that; n is chosen so that this stays
    /// below 1/10.
    fn on_ack(&mut self, now: Time, confirmed: &Confirmed, spread: f64) {
        let arrived = confirmed.packets + confirmed.spurious;
        if arrived > 0 {
            let mean = confirmed.sojourn / u32::try_from(arrived).unwrap_or(u32::MAX);
            self.recent = if self.recent.is_zero() { mean } else { (self.recent * 7 + mean) / 8 };
        }
        self.total += confirmed.sojourn;
        self.packets += arrived;
        let min_packets = if self.least.get().is_some() { MIN_SOJOURN_PACKETS } else { FIRST_SOJOURN_PACKETS };
        let required = (spread * SOJOURN_SPREAD_FACTOR).powi(2).clamp(min_packets, MAX_SOJOURN_PACKETS) as u64;
        let Some(mean) = self.mean().filter(|_| self.packets >= required) else { return };
        if now.since(self.since) >= mean / 2 {
            self.least.insert(now, MIN_FILTER_LEN, mean);
            (self.total, self.packets, self.since) = (Duration::ZERO, 0, now);
        }
    }

    fn mean(&self) -> Option<Duration> {
        (self.packets > 0).then(|| self.total / u32::try_from(self.packets).unwrap_or(u32::MAX))
    }
}

/// Fraction of packets lost in the last one to two `LOSS_SPAN`, and the total.
#[derive(Clone, Copy, Debug, Default)]
struct LossRate {
    started: Time,
    current: (u64, u64),
    last: (u64, u64),
    /// Since the path began.
    total: (u64, u64),
}

impl LossRate {
    fn on_outcomes(&mut self, now: Time, acked: u64, lost: u64, spurious: u64) {
        if now.since(self.started) >= LOSS_SPAN {
            (self.last, self.current, self.started) = (self.current, (0, 0), now);
        }
        self.current.0 += acked + spurious;
        self.current.1 = (self.current.1 + lost).saturating_sub(spurious);
        self.total = (self.total.0 + acked + spurious, (self.total.1 + lost).saturating_sub(spurious));
    }

    fn fraction(&self) -> f64 {
        let lost = self.current.1 + self.last.1;
        lost as f64 / (lost + self.current.0 + self.last.0).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::ack::{PeerTime, Range};

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    /// An ACK of packets `first..=last`, the last of which arrived at `ms` by the receiver's clock.
    fn ack(first: u64, last: u64, ms: u64) -> Ack {
        let ranges = [Range { first, last }].into_iter().collect();
        Ack { largest: PathSeq(last), received_at: PeerTime(ms * 1_000), ranges, ..Ack::default() }
    }

    /// Sends a packet each millisecond until `until`, and acknowledges each 40 ms later.
    fn steady(until: u64) -> PathEstimator {
        let mut estimator = PathEstimator::default();
        for n in 0..until {
            estimator.on_sent(at(n), PathSeq(n), 1_000, Payload::Control);
            if let Some(acked) = n.checked_sub(40) {
                estimator.on_ack(at(n), &ack(acked, acked, 5_000 + acked + 20), |_, _| {});
            }
        }
        estimator
    }

    #[test]
    fn a_steady_path_is_measured_within_a_few_round_trips() {
        let estimator = steady(400);
        assert_eq!(estimator.rtt().smoothed(), Duration::from_millis(40));
        assert_eq!(estimator.base_rtt(), Duration::from_millis(40));
        assert_eq!(estimator.rate, Rate::from_bytes(1_000_000));
        assert_eq!(estimator.delay().queue(), Duration::ZERO);
        assert_eq!((estimator.loss(), estimator.in_flight()), (0.0, 40_000));
    }

    #[test]
    fn a_silent_path_is_suspected_after_three_round_trips_and_max_ack_delay() {
        let mut estimator = steady(400);
        let (due, _) = estimator.next_deadline().unwrap();
        // The last ACK came at 399 ms. The probe is due first: 40 + 4 x 0.1 + 25 ms after the last packet.
        assert!(due > at(460) && due < at(470), "{due:?}");
        let wake = estimator.on_deadline(due, |_, _| {});
        assert!(wake.probe && !wake.suspect);
        let silence = at(399 + 3 * 40 + 25);
        assert_eq!(estimator.silence_deadline(), Some(silence));
        assert!(estimator.on_deadline(silence, |_, _| {}).suspect);
        assert!(!estimator.on_deadline(silence, |_, _| {}).suspect, "reported once");
        let mut lost = 0;
        estimator.abandon(silence, |outcome, _| lost += u32::from(outcome == Outcome::Lost));
        assert_eq!(lost, 40);
    }

    /// A packet each millisecond; even ones take 20 ms and odd ones 101, acknowledged together.
    #[test]
    fn the_round_trip_of_a_path_that_reorders_is_the_mean_of_all_packets() {
        let mut estimator = PathEstimator::default();
        for n in 0..600 {
            estimator.on_sent(at(n), PathSeq(n), 1_000, Payload::Control);
            if let Some(fast) = n.checked_sub(20).filter(|fast| fast % 2 == 0) {
                let numbers = [Some(fast), fast.checked_sub(81)];
                let ranges = numbers.into_iter().flatten().map(|n| Range { first: n, last: n }).collect();
                let ack = Ack {
                    largest: PathSeq(fast),
                    received_at: PeerTime((5_000 + n) * 1_000),
                    ranges,
                    ..Ack::default()
                };
                estimator.on_ack(at(n), &ack, |_, _| {});
            }
        }
        let srtt = estimator.rtt().smoothed();
        assert!(srtt > Duration::from_millis(55) && srtt < Duration::from_millis(61), "{srtt:?}");
        let margin = estimator.delay_margin();
        assert!(margin > Duration::from_millis(77) && margin <= Duration::from_millis(81), "{margin:?}");
    }

    #[test]
    fn an_ack_clears_suspicion() {
        let mut estimator = steady(400);
        estimator.on_deadline(at(1_000), |_, _| {});
        assert!(estimator.is_suspected());
        estimator.on_ack(at(1_001), &ack(380, 380, 5_400), |_, _| {});
        assert!(!estimator.is_suspected());
    }

    #[test]
    fn a_path_with_nothing_in_flight_has_no_deadline() {
        let mut estimator = steady(400);
        estimator.on_ack(at(450), &ack(0, 399, 5_420), |_, _| {});
        assert_eq!(estimator.next_deadline(), None);
    }

    #[test]
    fn the_loss_rate_is_half_if_every_other_packet_is_lost() {
        let mut estimator = PathEstimator::default();
        for n in 0..400 {
            estimator.on_sent(at(n), PathSeq(n), 1_000, Payload::Control);
            if let Some(acked) = n.checked_sub(40).filter(|acked| acked % 2 == 0) {
                estimator.on_ack(at(n), &ack(acked, acked, 5_000 + acked + 20), |_, _| {});
            }
        }
        assert!((estimator.loss() - 0.5).abs() < 0.02, "{}", estimator.loss());
    }

    #[test]
    fn marks_of_earlier_paths_in_the_slot_are_not_counted() {
        let mut estimator = PathEstimator::default();
        for (n, ce, new) in [(0, 7, 0), (1, 9, 2)] {
            estimator.on_sent(at(n), PathSeq(n), 1_400, Payload::Control);
            let marked = Ack { ce, ..ack(n, n, 5_020 + n) };
            assert_eq!(estimator.on_ack(at(n + 40), &marked, |_, _| {}).ce, new);
        }
    }

    #[test]
    fn marks_are_counted_once() {
        let mut estimator = steady(100);
        let marked = Ack { ce: 3, ..ack(60, 60, 5_080) };
        assert_eq!(estimator.on_ack(at(100), &marked, |_, _| {}).ce, 3);
        assert_eq!(estimator.on_ack(at(101), &marked, |_, _| {}).ce, 0);
    }
}
