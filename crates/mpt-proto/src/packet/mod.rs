//! Inner packets: reads and writes of the TUN device, and the headers of IP packets.

pub mod checksum;
mod coalesce;
pub mod ecn;
pub mod ip;
pub mod mark;
mod mss;
mod offload;
mod superpacket;
mod tcp_option;

pub use coalesce::{Coalescer, Merge, TunWrite, complete_tcp};
pub use mss::clamp_mss;
pub use offload::{Checksum, Offload, Segmentation, SegmentationKind};
pub use superpacket::{ChecksumState, MAX_SUPER_PACKET, SuperPacket};
pub(crate) use tcp_option::tcp_option;

/// Returns the big-endian 16-bit word at `offset`.
pub(crate) fn read_u16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes([bytes[offset], bytes[offset + 1]])
}

/// Writes a big-endian 16-bit word at `offset`.
pub(crate) fn write_u16(bytes: &mut [u8], offset: usize, value: u16) {
    bytes[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
pub(crate) mod tests;
