//! The receiver's side: the contexts that were offered, and what refers to them.

use super::fields::Context;
use super::{Buckets, Reference};
use crate::drops::Dropped;

/// Contexts of the flows that come from a peer, by bucket: the one that was used last, and the one before.
#[derive(Debug, Default)]
pub struct Decompressor {
    flows: Buckets<[Option<(Reference, Context)>; 2]>,
}

impl Decompressor {
    /// Keeps the header of a packet that offers it as a context. False where it can be none.
    pub fn on_offer(&mut self, bucket: u16, reference: Reference, packet: &[u8]) -> bool {
        let Some((known, context)) = self.flows.get_mut(bucket).zip(Context::of(packet)) else { return false };
        if known[0].is_some_and(|(first, _)| first != reference) {
            known[1] = known[0];
        }
        known[0] = Some((reference, context));
        true
    }

    /// Puts a packet together that was compressed to `body`, and appends it to `out`.
    ///
    /// # Errors
    /// [`Dropped::UnknownContext`] when the context that it refers to is not there, [`Dropped::Malformed`] when the body makes no sense with it.
    pub fn expand(&mut self, bucket: u16, reference: Reference, body: &[u8], out: &mut Vec<u8>) -> Result<(), Dropped> {
        let known = self.flows.get_mut(bucket).ok_or(Dropped::UnknownContext)?;
        let is_meant = |known: &&(Reference, Context)| known.0 == reference;
        if known[1].as_ref().is_some_and(|second| is_meant(&second)) {
            known.swap(0, 1);
        }
        let (_, context) = known[0].as_ref().filter(is_meant).ok_or(Dropped::UnknownContext)?;
        context.expand(body, out).ok_or(Dropped::Malformed)
    }

    /// Forgets everything, because the peer has begun anew or nothing has come for long.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
