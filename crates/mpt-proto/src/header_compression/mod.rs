//! Header compression: a packet is sent without the header fields that it shares with an earlier packet of its flow.
//!
//! A TCP segment in the tunnel has 52 bytes of headers of its own after the tunnel's 63, and nearly all of them equal
//! those of the segment before: 16 are sent. RFC 1144, RFC 2507 and ROHC (RFC 5795) compress the same fields; they
//! differ in how the receiver is kept able to decompress, on paths that lose and reorder. Here the context is confirmed
//! before use:
//!
//! ```text
//! sender                                        receiver
//!   DATA, offering its header as a context  ->    stores the header
//!                                           <-  CONTEXT known
//!   COMPRESSED, refers to that context      ->    restores the header, bit for bit
//! ```
//!
//! A packet is compressed only against a context that the receiver has confirmed: each compressed packet can be
//! expanded by itself, whatever was lost before it and on any path. Nothing is predicted from neighbouring packets, so
//! no checksum has to verify a prediction, for which ROHC needs its modes and its feedback. In return an increasing
//! field is sent as the difference from the context, in three or four bytes instead of one.
//!
//! `fields` has the compressible headers and their encoding, [`Compressor`] the state of the sender and
//! [`Decompressor`] that of the receiver. If the receiver does not have a context, it reports that, and the sender
//! drops it.

mod compressor;
mod decompressor;
mod fields;

pub use compressor::{Compressor, HeaderForm};
pub use decompressor::Decompressor;
pub use fields::Coded;

use crate::flow::BUCKETS;

/// The low byte of the flow sequence of the packet that offered a context. It identifies the context in its bucket, for
/// packets after that one: an older packet was compressed against an older context with the same reference.
pub type Reference = u8;

/// Returns true if a flow sequence is after another one (RFC 1982).
fn is_after(sequence: u32, other: u32) -> bool {
    (sequence.wrapping_sub(other) as i32) > 0
}

/// One value for each flow bucket, allocated on first access.
#[derive(Debug)]
struct Buckets<T>(Vec<Option<Box<T>>>);

impl<T: Default> Buckets<T> {
    /// Returns the value of a bucket; `None` if there is no such bucket.
    fn get_mut(&mut self, bucket: u16) -> Option<&mut T> {
        if self.0.is_empty() {
            self.0.resize_with(BUCKETS, || None);
        }
        self.0.get_mut(usize::from(bucket)).map(|entry| &mut **entry.get_or_insert_default())
    }
}

impl<T> Default for Buckets<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The maximum length of a compressible header: 40 bytes of IPv6, and 32 of TCP with timestamps.
pub const MAX_HEADER: usize = 72;

#[cfg(test)]
mod tests;
