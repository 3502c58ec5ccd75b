//! Detects that a peer restarted and numbers its packets from the beginning again.

use super::delivered_bitmap::DeliveredBitmap;
use crate::id::MAX_PATHS;
use crate::tuning::reorder::plain::RESTART_AFTER;

/// Counts consecutive arrivals that are old, and in order on each path. Paths of different delay put them out of order
/// among themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RestartDetector {
    /// The last stray of each path.
    last: [u32; MAX_PATHS],
    /// Strays in a row.
    strays: u32,
    /// The highest number that each path has delivered, old or not.
    highest: [Option<u32>; MAX_PATHS],
}

impl RestartDetector {
    /// A packet arrived that was neither delivered before nor too old.
    pub(super) fn on_progress(&mut self, slot: u8, seq: u32) {
        self.strays = 0;
        self.advance(slot, seq);
    }

    /// A packet arrived that was delivered before or is too old. Returns true if the peer counts as restarted.
    pub(super) fn on_stray(&mut self, slot: u8, seq: u32) -> bool {
        // A slow path that continues where it was repeats what others delivered, when the sender uses all paths at
        // once.
        let known = self.highest[usize::from(slot)].is_some();
        if self.advance(slot, seq) && known {
            self.strays = 0;
            return false;
        }
        let last = std::mem::replace(&mut self.last[usize::from(slot)], seq);
        let follows = (1..=DeliveredBitmap::LEN as u32).contains(&seq.wrapping_sub(last));
        self.strays = if follows { self.strays + 1 } else { 1 };
        let restarted = self.strays >= RESTART_AFTER;
        if restarted {
            *self = Self::default();
        }
        restarted
    }

    /// Notes a number that a path delivered. Returns true if it is higher than all before.
    fn advance(&mut self, slot: u8, seq: u32) -> bool {
        let highest = &mut self.highest[usize::from(slot)];
        let higher = highest.is_none_or(|highest| (seq.wrapping_sub(highest) as i32) > 0);
        if higher {
            *highest = Some(seq);
        }
        higher
    }
}
