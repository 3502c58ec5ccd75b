//! Rate of a slow link, estimated before the link is filled. A large datagram is later than a small one by the
//! serialization delay of the difference (variable packet size probing; V. Jacobson, "pathchar", 1997), and directly
//! behind another it arrives one serialization delay after that one (packet pair; S. Keshav, SIGCOMM 1991).
//!
//! Otherwise the first packets of a flow would queue for 200 ms on a link of 2 Mbit/s and delay all other traffic. Path
//! MTU discovery sends the large datagram, and the probes of a new path beside another one are the small ones, most of
//! which leave before it. Only slow links with little jitter can be measured: on others, jitter hides the difference.
//! Where jitter may be why the large datagram was late, another one decides. A fast link that counted as slow for two
//! seconds had a third of its goodput for ten: the inner flow's slow start had ended.
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
    /// The delay of the first small datagram, and the sum of the others' excess over it in nanoseconds, without those
    /// behind the first large one.
    others: Option<(OneWayTime, i64)>,
    smalls: u32,
    last: Option<(Time, OneWayTime)>,
    pair: Option<Rate>,
    samples: u32,
    rate: Option<Rate>,
    /// Send time and delay of the first large datagram.
    first_large: Option<(Time, OneWayTime)>,
    second_large: SecondLarge,
}

/// A large datagram that did not wait behind the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SecondLarge {
    #[default]
    None,
    /// Jitter may be why the first one was late, so one is to be sent.
    Due,
    Sent,
    Arrived,
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
        if bytes <= MAX_SMALL && !self.is_behind_first_large(sent) {
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
            self.first_large.get_or_insert((sent, delay));
            if !self.is_behind_first_large(sent) {
                self.second_large = SecondLarge::Arrived;
            }
        }
        self.rate = self.measure();
    }

    /// Returns true if a datagram that left at `sent` is the first large one, or waited behind it.
    fn is_behind_first_large(&self, sent: Time) -> bool {
        let Some((first_sent, first)) = self.first_large else { return false };
        let small = self.small.map_or(first, |(small, _)| small);
        sent >= first_sent && sent.since(first_sent) <= first.beyond(small)
    }

    fn measure(&mut self) -> Option<Rate> {
        let ((small, small_bytes), (large, large_bytes)) =
            self.small.zip(self.large).filter(|_| self.samples >= MIN_SAMPLES)?;
        let difference = large.beyond(small);
        // A queue before the large one delays it, but does not change its distance from its neighbour.
        let rate = Rate::of(large_bytes - small_bytes, difference).max(self.pair.unwrap_or_default());
        let excess = self.mean_excess()?;
        let is_slow = difference >= MIN_SERIALIZATION_DELAY && difference > excess * MIN_JITTER_RATIO;
        let is_certain = self.second_large == SecondLarge::Arrived || difference > excess * CERTAIN_JITTER_RATIO;
        if is_slow && !is_certain && self.second_large == SecondLarge::None {
            self.second_large = SecondLarge::Due;
        }
        (is_slow && is_certain).then_some(rate)
    }

    /// Returns true, once, if another large datagram is to be sent, because jitter may be why the first one was late.
    pub fn take_second_large(&mut self) -> bool {
        let is_due = self.second_large == SecondLarge::Due;
        if is_due {
            self.second_large = SecondLarge::Sent;
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

    /// A link whose small datagrams are 0, 1 and 2 ms late, and a large one by `first_us`.
    fn doubtful(first_us: u64) -> LinkRate {
        let mut link = LinkRate::default();
        let delay = |us: u64| OneWayTime::between(Time::START, PeerTime(us));
        (0..18).for_each(|n| link.on_sample(Time::START + MS * 5 * n, delay(20_000 + u64::from(n) % 3 * 1_000), 31));
        link.on_sample(Time::START + MS * 90, delay(20_000 + first_us), 1_472);
        link
    }

    #[test]
    fn where_jitter_may_be_the_cause_a_second_large_datagram_decides() {
        let second = |link: &mut LinkRate, sent_ms: u32, us: u64| {
            link.on_sample(Time::START + MS * sent_ms, OneWayTime::between(Time::START, PeerTime(20_000 + us)), 1_472);
            link.rate().map(|rate| rate.bits() / 1_000)
        };
        let mut link = doubtful(10_000);
        assert_eq!(link.rate(), None, "ten times the mean lateness");
        assert!(link.take_second_large() && !link.take_second_large(), "once");
        assert_eq!(second(&mut link.clone(), 200, 500), None, "the first one was late by chance");
        assert_eq!(second(&mut link.clone(), 95, 16_000), None, "it waited behind the first one");
        assert_eq!(second(&mut link, 200, 11_000), Some(1_152));
        assert!(!doubtful(3_000).take_second_large(), "jitter hides it");
        let mut certain = doubtful(20_000);
        assert!(certain.rate().is_some() && !certain.take_second_large());
    }

    #[test]
    fn small_datagrams_behind_the_large_one_are_not_late_by_jitter() {
        let mut link = LinkRate::default();
        let delay = |us: u64| OneWayTime::between(Time::START, PeerTime(us));
        link.on_sample(Time::START, delay(20_000), 31);
        link.on_sample(Time::START, delay(50_000), 1_472);
        (1..10).for_each(|n| {
            link.on_sample(Time::START + MS * 5 * n, delay(20_000 + (6 - u64::from(n.min(6))) * 5_000), 31)
        });
        assert!(link.rate().is_some_and(|rate| rate.bits() < 400_000), "{:?}", link.rate());
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
