//! Whose turn it is: deficit round robin with a list of new flows (RFC 8290 section 4.2).
//!
//! ```text
//!   first packet -> new --- turn used up, or empty ---> old --- empty ---> neither
//!                                                       | ^
//!                                                       '-' turn used up
//! ```
//!
//! New flows go first. A flow that sends less than a quantum between two rounds is new again each time: it is sparse, and
//! meets no queue but other sparse ones. An empty new flow passes through the old list, so that none can starve
//! the others by emptying itself.

use std::collections::VecDeque;

use super::flow_queue::{FlowQueue, List};

/// The two lists of flows, by bucket number. A bucket is in one at most.
#[derive(Debug, Default)]
pub(super) struct DeficitRoundRobin {
    new: VecDeque<u16>,
    old: VecDeque<u16>,
}

impl DeficitRoundRobin {
    /// A flow has something to send; if it is in neither list, it is new.
    pub fn activate(&mut self, bucket: u16, flow: &mut FlowQueue) {
        if flow.list == List::Inactive {
            (flow.list, flow.deficit) = (List::New, QUANTUM);
            self.new.push_back(bucket);
        }
    }

    /// The flow whose turn it is. The same as before, until it has sent, or a new flow has come.
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

    /// Whether no flow has a turn coming.
    pub fn is_empty(&self) -> bool {
        self.new.is_empty() && self.old.is_empty()
    }

    /// How many flows have a turn coming.
    pub fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }

    /// Takes the first flow out of `list`, as which it goes on being known.
    pub fn take_first(&mut self, list: List) {
        match list {
            List::New => self.new.pop_front(),
            List::Old | List::Inactive => self.old.pop_front(),
        };
    }

    /// Puts back what [`Self::take_first`] took.
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

/// Bytes that a flow may send in a turn: an Ethernet frame (RFC 8290 section 5.2), so that a packet of any flow waits for
/// one packet of each other.
pub(super) const QUANTUM: i64 = 1_514;
