//! Smooth weighted round robin, in bytes.
//!
//! Every path holds a credit. What is sent is paid for by the path that sent it and earned by all, in proportion to their weights,
//! so shares are exact in the long run for any weights, co-prime or not. The original
//! expands weights into a list and overflows it; here nothing grows with the weights. What a rule sends over one path is made good
//! by the others for some megabytes, not for as long as it lasted.

use std::cmp::Reverse;

use super::{Decision, PathSnapshot, SchedInput, Schedule};
use crate::path::{MAX_PATHS, PathId};
use crate::tuning::sched::weighted::MEMORY;

/// Shares paths by weight, or evenly.
#[derive(Clone, Debug)]
pub struct Weighted {
    credit: [i64; MAX_PATHS],
    even: bool,
}

impl Weighted {
    /// Shares by the configured weights.
    pub fn by_weight() -> Self {
        Self { credit: [0; MAX_PATHS], even: false }
    }

    /// Shares evenly.
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

    fn on_sent(&mut self, path: PathId, bytes: usize, input: &SchedInput<'_>) {
        let mut weights = 0;
        for view in input.open(bytes) {
            let weight = self.weight(view.weight);
            self.credit[usize::from(view.id.slot)] += weight * bytes as i64;
            weights += weight;
        }
        self.credit[usize::from(path.slot)] -= weights * bytes as i64;
        let all: i64 = input.paths().map(|path| self.weight(path.weight)).sum();
        let bound = all.saturating_mul(MEMORY);
        self.credit.iter_mut().for_each(|credit| *credit = (*credit).clamp(-bound, bound));
    }
}
