//! Encodes and decodes `struct virtio_net_hdr`, ten bytes in host byte order.
//!
//! ```text
//! flags 1 | gso_type 1 | hdr_len 2 | gso_size 2 | csum_start 2 | csum_offset 2
//! ```
//!
//! `hdr_len` is unreliable on read: the kernel sets it to the length of the linear part of its buffer, which for a
//! forwarded packet is the whole first segment. It is computed from the packet instead. On write it must be exact, and
//! so must `csum_start`: the kernel rejects a packet whose transport header does not end at `hdr_len`.

use std::io;

use mpt_proto::packet::{Checksum, Offload, Segmentation, SegmentationKind};

/// Length of the header.
pub const LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Added to the type of a TCP packet if only its first segment carries CWR.
const GSO_ECN: u8 = 0x80;

/// Encodes the header for a packet with this pending offload work.
pub fn encode(offload: Offload) -> [u8; LEN] {
    let checksum = offload.checksum.unwrap_or(Checksum { start: 0, offset: 0 });
    let (kind, header, size) = offload.segmentation.map_or((GSO_NONE, 0, 0), |s| (gso_type(s.kind), s.header, s.size));
    let flags = if offload.checksum.is_some() { NEEDS_CSUM } else { 0 };
    let mut bytes = [flags, kind, 0, 0, 0, 0, 0, 0, 0, 0];
    for (field, value) in bytes[2..].chunks_exact_mut(2).zip([header, size, checksum.start, checksum.offset]) {
        field.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// Decodes the offload work that is pending in `packet`. Ignores informational flags (checksum verified).
pub fn decode(header: &[u8; LEN], packet: &[u8]) -> io::Result<Offload> {
    let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let checksum = (header[0] & NEEDS_CSUM != 0).then_some(Checksum { start: field(6), offset: field(8) });
    let segmentation = match kind(header[1])? {
        None => None,
        Some(kind) => Some(Segmentation { kind, size: field(4), header: header_len(kind, checksum, packet)? }),
    };
    Ok(Offload { checksum, segmentation })
}

fn gso_type(kind: SegmentationKind) -> u8 {
    let ecn = |cwr| if cwr { GSO_ECN } else { 0 };
    match kind {
        SegmentationKind::Tcp4 { cwr } => GSO_TCPV4 | ecn(cwr),
        SegmentationKind::Tcp6 { cwr } => GSO_TCPV6 | ecn(cwr),
        SegmentationKind::Udp => GSO_UDP_L4,
    }
}

fn kind(gso_type: u8) -> io::Result<Option<SegmentationKind>> {
    let cwr = gso_type & GSO_ECN != 0;
    match gso_type & !GSO_ECN {
        GSO_NONE => Ok(None),
        GSO_TCPV4 => Ok(Some(SegmentationKind::Tcp4 { cwr })),
        GSO_TCPV6 => Ok(Some(SegmentationKind::Tcp6 { cwr })),
        GSO_UDP_L4 => Ok(Some(SegmentationKind::Udp)),
        _ => Err(invalid("segmentation type that was not negotiated")),
    }
}

/// Returns the bytes of IP and transport header. The transport header begins at `csum_start`, for TCP and UDP.
fn header_len(kind: SegmentationKind, checksum: Option<Checksum>, packet: &[u8]) -> io::Result<u16> {
    let start = checksum.ok_or_else(|| invalid("segmentation without a partial checksum"))?.start;
    let transport = packet.get(usize::from(start)..).unwrap_or_default();
    let (shortest, len) = match kind {
        SegmentationKind::Udp => (8, 8),
        SegmentationKind::Tcp4 { .. } | SegmentationKind::Tcp6 { .. } => {
            (20, transport.get(12).map_or(0, |offset| (offset >> 4) * 4))
        }
    };
    match len >= shortest && transport.len() >= usize::from(len) {
        true => Ok(start.saturating_add(len.into())),
        false => Err(invalid("transport header exceeds the packet")),
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20 bytes of IP, 32 of TCP (data offset 8: timestamps), 3000 of payload.
    fn tcp4() -> (Offload, Vec<u8>) {
        let mut packet = vec![0; 20 + 32 + 3000];
        packet[0] = 0x45;
        packet[20 + 12] = 8 << 4;
        let segmentation = Segmentation { kind: SegmentationKind::Tcp4 { cwr: true }, size: 1388, header: 52 };
        (Offload { checksum: Some(Checksum { start: 20, offset: 16 }), segmentation: Some(segmentation) }, packet)
    }

    #[test]
    fn the_header_has_the_kernels_layout() {
        let n = |value: u16| value.to_ne_bytes();
        let expected = [&[1, 0x81], &n(52)[..], &n(1388), &n(20), &n(16)].concat();
        assert_eq!(encode(tcp4().0).to_vec(), expected);
    }

    #[test]
    fn a_finished_packet_has_a_zero_header() {
        assert_eq!(encode(Offload::default()), [0; LEN]);
        assert_eq!(decode(&[0; LEN], &[0x45; 20]).unwrap(), Offload::default());
    }

    #[test]
    fn decode_inverts_encode() {
        let (offload, packet) = tcp4();
        assert_eq!(decode(&encode(offload), &packet).unwrap(), offload);
    }

    #[test]
    fn the_header_length_is_taken_from_the_packet_not_from_the_kernel() {
        let (offload, packet) = tcp4();
        let mut header = encode(offload);
        header[2..4].copy_from_slice(&1440_u16.to_ne_bytes());
        assert_eq!(decode(&header, &packet).unwrap().segmentation.unwrap().header, 52);
    }

    #[test]
    fn udp_repeats_eight_bytes_of_transport_header() {
        let checksum = Some(Checksum { start: 40, offset: 6 });
        let segmentation = Some(Segmentation { kind: SegmentationKind::Udp, size: 1200, header: 48 });
        let offload = Offload { checksum, segmentation };
        assert_eq!(decode(&encode(offload), &[0; 48 + 2400]).unwrap(), offload);
    }

    #[test]
    fn a_verified_checksum_leaves_no_work() {
        let mut header = [0; LEN];
        header[0] = 2;
        assert_eq!(decode(&header, &[0x45; 40]).unwrap(), Offload::default());
    }

    #[test]
    fn a_header_that_contradicts_the_packet_is_an_error_and_never_a_panic() {
        let (offload, packet) = tcp4();
        assert!(decode(&encode(offload), &packet[..30]).is_err(), "cut inside the TCP header");
        assert!(decode(&encode(offload), &[]).is_err(), "no packet");
        assert!(decode(&[0, GSO_TCPV4, 0, 0, 0, 0, 0, 0, 0, 0], &packet).is_err(), "no checksum");
        assert!(decode(&[1, 3, 0, 0, 0, 0, 0, 0, 0, 0], &packet).is_err(), "UFO");
        let high = encode(Offload { checksum: Some(Checksum { start: 65_535, offset: 6 }), ..offload });
        assert!(decode(&high, &packet).is_err(), "checksum beyond the end");
    }
}
