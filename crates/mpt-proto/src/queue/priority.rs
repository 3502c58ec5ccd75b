//! Priority between classes, and round robin within a class.
//!
//! Realtime goes before interactive, and both before bulk, so that a call does not wait for a download. DSCP can be
//! misused, so the classes before another may exceed it by [`BURST`] while it waits; then it gets every ninth byte.
//!
//! A flow whose packet no path can take can be *parked*, so that it does not block the flows behind it.

use std::cmp::Ordering;

use super::drr::DeficitRoundRobin;
use super::flow_queue::FlowQueue;
use crate::classify::Class;
use crate::flow;
use crate::tuning::queue::priority::{BURST, SHARE};

/// One round robin per class.
#[derive(Debug, Default)]
pub(super) struct PriorityTiers {
    realtime: DeficitRoundRobin,
    interactive: DeficitRoundRobin,
    bulk: DeficitRoundRobin,
    /// Bytes of the classes before interactive that were sent while interactive waited, and those before bulk.
    credits: [usize; 2],
    parked: Vec<u16>,
}

impl PriorityTiers {
    /// Adds a flow that has packets.
    pub fn activate(&mut self, bucket: u16, flow: &mut FlowQueue) {
        self.tier(bucket).activate(bucket, flow);
    }

    /// Returns the next flow that is not parked.
    pub fn pick(&mut self, flows: &mut [FlowQueue]) -> Option<u16> {
        let [interactive, bulk] = self.credits.map(|credit| credit >= BURST);
        let due = if bulk { self.bulk.pick(flows) } else { None };
        due.or_else(|| if interactive { self.interactive.pick(flows) } else { None })
            .or_else(|| self.realtime.pick(flows))
            .or_else(|| self.interactive.pick(flows))
            .or_else(|| self.bulk.pick(flows))
    }

    /// Records that `bytes` of the picked flow leave.
    pub fn on_taken(&mut self, bucket: u16, bytes: usize) {
        let taken = flow::class(bucket);
        for (number, class) in [Class::Interactive, Class::Bulk].into_iter().enumerate() {
            let credit = self.credits[number];
            self.credits[number] = match taken.cmp(&class) {
                // The bound limits the credit while the class is parked.
                Ordering::Greater if self.waits(class) => (credit + bytes).min(2 * BURST),
                Ordering::Greater => 0,
                Ordering::Equal => credit.saturating_sub(SHARE * bytes),
                Ordering::Less => credit,
            };
        }
    }

    fn waits(&mut self, class: Class) -> bool {
        !self.tier_of(class).is_empty() || self.parked.iter().any(|parked| flow::class(*parked) == class)
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
        self.tier_of(flow::class(bucket))
    }

    fn tier_of(&mut self, class: Class) -> &mut DeficitRoundRobin {
        match class {
            Class::Bulk => &mut self.bulk,
            Class::Interactive => &mut self.interactive,
            Class::Realtime => &mut self.realtime,
        }
    }
}
