//! The receiver's side: stores offered contexts, and expands packets with them.

use super::fields::HeaderContext;
use super::{Buckets, Reference, is_after};
use crate::drops::Dropped;

/// The contexts of the flows that come from a peer, by bucket: the last used one, and the one before.
#[derive(Debug, Default)]
pub struct Decompressor {
    buckets: Buckets<[Option<StoredContext>; 2]>,
}

#[derive(Clone, Copy, Debug)]
struct StoredContext {
    /// The flow sequence of the packet that offered it.
    sequence: u32,
    context: HeaderContext,
}

impl StoredContext {
    fn has_reference(&self, reference: Reference) -> bool {
        self.sequence as Reference == reference
    }
}

impl Decompressor {
    /// Stores the headers of a packet as a context. False if they cannot be one, or if one of this reference is newer.
    pub fn on_offer(&mut self, bucket: u16, sequence: u32, packet: &[u8]) -> bool {
        let Some((known, context)) = self.buckets.get_mut(bucket).zip(HeaderContext::of(packet)) else { return false };
        let offered = StoredContext { sequence, context };
        if let Some(same) = known.iter_mut().flatten().find(|known| known.has_reference(sequence as Reference)) {
            let is_newer = !is_after(same.sequence, sequence);
            if is_newer {
                *same = offered;
            }
            return is_newer;
        }
        *known = [Some(offered), known[0]];
        true
    }

    /// Expands the packet with this number from `body`, and appends it to `out`.
    ///
    /// # Errors [`Dropped::UnknownContext`] if its context is not stored, [`Dropped::Malformed`] if the body does not
    /// match the context.
    pub fn expand(
        &mut self,
        bucket: u16,
        sequence: u32,
        reference: Reference,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Dropped> {
        let known = self.buckets.get_mut(bucket).ok_or(Dropped::UnknownContext)?;
        if known[1].is_some_and(|second| second.has_reference(reference)) {
            known.swap(0, 1);
        }
        let matches = |known: &&StoredContext| known.has_reference(reference) && is_after(sequence, known.sequence);
        let stored = known[0].as_ref().filter(matches).ok_or(Dropped::UnknownContext)?;
        stored.context.expand(body, out).ok_or(Dropped::Malformed)
    }

    /// Drops all contexts, after a restart of the peer or after a long time without receiving.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
