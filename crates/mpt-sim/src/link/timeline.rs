//! Conditions of a link over time: pieces of constant conditions, optionally repeated.

use super::{Conditions, LinkSpec};
use mpt_proto::time::{Rate, Time};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Timeline {
    origin: Time,
    /// Pieces in order of time; the first starts at zero.
    pieces: Vec<(Duration, Conditions)>,
    period: Option<Duration>,
}

impl Timeline {
    /// Returns the timeline of `spec`, starting at `origin`.
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
        // Without a piece that sends, the search for a departure would not terminate.
        let sends = pieces.iter().any(|(_, c)| c.rate > Rate::ZERO);
        let period = period.filter(|_| sends);
        Self { origin, pieces, period }
    }

    /// Returns the conditions at `now`.
    pub(super) fn at(&self, now: Time) -> &Conditions {
        &self.pieces[self.index(self.phase(now))].1
    }

    /// Returns the end of the piece that contains `now`.
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
