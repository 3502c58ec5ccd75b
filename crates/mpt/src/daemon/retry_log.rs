//! What goes wrong while paths and routes follow the interfaces: it is tried again, ever more seldom, and told once.
//!
//! ```text
//!   try:  note, note, ...  then  end        all of it was looked at: what was not noted again is over
//!                          or    fail       it ended early: what was wrong before may still be so
//! ```
//!
//! A failure may last, like an address that another program holds, and bring no news when it ends. So the next try comes by itself:
//! after a second, then after twice as long each time. News of interfaces and addresses, and failures of another kind, begin
//! with a second again. Tries that others bring on meanwhile change nothing about that.

use std::collections::BTreeMap;
use std::time::Duration;

use mpt_proto::time::Time;

/// What was wrong in the last try, and when the next is due.
#[derive(Debug, Default)]
pub(super) struct RetryLog {
    /// What it was, and why.
    known: BTreeMap<String, String>,
    /// The same, of the try that has not ended.
    current: BTreeMap<String, String>,
    due: Option<Time>,
    /// How often it was waited for the next try.
    retries: u32,
}

const INITIAL_INTERVAL: Duration = Duration::from_secs(1);
/// The wait doubles as many times: to about a minute, which somebody who has put things right can bear.
const MAX_DOUBLINGS: u32 = 6;

impl RetryLog {
    /// Something went wrong in this try; whether that is new.
    pub(super) fn record(&mut self, what: String, why: String) -> bool {
        if !self.known.contains_key(&what) {
            self.reset_backoff();
        }
        let is_new = self.known.get(&what) != Some(&why);
        match is_new {
            true => tracing::warn!(error = %why, "{what}"),
            false => tracing::debug!(error = %why, "{what}"),
        }
        self.current.insert(what, why);
        is_new
    }

    /// The try has ended.
    pub(super) fn finish(&mut self, now: Time) {
        let before = std::mem::replace(&mut self.known, std::mem::take(&mut self.current));
        for what in before.keys().filter(|what| !self.known.contains_key(*what)) {
            tracing::info!("over: {what}");
        }
        if self.known.is_empty() {
            self.reset_backoff();
        } else if self.due.is_none() {
            self.due = Some(now + INITIAL_INTERVAL * (1 << self.retries.min(MAX_DOUBLINGS)));
            self.retries += 1;
        }
    }

    /// The try has ended early.
    pub(super) fn fail(&mut self, now: Time, what: String, why: String) {
        self.record(what, why);
        for (what, why) in std::mem::take(&mut self.known) {
            self.current.entry(what).or_insert(why);
        }
        self.finish(now);
    }

    /// Things have changed, and the next try comes with that.
    pub(super) fn reset_backoff(&mut self) {
        (self.due, self.retries) = (None, 0);
    }

    /// When to try again.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Whether it is time to.
    pub(super) fn take_due(&mut self, now: Time) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::after(Duration::from_secs(seconds))
    }

    /// A try with these failures, and which of them were new.
    fn try_once(trouble: &mut RetryLog, now: Time, failures: &[(&str, &str)]) -> Vec<bool> {
        let new = failures.iter().map(|(what, why)| trouble.record((*what).to_owned(), (*why).to_owned())).collect();
        trouble.finish(now);
        new
    }

    /// Tries when it is due, and fails; how many seconds each try kept waiting.
    fn intervals(trouble: &mut RetryLog, tries: usize) -> Vec<u64> {
        let wait = |_| {
            let due = trouble.due().expect("a next try");
            let before = Time::from_nanos(due.as_nanos() - 1);
            assert!(!trouble.take_due(before) && trouble.take_due(due) && !trouble.take_due(due));
            try_once(trouble, due, &[("eth0", "busy")]);
            trouble.due().expect("a next try").since(due).as_secs()
        };
        (0..tries).map(wait).collect()
    }

    #[test]
    fn what_fails_is_tried_again_ever_more_seldom() {
        let mut trouble = RetryLog::default();
        try_once(&mut trouble, at(5), &[("eth0", "busy")]);
        assert_eq!(trouble.due(), Some(at(6)));
        assert_eq!(intervals(&mut trouble, 8), [2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn a_try_that_something_else_brings_on_leaves_the_next_where_it_is() {
        let mut trouble = RetryLog::default();
        for millis in [0, 20, 40] {
            try_once(&mut trouble, Time::after(Duration::from_millis(millis)), &[("eth0", "busy")]);
            assert_eq!(trouble.due(), Some(at(1)));
        }
        assert_eq!(intervals(&mut trouble, 1), [2]);
    }

    #[test]
    fn success_news_and_other_failures_begin_with_a_second_again() {
        let mut trouble = RetryLog::default();
        try_once(&mut trouble, at(0), &[("eth0", "busy")]);
        intervals(&mut trouble, 3);
        try_once(&mut trouble, at(9), &[]);
        assert_eq!(trouble.due(), None);
        try_once(&mut trouble, at(10), &[("eth0", "busy")]);
        assert_eq!(trouble.due(), Some(at(11)));
        intervals(&mut trouble, 3);
        trouble.reset_backoff();
        try_once(&mut trouble, at(30), &[("eth0", "busy")]);
        assert_eq!(trouble.due(), Some(at(31)));
        intervals(&mut trouble, 3);
        try_once(&mut trouble, at(50), &[("eth0", "busy"), ("eth1", "busy")]);
        assert_eq!(trouble.due(), Some(at(51)));
    }

    #[test]
    fn a_failure_is_new_once_until_it_is_over_or_has_another_cause() {
        let mut trouble = RetryLog::default();
        assert_eq!(try_once(&mut trouble, at(0), &[("eth0", "busy")]), [true]);
        assert_eq!(try_once(&mut trouble, at(1), &[("eth0", "busy"), ("eth1", "busy")]), [false, true]);
        assert_eq!(try_once(&mut trouble, at(2), &[("eth0", "gone"), ("eth1", "busy")]), [true, false]);
        assert_eq!(try_once(&mut trouble, at(3), &[("eth1", "busy")]), [false]);
        assert_eq!(try_once(&mut trouble, at(4), &[("eth0", "gone"), ("eth1", "busy")]), [true, false]);
    }

    #[test]
    fn another_cause_alone_does_not_hurry() {
        let mut trouble = RetryLog::default();
        try_once(&mut trouble, at(0), &[("eth0", "busy")]);
        assert!(trouble.take_due(at(1)));
        try_once(&mut trouble, at(1), &[("eth0", "gone")]);
        assert_eq!(trouble.due(), Some(at(3)));
    }

    #[test]
    fn a_try_that_ends_early_ends_nothing_else() {
        let mut trouble = RetryLog::default();
        try_once(&mut trouble, at(0), &[("eth0", "busy")]);
        trouble.fail(at(1), "all".to_owned(), "no memory".to_owned());
        assert_eq!(try_once(&mut trouble, at(2), &[("eth0", "busy")]), [false]);
        assert_eq!(try_once(&mut trouble, at(3), &[("all", "no memory")]), [true]);
    }
}
