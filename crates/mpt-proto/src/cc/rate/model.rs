//! The model of one path: updates the estimates and changes the phase.

use std::time::Duration;

use super::bandwidth::Bandwidth;
use super::loss::LossModel;
use super::phase::{Phase, PhaseKind};
use super::queue_estimate::QueueEstimate;
use crate::id::PathSet;
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};
use crate::tuning::cc::queue_estimate::MAX_QUEUE;
use crate::tuning::cc::rate::{
    BURST_PEAK_RATIO, FULL_PIPE_ROUNDS, INITIAL_WINDOW, LOSS_THRESHOLD, MAX_BURST_JITTERS, MAX_FIRST_FLIGHT_TIME,
    MAX_PROBE_INTERVAL, MIN_DRAIN_TIME, MIN_PROBE_INTERVAL, MIN_PROBE_RISE, MIN_QUEUE_ACKS, MIN_STARTUP_ACKS,
    MIN_WINDOW, PROBE_RTT_PACKETS, PROBE_SUCCESS_RATIO, STARTUP_LOSS_THRESHOLD, WINDOW_SLACK,
};
use crate::tuning::{Heuristic, Tuning};

/// The rate model of one path.
#[derive(Clone, Debug)]
pub struct PathModel {
    phase: Phase,
    bandwidth: Bandwidth,
    delay: QueueEstimate,
    loss: LossModel,
    datagram: u64,
    tuning: Tuning,
    /// Paths through the same bottleneck.
    partners: PathSet,
    acks: u32,
    /// ACKs in a row that show a long queue.
    queue_acks: u32,
    /// Rounds of cruising before the next probe.
    probe_interval: u32,
    /// Rounds that the cruise had left when a partner's drain ended it.
    rounds_left: Option<u32>,
    /// True if the queue being drained was caused by a probe.
    probed: bool,
    /// Length of the last probe.
    probe_length: Duration,
    /// Minimum length of the next probe: zero unless the last one was too short.
    next_probe: Duration,
    /// True until the first Startup has ended.
    never_filled: bool,
    /// True if the last probe found the path faster.
    probe_succeeded: bool,
    /// Start and end of the last cruise; only loss of packets sent in it counts for the baseline.
    cruised: (Time, Time),
    /// CE marks on packets sent before this time belong to a reduction already made.
    recovery_start: Time,
}

impl PathModel {
    pub fn new(datagram: u64, tuning: Tuning) -> Self {
        Self {
            phase: Phase::Startup { best: 0.0, flat: 0 },
            bandwidth: Bandwidth::new(),
            delay: QueueEstimate::new(),
            loss: LossModel::default(),
            datagram,
            tuning,
            partners: PathSet::NONE,
            acks: 0,
            queue_acks: 0,
            probe_interval: MIN_PROBE_INTERVAL,
            rounds_left: None,
            probed: false,
            probe_length: Duration::ZERO,
            next_probe: Duration::ZERO,
            never_filled: true,
            probe_succeeded: false,
            cruised: (Time::START, Time::START),
            recovery_start: Time::START,
        }
    }

    pub fn on_ack(&mut self, ack: &AckSample) {
        self.delay.on_ack(ack, self.time_for(2));
        self.loss.on_acked(ack.packets, self.was_cruising(ack.newest_sent));
        self.acks = self.acks.saturating_add(1);
        if let (Phase::Startup { .. }, Some(rate)) = (self.phase, ack.link_rate) {
            self.bandwidth.set_initial(rate);
            self.enter_cruise(ack.now);
        }
        let stretched = ack.rate.is_some_and(|rate| rate.is_stretched(ack.jitter));
        self.update_model(ack, stretched);
        self.update_phase(ack, stretched);
        if ack.round {
            self.end_round(ack);
        }
    }

    pub fn on_loss(&mut self, loss: &LossSample) {
        self.loss.on_lost(loss.packets, self.was_cruising(loss.newest_sent));
    }

    pub fn on_spurious_loss(&mut self, packets: u64) {
        self.loss.on_spurious(packets);
    }

    /// Reacts to a CE mark, at most once per round trip: it reports a queue measured by a router.
    pub fn on_ecn(&mut self, now: Time, newest_sent: Time) {
        if newest_sent > self.recovery_start {
            self.recovery_start = now;
            self.bandwidth.on_congestion();
            self.next_probe = Duration::ZERO;
            self.enter_drain();
        }
    }

    /// Returns true if the queue that ACKs show is that of Startup.
    pub fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Startup { .. })
    }

    pub fn partners(&self) -> PathSet {
        self.partners
    }

    pub fn set_partners(&mut self, partners: PathSet) {
        self.partners = partners;
    }

    /// Returns the kind of the phase.
    pub fn phase(&self) -> PhaseKind {
        self.phase.kind()
    }

    /// Drains together with a partner, which has begun to do so. A queue that only one of them leaves looks like that
    /// of other traffic to it, because the other one keeps it up.
    pub fn join(&mut self, began: PhaseKind) {
        match (began, self.phase) {
            (_, Phase::Startup { .. } | Phase::ProbeRtt { half: true, .. }) => {}
            (PhaseKind::HalfWindow, _) => self.enter_probe_rtt(true),
            (PhaseKind::Drain, Phase::Cruise { rounds }) => {
                self.enter_drain();
                self.rounds_left = Some(rounds);
            }
            _ => {}
        }
    }

    pub fn window(&self) -> u64 {
        let datagram = self.datagram as f64;
        let bytes = self.sending_rate() * self.phase.window_time(&self.delay) + WINDOW_SLACK * datagram;
        bytes.max(self.min_window() * datagram) as u64
    }

    pub fn pacing(&self) -> Rate {
        let first = INITIAL_WINDOW * self.datagram as f64 / self.delay.srtt().min(MAX_FIRST_FLIGHT_TIME).as_secs_f64();
        let rate = match self.phase {
            Phase::Startup { .. } => self.sending_rate().max(first),
            // Losses without any ACK ended Startup, so there is no rate yet.
            _ if self.bottleneck().is_none() => first,
            _ => self.sending_rate(),
        };
        Rate::from_bytes((rate * self.phase.gain()) as u64)
    }

    /// Returns the minimum window in datagrams. Before the path has been filled, the estimate may rest on a few probes,
    /// so the minimum is the initial window.
    fn min_window(&self) -> f64 {
        match self.phase {
            Phase::Startup { .. } => INITIAL_WINDOW,
            _ => MIN_WINDOW,
        }
    }

    pub fn max_burst_time(&self) -> Duration {
        self.delay.max_burst_time()
    }

    pub fn bottleneck(&self) -> Option<Rate> {
        let rate = self.bandwidth.rate();
        (rate > 0.0).then(|| Rate::from_bytes(rate as u64))
    }

    pub fn baseline_loss(&self) -> Option<f64> {
        self.loss.baseline()
    }

    pub fn in_startup(&self) -> bool {
        matches!(self.phase, Phase::Startup { flat: 0, .. })
    }

    pub fn never_filled(&self) -> bool {
        self.never_filled
    }

    /// Returns the estimate plus half of the baseline loss. With all of it, the overflow of a short buffer became
    /// baseline and grew: from 15 % to 31 % in 45 s with 2 ms of buffer at 20 Mbit/s.
    fn sending_rate(&self) -> f64 {
        self.bandwidth.rate() / (1.0 - self.loss.baseline_or_zero() / 2.0)
    }

    fn update_model(&mut self, ack: &AckSample, stretched: bool) {
        let (queue, target) = (self.delay.queue(), self.delay.target());
        // An app-limited flow's samples cover few packets: they need a clear queue as evidence.
        let threshold = if ack.app_limited { target * 2 } else { target / 4 };
        self.bandwidth.on_ack(ack, stretched && queue > threshold, self.delay.is_low_jitter());
        // With high jitter, late packets of an app-limited burst are no evidence of a queue.
        let is_evidence = self.delay.is_low_jitter() || !ack.app_limited;
        if queue > target * 2 && is_evidence {
            self.bandwidth.track_down(ack, self.delay.base() / 4);
        } else if queue < target {
            self.bandwidth.stop_tracking(ack.now);
        }
        if matches!(self.phase, Phase::Cruise { .. }) {
            self.cruised.1 = ack.now;
        }
    }

    /// Applies the phase changes that do not wait for the end of a round.
    fn update_phase(&mut self, ack: &AckSample, stretched: bool) {
        let (queue, target) = (self.delay.queue(), self.delay.target());
        self.queue_acks = if queue > target * 2 && stretched { self.queue_acks.saturating_add(1) } else { 0 };
        match self.phase {
            Phase::Drain { low_since } => self.check_drain(ack, low_since),
            Phase::ProbeRtt { half, low_since } => self.check_probe_rtt(ack, half, low_since),
            Phase::Startup { .. } if self.acks < MIN_STARTUP_ACKS && self.queue_acks < MIN_QUEUE_ACKS => {}
            Phase::Startup { .. } if ack.app_limited && queue <= target * 2 => {}
            Phase::Startup { .. } if self.is_bursty(ack) => {}
            _ if queue > target && stretched => self.enter_drain(),
            Phase::Startup { .. } => {}
            Phase::Cruise { .. } if self.delay.is_half_window_due(ack.now) && !ack.app_limited => {
                self.enter_probe_rtt(true)
            }
            Phase::Cruise { .. } if self.delay.is_probe_rtt_due(ack.now) && !ack.app_limited => {
                self.enter_probe_rtt(!self.delay.is_empty())
            }
            _ if queue > target * 2 => self.enter_drain(),
            Phase::Cruise { .. } => {}
            Phase::Probe { from, .. } | Phase::Await { from, .. } if self.is_faster(from) => self.restart_startup(ack),
            Phase::Probe { until, from } if ack.now >= until => self.phase = Phase::Await { since: ack.now, from },
            Phase::Probe { .. } => {}
            Phase::Await { since, from } if ack.newest_sent >= since => self.end_probe(from),
            Phase::Await { .. } => {}
        }
    }

    /// Leaves Drain once the queue is empty. If the queue remains although no more is in flight than the empty path
    /// holds, it may be the window's slack. Otherwise the rate or the delay is wrong, or the queue is not ours: enters
    /// ProbeRTT. At 20 Mbit/s, the slack is a queue of 1.2 ms, and a ProbeRTT after every probe cost 16 % of the rate.
    fn check_drain(&mut self, ack: &AckSample, low_since: Option<(Time, Duration)>) {
        if self.delay.is_drained() {
            return self.enter_cruise(ack.now);
        }
        let (queue, is_low) = (self.delay.queue(), ack.in_flight <= self.window());
        let low_since = match low_since {
            Some((since, then)) if is_low && queue > then * 3 / 4 => Some((since, then)),
            _ => is_low.then_some((ack.now, queue)),
        };
        self.phase = Phase::Drain { low_since };
        if low_since.is_some_and(|(since, _)| ack.now.since(since) > self.delay.srtt() * 2 + MIN_DRAIN_TIME) {
            if self.delay.is_drained_but_for_slack() {
                return self.enter_cruise(ack.now);
            }
            self.enter_probe_rtt(true);
        }
    }

    /// Leaves ProbeRTT after a round trip and [`PROBE_RTT_PACKETS`] with a reduced window.
    fn check_probe_rtt(&mut self, ack: &AckSample, half: bool, low_since: Option<Time>) {
        let low_since = low_since.or((ack.in_flight <= self.window()).then_some(ack.now));
        self.phase = Phase::ProbeRtt { half, low_since };
        let duration = self.delay.srtt() + self.time_for(PROBE_RTT_PACKETS);
        if low_since.is_some_and(|since| ack.now.since(since) > duration) {
            if half {
                self.delay.on_half_window_done(ack.now, self.tuning.has(Heuristic::StandingQueue));
            } else {
                self.delay.on_probe_rtt_done(ack.now);
            }
            self.enter_cruise(ack.now);
        }
    }

    fn end_round(&mut self, ack: &AckSample) {
        let starting = matches!(self.phase, Phase::Startup { .. });
        if self.loss.is_excessive(if starting { STARTUP_LOSS_THRESHOLD } else { LOSS_THRESHOLD }) {
            self.on_congestion();
        } else if !ack.app_limited {
            self.advance_round(ack);
        }
        self.loss.end_round();
        self.bandwidth.end_round(ack.now);
        self.delay.end_round();
    }

    fn advance_round(&mut self, ack: &AckSample) {
        match self.phase {
            Phase::Startup { best, flat } => self.check_full_pipe(best, flat),
            Phase::Cruise { rounds: 0 } => self.enter_probe(ack.now),
            Phase::Cruise { rounds } => self.phase = Phase::Cruise { rounds: rounds - 1 },
            Phase::Drain { .. } | Phase::ProbeRtt { .. } | Phase::Probe { .. } | Phase::Await { .. } => {}
        }
    }

    /// Applies BBR's full-pipe test: three rounds without 25 % growth.
    fn check_full_pipe(&mut self, best: f64, flat: u32) {
        let rate = self.bandwidth.rate();
        let (best, flat) = if rate >= best * 1.25 { (rate, 0) } else { (best, flat + 1) };
        self.phase = Phase::Startup { best, flat };
        if flat >= FULL_PIPE_ROUNDS {
            self.enter_drain();
        }
    }

    /// Reacts to excess loss: the path's rate is the arrival rate. If a probe caused it, doubles the probe interval.
    fn on_congestion(&mut self) {
        if !matches!(self.phase, Phase::Drain { .. } | Phase::ProbeRtt { .. }) {
            self.bandwidth.on_congestion();
        }
        self.delay.on_overflow();
        self.next_probe = Duration::ZERO;
        if self.probed {
            self.probe_interval = (self.probe_interval * 2).min(MAX_PROBE_INTERVAL);
        }
        if !matches!(self.phase, Phase::Drain { .. }) {
            self.enter_drain();
        }
    }

    /// Returns true if jitter, not a queue, explains the delay. A full bottleneck passes packets evenly; on a link that
    /// keeps order, a late packet delays those behind it, and they arrive at once. Delay beyond the jitter bound is a
    /// queue in any case.
    fn is_bursty(&self, ack: &AckSample) -> bool {
        let within_jitter = self.delay.queue() < self.delay.target() + self.delay.jitter() * MAX_BURST_JITTERS;
        self.tuning.has(Heuristic::BurstyStartup)
            && within_jitter
            && !self.delay.is_low_jitter()
            && ack.peak.bytes() as f64 > self.bandwidth.rate() * BURST_PEAK_RATIO
    }

    fn is_faster(&self, from: f64) -> bool {
        self.bandwidth.rate() > from * PROBE_SUCCESS_RATIO && self.delay.queue() < self.delay.target() / 2
    }

    /// Enters Startup again because the path is faster. With high jitter, two probes in a row must find it faster. A
    /// probe that was made longer may have found what others left in a short buffer for a moment: if Startup
    /// overflows it, the next probes come later.
    fn restart_startup(&mut self, ack: &AckSample) {
        if !self.delay.is_low_jitter() && !std::mem::replace(&mut self.probe_succeeded, true) {
            self.next_probe = self.probe_length;
            return self.enter_probe(ack.now);
        }
        if self.probe_length <= Phase::probe_duration(self.delay.target(), self.delay.base()) {
            (self.probe_interval, self.probed) = (MIN_PROBE_INTERVAL, false);
        }
        self.phase = Phase::Startup { best: self.bandwidth.rate(), flat: 0 };
    }

    /// Ends a probe that neither caused a queue nor found the path clearly faster. If the path is faster, a probe that
    /// lasts for a part of a round trip raises the estimate by that part only. Each such probe makes the next one twice
    /// as long, until one raises nothing, causes a queue, or overflows the buffer.
    fn end_probe(&mut self, from: f64) {
        self.enter_drain();
        let part = self.probe_length.as_secs_f64() / self.delay.base().as_secs_f64();
        if self.bandwidth.rate() > from * (1.0 + MIN_PROBE_RISE * part) && self.tuning.has(Heuristic::LongerProbes) {
            self.next_probe = self.probe_length * 2;
        }
    }

    fn enter_drain(&mut self) {
        self.never_filled = false;
        self.phase = Phase::Drain { low_since: None };
    }

    fn enter_probe_rtt(&mut self, half: bool) {
        self.phase = Phase::ProbeRtt { half, low_since: None };
    }

    fn enter_cruise(&mut self, now: Time) {
        self.never_filled = false;
        // Partners probe one after the other, so that together they probe as often as one path.
        let turns = if self.probed { self.partners.len() } else { 0 };
        let rounds = self.rounds_left.take().unwrap_or(self.probe_interval - 1 + turns);
        (self.probed, self.probe_succeeded, self.cruised) = (false, false, (now, now));
        self.phase = Phase::Cruise { rounds };
    }

    fn enter_probe(&mut self, now: Time) {
        self.probed = true;
        let base = self.delay.base();
        let least = std::mem::take(&mut self.next_probe).min(Phase::probe_duration(MAX_QUEUE, base));
        self.probe_length = Phase::probe_duration(self.delay.target(), base).max(least);
        self.phase = Phase::Probe { until: now + self.probe_length, from: self.bandwidth.rate() };
    }

    /// Returns true if a packet sent at `sent` was sent while cruising without a queue.
    fn was_cruising(&self, sent: Time) -> bool {
        let (from, until) = self.cruised;
        from <= sent && sent <= until && self.delay.is_empty()
    }

    /// Returns the serialization delay of `packets` full packets at the bottleneck.
    fn time_for(&self, packets: u64) -> Duration {
        Rate::from_bytes(self.bandwidth.rate() as u64).time_for(packets * self.datagram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::delivery_rate::RateSample;

    const RTT: Duration = Duration::from_millis(40);
    const PACKET: u64 = 1_400;

    /// Drives one path with ACKs, with a virtual clock.
    struct Bench {
        path: PathModel,
        now: Time,
        jitter: Duration,
        peak: Rate,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                path: PathModel::new(PACKET, Tuning::default()),
                now: Time::START,
                jitter: Duration::ZERO,
                peak: Rate::ZERO,
            }
        }

        /// Delivers one round trip of ACKs, 1 ms apart, with a rate of `mbit` Mbit/s and a queueing delay `queue`.
        fn round(&mut self, mbit: u64, queue: Duration, app_limited: bool) {
            (1..=40).for_each(|n| self.ack(mbit, queue, app_limited, n == 40));
        }

        fn ack(&mut self, mbit: u64, queue: Duration, app_limited: bool, round: bool) {
            let rate = Rate::from_bits(mbit * 1_000_000);
            self.now += Duration::from_millis(1);
            let arriving = RTT + if queue.is_zero() { Duration::ZERO } else { RTT / 4 };
            let bytes = rate.bytes_in(arriving);
            let sample = RateSample { rate, bytes, sending: RTT, arriving };
            self.path.on_ack(&AckSample {
                now: self.now,
                newest_sent: self.now - RTT,
                packets: rate.bytes_in(Duration::from_millis(1)) / PACKET,
                in_flight: rate.bytes_in(RTT / 2),
                round,
                app_limited,
                srtt: RTT,
                min_rtt: RTT,
                base_rtt: RTT,
                sojourn: RTT,
                queue,
                rate: Some(sample),
                recent: Some(rate),
                jitter: self.jitter,
                peak: self.peak,
                ..AckSample::default()
            });
        }

        fn mbit(&self) -> u64 {
            self.path.bottleneck().map_or(0, Rate::bits) / 1_000_000
        }
    }

    #[test]
    fn before_the_first_ack_the_initial_window_is_paced_over_part_of_a_round_trip() {
        let path = PathModel::new(PACKET, Tuning::default());
        assert_eq!(path.window(), 32 * PACKET);
        assert_eq!(path.pacing().bytes(), (32.0 * 1_400.0 / 0.1 * 2.77) as u64);
    }

    #[test]
    fn a_known_slow_link_is_not_filled_to_measure_it() {
        let mut path = PathModel::new(PACKET, Tuning::default());
        let line = Some(Rate::from_bits(2_000_000));
        path.on_ack(&AckSample { srtt: RTT, base_rtt: RTT, link_rate: line, ..AckSample::default() });
        assert_eq!(path.pacing().bits(), 2_000_000);
        assert!(path.window() < 20 * PACKET, "a round trip holds seven: {} packets", path.window() / PACKET);
    }

    #[test]
    fn startup_ends_with_a_queue_and_the_queue_is_drained() {
        let mut bench = Bench::new();
        bench.round(10, Duration::ZERO, false);
        bench.round(20, Duration::ZERO, false);
        assert!(bench.path.pacing() > Rate::from_bits(50_000_000));
        bench.round(40, Duration::from_millis(15), false);
        assert!(matches!(bench.path.phase, Phase::Drain { .. } | Phase::ProbeRtt { .. }), "{:?}", bench.path.phase);
        bench.round(40, Duration::ZERO, false);
        assert_eq!(bench.mbit(), 40);
        assert!(bench.path.pacing() <= Rate::from_bits(50_000_000));
    }

    #[test]
    fn four_acks_in_a_row_show_the_queue_of_a_slow_line() {
        let mut bench = Bench::new();
        let mut starts_after = |queue_ms| {
            bench.ack(10, Duration::from_millis(queue_ms), true, false);
            matches!(bench.path.phase, Phase::Startup { .. })
        };
        assert!([100, 110, 120, 0, 100, 110, 120].into_iter().all(&mut starts_after));
        assert!(!starts_after(130));
    }

    #[test]
    fn late_bursts_are_no_queue() {
        let jitter = RTT / 16;
        for (peak, late, goes_on) in [(50, RTT / 2, false), (100, RTT / 2, true), (100, RTT * 2, false)] {
            let mut bench = Bench { jitter, peak: Rate::from_bits(peak * 1_000_000), ..Bench::new() };
            bench.round(10, Duration::ZERO, false);
            bench.round(20, Duration::ZERO, false);
            bench.round(40, late, false);
            let starts = matches!(bench.path.phase, Phase::Startup { .. });
            assert_eq!(starts, goes_on, "{peak} Mbit/s, {late:?}: {:?}", bench.path.phase);
        }
    }

    #[test]
    fn startup_ends_after_three_rounds_without_growth() {
        let mut bench = Bench::new();
        (0..4).for_each(|_| bench.round(20, Duration::ZERO, false));
        assert!(!matches!(bench.path.phase, Phase::Startup { .. }), "{:?}", bench.path.phase);
    }

    #[test]
    fn an_idle_application_changes_nothing() {
        let mut bench = Bench::new();
        (0..8).for_each(|_| bench.round(50, Duration::ZERO, false));
        (0..200).for_each(|_| bench.round(2, Duration::ZERO, true));
        assert_eq!(bench.mbit(), 50);
    }

    #[test]
    fn a_short_probe_that_raises_the_rate_is_followed_by_one_twice_as_long() {
        let longest_probe = |mbit: u64, tuning: Tuning| {
            let mut bench = Bench::new();
            bench.path.tuning = tuning;
            (0..8).for_each(|_| bench.round(100, Duration::ZERO, false));
            bench.path.delay.on_overflow();
            bench.path.enter_probe(bench.now);
            let first = bench.path.probe_length;
            assert!(first < RTT / 32, "{first:?}");
            let lengths = (0..6).map(|_| {
                bench.round(mbit, Duration::ZERO, false);
                bench.path.probe_length
            });
            lengths.max().unwrap().as_secs_f64() / first.as_secs_f64()
        };
        let all = Tuning::default();
        assert!(longest_probe(102, all) >= 2.0, "{}", longest_probe(102, all));
        assert!(longest_probe(100, all) < 1.5, "a full path: {}", longest_probe(100, all));
        assert!(longest_probe(102, all.without(Heuristic::LongerProbes)) < 1.5);
    }

    #[test]
    fn a_queue_that_remains_with_half_a_window_is_a_standing_queue() {
        let mut bench = Bench::new();
        (0..8).for_each(|_| bench.round(50, Duration::ZERO, false));
        (0..20).for_each(|_| bench.round(50, Duration::from_millis(30), false));
        assert_eq!(bench.path.delay.queue(), Duration::ZERO);
        assert_eq!(bench.path.delay.base(), RTT + Duration::from_millis(30));
    }

    #[test]
    fn random_loss_raises_the_sending_rate_but_not_the_estimate() {
        let mut bench = Bench::new();
        for _ in 0..30 {
            bench.round(50, Duration::ZERO, false);
            let newest_sent = bench.now - RTT;
            bench.path.on_loss(&LossSample { now: bench.now, packets: 8, newest_sent, ..LossSample::default() });
        }
        let baseline = bench.path.loss.baseline_or_zero();
        assert!(baseline > 0.02 && baseline < 0.06, "8 of 168 are 4.8 %: {baseline}");
        assert_eq!(bench.mbit(), 50);
    }
}
