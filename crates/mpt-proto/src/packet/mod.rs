//! Inner packets: what the TUN device gives and takes, and what may be said about an IP packet by looking at it.

pub mod checksum;
mod coalesce;
pub mod ecn;
pub mod ip;
mod mss;
mod offload;
mod superpacket;

pub use coalesce::{Coalescer, Merge, TunWrite};
pub use mss::clamp_mss;
pub use offload::{Checksum, Offload, Segmentation, SegmentationKind};
pub use superpacket::SuperPacket;

/// The big-endian 16-bit word at `offset`.
pub(crate) fn word(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes([bytes[offset], bytes[offset + 1]])
}

/// Writes a big-endian 16-bit word at `offset`.
pub(crate) fn put_word(bytes: &mut [u8], offset: usize, value: u16) {
    bytes[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
pub(crate) mod tests;
