//! Each flow on one path: nothing is reordered, and no flow is faster than its path.
//!
//! A flow's bucket is spread over the paths in proportion to their weights (as RFC 2992 does over equal ones). It stays on its path for as long as the path
//! lives, full or not, and goes to another when it dies. It does not go back when its path comes back, for that would reorder it
//! again; after a minute without a packet its bucket is placed anew.

use std::time::Duration;

use super::{Decision, PathSnapshot, SchedInput, Schedule};
use crate::flow::{BUCKETS, mix};
use crate::path::PathId;
use crate::time::Time;
use crate::tuning::sched::per_flow::IDLE;

/// Keeps flows on paths.
#[derive(Clone, Debug)]
pub struct PerFlow {
    /// By bucket: the path, and when it was last asked for.
    places: Vec<Option<(PathId, Time)>>,
}

impl Default for PerFlow {
    fn default() -> Self {
        Self { places: vec![None; BUCKETS] }
    }
}

impl PerFlow {
    /// The path of the flow that waits.
    fn place<'s>(&self, input: &SchedInput<'s>) -> Option<&'s PathSnapshot> {
        let known = self.places[usize::from(input.bucket) % BUCKETS];
        let kept = known.filter(|(_, at)| input.now.since(*at) < IDLE).map(|(path, _)| path);
        kept.and_then(|path| input.paths().find(|view| view.id == path)).or_else(|| spread(input))
    }
}

impl Schedule for PerFlow {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        let Some(view) = self.place(input) else { return Decision::Wait };
        self.places[usize::from(input.bucket) % BUCKETS] = Some((view.id, input.now));
        if view.room >= len as u64 { Decision::Send(view.id) } else { Decision::Wait }
    }

    fn wait(&self, _len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        self.place(input).filter(|path| path.paced).map(|path| path.opens_in)
    }

    fn keeps_flows(&self) -> bool {
        true
    }
}

/// The path on whose share of all weights a bucket falls.
fn spread<'s>(input: &SchedInput<'s>) -> Option<&'s PathSnapshot> {
    let weight = |path: &PathSnapshot| u64::from(path.weight.max(1));
    let total: u64 = input.paths().map(weight).sum();
    let mut at = ((u128::from(mix(input.bucket.into())) * u128::from(total)) >> 64) as u64;
    input.paths().find(|path| {
        let here = at < weight(path);
        at = at.saturating_sub(weight(path));
        here
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(slot: u8, weight: u32) -> PathSnapshot {
        PathSnapshot { id: PathId { slot, generation: 0 }, weight, room: u64::MAX, ..PathSnapshot::default() }
    }

    fn ask(flow: &mut PerFlow, paths: &[PathSnapshot], bucket: u16, second: u64) -> Option<u8> {
        let now = Time::after(Duration::from_secs(second));
        flow.choose(1_400, &SchedInput { snapshots: paths, bucket, now, backlog: 1_400, ..SchedInput::default() })
            .path()
            .map(|path| path.slot)
    }

    #[test]
    fn flows_are_spread_by_weight() {
        let (mut flow, paths) = (PerFlow::default(), [path(0, 3), path(1, 1)]);
        let first = (0..1_024).filter(|bucket| ask(&mut flow, &paths, *bucket, 0) == Some(0)).count();
        // 1024 buckets at 3/4 each: a mean of 768 with a deviation of sqrt(1024 * 3/16) = 14.
        assert!(first.abs_diff(768) < 4 * 14, "{first}");
    }

    #[test]
    fn a_flow_moves_when_its_path_dies_and_only_then() {
        let (mut flow, paths) = (PerFlow::default(), [path(0, 1), path(1, 1)]);
        let bucket = (0..).find(|bucket| ask(&mut flow, &paths, *bucket, 0) == Some(0)).unwrap();
        let full = [PathSnapshot { room: 0, ..paths[0] }, paths[1]];
        assert_eq!(ask(&mut flow, &full, bucket, 1), None, "a full path is waited for");
        assert_eq!(ask(&mut flow, &paths[1..], bucket, 2), Some(1));
        assert_eq!(ask(&mut flow, &paths, bucket, 3), Some(1), "it has been reordered enough");
        assert_eq!(ask(&mut flow, &paths, bucket, 63), Some(0), "after a minute it is as good as new");
    }
}
