//! Collects changes of paths for log, events and hooks.
//!
//! A path that comes back carries traffic after a datagram of full size has passed, a round trip later. Nobody needs to
//! know of that time, so the states before and after it are reported as one change.

use std::collections::BTreeMap;
use std::mem;

use mpt_proto::path::{Demotion, PathState};

/// Changes that are not reported yet.
#[derive(Debug, Default)]
pub(super) struct PathChanges {
    fresh: Vec<PathChange>,
    /// The last reported state of paths whose size is being probed, by the names of peer and path.
    probed: BTreeMap<(String, String), PathState>,
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
    /// Records a change. Several changes of a path in one turn become one.
    pub(super) fn record(&mut self, change: PathChange) {
        let is_same = |other: &&mut PathChange| (&other.peer, &other.path) == (&change.peer, &change.path);
        if let Some(earlier) = self.fresh.iter_mut().find(is_same) {
            earlier.to = change.to;
            return;
        }
        let reported = self.probed.remove(&(change.peer.clone(), change.path.clone()));
        self.fresh.push(PathChange { from: reported.unwrap_or(change.from), ..change });
    }

    /// Returns the changes of this turn that are to be reported.
    pub(super) fn take(&mut self) -> Vec<PathChange> {
        let (held, ready): (Vec<_>, Vec<_>) = mem::take(&mut self.fresh)
            .into_iter()
            .partition(|change| change.to == PathState::Demoted(Demotion::Unproven));
        self.probed.extend(held.into_iter().map(|change| ((change.peer, change.path), change.from)));
        ready.into_iter().filter(|change| change.from != change.to).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        changes.take().into_iter().map(|change| (change.from, change.to)).collect()
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
