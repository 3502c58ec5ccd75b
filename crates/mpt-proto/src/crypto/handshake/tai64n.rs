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

    /// Returns the timestamp as encoded in a message.
    pub const fn to_bytes(self) -> [u8; LEN] {
        self.0
    }
}

/// The wall clock, read once at the start of the process; afterwards the process's own time advances it, so that
/// setting the clock back does not make our timestamps old.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Duration);

impl Clock {
    /// Makes a clock that showed `since_1970` at [`Time::START`].
    pub const fn new(since_1970: Duration) -> Self {
        Self(since_1970)
    }

    /// Returns the timestamp of `now`.
    pub fn at(&self, now: Time) -> Tai64n {
        Tai64n::from_unix(self.0.saturating_add(now - Time::START))
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
        let clock = Clock::new(Duration::from_secs(1_700_000_000));
        let times = [0, 1, 999_999_999, 1_000_000_000, 1 << 40].map(|nanos| clock.at(Time::from_nanos(nanos)));
        assert!(times.is_sorted_by(|a, b| a < b));
        assert!(Tai64n::default() < times[0]);
    }
}
