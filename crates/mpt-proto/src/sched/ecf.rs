//! Earliest completion first: waits for the fast path if that completes the transfer sooner.
//!
//! Lim, Nahum, Towsley, Gibbens: "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", CoNEXT 2017, algorithm
//! 1, with the RTTs and windows of the paper. [`super::earliest`] does the same with one-way delays and measured rates.
//! *k*, the unsent bytes, is the flow's backlog in the queue; a window is at most the path's rate times its RTT.

use std::time::Duration;

use super::{Decision, PathSnapshot, SchedInput, Schedule, fastest, opening};
use crate::tuning::sched::ecf::BETA;

/// Chooses paths by completion time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ecf {
    waiting: bool,
}

impl Schedule for Ecf {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        let Some(fast) = fastest(input.paths()) else { return Decision::Wait };
        let Some(slow) = fastest(input.open(len)) else { return Decision::Wait };
        if slow.id == fast.id {
            return Decision::Send(fast.id);
        }
        let (is_slower, waits) = self.compare(input.backlog as f64, fast, slow);
        self.waiting = is_slower && (self.waiting || waits);
        if waits { Decision::Wait } else { Decision::Send(slow.id) }
    }

    fn wait(&self, _len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        let fast = fastest(input.paths())?;
        opening(input, |path| path.id == fast.id || !self.compare(input.backlog as f64, fast, path).1)
    }
}

impl Ecf {
    /// Returns whether the fast path completes the transfer before the slow path could, and whether to wait for it.
    fn compare(&self, k: f64, fast: &PathSnapshot, slow: &PathSnapshot) -> (bool, bool) {
        let (rtt_f, rtt_s) = (fast.srtt.as_secs_f64(), slow.srtt.as_secs_f64());
        let delta = fast.rtt_var.max(slow.rtt_var).as_secs_f64();
        let (window_f, window_s) = (fast.flight().max(1) as f64, slow.flight().max(1) as f64);
        let hysteresis = if self.waiting { 1.0 + BETA } else { 1.0 };
        let rounds = 1.0 + k / window_f;
        let is_slower = rounds * rtt_f < hysteresis * (rtt_s + delta);
        (is_slower, is_slower && k / window_s * rtt_s >= 2.0 * rtt_f + delta)
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{choose, windowed};
    use super::*;

    #[test]
    fn the_slow_path_is_not_used_while_the_fast_one_completes_sooner() {
        // One window of 100 kB each 10 ms on the fast path, which is full, or each 100 ms on the slow one.
        let paths = [windowed(0, 10, 100_000, 100_000), windowed(1, 100, 100_000, 0)];
        assert_eq!(choose(&mut Ecf::default(), &paths, 50_000), None, "15 ms beat 100, and 50 ms are worth 20");
        assert_eq!(choose(&mut Ecf::default(), &paths, 10_000), Some(1), "10 ms on the slow path are not worth 20");
        assert_eq!(choose(&mut Ecf::default(), &paths, 1_000_000), Some(1), "eleven rounds are 110 ms");
    }

    #[test]
    fn a_waiting_scheduler_waits_up_to_a_quarter_longer() {
        let paths = [windowed(0, 10, 100_000, 100_000), windowed(1, 100, 100_000, 0)];
        let mut ecf = Ecf::default();
        choose(&mut ecf, &paths, 50_000);
        assert_eq!(choose(&mut ecf, &paths, 1_000_000), None, "110 ms are less than 125");
        assert_eq!(choose(&mut ecf, &paths, 1_200_000), Some(1));
    }
}
