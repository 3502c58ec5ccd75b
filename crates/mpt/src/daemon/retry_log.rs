//! Failures while paths and routes are synchronized with the interfaces: retried with exponential backoff, logged once.
//!
//! ```text
//!   attempt:  record, record, ...  then  finish     complete: failures that were not recorded again are resolved
//!                                  or    fail       incomplete: earlier failures may persist
//! ```
//!
//! A failure may last, such as an address in use by another program, and cause no netlink event when it ends. So
//! retries are timed: after one second, then after twice the previous interval. Changes of interfaces and addresses,
//! and new failures, reset the interval to one second. Attempts with other causes do not affect it.

use std::collections::BTreeMap;
use std::time::Duration;

use mpt_proto::time::Time;

/// The failures of the last attempt, and the time of the next one.
#[derive(Debug, Default)]
pub(super) struct RetryLog {
    /// The failed operations with their causes.
    failures: BTreeMap<String, String>,
    /// The same, for the attempt in progress.
    current: BTreeMap<String, String>,
    due: Option<Time>,
    /// Number of scheduled retries.
    retries: u32,
}

impl RetryLog {
    /// Records a failure of this attempt. Returns true if it is new.
    pub(super) fn record(&mut self, what: String, why: String) -> bool {
        if !self.failures.contains_key(&what) {
            self.reset_backoff();
        }
        let is_new = self.failures.get(&what) != Some(&why);
        match is_new {
            true => tracing::warn!(error = %why, "{what}"),
            false => tracing::debug!(error = %why, "{what}"),
        }
        self.current.insert(what, why);
        is_new
    }

    /// Ends a complete attempt.
    pub(super) fn finish(&mut self, now: Time) {
        let before = std::mem::replace(&mut self.failures, std::mem::take(&mut self.current));
        for what in before.keys().filter(|what| !self.failures.contains_key(*what)) {
            tracing::info!("resolved: {what}");
        }
        if self.failures.is_empty() {
            self.reset_backoff();
        } else if self.due.is_none() {
            self.due = Some(now + INITIAL_INTERVAL * (1 << self.retries.min(MAX_DOUBLINGS)));
            self.retries += 1;
        }
    }

    /// Ends an incomplete attempt.
    pub(super) fn fail(&mut self, now: Time, what: String, why: String) {
        self.record(what, why);
        for (what, why) in std::mem::take(&mut self.failures) {
            self.current.entry(what).or_insert(why);
        }
        self.finish(now);
    }

    /// Resets the backoff: the state changed, and another attempt follows for that reason.
    pub(super) fn reset_backoff(&mut self) {
        (self.due, self.retries) = (None, 0);
    }

    /// Returns the time of the next retry.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Returns true once if the retry is due.
    pub(super) fn take_due(&mut self, now: Time) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }
}

const INITIAL_INTERVAL: Duration = Duration::from_secs(1);
/// Limits the interval to about a minute, which is acceptable after the cause was fixed.
const MAX_DOUBLINGS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::after(Duration::from_secs(seconds))
    }

    /// Runs one attempt with these failures, and returns which of them were new.
    fn try_once(log: &mut RetryLog, now: Time, failures: &[(&str, &str)]) -> Vec<bool> {
        let new = failures.iter().map(|(what, why)| log.record((*what).to_owned(), (*why).to_owned())).collect();
        log.finish(now);
        new
    }

    /// Fails at every retry, and returns the intervals in seconds.
    fn intervals(log: &mut RetryLog, tries: usize) -> Vec<u64> {
        let wait = |_| {
            let due = log.due().expect("a next try");
            let before = Time::from_nanos(due.as_nanos() - 1);
            assert!(!log.take_due(before) && log.take_due(due) && !log.take_due(due));
            try_once(log, due, &[("eth0", "busy")]);
            log.due().expect("a next try").since(due).as_secs()
        };
        (0..tries).map(wait).collect()
    }

    #[test]
    fn failures_are_retried_with_exponential_backoff() {
        let mut log = RetryLog::default();
        try_once(&mut log, at(5), &[("eth0", "busy")]);
        assert_eq!(log.due(), Some(at(6)));
        assert_eq!(intervals(&mut log, 8), [2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn an_attempt_with_another_cause_does_not_move_the_next_retry() {
        let mut log = RetryLog::default();
        for millis in [0, 20, 40] {
            try_once(&mut log, Time::after(Duration::from_millis(millis)), &[("eth0", "busy")]);
            assert_eq!(log.due(), Some(at(1)));
        }
        assert_eq!(intervals(&mut log, 1), [2]);
    }

    #[test]
    fn success_changes_and_new_failures_reset_the_backoff() {
        let mut log = RetryLog::default();
        try_once(&mut log, at(0), &[("eth0", "busy")]);
        intervals(&mut log, 3);
        try_once(&mut log, at(9), &[]);
        assert_eq!(log.due(), None);
        try_once(&mut log, at(10), &[("eth0", "busy")]);
        assert_eq!(log.due(), Some(at(11)));
        intervals(&mut log, 3);
        log.reset_backoff();
        try_once(&mut log, at(30), &[("eth0", "busy")]);
        assert_eq!(log.due(), Some(at(31)));
        intervals(&mut log, 3);
        try_once(&mut log, at(50), &[("eth0", "busy"), ("eth1", "busy")]);
        assert_eq!(log.due(), Some(at(51)));
    }

    #[test]
    fn a_failure_is_new_once_until_it_is_resolved_or_has_another_cause() {
        let mut log = RetryLog::default();
        assert_eq!(try_once(&mut log, at(0), &[("eth0", "busy")]), [true]);
        assert_eq!(try_once(&mut log, at(1), &[("eth0", "busy"), ("eth1", "busy")]), [false, true]);
        assert_eq!(try_once(&mut log, at(2), &[("eth0", "gone"), ("eth1", "busy")]), [true, false]);
        assert_eq!(try_once(&mut log, at(3), &[("eth1", "busy")]), [false]);
        assert_eq!(try_once(&mut log, at(4), &[("eth0", "gone"), ("eth1", "busy")]), [true, false]);
    }

    #[test]
    fn another_cause_alone_does_not_reset_the_backoff() {
        let mut log = RetryLog::default();
        try_once(&mut log, at(0), &[("eth0", "busy")]);
        assert!(log.take_due(at(1)));
        try_once(&mut log, at(1), &[("eth0", "gone")]);
        assert_eq!(log.due(), Some(at(3)));
    }

    #[test]
    fn an_incomplete_attempt_resolves_nothing() {
        let mut log = RetryLog::default();
        try_once(&mut log, at(0), &[("eth0", "busy")]);
        log.fail(at(1), "all".to_owned(), "no memory".to_owned());
        assert_eq!(try_once(&mut log, at(2), &[("eth0", "busy")]), [false]);
        assert_eq!(try_once(&mut log, at(3), &[("all", "no memory")]), [true]);
    }
}
