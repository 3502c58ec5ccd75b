//! Where inner packets wait for a path: FQ-CoDel (RFC 8290), one queue for each peer.
//!
//! ```text
//!   push(super-packet) -> bucket 0 ---.
//!                         bucket 1 ----> whose turn? -> CoDel -> head, pop -> scheduler
//!                         ...      ---'  (rounds)       drop, mark
//!                         bucket 1535
//! ```
//!
//! Paths are not given more than they carry, so what a fast sender has too much stands here, where something can be done
//! about it: every flow waits in a bucket of its own, buckets take turns by bytes, a flow that sends little goes before
//! those that are backlogged, and of a flow whose queue stands too long CoDel drops packets, or marks them if
//! their transport understands that (ECN, RFC 3168).
//!
//! It takes super-packets and gives single packets, which refer to the super-packet: nothing is copied, and the buffer
//! comes back with the last of its packets. Memory is bounded in bytes of super-packets that are not done with.
//! Buckets of one class come before those of another ([`tiers`]). Every step costs the same however much waits; only a push beyond the
//! limit looks at all buckets, and [`Queue::pop_ahead`] at all super-packets that it passes.
//!
//! The packets of a bucket are numbered in the order in which they came, as they leave: what is dropped has no number, unless a later
//! packet has left *ahead* of it, on a path so slow that it arrives in its turn all the same.

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
use crate::packet::SuperPacket;
use crate::time::Time;
use codel::CodelParams;
use flow_queue::{CodelAction, Dequeued, FlowQueue, List};
pub use inner::InnerPacket;
use priority::PriorityTiers;
use slab::Slab;

/// The packets that wait for a path to one peer.
#[derive(Debug)]
pub struct Queue {
    /// All of them, or none while nothing has come for long: they weigh more than all else that a peer has.
    buckets: Vec<FlowQueue>,
    tiers: PriorityTiers,
    slab: Slab,
    aqm: Aqm,
    /// The bucket of the packet that [`Self::head`] described.
    head_bucket: Option<u16>,
    packets: usize,
    /// Bytes of the packets that wait.
    bytes: usize,
    /// Bytes of the super-packets they belong to.
    allocated: usize,
    limit: usize,
    /// Packets that CoDel dropped and nobody has asked about.
    dropped: u64,
    /// The number of the packet at the front of each bucket; nothing before the first packet.
    next_numbers: Vec<u32>,
    /// Numbers that no packet will have, because one was dropped after a later one had left.
    holes: Vec<(u16, u32)>,
}

/// What is done about a queue that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aqm {
    /// Nothing: flows share fairly, and each is first in, first out.
    Off,
    /// CoDel (RFC 8289), for each flow.
    CoDel {
        /// How long a queue may stand.
        target: Duration,
        /// For how long it may be longer, about the longest round trip of the flows.
        interval: Duration,
    },
}

/// The packet that would be next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its length in bytes.
    pub len: usize,
    /// Its flow's bucket.
    pub bucket: u16,
    /// The flow has just begun, or sends little.
    pub sparse: bool,
    /// Bytes that will have left with the last of its flow: the flow's, and those of the flows that it takes turns with.
    pub backlog: usize,
    /// What the classifier found out about it.
    pub mark: Mark,
}

impl Queue {
    /// Makes one that holds super-packets of `limit_bytes` together, and of [`LARGEST`] at least.
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

    /// Takes a super-packet of the flow in `bucket`, which [`crate::flow::bucket`] computed. Returns how many packets were
    /// dropped because there was no room: those at the front of the flow with the most bytes.
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

    /// The packet that is next, after CoDel has had its say; what it drops is counted in `drops` and in
    /// [`Self::take_dropped`]. The answer stays the same until [`Self::pop`], unless a new flow begins or its packets are
    /// dropped for want of room. None when nothing waits but parked flows, and only then.
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

    /// Takes out the packet that [`Self::head`] described last, with its number in the order of its flow; none if there was none, or
    /// it has been taken or dropped.
    pub fn pop(&mut self) -> Option<(u32, InnerPacket)> {
        let bucket = self.head_bucket.take()?;
        let (number, packet) = self.take(bucket)?;
        self.on_leaving(bucket, &packet);
        Some((number, packet))
    }

    /// Takes out, of the flow whose packet [`Self::head`] described last, a packet that is not next: one of at most `longest` bytes
    /// that leaves when `before` bytes have left, of this flow and those it takes turns with, or its last. None if that
    /// is the next one, too long, or not marked as the next one is.
    pub fn pop_ahead(&mut self, before: u64, longest: usize) -> Option<(u16, u32, InnerPacket)> {
        let bucket = self.head_bucket?;
        let before = usize::try_from(before).unwrap_or(usize::MAX) / self.active_flows(bucket);
        let flow = &mut self.buckets[usize::from(bucket)];
        let (packet, offset) = flow.take_ahead(&mut self.slab, before, longest)?;
        self.packets -= 1;
        self.bytes -= packet.len();
        self.on_leaving(bucket, &packet);
        Some((bucket, self.next_numbers[usize::from(bucket)].wrapping_add(offset), packet))
    }

    /// Drops the packet that [`Self::head`] described last.
    pub fn discard(&mut self) -> Option<InnerPacket> {
        let bucket = self.head_bucket.take()?;
        self.drop_front(bucket)
    }

    /// A bucket and a number there that no packet will have, told once.
    pub fn poll_hole(&mut self) -> Option<(u16, u32)> {
        self.holes.pop()
    }

    /// Numbers begin again at 0 in every bucket.
    pub fn renumber(&mut self) {
        self.next_numbers.fill(0);
        self.holes.clear();
        self.buckets.iter_mut().for_each(FlowQueue::renumber);
    }

    /// Leaves the flow of the packet that [`Self::head`] described out until [`Self::unpark`], because that packet has nowhere to go.
    pub fn park(&mut self) {
        if let Some(bucket) = self.head_bucket.take() {
            self.tiers.park(bucket, &self.buckets[usize::from(bucket)]);
        }
    }

    /// Asks parked flows again.
    pub fn unpark(&mut self) {
        self.tiers.unpark(&self.buckets);
    }

    /// Takes out everything, with no word from CoDel.
    pub fn drain(&mut self) -> impl Iterator<Item = InnerPacket> {
        self.unpark();
        self.head_bucket = None;
        std::iter::from_fn(|| {
            let bucket = self.tiers.pick(&mut self.buckets)?;
            self.drop_front(bucket)
        })
    }

    /// Gives memory back while nothing waits. Flows that come later are new ones.
    pub fn shrink(&mut self) {
        if self.packets == 0 {
            (self.buckets, self.tiers, self.slab) = (Vec::new(), PriorityTiers::default(), Slab::default());
            self.head_bucket = None;
        }
    }

    /// How many packets [`Self::head`] has dropped since this was asked last.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Changes CoDel's settings, for instance when the round trip over the paths has changed. Nothing when it is off.
    pub fn set_delay(&mut self, target: Duration, interval: Duration) {
        if self.aqm != Aqm::Off {
            self.aqm = Aqm::CoDel { target, interval };
        }
    }

    /// The paths have become so much slower at once that what waits stands too long from now on: CoDel need not find out.
    pub fn on_rate_collapse(&mut self, now: Time) {
        for bucket in &mut self.buckets {
            bucket.on_rate_collapse(now);
        }
    }

    /// Whether a super-packet of any length fits.
    pub fn has_room(&self) -> bool {
        self.allocated + MAX_SUPER_PACKET <= self.limit
    }

    /// How many packets wait.
    pub fn len(&self) -> usize {
        self.packets
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// How many bytes wait, each packet with its own header.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops packets at the front of a flow until CoDel lets one pass, which it does with the last at the latest.
    fn apply_codel(&mut self, now: Time, bucket: u16, drops: &mut Drops) {
        let Aqm::CoDel { target, interval } = self.aqm else { return };
        let params = CodelParams { target, interval };
        while self.buckets[usize::from(bucket)].run_codel(&self.slab, now, params) == Some(CodelAction::Drop) {
            self.drop_front(bucket);
            drops.count(Dropped::Aqm);
            self.dropped += 1;
        }
    }

    /// How many flows take turns with one, itself among them.
    fn active_flows(&mut self, bucket: u16) -> usize {
        if self.buckets[usize::from(bucket)].list == List::New { 1 } else { self.tiers.active_flows(bucket) }
    }

    /// Takes out the packet at the front of a flow, and its number.
    fn take(&mut self, bucket: u16) -> Option<(u32, InnerPacket)> {
        let Dequeued { packet, advance: offset, released } = self.buckets[usize::from(bucket)].take(&mut self.slab)?;
        self.packets -= 1;
        self.bytes -= packet.len();
        self.allocated -= released;
        let next = &mut self.next_numbers[usize::from(bucket)];
        let number = *next;
        *next = number.wrapping_add(offset);
        Some((number, packet))
    }

    /// Drops the packet at the front of a flow. Unless a later one has left, its number is that of the next.
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

    /// A packet of a flow leaves, which is charged with it.
    fn on_leaving(&mut self, bucket: u16, packet: &InnerPacket) {
        self.tiers.on_taken(bucket, packet.len());
        self.buckets[usize::from(bucket)].deficit -= packet.len() as i64;
    }

    /// Drops until the limit is kept, and returns how many packets.
    fn enforce_limit(&mut self) -> u64 {
        let before = self.packets;
        while self.allocated > self.limit {
            let largest = (0..BUCKETS).max_by_key(|i| self.buckets[*i].backlog).expect("there are buckets");
            self.drop_batch(largest as u16);
        }
        (before - self.packets) as u64
    }

    /// Drops half of what waits in a flow, but little more than [`SHED_BATCH`] packets: from its front, where its sender
    /// learns of it first, and whole super-packets, since part of one gives no memory back.
    fn drop_batch(&mut self, bucket: u16) {
        self.head_bucket = self.head_bucket.filter(|chosen| *chosen != bucket);
        let (half, before) = (self.buckets[usize::from(bucket)].backlog / 2, self.packets);
        while self.buckets[usize::from(bucket)].backlog > half && before - self.packets < DROP_BATCH {
            let held = self.allocated;
            while self.allocated == held && self.drop_front(bucket).is_some() {}
        }
    }
}

impl Default for Aqm {
    fn default() -> Self {
        Self::CoDel { target: TARGET, interval: INTERVAL }
    }
}

/// Bytes of the longest super-packet: an IPv6 header and what its length field can say.
pub const MAX_SUPER_PACKET: usize = 40 + 65_535;

/// RFC 8289 section 4.3 has 5 ms, for a link that takes one packet after the other. Paths are served in runs of packets, and
/// the scheduler may let a packet wait for a faster path: both make the front of a busy queue up to some ten
/// milliseconds old though nothing stands. Beyond 15 ms people would hear of it (the lab's limit for the median).
pub const TARGET: Duration = Duration::from_millis(15);

/// A round trip of most flows in the Internet (RFC 8289 section 4.2): a sender cannot answer sooner, so a queue that is gone
/// by then was a burst. Where the paths alone take longer, [`Queue::set_delay`] says so.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// Packets dropped at once for want of room, so that the search for the fattest flow is paid for (RFC 8290 section 4.1).
const DROP_BATCH: usize = 64;

#[cfg(test)]
mod tests;
