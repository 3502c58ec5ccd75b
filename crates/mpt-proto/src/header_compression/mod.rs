//! Header compression: what a packet's headers have in common with an earlier packet's of its flow does not go over the wire again.
//!
//! A TCP segment through a tunnel has 52 bytes of headers of its own behind the tunnel's 63, and nearly all of them are what they were in the
//! segment before: sixteen are sent. What may be left out is the question of RFC 1144, RFC 2507 and ROHC (RFC 5795); how to be sure that the
//! receiver can put it back, on paths that lose and reorder, is where they differ. Here it is made certain:
//!
//! ```text
//! sender                                        receiver
//!   DATA, offering its header as a context  ->    keeps the header
//!                                           <-  CONTEXT known
//!   COMPRESSED, refers to that context      ->    puts the header back, bit for bit
//! ```
//!
//! A packet is compressed against a context that the receiver is known to have, and against nothing else: every compressed packet can be
//! read by itself, whatever was lost before it and over whichever path it came. Nothing is guessed from neighbours and no checksum
//! tells whether a guess was right, which is what ROHC spends its modes and its feedback on. The price is that a field which grows is sent as its
//! difference from the context, in three or four bytes and not in one.
//!
//! [`fields`] knows which headers can be compressed and what changes in them, [`Compressor`] is the sender's side of a
//! peer and [`Decompressor`] the receiver's. Should the receiver not have a context after all, it says so, and the sender forgets it.

mod compressor;
mod decompressor;
mod fields;

pub use compressor::{Choice, Compressor};
pub use decompressor::Decompressor;
pub use fields::Coded;

use crate::flow::BUCKETS;

/// The low byte of the flow sequence of the packet that offered a context names it among those of its bucket, for packets that come after that
/// one: what is older was compressed against an older context of the same name, if at all.
pub type Reference = u8;

/// Whether a flow sequence follows another one (RFC 1982).
fn is_after(sequence: u32, other: u32) -> bool {
    (sequence.wrapping_sub(other) as i32) > 0
}

/// Something for each flow bucket that was ever asked for.
#[derive(Debug)]
struct Buckets<T>(Vec<Option<Box<T>>>);

impl<T: Default> Buckets<T> {
    /// What there is for a bucket; none if there is no such bucket.
    fn get_mut(&mut self, bucket: u16) -> Option<&mut T> {
        if self.0.is_empty() {
            self.0.resize_with(BUCKETS, || None);
        }
        self.0.get_mut(usize::from(bucket)).map(|place| &mut **place.get_or_insert_default())
    }
}

impl<T> Default for Buckets<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The longest header that can be compressed: IPv6, and TCP with timestamps.
pub const LONGEST: usize = 40 + 32;

#[cfg(test)]
mod tests;
