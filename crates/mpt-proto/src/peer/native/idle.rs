//! What an idle peer gives back: a server has a thousand peers, of whom few do something.
//!
//! A peer that carries packets has queues, numbers and resequencers for a thousand flow buckets, and remembers what is in
//! flight: some hundred kilobytes. After [`IDLE`] without an inner packet it keeps its sessions, what it knows of its paths, and one
//! number for each bucket that was ever used, so that order goes on where it was. All else comes back with the next packet.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::super::Peer;
use super::Native;
use crate::reorder::{ReorderBuffer, ReorderLimits, ReorderStats};
use crate::time::Time;

/// Longer than anything that was sent can still be under way, be sent again or be missed (three seconds, see `USEFUL`), and than
/// people pause between two clicks.
const IDLE: Duration = Duration::from_secs(30);

/// Since when a peer has been idle, and what is left of the resequencers that it had.
#[derive(Debug, Default)]
pub(super) struct IdleState {
    /// Inner packets so far, and since when they are so many.
    last_active: (u64, Time),
    suspended: bool,
    /// The next number in buckets whose resequencer is gone.
    next: BTreeMap<u16, u32>,
    stats: ReorderStats,
}

impl IdleState {
    /// What the resequencers did that are gone.
    pub fn stats(&self) -> ReorderStats {
        self.stats
    }

    /// The resequencer of a bucket that has none.
    pub fn restore(&mut self, bucket: u16, limits: ReorderLimits) -> ReorderBuffer {
        match self.next.remove(&bucket) {
            Some(next) => ReorderBuffer::resume(limits, 0, next),
            None => ReorderBuffer::new(limits, 0),
        }
    }

    /// The peer has begun anew, and its numbers too.
    pub fn on_peer_restart(&mut self) {
        self.next.clear();
    }

    /// Whether it is time to rest, once each time.
    fn is_due(&mut self, now: Time, packets: u64) -> bool {
        if packets != self.last_active.0 {
            (self.last_active, self.suspended) = ((packets, now), false);
        }
        let rested = self.suspended;
        self.suspended |= now.since(self.last_active.1) >= IDLE;
        self.suspended && !rested
    }

    pub fn suspend(&mut self, bucket: u16, order: &ReorderBuffer) {
        self.stats = self.stats + order.stats();
        self.next.extend(order.next_number().map(|next| (bucket, next)));
    }
}

impl Peer {
    /// Gives memory back when no inner packet has come or gone for a while. Costs a comparison.
    pub(super) fn release_idle_memory(&mut self, now: Time, native: &mut Native) {
        let packets = self.ledger.taken + self.ledger.arrived;
        if !native.idle.is_due(now, packets) {
            return;
        }
        self.queue.shrink();
        native.retransmit.shrink();
        native.udp_shaper.shrink();
        native.ack_delay.shrink();
        native.header_compression.clear();
        native.carriers.iter_mut().for_each(|carrier| carrier.feedback.shrink());
        let Native { reorder: order, holding, idle: rested, .. } = native;
        order.retain(|bucket, order| {
            let holds = holding.contains(bucket);
            if !holds {
                rested.suspend(*bucket, order);
            }
            holds
        });
        order.shrink_to_fit();
        // Only tells copies from one another, and none is still under way.
        native.unordered = HashMap::new();
    }
}
