//! TAI64N timestamps (Bernstein, "TAI64, TAI64N, and TAI64NA"): they protect the first message from replay.
//!
//! A responder stores the greatest timestamp of a peer and refuses one that is not greater, so a replayed first message
//! has no effect. Only the order of one end's timestamps matters; the clocks of the two ends need not agree.

use std::time::Duration;

use crate::time::Time;

/// Seconds and nanoseconds of TAI, big-endian, so that comparing bytes compares instants. Zero is before all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tai64n([u8; LEN]);

/// Bytes of a timestamp.
pub const LEN: usize = 12;

impl Tai64n {
    /// Returns the timestamp `since_1970` after the start of 1970, in Unix time.
    pub fn from_unix(since_1970: Duration) -> Self {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&EPOCH.saturating_add(since_1970.as_secs()).to_be_bytes());
        bytes[8..].copy_from_slice(&since_1970.subsec_nanos().to_be_bytes());
        Self(bytes)
    }

    /// Decodes a timestamp.
    pub const fn from_bytes(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the next greater timestamp.
    fn successor(self) -> Self {
        let (seconds, nanos) = self.split();
        let next = Duration::new(seconds, nanos).saturating_add(Duration::from_nanos(1));
        let mut bytes = self.0;
        bytes[..8].copy_from_slice(&next.as_secs().to_be_bytes());
        bytes[8..].copy_from_slice(&next.subsec_nanos().to_be_bytes());
        Self(bytes)
    }

    /// Returns true if a clock may show it: after 1970, before 2242, and less than a second of nanoseconds.
    fn is_plausible(self) -> bool {
        let (seconds, nanos) = self.split();
        (EPOCH..EPOCH + (1 << 33)).contains(&seconds) && nanos < 1_000_000_000
    }

    fn split(self) -> (u64, u32) {
        let [a, b, c, d, e, f, g, h, nanos @ ..] = self.0;
        (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes(nanos))
    }

    /// Returns the timestamp as encoded in a message.
    pub const fn to_bytes(self) -> [u8; LEN] {
        self.0
    }
}

/// The wall clock, as it was last passed in, advanced by the process's own time. Its timestamps increase even if the
/// clock is set back: a responder refuses an initiation that is not newer than the one before.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The wall clock's time at [`Time::START`].
    at_start: Duration,
    /// The last timestamp that was sent.
    last: Tai64n,
}

impl Clock {
    /// Makes a clock that showed `since_1970` at [`Time::START`].
    pub const fn new(since_1970: Duration) -> Self {
        Self { at_start: since_1970, last: Tai64n([0; LEN]) }
    }

    /// Continues after the last timestamp of an earlier run of this end. One that no clock shows is ignored.
    pub fn resume_after(&mut self, last: Tai64n) {
        if last.is_plausible() {
            self.last = self.last.max(last);
        }
    }

    /// Sets the clock, which shows `since_1970` at `now`. A host may start with a wrong clock and set it right later.
    pub fn set(&mut self, now: Time, since_1970: Duration) {
        self.at_start = since_1970.saturating_sub(now - Time::START);
    }

    /// Returns the timestamp of an initiation that is sent `now`: that of the clock, or the one after the last.
    pub fn next(&mut self, now: Time) -> Tai64n {
        let shown = Tai64n::from_unix(self.at_start.saturating_add(now - Time::START));
        self.last = shown.max(self.last.successor());
        self.last
    }

    /// Returns the last timestamp that was sent, if there is one.
    pub fn last(&self) -> Option<Tai64n> {
        Some(self.last).filter(|last| *last != Tai64n::default())
    }
}

/// 1970-01-01 in TAI64: 2^62, plus the ten seconds by which TAI was ahead of UTC when leap seconds began.
const EPOCH: u64 = (1 << 62) + 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_1970_is_ten_seconds_after_the_middle_of_tai64() {
        assert_eq!(Tai64n::from_unix(Duration::from_nanos(1)).to_bytes(), *b"\x40\0\0\0\0\0\0\x0a\0\0\0\x01");
    }

    #[test]
    fn later_is_greater() {
        let mut clock = Clock::new(Duration::from_secs(1_700_000_000));
        let times = [0, 1, 999_999_999, 1_000_000_000, 1 << 40].map(|nanos| clock.next(Time::from_nanos(nanos)));
        assert!(times.is_sorted_by(|a, b| a < b));
        assert!(Tai64n::default() < times[0]);
    }

    #[test]
    fn timestamps_follow_a_clock_that_is_set_and_never_decrease() {
        let unix = |seconds, nanos| Tai64n::from_unix(Duration::new(seconds, nanos));
        let at = |seconds| Time::after(Duration::from_secs(seconds));
        let mut clock = Clock::new(Duration::from_secs(1_000));
        assert_eq!((clock.last(), clock.next(at(1)), clock.last()), (None, unix(1_001, 0), Some(unix(1_001, 0))));
        clock.set(at(2), Duration::new(5_000, 999_999_999));
        assert_eq!(clock.next(at(2)), unix(5_000, 999_999_999));
        clock.set(at(3), Duration::from_secs(70));
        assert_eq!([3, 4].map(|now| clock.next(at(now))), [unix(5_001, 0), unix(5_001, 1)]);
        clock.set(at(5), Duration::from_secs(6_000));
        assert_eq!(clock.next(at(15)), unix(6_010, 0));
    }

    #[test]
    fn a_clock_resumes_after_an_earlier_run_and_ignores_what_no_clock_shows() {
        let mut clock = Clock::new(Duration::from_secs(1_000));
        for implausible in [Tai64n([0xff; LEN]), Tai64n([0; LEN]), Tai64n(*b"\x40\0\0\0\0\0\xff\xff\xff\xff\xff\xff")] {
            clock.resume_after(implausible);
        }
        assert_eq!(clock.last(), None);
        clock.resume_after(Tai64n::from_unix(Duration::from_secs(4_600)));
        assert_eq!(clock.next(Time::START), Tai64n::from_unix(Duration::new(4_600, 1)));
    }
}
