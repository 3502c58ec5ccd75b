//! Forward error correction: recovers lost packets without a retransmission, on paths where a retransmission takes too
//! long.
//!
//! ```text
//! sender                                                  receiver
//! DATA 7 ─ DATA 8 ─ DATA 9 ─ REPAIR(7..10) ─>    7, x, 9, REPAIR: 8 = (REPAIR - a7 S7 - a9 S9) / a8
//! ```
//!
//! It is a sliding window code as in RFC 8681: random linear combinations over GF(256) of the packets sent recently.
//! The numbers are those of the datagrams of one path, so a repair symbol protects the datagrams of one path, of all
//! flows, and DATA frames need no extra byte. It deviates from the RFC in two points: a mixing function of seed and
//! number generates the coefficients, instead of TinyMT32, and the length of a packet is that in its IP header.
//!
//! A *source symbol* consists of bucket and number in [`FLOW_SEQ_LEN`] bytes, and the packet, padded with zeros to the
//! longest of its window. A datagram without DATA is a symbol of zeros and adds nothing. With its header of three bytes
//! a repair symbol of the largest packets is as long as the datagrams it protects, so it fits into the path MTU.
//!
//! [`FecPolicy`] decides when FEC is used, [`Encoder`] makes symbols, [`Decoder`] recovers packets. All three have
//! bounded state, because an authenticated peer may still be defective.

mod decoder;
mod encoder;
pub mod field;
mod policy;

pub use decoder::{Decoder, Recovered};
pub use encoder::Encoder;
pub use policy::{FecPolicy, FecSchedule};

use super::FlowSeq;

/// Enables or disables repair symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FecMode {
    /// Repair symbols are sent where they recover a packet sooner than a retransmission.
    #[default]
    Auto,
    /// No repair symbols are sent.
    Off,
}

impl FecMode {
    /// All modes with their names in the configuration.
    pub const NAMES: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("off", Self::Off)];
}

/// Bytes of bucket and number before the packet in a source symbol.
pub const FLOW_SEQ_LEN: usize = 4;
/// Maximum distance from the first datagram of a window to its repair symbol.
pub const MAX_SPAN: u64 = 256;
/// Maximum number of sources in a window.
pub const MAX_SOURCES: usize = 128;

/// Encodes eleven bits of bucket, a zero bit, twenty bits of the number: a packet reordered by a million others is
/// lost.
fn encode_flow_seq(flow_seq: FlowSeq) -> [u8; FLOW_SEQ_LEN] {
    (u32::from(flow_seq.bucket) << 21 | flow_seq.sequence & SEQUENCE_MASK).to_be_bytes()
}

/// Decodes the bucket, and the low bits of the number.
fn decode_flow_seq(bytes: [u8; FLOW_SEQ_LEN]) -> FlowSeq {
    let word = u32::from_be_bytes(bytes);
    FlowSeq { bucket: (word >> 21) as u16, sequence: word & SEQUENCE_MASK }
}

const SEQUENCE_MASK: u32 = (1 << 20) - 1;
const _: () = assert!(crate::flow::BUCKETS <= 1 << 11, "a bucket has eleven bits");

/// Returns the number with these low bits that is nearest to `near`.
pub fn widen(near: u32, low: u32) -> u32 {
    let ahead = low.wrapping_sub(near) & SEQUENCE_MASK;
    let behind = SEQUENCE_MASK + 1 - ahead;
    if ahead <= SEQUENCE_MASK / 2 { near.wrapping_add(ahead) } else { near.wrapping_sub(behind) }
}

/// Returns the coefficient of the datagram with this number in the repair symbol with this seed; never zero.
fn coefficient(seed: u8, number: u64) -> u8 {
    // The finaliser of SplitMix64 (Steele, Lea, Flood, 2014), as in `flow`.
    let mut bits = number.wrapping_mul(64).wrapping_add(u64::from(seed)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    1 + ((bits ^ (bits >> 31)) % 255) as u8
}

#[cfg(test)]
mod tests;
