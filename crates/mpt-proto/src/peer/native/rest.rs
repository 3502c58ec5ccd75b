//! What an idle peer gives back: a server has a thousand peers, of whom few do something.
//!
//! A peer that carries packets has queues, numbers and resequencers for a thousand flow buckets, and remembers what is in
//! flight: some hundred kilobytes. After [`IDLE`] without an inner packet it keeps its sessions, what it knows of its paths, and one
//! number for each bucket that was ever used, so that order goes on where it was. All else comes back with the next packet.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::super::Peer;
use super::Native;
use crate::reseq::{Limits, Resequencer, Stats};
use crate::time::Time;

/// Longer than anything that was sent can still be under way, be sent again or be missed (three seconds, see `USEFUL`), and than
/// people pause between two clicks.
const IDLE: Duration = Duration::from_secs(30);

/// Since when a peer has been idle, and what is left of the resequencers that it had.
#[derive(Debug, Default)]
pub(super) struct Rested {
    /// Inner packets so far, and since when they are so many.
    seen: (u64, Time),
    rests: bool,
    /// The next number in buckets whose resequencer is gone.
    next: BTreeMap<u16, u32>,
    stats: Stats,
}

impl Rested {
    /// What the resequencers did that are gone.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The resequencer of a bucket that has none.
    pub fn wake(&mut self, bucket: u16, limits: Limits) -> Resequencer {
        match self.next.remove(&bucket) {
            Some(next) => Resequencer::resume(limits, 0, next),
            None => Resequencer::new(limits, 0),
        }
    }

    /// The peer has begun anew, and its numbers too.
    pub fn begin_anew(&mut self) {
        self.next.clear();
    }

    /// Whether it is time to rest, once each time.
    fn is_due(&mut self, now: Time, packets: u64) -> bool {
        if packets != self.seen.0 {
            (self.seen, self.rests) = ((packets, now), false);
        }
        let rested = self.rests;
        self.rests |= now.since(self.seen.1) >= IDLE;
        self.rests && !rested
    }

    pub fn put_away(&mut self, bucket: u16, order: &Resequencer) {
        self.stats = self.stats + order.stats();
        self.next.extend(order.next_number().map(|next| (bucket, next)));
    }
}

impl Peer {
    /// Gives memory back when no inner packet has come or gone for a while. Costs a comparison.
    pub(super) fn rest_when_idle(&mut self, now: Time, native: &mut Native) {
        let packets = self.ledger.taken + self.ledger.arrived;
        if !native.rested.is_due(now, packets) {
            return;
        }
        self.queue.rest();
        native.repair.rest();
        native.outlets.rest();
        native.luck.rest();
        native.headers.clear();
        native.carriers.iter_mut().for_each(|carrier| carrier.feedback.rest());
        let Native { order, holding, rested, .. } = native;
        order.retain(|bucket, order| {
            let holds = holding.contains(bucket);
            if !holds {
                rested.put_away(*bucket, order);
            }
            holds
        });
        order.shrink_to_fit();
        // Only tells copies from one another, and none is still under way.
        native.unordered = HashMap::new();
    }
}
