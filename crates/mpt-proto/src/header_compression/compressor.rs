//! The sender's side: which contexts the receiver has, and when to offer one.

use std::time::Duration;

use super::fields::{Coded, HeaderContext};
use super::{Buckets, Reference, is_after};
use crate::time::Time;

/// Contexts of the flows that are sent to a peer, by bucket.
#[derive(Debug, Default)]
pub struct Compressor {
    buckets: Buckets<BucketContexts>,
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
struct BucketContexts {
    /// How many packets in a row could have been compressed, if there were another context.
    missed: u8,
    /// What the receiver has, and when it was used last.
    known: Option<(ContextOffer, Time)>,
    /// What was offered last, and when.
    offered: Option<(ContextOffer, Time)>,
    /// What may still refer to the context before: the next one has another name.
    last: Option<Reference>,
}

/// A context, and the number of the packet that offered it.
#[derive(Debug)]
struct ContextOffer {
    sequence: u32,
    context: HeaderContext,
}

/// A question and its answer are not worth a context.
const FIRST: u8 = 4;
/// After so many in a row without use, a context is one of few packets' and not of most: of marked ones, or of another flow.
const MOST_MISSED: u8 = 64;
/// When an offer without an answer is made again: longer than any round trip.
const AGAIN: Duration = Duration::from_secs(2);
/// A context that was not used for so long may belong to a flow that is gone: another flow of the bucket may have the place.
const IDLE: Duration = Duration::from_secs(1);
/// The receiver may forget what was not used for thirty seconds; see `rest`.
const STALE: Duration = Duration::from_secs(10);

impl Compressor {
    /// How the packet of `total` bytes that begins with `header` is to be sent; it has this place in its bucket.
    pub fn choose(&mut self, now: Time, bucket: u16, sequence: u32, header: &[u8], total: usize) -> Choice {
        let Some(bucket) = self.buckets.get_mut(bucket) else { return Choice::Full };
        // What is sent again may be older than its flow's context, and is not read with it.
        let fits =
            |(known, used): &&mut (ContextOffer, Time)| now.since(*used) < STALE && is_after(sequence, known.sequence);
        if let Some((known, used)) = bucket.known.as_mut().filter(fits)
            && let Some(coded) = known.context.compress(header, total)
        {
            (*used, bucket.missed) = (now, 0);
            return Choice::Compressed(known.sequence as Reference, coded);
        }
        if bucket.offers(now, sequence, header, total) { Choice::Offer } else { Choice::Full }
    }

    /// The receiver has what the packet with this number offered.
    pub fn on_known(&mut self, now: Time, bucket: u16, sequence: u32) {
        let Some(bucket) = self.buckets.get_mut(bucket) else { return };
        if let Some((offer, _)) = bucket.offered.take_if(|(offer, _)| offer.sequence == sequence) {
            (bucket.known, bucket.missed) = (Some((offer, now)), 0);
        }
    }

    /// The receiver lacks a context that something referred to.
    pub fn on_unknown(&mut self, bucket: u16, reference: Reference) {
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.known.take_if(|(known, _)| known.sequence as Reference == reference);
        }
    }

    /// Forgets everything, because the peer has begun anew or nothing has been sent for long.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl BucketContexts {
    /// Whether the header is to be offered as a context, which is then noted.
    fn offers(&mut self, now: Time, sequence: u32, header: &[u8], total: usize) -> bool {
        let is_in_use = self.known.as_ref().is_some_and(|(_, used)| now.since(*used) < IDLE);
        let is_pending = self.offered.as_ref().is_some_and(|(_, at)| now.since(*at) < AGAIN);
        if is_pending {
            return false;
        }
        let context = HeaderContext::of(header).filter(|context| context.compress(header, total).is_some());
        let Some(context) = context else { return false };
        self.missed = self.missed.saturating_add(1);
        let enough = if is_in_use { MOST_MISSED } else { FIRST };
        if self.missed < enough || self.last == Some(sequence as Reference) {
            return false;
        }
        // The receiver has room for two: what was offered may displace this one.
        (self.missed, self.known, self.last) = (0, None, Some(sequence as Reference));
        self.offered = Some((ContextOffer { sequence, context }, now));
        true
    }
}
