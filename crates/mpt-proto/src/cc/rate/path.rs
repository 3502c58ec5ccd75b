//! One path of the rate-based controller: its phases.

use std::time::Duration;

use crate::path::rtt::INITIAL_RTT;
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};

use super::bandwidth::Bandwidth;
use super::loss::Loss;

/// One path.
#[derive(Clone, Debug)]
pub struct Path {
    datagram: f64,
    phase: Phase,
    bandwidth: Bandwidth,
    loss: Loss,
    srtt: Duration,
    base_rtt: Duration,
    sojourn: Duration,
    queue: Duration,
    jitter: Duration,
    /// Queue that stays when ours is gone: a longer route, or somebody else's.
    foreign: Duration,
    round_most_queue: Duration,
    round_least_queue: Duration,
    /// The most the buffer seems to hold before it drops.
    ceiling: Duration,
    patience: u32,
    acks: u32,
    /// Whether the queue being drained is that of a probe.
    probed: bool,
    /// Whether the last probe found the path faster.
    grown: bool,
    /// When it last cruised: what was sent then tells which loss is usual.
    calm: (Time, Time),
    /// When the path was last seen without a queue.
    empty_at: Time,
    /// When the path was last emptied on purpose.
    emptied_at: Time,
    ecn_at: Time,
}

/// What the path is being asked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// How fast it is at all: double every round trip until a queue forms, rates stop rising, or too much is lost.
    Startup { best: f64, flat: u32 },
    /// To empty its queue. `low_since` is when our own share of what is in flight became too small to queue, and the queue
    /// at that time.
    Drain { low_since: Option<(Time, Duration)> },
    /// To empty its queue for certain, so that its delay is known again. `low_since` is when too little was in flight.
    Empty { low_since: Option<Time> },
    /// Nothing.
    Cruise { rounds: u32 },
    /// Whether it has become faster: a quarter more until `until`.
    Probe { until: Time, from: f64 },
    /// The answer to a probe that ended at `since`.
    Await { since: Time, from: f64 },
}

impl Path {
    pub fn new(datagram: u64) -> Self {
        Self {
            datagram: datagram as f64,
            phase: Phase::Startup { best: 0.0, flat: 0 },
            bandwidth: Bandwidth::new(),
            loss: Loss::default(),
            srtt: INITIAL_RTT,
            base_rtt: INITIAL_RTT,
            sojourn: INITIAL_RTT,
            queue: Duration::ZERO,
            jitter: Duration::ZERO,
            foreign: Duration::ZERO,
            round_most_queue: Duration::ZERO,
            round_least_queue: Duration::MAX,
            ceiling: MOST_TARGET,
            patience: CRUISE_ROUNDS,
            acks: 0,
            probed: false,
            grown: false,
            calm: (Time::START, Time::START),
            empty_at: Time::START,
            emptied_at: Time::START,
            ecn_at: Time::START,
        }
    }

    pub fn on_ack(&mut self, ack: &AckSample) {
        self.observe(ack);
        let stretched = ack.rate.is_some_and(|rate| rate.is_stretched(ack.jitter));
        let busy = stretched && self.queue > self.target() / 4;
        self.bandwidth.on_ack(ack, busy, self.is_steady());
        if self.queue > self.target() * 2 {
            self.bandwidth.follow(ack, self.base() / 4);
        } else if self.queue < self.target() {
            self.bandwidth.rest(ack.now);
        }
        self.step(ack, stretched);
        if ack.round {
            self.end_round(ack);
        }
    }

    pub fn on_loss(&mut self, loss: &LossSample) {
        self.loss.on_lost(loss.packets, self.is_calm(loss.newest_sent));
    }

    pub fn on_spurious_loss(&mut self, packets: u64) {
        self.loss.on_spurious(packets);
    }

    /// A mark is a queue that the router measured for us: what a probe was looking for.
    pub fn on_ecn(&mut self, now: Time, newest_sent: Time) {
        if newest_sent > self.ecn_at {
            self.ecn_at = now;
            self.bandwidth.cut();
            self.drain();
        }
    }

    pub fn window(&self) -> u64 {
        if self.bandwidth.rate() == 0.0 {
            return (INITIAL_WINDOW * self.datagram) as u64;
        }
        let (base, target) = (self.base().as_secs_f64(), self.target().as_secs_f64());
        let flight = if self.is_steady() { base } else { base.max(self.sojourn.as_secs_f64()) };
        let time = match self.phase {
            Phase::Startup { .. } => flight * STARTUP_WINDOW,
            Phase::Drain { .. } => base + self.jitter.as_secs_f64().min(base * DRAIN_SLACK),
            Phase::Empty { .. } => base * EMPTY_WINDOW,
            Phase::Cruise { .. } | Phase::Probe { .. } | Phase::Await { .. } => flight * CRUISE_WINDOW + target,
        };
        let bytes = self.bandwidth.rate() * time / (1.0 - self.loss.usual());
        (bytes + SLACK * self.datagram).max(MIN_WINDOW * self.datagram) as u64
    }

    pub fn pacing(&self) -> Rate {
        let gain = match self.phase {
            Phase::Startup { .. } => STARTUP_GAIN,
            Phase::Drain { .. } | Phase::Empty { .. } | Phase::Cruise { .. } | Phase::Await { .. } => 1.0,
            Phase::Probe { .. } => PROBE_GAIN,
        };
        let rate = match self.bandwidth.rate() {
            0.0 => INITIAL_WINDOW * self.datagram / self.srtt.min(FIRST_FLIGHT).as_secs_f64(),
            rate => rate / (1.0 - self.loss.usual()),
        };
        Rate::from_bytes((rate * gain) as u64)
    }

    pub fn bottleneck(&self) -> Option<Rate> {
        let rate = self.bandwidth.rate();
        (rate > 0.0).then(|| Rate::from_bytes(rate as u64))
    }

    fn observe(&mut self, ack: &AckSample) {
        (self.srtt, self.base_rtt, self.jitter) = (ack.srtt, ack.base_rtt, ack.jitter);
        self.sojourn = ack.sojourn;
        self.queue = ack.queue.saturating_sub(self.foreign);
        self.round_least_queue = self.round_least_queue.min(ack.queue);
        self.round_most_queue = self.round_most_queue.max(self.queue);
        self.loss.on_acked(ack.packets, self.is_calm(ack.newest_sent));
        self.acks = self.acks.saturating_add(1);
        if ack.queue <= (self.target() / 8).max(LEAST_TARGET / 2) || self.acks == 1 {
            self.empty_at = ack.now;
        }
        if self.acks == 1 {
            self.emptied_at = ack.now;
        }
        if matches!(self.phase, Phase::Cruise { .. }) {
            self.calm.1 = ack.now;
        }
    }

    /// Whether what was sent at `sent` was sent while cruising and met no queue.
    fn is_calm(&self, sent: Time) -> bool {
        let (from, until) = self.calm;
        from <= sent && sent <= until && self.queue + self.foreign <= self.target() / 4
    }

    fn step(&mut self, ack: &AckSample, stretched: bool) {
        let (target, queue) = (self.target(), self.queue);
        match self.phase {
            Phase::Drain { low_since } => self.step_drain(ack, low_since),
            Phase::Empty { low_since } => self.step_empty(ack, low_since),
            Phase::Startup { .. } if self.acks < ENOUGH_ACKS => {}
            _ if queue > target && stretched => self.drain(),
            Phase::Startup { .. } => {}
            _ if ack.now.since(self.empty_at) > STALE && !ack.app_limited => {
                self.phase = Phase::Empty { low_since: None }
            }
            _ if queue > target * 2 => self.drain(),
            Phase::Cruise { .. } => {}
            Phase::Probe { from, .. } | Phase::Await { from, .. } if self.has_grown(from) => self.grow(ack),
            Phase::Probe { until, from } if ack.now >= until => self.phase = Phase::Await { since: ack.now, from },
            Phase::Probe { .. } => {}
            Phase::Await { since, .. } if ack.newest_sent >= since => self.drain(),
            Phase::Await { .. } => {}
        }
    }

    fn has_grown(&self, from: f64) -> bool {
        self.bandwidth.rate() > from * GROWN && self.queue < self.target() / 2
    }

    /// Whether the path keeps time so well that one look at it is enough.
    fn is_steady(&self) -> bool {
        self.jitter < self.base() / STEADY
    }

    /// The path is faster than it was. What jitter can pretend once has to be seen twice.
    fn grow(&mut self, ack: &AckSample) {
        if !self.is_steady() && !std::mem::replace(&mut self.grown, true) {
            return self.probe(ack);
        }
        self.patience = CRUISE_ROUNDS;
        self.probed = false;
        self.phase = Phase::Startup { best: self.bandwidth.rate(), flat: 0 };
    }

    fn step_drain(&mut self, ack: &AckSample, low_since: Option<(Time, Duration)>) {
        if self.queue <= self.drained() {
            self.cruise(ack);
            return;
        }
        let low = ack.in_flight <= self.window();
        let low_since = match low_since {
            Some((since, then)) if low && self.queue > then * 3 / 4 => Some((since, then)),
            _ if low => Some((ack.now, self.queue)),
            _ => None,
        };
        self.phase = Phase::Drain { low_since };
        if low_since.is_some_and(|(since, _)| ack.now.since(since) > self.srtt * 2 + MIN_WAIT) {
            self.phase = Phase::Empty { low_since: None };
        }
    }

    /// Nobody has seen the path empty for long, or the last time it was made sure of is very long ago.
    fn must_empty(&self, ack: &AckSample) -> bool {
        let stale = ack.now.since(self.empty_at) > STALE || ack.now.since(self.emptied_at) > VERY_STALE;
        stale && !ack.app_limited
    }

    fn step_empty(&mut self, ack: &AckSample, low_since: Option<Time>) {
        let low_since = low_since.or((ack.in_flight <= self.window()).then_some(ack.now));
        self.phase = Phase::Empty { low_since };
        let enough = self.srtt + self.time_for(EMPTY_PACKETS);
        if low_since.is_some_and(|since| ack.now.since(since) > enough) {
            (self.empty_at, self.emptied_at) = (ack.now, ack.now);
            self.foreign = if ack.queue > self.target() { ack.queue } else { Duration::ZERO };
            self.cruise(ack);
        }
    }

    fn end_round(&mut self, ack: &AckSample) {
        let congested = self.loss.is_excessive(self.loss_margin());
        if congested {
            self.on_congestion();
        } else {
            self.next_phase(ack);
        }
        self.loss.end_round();
        self.bandwidth.end_round();
        self.ceiling = (self.ceiling + self.ceiling / 32).min(MOST_TARGET);
        self.foreign -= self.foreign.saturating_sub(self.round_least_queue) / 4;
        (self.round_least_queue, self.round_most_queue) = (Duration::MAX, Duration::ZERO);
    }

    fn next_phase(&mut self, ack: &AckSample) {
        match self.phase {
            Phase::Startup { .. } if ack.app_limited => {}
            Phase::Startup { best, flat } => self.startup_round(best, flat),
            Phase::Cruise { rounds: 0 } if !ack.app_limited => self.probe(ack),
            Phase::Cruise { rounds } => self.phase = Phase::Cruise { rounds: rounds.saturating_sub(1) },
            Phase::Drain { .. } | Phase::Empty { .. } | Phase::Probe { .. } | Phase::Await { .. } => {}
        }
    }

    /// BBR's full-pipe test: three rounds without a quarter more.
    fn startup_round(&mut self, best: f64, flat: u32) {
        let rate = self.bandwidth.rate();
        let (best, flat) = if rate >= best * 1.25 { (rate, 0) } else { (best, flat + 1) };
        self.phase = Phase::Startup { best, flat };
        if flat >= FULL_ROUNDS {
            self.drain();
        }
    }

    /// More was lost than usual: what arrived is what the path takes.
    fn on_congestion(&mut self) {
        if !matches!(self.phase, Phase::Drain { .. } | Phase::Empty { .. }) {
            self.bandwidth.cut();
        }
        self.ceiling = (self.round_most_queue * 3 / 4).clamp(LEAST_TARGET, MOST_TARGET);
        if self.probed {
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
        }
        self.drain();
    }

    fn cruise(&mut self, ack: &AckSample) {
        self.calm = (ack.now, ack.now);
        (self.probed, self.grown) = (false, false);
        self.phase = Phase::Cruise { rounds: self.patience - 1 };
    }

    fn drain(&mut self) {
        self.phase = Phase::Drain { low_since: None };
    }

    fn probe(&mut self, ack: &AckSample) {
        let pulse = self.base().min(self.target().mul_f64(1.0 / (PROBE_GAIN - 1.0)));
        self.probed = true;
        self.phase = Phase::Probe { until: ack.now + pulse, from: self.bandwidth.rate() };
    }

    fn base(&self) -> Duration {
        self.base_rtt + self.foreign
    }

    /// How much queue is enough to know that the path is full, jitter included.
    fn target(&self) -> Duration {
        self.share() + self.jitter + BURST
    }

    /// How much queue is none: jitter keeps the latest minimum above that of the last ten seconds.
    fn drained(&self) -> Duration {
        (self.share() / 4 + self.jitter * 2 + BURST).min(self.target())
    }

    /// A quarter of what the empty path takes, within bounds, and never less than two packets.
    fn share(&self) -> Duration {
        let packets = self.time_for(2);
        (self.base() / 4).min(self.ceiling).max(LEAST_TARGET).max(packets.min(MOST_TARGET))
    }

    /// How long the bottleneck takes for some full packets.
    fn time_for(&self, packets: u64) -> Duration {
        Rate::from_bytes(self.bandwidth.rate() as u64).time_for(packets * self.datagram as u64)
    }

    fn loss_margin(&self) -> f64 {
        if matches!(self.phase, Phase::Startup { .. }) { STARTUP_LOSS } else { PROBE_LOSS }
    }
}

const INITIAL_WINDOW: f64 = 32.0;
const FIRST_FLIGHT: Duration = Duration::from_millis(100);
const STARTUP_GAIN: f64 = 2.77;
const STARTUP_WINDOW: f64 = 2.0;
const FULL_ROUNDS: u32 = 3;
const STARTUP_LOSS: f64 = 0.15;
const PROBE_GAIN: f64 = 1.25;
const PROBE_LOSS: f64 = 0.02;
const GROWN: f64 = 1.1;
const DRAIN_SLACK: f64 = 0.1;
const MIN_WAIT: Duration = Duration::from_millis(5);
/// The packets of one burst wait for each other.
const BURST: Duration = Duration::from_micros(500);
const STEADY: u32 = 32;
const CRUISE_WINDOW: f64 = 1.5;
const EMPTY_WINDOW: f64 = 0.5;
const EMPTY_PACKETS: u64 = 20;
const VERY_STALE: Duration = Duration::from_secs(30);
const STALE: Duration = Duration::from_secs(5);
const ENOUGH_ACKS: u32 = 24;
const CRUISE_ROUNDS: u32 = 1;
const MOST_PATIENCE: u32 = 8;
const SLACK: f64 = 2.0;
const MIN_WINDOW: f64 = 8.0;
const LEAST_TARGET: Duration = Duration::from_millis(1);
const MOST_TARGET: Duration = Duration::from_millis(25);
