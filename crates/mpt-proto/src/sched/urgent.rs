//! Where an urgent packet goes: on the path where it arrives first, and its copies on those that come next.
//!
//! The pacer is not asked. It keeps a stream of full packets smooth; a call's packets are few and small, and what they take is taken from
//! the pacer's next turn. The window is.

use std::time::Duration;

use super::PathSnapshot;
use crate::id::{PathId, PathSet};
use crate::tuning::sched::earliest::FOREVER;

/// The path of those whose slots are not in the set `taken` on which a packet of `len` bytes arrives first, if its window has room.
/// Waiting for that room is part of the prediction, so none is an answer: it is worth the wait.
pub fn urgent(len: usize, snapshots: &[PathSnapshot], candidates: PathSet) -> Option<PathId> {
    let arrival = |path: &PathSnapshot| {
        let wait = if has_room(path, len) { Duration::ZERO } else { path.opens_in };
        wait.saturating_add(path.rate.time_for(len as u64).min(FOREVER)).saturating_add(path.delay)
    };
    let left = snapshots.iter().filter(|path| candidates.contains(path.id));
    let first = left.min_by_key(|path| (arrival(path), !has_room(path, len), path.id));
    first.filter(|path| has_room(path, len)).map(|path| path.id)
}

fn has_room(path: &PathSnapshot, len: usize) -> bool {
    path.window >= len as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Rate;

    fn path(slot: u8, delay_ms: u64, window: u64) -> PathSnapshot {
        PathSnapshot {
            id: PathId { slot, generation: 0 },
            rate: Rate::from_bits(8_000_000),
            delay: Duration::from_millis(delay_ms),
            opens_in: if window < 1_000 { Duration::from_millis(5) } else { Duration::ZERO },
            window,
            ..PathSnapshot::default()
        }
    }

    fn order(paths: &[PathSnapshot]) -> Vec<u8> {
        let mut left = PathSet::ALL;
        std::iter::from_fn(|| {
            let path = urgent(1_000, paths, left)?;
            left = left.without(PathSet::only(path));
            Some(path.slot)
        })
        .collect()
    }

    #[test]
    fn copies_go_where_they_arrive_next() {
        assert_eq!(order(&[path(0, 30, 9_000), path(1, 10, 9_000), path(2, 20, 9_000)]), [1, 2, 0]);
    }

    #[test]
    fn a_full_window_is_waited_for_if_that_is_sooner() {
        assert_eq!(order(&[path(0, 10, 0), path(1, 16, 9_000)]), Vec::<u8>::new());
        assert_eq!(order(&[path(0, 10, 0), path(1, 14, 9_000)]), [1]);
    }

    #[test]
    fn the_pacer_is_not_asked() {
        assert_eq!(order(&[PathSnapshot { room: 0, paced: true, ..path(0, 10, 9_000) }]), [0]);
    }
}
