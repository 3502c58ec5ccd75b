//! A path that fails again and again has to stay well before it is trusted again.
//!
//! Each failure costs the packets in flight a repair, and each return costs the congestion controller a start. A first failure
//! is forgiven: the path carries traffic as soon as it answers. Each further one soon after the last return doubles the time for
//! which the path must stay well first. Time spent well is what earns trust back. After BGP's route flap damping (RFC 2439),
//! with waiting times for its penalties; their lesson that a penalty must be bounded (RFC 7196) is kept.

use std::time::Duration;

use crate::time::Time;

/// The record of one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Damping {
    /// Failures that are not forgiven.
    failures: u32,
    /// When it last failed.
    failed: Time,
    /// When it last began to answer.
    returned: Time,
}

impl Damping {
    /// The path failed while it carried traffic.
    pub fn on_failure(&mut self, now: Time) {
        let forgiven = now.since(self.returned).as_nanos() / FORGIVEN_AFTER.as_nanos();
        self.failures = self.failures.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX)) + 1;
        self.failures = self.failures.min(WORST);
        self.failed = now;
    }

    /// The path answers again. If it does so at once, it had not failed: probes were lost by chance.
    pub fn on_return(&mut self, now: Time) {
        self.failures -= u32::from(self.failures > 0 && now.since(self.failed) < FALSE_ALARM);
        self.returned = now;
    }

    /// Until when the path, if it stays well, is not to be trusted.
    pub fn until(&self) -> Time {
        match self.failures {
            0 | 1 => self.returned,
            again => self.returned + FIRST_WAIT * (1 << (again - 2)),
        }
    }
}

/// What a second failure costs: more than a link that is up and down every third of a second ever stays well, so that it
/// is used once and no more.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The seventh failure in a row costs 32 s, and so does every one after it.
const WORST: u32 = 7;
/// Shorter than a link is away that is away at all.
const FALSE_ALARM: Duration = Duration::from_millis(100);
/// For each time so long spent well, one failure is forgiven. Satellites are handed over every 15 s, and that is no flapping.
const FORGIVEN_AFTER: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    /// How long the path must stay well after each of some failures, each a tenth of a second after the return, which
    /// comes a tenth of a second after the failure.
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
    fn a_path_that_answers_at_once_had_not_failed() {
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
    fn time_spent_well_earns_trust_back() {
        let mut damping = Damping::default();
        (0..6).for_each(|_| damping.on_failure(at(0)));
        damping.on_return(at(1_000));
        assert_eq!(damping.until(), at(17_000));
        damping.on_failure(at(41_000));
        damping.on_return(at(41_100));
        assert_eq!(damping.until(), at(43_100), "six less four, and one more");
    }
}
