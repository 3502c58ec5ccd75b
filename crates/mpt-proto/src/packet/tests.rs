//! Segments and merges packets, and compares the checksums with recomputed ones.

use super::ip::{Ip, TCP, UDP, Version};
use super::*;

/// Makes a packet with `payload` bytes of a counting pattern and final lengths and checksums.
pub(crate) fn packet(version: Version, protocol: u8, payload: usize, seq: u32) -> Vec<u8> {
    let transport = if protocol == TCP { 20 } else { 8 };
    let len = transport + payload;
    let mut p = match version {
        Version::V4 => {
            let mut h = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
            write_u16(&mut h, 2, (20 + len) as u16);
            let sum = checksum::checksum(0, &h);
            write_u16(&mut h, 10, sum);
            h
        }
        Version::V6 => {
            let mut h = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            write_u16(&mut h, 4, len as u16);
            h.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            h.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            h
        }
    };
    let at = p.len();
    p.resize(at + len, 0);
    p[at..at + 4].copy_from_slice(&[0xc0, 0x01, 0x14, 0x51]);
    if protocol == TCP {
        p[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
        p[at + 8..at + 16].copy_from_slice(&[0, 0, 0, 9, 0x50, 0x10, 0x20, 0x00]);
    } else {
        write_u16(&mut p, at + 4, len as u16);
    }
    for (i, byte) in p[at + transport..].iter_mut().enumerate() {
        *byte = (i as u32 + seq) as u8;
    }
    let ip = Ip::parse(&p).unwrap();
    let field = at + if protocol == TCP { 16 } else { 6 };
    let sum = checksum::checksum(ip.pseudo_sum(len), &p[at..]);
    write_u16(&mut p, field, sum);
    p
}

/// Makes the same packet as the kernel passes it on, with segmentation and checksum left to this process.
pub(crate) fn unfinished(version: Version, protocol: u8, payload: usize, size: u16) -> (Vec<u8>, Offload) {
    let mut bytes = packet(version, protocol, payload, 1_000);
    let ip = Ip::parse(&bytes).unwrap();
    let (offset, kind, header) = match (protocol, version) {
        (UDP, _) => (6, SegmentationKind::Udp, 8),
        (_, Version::V4) => (16, SegmentationKind::Tcp4 { cwr: false }, 20),
        (_, Version::V6) => (16, SegmentationKind::Tcp6 { cwr: false }, 20),
    };
    let pseudo = checksum::fold(ip.pseudo_sum(ip.total - ip.transport));
    write_u16(&mut bytes, ip.transport + offset, pseudo);
    let offload = Offload {
        checksum: Some(Checksum { start: ip.transport as u16, offset: offset as u16 }),
        segmentation: Some(Segmentation { kind, size, header: (ip.transport + header) as u16 }),
    };
    (bytes, offload)
}

fn segment(bytes: Vec<u8>, offload: Offload) -> Vec<Vec<u8>> {
    let len = bytes.len();
    let superpacket = SuperPacket::new(bytes, len, offload).unwrap();
    let write = |i| {
        let mut out = vec![0; superpacket.len_of(i)];
        superpacket.write(i, &mut out);
        out
    };
    (0..superpacket.count()).map(write).collect()
}

pub(crate) fn assert_checksums(packet: &[u8]) {
    let ip = Ip::parse(packet).unwrap();
    assert_eq!(ip.total, packet.len());
    if ip.version == Version::V4 {
        assert_eq!(checksum::fold(checksum::sum(0, &packet[..20])), 0xffff, "IPv4 header");
    }
    let sum = checksum::sum(ip.pseudo_sum(ip.total - ip.transport), &packet[ip.transport..]);
    assert_eq!(checksum::fold(sum), 0xffff, "transport");
}

const KINDS: [(Version, u8); 4] = [(Version::V4, TCP), (Version::V6, TCP), (Version::V4, UDP), (Version::V6, UDP)];

#[test]
fn a_superpacket_is_segmented_into_valid_packets_that_carry_its_payload() {
    for (version, protocol) in KINDS {
        let (bytes, offload) = unfinished(version, protocol, 10_000, 1_388);
        let header = usize::from(offload.segmentation.unwrap().header);
        let payload = bytes[header..].to_vec();
        let packets = segment(bytes, offload);
        assert_eq!(packets.len(), 8, "10000 bytes at 1388 each");
        packets.iter().for_each(|p| assert_checksums(p));
        assert_eq!(packets.iter().flat_map(|p| p[header..].to_vec()).collect::<Vec<_>>(), payload);
    }
}

#[test]
fn tcp_sequence_numbers_and_ip_identification_count_up() {
    let (bytes, offload) = unfinished(Version::V4, TCP, 3_000, 1_000);
    let packets = segment(bytes, offload);
    let seqs: Vec<u32> = packets.iter().map(|p| u32::from_be_bytes(p[24..28].try_into().unwrap())).collect();
    assert_eq!(seqs, [1_000, 2_000, 3_000]);
    assert_eq!(packets.iter().map(|p| read_u16(p, 4)).collect::<Vec<_>>(), [0x1234, 0x1235, 0x1236]);
}

#[test]
fn push_and_fin_stay_on_the_last_segment_and_cwr_on_the_first() {
    let (mut bytes, mut offload) = unfinished(Version::V4, TCP, 3_000, 1_000);
    bytes[33] |= 0x80 | 0x09;
    offload.segmentation.as_mut().unwrap().kind = SegmentationKind::Tcp4 { cwr: true };
    let flags: Vec<u8> = segment(bytes, offload).iter().map(|p| p[33]).collect();
    assert_eq!(flags, [0x90, 0x10, 0x19]);
}

#[test]
fn a_single_packet_with_a_partial_checksum_is_completed() {
    for (version, protocol) in KINDS {
        let (bytes, offload) = unfinished(version, protocol, 100, 1_000);
        let whole = segment(bytes, Offload { segmentation: None, ..offload });
        assert_eq!(whole.len(), 1);
        assert_checksums(&whole[0]);
    }
}

#[test]
fn requests_that_do_not_fit_the_packet_are_refused() {
    let refused = |change: fn(&mut Offload)| {
        let (bytes, mut offload) = unfinished(Version::V4, TCP, 3_000, 1_000);
        change(&mut offload);
        let len = bytes.len();
        SuperPacket::new(bytes, len, offload).is_err()
    };
    assert!(!refused(|_| {}));
    assert!(refused(|o| o.segmentation.as_mut().unwrap().size = 0));
    assert!(refused(|o| o.segmentation.as_mut().unwrap().kind = SegmentationKind::Udp));
    assert!(refused(|o| o.checksum = Some(Checksum { start: 20, offset: 60_000 })));
}

const BOTH: Merge = Merge { tcp: true, udp: true };

fn coalesce(packets: &[Vec<u8>], merge: Merge) -> Vec<TunWrite> {
    let mut coalescer = Coalescer::new(merge);
    for packet in packets {
        coalescer.push(&Ip::parse(packet).unwrap(), packet);
    }
    coalescer.flush();
    std::iter::from_fn(|| coalescer.poll()).collect()
}

#[test]
fn segments_are_merged_to_the_same_bytes_and_request() {
    for (version, protocol) in KINDS {
        let (bytes, offload) = unfinished(version, protocol, 10_000, 1_388);
        let merged = coalesce(&segment(bytes.clone(), offload), BOTH);
        assert_eq!(merged.len(), 1);
        assert_eq!((&merged[0].bytes, merged[0].offload, merged[0].packets), (&bytes, offload, 8));
    }
}

#[test]
fn without_merging_the_same_packets_are_delivered_one_by_one() {
    let (bytes, offload) = unfinished(Version::V6, TCP, 10_000, 1_388);
    let packets = segment(bytes, offload);
    let single = coalesce(&packets, Merge::default());
    assert_eq!(single.iter().map(|d| d.bytes.clone()).collect::<Vec<_>>(), packets);
    assert!(single.iter().all(|d| d.offload == Offload::default()));
}

#[test]
fn no_more_datagrams_are_merged_than_linux_takes() {
    let packets = vec![packet(Version::V6, UDP, 100, 0); 150];
    assert_eq!(coalesce(&packets, BOTH).iter().map(|d| d.packets).collect::<Vec<_>>(), [64, 64, 22]);
}

#[test]
fn two_interleaved_flows_are_merged_separately() {
    let (bytes, offload) = unfinished(Version::V4, TCP, 4_000, 1_000);
    let first = segment(bytes.clone(), offload);
    let mut other = bytes;
    other[21] = 2;
    let second = segment(other, offload);
    let mixed: Vec<_> = first.into_iter().zip(second).flat_map(|(a, b)| [a, b]).collect();
    assert_eq!(coalesce(&mixed, BOTH).iter().map(|d| d.packets).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn a_packet_out_of_sequence_starts_a_new_superpacket_and_order_is_kept() {
    let packets = [1_000, 2_000, 4_000, 5_000].map(|seq| packet(Version::V6, TCP, 1_000, seq));
    assert_eq!(coalesce(&packets, BOTH).iter().map(|d| d.packets).collect::<Vec<_>>(), [2, 2]);
    let short_in_between =
        [(1_000, 1_000), (500, 2_000), (1_000, 2_500)].map(|(len, seq)| packet(Version::V6, TCP, len, seq));
    assert_eq!(coalesce(&short_in_between, BOTH).iter().map(|d| d.packets).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn a_damaged_packet_is_passed_on_as_it_is() {
    let mut packets = [1_000, 2_000, 3_000].map(|seq| packet(Version::V6, TCP, 1_000, seq));
    packets[1][100] ^= 1;
    let out = coalesce(&packets, BOTH);
    assert_eq!(out.iter().map(|d| d.bytes.clone()).collect::<Vec<_>>(), packets);
}

#[test]
fn a_partial_checksum_is_left_to_the_kernel_or_completed() {
    for version in [Version::V4, Version::V6] {
        let (bytes, offload) = unfinished(version, TCP, 3_000, 1_000);
        let whole = SuperPacket::new(bytes.clone(), bytes.len(), offload).unwrap();
        let cut = |index, checksum| {
            let mut header = vec![0; whole.header_len()];
            whole.write_header(index, &mut header);
            let payload = whole.finish_header(index, &mut header, checksum);
            [&header, payload].concat()
        };
        let push = |packets: &[Vec<u8>], merge| {
            let mut coalescer = Coalescer::new(merge);
            let partial = |p: &Vec<u8>| coalescer.push_with(&Ip::parse(p).unwrap(), p, ChecksumState::Partial);
            packets.iter().for_each(partial);
            coalescer.flush();
            std::iter::from_fn(|| coalescer.poll()).collect::<Vec<_>>()
        };
        let packets: Vec<_> = (0..3).map(|index| cut(index, ChecksumState::Partial)).collect();

        let merged = push(&packets, BOTH);
        assert_eq!((merged.len(), &merged[0].bytes, merged[0].offload), (1, &bytes, offload));
        let single = push(&packets[1..2], BOTH);
        assert_eq!(single[0].offload, Offload { segmentation: None, ..offload });
        assert_eq!(single[0].bytes, packets[1]);
        let completed = push(&packets, Merge::default());
        assert!(completed.iter().all(|write| write.offload == Offload::default()));
        let complete = (0..3).map(|index| cut(index, ChecksumState::Final)).collect::<Vec<_>>();
        assert_eq!(completed.into_iter().map(|write| write.bytes).collect::<Vec<_>>(), complete);
        let mut urgent = packets[0].clone();
        let flags = Ip::parse(&urgent).unwrap().transport + 13;
        urgent[flags] |= 0x20;
        let passed = push(&[urgent], BOTH);
        assert_eq!(passed[0].offload, Offload::default());
        assert_checksums(&passed[0].bytes);
    }
}

/// Makes the packet with `change` applied and a valid transport checksum.
fn forged(version: Version, seq: u32, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut p = packet(version, TCP, 1_000, seq);
    change(&mut p);
    let ip = Ip::parse(&p).unwrap();
    write_u16(&mut p, ip.transport + 16, 0);
    let sum = checksum::checksum(ip.pseudo_sum(ip.total - ip.transport), &p[ip.transport..]);
    write_u16(&mut p, ip.transport + 16, sum);
    p
}

#[test]
fn a_tcp_header_with_a_length_of_less_than_twenty_bytes_is_passed_on_as_it_is() {
    for words in 0..5u8 {
        let taken_for_payload = 1_000 + 20 - 4 * u32::from(words);
        let packets =
            [1_000, 1_000 + taken_for_payload].map(|seq| forged(Version::V6, seq, |p| p[40 + 12] = words << 4));
        let out = coalesce(&packets, BOTH);
        assert_eq!(out.iter().map(|d| d.bytes.clone()).collect::<Vec<_>>(), packets, "{words} words");
    }
}

#[test]
fn a_damaged_ipv4_header_does_not_become_a_valid_one() {
    let mut packets = [1_000, 2_000, 3_000].map(|seq| packet(Version::V4, TCP, 1_000, seq));
    for (count, packet) in (0..).zip(&mut packets) {
        write_u16(packet, 4, 0x1234 + count);
    }
    let out = coalesce(&packets, BOTH);
    assert_eq!(
        out.iter().map(|d| d.bytes.clone()).collect::<Vec<_>>(),
        packets,
        "header checksums are off by the count"
    );
}

/// Makes a SYN with the options NOP, MSS, so that the value is at an odd or an even offset.
fn syn(nops: usize, mss: u16) -> Vec<u8> {
    let mut p = packet(Version::V4, TCP, 8, 1);
    p[32] = 0x70;
    p[33] = SYN;
    p[40..48].fill(1);
    p[40 + nops..42 + nops].copy_from_slice(&[2, 4]);
    write_u16(&mut p, 42 + nops, mss);
    write_u16(&mut p, 36, 0);
    let sum = checksum::checksum(Ip::parse(&p).unwrap().pseudo_sum(28), &p[20..]);
    write_u16(&mut p, 36, sum);
    p
}
const SYN: u8 = 0x02;

#[test]
fn the_mss_of_a_syn_is_lowered_to_the_tunnel_and_never_raised() {
    for nops in 0..4 {
        let mut high = syn(nops, 1_460);
        clamp_mss(&Ip::parse(&high.clone()).unwrap(), &mut high, 1_400, false);
        assert_eq!(read_u16(&high, 42 + nops), 1_360);
        assert_checksums(&high);
        let mut low = syn(nops, 1_200);
        clamp_mss(&Ip::parse(&low.clone()).unwrap(), &mut low, 1_400, false);
        assert_eq!(low, syn(nops, 1_200));
    }
}

#[test]
fn broken_tcp_options_are_left_alone() {
    for kind in 0..=255 {
        for len in [0, 1, 3, 40, 255] {
            let mut p = syn(0, 1_460);
            p[40..42].copy_from_slice(&[kind, len]);
            clamp_mss(&Ip::parse(&p.clone()).unwrap(), &mut p, 1_400, false);
        }
    }
}

#[test]
fn headers_are_separate_if_the_checksum_is_at_the_offset_of_the_protocol() {
    let (bytes, offload) = unfinished(Version::V4, TCP, 100, 50);
    let header_len = |checksum| {
        let offload = Offload { checksum: Some(checksum), segmentation: None };
        SuperPacket::new(bytes.clone(), bytes.len(), offload).unwrap().header_len()
    };
    let usual = offload.checksum.unwrap();
    assert_eq!(header_len(usual), 20 + 20);
    assert_eq!(header_len(Checksum { offset: 4, ..usual }), bytes.len());
    assert_eq!(header_len(Checksum { start: 24, offset: 12 }), bytes.len());
}
