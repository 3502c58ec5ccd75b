//! Detects that a peer restarted and numbers its packets from the beginning again.
//!
//! Packets of a path keep their order, apart from jitter below the *delay bound*. So a path that delivers a number that
//! it had reached longer than the bound ago delivers a new sequence: its first packet decides, and none is lost. After
//! a silence of all paths that is longer than the bound, a number that was delivered before decides, too. A path that
//! is behind the others repeats what they delivered, but in its own order.
//!
//! A peer that restarts within the bound of its first packet is detected by [`RESTART_AFTER`] old numbers in a row.

use std::time::Duration;

use super::delivered_bitmap::DeliveredBitmap;
use crate::id::MAX_PATHS;
use crate::time::Time;
use crate::tuning::reorder::plain::RESTART_AFTER;

/// The numbers that each path delivered, and the times.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestartDetector {
    bound: Duration,
    paths: [PathNumbers; MAX_PATHS],
    /// The last arrival on any path.
    last_arrival: Option<Time>,
    /// Strays in a row.
    strays: u32,
}

/// The numbers of one path.
#[derive(Clone, Copy, Debug, Default)]
struct PathNumbers {
    /// The highest number, old or not.
    highest: Option<u32>,
    /// The highest number at [`Self::noted_at`].
    noted: Option<u32>,
    noted_at: Time,
    /// The highest number that was reached longer than the bound ago.
    settled: Option<u32>,
    last_arrival: Time,
    last_stray: u32,
}

impl RestartDetector {
    pub(super) fn new(bound: Duration) -> Self {
        Self { bound, paths: [PathNumbers::default(); MAX_PATHS], last_arrival: None, strays: 0 }
    }

    /// Returns true if this packet is the first of a new sequence. `is_stray` is true for a number that was delivered
    /// before or is too old.
    pub(super) fn on_arrival(&mut self, now: Time, slot: u8, seq: u32, is_stray: bool) -> bool {
        let (bound, path) = (self.bound, &mut self.paths[usize::from(slot)]);
        path.settle(now, bound);
        let was_silent = self.last_arrival.replace(now).is_some_and(|last| now.since(last) > bound);
        let falls_back = path.settled.is_some_and(|settled| !is_higher(seq, settled));
        let follows = path.advance(seq);
        if is_stray && !follows {
            self.count_stray(slot, seq);
        } else {
            self.strays = 0;
        }
        let restarted = falls_back || was_silent && is_stray || self.strays >= RESTART_AFTER;
        if restarted {
            *self = Self::new(bound);
            self.last_arrival = Some(now);
            self.paths[usize::from(slot)].settle(now, bound);
            self.paths[usize::from(slot)].advance(seq);
        }
        restarted
    }

    /// Counts consecutive arrivals that are old, and in order on each path. Paths of different delay put them out of
    /// order among themselves.
    fn count_stray(&mut self, slot: u8, seq: u32) {
        let last = std::mem::replace(&mut self.paths[usize::from(slot)].last_stray, seq);
        let follows = (1..=DeliveredBitmap::LEN as u32).contains(&seq.wrapping_sub(last));
        self.strays = if follows { self.strays + 1 } else { 1 };
    }
}

impl PathNumbers {
    /// Updates the number that was reached longer than the bound ago.
    fn settle(&mut self, now: Time, bound: Duration) {
        if now.since(self.last_arrival) > bound {
            (self.settled, self.noted, self.noted_at) = (self.highest, self.highest, now);
        } else if now.since(self.noted_at) > bound {
            (self.settled, self.noted, self.noted_at) = (self.noted, self.highest, now);
        }
        self.last_arrival = now;
    }

    /// Notes a number. Returns true if the path continues where it was.
    fn advance(&mut self, seq: u32) -> bool {
        let known = self.highest.is_some();
        let higher = self.highest.is_none_or(|highest| is_higher(seq, highest));
        if higher {
            self.highest = Some(seq);
        }
        higher && known
    }
}

fn is_higher(seq: u32, than: u32) -> bool {
    (seq.wrapping_sub(than) as i32) > 0
}
