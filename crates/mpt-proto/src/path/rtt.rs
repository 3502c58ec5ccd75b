//! How long a path takes: round trips (RFC 9002 section 5), and one-way delays without a common clock.
//!
//! A round trip contains the way back, which may be another path's, and the time for which the receiver kept the ACK.
//! Congestion stands on the way out, so what the rest of the core decides by is the *one-way* delay: the receiver's clock
//! at arrival less our clock at sending. It is off by the unknown distance of the two clocks. That constant is the same
//! on all paths of a peer, so paths compare, and it falls out of [`OneWayDelay::queue`], which is a difference too.
//! Drift between the clocks (100 ppm is 1 ms in 10 s) is forgotten with the window of the minimum.

use std::time::Duration;

use super::ack::PeerTime;
use super::windowed_filter::WindowedMin;
use crate::time::Time;

/// Round-trip time of a path.
#[derive(Clone, Debug, Default)]
pub struct Rtt {
    latest: Duration,
    smoothed: Option<Duration>,
    var: Duration,
    min: WindowedMin<Duration>,
}

impl Rtt {
    /// Takes in one round trip: `raw` from sending to the ACK's arrival, of which the receiver says it kept `held`.
    /// RFC 9002 section 5.3, but the minimum forgets after [`MIN_WINDOW`] because a path's route may change under it.
    pub fn on_sample(&mut self, now: Time, raw: Duration, held: Duration) {
        let rtt = raw.saturating_sub(held).max(GRANULARITY);
        self.latest = rtt;
        self.min.insert(now, MIN_WINDOW, rtt);
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.var) = (Some(rtt), rtt / 2);
            return;
        };
        self.var = (self.var * 3 + smoothed.abs_diff(rtt)) / 4;
        self.smoothed = Some((smoothed * 7 + rtt) / 8);
    }

    /// The last sample.
    pub fn latest(&self) -> Duration {
        self.latest
    }

    /// Smoothed round-trip time, [`INITIAL_RTT`] before the first sample.
    pub fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL_RTT)
    }

    /// Mean deviation of the samples.
    pub fn var(&self) -> Duration {
        if self.smoothed.is_some() { self.var } else { INITIAL_RTT / 2 }
    }

    /// The shortest round trip of the last [`MIN_WINDOW`].
    pub fn min(&self) -> Duration {
        self.min.get().unwrap_or(INITIAL_RTT)
    }

    /// Whether anything has been measured.
    pub fn is_known(&self) -> bool {
        self.smoothed.is_some()
    }

    /// How long to wait for an ACK before asking (RFC 9002 section 6.2.1), when the peer may hold it for `max_hold`.
    pub fn probe_timeout(&self, max_hold: Duration) -> Duration {
        self.smoothed() + (self.var() * 4).max(GRANULARITY) + max_hold
    }
}

/// A one-way delay in nanoseconds, off by the unknown distance between two clocks. Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OneWayTime(i64);

impl OneWayTime {
    /// The delay of what left at `sent` by our clock and arrived at `received` by the peer's.
    pub const fn between(sent: Time, received: PeerTime) -> Self {
        Self((received.0 as i64).wrapping_mul(1_000).wrapping_sub(sent.as_nanos() as i64))
    }

    /// How much longer this delay is than `other`, zero when it is shorter.
    pub fn beyond(self, other: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(other.0)).unwrap_or(0))
    }

    /// This delay and `by` more.
    pub fn later(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// This delay less `by`.
    pub fn earlier(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// Nanoseconds by which this delay exceeds `other`, negative when it is shorter.
    pub const fn minus(self, other: Self) -> i64 {
        self.0.saturating_sub(other.0)
    }
}

/// One-way delay of a path, and what of it is queue.
#[derive(Clone, Debug, Default)]
pub struct OneWayDelay {
    latest: Option<OneWayTime>,
    floor: WindowedMin<OneWayTime>,
    recent: WindowedMin<OneWayTime>,
    last: [Option<OneWayTime>; MIN_SAMPLES],
    samples: usize,
    steps: InterarrivalJitter,
    /// What jitter is while datagrams come one by one; it is not forgotten while they do not.
    idle_jitter: Duration,
    /// When they last did not, and when one last came.
    busy_at: Option<Time>,
    sampled: Time,
    spread: Duration,
    round_trip: Duration,
}

impl OneWayDelay {
    /// Takes in the delay of one datagram. `spread` is what else is known of how delays vary: see [`OneWayDelay::jitter`]; `round` are the
    /// bytes that arrived in the round trip that ends with it.
    pub fn on_sample(&mut self, now: Time, delay: OneWayTime, spread: Duration, round: u64) {
        if let Some(last) = self.latest {
            self.steps.on_step(delay.minus(last));
        }
        if round > ONE_BY_ONE {
            self.busy_at = Some(now);
        } else if self.busy_at.is_none_or(|at| now.since(at) > DRAINED) {
            self.idle_jitter = match self.never_busy() {
                true => self.steps.jitter.div_f64(self.weight()),
                false => self.decayed_idle_jitter(now).max(self.steps.jitter),
            };
        }
        self.sampled = now;
        self.latest = Some(delay);
        self.floor.insert(now, MIN_WINDOW, delay);
        self.spread = spread;
        self.recent.insert(now, self.settling(), delay);
        self.last[self.samples % MIN_SAMPLES] = Some(delay);
        self.samples += 1;
    }

    /// Begins anew if `delay` cannot be that of a packet which was confirmed within `round_trip`, whatever stood in queues: then one clock
    /// has moved against the other, because a host slept, or was silent until its clock had gone round.
    pub fn verify(&mut self, delay: OneWayTime, round_trip: Duration) {
        let possible = self.round_trip.max(round_trip) * 2 + MIN_SETTLING;
        if self.latest.is_some_and(|last| u128::from(delay.minus(last).unsigned_abs()) > possible.as_nanos()) {
            *self = Self::default();
        }
        self.round_trip = round_trip;
    }

    /// What the empty path takes is not what it was thought to be.
    pub fn forget_floor(&mut self) {
        self.floor = WindowedMin::default();
    }

    /// The least delay of the last [`MIN_WINDOW`]: what the path takes when it is empty.
    pub fn floor(&self) -> Option<OneWayTime> {
        self.floor.get()
    }

    /// The least delay of the last fraction of a round trip: what the path takes at present. Where packets come at odd
    /// times it is that of several packets, however long ago they were sent: one or two are late by chance.
    pub fn current(&self) -> Option<OneWayTime> {
        let recent = self.recent.get()?;
        let few = self.last.iter().flatten().min().filter(|_| self.jitter() > JITTERY);
        Some(few.map_or(recent, |few| recent.min(*few)))
    }

    /// Standing queue: by how much even the fastest of the latest datagrams exceeded the floor. A minimum on both sides,
    /// as CoDel does (RFC 8289 section 3.1), so that neither jitter nor a burst looks like a queue.
    pub fn queue(&self) -> Duration {
        match (self.current(), self.floor.get()) {
            (Some(current), Some(floor)) => current.beyond(floor),
            _ => Duration::ZERO,
        }
    }

    /// Interarrival jitter, or the spread where that is more. The samples are those of the highest
    /// numbers to arrive: where packets overtake each other, these are the fast ones, and vary less than all do. Where they cannot, a late
    /// one delays those behind it, so close neighbours vary less than distant ones: then what was seen of lone datagrams counts.
    pub fn jitter(&self) -> Duration {
        self.steps.jitter.max(self.idle_jitter).max(self.spread)
    }

    /// What is left of the jitter of lone datagrams.
    fn decayed_idle_jitter(&self, now: Time) -> Duration {
        let forgotten = now.since(self.sampled).as_secs_f64() / FORGET.as_secs_f64();
        self.idle_jitter.mul_f64((1.0 - forgotten).max(0.0))
    }

    /// How much of the running mean the steps so far make up: it begins at nothing, and sixteenths of them are far too little at first. One
    /// or two odd ones are no mean either.
    fn weight(&self) -> f64 {
        let steps = i32::try_from(self.samples).unwrap_or(i32::MAX).max(LEAST_STEPS);
        1.0 - (15.0_f64 / 16.0).powi(steps)
    }

    /// Whether datagrams have only ever come one by one.
    pub fn never_busy(&self) -> bool {
        self.busy_at.is_none()
    }

    /// Over how long the current minimum is taken. A steady path is believed at once, a jittery one only after several
    /// times its jitter, because it takes several samples until one of them is a fast one.
    fn settling(&self) -> Duration {
        (self.jitter() * 4).max(MIN_SETTLING)
    }
}

/// Interarrival jitter (RFC 3550 section 6.4.1): J += (|D| - J) / 16, D being the steps from one delay to the next.
#[derive(Clone, Debug, Default)]
struct InterarrivalJitter {
    jitter: Duration,
    /// The last step in nanoseconds, and what jitter is without it.
    last: i64,
    without: Duration,
}

impl InterarrivalJitter {
    /// Two rises of nearly the same size are a queue that grows, not jitter: the first counts no more, and of the second by how much it differs.
    /// Not small ones: the queue of a short path, at a quarter more than it takes, grows by as much as two packets in a burst.
    fn on_step(&mut self, step: i64) {
        let differs = step.saturating_sub(self.last).unsigned_abs();
        self.last = step;
        if step > SMALL_RISE && differs <= step.unsigned_abs() / EVEN {
            self.jitter = Self::mean(self.without, differs);
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

/// RFC 9002 section 6.2.2.
pub const INITIAL_RTT: Duration = Duration::from_millis(333);
/// How long a minimum is believed. BBR uses 10 s as well (draft-cardwell-iccrg-bbr-congestion-control, MinRTTFilterLen).
pub const MIN_WINDOW: Duration = Duration::from_secs(10);
/// No timer of ours is better than this (RFC 9002 section 6.1.2 recommends 1 ms; sub-millisecond paths exist in racks).
const GRANULARITY: Duration = Duration::from_micros(100);
/// Four full packets in a round trip do not crowd a path.
const ONE_BY_ONE: u64 = 6_000;
/// The delays of a queue that drains vary, and are no jitter; after this it is gone.
const DRAINED: Duration = Duration::from_secs(1);
/// How long the jitter of lone datagrams is remembered while there are others.
const FORGET: Duration = Duration::from_secs(20);
/// So many packets of a jittery path have a fast one among them.
const MIN_SAMPLES: usize = 5;
/// Jitter above which a packet alone says little.
const JITTERY: Duration = Duration::from_millis(1);
/// In nanoseconds. What a burst leaves behind is less than this; what a collapsed link adds between two ACKs is more.
const SMALL_RISE: i64 = 1_000_000;
/// Two steps that differ by less than such a part are nearly the same. Of independent delays, one step in forty is.
const EVEN: u64 = 4;
/// So many steps make a mean of sorts.
const LEAST_STEPS: i32 = 4;
/// Two ACKs are at least a millisecond apart, and a minimum needs a few of them.
const MIN_SETTLING: Duration = Duration::from_millis(3);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn samples_are_smoothed_as_rfc_9002_says() {
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

    /// An hour's sleep of one host moves its clock by an hour against the other.
    #[test]
    fn a_clock_that_jumps_is_no_jitter() {
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
    fn a_route_that_steps_is_no_jump_of_a_clock() {
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
    fn a_queue_that_grows_is_no_jitter() {
        let jitter = |delays: &dyn Fn(u64) -> u64| {
            let mut delay = OneWayDelay::default();
            for n in 0..64 {
                let now = Time::after(ms(n * 10));
                delay.on_sample(now, OneWayTime::default().later(ms(delays(n))), Duration::ZERO, 100_000);
            }
            delay.jitter()
        };
        assert!(jitter(&|n| 20 + n * 9) < ms(1), "a tenth of what is sent arrives");
        assert!(jitter(&|n| 20 + n % 2 * 9) > ms(8), "early and late by turns");
    }

    /// Two paths of 20 and 50 ms, and a peer whose clock began 1000 s before ours.
    #[test]
    fn paths_compare_without_a_common_clock() {
        let arrival = |sent: u64, takes: u64| PeerTime((1_000_000 + sent + takes) * 1_000);
        let fast = OneWayTime::between(Time::after(ms(10)), arrival(10, 20));
        let slow = OneWayTime::between(Time::after(ms(300)), arrival(300, 50));
        assert_eq!(slow.beyond(fast), ms(30));
        assert_eq!(fast.minus(slow), -30_000_000);
    }

    #[test]
    fn a_queue_is_what_even_the_fastest_of_the_latest_datagrams_met() {
        let mut delay = OneWayDelay::default();
        for n in 0..200 {
            let (sent, queue) = (Time::after(ms(n)), if n < 100 { 0 } else { 15 });
            delay.on_sample(sent, OneWayTime::between(sent, PeerTime((n + 20 + queue) * 1_000)), ms(0), 100_000);
        }
        assert_eq!(delay.queue(), ms(15));
    }

    #[test]
    fn one_late_datagram_is_no_queue() {
        let mut delay = OneWayDelay::default();
        for n in 0..200 {
            let (sent, late) = (Time::after(ms(n)), if n % 4 == 0 { 0 } else { 30 });
            delay.on_sample(sent, OneWayTime::between(sent, PeerTime((n + 20 + late) * 1_000)), ms(0), 100_000);
        }
        assert_eq!(delay.queue(), ms(0));
        assert!(delay.jitter() > ms(5), "{:?}", delay.jitter());
    }

    #[test]
    fn a_few_lone_datagrams_show_about_what_many_do() {
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
    fn a_crowd_in_order_hides_no_jitter_that_lone_datagrams_showed() {
        let mut delay = OneWayDelay::default();
        let mut sample = |n: u64, late: u64, round: u64| {
            let sent = Time::after(ms(n));
            delay.on_sample(sent, OneWayTime::between(sent, PeerTime((n + 20 + late) * 1_000)), ms(0), round);
            delay.jitter()
        };
        let alone = (0..100).map(|n| sample(n * 20, n % 2 * 10, 1_000)).last().unwrap();
        assert!(alone > ms(9), "{alone:?}");
        let crowded = (2_000..4_000).map(|n| sample(n, 10, 100_000)).last().unwrap();
        assert_eq!(crowded, alone);
        let long_after = (0..2_000).map(|n| sample(5_000 + n * 20, 10, 1_000)).last().unwrap();
        assert!(long_after < ms(2), "{long_after:?}");
    }

    #[test]
    fn a_clock_that_drifts_a_hundred_parts_per_million_makes_no_queue() {
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
