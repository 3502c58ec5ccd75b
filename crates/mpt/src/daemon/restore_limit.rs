//! Limits how often the state of a tunnel is restored while another program deletes it again and again.

use std::time::Duration;

use mpt_proto::time::Time;

use crate::Failure;

/// The recent restorations of one kind of state.
#[derive(Debug, Default)]
pub struct RestoreLimit {
    count: u32,
    last: Option<Time>,
    /// Time of the last failure that was logged.
    failed: Option<Time>,
    /// Time of the next check, if one was deferred.
    due: Option<Time>,
}

impl RestoreLimit {
    /// Returns true if nothing may be restored yet. The check is then due later.
    pub fn defers(&mut self, now: Time) -> bool {
        let next = self.last.filter(|_| self.count >= BURST).map(|last| last + INTERVAL);
        self.due = next.filter(|next| *next > now);
        self.due.is_some()
    }

    /// Returns the time of a deferred check.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// Returns true, once, if a deferred check is due.
    pub fn take_due(&mut self, now: Time) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// Logs a failed restoration, unless one was logged within [`CALM`]. The next change of the state tries again.
    pub fn on_failed(&mut self, now: Time, what: &str, failure: &Failure) {
        if self.failed.is_none_or(|failed| now.since(failed) > CALM) {
            tracing::warn!(%failure, "{what}");
            self.failed = Some(now);
        }
    }

    /// Counts a restoration, and logs it unless there were many.
    pub fn on_restored(&mut self, now: Time, what: &str) {
        if self.last.is_some_and(|last| now.since(last) > CALM) {
            self.count = 0;
        }
        (self.count, self.last) = (self.count + 1, Some(now));
        match self.count {
            BURST => tracing::warn!("{what}, again and again; restored at most once a second, and no longer logged"),
            count if count < BURST => tracing::warn!("{what}; restored"),
            _ => {}
        }
    }
}

/// Restorations without a delay.
const BURST: u32 = 6;
/// Minimum interval of the following ones.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time without a restoration after which counting begins again.
const CALM: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::after(Duration::from_millis(millis))
    }

    #[test]
    fn a_program_that_deletes_again_and_again_causes_one_restoration_a_second() {
        let mut limit = RestoreLimit::default();
        let deleted_every_10_ms = |limit: &mut RestoreLimit, from: u64| {
            let mut restored = 0;
            for now in (from..from + 10_000).step_by(10).map(at) {
                if !limit.defers(now) {
                    limit.on_restored(now, "rules were deleted");
                    restored += 1;
                }
            }
            restored
        };
        assert_eq!(deleted_every_10_ms(&mut limit, 0), 6 + 9);
        assert_eq!(limit.due(), Some(at(10_050)));
        assert!(!limit.take_due(at(10_049)) && limit.take_due(at(10_050)) && !limit.take_due(at(10_050)));
        assert!(!limit.defers(at(80_000)));
        assert_eq!(deleted_every_10_ms(&mut limit, 80_000), 6 + 9);
    }
}
