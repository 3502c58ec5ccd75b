//! Cutting and merging: whatever the TUN device claims, the packets that leave are valid and complete; whatever a peer sends,
//! the packets that are delivered merged are the packets that came, in the order of their flow.
//!
//! An input is a request (eight bytes: kind and flags, segment size, checksum start and offset), then packets with a length of
//! two bytes before each. Requests are applied to the first packet.

use mpt_proto::packet::ip::{Ip, TCP, UDP, Version};
use mpt_proto::packet::{Checksum, Coalescer, Merge, Offload, Segmentation, SegmentationKind, SuperPacket, checksum};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Cuts the first packet of `input` as requested, and merges it with the others.
pub fn check(input: &[u8]) {
    let Some((request, mut rest)) = input.split_first_chunk::<8>() else { return };
    let offload = offload(request);
    let mut packets = Vec::new();
    while let Some((packet, others)) = next(rest) {
        packets.push(packet.to_vec());
        rest = others;
    }
    let others = packets.split_off(packets.len().min(1));
    let mut pushed = packets.pop().map(|first| cut(first, offload)).unwrap_or_default();
    pushed.extend(others);
    // With good checksums, which a fuzzer does not find by chance.
    if request[0] & 0x80 != 0 {
        pushed.iter_mut().for_each(|packet| mend(packet));
    }
    pushed.retain_mut(|packet| Ip::parse(packet).map(|ip| packet.truncate(ip.total)).is_ok());
    check_merging(&pushed);
}

/// A packet with its length before it, or what is there of it.
fn next(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = input.split_first_chunk()?;
    let len = usize::from(u16::from_be_bytes(*len));
    Some(rest.split_at(len.min(rest.len())))
}

/// What `bytes` ask for.
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

/// The packets that a super-packet stands for; each must be valid and the whole complete.
fn cut(bytes: Vec<u8>, offload: Offload) -> Vec<Vec<u8>> {
    let len = bytes.len();
    let Ok(whole) = SuperPacket::new(bytes, len, offload) else { return Vec::new() };
    // One byte in each of 65,000 segments takes long and shows nothing.
    let packets: Vec<_> = (0..whole.count().min(200)).map(|index| written(&whole, index)).collect();
    if whole.count() == packets.len() && offload.segmentation.is_some() {
        let header = packets.iter().map(Vec::len).sum::<usize>() - whole.bytes().len();
        assert!(packets.len() == 1 || header % (packets.len() - 1) == 0, "every packet repeats the same header");
    }
    packets
}

fn written(whole: &SuperPacket, index: usize) -> Vec<u8> {
    let mut packet = vec![0; whole.len_of(index)];
    whole.write(index, &mut packet);
    let ip = Ip::parse(&packet).expect("a part of an IP packet is one");
    assert_eq!((ip.total, ip.destination), (packet.len(), whole.ip().destination));
    packet
}

/// Makes all checksums right, and a UDP length that lies true.
pub fn mend(packet: &mut [u8]) {
    let Ok(ip) = Ip::parse(packet) else { return };
    let packet = &mut packet[..ip.total];
    if ip.version == Version::V4 {
        put(packet, 10, 0);
        let sum = checksum::checksum(0, &packet[..ip.transport]);
        put(packet, 10, sum);
    }
    let (field, least) = if ip.protocol == UDP { (6, 8) } else { (16, 20) };
    if !matches!(ip.protocol, TCP | UDP) || ip.total < ip.transport + least {
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

fn check_merging(pushed: &[Vec<u8>]) {
    for merge in [Merge { tcp: true, udp: true }, Merge::default()] {
        let mut coalescer = Coalescer::new(merge);
        for packet in pushed {
            coalescer.push(&Ip::parse(packet).expect("checked"), packet);
        }
        coalescer.flush();
        let mut delivered = Vec::new();
        while let Some(delivery) = coalescer.poll() {
            let parts = cut(delivery.bytes, delivery.offload);
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

/// One's complement has two zeros, and both are right in an IPv4 or TCP checksum.
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
