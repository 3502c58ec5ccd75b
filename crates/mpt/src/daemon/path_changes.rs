//! Collects changes of paths for log, events and hooks.
//!
//! A path that comes back carries traffic after a datagram of full size has passed, a round trip later. Nobody needs to
//! know of that time, so the states before and after it are reported as one change.

use std::collections::BTreeMap;
use std::mem;

use mpt_proto::path::{Demotion, PathState};
use mpt_proto::time::Time;

use super::peer_limit::{INTERVAL, PeerLimit};

/// Changes that are not reported yet.
#[derive(Debug, Default)]
pub(super) struct PathChanges {
    fresh: Vec<PathChange>,
    /// The last reported state of paths whose size is being probed, by the names of peer and path.
    probed: BTreeMap<(String, String), PathState>,
    limit: PeerLimit,
}

/// A change of a path's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathChange {
    pub(super) peer: String,
    pub(super) path: String,
    pub(super) from: PathState,
    pub(super) to: PathState,
}

impl PathChanges {
    /// Records a change. Several changes of a path before it is reported become one.
    pub(super) fn record(&mut self, change: PathChange) {
        let is_same = |other: &&mut PathChange| (&other.peer, &other.path) == (&change.peer, &change.path);
        if let Some(earlier) = self.fresh.iter_mut().find(is_same) {
            earlier.to = change.to;
            return;
        }
        let reported = self.probed.remove(&(change.peer.clone(), change.path.clone()));
        self.fresh.push(PathChange { from: reported.unwrap_or(change.from), ..change });
    }

    /// Forgets the changes of a peer that is removed.
    pub(super) fn forget(&mut self, peer: &str) {
        self.fresh.retain(|change| change.peer != peer);
        self.probed.retain(|(of, _), _| of != peer);
    }

    /// Returns the changes that are to be reported now.
    pub(super) fn take(&mut self, now: Time) -> Vec<PathChange> {
        let (held, mut ready): (Vec<_>, Vec<_>) = mem::take(&mut self.fresh)
            .into_iter()
            .partition(|change| change.to == PathState::Demoted(Demotion::Unproven));
        self.probed.extend(held.into_iter().map(|change| ((change.peer, change.path), change.from)));
        ready.retain(|change| change.from != change.to);
        let Self { fresh, limit, .. } = self;
        fresh.extend(ready.extract_if(.., |change| !limit.take(now, &change.peer)));
        ready
    }

    /// Returns when a change that is not reported yet may be due.
    pub(super) fn next_deadline(&self, now: Time) -> Option<Time> {
        (!self.fresh.is_empty()).then(|| now + INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use mpt_proto::path::DownCause;

    const SILENT: PathState = PathState::Down(DownCause::Silent);
    const UNPROVEN: PathState = PathState::Demoted(Demotion::Unproven);
    const NARROW: PathState = PathState::Demoted(Demotion::Narrow);

    /// Returns what is reported after a turn with these states of a path, the first one before it.
    fn turn(changes: &mut PathChanges, states: &[PathState]) -> Vec<(PathState, PathState)> {
        for pair in states.windows(2) {
            let (peer, path) = ("office".to_owned(), "eth1".to_owned());
            changes.record(PathChange { peer, path, from: pair[0], to: pair[1] });
        }
        changes.take(Time::START).into_iter().map(|change| (change.from, change.to)).collect()
    }

    #[test]
    fn a_peer_that_changes_its_status_all_the_time_causes_few_lines() {
        let mut changes = PathChanges::default();
        let mut reported = Vec::new();
        for n in 0..10_001_u64 {
            let now = Time::after(Duration::from_millis(n));
            let states = if n % 2 == 0 { [PathState::Up, SILENT] } else { [SILENT, PathState::Up] };
            let (peer, path) = ("office".to_owned(), "eth1".to_owned());
            changes.record(PathChange { peer, path, from: states[0], to: states[1] });
            reported.extend(changes.take(now));
        }
        assert!((64..=75).contains(&reported.len()), "{}", reported.len());
        assert!(reported.windows(2).all(|pair| pair[0].to == pair[1].from), "none is missing in between");
        let now = Time::after(Duration::from_secs(20));
        reported.extend(changes.take(now));
        assert_eq!((reported.last().map(|change| change.to), changes.next_deadline(now)), (Some(SILENT), None));
    }

    #[test]
    fn a_path_that_comes_back_is_one_change() {
        let mut changes = PathChanges::default();
        assert_eq!(turn(&mut changes, &[SILENT, PathState::Up, UNPROVEN]), []);
        assert_eq!(turn(&mut changes, &[UNPROVEN, PathState::Up]), [(SILENT, PathState::Up)]);
        assert_eq!(turn(&mut changes, &[PathState::Up, SILENT]), [(PathState::Up, SILENT)]);
    }

    #[test]
    fn a_probe_that_ends_in_the_state_before_it_is_no_change() {
        let mut changes = PathChanges::default();
        assert_eq!(turn(&mut changes, &[PathState::Up, UNPROVEN]), []);
        assert_eq!(turn(&mut changes, &[UNPROVEN, PathState::Up]), []);
        assert_eq!(turn(&mut changes, &[SILENT, PathState::Up, UNPROVEN]), []);
        assert_eq!(turn(&mut changes, &[UNPROVEN, NARROW]), [(SILENT, NARROW)]);
    }
}
