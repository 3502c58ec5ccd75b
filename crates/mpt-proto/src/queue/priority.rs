//! Priority between classes, and round robin within a class.
//!
//! Realtime goes before interactive, and both before bulk, so that a call does not wait for a download. DSCP can be
//! misused, so priority traffic may exceed bulk by [`BURST`] while bulk waits; then bulk gets every ninth byte.
//!
//! A flow whose packet no path can take can be *parked*, so that it does not block the flows behind it.

use super::drr::DeficitRoundRobin;
use super::flow_queue::FlowQueue;
use crate::classify::Class;
use crate::flow;
use crate::tuning::queue::priority::{BULK_SHARE, BURST};

/// One round robin per class.
#[derive(Debug, Default)]
pub(super) struct PriorityTiers {
    realtime: DeficitRoundRobin,
    interactive: DeficitRoundRobin,
    bulk: DeficitRoundRobin,
    /// Bytes of priority traffic sent while bulk waited.
    credit: usize,
    parked: Vec<u16>,
}

impl PriorityTiers {
    /// Adds a flow that has packets.
    pub fn activate(&mut self, bucket: u16, flow: &mut FlowQueue) {
        self.tier(bucket).activate(bucket, flow);
    }

    /// Returns the next flow that is not parked.
    pub fn pick(&mut self, flows: &mut [FlowQueue]) -> Option<u16> {
        let due = if self.credit >= BURST { self.bulk.pick(flows) } else { None };
        due.or_else(|| self.realtime.pick(flows))
            .or_else(|| self.interactive.pick(flows))
            .or_else(|| self.bulk.pick(flows))
    }

    /// Records that `bytes` of the picked flow leave.
    pub fn on_taken(&mut self, bucket: u16, bytes: usize) {
        if flow::class(bucket) == Class::Bulk {
            self.credit = self.credit.saturating_sub(BULK_SHARE * bytes);
        } else if self.bulk.is_empty() && !self.parked.iter().any(|parked| flow::class(*parked) == Class::Bulk) {
            self.credit = 0;
        } else {
            // The bound limits the credit while bulk is parked.
            self.credit = (self.credit + bytes).min(2 * BURST);
        }
    }

    /// Excludes the picked flow until [`Self::unpark`].
    pub fn park(&mut self, bucket: u16, flow: &FlowQueue) {
        self.tier(bucket).take_first(flow.list);
        self.parked.push(bucket);
    }

    /// Puts the parked flows back at the front of their lists.
    pub fn unpark(&mut self, flows: &[FlowQueue]) {
        while let Some(bucket) = self.parked.pop() {
            self.tier(bucket).put_first(bucket, flows[usize::from(bucket)].list);
        }
    }

    /// Returns how many flows take turns with this one, including itself.
    pub fn active_flows(&mut self, bucket: u16) -> usize {
        let class = flow::class(bucket);
        let parked = self.parked.iter().filter(|parked| flow::class(**parked) == class).count();
        (self.tier(bucket).len() + parked).max(1)
    }

    fn tier(&mut self, bucket: u16) -> &mut DeficitRoundRobin {
        match flow::class(bucket) {
            Class::Bulk => &mut self.bulk,
            Class::Interactive => &mut self.interactive,
            Class::Realtime => &mut self.realtime,
        }
    }
}
