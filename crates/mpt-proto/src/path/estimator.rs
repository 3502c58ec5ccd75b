//! Everything one path's sender learns from its ACKs, tied together.
//!
//! ```text
//! on_sent ──> Sent (what is in flight) ──> Delivery (snapshot kept with the packet)
//! on_ack ───> Sent: fates ──> Rtt, OneWayDelay ──> Delivery: rate ──> Sent: losses
//!             └─> an AckSample and perhaps a LossSample for the congestion controller
//! on_deadline: losses by time, a probe for a lost tail, the suspicion that the path is gone
//! ```
//!
//! Packets are known by an opaque payload; what they carried, and whether to send it again, is somebody else's concern.

use std::time::Duration;

use super::PathSeq;
use super::ack::Ack;
use super::delivery_rate::{DeliveryRate, RateSample};
use super::loss_gate::LossGate;
use super::packet_pair::LinkRate;
use super::packet_train::DispersionProbe;
use super::rtt::{MIN_WINDOW, OneWayDelay, OneWayTime, Rtt};
use super::sample::{AckSample, LossSample};
use super::sent_packets::{Confirmed, MAX_HOLD, Outcome, Payload, SentPackets};
use super::windowed_filter::WindowedMin;
use crate::time::{Rate, Time};

/// The sending half of one path's feedback.
#[derive(Clone, Debug, Default)]
pub struct PathEstimator {
    sent: SentPackets,
    rtt: Rtt,
    delay: OneWayDelay,
    link_rate: LinkRate,
    train: DispersionProbe,
    delivery: DeliveryRate,
    rounds: RoundCounter,
    sojourn: Sojourn,
    losses: LossRate,
    loss_gate: LossGate,
    ce: Option<u64>,
    /// The last one at which data was delivered, over about a round trip.
    rate: Rate,
    /// The highest rate over a moment, of this round and of the last one.
    peak_rates: [Rate; 2],
    last_sent: Time,
    last_ack_at: Time,
    probes: u32,
    suspected: bool,
}

/// What an ACK brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckOutcome {
    /// For the controller, when something was acknowledged for the first time.
    pub ack: Option<AckSample>,
    /// For the controller, when packets were declared lost.
    pub loss: Option<LossSample>,
    /// Packets that had been declared lost and were not.
    pub spurious: u64,
    /// Packets newly reported as marked Congestion Experienced.
    pub ce: u64,
}

/// What to wake up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutKind {
    /// A packet that others have overtaken becomes lost.
    Loss,
    /// The last packets sent have not been confirmed: ask.
    Probe,
    /// Nothing has been confirmed for three round trips.
    Silence,
}

/// What a deadline brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeoutOutcome {
    /// For the controller, when packets were declared lost.
    pub loss: Option<LossSample>,
    /// Something that must be acknowledged should be sent on this path, whatever the window says.
    pub probe: bool,
    /// The path has just become suspect: what is in flight on it should be sent again elsewhere.
    pub suspect: bool,
}

impl PathEstimator {
    /// Notes a packet that must be acknowledged.
    pub fn on_sent(&mut self, now: Time, seq: PathSeq, bytes: u32, payload: Payload) {
        if self.sent.in_flight() == 0 {
            self.last_ack_at = now;
        }
        let snapshot = self.delivery.on_sent(now, self.sent.in_flight());
        self.sent.on_sent(now, seq, bytes, payload, snapshot);
        self.last_sent = now;
    }

    /// Notes that a packet is one of a train, whose packets leave at once.
    pub fn on_train(&mut self, now: Time, seq: PathSeq, bytes: u64) {
        self.train.on_sent(now, seq, bytes);
    }

    /// What the last train has just shown the path to pass at least.
    pub fn take_train_rate(&mut self) -> Option<Rate> {
        self.train.take_rate()
    }

    /// Takes in an ACK of this path, wherever it came in; `tell` learns the fate of each packet by its payload.
    pub fn on_ack(&mut self, now: Time, ack: &Ack, mut tell: impl FnMut(Outcome, Payload)) -> AckOutcome {
        let largest_sent = self.sent.find(ack.largest);
        let confirmed = self.sent.on_ack(now, ack, &mut tell);
        let round =
            (confirmed.newest.is_some() || confirmed.spurious > 0) && self.measure(now, ack, largest_sent, &confirmed);
        let loss = self.sent.detect(now, &self.rtt, &mut tell);
        let lost = loss.map_or(0, |loss| loss.packets);
        self.losses.on_fates(now, confirmed.packets, lost, confirmed.spurious);
        self.loss_gate.on_fates(now, confirmed.packets, lost, confirmed.spurious, round);
        // The peer counts the marks of all paths that have had the slot.
        let ce = ack.ce.saturating_sub(self.ce.unwrap_or(ack.ce));
        self.ce = self.ce.max(Some(ack.ce));
        AckOutcome { ack: self.sample(now, &confirmed, round), loss, spurious: confirmed.spurious, ce }
    }

    /// The sender has nothing more to send on this path: rates measured until what is in flight has arrived are the
    /// application's, not the path's.
    pub fn on_app_limited(&mut self) {
        self.delivery.on_app_limited(self.sent.in_flight());
    }

    /// Does what has fallen due by `now`.
    pub fn on_deadline(&mut self, now: Time, mut tell: impl FnMut(Outcome, Payload)) -> TimeoutOutcome {
        let due = |deadline: Option<Time>| deadline.is_some_and(|at| at <= now);
        let (probe, suspect) = (due(self.probe_deadline()), due(self.silence_deadline()));
        let loss = self.sent.detect(now, &self.rtt, &mut tell);
        let lost = loss.map_or(0, |loss| loss.packets);
        self.losses.on_fates(now, 0, lost, 0);
        self.loss_gate.on_fates(now, 0, lost, 0, false);
        self.suspected |= suspect;
        if probe {
            self.probes += 1;
            self.last_sent = now;
        }
        TimeoutOutcome { loss, probe, suspect }
    }

    /// The next time at which [`Feedback::on_deadline`] has something to do, and what.
    pub fn next_deadline(&self) -> Option<(Time, TimeoutKind)> {
        [
            (self.sent.loss_deadline(&self.rtt), TimeoutKind::Loss),
            (self.probe_deadline(), TimeoutKind::Probe),
            (self.silence_deadline(), TimeoutKind::Silence),
        ]
        .into_iter()
        .filter_map(|(at, what)| Some((at?, what)))
        .min_by_key(|(at, _)| *at)
    }

    /// Declares everything in flight lost, because the path is gone or what it carried was sent elsewhere. A packet that
    /// arrives after all is told as [`Fate::Spurious`].
    pub fn abandon(&mut self, now: Time, mut tell: impl FnMut(Outcome, Payload)) -> Option<LossSample> {
        // That the path fell silent says nothing about what it loses while it speaks.
        self.sent.abandon(now, &mut tell)
    }

    /// So many packets that were lost say nothing of what the path loses.
    pub fn exclude_losses(&mut self, now: Time, lost: u64) {
        self.losses.on_fates(now, 0, 0, lost);
        self.loss_gate.on_fates(now, 0, 0, lost, false);
    }

    /// Gives memory back while little is in flight; what is known of the path stays.
    pub fn shrink(&mut self) {
        self.sent.shrink();
    }

    /// Round-trip time.
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// One-way delay, standing queue and jitter.
    pub fn delay(&self) -> &OneWayDelay {
        &self.delay
    }

    /// When nearly all packets that are sent now will have arrived: what the path takes, and the allowance.
    pub fn expected_one_way_delay(&self) -> Option<OneWayTime> {
        Some(self.delay.current()?.later(self.delay_margin()))
    }

    /// By how much nearly all packets are at most later than the fastest: for jitter, or because others overtake them.
    pub fn delay_margin(&self) -> Duration {
        (self.delay.jitter() * 2).max(self.sent.max_reordering())
    }

    /// How long a round trip takes with nearly all packets: what a flow that is put in order sees of the path.
    pub fn in_order_rtt(&self) -> Duration {
        self.rtt.smoothed() + self.delay_margin()
    }

    /// For how long a packet is in flight on average while the path is empty: the least mean of the last ten seconds. By
    /// Little's law this times the rate is what must be in flight, whatever jitter and delayed ACKs add to a round trip.
    pub fn base_rtt(&self) -> Duration {
        self.sojourn.least.get().unwrap_or(self.sojourn.recent.max(self.rtt.smoothed()))
    }

    /// The rate of a slow line, seen before anything had filled it.
    pub fn link_rate(&self) -> Option<Rate> {
        self.link_rate.rate()
    }

    /// Fraction of the packets of the last seconds that were lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        self.losses.fraction()
    }

    /// Whether so much is lost that the path is better left alone.
    pub fn is_too_lossy(&self) -> bool {
        self.loss_gate.is_too_lossy()
    }

    /// For how long nothing has been sent.
    pub fn idle_for(&self, now: Time) -> Duration {
        now.since(self.last_sent)
    }

    /// Bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.sent.in_flight()
    }

    /// The payloads of the packets in flight, the last one first.
    pub fn tail(&self) -> impl Iterator<Item = Payload> {
        self.sent.tail()
    }

    /// When the oldest packet in flight was sent, and its payload.
    pub fn oldest(&self) -> Option<(Time, Payload)> {
        self.sent.oldest()
    }

    /// Whether the path has been silent for three round trips; any ACK of something new clears it.
    pub fn is_suspected(&self) -> bool {
        self.suspected
    }

    /// Updates every estimate from an ACK with news; true when a round trip has passed since it last was.
    fn measure(&mut self, now: Time, ack: &Ack, largest_sent: Option<(Time, u32)>, confirmed: &Confirmed) -> bool {
        (self.last_ack_at, self.probes, self.suspected) = (now, 0, false);
        self.delivery.on_spurious(confirmed.spurious_bytes);
        self.delivery.on_delivered(now, ack.written_at(), confirmed.bytes);
        let prior = confirmed.newest.map_or(0, |(_, _, snapshot)| snapshot.delivered());
        if let Some((sent_at, bytes)) = largest_sent {
            let (one_way, round) = (OneWayTime::between(sent_at, ack.received_at), self.delivery.delivered() - prior);
            self.rtt.on_sample(now, now.since(sent_at).max(self.mean_sojourn(confirmed)), ack.delay);
            let without_own_time = one_way.earlier(self.link_rate.serialization_delay(bytes.into()));
            self.delay.verify(without_own_time, now.since(sent_at));
            self.delay.on_sample(now, without_own_time, self.sent.reordering() / 2, round);
            if self.delay.never_busy() {
                self.link_rate.on_sample(sent_at, one_way, bytes.into(), self.delay.jitter());
            }
        }
        if let Some(floor) = self.delay.floor() {
            self.train.on_arrival(ack.largest, ack.received_at, floor, self.delay.jitter());
        }
        let burst = self.delivery.mark(ack.written_at(), self.recent_window() / 8);
        self.peak_rates[0] = self.peak_rates[0].max(burst.unwrap_or_default());
        let spread = self.delay.jitter().as_secs_f64() / self.rtt.smoothed().as_secs_f64();
        self.sojourn.on_ack(now, confirmed, spread);
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
            line: self.link_rate.rate().filter(|_| self.delay.never_busy()),
        })
    }

    /// For how long the packets of an ACK were in flight on average, on a path that reorders: the highest number among them is that of a
    /// fast one.
    fn mean_sojourn(&self, confirmed: &Confirmed) -> Duration {
        let arrived = u32::try_from(confirmed.packets + confirmed.spurious).unwrap_or(u32::MAX).max(1);
        if self.sent.max_reordering().is_zero() { Duration::ZERO } else { confirmed.sojourn / arrived }
    }

    /// Standing queue. Where packets come at odd times the fastest of a few are late by chance; a queue makes the mean late, too.
    fn queue(&self) -> Duration {
        let base = self.base_rtt();
        let mean = self.sojourn.recent.saturating_sub(base);
        let queue = self.delay.queue();
        if self.delay.jitter() < base / JITTERY { queue } else { queue.min(mean) }
    }

    /// The shortest time over which arrivals can be counted: half a round trip, more where jitter blurs the edges.
    fn recent_window(&self) -> Duration {
        let base = self.base_rtt();
        (base / 2).max((self.delay.jitter() * 4).min(base)).max(MIN_RECENT)
    }

    /// Tail-loss probe (RFC 9002 section 6.2), doubling with every probe that stays unanswered.
    fn probe_deadline(&self) -> Option<Time> {
        let backoff = 1 << self.probes.min(MAX_BACKOFF);
        (self.sent.in_flight() > 0).then(|| self.last_sent + self.rtt.probe_timeout(MAX_HOLD) * backoff)
    }

    /// Three round trips, and on a short path as long as a probe and its answer may take: one lost packet is no silence.
    fn silence_deadline(&self) -> Option<Time> {
        let waiting = self.sent.in_flight() > 0 && !self.suspected;
        let (rtt, probe) = (self.rtt.smoothed(), self.rtt.probe_timeout(MAX_HOLD));
        waiting.then(|| self.last_ack_at + (rtt * SILENT_ROUNDS).max(probe + rtt) + MAX_HOLD)
    }
}

/// Rounds: a round ends when something that was sent after its beginning is acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct RoundCounter {
    ends_at: u64,
}

/// A path whose jitter is more than this part of its round trip comes at odd times.
const JITTERY: u32 = 8;

impl RoundCounter {
    fn on_ack(&mut self, prior_delivered: u64, delivered: u64) -> bool {
        let ended = prior_delivered >= self.ends_at;
        if ended {
            self.ends_at = delivered;
        }
        ended
    }
}

/// How long a packet is in flight on average: path, jitter, and the receiver's wait before it acknowledges.
#[derive(Clone, Debug, Default)]
struct Sojourn {
    total: Duration,
    packets: u64,
    since: Time,
    recent: Duration,
    least: WindowedMin<Duration>,
}

impl Sojourn {
    /// `spread` is the jitter as a fraction of the round trip. A mean of n packets is off by `spread / sqrt(n)`, and the
    /// least of many means by about three times that: so many packets make a mean that this stays below a tenth.
    fn on_ack(&mut self, now: Time, confirmed: &Confirmed, spread: f64) {
        let arrived = confirmed.packets + confirmed.spurious;
        if arrived > 0 {
            let mean = confirmed.sojourn / u32::try_from(arrived).unwrap_or(u32::MAX);
            self.recent = if self.recent.is_zero() { mean } else { (self.recent * 7 + mean) / 8 };
        }
        self.total += confirmed.sojourn;
        self.packets += arrived;
        let least = if self.least.get().is_some() { 16.0 } else { FIRST_PACKETS };
        let enough = (spread * 30.0).powi(2).clamp(least, 512.0) as u64;
        let Some(mean) = self.mean().filter(|_| self.packets >= enough) else { return };
        if now.since(self.since) >= mean / 2 {
            self.least.insert(now, MIN_WINDOW, mean);
            (self.total, self.packets, self.since) = (Duration::ZERO, 0, now);
        }
    }

    fn mean(&self) -> Option<Duration> {
        (self.packets > 0).then(|| self.total / u32::try_from(self.packets).unwrap_or(u32::MAX))
    }
}

/// Fraction of packets lost over the last [`LOSS_SPAN`] to twice that.
#[derive(Clone, Copy, Debug, Default)]
struct LossRate {
    started: Time,
    current: (u64, u64),
    last: (u64, u64),
}

impl LossRate {
    fn on_fates(&mut self, now: Time, acked: u64, lost: u64, spurious: u64) {
        if now.since(self.started) >= LOSS_SPAN {
            (self.last, self.current, self.started) = (self.current, (0, 0), now);
        }
        self.current.0 += acked + spurious;
        self.current.1 = (self.current.1 + lost).saturating_sub(spurious);
    }

    fn fraction(&self) -> f64 {
        let lost = self.current.1 + self.last.1;
        lost as f64 / (lost + self.current.0 + self.last.0).max(1) as f64
    }
}

/// How many round trips without a word make a path suspect.
const SILENT_ROUNDS: u32 = 3;
/// Probes back off to 64 timeouts; beyond that whoever manages the path decides.
const MAX_BACKOFF: u32 = 6;
/// Fewer than five ACKs, which are a millisecond apart at best, do not make a rate.
const MIN_RECENT: Duration = Duration::from_millis(5);
/// The first to arrive of a flight are its fast ones: a first mean needs two flights.
const FIRST_PACKETS: f64 = 96.0;
const LOSS_SPAN: Duration = Duration::from_secs(1);

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

    /// Sends a packet every millisecond and acknowledges each 40 ms later, until `until`.
    fn steady(until: u64) -> PathEstimator {
        let mut feedback = PathEstimator::default();
        for n in 0..until {
            feedback.on_sent(at(n), PathSeq(n), 1_000, Payload::Control);
            if let Some(done) = n.checked_sub(40) {
                feedback.on_ack(at(n), &ack(done, done, 5_000 + done + 20), |_, _| {});
            }
        }
        feedback
    }

    #[test]
    fn a_steady_path_is_known_after_a_few_round_trips() {
        let feedback = steady(400);
        assert_eq!(feedback.rtt().smoothed(), Duration::from_millis(40));
        assert_eq!(feedback.base_rtt(), Duration::from_millis(40));
        assert_eq!(feedback.rate, Rate::from_bytes(1_000_000));
        assert_eq!(feedback.delay().queue(), Duration::ZERO);
        assert_eq!((feedback.loss(), feedback.in_flight()), (0.0, 40_000));
    }

    #[test]
    fn a_silent_path_is_suspected_within_three_round_trips_and_the_hold() {
        let mut feedback = steady(400);
        let (due, _) = feedback.next_deadline().unwrap();
        // The last ACK came at 399 ms. The probe is due first: 40 + 4 x 0.1 + 25 ms after the last packet.
        assert!(due > at(460) && due < at(470), "{due:?}");
        let wake = feedback.on_deadline(due, |_, _| {});
        assert!(wake.probe && !wake.suspect);
        let silence = at(399 + 3 * 40 + 25);
        assert_eq!(feedback.silence_deadline(), Some(silence));
        assert!(feedback.on_deadline(silence, |_, _| {}).suspect);
        assert!(!feedback.on_deadline(silence, |_, _| {}).suspect, "said once");
        let mut lost = 0;
        feedback.abandon(silence, |fate, _| lost += u32::from(fate == Outcome::Lost));
        assert_eq!(lost, 40);
    }

    /// A packet every millisecond; the even ones take 20 ms and the odd ones 101, in one ACK with each other.
    #[test]
    fn a_path_that_reorders_takes_as_long_as_all_its_packets() {
        let mut feedback = PathEstimator::default();
        for n in 0..600 {
            feedback.on_sent(at(n), PathSeq(n), 1_000, Payload::Control);
            if let Some(fast) = n.checked_sub(20).filter(|fast| fast % 2 == 0) {
                let numbers = [Some(fast), fast.checked_sub(81)];
                let ranges = numbers.into_iter().flatten().map(|n| Range { first: n, last: n }).collect();
                let ack = Ack {
                    largest: PathSeq(fast),
                    received_at: PeerTime((5_000 + n) * 1_000),
                    ranges,
                    ..Ack::default()
                };
                feedback.on_ack(at(n), &ack, |_, _| {});
            }
        }
        let srtt = feedback.rtt().smoothed();
        assert!(srtt > Duration::from_millis(55) && srtt < Duration::from_millis(61), "{srtt:?}");
        let allowance = feedback.delay_margin();
        assert!(allowance > Duration::from_millis(77) && allowance <= Duration::from_millis(81), "{allowance:?}");
    }

    #[test]
    fn an_ack_clears_suspicion() {
        let mut feedback = steady(400);
        feedback.on_deadline(at(1_000), |_, _| {});
        assert!(feedback.is_suspected());
        feedback.on_ack(at(1_001), &ack(380, 380, 5_400), |_, _| {});
        assert!(!feedback.is_suspected());
    }

    #[test]
    fn a_path_with_nothing_in_flight_has_no_deadline() {
        let mut feedback = steady(400);
        feedback.on_ack(at(450), &ack(0, 399, 5_420), |_, _| {});
        assert_eq!(feedback.next_deadline(), None);
    }

    #[test]
    fn every_other_packet_lost_is_half() {
        let mut feedback = PathEstimator::default();
        for n in 0..400 {
            feedback.on_sent(at(n), PathSeq(n), 1_000, Payload::Control);
            if let Some(done) = n.checked_sub(40).filter(|done| done % 2 == 0) {
                feedback.on_ack(at(n), &ack(done, done, 5_000 + done + 20), |_, _| {});
            }
        }
        assert!((feedback.loss() - 0.5).abs() < 0.02, "{}", feedback.loss());
    }

    #[test]
    fn marks_of_the_paths_that_had_the_slot_before_are_not_this_one_s() {
        let mut feedback = PathEstimator::default();
        for (n, ce, new) in [(0, 7, 0), (1, 9, 2)] {
            feedback.on_sent(at(n), PathSeq(n), 1_400, Payload::Control);
            let marked = Ack { ce, ..ack(n, n, 5_020 + n) };
            assert_eq!(feedback.on_ack(at(n + 40), &marked, |_, _| {}).ce, new);
        }
    }

    #[test]
    fn marks_are_counted_once() {
        let mut feedback = steady(100);
        let marked = Ack { ce: 3, ..ack(60, 60, 5_080) };
        assert_eq!(feedback.on_ack(at(100), &marked, |_, _| {}).ce, 3);
        assert_eq!(feedback.on_ack(at(101), &marked, |_, _| {}).ce, 0);
    }
}
