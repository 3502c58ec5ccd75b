//! Blocking estimation: does not use a slow path for packets that would block the fast one.
//!
//! Ferlin, Alay, Mehani, Boreli: "BLEST: Blocking Estimation-based MPTCP Scheduler for Heterogeneous Networks", IFIP
//! Networking 2016. When the fast path is full, a packet takes the slow one only if the fast path cannot use the whole
//! send window during one round trip of the slow path:
//!
//! ```text
//! rtts = rtt_s / rtt_f      X = (cwnd_f + len (rtts - 1) / 2) rtts      wait if  lambda X > M - (in flight on s + len)
//! ```
//!
//! A tunnel has no MPTCP send window *M*. Here the inner flow blocks, when its window is used up and the queue is
//! empty; its bytes in the queue and in flight stand for M. *lambda* changes once per round trip of the slowest path:
//! it grows by 0.01 if the fast path was idle for a round trip while a slow one had data in flight, and falls to at
//! least 1 otherwise.

use std::time::Duration;

use super::{Decision, OpportunisticRetransmit, PathSnapshot, SchedInput, Schedule, fastest, opening};
use crate::id::PathId;
use crate::time::Time;
use crate::tuning::sched::blest::STEP;

/// Chooses paths by estimated blocking.
#[derive(Clone, Copy, Debug)]
pub struct Blest {
    lambda: f64,
    blocked: bool,
    adapted: Time,
    sent: Time,
}

impl Default for Blest {
    fn default() -> Self {
        Self { lambda: 1.0, blocked: false, adapted: Time::START, sent: Time::START }
    }
}

impl Schedule for Blest {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        let Some(fast) = fastest(input.paths()) else { return Decision::Wait };
        let free =
            input.open(len).filter(|path| path.id == fast.id || !self.would_block(len as f64, input, fast, path));
        fastest(free).map_or(Decision::Wait, |path| Decision::Send(path.id))
    }

    fn wait(&self, len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        let fast = fastest(input.paths())?;
        opening(input, |path| path.id == fast.id || !self.would_block(len as f64, input, fast, path))
    }

    fn on_sent(&mut self, _path: PathId, _bytes: usize, input: &SchedInput<'_>) {
        self.sent = input.now;
        self.adapt(input);
    }

    fn on_idle(&mut self, input: &SchedInput<'_>) -> Option<OpportunisticRetransmit> {
        let fast = fastest(input.paths()).filter(|path| path.room > 0 && input.now.since(self.sent) >= path.srtt)?;
        self.blocked |= input.paths().any(|path| path.id != fast.id && path.in_flight > 0);
        None
    }
}

impl Blest {
    fn would_block(&self, len: f64, input: &SchedInput<'_>, fast: &PathSnapshot, slow: &PathSnapshot) -> bool {
        let rounds = slow.srtt.as_secs_f64() / fast.srtt.as_secs_f64().max(1e-6);
        let sends = (fast.flight() as f64 + len * (rounds - 1.0) / 2.0) * rounds;
        let released = input.backlog as f64 + input.paths().map(|path| path.in_flight as f64).sum::<f64>();
        // With nothing in flight no event would end the wait.
        let is_idle = input.paths().all(|path| path.in_flight == 0 && !path.paced);
        !is_idle && self.lambda * sends > released - (slow.in_flight as f64 + len)
    }

    /// Adapts lambda. It changes only when a packet is sent, so that the result of [`Schedule::wait`] stays valid.
    fn adapt(&mut self, input: &SchedInput<'_>) {
        let slowest = input.paths().map(|path| path.srtt).max().unwrap_or_default();
        if input.now.since(self.adapted) < slowest {
            return;
        }
        let step = if std::mem::take(&mut self.blocked) { STEP } else { -STEP };
        self.lambda = (self.lambda + step).max(1.0);
        self.adapted = input.now;
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{choose, windowed};
    use super::*;

    #[test]
    fn a_packet_that_would_block_the_fast_path_waits_for_it() {
        // In 100 ms the fast path sends ten windows of 100 kB, and 45 packets' growth of 1250 bytes in each: 1.056 MB.
        let paths = [windowed(0, 10, 100_000, 100_000), windowed(1, 100, 100_000, 20_000)];
        assert_eq!(choose(&mut Blest::default(), &paths, 900_000), None);
        assert_eq!(choose(&mut Blest::default(), &paths, 1_100_000), Some(1));
    }

    #[test]
    fn blocking_raises_lambda() {
        let full = [windowed(0, 10, 100_000, 100_000), windowed(1, 100, 100_000, 20_000)];
        let idle = [windowed(0, 10, 100_000, 50_000), full[1]];
        let mut blest = Blest::default();
        for second in 1..=100 {
            let input = |snapshots| SchedInput {
                snapshots,
                now: Time::after(Duration::from_secs(second)),
                backlog: 1_100_000,
                ..SchedInput::default()
            };
            assert!(blest.on_idle(&SchedInput { backlog: 0, ..input(&idle) }).is_none());
            blest.on_sent(full[1].id, 1_250, &input(&full));
        }
        assert!((blest.lambda - 2.0).abs() < 1e-6, "{}", blest.lambda);
        assert_eq!(choose(&mut blest, &full, 1_100_000), None);
    }
}
