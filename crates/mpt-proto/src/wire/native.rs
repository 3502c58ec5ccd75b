//! The header of a native datagram: GRE with Key and Sequence (RFC 2784, RFC 2890) inside UDP (RFC 8086).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! |0|0|1|1|      reserved = 0     | 0   |  protocol type 0x88B5   |  C=0, K=1, S=1; IEEE 802 local experimental 1
//! |         receiver's session index              | slot    | gen |  Key: 24 bits, 5 bits, 3 bits
//! |          low 32 bits of the packet number                     |  Sequence
//! |  AEAD( frames ), 12 bytes above as associated data; 16 of tag |
//! ```
//!
//! **Nonces never repeat.** The nonce is `0 0 0 | path byte | 64-bit packet number`. A key belongs to one session and
//! one direction, so only one sender uses it. That sender has one counter per slot, which
//! [`crate::crypto::association`] increments for every sealed datagram and never resets while a key exists that was
//! used with it. Two datagrams under one key therefore differ in slot or in number. The generation in the path byte is
//! not needed for that, because a slot keeps its counter when it is assigned to a new path. It identifies the new path
//! to the receiver.
//!
//! The numbers of a slot continue across a rekey, so an acknowledgement identifies the same datagram under any session.
//! They restart at zero only after a restart of either end, when all older keys have been dropped.

use std::fmt;

use crate::id::{PathId, PathSeq};

/// A decoded native data header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The receiver's session under which the body is sealed.
    pub session: SessionIndex,
    /// The path of the sender on which the datagram was sent.
    pub path: PathTag,
    /// The low 32 bits of the packet number.
    pub sequence: u32,
}

impl Header {
    /// Makes the header of the datagram with this number.
    pub fn new(session: SessionIndex, path: PathTag, number: PathSeq) -> Self {
        Self { session, path, sequence: number.0 as u32 }
    }

    /// Decodes the header of a native data datagram; `None` if it is of another type, or too short for a tag.
    pub fn decode(datagram: &[u8]) -> Option<Self> {
        let [0x30, 0, 0x88, 0xB5, a, b, c, path, s @ ..] = datagram.first_chunk::<HEADER>()? else { return None };
        if datagram.len() < OVERHEAD {
            return None;
        }
        let session = SessionIndex::from_bytes([*a, *b, *c]);
        Some(Self { session, path: PathTag(*path), sequence: u32::from_be_bytes(*s) })
    }

    /// Returns the encoded header, which is also the associated data of the body.
    pub fn encode(&self) -> [u8; HEADER] {
        let ([a, b, c], [s, t, u, v]) = (self.session.to_bytes(), self.sequence.to_be_bytes());
        [0x30, 0, 0x88, 0xB5, a, b, c, self.path.0, s, t, u, v]
    }
}

/// Bytes of the header before the sealed body.
pub const HEADER: usize = 12;
/// Bytes of a datagram that are not frames.
pub const OVERHEAD: usize = HEADER + TAG;
/// Bytes of the authentication tag that sealing adds.
pub const TAG: usize = 16;
/// Bytes of a nonce.
pub const NONCE: usize = 12;

/// Returns the nonce of the datagram with this number on this path.
pub fn nonce(path: PathTag, number: PathSeq) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    nonce[3] = path.0;
    nonce[4..].copy_from_slice(&number.0.to_be_bytes());
    nonce
}

/// The index of a session at the end that receives under it: 24 bits, chosen by that end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionIndex(u32);

impl SessionIndex {
    /// Makes an index of the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00FF_FFFF)
    }

    /// Decodes an index.
    pub const fn from_bytes([a, b, c]: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, a, b, c]))
    }

    /// Returns the encoded index.
    pub const fn to_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }
}

impl fmt::Debug for SessionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionIndex({:06x})", self.0)
    }
}

/// A path in the encoding of the wire: the sender's slot, and the low three bits of its generation. Two paths would
/// only be confused if eight paths used one slot within the lifetime of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathTag(u8);

impl PathTag {
    /// Decodes a tag; every byte is valid.
    pub const fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// Returns the encoded tag.
    pub const fn to_byte(self) -> u8 {
        self.0
    }

    /// Returns the sender's slot, below [`crate::id::MAX_PATHS`].
    pub const fn slot(self) -> u8 {
        self.0 >> GENERATION_BITS
    }

    /// Returns the low three bits of the generation.
    pub const fn generation(self) -> u8 {
        self.0 & ((1 << GENERATION_BITS) - 1)
    }
}

const GENERATION_BITS: u32 = 3;
const _: () = assert!(crate::id::MAX_PATHS == 1 << (u8::BITS - GENERATION_BITS), "a slot fills the rest of the byte");

impl From<PathId> for PathTag {
    fn from(path: PathId) -> Self {
        Self(path.slot << GENERATION_BITS | path.generation & ((1 << GENERATION_BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn datagram(header: &Header) -> [u8; OVERHEAD] {
        let mut datagram = [0; OVERHEAD];
        datagram[..HEADER].copy_from_slice(&header.encode());
        datagram
    }

    #[test]
    fn a_sealed_datagram_has_header_and_tag_beside_its_contents() {
        assert_eq!((HEADER, OVERHEAD), (12, 28));
    }

    #[test]
    fn the_header_has_key_and_sequence_where_rfc_2890_puts_them() {
        let path = PathTag::from(PathId { slot: 17, generation: 13 });
        let header = Header::new(SessionIndex::new(0xABCDEF), path, PathSeq(0x1_2345_6789));
        assert_eq!(header.encode(), [0x30, 0, 0x88, 0xB5, 0xAB, 0xCD, 0xEF, 17 << 3 | 5, 0x23, 0x45, 0x67, 0x89]);
    }

    #[test]
    fn an_index_is_printed_in_six_digits() {
        assert_eq!(format!("{:?}", SessionIndex::new(0xFF00_001A)), "SessionIndex(00001a)");
    }

    #[test]
    fn a_tag_has_slot_and_low_bits_of_the_generation() {
        let tag = PathTag::from(PathId { slot: 17, generation: 13 });
        assert_eq!((tag.slot(), tag.generation(), tag.to_byte()), (17, 5, 0x8D));
        assert_eq!(PathTag::from_byte(0x8D), tag);
    }

    proptest! {
        #[test]
        fn a_header_decodes_to_what_was_encoded(session: u32, path: u8, number: u64) {
            let header = Header::new(SessionIndex::new(session), PathTag(path), PathSeq(number));
            prop_assert_eq!(Header::decode(&datagram(&header)), Some(header));
        }

        #[test]
        fn nonces_differ_when_slot_or_number_differ(slots: [u8; 2], numbers: [u64; 2], generation: u8) {
            let nonces = [0, 1].map(|i| nonce(PathId { slot: slots[i] % 32, generation }.into(), PathSeq(numbers[i])));
            prop_assert_eq!(nonces[0] == nonces[1], slots[0] % 32 == slots[1] % 32 && numbers[0] == numbers[1]);
        }
    }

    #[test]
    fn another_gre_header_is_not_native_data() {
        let ours = datagram(&Header { session: SessionIndex::new(1), path: PathTag(0), sequence: 0 });
        for bit in 0..32 {
            let mut other = ours;
            other[bit / 8] ^= 0x80 >> (bit % 8);
            assert_eq!(Header::decode(&other), None, "bit {bit}");
        }
        assert!((0..OVERHEAD).all(|len| Header::decode(&ours[..len]).is_none()));
    }
}
