//! Opportunistic retransmission and penalisation: lowest RTT first, and the window of a path that blocks is reduced.
//!
//! Raiciu, Paasch et al.: "How Hard Can It Be? Designing and Implementing a Deployable Multipath TCP", NSDI 2012,
//! section 4.2. If the receive window blocks, the blocking segment is also sent on the fast path, and the window of the
//! path that holds it is halved, at most once per RTT of that path.
//!
//! A tunnel has no receive window of its own. A flow counts as blocked if it sent nothing for an RTT of the fast path,
//! which has room, while a packet on a slower path is in flight for longer than that. The halved window is a limit in
//! the scheduler, below the congestion window, and grows by a packet per RTT.

use std::time::Duration;

use super::{Decision, OpportunisticRetransmit, PathSnapshot, SchedInput, Schedule, fastest, opening};
use crate::id::{MAX_PATHS, PathId};
use crate::time::Time;
use crate::tuning::peer::DATAGRAM;

/// Retransmits opportunistically and penalises paths that block.
#[derive(Clone, Debug, Default)]
pub struct Rp {
    penalties: [Option<Penalty>; MAX_PATHS],
    sent: Time,
}

/// A limit of the bytes in flight on a path.
#[derive(Clone, Copy, Debug)]
struct Penalty {
    path: PathId,
    limit: u64,
    since: Time,
}

impl Schedule for Rp {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        let best = fastest(input.open(len).filter(|path| self.allows(len, input.now, path)));
        best.map_or(Decision::Wait, |path| Decision::Send(path.id))
    }

    fn wait(&self, len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        opening(input, |path| self.allows(len, input.now, path))
    }

    fn on_sent(&mut self, _path: PathId, _bytes: usize, input: &SchedInput<'_>) {
        self.sent = input.now;
    }

    fn on_idle(&mut self, input: &SchedInput<'_>) -> Option<OpportunisticRetransmit> {
        let fast = fastest(input.paths().filter(|path| path.room >= DATAGRAM))?;
        if input.now.since(self.sent) < fast.srtt {
            return None;
        }
        let slower = input.paths().filter(|path| path.srtt > fast.srtt && path.oldest > fast.srtt);
        let slow = slower.max_by_key(|path| (path.oldest, path.id))?;
        self.penalise(input.now, slow);
        Some(OpportunisticRetransmit { from: slow.id, to: fast.id })
    }
}

impl Rp {
    fn allows(&self, len: usize, now: Time, path: &PathSnapshot) -> bool {
        path.in_flight == 0 || path.in_flight.saturating_add(len as u64) <= self.limit(now, path)
    }

    fn penalise(&mut self, now: Time, path: &PathSnapshot) {
        let limit = self.limit(now, path).min(path.cwnd);
        if self.penalty(path.id).is_none_or(|penalty| now.since(penalty.since) >= path.srtt) {
            let penalty = Penalty { path: path.id, limit: (limit / 2).max(DATAGRAM), since: now };
            self.penalties[usize::from(path.id.slot)] = Some(penalty);
        }
    }

    /// Returns the penalty of a path, not of another one that had its slot.
    fn penalty(&self, path: PathId) -> Option<Penalty> {
        self.penalties[usize::from(path.slot)].filter(|penalty| penalty.path == path)
    }

    fn limit(&self, now: Time, path: &PathSnapshot) -> u64 {
        let Some(Penalty { limit, since, .. }) = self.penalty(path.id) else { return u64::MAX };
        let rounds = now.since(since).as_micros() / path.srtt.max(Duration::from_millis(1)).as_micros();
        limit.saturating_add(DATAGRAM.saturating_mul(u64::try_from(rounds).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::windowed;
    use super::*;

    fn input(paths: &[PathSnapshot], ms: u64) -> SchedInput<'_> {
        SchedInput { snapshots: paths, now: Time::after(Duration::from_millis(ms)), ..SchedInput::default() }
    }

    /// The slow path has 100 kB in flight, the first of it for `ms`.
    fn late(ms: u64) -> [PathSnapshot; 2] {
        let slow = PathSnapshot { oldest: Duration::from_millis(ms), ..windowed(1, 100, 200_000, 100_000) };
        [windowed(0, 10, 100_000, 0), slow]
    }

    #[test]
    fn a_blocking_packet_is_also_sent_on_the_fast_path() {
        let mut rp = Rp::default();
        assert!(rp.on_idle(&input(&late(10), 10)).is_none(), "the fast path would not have been faster");
        assert!(rp.on_idle(&input(&late(11), 9)).is_none(), "it was not idle for a whole round trip");
        let retransmit = rp.on_idle(&input(&late(11), 10)).unwrap();
        assert_eq!((retransmit.from.slot, retransmit.to.slot), (1, 0));
    }

    #[test]
    fn a_window_is_halved_once_a_round_trip_and_grows_by_a_packet() {
        let (mut rp, paths) = (Rp::default(), late(50));
        let limit = |rp: &Rp, ms| rp.limit(Time::after(Duration::from_millis(ms)), &paths[1]);
        rp.on_idle(&input(&paths, 10));
        rp.on_idle(&input(&paths, 109));
        assert_eq!(limit(&rp, 109), 100_000);
        assert_eq!(limit(&rp, 1_010), 100_000 + 10 * DATAGRAM);
        rp.on_idle(&input(&paths, 1_010));
        assert_eq!(limit(&rp, 1_010), (100_000 + 10 * DATAGRAM) / 2);
        let full = [PathSnapshot { room: 0, ..paths[0] }, paths[1]];
        assert_eq!(rp.choose(1_250, &input(&full, 1_010)), Decision::Wait, "100 kB are more than that");
    }
}
