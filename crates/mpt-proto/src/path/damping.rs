//! Flap damping: a path that fails repeatedly must stay up for a while before it carries traffic again.
//!
//! Each failure costs retransmissions of the packets in flight, and each return costs a start of the congestion
//! controller. The first failure is forgiven: the path carries traffic as soon as it answers. Each further failure soon
//! after the last return doubles the waiting time. Time without failures reduces it. This follows BGP's route flap
//! damping (RFC 2439), with waiting times as penalties; a penalty is bounded, as RFC 7196 recommends.

use crate::time::Time;
use crate::tuning::path::damping::{FIRST_WAIT, FORGIVE_INTERVAL, MAX_FAILURES, MIN_OUTAGE};

/// The failures of one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Damping {
    /// Failures that were not forgiven.
    failures: u32,
    /// The time of the last failure.
    failed: Time,
    /// The time of the last return.
    returned: Time,
}

impl Damping {
    /// Counts a failure while the path carried traffic.
    pub fn on_failure(&mut self, now: Time) {
        let forgiven = now.since(self.returned).as_nanos() / FORGIVE_INTERVAL.as_nanos();
        self.failures = self.failures.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX)) + 1;
        self.failures = self.failures.min(MAX_FAILURES);
        self.failed = now;
    }

    /// Notes that the path answers again. If it does so at once, it had not failed: probes were lost by chance.
    pub fn on_return(&mut self, now: Time) {
        self.failures -= u32::from(self.failures > 0 && now.since(self.failed) < MIN_OUTAGE);
        self.returned = now;
    }

    /// Returns the time until which the path must stay up before it carries traffic.
    pub fn until(&self) -> Time {
        match self.failures {
            0 | 1 => self.returned,
            again => self.returned + FIRST_WAIT * (1 << (again - 2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    /// Returns the waiting time after each of `failures` failures: each return is 100 ms after the failure, and the
    /// next failure is `pause` ms after the return.
    fn waits(failures: u64, pause: u64) -> Vec<u64> {
        let mut damping = Damping::default();
        let mut clock = 60_000;
        (0..failures)
            .map(|_| {
                damping.on_failure(at(clock));
                damping.on_return(at(clock + 100));
                let wait = damping.until().since(at(clock + 100));
                clock += 100 + pause;
                wait.as_secs()
            })
            .collect()
    }

    #[test]
    fn the_first_failure_is_forgiven_and_each_soon_after_the_last_return_doubles_the_wait_within_bounds() {
        assert_eq!(waits(9, 100), [0, 1, 2, 4, 8, 16, 32, 32, 32]);
    }

    #[test]
    fn an_outage_below_100_ms_is_not_a_failure() {
        let mut damping = Damping::default();
        for clock in (60_000..63_000).step_by(500) {
            damping.on_failure(at(clock));
            damping.on_return(at(clock + 99));
            assert_eq!(damping.until(), at(clock + 99));
        }
    }

    #[test]
    fn failures_further_apart_than_ten_seconds_cost_nothing() {
        assert_eq!(waits(5, 10_100), [0; 5]);
    }

    #[test]
    fn time_without_failures_reduces_the_wait() {
        let mut damping = Damping::default();
        (0..6).for_each(|_| damping.on_failure(at(0)));
        damping.on_return(at(1_000));
        assert_eq!(damping.until(), at(17_000));
        damping.on_failure(at(41_000));
        damping.on_return(at(41_100));
        assert_eq!(damping.until(), at(43_100), "6 failures - 4 forgiven + 1");
    }
}
