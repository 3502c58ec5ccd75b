//! Bufferbloat mitigation: lowest round-trip time first, with a limit for each path's queue.
//!
//! Ferlin, Dreibholz, Alay: "Multi-Path Transport over Heterogeneous Wireless Networks: Does It Really Pay Off?"
//! (GLOBECOM 2014) limits the bytes in flight on a path to *tolerance x min RTT / smoothed RTT x window*. Window /
//! smoothed RTT is the path's rate, so this is the BDP without a queue, times the tolerance. It is for congestion
//! control that fills buffers (`cubic`, `reno`, `lia`, `olia`, `balia`); `rate` and `wvegas` limit queues themselves.

use std::time::Duration;

use super::{Decision, PathSnapshot, SchedInput, Schedule, fastest, opening};
use crate::tuning::sched::bm::TOLERANCE;

/// Limits the bytes in flight.
#[derive(Clone, Copy, Debug)]
pub struct Bm;

impl Schedule for Bm {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        let best = fastest(input.open(len).filter(|path| is_short(path, len as u64)));
        best.map_or(Decision::Wait, |path| Decision::Send(path.id))
    }

    fn wait(&self, len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        opening(input, |path| is_short(path, len as u64))
    }
}

/// Returns true if `len` more bytes keep the path below its limit. One packet is always allowed.
fn is_short(path: &PathSnapshot, len: u64) -> bool {
    path.in_flight == 0 || path.in_flight.saturating_add(len) <= limit(path)
}

fn limit(path: &PathSnapshot) -> u64 {
    if path.min_rtt.is_zero() || path.srtt <= path.min_rtt {
        return u64::MAX;
    }
    let share = TOLERANCE * path.min_rtt.as_secs_f64() / path.srtt.as_secs_f64();
    (path.cwnd as f64 * share) as u64
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{choose, windowed};
    use super::*;

    #[test]
    fn a_path_whose_round_trip_has_doubled_gets_three_quarters_of_its_window() {
        let bloated =
            |in_flight| PathSnapshot { min_rtt: Duration::from_millis(20), ..windowed(0, 40, 100_000, in_flight) };
        assert_eq!(choose(&mut Bm, &[bloated(70_000)], 1 << 20), Some(0));
        assert_eq!(choose(&mut Bm, &[bloated(74_000)], 1 << 20), None);
        let other = windowed(1, 90, 100_000, 0);
        assert_eq!(choose(&mut Bm, &[bloated(74_000), other], 1 << 20), Some(1));
    }

    #[test]
    fn a_queue_of_half_a_round_trip_is_tolerated() {
        let path = PathSnapshot { min_rtt: Duration::from_millis(20), ..windowed(0, 30, 100_000, 98_000) };
        assert_eq!(choose(&mut Bm, &[path], 1 << 20), Some(0));
    }
}
