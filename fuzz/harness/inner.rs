//! Segmentation and merging: for any request of the TUN device the segments must be valid and complete; for any packets
//! of a peer the merged packets must be the packets received, in the order of their flow.
//!
//! An input is a request (eight bytes: kind and flags, segment size, checksum start and offset), then packets, each
//! after its length in two bytes. The request applies to the first packet.

use mpt_proto::packet::ip::{Ip, TCP, UDP, Version};
use mpt_proto::packet::{
    Checksum, ChecksumState, Coalescer, Merge, Offload, Segmentation, SegmentationKind, SuperPacket, checksum,
    complete_tcp,
};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Segments the first packet of `input` as requested, and merges it with the others.
pub fn check(input: &[u8]) {
    let Some((request, mut rest)) = input.split_first_chunk::<8>() else { return };
    let offload = offload(request);
    let mut packets = Vec::new();
    while let Some((packet, others)) = next(rest) {
        packets.push(packet.to_vec());
        rest = others;
    }
    let others = packets.split_off(packets.len().min(1));
    let mut pushed = packets.pop().map(|first| segment(first, offload)).unwrap_or_default();
    pushed.extend(others);
    // Adds valid checksums, which a fuzzer does not find by chance.
    if request[0] & 0x80 != 0 {
        pushed.iter_mut().for_each(|packet| fix_checksums(packet));
    }
    pushed.retain_mut(|packet| Ip::parse(packet).map(|ip| packet.truncate(ip.total)).is_ok());
    check_merging(&pushed, ChecksumState::Final);
    pushed.retain_mut(|packet| {
        let ip = Ip::parse(packet).expect("checked");
        let is_segment = ip.has_tcp_header();
        if is_segment {
            complete_tcp(&ip, packet);
        }
        is_segment
    });
    check_merging(&pushed, ChecksumState::Partial);
}

/// Splits off a packet after its length, or the bytes that are left.
fn next(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = input.split_first_chunk()?;
    let len = usize::from(u16::from_be_bytes(*len));
    Some(rest.split_at(len.min(rest.len())))
}

/// Decodes an offload request.
fn offload(bytes: &[u8; 8]) -> Offload {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let cwr = bytes[0] & 0x08 != 0;
    let kind = match bytes[0] & 0x03 {
        0 => None,
        1 => Some(SegmentationKind::Tcp4 { cwr }),
        2 => Some(SegmentationKind::Tcp6 { cwr }),
        _ => Some(SegmentationKind::Udp),
    };
    Offload {
        checksum: (bytes[0] & 0x10 != 0).then_some(Checksum { start: word(4), offset: word(6) }),
        segmentation: kind.map(|kind| Segmentation { kind, size: word(2), header: u16::from(bytes[1]) }),
    }
}

/// Returns the segments of a super-packet; each must be valid, and together they must be complete.
fn segment(bytes: Vec<u8>, offload: Offload) -> Vec<Vec<u8>> {
    let len = bytes.len();
    let Ok(whole) = SuperPacket::new(bytes, len, offload) else { return Vec::new() };
    // 65,000 segments of one byte each would take long without testing more.
    let packets: Vec<_> = (0..whole.count().min(200)).map(|index| write(&whole, index)).collect();
    if whole.count() == packets.len() && offload.segmentation.is_some() {
        let header = packets.iter().map(Vec::len).sum::<usize>() - whole.bytes().len();
        assert!(packets.len() == 1 || header % (packets.len() - 1) == 0, "all packets have headers of the same length");
    }
    packets
}

fn write(whole: &SuperPacket, index: usize) -> Vec<u8> {
    let mut packet = vec![0; whole.len_of(index)];
    whole.write(index, &mut packet);
    let ip = Ip::parse(&packet).expect("a segment is an IP packet");
    assert_eq!((ip.total, ip.destination), (packet.len(), whole.ip().destination));
    packet
}

/// Sets all checksums and the UDP length to valid values.
pub fn fix_checksums(packet: &mut [u8]) {
    let Ok(ip) = Ip::parse(packet) else { return };
    let packet = &mut packet[..ip.total];
    if ip.version == Version::V4 {
        put(packet, 10, 0);
        let sum = checksum::checksum(0, &packet[..ip.transport]);
        put(packet, 10, sum);
    }
    let (field, min) = if ip.protocol == UDP { (6, 8) } else { (16, 20) };
    if !matches!(ip.protocol, TCP | UDP) || ip.total < ip.transport + min {
        return;
    }
    if ip.protocol == UDP {
        put(packet, ip.transport + 4, (ip.total - ip.transport) as u16);
    }
    put(packet, ip.transport + field, 0);
    let sum = checksum::checksum(ip.pseudo_sum(ip.total - ip.transport), &packet[ip.transport..]);
    put(packet, ip.transport + field, if sum == 0 && ip.protocol == UDP { 0xffff } else { sum });
}

fn put(packet: &mut [u8], at: usize, value: u16) {
    packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

type Flow = (IpAddr, IpAddr, u8, Option<(u16, u16)>);

fn check_merging(pushed: &[Vec<u8>], checksum: ChecksumState) {
    for merge in [Merge { tcp: true, udp: true }, Merge::default()] {
        let mut coalescer = Coalescer::new(merge);
        for packet in pushed {
            coalescer.push_with(&Ip::parse(packet).expect("checked"), packet, checksum);
        }
        coalescer.flush();
        let mut delivered = Vec::new();
        while let Some(delivery) = coalescer.poll() {
            let parts = segment(delivery.bytes, delivery.offload);
            assert_eq!(parts.len(), delivery.packets as usize);
            delivered.extend(parts);
        }
        assert_eq!(by_flow(&delivered), by_flow(pushed));
    }
}

fn by_flow(packets: &[Vec<u8>]) -> BTreeMap<Flow, Vec<Vec<u8>>> {
    let mut flows = BTreeMap::<Flow, Vec<_>>::new();
    for packet in packets {
        let ip = Ip::parse(packet).expect("checked");
        let flow = (ip.source, ip.destination, ip.protocol, ip.ports(packet));
        flows.entry(flow).or_default().push(with_one_zero(&ip, packet));
    }
    flows
}

/// Maps one representation of zero to the other: one's complement has two, both valid in an IPv4 or TCP checksum.
fn with_one_zero(ip: &Ip, packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let v4 = (ip.version == Version::V4).then_some(10);
    let tcp = (ip.protocol == TCP).then_some(ip.transport + 16);
    for at in v4.into_iter().chain(tcp) {
        if packet.get(at..at + 2) == Some(&[0xff, 0xff]) {
            put(&mut packet, at, 0);
        }
    }
    packet
}
