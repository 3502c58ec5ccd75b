//! The receiver's side: the contexts that were offered, and what refers to them.

use std::collections::HashMap;

use super::{LONGEST, Reference, fields};
use crate::drops::Dropped;

/// Contexts of the flows that come from a peer, by bucket: the one that was used last, and the one before.
#[derive(Debug, Default)]
pub struct Decompressor {
    flows: HashMap<u16, [Option<Context>; 2]>,
}

#[derive(Clone, Copy, Debug)]
struct Context {
    reference: Reference,
    header: [u8; LONGEST],
    len: usize,
}

impl Decompressor {
    /// Keeps the header of a packet that offers it as a context. False where it can be none.
    pub fn on_offer(&mut self, bucket: u16, reference: Reference, packet: &[u8]) -> bool {
        let Some(header) = fields::context(packet) else { return false };
        let mut context = Context { reference, header: [0; LONGEST], len: header.len() };
        context.header[..header.len()].copy_from_slice(header);
        let known = self.flows.entry(bucket).or_default();
        if known[0].is_some_and(|first| first.reference != reference) {
            known[1] = known[0];
        }
        known[0] = Some(context);
        true
    }

    /// Puts a packet together that was compressed to `body`, and appends it to `out`.
    ///
    /// # Errors
    /// [`Dropped::UnknownContext`] when the context that it refers to is not there, [`Dropped::Malformed`] when the body makes no sense with it.
    pub fn expand(&mut self, bucket: u16, reference: Reference, body: &[u8], out: &mut Vec<u8>) -> Result<(), Dropped> {
        let known = self.flows.get_mut(&bucket).ok_or(Dropped::UnknownContext)?;
        let is_meant = |context: &Context| context.reference == reference;
        if known[1].as_ref().is_some_and(is_meant) {
            known.swap(0, 1);
        }
        let context = known[0].filter(is_meant).ok_or(Dropped::UnknownContext)?;
        fields::expand(&context.header[..context.len], body, out).ok_or(Dropped::Malformed)
    }

    /// Forgets everything, because the peer has begun anew or nothing has come for long.
    pub fn clear(&mut self) {
        self.flows = HashMap::new();
    }
}
