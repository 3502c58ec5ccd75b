use std::time::Duration;

use proptest::prelude::*;

use super::fields::HeaderContext;
use super::*;
use crate::drops::Dropped;
use crate::packet::ip::{Ip, TCP, UDP, Version};
use crate::packet::tests::{assert_checksums, packet};
use crate::packet::{checksum, write_u16};
use crate::time::Time;

/// The fields that may differ between two packets of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Fields {
    id: u16,
    sequence: u32,
    ack: u32,
    flags: u8,
    window: u16,
    times: Option<[u32; 2]>,
}

/// Makes a packet with these fields; TCP fields are ignored for UDP.
fn build(version: Version, protocol: u8, fields: Fields, payload: usize) -> Vec<u8> {
    let options = if protocol == TCP && fields.times.is_some() { 12 } else { 0 };
    let mut bytes = packet(version, protocol, options + payload, 1);
    let ip = Ip::parse(&bytes).unwrap();
    let transport = ip.transport;
    if version == Version::V4 {
        write_u16(&mut bytes, 4, fields.id);
        write_u16(&mut bytes, 10, 0);
        let sum = checksum::checksum(0, &bytes[..20]);
        write_u16(&mut bytes, 10, sum);
    }
    let tcp = &mut bytes[transport..];
    if protocol == TCP {
        tcp[4..8].copy_from_slice(&fields.sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&fields.ack.to_be_bytes());
        tcp[13] = fields.flags;
        write_u16(tcp, 14, fields.window);
        if let Some([time, echo]) = fields.times {
            tcp[12] = 8 << 4;
            tcp[20..24].copy_from_slice(&[1, 1, 8, 10]);
            tcp[24..28].copy_from_slice(&time.to_be_bytes());
            tcp[28..32].copy_from_slice(&echo.to_be_bytes());
        }
    }
    let field = if protocol == TCP { 16 } else { 6 };
    write_u16(tcp, field, 0);
    let sum = checksum::checksum(ip.pseudo_sum(tcp.len()), tcp);
    write_u16(tcp, field, if sum == 0 && protocol == UDP { 0xffff } else { sum });
    assert_checksums(&bytes);
    bytes
}

/// Returns network and transport header, including TCP options.
fn header_of(packet: &[u8]) -> &[u8] {
    let (transport, protocol) = if packet[0] >> 4 == 4 { (20, packet[9]) } else { (40, packet[6]) };
    let own = if protocol == TCP { usize::from(packet[transport + 12] >> 4) * 4 } else { 8 };
    &packet[..transport + own]
}

/// Returns the encoding of `packet` with `with` as the context.
fn compressed(with: &[u8], packet: &[u8]) -> Option<Vec<u8>> {
    let header = header_of(packet);
    let coded = HeaderContext::of(with)?.compress(header, packet.len())?;
    let mut wire = vec![0; coded.len()];
    coded.write(header, &mut wire);
    wire.extend_from_slice(&packet[header.len()..]);
    Some(wire)
}

/// Makes a segment of a download, `n` segments after its start.
fn segment(n: u32) -> Vec<u8> {
    let times = Some([5_000 + n, 70_000 + n]);
    let fields = Fields { id: 77 + n as u16, sequence: 1_000 + n * 1_388, ack: 500, flags: 0x10, window: 502, times };
    build(Version::V4, TCP, fields, 1_388)
}

fn any_fields() -> impl Strategy<Value = Fields> {
    // Differences of every width.
    let grown = prop_oneof![Just(0u32), 0..0x100_0000u32, any::<u32>()];
    let times = prop::option::weighted(0.8, (grown.clone(), grown.clone()).prop_map(|(a, b)| [a, b]));
    let words = (prop_oneof![Just(0u16), any::<u16>()], prop_oneof![Just(0u16), any::<u16>()]);
    (words, (grown.clone(), grown), any::<u8>(), times)
        .prop_map(|((id, window), (sequence, ack), flags, times)| Fields { id, sequence, ack, flags, window, times })
}

proptest! {
    #[test]
    fn a_compressed_header_expands_bit_for_bit(
        (v4, tcp) in any::<(bool, bool)>(), old in any_fields(), new in any_fields(), payload in 0..1_500usize,
    ) {
        let (version, protocol) = (if v4 { Version::V4 } else { Version::V6 }, if tcp { TCP } else { UDP });
        let (with, packet) = (build(version, protocol, old, 9), build(version, protocol, new, payload));
        let wire = compressed(&with, &packet);
        prop_assert_eq!(wire.is_some(), !tcp || old.times.is_some() == new.times.is_some());
        if let Some(wire) = wire {
            let mut out = b"before".to_vec();
            HeaderContext::of(&with).unwrap().expand(&wire, &mut out).unwrap();
            prop_assert_eq!(&out[6..], &packet);
        }
    }

    #[test]
    fn expanding_any_bytes_never_panics(
        (v4, tcp) in any::<(bool, bool)>(), old in any_fields(), body in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let (version, protocol) = (if v4 { Version::V4 } else { Version::V6 }, if tcp { TCP } else { UDP });
        let (with, mut out) = (build(version, protocol, old, 9), Vec::new());
        match HeaderContext::of(&with).unwrap().expand(&body, &mut out) {
            Some(()) => prop_assert_eq!(Ip::parse(&out).unwrap().total, out.len()),
            None => prop_assert!(out.is_empty()),
        }
    }
}

/// Every combination of the differences at which the encoding changes: the widths of a field, its wrap, and a decrease.
#[test]
fn every_combination_of_edge_differences_expands_bit_for_bit() {
    const BASE: u32 = 0xffff_ff00;
    let words = [0u16, 1, 0xffff];
    let grown = [0u32, 1, 0xff, 0x100, 0xffff, 0x1_0000, 0xff_ffff, 0x100_0000, u32::MAX];
    let old = Fields { id: 0xffff, sequence: BASE, ack: BASE, flags: 0x10, window: 0xffff, times: Some([BASE; 2]) };
    let mut compared = 0;
    for (version, protocol) in [(Version::V4, TCP), (Version::V6, TCP), (Version::V4, UDP), (Version::V6, UDP)] {
        let with = build(version, protocol, old, 9);
        let context = HeaderContext::of(&with).unwrap();
        let all = grown.iter().flat_map(|a| grown.iter().flat_map(|b| grown.iter().map(|c| [*a, *b, *c])));
        for [sequence, ack, time] in all.filter(|grown| protocol == TCP || grown[1..] == [0, 0]) {
            for (id, window) in words.iter().flat_map(|id| words.map(|window| (*id, window))) {
                let new = Fields {
                    id: old.id.wrapping_add(id),
                    sequence: BASE.wrapping_add(sequence),
                    ack: BASE.wrapping_add(ack),
                    flags: old.flags ^ (u8::from(window == 1) * 8),
                    window: old.window.wrapping_add(window),
                    times: Some([BASE.wrapping_add(time), BASE.wrapping_add(ack)]),
                };
                let packet = build(version, protocol, new, 3);
                let (wire, mut out) = (compressed(&with, &packet).unwrap(), Vec::new());
                context.expand(&wire, &mut out).unwrap();
                assert_eq!(out, packet, "{new:?}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, (2 * grown.len().pow(3) + 2 * grown.len()) * words.len().pow(2));
}

/// Every body of up to two bytes, and every cut of a valid one, gives a whole packet or nothing.
#[test]
fn every_short_or_cut_body_gives_a_whole_packet_or_nothing() {
    let whole = |context: &HeaderContext, body: &[u8]| {
        let mut out = Vec::new();
        match context.expand(body, &mut out) {
            Some(()) => assert_eq!(Ip::parse(&out).unwrap().total, out.len(), "{body:x?}"),
            None => assert!(out.is_empty(), "{body:x?}"),
        }
    };
    for with in [segment(0), build(Version::V6, UDP, Fields::default(), 9)] {
        let context = HeaderContext::of(&with).unwrap();
        whole(&context, &[]);
        for code in 0..=u16::MAX {
            whole(&context, &code.to_be_bytes()[1..]);
            whole(&context, &code.to_be_bytes());
        }
        let body = compressed(&with, &with).unwrap();
        (0..body.len()).for_each(|len| whole(&context, &body[..len]));
    }
}

#[test]
fn a_header_of_52_bytes_is_compressed_to_16() {
    let wire = compressed(&segment(0), &segment(9)).unwrap();
    // Control, flags, sequence 4, id 2, timestamp 3, echo 3, checksum 2.
    assert_eq!(wire.len() - 1_388, 2 + 4 + 2 + 3 + 3 + 2);
    assert_eq!(wire[..8], [0b1001_1010, 0x10, 0, 0, 0x30, 0xcc, 0, 9]);
    assert_eq!(compressed(&segment(0), &segment(0)).unwrap().len(), 1_388 + 4, "an equal header has no other field");
    let call = |n| build(Version::V6, UDP, Fields { id: n, ..Fields::default() }, 172);
    assert_eq!(compressed(&call(0), &call(1)).unwrap().len(), 2 + 172, "48 bytes are compressed to 2");
}

#[test]
fn a_header_that_differs_in_a_constant_field_is_not_compressed() {
    let with = segment(0);
    for at in [1, 6, 8, 12, 19, 20, 23, 38, 39] {
        let mut other = segment(1);
        other[at] ^= 0x10;
        write_u16(&mut other, 10, 0);
        let sum = checksum::checksum(0, &other[..20]);
        write_u16(&mut other, 10, sum);
        assert_eq!(compressed(&with, &other), None, "byte {at}");
    }
    let with = build(Version::V6, UDP, Fields::default(), 9);
    for at in [1, 3, 6, 7, 8, 39, 40, 43] {
        let mut other = with.clone();
        other[at] ^= 1;
        assert_eq!(compressed(&with, &other), None, "byte {at} of IPv6");
    }
    let with = segment(0);
    let wrong = |at: usize| {
        let mut other = segment(1);
        other[at] ^= 1;
        compressed(&with, &other)
    };
    assert_eq!([wrong(3), wrong(11)], [None, None], "a wrong length or IPv4 checksum would not be restored");
    assert!(wrong(36).is_some(), "the transport checksum is sent unchanged, valid or not");
}

#[test]
fn options_fragments_and_other_protocols_give_no_context() {
    let alter = |changes: &[(usize, u8)]| {
        let mut bytes = segment(0);
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        HeaderContext::of(&bytes).is_some()
    };
    assert!(alter(&[]));
    assert!(!alter(&[(6, 0x20)]) && !alter(&[(7, 1)]), "fragments");
    assert!(!alter(&[(0, 0x46)]) && !alter(&[(9, 1)]));
    assert!(!alter(&[(32, 0xb0)]) && !alter(&[(40, 5)]), "selective acknowledgements");
    assert!(!alter(&[(0, 0x60)]));
    for (version, protocol) in [(Version::V4, TCP), (Version::V6, TCP), (Version::V4, UDP), (Version::V6, UDP)] {
        let packet = build(version, protocol, Fields::default(), 9);
        let header = header_of(&packet).len();
        assert!(HeaderContext::of(&packet[..header]).is_some());
        assert!((0..header).all(|len| HeaderContext::of(&packet[..len]).is_none()));
    }
}

/// A sender and a receiver.
#[derive(Default)]
struct Ends {
    compressor: Compressor,
    decompressor: Decompressor,
    /// The number of the next packet.
    next: u32,
}

/// A packet in flight.
#[derive(Clone, Debug)]
struct Sent {
    sequence: u32,
    choice: HeaderForm,
    packet: Vec<u8>,
}

impl Sent {
    fn is_compressed(&self) -> bool {
        matches!(self.choice, HeaderForm::Compressed(..))
    }
}

const BUCKET: u16 = 7;

impl Ends {
    fn send(&mut self, now: Time, packet: &[u8]) -> Sent {
        self.next += 1;
        self.send_again(now, self.next - 1, packet)
    }

    fn send_again(&mut self, now: Time, sequence: u32, packet: &[u8]) -> Sent {
        let choice = self.compressor.choose(now, BUCKET, sequence, header_of(packet), packet.len());
        Sent { sequence, choice, packet: packet.to_vec() }
    }

    /// Sends packets until one offers a context.
    fn offer(&mut self, now: Time, packet: &[u8]) -> Option<Sent> {
        (0..9).map(|_| self.send(now, packet)).find(|sent| sent.choice == HeaderForm::Offer)
    }

    /// Sends an offer, and confirms it.
    fn agree(&mut self, now: Time, packet: &[u8]) -> Sent {
        let sent = self.offer(now, packet).expect("an offer");
        assert!(self.decompressor.on_offer(BUCKET, sent.sequence, packet));
        self.compressor.on_known(now, BUCKET, sent.sequence);
        sent
    }

    fn receive(&mut self, sent: &Sent) -> Result<Vec<u8>, Dropped> {
        let HeaderForm::Compressed(reference, coded) = sent.choice else { panic!("{sent:?} is not compressed") };
        let (header, mut out) = (header_of(&sent.packet), Vec::new());
        let mut wire = vec![0; coded.len()];
        coded.write(header, &mut wire);
        wire.extend_from_slice(&sent.packet[header.len()..]);
        self.decompressor.expand(BUCKET, sent.sequence, reference, &wire, &mut out).map(|()| out)
    }
}

fn at(ms: u64) -> Time {
    Time::after(Duration::from_millis(ms))
}

/// Makes a segment of another flow.
fn other(n: u32) -> Vec<u8> {
    let mut bytes = segment(n);
    bytes[21] ^= 1;
    bytes
}

#[test]
fn nothing_is_compressed_before_the_receiver_confirms_the_context() {
    let mut ends = Ends::default();
    let offer = ends.offer(at(0), &segment(0)).expect("an offer");
    assert_eq!(offer.sequence, 3, "not before the fourth packet");
    assert_eq!(ends.send(at(1_999), &segment(1)).choice, HeaderForm::Full);
    ends.compressor.on_known(at(1_999), BUCKET, 2);
    assert_eq!(ends.send(at(1_999), &segment(1)).choice, HeaderForm::Full, "no offer");
    assert!(ends.offer(at(1_999), &segment(1)).is_none(), "the answer may still come");
    let again = ends.offer(at(2_000), &segment(1)).expect("the answer was lost");
    ends.decompressor.on_offer(BUCKET, again.sequence, &segment(1));
    ends.compressor.on_known(at(2_001), BUCKET, again.sequence);
    let sent = ends.send(at(2_001), &segment(2));
    assert_eq!(ends.receive(&sent), Ok(segment(2)));
}

#[test]
fn a_lost_context_is_offered_again() {
    let mut ends = Ends::default();
    let reference = ends.agree(at(0), &segment(0)).sequence as Reference;
    ends.decompressor.clear();
    let sent = ends.send(at(1), &segment(1));
    assert_eq!(ends.receive(&sent), Err(Dropped::UnknownContext));
    ends.compressor.on_unknown(BUCKET, reference.wrapping_add(1));
    assert!(ends.send(at(1), &segment(1)).is_compressed(), "the report was about another context");
    ends.compressor.on_unknown(BUCKET, reference);
    ends.agree(at(2), &segment(2));
    let sent = ends.send(at(2), &segment(3));
    assert_eq!(ends.receive(&sent), Ok(segment(3)));
}

#[test]
fn a_bucket_that_does_not_exist_has_no_contexts() {
    let mut ends = Ends::default();
    assert!(!ends.decompressor.on_offer(u16::MAX, 3, &segment(0)));
    assert_eq!(ends.decompressor.expand(u16::MAX, 4, 3, &[], &mut Vec::new()), Err(Dropped::UnknownContext));
    ends.compressor.on_known(at(0), u16::MAX, 3);
    ends.compressor.on_unknown(u16::MAX, 3);
}

#[test]
fn an_idle_flow_is_replaced_by_another() {
    let mut ends = Ends::default();
    ends.agree(at(0), &segment(0));
    assert!(ends.offer(at(999), &other(0)).is_none());
    let late = ends.send(at(999), &segment(1));
    ends.agree(at(1_999), &other(0));
    let sent = ends.send(at(1_999), &other(1));
    assert_eq!(ends.receive(&sent), Ok(other(1)));
    assert_eq!(ends.receive(&late), Ok(segment(1)), "a packet in flight");
    assert_eq!(ends.send(at(1_999), &segment(2)).choice, HeaderForm::Full);
}

#[test]
fn a_context_that_few_packets_use_is_replaced_by_one_that_most_use() {
    let mut ends = Ends::default();
    ends.agree(at(0), &segment(0));
    for n in 0..3 * 63 {
        assert_eq!(ends.send(at(n), &other(0)).choice, HeaderForm::Full, "packet {n}");
        assert!(n % 63 != 62 || ends.send(at(n), &segment(1)).is_compressed());
    }
    let offers = (0..65).filter(|_| ends.send(at(200), &other(0)).choice == HeaderForm::Offer).count();
    assert_eq!(offers, 1);
}

#[test]
fn a_context_that_the_receiver_may_have_dropped_is_not_used() {
    let mut ends = Ends::default();
    ends.agree(at(0), &segment(0));
    assert!(ends.send(at(9_999), &segment(1)).is_compressed());
    assert!(!ends.send(at(19_999), &segment(2)).is_compressed());
}

#[test]
fn a_packet_older_than_a_context_is_not_compressed_with_it() {
    let mut ends = Ends::default();
    let offer = ends.agree(at(0), &segment(1));
    let again = ends.send_again(at(1), offer.sequence - 1, &segment(0));
    assert_eq!(again.choice, HeaderForm::Full, "a retransmission is sent uncompressed");
    let late = Sent { sequence: offer.sequence - 1, ..ends.send(at(1), &segment(2)) };
    assert_eq!(
        ends.receive(&late),
        Err(Dropped::UnknownContext),
        "compressed against an older context with this reference"
    );
    let older = offer.sequence.wrapping_sub(256);
    assert!(!ends.decompressor.on_offer(BUCKET, older, &other(0)), "a late offer with the same reference");
    let sent = ends.send(at(2), &segment(3));
    assert_eq!(ends.receive(&sent), Ok(segment(3)));
    // The context of the fourth packet would have the same reference.
    ends.next = offer.sequence + 256 - 3;
    let next = ends.offer(at(1_500), &other(0)).expect("the flow is idle");
    assert_eq!(next.sequence, offer.sequence + 257);
}

#[test]
fn a_repeated_offer_is_confirmed_again_and_expands_no_packet_of_its_own_number() {
    let mut ends = Ends::default();
    let offer = ends.agree(at(0), &segment(0));
    assert!(ends.decompressor.on_offer(BUCKET, offer.sequence, &offer.packet), "the first answer may be lost");
    assert_eq!(ends.send_again(at(1), offer.sequence, &segment(0)).choice, HeaderForm::Full);
    let own = Sent { sequence: offer.sequence, ..ends.send(at(1), &segment(1)) };
    assert_eq!(ends.receive(&own), Err(Dropped::UnknownContext));
    ends.compressor.clear();
    assert_eq!(ends.send(at(1), &segment(2)).choice, HeaderForm::Full);
}
