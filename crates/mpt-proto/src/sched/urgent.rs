//! Chooses the path of a realtime packet: the one with the earliest arrival; its copies take those with the next ones.
//!
//! Realtime packets bypass the pacer: they are few and small, and the pacer subtracts their bytes from its next batch.
//! The congestion window applies.

use std::time::Duration;

use super::PathSnapshot;
use crate::id::{PathId, PathSet};
use crate::tuning::sched::earliest::FOREVER;

/// Returns the path among `candidates` on which a packet of `len` bytes arrives first, if its window has room. The
/// arrival includes the wait for room, so `None` means that waiting gives the earliest arrival.
pub fn urgent(len: usize, snapshots: &[PathSnapshot], candidates: PathSet) -> Option<PathId> {
    let arrival = |path: &PathSnapshot| {
        let wait = if has_room(path, len) { Duration::ZERO } else { path.opens_in };
        wait.saturating_add(path.rate.time_for(len as u64).min(FOREVER)).saturating_add(path.delay)
    };
    let usable = snapshots.iter().filter(|path| candidates.contains(path.id));
    let first = usable.min_by_key(|path| (arrival(path), !has_room(path, len), path.id));
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
    fn copies_take_the_paths_in_order_of_arrival() {
        assert_eq!(order(&[path(0, 30, 9_000), path(1, 10, 9_000), path(2, 20, 9_000)]), [1, 2, 0]);
    }

    #[test]
    fn it_waits_for_a_full_window_if_the_arrival_is_earlier() {
        assert_eq!(order(&[path(0, 10, 0), path(1, 16, 9_000)]), Vec::<u8>::new());
        assert_eq!(order(&[path(0, 10, 0), path(1, 14, 9_000)]), [1]);
    }

    #[test]
    fn the_pacer_does_not_limit_it() {
        assert_eq!(order(&[PathSnapshot { room: 0, paced: true, ..path(0, 10, 9_000) }]), [0]);
    }
}
