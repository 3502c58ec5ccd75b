//! Earliest arrival: the default scheduler of native mode.
//!
//! For every path the arrival of the next packet is predicted: the time until the path has room, plus the transmission
//! time at the bottleneck, plus the one-way delay. The path with the earliest arrival gets the packet. If that path has
//! no room, a slower one that has room gets it only if it arrives there before the whole backlog could pass the faster
//! paths; otherwise the packet waits. So a flow with a short backlog uses the earliest path only, and one with a long
//! backlog uses every path that shortens it. A faster path in start-up counts with the rate that it will have by then.
//!
//! The slower path does not get the next packet: later packets would arrive before it and wait at the receiver. It gets
//! the packet that will be next in order when it arrives. So no packet waits twice, and the flow's RTT is that of its
//! slowest path, not twice as much. (STMS does so with a learned gap: Shi et al., "STMS: Improving MPTCP Throughput
//! Under Heterogeneous Networks", USENIX ATC 2018.)
//!
//! Based on ECF (Lim et al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", CoNEXT 2017), with one-way
//! delays for round-trip times and pacer deadlines for windows.

use std::time::Duration;

use super::{Decision, PathSnapshot, SchedInput, Schedule, opening};
use crate::tuning::sched::earliest::FOREVER;

/// Chooses the path with the earliest predicted arrival.
#[derive(Clone, Copy, Debug)]
pub struct Earliest;

impl Schedule for Earliest {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        let best_open = input.open(len).min_by_key(|path| (arrival(path, len), path.id));
        let Some(open) = best_open else { return Decision::Wait };
        match passed(open, len, input) {
            None => Decision::Send(open.id),
            Some(passed) if passed < input.backlog => Decision::Ahead(open.id, passed),
            Some(_) => Decision::Wait,
        }
    }

    /// Returns the time until the first pacer permits a packet, of the paths that would then get one.
    fn wait(&self, len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        opening(input, |path| passed(path, len, input).is_none_or(|passed| passed < input.backlog))
    }

    fn predicts_arrival(&self) -> bool {
        true
    }
}

/// Returns the bytes that the closed paths with an earlier arrival pass before a packet on `path` arrives; `None` if
/// there are no such paths.
fn passed(path: &PathSnapshot, len: usize, input: &SchedInput<'_>) -> Option<u64> {
    let arrives = arrival(path, len);
    let better = input.paths().filter(|other| other.room < len as u64 && arrival(other, len) < arrives);
    better.map(|other| other.bytes_in(arrives - arrival(other, len))).reduce(u64::saturating_add)
}

fn arrival(path: &PathSnapshot, len: usize) -> Duration {
    path.opens_in.saturating_add(path.rate.time_for(len as u64).min(FOREVER)).saturating_add(path.delay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PathId;
    use crate::time::Rate;

    const MS: Duration = Duration::from_millis(1);

    fn path(slot: u8, mbit: u64, delay_ms: u32, opens_in_ms: u32) -> PathSnapshot {
        PathSnapshot {
            id: PathId { slot, generation: 0 },
            rate: Rate::from_bits(mbit * 1_000_000),
            delay: MS * delay_ms,
            opens_in: MS * opens_in_ms,
            room: if opens_in_ms == 0 { u64::MAX } else { 0 },
            ..PathSnapshot::default()
        }
    }

    fn decide(paths: &[PathSnapshot], backlog: u64) -> Decision {
        Earliest.choose(1_250, &SchedInput { snapshots: paths, backlog, ..SchedInput::default() })
    }

    fn choose(paths: &[PathSnapshot], backlog: u64) -> Option<u8> {
        decide(paths, backlog).path().map(|path| path.slot)
    }

    #[test]
    fn the_earliest_arrival_wins_even_on_a_path_with_a_lower_rate() {
        // 1250 bytes take 1 ms at 10 Mbit/s and 0.1 ms at 100.
        assert_eq!(choose(&[path(0, 10, 5, 0), path(1, 100, 20, 0)], 1_250), Some(0));
        assert_eq!(choose(&[path(0, 10, 25, 0), path(1, 100, 20, 0)], 1_250), Some(1));
    }

    #[test]
    fn a_sparse_flow_waits_for_the_faster_path_and_a_backlog_does_not() {
        let paths = [path(0, 50, 10, 2), path(1, 50, 60, 0)];
        assert_eq!(choose(&paths, 1_250), None, "12 ms beat 60 ms");
        // The other path arrives after 60.2 ms; 300 kB take 48 ms at 50 Mbit/s, 400 kB 64.
        assert_eq!(choose(&paths, 300_000), None);
        assert_eq!(choose(&paths, 400_000), Some(1));
    }

    #[test]
    fn a_slow_path_gets_the_packet_that_is_next_in_order_at_its_arrival() {
        let (fast, slow) = (path(0, 50, 10, 2), path(1, 50, 60, 0));
        // 60.2 ms less 12.2, at 50 Mbit/s.
        assert_eq!(decide(&[fast, slow], 1_000_000), Decision::Ahead(slow.id, 300_000));
        let other = path(2, 100, 40, 1);
        // And 60.2 ms less 41.1, at 100 Mbit/s.
        assert_eq!(decide(&[fast, slow, other], 1_000_000), Decision::Ahead(slow.id, 300_000 + 238_750));
        assert_eq!(decide(&[path(0, 50, 10, 0), slow], 1_000_000), Decision::Send(fast.id));
    }

    #[test]
    fn a_path_in_start_up_passes_more_than_its_present_rate() {
        let fast = PathSnapshot { srtt: MS * 16, doubles: true, ..path(0, 50, 10, 2) };
        // Three round trips double the 300 kB three times.
        assert_eq!(decide(&[fast, path(1, 50, 60, 0)], 3_000_000), Decision::Ahead(path(1, 50, 60, 0).id, 2_400_000));
        let unknown = PathSnapshot { srtt: Duration::ZERO, ..fast };
        assert_eq!(decide(&[unknown, path(1, 50, 60, 0)], 3_000_000).path(), Some(path(1, 50, 60, 0).id));
        let brief = PathSnapshot { srtt: Duration::from_nanos(1), ..fast };
        assert_eq!(decide(&[brief, path(1, 50, 60, 0)], 3_000_000), Decision::Wait);
    }

    #[test]
    fn a_backlog_waits_for_the_first_pacer_and_a_sparse_flow_for_the_faster_path() {
        let pacing =
            |slot, mbit, delay_ms, opens_in_ms| PathSnapshot { paced: true, ..path(slot, mbit, delay_ms, opens_in_ms) };
        let (near, far) = (pacing(0, 2, 0, 5), pacing(1, 20, 40, 1));
        let wait = |snapshots: &[PathSnapshot], backlog| {
            let candidates = snapshots.iter().map(|path| path.id).collect();
            Earliest.wait(1_250, &SchedInput { snapshots, candidates, backlog, ..SchedInput::default() })
        };
        // The near path passes 7.9 kB before a packet arrives over the far one: 41.5 ms less 10 ms, at 2 Mbit/s.
        assert_eq!(wait(&[near, far], 1_250), Some(MS * 5));
        assert_eq!(wait(&[near, far], 100_000), Some(MS));
        let full = PathSnapshot { paced: false, ..far };
        assert_eq!(wait(&[near, full], 100_000), Some(MS * 5), "an acknowledgement opens the far path");
    }

    #[test]
    fn a_packet_waits_if_no_path_has_room() {
        assert_eq!(choose(&[path(0, 50, 10, 2)], 1_000_000), None);
    }
}
