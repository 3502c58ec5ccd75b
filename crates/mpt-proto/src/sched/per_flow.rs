//! Each flow on one path: nothing is reordered, and no flow is faster than its path.
//!
//! Flow buckets are distributed over the paths in proportion to their weights (RFC 2992 does so for equal weights). A
//! bucket stays on its path while that is up, with or without room, and moves when it fails. It does not move back when
//! the path recovers, which would reorder the flow again. After a minute without a packet a bucket is assigned a path
//! again.

use std::time::Duration;

use super::{Decision, PathSnapshot, SchedInput, Schedule};
use crate::flow::{BUCKETS, mix};
use crate::id::PathId;
use crate::time::Time;
use crate::tuning::sched::per_flow::IDLE;

/// Assigns each flow a path.
#[derive(Clone, Debug)]
pub struct PerFlow {
    /// By bucket: the path, and the time of the last packet.
    assigned: Vec<Option<(PathId, Time)>>,
}

impl Default for PerFlow {
    fn default() -> Self {
        Self { assigned: vec![None; BUCKETS] }
    }
}

impl PerFlow {
    /// Returns the path of the flow to be scheduled.
    fn path_of<'s>(&self, input: &SchedInput<'s>) -> Option<&'s PathSnapshot> {
        let assigned = self.assigned[usize::from(input.bucket) % BUCKETS];
        let current = assigned.filter(|(_, at)| input.now.since(*at) < IDLE).map(|(path, _)| path);
        current.and_then(|id| input.paths().find(|path| path.id == id)).or_else(|| spread(input))
    }
}

impl Schedule for PerFlow {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        let Some(path) = self.path_of(input) else { return Decision::Wait };
        self.assigned[usize::from(input.bucket) % BUCKETS] = Some((path.id, input.now));
        if path.room >= len as u64 { Decision::Send(path.id) } else { Decision::Wait }
    }

    fn wait(&self, _len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        self.path_of(input).filter(|path| path.paced).map(|path| path.opens_in)
    }

    fn keeps_flows(&self) -> bool {
        true
    }
}

/// Returns the path whose share of the sum of weights contains the hash of the bucket.
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

    fn choose(flow: &mut PerFlow, paths: &[PathSnapshot], bucket: u16, second: u64) -> Option<u8> {
        let now = Time::after(Duration::from_secs(second));
        flow.choose(1_400, &SchedInput { snapshots: paths, bucket, now, backlog: 1_400, ..SchedInput::default() })
            .path()
            .map(|path| path.slot)
    }

    #[test]
    fn flows_are_spread_by_weight() {
        let (mut flow, paths) = (PerFlow::default(), [path(0, 3), path(1, 1)]);
        let first = (0..1_024).filter(|bucket| choose(&mut flow, &paths, *bucket, 0) == Some(0)).count();
        // 1024 buckets at 3/4 each: a mean of 768 with a deviation of sqrt(1024 * 3/16) = 14.
        assert!(first.abs_diff(768) < 4 * 14, "{first}");
    }

    #[test]
    fn a_flow_moves_when_its_path_dies_and_only_then() {
        let (mut flow, paths) = (PerFlow::default(), [path(0, 1), path(1, 1)]);
        let bucket = (0..).find(|bucket| choose(&mut flow, &paths, *bucket, 0) == Some(0)).unwrap();
        let full = [PathSnapshot { room: 0, ..paths[0] }, paths[1]];
        assert_eq!(choose(&mut flow, &full, bucket, 1), None, "it waits for a full path");
        assert_eq!(choose(&mut flow, &paths[1..], bucket, 2), Some(1));
        assert_eq!(choose(&mut flow, &paths, bucket, 3), Some(1), "moving back would reorder it again");
        assert_eq!(choose(&mut flow, &paths, bucket, 63), Some(0), "after a minute it is assigned again");
    }
}
