//! The receiver's side: the contexts that were offered, and what refers to them.

use super::fields::HeaderContext;
use super::{Buckets, Reference, is_after};
use crate::drops::Dropped;

/// Contexts of the flows that come from a peer, by bucket: the one that was used last, and the one before.
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
    fn is_called(&self, reference: Reference) -> bool {
        self.sequence as Reference == reference
    }
}

impl Decompressor {
    /// Keeps the headers of a packet that offers them as a context. False where they can be none, and where a newer one of their name is there.
    pub fn on_offer(&mut self, bucket: u16, sequence: u32, packet: &[u8]) -> bool {
        let Some((known, context)) = self.buckets.get_mut(bucket).zip(HeaderContext::of(packet)) else { return false };
        let offered = StoredContext { sequence, context };
        if let Some(same) = known.iter_mut().flatten().find(|known| known.is_called(sequence as Reference)) {
            let is_newer = !is_after(same.sequence, sequence);
            if is_newer {
                *same = offered;
            }
            return is_newer;
        }
        *known = [Some(offered), known[0]];
        true
    }

    /// Puts the packet with this number together that was compressed to `body`, and appends it to `out`.
    ///
    /// # Errors
    /// [`Dropped::UnknownContext`] when the context that it refers to is not there, [`Dropped::Malformed`] when the body makes no sense with it.
    pub fn expand(
        &mut self,
        bucket: u16,
        sequence: u32,
        reference: Reference,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Dropped> {
        let known = self.buckets.get_mut(bucket).ok_or(Dropped::UnknownContext)?;
        if known[1].is_some_and(|second| second.is_called(reference)) {
            known.swap(0, 1);
        }
        let is_meant = |known: &&StoredContext| known.is_called(reference) && is_after(sequence, known.sequence);
        let meant = known[0].as_ref().filter(is_meant).ok_or(Dropped::UnknownContext)?;
        meant.context.expand(body, out).ok_or(Dropped::Malformed)
    }

    /// Forgets everything, because the peer has begun anew or nothing has come for long.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
