//! Restores the order of packets that came over paths of different delay, and holds them no longer than it helps.
//!
//! [`NativeReorder`] serves native mode, whose sender retransmits lost packets and reports those it gives up.
//! [`PlainReorder`] serves plain mode, where the order of arrival is the only evidence of a loss.
//!
//! A packet that arrives after its hole was given up is delivered all the same, once: the inner TCP takes it as
//! reordering, where a drop would cost a retransmission. Numbers on the wire have 32 bits (RFC 2890) and are widened to
//! 64 here.

mod delivered_bitmap;
mod duplicate_filter;
mod native;
mod plain;
mod restart_detector;
mod sequence;
mod sparse_window;
mod stats;

use std::time::Duration;

pub use duplicate_filter::DuplicateFilter;
pub use native::NativeReorder;
pub use plain::PlainReorder;
pub use stats::ReorderStats;

/// Limits of a buffer: number of packets and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReorderLimits {
    /// Sequence numbers, from the first missing one to the newest held. 1 to 65536.
    pub window: usize,
    /// The longest time that a hole may last.
    pub max_hold: Duration,
    /// True if the hold adapts below `max_hold`; false if it is always `max_hold`. Has no effect in native mode.
    pub adaptive: bool,
}

impl Default for ReorderLimits {
    /// Room for 0.1 s at 2 Gbit/s of full-size packets, and a hold for paths that differ by up to half a second.
    fn default() -> Self {
        Self { window: 16_384, max_hold: Duration::from_millis(500), adaptive: true }
    }
}

#[cfg(test)]
mod tests;
