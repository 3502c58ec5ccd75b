//! How a restart of the peer's numbering shows: in numbers that are old, and in order.

use crate::path::MAX_PATHS;

/// Consecutive arrivals that are old, and in order on each path: a peer that restarted. Paths of different delay put them
/// out of order among themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RestartDetector {
    pub(super) last: [u32; MAX_PATHS],
    pub(super) run: u32,
    /// The highest number that each path has brought, old or not.
    pub(super) highest: [Option<u32>; MAX_PATHS],
}

impl RestartDetector {
    /// Notes what a path has brought; whether that is further on than all before.
    pub(super) fn advance(&mut self, slot: u8, seq: u32) -> bool {
        let highest = &mut self.highest[usize::from(slot)];
        let is_further = highest.is_none_or(|highest| (seq.wrapping_sub(highest) as i32) > 0);
        if is_further {
            *highest = Some(seq);
        }
        is_further
    }
}
