//! The firewall marks of tunnels, which select their routing tables.

/// The upper half of the marks of tunnels.
pub const MARK_OF_TUNNELS: u32 = 0x4d50_0000;

/// Returns the mark for an interface name: FNV-1a (Fowler, Noll, Vo), folded to 16 bits, below a two-letter prefix that
/// is unlikely in numbers chosen by hand.
pub fn mark_of(interface: &str) -> u32 {
    let hash = interface.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    MARK_OF_TUNNELS | (hash >> 16 ^ hash) & 0xffff
}

/// Returns the mark of answers to connections from the tunnel with this mark.
pub fn answer_mark_of(mark: u32) -> u32 {
    mark | 1 << 17
}
