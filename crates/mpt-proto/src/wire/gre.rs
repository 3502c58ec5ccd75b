//! The GRE header (RFC 2784) with key and sequence number (RFC 2890), after the UDP header (RFC 8086).
//!
//! ```text
//! |C| |K|S| Reserved0       | Ver |         Protocol Type         |
//! |      Checksum (optional)      |       Reserved1 (optional)    |
//! |                         Key (optional)                        |
//! |                   Sequence Number (optional)                  |
//! ```

use crate::drops::Dropped;
use crate::packet::checksum;

/// The UDP port of GRE-in-UDP (RFC 8086 section 11).
pub const PORT: u16 = 4754;
/// Protocol type of IPv4.
pub const IPV4: u16 = 0x0800;
/// Protocol type of IPv6.
pub const IPV6: u16 = 0x86dd;
/// IEEE 802 local experimental EtherType 1: native data (with key and sequence number) and plain-mode probes (without).
pub const EXPERIMENTAL_1: u16 = 0x88b5;
/// IEEE 802 local experimental EtherType 2: the native handshake.
pub const EXPERIMENTAL_2: u16 = 0x88b6;

/// A GRE header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gre {
    /// The protocol type of the payload.
    pub protocol: u16,
    /// True if a checksum over header and payload is present.
    pub checksum: bool,
    /// The key, if present.
    pub key: Option<u32>,
    /// The sequence number, if present.
    pub sequence: Option<u32>,
}

impl Gre {
    /// Returns the length of the header in bytes: 4 to 16.
    pub const fn len(&self) -> usize {
        4 * (1 + self.checksum as usize + self.key.is_some() as usize + self.sequence.is_some() as usize)
    }

    /// Decodes the header at the start of a datagram and verifies the checksum, if present.
    ///
    /// # Errors [`Dropped::Truncated`], [`Dropped::BadGre`] or [`Dropped::BadChecksum`].
    pub fn decode(datagram: &[u8]) -> Result<(Self, &[u8]), Dropped> {
        let flags = read_u16(datagram, 0)?;
        if flags & (MUST_BE_ZERO | VERSION) != 0 {
            return Err(Dropped::BadGre);
        }
        let mut at = 4;
        let mut field = |present: bool| -> Result<Option<u32>, Dropped> {
            let value = present.then(|| read_u32(datagram, at)).transpose()?;
            at += if present { 4 } else { 0 };
            Ok(value)
        };
        let has_checksum = field(flags & C != 0)?.is_some();
        let (key, sequence) = (field(flags & K != 0)?, field(flags & S != 0)?);
        if has_checksum && checksum::checksum(0, datagram) != 0 {
            return Err(Dropped::BadChecksum);
        }
        let gre = Self { protocol: read_u16(datagram, 2)?, checksum: has_checksum, key, sequence };
        Ok((gre, &datagram[gre.len()..]))
    }

    /// Writes the header to the start of `datagram`. With a checksum, the payload must already be in place.
    pub fn encode(&self, datagram: &mut [u8]) {
        let bit = |present, bit| if present { bit } else { 0 };
        let flags = bit(self.checksum, C) | bit(self.key.is_some(), K) | bit(self.sequence.is_some(), S);
        datagram[0..2].copy_from_slice(&flags.to_be_bytes());
        datagram[2..4].copy_from_slice(&self.protocol.to_be_bytes());
        let fields = [self.checksum.then_some(0), self.key, self.sequence];
        for (value, field) in fields.into_iter().flatten().zip(datagram[4..].chunks_exact_mut(4)) {
            field.copy_from_slice(&value.to_be_bytes());
        }
        if self.checksum {
            let sum = checksum::checksum(0, datagram);
            datagram[4..6].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

const C: u16 = 0x8000;
const K: u16 = 0x2000;
const S: u16 = 0x1000;
/// Routing and strict source route of RFC 1701, and the top bit of its recursion control: RFC 2784 section 2.3 requires
/// a receiver to discard packets with any of bits 1 to 5 set; RFC 2890 reassigned bits 2 and 3.
const MUST_BE_ZERO: u16 = 0x4c00;
const VERSION: u16 = 0x0007;

fn read_u16(bytes: &[u8], at: usize) -> Result<u16, Dropped> {
    let field = bytes.get(at..at + 2).ok_or(Dropped::Truncated)?;
    Ok(u16::from_be_bytes([field[0], field[1]]))
}

fn read_u32(bytes: &[u8], at: usize) -> Result<u32, Dropped> {
    let field = bytes.get(at..at + 4).ok_or(Dropped::Truncated)?;
    Ok(u32::from_be_bytes([field[0], field[1], field[2], field[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: Gre = Gre { protocol: IPV4, checksum: false, key: None, sequence: None };

    fn encoded(gre: Gre, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; gre.len()];
        bytes.extend_from_slice(payload);
        gre.encode(&mut bytes);
        bytes
    }

    #[test]
    fn the_headers_of_the_original_are_reproduced() {
        // The headers of three captures of the original MPT.
        assert_eq!(encoded(BARE, &[]), [0x00, 0x00, 0x08, 0x00]);
        assert_eq!(encoded(Gre { sequence: Some(0), ..BARE }, &[]), [0x10, 0x00, 0x08, 0x00, 0, 0, 0, 0]);
        let v6 = Gre { protocol: IPV6, sequence: Some(1), ..BARE };
        assert_eq!(encoded(v6, &[]), [0x10, 0x00, 0x86, 0xdd, 0, 0, 0, 1]);
    }

    #[test]
    fn all_fields_are_where_linux_puts_them() {
        // RFC 2784 and RFC 2890: checksum and reserved, key, sequence number. The 16-bit words of header and payload
        // add up to b000 + 0800 + 0007 + 0001 + 4500 = fd08, whose complement is 02f7.
        let gre = Gre { checksum: true, key: Some(7), sequence: Some(1), ..BARE };
        let expected = [0xb0, 0, 8, 0, 0x02, 0xf7, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 0x45, 0];
        assert_eq!(encoded(gre, &[0x45, 0]), expected);
        assert_eq!(Gre::decode(&expected), Ok((gre, &[0x45, 0][..])));
        // The key alone, as set by `ip link add type gre key 7`.
        assert_eq!(encoded(Gre { key: Some(7), ..BARE }, &[]), [0x20, 0, 8, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn every_combination_of_fields_decodes_to_what_was_encoded() {
        for bits in 0..8 {
            let gre = Gre {
                checksum: bits & 1 != 0,
                key: (bits & 2 != 0).then_some(0xdead_beef),
                sequence: (bits & 4 != 0).then_some(7),
                ..BARE
            };
            let bytes = encoded(gre, b"payload");
            assert_eq!(Gre::decode(&bytes), Ok((gre, &b"payload"[..])));
            for len in 0..gre.len() {
                assert_eq!(Gre::decode(&bytes[..len]), Err(Dropped::Truncated), "cut to {len} bytes");
            }
        }
    }

    #[test]
    fn a_flipped_bit_under_a_checksum_is_detected() {
        let bytes = encoded(Gre { checksum: true, ..BARE }, b"payload");
        for bit in 8 * 4..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Gre::decode(&damaged), Err(Dropped::BadChecksum));
        }
    }

    #[test]
    fn versions_and_reserved_bits_of_rfc_2784_are_refused() {
        for flags in [0x0001u16, 0x0007, 0x4000, 0x0800, 0x0400] {
            let mut bytes = encoded(BARE, &[0; 8]);
            bytes[0..2].copy_from_slice(&flags.to_be_bytes());
            assert_eq!(Gre::decode(&bytes), Err(Dropped::BadGre), "{flags:04x}");
        }
        let mut reserved0 = encoded(BARE, &[]);
        reserved0[1] = 0x08;
        assert!(Gre::decode(&reserved0).is_ok(), "bits 6 to 12 are ignored on receipt");
    }
}
