//! The storage of all flows' super-packets: many linked lists in one vector.
//!
//! A vector per flow would grow to that flow's largest backlog, for each of over a thousand flows. This one grows to
//! the largest total backlog, and in steady state not at all.

use std::sync::Arc;

use crate::packet::SuperPacket;
use crate::time::Time;

/// A super-packet, its arrival time, and which of its packets have left.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub packet: Arc<SuperPacket>,
    pub arrived: Time,
    /// Bytes of the waiting packets.
    pub remaining: usize,
    /// Bit set of the packets that left ahead of others. Packets beyond its width never do.
    ahead: u64,
}

impl QueuedPacket {
    pub fn new(packet: SuperPacket, arrived: Time) -> Self {
        Self { remaining: packet.len_of_all(), packet: Arc::new(packet), arrived, ahead: 0 }
    }

    /// Returns true if packet `index` left ahead of others.
    pub fn has_left(&self, index: usize) -> bool {
        index < MAX_AHEAD && self.ahead & 1 << index != 0
    }

    /// Records that packet `index`, below [`MAX_AHEAD`], leaves ahead of others.
    pub fn mark_left(&mut self, index: usize) {
        self.ahead |= 1 << index;
        self.remaining -= self.packet.len_of(index);
    }

    /// Iterates over the packets from `first` on that may leave ahead of others.
    pub fn candidates(&self, first: usize) -> impl DoubleEndedIterator<Item = usize> {
        (first..self.packet.count().min(MAX_AHEAD)).filter(|index| !self.has_left(*index))
    }
}

/// The slots of all lists.
#[derive(Debug, Default)]
pub(super) struct Slab {
    slots: Vec<SlabEntry>,
    free: Vec<u32>,
}

/// The first and last slot of one list in a [`Slab`].
#[derive(Debug, Default)]
pub(super) struct Chain(Option<(u32, u32)>);

#[derive(Debug)]
struct SlabEntry {
    waiting: Option<QueuedPacket>,
    /// The next slot, if this is not the last of its list.
    next: u32,
}

impl Slab {
    /// Appends to a list.
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

    /// Returns the first entry of a list.
    pub fn front(&self, chain: &Chain) -> Option<&QueuedPacket> {
        let (first, _) = chain.0?;
        self.slots[first as usize].waiting.as_ref()
    }

    /// Returns the first entry of a list, mutable.
    pub fn front_mut(&mut self, chain: &Chain) -> Option<&mut QueuedPacket> {
        let (first, _) = chain.0?;
        self.slots[first as usize].waiting.as_mut()
    }

    /// Iterates over a list, with the slot of each entry.
    pub fn walk(&self, chain: &Chain) -> impl Iterator<Item = (u32, &QueuedPacket)> {
        let mut at = chain.0;
        std::iter::from_fn(move || {
            let (first, last) = at?;
            let slot = &self.slots[first as usize];
            at = (first != last).then_some((slot.next, last));
            slot.waiting.as_ref().map(|waiting| (first, waiting))
        })
    }

    /// Returns the entry of a slot that [`Self::walk`] returned.
    pub fn at(&mut self, slot: u32) -> Option<&mut QueuedPacket> {
        self.slots[slot as usize].waiting.as_mut()
    }

    /// Removes the first entry of a list.
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

/// Bits in the set; a super-packet has fewer packets of full size.
const MAX_AHEAD: usize = u64::BITS as usize;
