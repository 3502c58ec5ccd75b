//! A link's conditions over time: pieces in which nothing changes, perhaps repeated.

use super::{Conditions, LinkSpec};
use mpt_proto::time::{Rate, Time};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Timeline {
    origin: Time,
    /// In order of time, the first at zero.
    pieces: Vec<(Duration, Conditions)>,
    period: Option<Duration>,
}

impl Timeline {
    /// The conditions that `spec` describes, counted from `origin`.
    pub(super) fn new(spec: &LinkSpec, origin: Time) -> Self {
        let mut pieces = vec![(Duration::ZERO, spec.start)];
        for step in &spec.steps {
            let (at, before) = pieces[pieces.len() - 1];
            pieces.push((step.at.max(at), step.change.applied_to(before)));
        }
        let period = spec.repeat.filter(|period| !period.is_zero());
        if let Some(period) = period {
            pieces.retain(|(at, _)| *at < period);
        }
        // A schedule that never sends would be searched for a departure for ever.
        let sends = pieces.iter().any(|(_, c)| c.rate > Rate::ZERO);
        let period = period.filter(|_| sends);
        Self { origin, pieces, period }
    }

    /// What holds at `now`.
    pub(super) fn at(&self, now: Time) -> &Conditions {
        &self.pieces[self.index(self.phase(now))].1
    }

    /// When the piece that holds at `now` ends.
    pub(super) fn end_of_piece(&self, now: Time) -> Time {
        let phase = self.phase(now);
        let next = self.pieces.get(self.index(phase) + 1).map(|(at, _)| *at);
        match next.or(self.period) {
            Some(end) => now + (end - phase),
            None => Time::NEVER,
        }
    }

    fn phase(&self, now: Time) -> Duration {
        let age = now.since(self.origin);
        match self.period {
            Some(period) => Duration::from_nanos(age.as_nanos() as u64 % period.as_nanos() as u64),
            None => age,
        }
    }

    fn index(&self, phase: Duration) -> usize {
        self.pieces.partition_point(|(at, _)| *at <= phase) - 1
    }
}
