//! Where the super-packets of all flows stand: many queues in one vector.
//!
//! Each flow has a chain through it. A vector per flow would grow to what that flow once had waiting, a thousand times over;
//! this one grows to what ever waited at the same time, and in steady state not at all.

use std::sync::Arc;

use crate::packet::SuperPacket;
use crate::time::Time;

/// A super-packet, when it came, and what of it has not left.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub packet: Arc<SuperPacket>,
    pub arrived: Time,
    /// Bytes of the packets that wait.
    pub remaining: usize,
    /// Which packets left ahead of others, as a bit set. Those beyond its width leave in their turn.
    ahead: u64,
}

impl QueuedPacket {
    pub fn new(packet: SuperPacket, arrived: Time) -> Self {
        Self { remaining: packet.len_of_all(), packet: Arc::new(packet), arrived, ahead: 0 }
    }

    /// Whether packet `index` left ahead of others.
    pub fn has_left(&self, index: usize) -> bool {
        index < MAX_AHEAD && self.ahead & 1 << index != 0
    }

    /// Notes that packet `index`, below [`MOST_AHEAD`], leaves ahead of others.
    pub fn mark_left(&mut self, index: usize) {
        self.ahead |= 1 << index;
        self.remaining -= self.packet.len_of(index);
    }

    /// The packets from `first` on that may leave ahead of others.
    pub fn candidates(&self, first: usize) -> impl DoubleEndedIterator<Item = usize> {
        (first..self.packet.count().min(MAX_AHEAD)).filter(|index| !self.has_left(*index))
    }
}

/// More than there are full packets in a super-packet.
const MAX_AHEAD: usize = u64::BITS as usize;

/// The slots of all chains.
#[derive(Debug, Default)]
pub(super) struct Slab {
    slots: Vec<SlabEntry>,
    free: Vec<u32>,
}

/// One queue: its first and its last slot. It belongs to one store.
#[derive(Debug, Default)]
pub(super) struct Chain(Option<(u32, u32)>);

#[derive(Debug)]
struct SlabEntry {
    waiting: Option<QueuedPacket>,
    /// The slot that follows, if this is not the last of its chain.
    next: u32,
}

impl Slab {
    /// Appends to a chain.
    pub fn push(&mut self, chain: &mut Chain, waiting: QueuedPacket) {
        let at = self.place(SlabEntry { waiting: Some(waiting), next: 0 });
        chain.0 = match chain.0 {
            None => Some((at, at)),
            Some((first, last)) => {
                self.slots[last as usize].next = at;
                Some((first, at))
            }
        };
    }

    /// The first of a chain.
    pub fn front(&self, chain: &Chain) -> Option<&QueuedPacket> {
        let (first, _) = chain.0?;
        self.slots[first as usize].waiting.as_ref()
    }

    /// The first of a chain, to be changed.
    pub fn front_mut(&mut self, chain: &Chain) -> Option<&mut QueuedPacket> {
        let (first, _) = chain.0?;
        self.slots[first as usize].waiting.as_mut()
    }

    /// A chain from its first to its last, with their slots.
    pub fn walk(&self, chain: &Chain) -> impl Iterator<Item = (u32, &QueuedPacket)> {
        let mut at = chain.0;
        std::iter::from_fn(move || {
            let (first, last) = at?;
            let slot = &self.slots[first as usize];
            at = (first != last).then_some((slot.next, last));
            slot.waiting.as_ref().map(|waiting| (first, waiting))
        })
    }

    /// What stands in a slot that [`Self::walk`] showed.
    pub fn at(&mut self, slot: u32) -> Option<&mut QueuedPacket> {
        self.slots[slot as usize].waiting.as_mut()
    }

    /// Takes the first out of a chain.
    pub fn pop(&mut self, chain: &mut Chain) -> Option<QueuedPacket> {
        let (first, last) = chain.0?;
        let slot = &mut self.slots[first as usize];
        chain.0 = (first != last).then_some((slot.next, last));
        self.free.push(first);
        slot.waiting.take()
    }

    fn place(&mut self, slot: SlabEntry) -> u32 {
        let Some(at) = self.free.pop() else {
            self.slots.push(slot);
            return (self.slots.len() - 1) as u32;
        };
        self.slots[at as usize] = slot;
        at
    }
}
