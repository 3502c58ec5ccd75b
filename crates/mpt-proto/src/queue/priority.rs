//! Which class goes first, and which flow within it.
//!
//! Realtime goes before interactive, and both before bulk: a call does not wait for a download. Marks are only words, though, and somebody's
//! download may carry them. So precedence is lent, not given: while bulk waits, what went before it is noted, and beyond [`LOAN`] bulk
//! gets every ninth byte.
//!
//! A flow whose packet has nowhere to go for now can be *parked*, so that those behind it are not held up by it.

use super::drr::DeficitRoundRobin;
use super::flow_queue::FlowQueue;
use crate::classify::Class;
use crate::flow;

/// The rounds of all classes.
#[derive(Debug, Default)]
pub(super) struct PriorityTiers {
    realtime: DeficitRoundRobin,
    interactive: DeficitRoundRobin,
    bulk: DeficitRoundRobin,
    /// Bytes that went before bulk while bulk waited.
    credit: usize,
    parked: Vec<u16>,
}

impl PriorityTiers {
    /// A flow has something to send.
    pub fn activate(&mut self, bucket: u16, flow: &mut FlowQueue) {
        self.tier(bucket).activate(bucket, flow);
    }

    /// The flow whose turn it is, of those that are not parked.
    pub fn pick(&mut self, flows: &mut [FlowQueue]) -> Option<u16> {
        let due = if self.credit >= BURST { self.bulk.pick(flows) } else { None };
        due.or_else(|| self.realtime.pick(flows))
            .or_else(|| self.interactive.pick(flows))
            .or_else(|| self.bulk.pick(flows))
    }

    /// `bytes` of the flow that was picked are leaving.
    pub fn on_taken(&mut self, bucket: u16, bytes: usize) {
        if flow::class(bucket) == Class::Bulk {
            self.credit = self.credit.saturating_sub(BULK_SHARE * bytes);
        } else if self.bulk.is_empty() && !self.parked.iter().any(|parked| flow::class(*parked) == Class::Bulk) {
            self.credit = 0;
        } else {
            // While what is owed cannot be taken it does not grow for ever.
            self.credit = (self.credit + bytes).min(2 * BURST);
        }
    }

    /// Leaves the flow that was picked out until [`Self::unpark`].
    pub fn park(&mut self, bucket: u16, flow: &FlowQueue) {
        self.tier(bucket).take_first(flow.list);
        self.parked.push(bucket);
    }

    /// Puts the flows that were parked back where they were.
    pub fn unpark(&mut self, flows: &[FlowQueue]) {
        while let Some(bucket) = self.parked.pop() {
            self.tier(bucket).put_first(bucket, flows[usize::from(bucket)].list);
        }
    }

    /// How many flows take turns with this one, itself among them.
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

/// A burst that may go first: a frame of video.
const BURST: usize = 64 << 10;
/// How many bytes go before bulk for each of bulk's, beyond that.
const BULK_SHARE: usize = 8;
