//! TCP segments that the kernel left to the tunnel to cut: their checksums are completed, in whatever order they come.
#![allow(clippy::unwrap_used)]

mod support;

use mpt_proto::packet::{Checksum, Offload, Segmentation, SegmentationKind, SuperPacket, checksum};
use mpt_sim::host::numbered;
use support::native::Pair;

/// Bytes of payload of a segment.
const SIZE: usize = 1_000;
const SEGMENTS: usize = 3;
/// Bytes of a datagram with a segment whose headers are not compressed: header, frame header, packet, tag.
const DATAGRAM: usize = 12 + 7 + 40 + SIZE + 16;

/// Returns the first super-packet of a flow, whose headers are not compressed yet, with the addresses of numbered
/// packets, and the offload request that a TUN device has beside it.
fn super_packet(number: u32) -> (Vec<u8>, Offload) {
    let len = 40 + SEGMENTS * SIZE;
    let mut packet = vec![number as u8; len];
    packet[..20].copy_from_slice(&numbered(0, 100)[..20]);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[9] = 6;
    packet[10..12].fill(0);
    let sum = checksum::checksum(0, &packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..40].fill(0);
    packet[20..24].copy_from_slice(&[0xc0, number as u8, 0x14, 0x51]);
    packet[32..36].copy_from_slice(&[0x50, 0x10, 0x20, 0]);
    let kind = SegmentationKind::Tcp4 { cwr: false };
    let offload = Offload {
        checksum: Some(Checksum { start: 20, offset: 16 }),
        segmentation: Some(Segmentation { kind, size: SIZE as u16, header: 40 }),
    };
    (packet, offload)
}

/// Returns the segments with their final checksums.
fn segments((packet, offload): (Vec<u8>, Offload)) -> Vec<Vec<u8>> {
    let len = packet.len();
    let whole = SuperPacket::new(packet, len, offload).unwrap();
    let segment = |index| {
        let mut bytes = vec![0; whole.len_of(index)];
        whole.write(index, &mut bytes);
        bytes
    };
    (0..SEGMENTS).map(segment).collect()
}

#[test]
fn segments_have_valid_checksums_in_order_and_out_of_order() {
    let mut pair = Pair::established();
    for (number, order) in (0..).zip([[0, 1, 2], [0, 2, 1], [2, 1, 0], [1, 0, 2]]) {
        let (mut packet, offload) = super_packet(number);
        let len = packet.len();
        pair.ends[0].handle_inner(pair.now, &mut packet, len, offload);
        let datagrams: Vec<_> = pair.poll(0).into_iter().filter(|datagram| datagram.bytes.len() > SIZE).collect();
        assert_eq!(datagrams.iter().map(|datagram| datagram.bytes.len()).collect::<Vec<_>>(), [DATAGRAM; SEGMENTS]);
        order.into_iter().for_each(|index: usize| pair.deliver(1, &datagrams[index]));
        assert_eq!(pair.delivered(1), segments(super_packet(number)), "{order:?}");
        pair.exchange();
    }
}
