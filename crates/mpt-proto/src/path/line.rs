//! How fast a slow line is, before it has been filled: a large datagram takes longer than a small one by what the line takes for the
//! difference (variable packet size probing; V. Jacobson, "pathchar", 1997).
//!
//! The first packets of a flow would otherwise fill a line of 2 Mbit/s for a fifth of a second, and whatever else is on it would
//! wait. Path MTU discovery sends the large datagram, and the probes of a new path are the small ones. Only slow and steady lines
//! can be told so: on others the difference drowns in jitter.

use std::time::Duration;

use super::rtt::OneWay;
use crate::time::Rate;

/// The quickest small datagram of a path, and the quickest large one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    small: Option<(OneWay, u64)>,
    large: Option<(OneWay, u64)>,
    samples: u32,
}

impl Line {
    /// Takes in the delay of a datagram of so many bytes, which met no other.
    pub fn on_sample(&mut self, delay: OneWay, bytes: u64) {
        self.samples += 1;
        let quickest = match bytes {
            0..=SMALL => &mut self.small,
            LARGE.. => &mut self.large,
            _ => return,
        };
        *quickest = Some(quickest.map_or((delay, bytes), |old| old.min((delay, bytes))));
    }

    /// Its rate, if it is slow and its delays vary little.
    pub fn rate(&self, jitter: Duration) -> Option<Rate> {
        let ((small, few), (large, many)) = self.small.zip(self.large).filter(|_| self.samples >= ENOUGH)?;
        let longer = large.beyond(small);
        (longer >= SLOW && longer > jitter * CLEAR).then(|| Rate::of(many - few, longer))
    }
}

/// Bytes of a datagram that is small, at most, and of one that is large, at least.
const SMALL: u64 = 200;
pub const LARGE: u64 = 1_000;
/// Jitter has to be known first.
const ENOUGH: u32 = 24;
/// Six Mbit/s: what is faster need not be spared.
const SLOW: Duration = Duration::from_millis(2);
/// By how many times the difference must exceed jitter.
const CLEAR: u32 = 4;

#[cfg(test)]
mod tests {
    use super::super::ack::PeerTime;
    use super::*;
    use crate::time::Time;

    const MS: Duration = Duration::from_millis(1);

    fn line(large_us: u64) -> Line {
        let mut line = Line::default();
        let delay = |us: u64| OneWay::between(Time::START, PeerTime(us));
        line.on_sample(delay(20_000 + large_us), 1_472);
        (0..30).for_each(|n| line.on_sample(delay(20_000 + n % 3 * 100), 31));
        line
    }

    #[test]
    fn six_milliseconds_for_a_packet_are_two_megabits() {
        let rate = line(5_764).rate(MS / 10).unwrap();
        assert!((1_990_000..2_010_000).contains(&rate.bits()), "{rate:?}");
    }

    #[test]
    fn a_fast_line_and_an_unsteady_one_say_nothing() {
        assert_eq!(line(120).rate(Duration::ZERO), None);
        assert_eq!(line(5_764).rate(MS * 2), None);
    }
}
