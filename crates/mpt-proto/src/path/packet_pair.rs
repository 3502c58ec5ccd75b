//! How fast a slow line is, before it has been filled: a large datagram takes longer than a small one by what the line takes for the
//! difference (variable packet size probing; V. Jacobson, "pathchar", 1997), and right behind another arrives by what the line takes for it
//! after that one (packet pair; S. Keshav, SIGCOMM 1991).
//!
//! The first packets of a flow would otherwise fill a line of 2 Mbit/s for a fifth of a second, and whatever else is on it would
//! wait. Path MTU discovery sends the large datagram, and the probes of a new path are the small ones. Only slow and steady lines
//! can be told so: on others the difference drowns in jitter.
//!
//! On such a line a full packet comes 6 ms after a probe would, with no queue before it. So what the line takes for a datagram is not counted
//! as delay of the path ([`Line::takes`]).

use std::time::Duration;

use super::rtt::OneWayTime;
use crate::time::{Rate, Time};

/// The quickest small datagram of a path, and the quickest large one.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkRate {
    small: Option<(OneWayTime, u64)>,
    large: Option<(OneWayTime, u64)>,
    /// The first small one, and by how much the others exceed it in sum, in nanoseconds.
    others: Option<(OneWayTime, i64)>,
    smalls: u32,
    last: Option<(Time, OneWayTime)>,
    pair: Option<Rate>,
    samples: u32,
    rate: Option<Rate>,
}

impl LinkRate {
    /// Takes in the delay of a datagram of so many bytes that left at `sent` and met no others but those sent with it. Delays vary by
    /// `jitter`.
    pub fn on_sample(&mut self, sent: Time, delay: OneWayTime, bytes: u64, jitter: Duration) {
        self.samples += 1;
        if let Some((before, earlier)) = self.last.replace((sent, delay)) {
            let apart = delay.later(sent.since(before)).beyond(earlier);
            let together = sent.since(before) < SLOW && apart >= SLOW && bytes >= LARGE;
            self.pair = together.then(|| Rate::of(bytes, apart)).or(self.pair);
        }
        if bytes <= SMALL {
            let (first, sum) = self.others.unwrap_or((delay, 0));
            (self.others, self.smalls) = (Some((first, sum.saturating_add(delay.minus(first)))), self.smalls + 1);
        }
        let quickest = match bytes {
            0..=SMALL => &mut self.small,
            LARGE.. => &mut self.large,
            _ => return,
        };
        *quickest = Some(quickest.map_or((delay, bytes), |old| old.min((delay, bytes))));
        self.rate = self.measure(jitter);
    }

    fn measure(&self, jitter: Duration) -> Option<Rate> {
        let ((small, few), (large, many)) = self.small.zip(self.large).filter(|_| self.samples >= ENOUGH)?;
        let longer = large.beyond(small);
        // What stood before the large one makes it later, but not the distance from its neighbour.
        let rate = Rate::of(many - few, longer).max(self.pair.unwrap_or_default());
        let late = self.lateness()?;
        (longer >= SLOW && longer > jitter * CLEAR && longer > late * CLEAR).then_some(rate)
    }

    /// By how much small datagrams are later than the quickest on average.
    fn lateness(&self) -> Option<Duration> {
        let ((small, _), (first, sum)) = self.small.zip(self.others)?;
        let mean = sum / i64::from(self.smalls.max(1));
        Some(Duration::from_nanos(u64::try_from(mean - small.minus(first)).unwrap_or(0)))
    }

    /// Forgets the rate if more arrived than the line was thought to pass: it is another by now, or the large datagram was late by chance. True
    /// when it has just been forgotten.
    pub fn invalidate(&mut self, rate: Rate) -> bool {
        self.rate.take_if(|line| rate.bytes() >= line.bytes() * 2).is_some()
    }

    /// Its rate, if it is slow and its delays varied little.
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// What the line takes for so many bytes, if it is slow: a full packet is 6 ms later than a probe at 2 Mbit/s, with no queue before it.
    pub fn serialization_delay(&self, bytes: u64) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| rate.time_for(bytes))
    }
}

/// Bytes of a datagram that is small, at most.
const SMALL: u64 = 200;
/// Bytes of a datagram that is large, at least.
pub const LARGE: u64 = 1_000;
/// Jitter has to be known first.
const ENOUGH: u32 = 24;
/// Six Mbit/s: what is faster need not be spared.
const SLOW: Duration = Duration::from_millis(2);
/// By how many times the difference must exceed jitter, and the lateness of small ones.
const CLEAR: u32 = 4;

#[cfg(test)]
mod tests {
    use super::super::ack::PeerTime;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn line(large_us: u64, jitter: Duration) -> LinkRate {
        let mut line = LinkRate::default();
        let delay = |us: u64| OneWayTime::between(Time::START, PeerTime(us));
        line.on_sample(Time::START, delay(20_000 + large_us), 1_472, jitter);
        (1..30).for_each(|n| {
            line.on_sample(Time::START + MS * 50 * n, delay(20_000 + u64::from(n) % 3 * 100), 31, jitter)
        });
        line
    }

    #[test]
    fn six_milliseconds_for_a_packet_are_two_megabits() {
        let mut line = line(5_764, MS / 10);
        let rate = line.rate().unwrap();
        assert!((1_990_000..2_010_000).contains(&rate.bits()), "{rate:?}");
        assert_eq!(line.serialization_delay(1_472).as_millis(), 5);
        assert!(!line.invalidate(Rate::from_bits(3_000_000)), "a burst");
        assert_eq!(line.rate(), Some(rate));
        assert!(line.invalidate(Rate::from_bits(5_000_000)));
        assert_eq!((line.rate(), line.serialization_delay(1_472)), (None, Duration::ZERO));
        assert!(!line.invalidate(Rate::from_bits(5_000_000)), "said once");
    }

    #[test]
    fn what_stands_before_a_pair_makes_no_slower_line() {
        let mut line = LinkRate::default();
        let delay = |us: u64| OneWayTime::between(Time::START, PeerTime(us));
        line.on_sample(Time::START, delay(21_000), 31, Duration::ZERO);
        line.on_sample(Time::START, delay(21_000 + 5_914), 1_472, Duration::ZERO);
        (1..30).for_each(|n| line.on_sample(Time::START + MS * 50 * n, delay(20_000), 31, Duration::ZERO));
        let rate = line.rate().unwrap();
        assert!((1_985_000..1_995_000).contains(&rate.bits()), "{rate:?}");
    }

    #[test]
    fn a_fast_line_and_an_unsteady_one_say_nothing() {
        assert_eq!(line(120, Duration::ZERO).rate(), None);
        assert_eq!(line(5_764, MS * 2).rate(), None);
        let mut late = line(27_000, MS);
        assert!(late.rate().is_some());
        let delay = |us: u64| OneWayTime::between(Time::START, PeerTime(us));
        (0..40).for_each(|n| late.on_sample(Time::START + MS * n, delay(20_000 + u64::from(n) * 700), 31, MS));
        assert_eq!(late.rate(), None, "small ones are 14 ms late as well");
    }
}
