//! Where the super-packets of all flows stand: many queues in one vector.
//!
//! Each flow has a chain through it. A vector per flow would grow to what that flow once had waiting, a thousand times over;
//! this one grows to what ever waited at the same time, and in steady state not at all.

use std::sync::Arc;

use crate::packet::SuperPacket;
use crate::time::Time;

/// A super-packet, and when it came.
#[derive(Debug)]
pub(super) struct Waiting {
    pub packet: Arc<SuperPacket>,
    pub arrived: Time,
}

/// The slots of all chains.
#[derive(Debug, Default)]
pub(super) struct Store {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// One queue: its first and its last slot. It belongs to one store.
#[derive(Debug, Default)]
pub(super) struct Chain(Option<(u32, u32)>);

#[derive(Debug)]
struct Slot {
    waiting: Option<Waiting>,
    /// The slot that follows, if this is not the last of its chain.
    next: u32,
}

impl Store {
    /// Appends to a chain.
    pub fn push(&mut self, chain: &mut Chain, waiting: Waiting) {
        let at = self.place(Slot { waiting: Some(waiting), next: 0 });
        chain.0 = match chain.0 {
            None => Some((at, at)),
            Some((first, last)) => {
                self.slots[last as usize].next = at;
                Some((first, at))
            }
        };
    }

    /// The first of a chain.
    pub fn front(&self, chain: &Chain) -> Option<&Waiting> {
        let (first, _) = chain.0?;
        self.slots[first as usize].waiting.as_ref()
    }

    /// Takes the first out of a chain.
    pub fn pop(&mut self, chain: &mut Chain) -> Option<Waiting> {
        let (first, last) = chain.0?;
        let slot = &mut self.slots[first as usize];
        chain.0 = (first != last).then_some((slot.next, last));
        self.free.push(first);
        slot.waiting.take()
    }

    fn place(&mut self, slot: Slot) -> u32 {
        let Some(at) = self.free.pop() else {
            self.slots.push(slot);
            return (self.slots.len() - 1) as u32;
        };
        self.slots[at as usize] = slot;
        at
    }
}
