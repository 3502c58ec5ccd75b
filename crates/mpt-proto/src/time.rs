//! Time and rate as values. This module reads no clock; the caller passes them in.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// Nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the run.
    pub const START: Self = Self(0);
    /// Later than any time of a run (584 years).
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the time `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the time `since_start` after the start.
    pub const fn after(since_start: Duration) -> Self {
        Self(since_start.as_nanos() as u64)
    }

    /// Returns the nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by.as_nanos() as u64))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl Sub<Duration> for Time {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by.as_nanos() as u64))
    }
}

impl Sub for Time {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// A rate in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// Zero: nothing is ever sent.
    pub const ZERO: Self = Self(0);
    /// No limit.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a rate from bytes per second.
    pub const fn from_bytes(per_second: u64) -> Self {
        Self(per_second)
    }

    /// Creates a rate from bits per second.
    pub const fn from_bits(per_second: u64) -> Self {
        Self(per_second / 8)
    }

    /// Returns the rate of `bytes` in `time`; [`Rate::MAX`] if `time` is zero.
    pub const fn of(bytes: u64, time: Duration) -> Self {
        let nanos = time.as_nanos();
        if nanos == 0 {
            return Self::MAX;
        }
        let rate = bytes as u128 * 1_000_000_000 / nanos;
        Self(if rate > u64::MAX as u128 { u64::MAX } else { rate as u64 })
    }

    /// Returns bytes per second.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Returns bits per second.
    pub const fn bits(self) -> u64 {
        self.0.saturating_mul(8)
    }

    /// Returns the time that `bytes` take at this rate; 584 years at [`Rate::ZERO`].
    pub const fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration::from_nanos(u64::MAX);
        }
        let nanos = bytes as u128 * 1_000_000_000 / self.0 as u128;
        Duration::from_nanos(if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 })
    }

    /// Returns the bytes in `time` at this rate.
    pub const fn bytes_in(self, time: Duration) -> u64 {
        let bytes = (self.0 as u128).saturating_mul(time.as_nanos()) / 1_000_000_000;
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }

    /// Returns this rate times `factor`.
    pub fn scale(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bytes_over_time_and_back() {
        let ten_mbit = Rate::from_bits(10_000_000);
        assert_eq!(ten_mbit.bytes(), 1_250_000);
        assert_eq!(ten_mbit.time_for(1_250), Duration::from_millis(1));
        assert_eq!(ten_mbit.bytes_in(Duration::from_millis(2)), 2_500);
        assert_eq!(Rate::of(2_500, Duration::from_millis(2)), ten_mbit);
    }

    #[test]
    fn nothing_passes_at_rate_zero_and_nothing_overflows() {
        assert!(Rate::ZERO.time_for(1) > Duration::from_secs(1 << 30));
        assert_eq!(Rate::of(1, Duration::ZERO), Rate::MAX);
        assert_eq!(Rate::MAX.bytes_in(Duration::from_secs(1 << 60)), u64::MAX);
        assert_eq!(Time::NEVER + Duration::from_secs(1), Time::NEVER);
    }

    #[test]
    fn time_before_the_start_is_the_start() {
        assert_eq!(Time::START - Duration::from_secs(1), Time::START);
        assert_eq!(Time::START - Time::from_nanos(5), Duration::ZERO);
    }
}
