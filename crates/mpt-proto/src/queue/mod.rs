//! The queue of inner packets for one peer: FQ-CoDel (RFC 8290).
//!
//! ```text
//!   push(super-packet) -> bucket 0 ---.
//!                         bucket 1 ---->  DRR  -> CoDel -> head, pop -> scheduler
//!                         ...      ---'          drop, mark
//!                         bucket 1535
//! ```
//!
//! Paths never get more than they carry, so the excess of a fast sender waits here, where it can be managed. Every flow
//! has its own bucket; deficit round robin shares the bytes; sparse flows go before backlogged ones; and CoDel drops
//! packets of a flow with a standing queue, or marks them if the transport supports ECN (RFC 3168).
//!
//! The queue accepts super-packets and returns single packets that refer to them: nothing is copied, and the buffer is
//! returned with its last packet. The limit is in bytes of the super-packets that are in use. Classes have strict
//! priority within bounds ([`priority`]). Every step has constant cost; only a push beyond the limit visits all
//! buckets, and [`Queue::pop_ahead`] visits the super-packets that it passes.
//!
//! The packets of a bucket are numbered in arrival order when they leave. A dropped packet gets no number, unless a
//! later packet has left *ahead* of it, on a path so slow that it still arrives in order.

mod codel;
mod drr;
mod flow_queue;
mod inner;
mod priority;
mod slab;

use std::time::Duration;

use crate::classify::Mark;
use crate::drops::{Dropped, Drops};
use crate::flow::BUCKETS;
use crate::packet::{MAX_SUPER_PACKET, SuperPacket};
use crate::time::Time;
use crate::tuning::queue::codel::{DROP_BATCH, INTERVAL, TARGET};
use codel::CodelParams;
use flow_queue::{CodelAction, Dequeued, FlowQueue, List};
pub use inner::InnerPacket;
use priority::PriorityTiers;
use slab::Slab;

/// The packets that wait for a path to one peer.
#[derive(Debug)]
pub struct Queue {
    /// All buckets, or none after a long idle time: they use more memory than all other state of a peer.
    buckets: Vec<FlowQueue>,
    tiers: PriorityTiers,
    slab: Slab,
    aqm: Aqm,
    /// Bucket of the packet that [`Self::head`] returned.
    head_bucket: Option<u16>,
    packets: usize,
    /// Bytes of the waiting packets.
    bytes: usize,
    /// Bytes of the super-packets in use.
    allocated: usize,
    limit: usize,
    /// Packets dropped by CoDel since [`Self::take_dropped`].
    dropped: u64,
    /// Number of the packet at the front of each bucket; empty before the first packet.
    next_numbers: Vec<u32>,
    /// Numbers that no packet will have, because a packet was dropped after a later one had left.
    holes: Vec<(u16, u32)>,
}

/// Active queue management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aqm {
    /// None: flows share fairly, and each is first in, first out.
    Off,
    /// CoDel (RFC 8289) for each flow.
    CoDel {
        /// Acceptable standing queue.
        target: Duration,
        /// Time for which the delay may exceed the target: about the longest round trip of the flows.
        interval: Duration,
    },
}

/// Describes the next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Length in bytes.
    pub len: usize,
    /// Bucket of its flow.
    pub bucket: u16,
    /// True if the flow is sparse: new, or with little to send.
    pub sparse: bool,
    /// Bytes that leave until the flow's backlog is sent: its own, and those of the flows that it takes turns with.
    pub backlog: usize,
    /// The classifier's result.
    pub mark: Mark,
}

impl Queue {
    /// Creates a queue that holds super-packets of `limit_bytes` in total, at least [`MAX_SUPER_PACKET`].
    pub fn new(limit_bytes: usize, aqm: Aqm) -> Self {
        Self {
            buckets: Vec::new(),
            tiers: PriorityTiers::default(),
            slab: Slab::default(),
            aqm,
            head_bucket: None,
            packets: 0,
            bytes: 0,
            allocated: 0,
            limit: limit_bytes.max(MAX_SUPER_PACKET),
            dropped: 0,
            next_numbers: Vec::new(),
            holes: Vec::new(),
        }
    }

    /// Appends a super-packet of the flow in `bucket`, computed by [`crate::flow::bucket`]. Returns how many packets
    /// were dropped to keep the limit: those at the front of the flow with the most bytes.
    pub fn push(&mut self, now: Time, bucket: u16, packet: SuperPacket) -> u64 {
        self.packets += packet.count();
        self.bytes += packet.len_of_all();
        self.allocated += packet.bytes().len();
        if self.buckets.is_empty() {
            self.buckets.resize_with(BUCKETS, FlowQueue::default);
            self.next_numbers.resize(BUCKETS, 0);
        }
        let flow = &mut self.buckets[usize::from(bucket)];
        flow.push(&mut self.slab, now, packet);
        self.tiers.activate(bucket, flow);
        self.enforce_limit()
    }

    /// Returns the next packet after CoDel's drops, which are counted in `drops` and in [`Self::take_dropped`]. The
    /// result stays the same until [`Self::pop`], unless a new flow starts or its packets are dropped by the limit.
    /// Returns `None` only if nothing or only parked flows wait.
    pub fn head(&mut self, now: Time, drops: &mut Drops) -> Option<Head> {
        self.head_bucket = self.tiers.pick(&mut self.buckets);
        let bucket = self.head_bucket?;
        self.apply_codel(now, bucket, drops);
        let flow = &self.buckets[usize::from(bucket)];
        let (len, mark) = (flow.front_len(&self.slab)?, flow.front_mark(&self.slab)?);
        let (sparse, backlog) = (flow.list == List::New, flow.backlog);
        Some(Head {
            len,
            bucket,
            sparse,
            backlog: backlog.saturating_mul(self.active_flows(bucket)).min(self.bytes),
            mark,
        })
    }

    /// Takes the packet that [`Self::head`] returned last, with its number in its flow's order. Returns `None` if there
    /// was none or it was taken or dropped.
    pub fn pop(&mut self) -> Option<(u32, InnerPacket)> {
        let bucket = self.head_bucket.take()?;
        let (number, packet) = self.take(bucket)?;
        self.on_leaving(bucket, &packet);
        Some((number, packet))
    }

    /// Takes a packet that is not next from the flow of the last [`Self::head`]: the one that leaves after `before`
    /// bytes of this flow and those it takes turns with, or else its last. Returns `None` if that is the next packet,
    /// is longer than `max_len` bytes, or is classified differently.
    pub fn pop_ahead(&mut self, before: u64, max_len: usize) -> Option<(u16, u32, InnerPacket)> {
        let bucket = self.head_bucket?;
        let before = usize::try_from(before).unwrap_or(usize::MAX) / self.active_flows(bucket);
        let flow = &mut self.buckets[usize::from(bucket)];
        let (packet, offset) = flow.take_ahead(&mut self.slab, before, max_len)?;
        self.packets -= 1;
        self.bytes -= packet.len();
        self.on_leaving(bucket, &packet);
        Some((bucket, self.next_numbers[usize::from(bucket)].wrapping_add(offset), packet))
    }

    /// Drops the packet that [`Self::head`] returned last.
    pub fn discard(&mut self) -> Option<InnerPacket> {
        let bucket = self.head_bucket.take()?;
        self.drop_front(bucket)
    }

    /// Returns, once, a bucket and a number in it that no packet will have.
    pub fn poll_hole(&mut self) -> Option<(u16, u32)> {
        self.holes.pop()
    }

    /// Restarts the numbering at 0 in every bucket.
    pub fn renumber(&mut self) {
        self.next_numbers.fill(0);
        self.holes.clear();
        self.buckets.iter_mut().for_each(FlowQueue::renumber);
    }

    /// Excludes the flow of the last [`Self::head`] until [`Self::unpark`], because no path can take its packet.
    pub fn park(&mut self) {
        if let Some(bucket) = self.head_bucket.take() {
            self.tiers.park(bucket, &self.buckets[usize::from(bucket)]);
        }
    }

    /// Includes the parked flows again.
    pub fn unpark(&mut self) {
        self.tiers.unpark(&self.buckets);
    }

    /// Takes all packets, without CoDel.
    pub fn drain(&mut self) -> impl Iterator<Item = InnerPacket> {
        self.unpark();
        self.head_bucket = None;
        std::iter::from_fn(|| {
            let bucket = self.tiers.pick(&mut self.buckets)?;
            self.drop_front(bucket)
        })
    }

    /// Frees memory if nothing waits. All later flows are new.
    pub fn shrink(&mut self) {
        if self.packets == 0 {
            (self.buckets, self.tiers, self.slab) = (Vec::new(), PriorityTiers::default(), Slab::default());
            self.head_bucket = None;
        }
    }

    /// Returns and resets the number of packets that [`Self::head`] has dropped.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Sets CoDel's parameters, for instance when the round trip of the paths changes. No effect if CoDel is off.
    pub fn set_delay(&mut self, target: Duration, interval: Duration) {
        if self.aqm != Aqm::Off {
            self.aqm = Aqm::CoDel { target, interval };
        }
    }

    /// Notes that the receive window of the flow in `bucket` is limited, until its queue is empty.
    pub fn set_limited(&mut self, bucket: u16) {
        if let Some(flow) = self.buckets.get_mut(usize::from(bucket)) {
            flow.limited = true;
        }
    }

    /// Returns CoDel's target.
    pub fn target(&self) -> Duration {
        match self.aqm {
            Aqm::Off => Duration::MAX,
            Aqm::CoDel { target, .. } => target,
        }
    }

    /// Returns true if a packet waits in a bucket.
    pub fn has_backlog(&self, bucket: u16) -> bool {
        self.buckets.get(usize::from(bucket)).is_some_and(|flow| flow.backlog > 0)
    }

    /// Returns the bytes that wait in a bucket, and how many flows take turns with it, including itself.
    pub fn backlog(&mut self, bucket: u16) -> (usize, usize) {
        let backlog = self.buckets.get(usize::from(bucket)).map_or(0, |flow| flow.backlog);
        (backlog, self.tiers.active_flows(bucket))
    }

    /// Returns true if a super-packet of any length fits.
    pub fn has_room(&self) -> bool {
        self.allocated + MAX_SUPER_PACKET <= self.limit
    }

    /// Returns the number of waiting packets.
    pub fn len(&self) -> usize {
        self.packets
    }

    /// Returns true if no packet waits.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns the number of waiting bytes; each packet counts with its own header.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops packets at the front of a flow until CoDel passes one, at the latest the last.
    fn apply_codel(&mut self, now: Time, bucket: u16, drops: &mut Drops) {
        let Aqm::CoDel { target, interval } = self.aqm else { return };
        let params = CodelParams { target, interval };
        while self.buckets[usize::from(bucket)].run_codel(&self.slab, now, params) == Some(CodelAction::Drop) {
            self.drop_front(bucket);
            drops.count(Dropped::Aqm);
            self.dropped += 1;
        }
    }

    /// Returns how many flows take turns with this one, including itself.
    fn active_flows(&mut self, bucket: u16) -> usize {
        if self.buckets[usize::from(bucket)].list == List::New { 1 } else { self.tiers.active_flows(bucket) }
    }

    /// Takes the packet at the front of a flow, with its number.
    fn take(&mut self, bucket: u16) -> Option<(u32, InnerPacket)> {
        let Dequeued { packet, advance, released } = self.buckets[usize::from(bucket)].take(&mut self.slab)?;
        self.packets -= 1;
        self.bytes -= packet.len();
        self.allocated -= released;
        let next = &mut self.next_numbers[usize::from(bucket)];
        let number = *next;
        *next = number.wrapping_add(advance);
        Some((number, packet))
    }

    /// Drops the packet at the front of a flow. Its number is reused for the next, unless a later one has left.
    fn drop_front(&mut self, bucket: u16) -> Option<InnerPacket> {
        let leaves_hole = self.buckets[usize::from(bucket)].leaves_hole();
        let (number, packet) = self.take(bucket)?;
        if leaves_hole {
            self.holes.push((bucket, number));
        } else {
            self.next_numbers[usize::from(bucket)] = number;
        }
        Some(packet)
    }

    /// Charges a flow for a packet that leaves.
    fn on_leaving(&mut self, bucket: u16, packet: &InnerPacket) {
        self.tiers.on_taken(bucket, packet.len());
        self.buckets[usize::from(bucket)].deficit -= packet.len() as i64;
    }

    /// Drops packets until the limit is kept; returns their number.
    fn enforce_limit(&mut self) -> u64 {
        let before = self.packets;
        while self.allocated > self.limit {
            let largest = (0..BUCKETS).max_by_key(|i| self.buckets[*i].backlog).expect("there are buckets");
            self.drop_batch(largest as u16);
        }
        (before - self.packets) as u64
    }

    /// Drops half of a flow's backlog, or slightly more than [`DROP_BATCH`] packets: from its front, so that the sender
    /// detects it first, and whole super-packets, because part of one frees no memory.
    fn drop_batch(&mut self, bucket: u16) {
        self.head_bucket = self.head_bucket.filter(|head| *head != bucket);
        let (half, before) = (self.buckets[usize::from(bucket)].backlog / 2, self.packets);
        while self.buckets[usize::from(bucket)].backlog > half && before - self.packets < DROP_BATCH {
            let allocated = self.allocated;
            while self.allocated == allocated && self.drop_front(bucket).is_some() {}
        }
    }
}

impl Default for Aqm {
    fn default() -> Self {
        Self::CoDel { target: TARGET, interval: INTERVAL }
    }
}

#[cfg(test)]
mod tests;
