//! Memory that an idle peer releases: a server has a thousand peers, of which few are active.
//!
//! A peer that carries packets has queues, numbers and reorder buffers for a thousand flow buckets, and state for each
//! packet in flight: some hundred kilobytes. After [`IDLE`] without an inner packet it keeps its sessions, the
//! estimates of its paths, and one number for each bucket that was ever used, so that the order continues. The rest is
//! allocated again with the next packet.

use std::collections::BTreeMap;

use super::Native;
use crate::peer::Common;
use crate::reorder::{NativeReorder, ReorderLimits, ReorderStats};
use crate::time::Time;
use crate::tuning::Heuristic;
use crate::tuning::peer::native::IDLE;

/// The detection of an idle peer, and the next numbers and counts of its released reorder buffers.
#[derive(Debug, Default)]
pub(super) struct IdleState {
    /// The count of inner packets, and since when it has not changed.
    last_active: (u64, Time),
    released: bool,
    /// The next number in buckets whose buffer was released.
    next: BTreeMap<u16, u32>,
    stats: ReorderStats,
}

impl IdleState {
    /// Returns the counts of the released buffers.
    pub fn stats(&self) -> ReorderStats {
        self.stats
    }

    /// Makes the buffer of a bucket that has none.
    pub fn restore(&mut self, bucket: u16, limits: ReorderLimits) -> NativeReorder {
        match self.next.remove(&bucket) {
            Some(next) => NativeReorder::resume(limits, next),
            None => NativeReorder::new(limits),
        }
    }

    /// One of the ends restarted: numbers begin again.
    pub fn on_peer_restart(&mut self) {
        self.next.clear();
    }

    /// Keeps the next number and the counts of a buffer that is released.
    pub fn release(&mut self, bucket: u16, buffer: &NativeReorder) {
        self.stats = self.stats + buffer.stats();
        self.next.extend(buffer.next_number().map(|next| (bucket, next)));
    }

    /// Returns true once when the peer has become idle. `packets` is the count of inner packets.
    fn is_due(&mut self, now: Time, packets: u64) -> bool {
        if packets != self.last_active.0 {
            (self.last_active, self.released) = ((packets, now), false);
        }
        let before = self.released;
        self.released |= now.since(self.last_active.1) >= IDLE;
        self.released && !before
    }
}

impl Native {
    /// Releases memory when no inner packet was sent or received for 30 s. Costs one comparison otherwise.
    pub(super) fn release_idle_memory(&mut self, common: &mut Common, now: Time) {
        let packets = common.ledger.taken + common.ledger.arrived;
        if !self.reordering.idle.is_due(now, packets) || !self.tuning.has(Heuristic::IdleMemory) {
            return;
        }
        common.queue.shrink();
        self.retransmit.shrink();
        self.inner.shrink();
        self.header_compression.clear();
        self.paths.iter_mut().for_each(|path| path.estimator.shrink());
        self.remote.iter_mut().for_each(|path| path.decoder = None);
        self.reordering.shrink();
    }
}
