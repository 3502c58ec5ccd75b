//! Blocking estimation: keeps off a slow path what would block the fast one.
//!
//! Ferlin, Alay, Mehani, Boreli: "BLEST: Blocking Estimation-based MPTCP Scheduler for Heterogeneous Networks", IFIP Networking 2016.
//! When the fast path is full, a packet may go on the slow one unless the fast path could meanwhile, during a round trip of the slow one, send
//! all that the send window lets it:
//!
//! ```text
//! rtts = rtt_s / rtt_f      X = (cwnd_f + len (rtts - 1) / 2) rtts      wait if  lambda X > M - (in flight on s + len)
//! ```
//!
//! *M*, MPTCP's send window, is what a tunnel does not have: who is blocked here is the flow inside, when it has sent all that its own
//! window allows and the queue is empty. What it has released, waiting or in flight, stands for M. *lambda* grows by 0.01 when the
//! fast path could have sent for a round trip and nobody had data while the slow path still owed some, and sinks to 1 otherwise, once a round trip of the slowest path.

use std::time::Duration;

use super::{Decision, OpportunisticRetransmit, PathSnapshot, SchedInput, Schedule, fastest, opening};
use crate::path::PathId;
use crate::time::Time;
use crate::tuning::sched::blest::STEP;

/// Estimates blocking.
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
        // With nothing under way nobody would ask again.
        let is_idle = input.paths().all(|path| path.in_flight == 0 && !path.paced);
        !is_idle && self.lambda * sends > released - (slow.in_flight as f64 + len)
    }

    /// Only when something is sent: who waits has been told until when.
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
    fn blocking_makes_it_more_careful() {
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
