//! Rate of a slow link, estimated before the link is filled. A large datagram is later than a small one by the
//! serialization delay of the difference (variable packet size probing; V. Jacobson, "pathchar", 1997), and directly
//! behind another it arrives one serialization delay after that one (packet pair; S. Keshav, SIGCOMM 1991).
//!
//! Otherwise the first packets of a flow would queue for 200 ms on a link of 2 Mbit/s and delay all other traffic. Path
//! MTU discovery sends the large datagram, and the probes of a new path beside another one are the small ones. Only
//! slow links with little jitter can be measured: on others, jitter hides the difference.
//!
//! On such a link, a full packet arrives 6 ms after a probe would, with no queue before it. So the serialization delay
//! does not count as delay of the path ([`LinkRate::serialization_delay`]).

use std::time::Duration;

use super::rtt::OneWayTime;
use crate::time::{Rate, Time};
use crate::tuning::path::packet_pair::{
    CERTAIN_JITTER_RATIO, MAX_SMALL, MIN_JITTER_RATIO, MIN_LARGE, MIN_SAMPLES, MIN_SERIALIZATION_DELAY,
};

/// The fastest small and the fastest large datagram of a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkRate {
    small: Option<(OneWayTime, u64)>,
    large: Option<(OneWayTime, u64)>,
    /// The delay of the first small datagram, and the sum of the others' excess over it in nanoseconds.
    others: Option<(OneWayTime, i64)>,
    smalls: u32,
    last: Option<(Time, OneWayTime)>,
    pair: Option<Rate>,
    samples: u32,
    rate: Option<Rate>,
    /// The first large datagram left at this time, and a later one that did not wait behind it has arrived.
    first_large: Option<(Time, OneWayTime)>,
    is_repeated: bool,
    confirmation: Confirmation,
}

/// A second large datagram, which leaves if jitter may be why the first one was late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Confirmation {
    #[default]
    Unneeded,
    Due,
    Sent,
}

impl LinkRate {
    /// Adds the delay of a datagram of `bytes` that left at `sent` and met no others but those sent with it.
    pub fn on_sample(&mut self, sent: Time, delay: OneWayTime, bytes: u64) {
        self.samples += 1;
        if let Some((last_sent, last_delay)) = self.last.replace((sent, delay)) {
            let dispersion = delay.later(sent.since(last_sent)).beyond(last_delay);
            let is_pair = sent.since(last_sent) < MIN_SERIALIZATION_DELAY
                && dispersion >= MIN_SERIALIZATION_DELAY
                && bytes >= MIN_LARGE;
            self.pair = is_pair.then(|| Rate::of(bytes, dispersion)).or(self.pair);
        }
        if bytes <= MAX_SMALL {
            let (first, sum) = self.others.unwrap_or((delay, 0));
            (self.others, self.smalls) = (Some((first, sum.saturating_add(delay.minus(first)))), self.smalls + 1);
        }
        let fastest = match bytes {
            0..=MAX_SMALL => &mut self.small,
            MIN_LARGE.. => &mut self.large,
            _ => return,
        };
        *fastest = Some(fastest.map_or((delay, bytes), |old| old.min((delay, bytes))));
        if bytes >= MIN_LARGE {
            let (first_sent, first) = *self.first_large.get_or_insert((sent, delay));
            self.is_repeated |= self.small.is_some_and(|(small, _)| sent.since(first_sent) > first.beyond(small));
        }
        self.rate = self.measure();
    }

    fn measure(&mut self) -> Option<Rate> {
        let ((small, small_bytes), (large, large_bytes)) =
            self.small.zip(self.large).filter(|_| self.samples >= MIN_SAMPLES)?;
        let difference = large.beyond(small);
        // A queue before the large one delays it, but does not change its distance from its neighbour.
        let rate = Rate::of(large_bytes - small_bytes, difference).max(self.pair.unwrap_or_default());
        let excess = self.mean_excess()?;
        let is_slow = difference >= MIN_SERIALIZATION_DELAY && difference > excess * MIN_JITTER_RATIO;
        let is_certain = self.is_repeated || difference > excess * CERTAIN_JITTER_RATIO;
        if is_slow && !is_certain && self.confirmation == Confirmation::Unneeded {
            self.confirmation = Confirmation::Due;
        }
        (is_slow && is_certain).then_some(rate)
    }

    /// Returns true, once, if another large datagram is to be sent.
    pub fn take_confirmation(&mut self) -> bool {
        let is_due = self.confirmation == Confirmation::Due;
        if is_due {
            self.confirmation = Confirmation::Sent;
        }
        is_due
    }

    /// Returns the mean excess of small datagrams over the fastest.
    fn mean_excess(&self) -> Option<Duration> {
        let ((small, _), (first, sum)) = self.small.zip(self.others)?;
        let mean = sum / i64::from(self.smalls.max(1));
        Some(Duration::from_nanos(u64::try_from(mean - small.minus(first)).unwrap_or(0)))
    }

    /// Forgets the rate if data arrived at twice that rate: the link has changed, or the large datagram was late by
    /// chance. Returns true if the rate has just been forgotten.
    pub fn invalidate(&mut self, rate: Rate) -> bool {
        self.rate.take_if(|link| rate.bytes() >= link.bytes() * 2).is_some()
    }

    /// Returns the rate of the link, if it is slow and its delays varied little.
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Returns the serialization delay of `bytes` on a slow link, zero on others: 6 ms for a full packet at 2 Mbit/s.
    pub fn serialization_delay(&self, bytes: u64) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| rate.time_for(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ack::PeerTime;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn link(large_us: u64, jitter_us: u64) -> LinkRate {
        let mut link = LinkRate::default();
        let delay = |us: u64| OneWayTime::between(Time::START, PeerTime(us));
        link.on_sample(Time::START, delay(20_000 + large_us), 1_472);
        (1..30)
            .for_each(|n| link.on_sample(Time::START + MS * 50 * n, delay(20_000 + u64::from(n) % 3 * jitter_us), 31));
        link
    }

    #[test]
    fn a_serialization_delay_of_6_ms_is_a_rate_of_2_mbit() {
        let mut link = link(5_764, 100);
        let rate = link.rate().unwrap();
        assert!((1_990_000..2_010_000).contains(&rate.bits()), "{rate:?}");
        assert_eq!(link.serialization_delay(1_472).as_millis(), 5);
        assert!(!link.invalidate(Rate::from_bits(3_000_000)), "a burst");
        assert_eq!(link.rate(), Some(rate));
        assert!(link.invalidate(Rate::from_bits(5_000_000)));
        assert_eq!((link.rate(), link.serialization_delay(1_472)), (None, Duration::ZERO));
        assert!(!link.invalidate(Rate::from_bits(5_000_000)), "returned once");
    }

    #[test]
    fn a_queue_before_a_pair_does_not_lower_the_rate() {
        let mut link = LinkRate::default();
        let delay = |us: u64| OneWayTime::between(Time::START, PeerTime(us));
        link.on_sample(Time::START, delay(21_000), 31);
        link.on_sample(Time::START, delay(21_000 + 5_914), 1_472);
        (1..30).for_each(|n| link.on_sample(Time::START + MS * 50 * n, delay(20_000), 31));
        let rate = link.rate().unwrap();
        assert!((1_985_000..1_995_000).contains(&rate.bits()), "{rate:?}");
    }

    #[test]
    fn a_fast_link_and_a_jittery_one_have_no_rate() {
        assert_eq!(link(120, 0).rate(), None);
        assert_eq!(link(5_764, 2_000).rate(), None);
        let mut late = link(27_000, 1_000);
        assert!(late.rate().is_some());
        let delay = |us: u64| OneWayTime::between(Time::START, PeerTime(us));
        (0..40).for_each(|n| late.on_sample(Time::START + MS * n, delay(20_000 + u64::from(n) * 700), 31));
        assert_eq!(late.rate(), None, "small ones are 14 ms late, too");
    }
}
