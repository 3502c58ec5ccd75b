use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::id::PathSeq;
use crate::packet::{Offload, SuperPacket};
use crate::queue::InnerPacket;
use crate::time::Time;

/// Makes an IPv4 packet of `len` bytes that differs from every other.
fn packet(number: u64, len: usize) -> InnerPacket {
    let mut bytes = vec![0; len];
    bytes[..4].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8]);
    bytes[12..20].copy_from_slice(&number.to_be_bytes());
    (20..len).for_each(|i| bytes[i] = (number as usize * 31 + i * 7) as u8);
    InnerPacket::new(Arc::new(SuperPacket::new(bytes, len, Offload::default()).unwrap()), 0, false)
}

fn bytes(packet: &InnerPacket) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.write(&mut bytes);
    bytes
}

/// The content of a datagram.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Data { len: usize },
    Control,
    Repair { sources: usize },
}

/// Sends datagrams of these kinds, drops those marked, and returns the numbers of the packets that arrived or were
/// recovered, and the number of losses.
fn transfer(kinds: &[(Kind, bool)]) -> (Vec<u32>, usize) {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new(Time::START, PathSeq(0), 1_500));
    let (mut arrived, mut lost) = (Vec::new(), 0);
    for ((kind, is_lost), number) in kinds.iter().zip(0..) {
        let own = PathSeq(number);
        let mut recovered = Vec::new();
        match *kind {
            Kind::Data { len } => {
                let (flow_seq, packet) = (FlowSeq { bucket: 1_000, sequence: number as u32 }, packet(number, len));
                encoder.on_source(own, flow_seq, packet.clone());
                lost += usize::from(*is_lost);
                if !is_lost {
                    arrived.push(number as u32);
                    recovered = decoder.on_datagram(own, Some((flow_seq, &bytes(&packet))));
                }
            }
            Kind::Control if !is_lost => recovered = decoder.on_datagram(own, None),
            Kind::Control => {}
            Kind::Repair { sources } => {
                let symbol = encoder.symbol(own, sources).filter(|_| !is_lost);
                if let Some(Symbol { span, seed, bytes }) = symbol.map(Symbol::from) {
                    recovered = decoder.on_repair(Time::START, own, span, seed, &bytes);
                    recovered.extend(decoder.on_datagram(own, None));
                }
            }
        }
        for Recovered { flow_seq, packet: got } in recovered {
            let Kind::Data { len } = kinds[flow_seq.sequence as usize].0 else { panic!("{flow_seq:?} is no data") };
            let sent = bytes(&packet(u64::from(flow_seq.sequence), len));
            assert_eq!((flow_seq.bucket, &got[..len]), (1_000, &sent[..]));
            assert!(got[len..].iter().all(|byte| *byte == 0));
            arrived.push(flow_seq.sequence);
        }
    }
    (arrived, lost)
}

/// A symbol that does not borrow its encoder.
struct Symbol {
    span: u16,
    seed: u8,
    bytes: Vec<u8>,
}

impl From<encoder::RepairSymbol<'_>> for Symbol {
    fn from(symbol: encoder::RepairSymbol<'_>) -> Self {
        Self { span: symbol.span, seed: symbol.seed, bytes: symbol.bytes.to_vec() }
    }
}

fn data(count: usize, lost: &[usize]) -> Vec<(Kind, bool)> {
    (0..count).map(|n| (Kind::Data { len: 100 + n }, lost.contains(&n))).collect()
}

#[test]
fn one_symbol_recovers_one_packet_of_its_window() {
    for lost in 0..10 {
        let mut kinds = data(10, &[lost]);
        kinds.push((Kind::Repair { sources: 10 }, false));
        assert_eq!(transfer(&kinds).0.len(), 10, "{lost}");
    }
}

#[test]
fn a_short_packet_recovered_among_long_ones_is_usable_in_a_window_of_short_ones() {
    let lengths = [1_400, 1_400, 100, 100, 100];
    let mut kinds: Vec<_> = lengths.map(|len| (Kind::Data { len }, false)).to_vec();
    kinds[2].1 = true;
    kinds.insert(3, (Kind::Repair { sources: 3 }, false));
    kinds[5].1 = true;
    kinds.push((Kind::Repair { sources: 3 }, false));
    assert_eq!(transfer(&kinds).0.len(), 5);
}

#[test]
fn n_symbols_recover_n_packets() {
    let mut kinds = data(20, &[3, 4, 5, 17]);
    kinds.extend([(Kind::Repair { sources: 20 }, false); 4]);
    assert_eq!(transfer(&kinds).0.len(), 20);
}

#[test]
fn twice_the_loss_in_repair_symbols_recovers_nearly_all_of_it() {
    for (percent, interval) in [(1, 33), (2, 20), (5, 9), (10, 4)] {
        let mut bits = 1u64;
        let mut is_lost = || {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (bits >> 33) % 100 < percent
        };
        let mut kinds = Vec::new();
        for n in 0..2_000 {
            kinds.push((Kind::Data { len: 40 }, is_lost()));
            if n % interval == interval - 1 {
                kinds.push((Kind::Repair { sources: (8 * interval).min(128) }, is_lost()));
            }
        }
        let (arrived, lost) = transfer(&kinds);
        let missing = kinds.iter().filter(|(kind, _)| matches!(kind, Kind::Data { .. })).count() - arrived.len();
        println!("{percent} %: {missing} of {lost}");
        assert!(missing * 10 <= lost, "{percent} %: {missing} of {lost} not recovered");
    }
}

#[test]
fn datagrams_without_data_do_no_harm_even_when_they_are_lost() {
    let mut kinds = data(6, &[2]);
    kinds.insert(4, (Kind::Control, true));
    kinds.extend([(Kind::Repair { sources: 7 }, false); 2]);
    assert_eq!(transfer(&kinds).0.len(), 6);
}

#[test]
fn a_late_datagram_leaves_room_for_another_solution() {
    let mut encoder = Encoder::default();
    let sent: Vec<_> = (0..4).map(|n| (FlowSeq { bucket: 7, sequence: n }, packet(u64::from(n), 60))).collect();
    sent.iter().zip(0..).for_each(|((flow_seq, packet), n)| encoder.on_source(PathSeq(n), *flow_seq, packet.clone()));
    let symbol = Symbol::from(encoder.symbol(PathSeq(4), 4).unwrap());
    let mut decoder = Decoder::new(Time::START, PathSeq(0), 1_500);
    for n in [0, 3] {
        decoder.on_datagram(PathSeq(n), Some((sent[n as usize].0, &bytes(&sent[n as usize].1))));
    }
    assert_eq!(decoder.on_repair(Time::START, PathSeq(4), symbol.span, symbol.seed, &symbol.bytes), []);
    let recovered = decoder.on_datagram(PathSeq(2), Some((sent[2].0, &bytes(&sent[2].1))));
    assert_eq!(recovered, [Recovered { flow_seq: sent[1].0, packet: bytes(&sent[1].1) }]);
    assert_eq!(decoder.on_datagram(PathSeq(1), Some((sent[1].0, &bytes(&sent[1].1)))), [], "known already");
}

#[test]
fn the_numbers_of_a_path_need_not_begin_at_zero() {
    let mut encoder = Encoder::default();
    let sent: Vec<_> = (0..6).map(|n| (FlowSeq { bucket: 7, sequence: n }, packet(u64::from(n), 60))).collect();
    let mut decoder = Decoder::new(Time::START, PathSeq(5_000), 1_500);
    for ((flow_seq, packet), number) in sent.iter().zip(5_000..) {
        encoder.on_source(PathSeq(number), *flow_seq, packet.clone());
        if ![2, 5].contains(&flow_seq.sequence) {
            decoder.on_datagram(PathSeq(number), Some((*flow_seq, &bytes(packet))));
        }
    }
    let mut recovered = Vec::new();
    for own in [5_006, 5_007] {
        let symbol = Symbol::from(encoder.symbol(PathSeq(own), 6).unwrap());
        assert_eq!(u64::from(symbol.span), own - 5_000);
        recovered.extend(decoder.on_repair(Time::START, PathSeq(own), symbol.span, symbol.seed, &symbol.bytes));
        decoder.on_datagram(PathSeq(own), None);
    }
    recovered.sort_by_key(|packet| packet.flow_seq.sequence);
    let of = |n: usize| Recovered { flow_seq: sent[n].0, packet: bytes(&sent[n].1) };
    assert_eq!(recovered, [of(2), of(5)]);
}

/// A peer computes the same coefficients: these are first outputs of SplitMix64 from the states 0 and 1,234,567.
#[test]
fn coefficients_are_outputs_of_splitmix64() {
    let expected = |output: u64| 1 + (output % 255) as u8;
    assert_eq!(coefficient(0, 0), expected(0xe220_a839_7b1d_cdaf));
    assert_eq!(coefficient((1_234_567 % 64) as u8, 1_234_567 / 64), expected(6_457_827_717_110_365_317));
    assert!((0..2_000).all(|number| coefficient(0, number) != 0));
}

#[test]
fn bucket_and_low_bits_of_the_number_are_in_four_bytes() {
    let flow_seq = FlowSeq { bucket: 1_023, sequence: 0x0abc_def1 };
    assert_eq!(encode_flow_seq(flow_seq), [0x7f, 0xec, 0xde, 0xf1]);
    assert_eq!(decode_flow_seq([0x7f, 0xec, 0xde, 0xf1]), FlowSeq { bucket: 1_023, sequence: 0xc_def1 });
}

#[test]
fn a_number_is_found_by_its_low_bits() {
    for near in [0, 5, 1 << 19, 1 << 20, 0x1234_5678, u32::MAX - 3, u32::MAX] {
        for ahead in [-500_000i32, -1, 0, 1, 500_000] {
            let number = near.wrapping_add_signed(ahead);
            assert_eq!(widen(near, number & SEQUENCE_MASK), number, "{near} {ahead}");
        }
    }
}

fn kind() -> impl Strategy<Value = (Kind, bool)> {
    let kind = prop_oneof![
        10 => (20usize..200).prop_map(|len| Kind::Data { len }),
        1 => Just(Kind::Control),
        3 => (1usize..40).prop_map(|sources| Kind::Repair { sources }),
    ];
    (kind, prop::bool::weighted(0.15))
}

proptest! {
    #[test]
    fn only_packets_that_were_sent_and_lost_are_recovered(kinds in prop::collection::vec(kind(), 1..300)) {
        let (mut arrived, _) = transfer(&kinds);
        let count = arrived.len();
        arrived.sort_unstable();
        arrived.dedup();
        prop_assert_eq!(arrived.len(), count, "nothing is delivered twice");
    }

    #[test]
    fn a_window_with_as_many_symbols_as_losses_is_almost_always_recovered(lost in prop::collection::btree_set(0usize..30, 0..6)) {
        let lost: Vec<usize> = lost.into_iter().collect();
        let mut kinds = data(30, &lost);
        kinds.extend(vec![(Kind::Repair { sources: 30 }, false); lost.len() + 2]);
        prop_assert_eq!(transfer(&kinds).0.len(), 30);
    }

    #[test]
    fn invalid_symbols_of_a_peer_do_no_harm(
        steps in prop::collection::vec((0u64..2_000, any::<Option<(u16, u8)>>(), prop::collection::vec(any::<u8>(), 0..60)), 0..200),
        jump in any::<u64>(),
    ) {
        let mut decoder = Decoder::new(Time::START, PathSeq(3), 1_500);
        for (number, repair, bytes) in steps {
            match repair {
                Some((span, seed)) => {
                    decoder.on_repair(Time::START, PathSeq(number), span % 1_024, seed % 64, &bytes);
                }
                None => {
                    decoder.on_datagram(PathSeq(number), Some((FlowSeq { bucket: 1, sequence: 2 }, &bytes)));
                }
            }
        }
        decoder.on_datagram(PathSeq(jump), None);
        decoder.on_repair(Time::START, PathSeq(jump), 1_023, 0, &[1; 100]);
    }
}

/// Datagrams with acknowledgements use numbers too, so the last packets may be out of the span of any symbol.
#[test]
fn packets_that_no_symbol_can_cover_do_not_keep_the_timer_running() {
    let mut encoder = Encoder::default();
    encoder.on_source(PathSeq(1), FlowSeq { bucket: 0, sequence: 0 }, packet(1, 100));
    assert_eq!(encoder.uncovered(), 1);
    assert!(encoder.symbol(PathSeq(2 + MAX_SPAN), 8).is_none());
    assert_eq!(encoder.uncovered(), 0);
}

#[test]
fn a_symbol_covers_packets_up_to_the_maximum_span() {
    let mut encoder = Encoder::default();
    encoder.on_source(PathSeq(1), FlowSeq { bucket: 0, sequence: 0 }, packet(1, 100));
    encoder.on_source(PathSeq(3), FlowSeq { bucket: 0, sequence: 1 }, packet(3, 100));
    assert_eq!(encoder.uncovered(), 2);
    assert_eq!(encoder.symbol(PathSeq(1 + MAX_SPAN), 8).map(|symbol| symbol.span), Some(MAX_SPAN as u16));
    assert_eq!(encoder.uncovered(), 0);
    assert_eq!(encoder.symbol(PathSeq(2 + MAX_SPAN), 8).map(|symbol| symbol.span), Some(MAX_SPAN as u16 - 1));
    encoder.on_source(PathSeq(4 + MAX_SPAN), FlowSeq { bucket: 0, sequence: 2 }, packet(4, 100));
    encoder.clear();
    assert!(encoder.uncovered() == 0 && encoder.symbol(PathSeq(5 + MAX_SPAN), 8).is_none());
}
