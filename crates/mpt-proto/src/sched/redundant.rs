//! Every packet on every path: the delay of the fastest path, and the lowest loss.
//!
//! A packet is sent on the path with the lowest RTT that has room, and its copies on each other path when that has
//! room, until it is acknowledged, as in Linux MPTCP's scheduler of this name (Frommgen et al., "ReMP TCP: Low latency
//! multipath TCP", ICC 2016). So a slow path never delays a fast one. Plain mode has no ACKs; there all copies are sent
//! at once.

use super::min_rtt::MinRtt;
use super::{Decision, SchedInput, Schedule};

/// Sends every packet on all paths.
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
