//! Forward error correction: lost packets come back without asking for them, where asking takes too long.
//!
//! ```text
//! sender                                                  receiver
//! DATA 7 ─ DATA 8 ─ DATA 9 ─ REPAIR(7..10) ─>    7, x, 9, REPAIR: 8 = (REPAIR - a7 S7 - a9 S9) / a8
//! ```
//!
//! A sliding window code as in RFC 8681: random linear combinations over GF(256) of what was sent lately. The numbers are those
//! of the datagrams of one path, so a repair symbol protects exactly what one path may lose, whichever flows it belongs to, and
//! DATA frames cost not a byte more. What deviates from the RFC: coefficients come from a mixing function of seed and number
//! where it has TinyMT32, and the length of a packet is that in its IP header.
//!
//! A *source symbol* is what a DATA frame says, in [`PLACE`] bytes of bucket and number and then the packet; zeros follow it up to
//! the longest of its window. A datagram without DATA is a symbol of zeros and adds nothing. With a header of three bytes a
//! repair symbol of the largest packets is as long as the datagrams it protects, so it fits wherever they fit.
//!
//! [`Policy`] decides when it pays, [`Encoder`] makes symbols, [`Decoder`] solves for what is missing. All three are bounded: the
//! peer is authenticated, but may be mistaken.

mod decoder;
mod encoder;
pub mod field;
mod policy;

pub use decoder::{Decoder, Recovered};
pub use encoder::Encoder;
pub use policy::{FecPolicy, FecSchedule};

use super::FlowSeq;

/// When repair symbols are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FecMode {
    /// Where they bring a packet back sooner than asking for it.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl FecMode {
    /// Every mode with its name in the configuration.
    pub const NAMES: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("off", Self::Off)];
}

/// Bytes of bucket and number in front of the packet in a source symbol.
pub const PLACE: usize = 4;
/// Numbers between the first datagram of a window and its repair symbol, at most.
pub const MAX_SPAN: u64 = 256;
/// Sources in a window, at most.
const MAX_SOURCES: usize = 128;

/// Eleven bits of bucket, one that is zero, and twenty of the number there: what is reordered by a million packets is lost.
fn encode_place(place: FlowSeq) -> [u8; PLACE] {
    (u32::from(place.bucket) << 21 | place.sequence & SEQUENCE).to_be_bytes()
}

/// The bucket, and the low bits of the number.
fn decode_place(bytes: [u8; PLACE]) -> FlowSeq {
    let word = u32::from_be_bytes(bytes);
    FlowSeq { bucket: (word >> 21) as u16, sequence: word & SEQUENCE }
}

const SEQUENCE: u32 = (1 << 20) - 1;
const _: () = assert!(crate::flow::BUCKETS <= 1 << 11, "a bucket has eleven bits");

/// The number that has these low bits and is nearest to `near`.
pub fn widen(near: u32, low: u32) -> u32 {
    let ahead = low.wrapping_sub(near) & SEQUENCE;
    let behind = SEQUENCE + 1 - ahead;
    if ahead <= SEQUENCE / 2 { near.wrapping_add(ahead) } else { near.wrapping_sub(behind) }
}

/// The coefficient of the datagram with this number in the repair symbol with this seed; never zero.
fn coefficient(seed: u8, number: u64) -> u8 {
    // The finaliser of SplitMix64 (Steele, Lea, Flood, 2014), as in `flow`.
    let mut bits = number.wrapping_mul(64).wrapping_add(u64::from(seed)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    1 + ((bits ^ (bits >> 31)) % 255) as u8
}

#[cfg(test)]
mod tests;
