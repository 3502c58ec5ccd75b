//! Every packet on every path: as fast as the fastest, as safe as all together.
//!
//! A packet leaves on the path with the lowest round-trip time that has room; the corridor sends it on each of the others as
//! that has room, until it is known to have arrived, as Linux MPTCP's scheduler of this name does (Frommgen et al., "ReMP TCP: Low latency multipath
//! TCP", ICC 2016). So a slow path repeats what it can and holds nobody up. In plain mode, where nothing is known to have arrived, a packet leaves on all paths at once.

use super::min_rtt::MinRtt;
use super::{Decision, SchedInput, Schedule};

/// Takes all paths.
#[derive(Clone, Copy, Debug)]
pub struct Redundant;

impl Schedule for Redundant {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        MinRtt.choose(len, input)
    }

    fn is_redundant(&self) -> bool {
        true
    }
}
