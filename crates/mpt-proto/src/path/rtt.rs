//! Round-trip time of a path (RFC 9002 section 5), and its one-way delay without a common clock.
//!
//! A round trip contains the way back, which may be another path's, and the time for which the receiver delayed the
//! ACK. Congestion forms on the way out, so the rest of the core decides by the *one-way* delay: the receiver's clock
//! at arrival minus our clock at sending. It contains the unknown offset of the two clocks. The offset is the same on
//! all paths of a peer, so paths compare, and it cancels out of [`OneWayDelay::queue`], which is a difference, too. The
//! windowed minimum forgets drift between the clocks (100 ppm is 1 ms in 10 s).

use std::time::Duration;

use super::ack::PeerTime;
use super::windowed_filter::WindowedMin;
use crate::time::Time;
use crate::tuning::path::rtt::{
    DRAIN_TIME, EQUAL_STEP_DIVISOR, GRANULARITY, HIGH_JITTER, IDLE_JITTER_MEMORY, INITIAL_RTT, MAX_LONE_BYTES,
    MIN_CURRENT_WINDOW, MIN_FILTER_LEN, MIN_JITTER_STEPS, MIN_QUEUE_RISE, MIN_SAMPLES,
};

/// Round-trip time of a path.
#[derive(Clone, Debug, Default)]
pub struct Rtt {
    latest: Duration,
    smoothed: Option<Duration>,
    var: Duration,
    min: WindowedMin<Duration>,
}

impl Rtt {
    /// Adds a sample: `raw` is the time from sending to the ACK's arrival, `ack_delay` the receiver's part of it.
    /// Follows RFC 9002 section 5.3, but the minimum is windowed (`MIN_FILTER_LEN`), because the route of a path may
    /// change.
    pub fn on_sample(&mut self, now: Time, raw: Duration, ack_delay: Duration) {
        let rtt = raw.saturating_sub(ack_delay).max(GRANULARITY);
        self.latest = rtt;
        self.min.insert(now, MIN_FILTER_LEN, rtt);
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.var) = (Some(rtt), rtt / 2);
            return;
        };
        self.var = (self.var * 3 + smoothed.abs_diff(rtt)) / 4;
        self.smoothed = Some((smoothed * 7 + rtt) / 8);
    }

    /// Returns the last sample.
    pub fn latest(&self) -> Duration {
        self.latest
    }

    /// Returns the smoothed round-trip time, `INITIAL_RTT` before the first sample.
    pub fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL_RTT)
    }

    /// Returns the mean deviation of the samples.
    pub fn var(&self) -> Duration {
        if self.smoothed.is_some() { self.var } else { INITIAL_RTT / 2 }
    }

    /// Returns the shortest round trip of the last `MIN_FILTER_LEN`.
    pub fn min(&self) -> Duration {
        self.min.get().unwrap_or(INITIAL_RTT)
    }

    /// Returns true if there is a sample.
    pub fn is_known(&self) -> bool {
        self.smoothed.is_some()
    }

    /// Returns the probe timeout (RFC 9002 section 6.2.1) for a peer that delays ACKs by up to `max_ack_delay`.
    pub fn probe_timeout(&self, max_ack_delay: Duration) -> Duration {
        self.smoothed() + (self.var() * 4).max(GRANULARITY) + max_ack_delay
    }
}

/// A one-way delay in nanoseconds plus the unknown offset of two clocks. Only differences are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OneWayTime(i64);

impl OneWayTime {
    /// Returns the delay of a datagram that left at `sent` by our clock and arrived at `received` by the peer's.
    pub const fn between(sent: Time, received: PeerTime) -> Self {
        Self((received.0 as i64).wrapping_mul(1_000).wrapping_sub(sent.as_nanos() as i64))
    }

    /// Returns the excess of this delay over `other`, zero if it is shorter.
    pub fn beyond(self, other: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(other.0)).unwrap_or(0))
    }

    /// Returns this delay plus `by`.
    pub fn later(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// Returns this delay minus `by`.
    pub fn earlier(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// Returns the excess over `other` in nanoseconds, negative if this delay is shorter.
    pub const fn minus(self, other: Self) -> i64 {
        self.0.saturating_sub(other.0)
    }
}

/// One-way delay of a path, its standing queue and its jitter.
#[derive(Clone, Debug, Default)]
pub struct OneWayDelay {
    latest: Option<OneWayTime>,
    floor: WindowedMin<OneWayTime>,
    recent: WindowedMin<OneWayTime>,
    last: [Option<OneWayTime>; MIN_SAMPLES],
    samples: usize,
    steps: InterarrivalJitter,
    /// The jitter of lone datagrams, remembered while the path is busy.
    idle_jitter: Duration,
    /// The jitter of lone datagrams is not kept.
    forgets: bool,
    /// The times of the last busy round trip and of the last sample.
    busy_at: Option<Time>,
    sampled: Time,
    spread: Duration,
    round_trip: Duration,
}

impl OneWayDelay {
    /// Makes an empty one. With `remembers` the jitter of lone datagrams is kept while the path is busy.
    pub fn new(remembers: bool) -> Self {
        Self { forgets: !remembers, ..Self::default() }
    }

    /// Adds the delay of one datagram. `spread` is a lower bound of the jitter from other evidence: see
    /// [`OneWayDelay::jitter`]. `round` is the number of bytes that arrived in the round trip that ends with it.
    pub fn on_sample(&mut self, now: Time, delay: OneWayTime, spread: Duration, round: u64) {
        if let Some(last) = self.latest {
            self.steps.on_step(delay.minus(last));
        }
        if round > MAX_LONE_BYTES {
            self.busy_at = Some(now);
        } else if !self.forgets && self.busy_at.is_none_or(|at| now.since(at) > DRAIN_TIME) {
            self.idle_jitter = match self.never_busy() {
                true => self.steps.jitter.div_f64(self.weight()),
                false => self.decayed_idle_jitter(now).max(self.steps.jitter),
            };
        }
        self.sampled = now;
        self.latest = Some(delay);
        self.floor.insert(now, MIN_FILTER_LEN, delay);
        self.spread = spread;
        self.recent.insert(now, self.current_window(), delay);
        self.last[self.samples % MIN_SAMPLES] = Some(delay);
        self.samples += 1;
    }

    /// Resets the estimates if `delay` cannot be that of a packet that was acknowledged within `round_trip`, whatever
    /// the queues were. Then one clock jumped against the other: a host slept, or was silent until its clock wrapped.
    pub fn verify(&mut self, delay: OneWayTime, round_trip: Duration) {
        let possible = self.round_trip.max(round_trip) * 2 + MIN_CURRENT_WINDOW;
        if self.latest.is_some_and(|last| u128::from(delay.minus(last).unsigned_abs()) > possible.as_nanos()) {
            *self = Self::new(!self.forgets);
        }
        self.round_trip = round_trip;
    }

    /// Forgets the minimum, because it is not that of the empty path.
    pub fn forget_floor(&mut self) {
        self.floor = WindowedMin::default();
    }

    /// Returns the least delay of the last `MIN_FILTER_LEN`, which is that of the empty path.
    pub fn floor(&self) -> Option<OneWayTime> {
        self.floor.get()
    }

    /// Returns the least delay of the last fraction of a round trip. With high jitter, this is the least of at least
    /// five samples, however old they are: one or two may be late by chance.
    pub fn current(&self) -> Option<OneWayTime> {
        let recent = self.recent.get()?;
        let few = self.last.iter().flatten().min().filter(|_| self.jitter() > HIGH_JITTER);
        Some(few.map_or(recent, |few| recent.min(*few)))
    }

    /// Returns the standing queue: the excess of the fastest recent datagram over the floor. Both are minima, as in
    /// CoDel (RFC 8289 section 3.1), so that neither jitter nor a burst looks like a queue.
    pub fn queue(&self) -> Duration {
        match (self.current(), self.floor.get()) {
            (Some(current), Some(floor)) => current.beyond(floor),
            _ => Duration::ZERO,
        }
    }

    /// Returns the maximum of interarrival jitter, spread and jitter of lone datagrams. Samples are those of the
    /// highest packet numbers. On a path that reorders, these are the fast packets, which vary less than all do: hence
    /// the spread. On one that keeps order, a late packet delays those behind it, so neighbours vary less than distant
    /// packets: hence lone datagrams.
    pub fn jitter(&self) -> Duration {
        self.steps.jitter.max(self.idle_jitter).max(self.spread)
    }

    /// Returns the jitter of lone datagrams, reduced by the time since the last sample.
    fn decayed_idle_jitter(&self, now: Time) -> Duration {
        let forgotten = now.since(self.sampled).as_secs_f64() / IDLE_JITTER_MEMORY.as_secs_f64();
        self.idle_jitter.mul_f64((1.0 - forgotten).max(0.0))
    }

    /// Returns the weight of the samples in the running mean, which starts at zero: at first, sixteenths of them are
    /// far too little. One or two outliers are no mean, so there is a minimum.
    fn weight(&self) -> f64 {
        let steps = i32::try_from(self.samples).unwrap_or(i32::MAX).max(MIN_JITTER_STEPS);
        1.0 - (15.0_f64 / 16.0).powi(steps)
    }

    /// Returns true if all datagrams were lone ones.
    pub fn never_busy(&self) -> bool {
        self.busy_at.is_none()
    }

    /// Returns the window of the current minimum: short on a steady path, four times the jitter on others, because only
    /// one of several samples is a fast one.
    fn current_window(&self) -> Duration {
        (self.jitter() * 4).max(MIN_CURRENT_WINDOW)
    }
}

/// Interarrival jitter (RFC 3550 section 6.4.1): J += (|D| - J) / 16, where D is the step from one delay to the next.
#[derive(Clone, Debug, Default)]
struct InterarrivalJitter {
    jitter: Duration,
    /// The last step in nanoseconds, and the jitter without it.
    last: i64,
    without: Duration,
}

impl InterarrivalJitter {
    /// Adds a step. Two rises of nearly the same size are a queue that grows, not jitter: the first is taken out again,
    /// and the second counts by its difference. Small rises count as jitter: on a short path, a queue that grows at a
    /// quarter above the link's rate rises by as much as two packets of a burst differ.
    fn on_step(&mut self, step: i64) {
        let difference = step.saturating_sub(self.last).unsigned_abs();
        self.last = step;
        if step > MIN_QUEUE_RISE && difference <= step.unsigned_abs() / EQUAL_STEP_DIVISOR {
            self.jitter = Self::mean(self.without, difference);
            self.without = self.jitter;
        } else {
            self.without = self.jitter;
            self.jitter = Self::mean(self.jitter, step.unsigned_abs());
        }
    }

    fn mean(before: Duration, nanos: u64) -> Duration {
        (before * 15 + Duration::from_nanos(nanos)) / 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn samples_are_smoothed_as_in_rfc_9002() {
        let mut rtt = Rtt::default();
        rtt.on_sample(Time::START, ms(100), ms(0));
        assert_eq!((rtt.smoothed(), rtt.var()), (ms(100), ms(50)));
        rtt.on_sample(Time::START, ms(190), ms(10));
        // var = 3/4 * 50 + 1/4 * |100 - 180|, smoothed = 7/8 * 100 + 1/8 * 180
        assert_eq!((rtt.smoothed(), rtt.var()), (ms(110), Duration::from_micros(57_500)));
        assert_eq!(rtt.probe_timeout(ms(25)), ms(110 + 230 + 25));
    }

    #[test]
    fn a_longer_route_becomes_the_minimum_after_the_window() {
        let mut rtt = Rtt::default();
        rtt.on_sample(Time::START, ms(20), ms(0));
        rtt.on_sample(Time::after(Duration::from_secs(5)), ms(60), ms(0));
        assert_eq!(rtt.min(), ms(20));
        rtt.on_sample(Time::after(Duration::from_secs(11)), ms(60), ms(0));
        assert_eq!(rtt.min(), ms(60));
    }

    /// A host that sleeps for an hour moves its clock by an hour against the other.
    #[test]
    fn a_clock_jump_is_not_counted_as_jitter() {
        for jump in [3_600_000_i64, -3_600_000, 2_000, -2_000] {
            let mut delay = OneWayDelay::default();
            for n in 0..40_u64 {
                let sent = Time::after(ms(5_000_000 + n * 20));
                let clock = 5_000_000 + (n * 20 + 20) as i64 + if n < 20 { 0 } else { jump };
                let one_way = OneWayTime::between(sent, PeerTime(clock as u64 * 1_000));
                delay.verify(one_way, ms(40));
                delay.on_sample(sent, one_way, ms(0), 100_000);
            }
            assert_eq!((delay.jitter(), delay.queue()), (ms(0), ms(0)), "{jump}");
        }
    }

    #[test]
    fn a_route_change_is_not_taken_for_a_clock_jump() {
        let mut delay = OneWayDelay::default();
        for (n, late) in [(0, 20), (1, 70)] {
            let sent = Time::after(ms(n * 100));
            let one_way = OneWayTime::between(sent, PeerTime((n * 100 + late) * 1_000));
            delay.verify(one_way, ms(20 + late));
            delay.on_sample(sent, one_way, ms(0), 100_000);
        }
        assert!(delay.jitter() > ms(3));
    }

    #[test]
    fn a_growing_queue_is_not_counted_as_jitter() {
        let jitter = |delays: &dyn Fn(u64) -> u64| {
            let mut delay = OneWayDelay::default();
            for n in 0..64 {
                let now = Time::after(ms(n * 10));
                delay.on_sample(now, OneWayTime::default().later(ms(delays(n))), Duration::ZERO, 100_000);
            }
            delay.jitter()
        };
        assert!(jitter(&|n| 20 + n * 9) < ms(1), "a tenth of what is sent arrives");
        assert!(jitter(&|n| 20 + n % 2 * 9) > ms(8), "alternately early and late");
    }

    /// Two paths of 20 and 50 ms, and a peer whose clock started 1000 s before ours.
    #[test]
    fn paths_compare_without_a_common_clock() {
        let arrival = |sent: u64, takes: u64| PeerTime((1_000_000 + sent + takes) * 1_000);
        let fast = OneWayTime::between(Time::after(ms(10)), arrival(10, 20));
        let slow = OneWayTime::between(Time::after(ms(300)), arrival(300, 50));
        assert_eq!(slow.beyond(fast), ms(30));
        assert_eq!(fast.minus(slow), -30_000_000);
    }

    #[test]
    fn the_queue_is_the_excess_of_the_fastest_recent_datagram() {
        let mut delay = OneWayDelay::default();
        for n in 0..200 {
            let (sent, queue) = (Time::after(ms(n)), if n < 100 { 0 } else { 15 });
            delay.on_sample(sent, OneWayTime::between(sent, PeerTime((n + 20 + queue) * 1_000)), ms(0), 100_000);
        }
        assert_eq!(delay.queue(), ms(15));
    }

    #[test]
    fn late_datagrams_among_fast_ones_are_not_counted_as_queue() {
        let mut delay = OneWayDelay::default();
        for n in 0..200 {
            let (sent, late) = (Time::after(ms(n)), if n % 4 == 0 { 0 } else { 30 });
            delay.on_sample(sent, OneWayTime::between(sent, PeerTime((n + 20 + late) * 1_000)), ms(0), 100_000);
        }
        assert_eq!(delay.queue(), ms(0));
        assert!(delay.jitter() > ms(5), "{:?}", delay.jitter());
    }

    #[test]
    fn a_few_lone_datagrams_yield_about_the_same_jitter_as_many() {
        let mut delay = OneWayDelay::default();
        let sample = |n: u64| {
            let sent = Time::after(ms(n * 20));
            delay.on_sample(
                sent,
                OneWayTime::between(sent, PeerTime((n * 20 + 20 + n % 2 * 10) * 1_000)),
                ms(0),
                1_000,
            );
            delay.jitter()
        };
        let jitters: Vec<_> = (0..100).map(sample).collect();
        assert!(jitters[1..4].iter().all(|jitter| *jitter < ms(9)), "{jitters:?}");
        assert!(jitters[4..].iter().all(|jitter| jitter.abs_diff(ms(10)) < ms(1)), "{jitters:?}");
    }

    #[test]
    fn the_jitter_of_lone_datagrams_is_remembered_while_a_busy_path_keeps_order() {
        let mut delay = OneWayDelay::default();
        let mut sample = |n: u64, late: u64, round: u64| {
            let sent = Time::after(ms(n));
            delay.on_sample(sent, OneWayTime::between(sent, PeerTime((n + 20 + late) * 1_000)), ms(0), round);
            delay.jitter()
        };
        let lone = (0..100).map(|n| sample(n * 20, n % 2 * 10, 1_000)).last().unwrap();
        assert!(lone > ms(9), "{lone:?}");
        let busy = (2_000..4_000).map(|n| sample(n, 10, 100_000)).last().unwrap();
        assert_eq!(busy, lone);
        let long_after = (0..2_000).map(|n| sample(5_000 + n * 20, 10, 1_000)).last().unwrap();
        assert!(long_after < ms(2), "{long_after:?}");
    }

    #[test]
    fn clock_drift_of_100_ppm_is_not_counted_as_queue() {
        let mut delay = OneWayDelay::default();
        let mut worst = Duration::ZERO;
        for n in 0..120_000 {
            let sent = Time::after(ms(n));
            delay.on_sample(sent, OneWayTime::between(sent, PeerTime((n + 20) * 1_000 + n / 10)), ms(0), 100_000);
            worst = worst.max(delay.queue());
        }
        assert!(worst <= Duration::from_micros(1_100), "{worst:?}");
    }
}
