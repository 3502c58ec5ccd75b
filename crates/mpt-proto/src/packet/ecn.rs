//! DSCP and ECN across the tunnel.
//!
//! ECN follows RFC 6040 (normal mode): encapsulation copies the inner codepoint to the outer header, and decapsulation
//! merges the mark of the network into the inner header. DSCP follows the uniform model of RFC 2983 at encapsulation
//! only: the outer packet gets the inner DSCP, and re-marking by a network is not copied to the inner packet.

use super::checksum;
use super::ip::Ip;
use crate::drops::Dropped;

/// The two ECN bits of a type-of-service byte.
pub const MASK: u8 = 0b11;
/// Not ECN-capable.
pub const NOT_ECT: u8 = 0b00;
/// ECN-capable, codepoint 1.
pub const ECT1: u8 = 0b01;
/// ECN-capable, codepoint 0.
pub const ECT0: u8 = 0b10;
/// Congestion experienced.
pub const CE: u8 = 0b11;

/// Returns the inner type of service after decapsulation (RFC 6040 section 4.2, figure 4).
///
/// # Errors [`Dropped::CeOnNotEct`] if the network marked congestion on a packet whose transport does not support ECN.
pub fn decapsulate(inner: u8, outer: u8) -> Result<u8, Dropped> {
    let ecn = match (inner & MASK, outer & MASK) {
        (NOT_ECT, CE) => return Err(Dropped::CeOnNotEct),
        (NOT_ECT, _) => NOT_ECT,
        (_, CE) => CE,
        (ECT0, ECT1) => ECT1,
        (same, _) => same,
    };
    Ok(inner & !MASK | ecn)
}

/// Returns true if the network marked a datagram received with `outer`; an inner CE mark makes the outer one no
/// evidence.
pub fn is_marked_outside(packet: Option<&[u8]>, outer: u8) -> bool {
    let is_marked_inside = || packet.and_then(|packet| Ip::parse(packet).ok()).is_some_and(|ip| ip.tos & MASK == CE);
    outer & MASK == CE && !is_marked_inside()
}

/// Replaces the type of service of an IPv4 header and updates its checksum.
pub(super) fn set_tos_v4(bytes: &mut [u8], tos: u8) {
    let old = u16::from_be_bytes([bytes[0], bytes[1]]);
    bytes[1] = tos;
    let field = u16::from_be_bytes([bytes[10], bytes[11]]);
    let updated = checksum::update(field, old, u16::from_be_bytes([bytes[0], tos]));
    bytes[10..12].copy_from_slice(&updated.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ip::{UDP, Version};
    use crate::packet::tests::packet;

    #[test]
    fn a_mark_of_the_inner_packet_is_not_counted_for_the_path() {
        let with = |tos| {
            let mut packet = packet(Version::V4, UDP, 100, 0);
            set_tos_v4(&mut packet, tos);
            packet
        };
        assert!(is_marked_outside(Some(&with(ECT0)), CE) && is_marked_outside(None, CE));
        assert!(!is_marked_outside(Some(&with(CE)), CE) && !is_marked_outside(Some(&with(ECT0)), ECT0));
    }

    #[test]
    fn the_table_of_rfc_6040_figure_4() {
        // Rows: inner Not-ECT, ECT(0), ECT(1), CE. Columns: outer Not-ECT, ECT(0), ECT(1), CE.
        let table = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT0, [Some(ECT0), Some(ECT0), Some(ECT1), Some(CE)]),
            (ECT1, [Some(ECT1), Some(ECT1), Some(ECT1), Some(CE)]),
            (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in [NOT_ECT, ECT0, ECT1, CE].into_iter().zip(row) {
                assert_eq!(
                    decapsulate(0xb8 | inner, outer).ok(),
                    expected.map(|ecn| 0xb8 | ecn),
                    "{inner:02b} in {outer:02b}"
                );
            }
        }
    }
}
