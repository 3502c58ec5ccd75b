//! The sender's side: tracks the receiver's contexts, and decides when to offer one.

use super::fields::{Coded, HeaderContext};
use super::{Buckets, Reference, is_after};
use crate::time::Time;
use crate::tuning::peer::header_compression::{IDLE_AFTER, MAX_MISSED, MIN_PACKETS, OFFER_TIMEOUT, STALE_AFTER};

/// The contexts of the flows that are sent to a peer, by bucket.
#[derive(Debug, Default)]
pub struct Compressor {
    buckets: Buckets<BucketContexts>,
}

/// The form in which a packet is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderForm {
    /// Uncompressed.
    Full,
    /// Uncompressed, with its header offered as a context.
    Offer,
    /// Compressed against the context of this reference.
    Compressed(Reference, Coded),
}

/// The context of one bucket, which belongs to the first flow that used it.
#[derive(Debug, Default)]
struct BucketContexts {
    /// Consecutive packets that could have been compressed with another context.
    missed: u8,
    /// The context that the receiver has confirmed, and the time of its last use.
    known: Option<(ContextOffer, Time)>,
    /// The last offered context, and the time of the offer.
    offered: Option<(ContextOffer, Time)>,
    /// The reference of the last context: the next must have another one, because packets in flight may refer to this
    /// one.
    last: Option<Reference>,
}

/// A context, and the number of the packet that offered it.
#[derive(Debug)]
struct ContextOffer {
    sequence: u32,
    context: HeaderContext,
}

impl Compressor {
    /// Returns the form in which to send the packet of `total` bytes that starts with `header` and has this number.
    pub fn choose(&mut self, now: Time, bucket: u16, sequence: u32, header: &[u8], total: usize) -> HeaderForm {
        let Some(bucket) = self.buckets.get_mut(bucket) else { return HeaderForm::Full };
        // A retransmission may be older than the context of its flow, and is then not compressed with it.
        let fits = |(known, used): &&mut (ContextOffer, Time)| {
            now.since(*used) < STALE_AFTER && is_after(sequence, known.sequence)
        };
        if let Some((known, used)) = bucket.known.as_mut().filter(fits)
            && let Some(coded) = known.context.compress(header, total)
        {
            (*used, bucket.missed) = (now, 0);
            return HeaderForm::Compressed(known.sequence as Reference, coded);
        }
        if bucket.should_offer(now, sequence, header, total) { HeaderForm::Offer } else { HeaderForm::Full }
    }

    /// Handles the receiver's confirmation of the context that the packet with this number offered.
    pub fn on_known(&mut self, now: Time, bucket: u16, sequence: u32) {
        let Some(bucket) = self.buckets.get_mut(bucket) else { return };
        if let Some((offer, _)) = bucket.offered.take_if(|(offer, _)| offer.sequence == sequence) {
            (bucket.known, bucket.missed) = (Some((offer, now)), 0);
        }
    }

    /// Handles the receiver's report that it does not have a context.
    pub fn on_unknown(&mut self, bucket: u16, reference: Reference) {
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.known.take_if(|(known, _)| known.sequence as Reference == reference);
        }
    }

    /// Drops all contexts, after a restart of the peer or after a long time without sending.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl BucketContexts {
    /// Returns true if the header is to be offered as a context, which is then stored.
    fn should_offer(&mut self, now: Time, sequence: u32, header: &[u8], total: usize) -> bool {
        let is_in_use = self.known.as_ref().is_some_and(|(_, used)| now.since(*used) < IDLE_AFTER);
        let is_pending = self.offered.as_ref().is_some_and(|(_, at)| now.since(*at) < OFFER_TIMEOUT);
        if is_pending {
            return false;
        }
        let context = HeaderContext::of(header).filter(|context| context.compress(header, total).is_some());
        let Some(context) = context else { return false };
        self.missed = self.missed.saturating_add(1);
        let threshold = if is_in_use { MAX_MISSED } else { MIN_PACKETS };
        if self.missed < threshold || self.last == Some(sequence as Reference) {
            return false;
        }
        // The receiver stores two contexts: the offered one may replace this one.
        (self.missed, self.known, self.last) = (0, None, Some(sequence as Reference));
        self.offered = Some((ContextOffer { sequence, context }, now));
        true
    }
}
