//! Smooth weighted round robin, in bytes.
//!
//! Every path has a credit. The bytes of a packet, times the sum of weights, are subtracted from the path that sent it,
//! and every path gets the bytes times its weight. So shares are exact in the long run for all weights, also co-prime
//! ones. The original MPT expands weights into a list and overflows it; this state has a fixed size. If a rule binds
//! packets to a path, the other paths compensate for some megabytes of them.

use std::cmp::Reverse;

use super::{Decision, PathSnapshot, SchedInput, Schedule};
use crate::id::{MAX_PATHS, PathId};
use crate::tuning::sched::weighted::MEMORY;

/// Distributes bytes over paths by weight, or evenly.
#[derive(Clone, Debug)]
pub struct Weighted {
    credit: [i64; MAX_PATHS],
    even: bool,
}

impl Weighted {
    /// Makes a scheduler that uses the configured weights.
    pub fn by_weight() -> Self {
        Self { credit: [0; MAX_PATHS], even: false }
    }

    /// Makes a scheduler with equal weights.
    pub fn evenly() -> Self {
        Self { credit: [0; MAX_PATHS], even: true }
    }

    fn weight(&self, configured: u32) -> i64 {
        if self.even { 1 } else { i64::from(configured) }
    }
}

impl Schedule for Weighted {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        let due = |path: &PathSnapshot| self.credit[usize::from(path.id.slot)] + self.weight(path.weight) * len as i64;
        let best = input.open(len).max_by_key(|path| (due(path), Reverse(path.id)));
        best.map_or(Decision::Wait, |path| Decision::Send(path.id))
    }

    fn on_sent(&mut self, sent_on: PathId, bytes: usize, input: &SchedInput<'_>) {
        let mut weights = 0;
        for path in input.open(bytes) {
            let weight = self.weight(path.weight);
            self.credit[usize::from(path.id.slot)] += weight * bytes as i64;
            weights += weight;
        }
        self.credit[usize::from(sent_on.slot)] -= weights * bytes as i64;
        let all: i64 = input.paths().map(|path| self.weight(path.weight)).sum();
        let bound = all.saturating_mul(MEMORY);
        self.credit.iter_mut().for_each(|credit| *credit = (*credit).clamp(-bound, bound));
    }
}
