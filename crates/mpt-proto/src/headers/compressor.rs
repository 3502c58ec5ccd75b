//! The sender's side: which contexts the receiver has, and when to offer one.

use std::collections::HashMap;
use std::time::Duration;

use super::{Coded, LONGEST, Reference, fields};
use crate::time::Time;

/// Contexts of the flows that are sent to a peer, by bucket.
#[derive(Debug, Default)]
pub struct Compressor {
    flows: HashMap<u16, Flow>,
}

/// How a packet is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// As it is.
    Full,
    /// As it is, with its header as a context.
    Offer,
    /// Compressed.
    Compressed(Reference, Coded),
}

/// One bucket: one context, that of the flow which was there first.
#[derive(Debug, Default)]
struct Flow {
    /// Packets that could have been compressed and were not, since there was a context.
    plain: u8,
    context: Option<Context>,
    /// What was offered last, and when.
    offered: Option<(Context, Time)>,
    /// What may still refer to the context before: the next one has another name.
    last: Option<Reference>,
}

#[derive(Debug)]
struct Context {
    /// The flow sequence of the packet that offered it.
    sequence: u32,
    header: [u8; LONGEST],
    len: usize,
    used: Time,
}

/// A question and its answer are not worth a context.
const FIRST: u8 = 4;
/// When an offer without an answer is made again: longer than any round trip.
const AGAIN: Duration = Duration::from_secs(2);
/// A context that was not used for so long may belong to a flow that is gone: another flow of the bucket may have the place.
const IDLE: Duration = Duration::from_secs(1);
/// The receiver may forget what was not used for thirty seconds; see `rest`.
const STALE: Duration = Duration::from_secs(10);

impl Compressor {
    /// How the packet of `total` bytes that begins with `header` is to be sent; it has this place in its bucket.
    pub fn choose(&mut self, now: Time, bucket: u16, sequence: u32, header: &[u8], total: usize) -> Choice {
        let Some(header) = fields::context(header) else { return Choice::Full };
        let flow = self.flows.entry(bucket).or_default();
        if let Some(context) = flow.context.as_mut().filter(|context| now.since(context.used) < STALE)
            && let Some(coded) = fields::compress(context.header(), header, total)
        {
            context.used = now;
            return Choice::Compressed(context.sequence as Reference, coded);
        }
        if flow.offers(now, sequence, header, total) { Choice::Offer } else { Choice::Full }
    }

    /// The receiver has what the packet with this number offered.
    pub fn on_known(&mut self, now: Time, bucket: u16, sequence: u32) {
        let Some(flow) = self.flows.get_mut(&bucket) else { return };
        if let Some((context, _)) = flow.offered.take_if(|(context, _)| context.sequence == sequence) {
            flow.context = Some(Context { used: now, ..context });
        }
    }

    /// The receiver lacks a context that something referred to.
    pub fn on_unknown(&mut self, bucket: u16, reference: Reference) {
        if let Some(flow) = self.flows.get_mut(&bucket) {
            flow.context.take_if(|context| context.sequence as Reference == reference);
        }
    }

    /// Forgets everything, because the peer has begun anew or nothing has been sent for long.
    pub fn clear(&mut self) {
        self.flows = HashMap::new();
    }
}

impl Flow {
    /// Whether the header is to be offered as a context, which is then noted.
    fn offers(&mut self, now: Time, sequence: u32, header: &[u8], total: usize) -> bool {
        let is_in_use = self.context.as_ref().is_some_and(|context| now.since(context.used) < IDLE);
        let is_pending = self.offered.as_ref().is_some_and(|(_, at)| now.since(*at) < AGAIN);
        if is_in_use || is_pending || fields::compress(header, header, total).is_none() {
            return false;
        }
        self.plain = self.plain.saturating_add(1);
        if self.plain < FIRST || self.last == Some(sequence as Reference) {
            return false;
        }
        // The receiver has room for two: what was offered may displace this one.
        (self.plain, self.context, self.last) = (0, None, Some(sequence as Reference));
        let mut context = Context { sequence, header: [0; LONGEST], len: header.len(), used: now };
        context.header[..header.len()].copy_from_slice(header);
        self.offered = Some((context, now));
        true
    }
}

impl Context {
    fn header(&self) -> &[u8] {
        &self.header[..self.len]
    }
}
