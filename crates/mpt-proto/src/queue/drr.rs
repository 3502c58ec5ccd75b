//! Deficit round robin with a list of new flows (RFC 8290 section 4.2).
//!
//! ```text
//!   first packet -> new --- deficit used, or empty ---> old --- empty ---> inactive
//!                                                       | ^
//!                                                       '-' deficit used
//! ```
//!
//! New flows go first. A flow that sends less than a quantum per round of the scheduler is new each time: it is sparse,
//! and only waits for other sparse flows. A new flow that is empty moves to the old list first, so that it cannot
//! starve the others by becoming empty and new again.

use std::collections::VecDeque;

use super::flow_queue::{FlowQueue, List};
use crate::tuning::queue::drr::QUANTUM;

/// The two lists of active flows, by bucket number. A bucket is in at most one.
#[derive(Debug, Default)]
pub(super) struct DeficitRoundRobin {
    new: VecDeque<u16>,
    old: VecDeque<u16>,
}

impl DeficitRoundRobin {
    /// Adds a flow that has packets to the new list, unless it is in a list.
    pub fn activate(&mut self, bucket: u16, flow: &mut FlowQueue) {
        if flow.list == List::Inactive {
            (flow.list, flow.deficit) = (List::New, QUANTUM);
            self.new.push_back(bucket);
        }
    }

    /// Returns the next flow. It stays the same until that flow has sent or a new flow arrives.
    pub fn pick(&mut self, flows: &mut [FlowQueue]) -> Option<u16> {
        loop {
            let bucket = *self.new.front().or(self.old.front())?;
            let flow = &mut flows[usize::from(bucket)];
            if flow.deficit > 0 && flow.backlog > 0 {
                return Some(bucket);
            }
            self.end_turn(bucket, flow);
        }
    }

    /// Returns true if no flow is active.
    pub fn is_empty(&self) -> bool {
        self.new.is_empty() && self.old.is_empty()
    }

    /// Returns the number of active flows.
    pub fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }

    /// Removes the first flow of `list`; the flow's own `list` field stays as it is.
    pub fn take_first(&mut self, list: List) {
        match list {
            List::New => self.new.pop_front(),
            List::Old | List::Inactive => self.old.pop_front(),
        };
    }

    /// Reinserts a flow that [`Self::take_first`] removed.
    pub fn put_first(&mut self, bucket: u16, list: List) {
        match list {
            List::New => self.new.push_front(bucket),
            List::Old | List::Inactive => self.old.push_front(bucket),
        }
    }

    /// Ends the turn of the first flow.
    fn end_turn(&mut self, bucket: u16, flow: &mut FlowQueue) {
        let from = flow.list;
        match from {
            List::New => self.new.pop_front(),
            List::Old | List::Inactive => self.old.pop_front(),
        };
        if flow.deficit <= 0 {
            flow.deficit += QUANTUM;
            flow.list = List::Old;
        } else {
            flow.on_empty();
            flow.list = if from == List::New { List::Old } else { List::Inactive };
        }
        if flow.list == List::Old {
            self.old.push_back(bucket);
        }
    }
}
