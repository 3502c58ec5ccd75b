use std::time::Duration;

use super::*;

const FLOW_SEQ: FlowSeq = FlowSeq { bucket: 7, sequence: 9 };

fn decoder(max_packet: usize) -> Decoder {
    Decoder::new(Time::START, PathSeq(0), max_packet)
}

/// Returns the symbol of a packet with these bytes alone.
fn source(packet: &[u8]) -> Vec<u8> {
    [&encode_flow_seq(FLOW_SEQ)[..], packet].concat()
}

/// Returns the repair symbol of these sources by number.
fn repair(seed: u8, sources: &[(u64, &[u8])]) -> Vec<u8> {
    let mut symbol = vec![0; sources.iter().map(|(_, packet)| FLOW_SEQ_LEN + packet.len()).max().unwrap()];
    for (number, packet) in sources {
        field::add_multiple(&mut symbol, coefficient(seed, *number), &source(packet));
    }
    symbol
}

#[test]
fn it_is_idle_five_seconds_after_the_last_symbol() {
    let (mut decoder, moment) = (decoder(100), Duration::from_nanos(1));
    assert!(!decoder.is_idle(Time::START + IDLE_AFTER));
    assert!(decoder.is_idle(Time::START + IDLE_AFTER + moment));
    let used = Time::START + Duration::from_secs(3);
    decoder.on_repair(used, PathSeq(1), 1, 0, &[1; 30]);
    assert!(!decoder.is_idle(used + IDLE_AFTER) && decoder.is_idle(used + IDLE_AFTER + moment));
}

#[test]
fn the_longest_packet_is_stored_and_a_longer_one_is_not() {
    for (len, is_stored) in [(100, true), (101, false)] {
        let mut decoder = decoder(100);
        decoder.on_datagram(PathSeq(0), Some((FLOW_SEQ, &vec![1; len])));
        assert_eq!(decoder.is_known(0), is_stored, "{len}");
    }
}

#[test]
fn the_first_datagram_of_a_number_counts() {
    let mut decoder = decoder(100);
    decoder.on_datagram(PathSeq(0), Some((FLOW_SEQ, &[1; 30])));
    decoder.on_datagram(PathSeq(0), Some((FLOW_SEQ, &[2; 30])));
    assert_eq!(decoder.source(0), Some(&source(&[1; 30])[..]));
}

#[test]
fn a_symbol_without_a_packet_or_longer_than_any_is_ignored() {
    let packet = [1; 30];
    for invalid in [FLOW_SEQ_LEN, FLOW_SEQ_LEN + 31] {
        let mut decoder = decoder(packet.len());
        assert_eq!(decoder.on_repair(Time::START, PathSeq(1), 1, 0, &vec![1; invalid]), []);
        decoder.on_datagram(PathSeq(1), None);
        let symbol = repair(0, &[(0, &packet)]);
        let recovered = Recovered { flow_seq: FLOW_SEQ, packet: packet.to_vec() };
        assert_eq!(decoder.on_repair(Time::START, PathSeq(2), 2, 0, &symbol), [recovered], "{invalid} bytes");
    }
}

#[test]
fn a_symbol_shorter_than_a_source_of_its_window_is_ignored() {
    let mut decoder = decoder(100);
    decoder.on_datagram(PathSeq(0), Some((FLOW_SEQ, &[1; 30])));
    assert_eq!(decoder.on_repair(Time::START, PathSeq(2), 2, 0, &[1; 20]), []);
    assert!(!decoder.is_known(1) && decoder.equations.is_empty());
}

#[test]
fn symbols_wait_for_late_datagrams_until_few_are_missing() {
    let (count, missing) = (40, MAX_MISSING as u64 + 4);
    let packets: Vec<Vec<u8>> = (0..count).map(|number| vec![number as u8 + 1; 30]).collect();
    let sources: Vec<(u64, &[u8])> = (0..).zip(packets.iter().map(Vec::as_slice)).collect();
    let mut decoder = decoder(100);
    let arrive = |decoder: &mut Decoder, number: u64| {
        decoder.on_datagram(PathSeq(number), Some((FLOW_SEQ, &packets[number as usize]))).len()
    };
    (missing..count).for_each(|number| assert_eq!(arrive(&mut decoder, number), 0));
    for (own, seed) in (count..).zip(0..MAX_MISSING as u8 + 2) {
        let symbol = repair(seed, &sources);
        assert_eq!(decoder.on_repair(Time::START, PathSeq(own), own as u16, seed, &symbol), []);
        decoder.on_datagram(PathSeq(own), None);
    }
    assert_eq!((0..3).map(|number| arrive(&mut decoder, number)).sum::<usize>(), 0);
    assert!(decoder.equations.is_empty());
    assert_eq!(arrive(&mut decoder, 3), MAX_MISSING);
}

#[test]
fn a_late_symbol_recovers_a_packet_of_the_last_thousand() {
    let (packet, lost) = ([1; 30], 995);
    let mut decoder = decoder(100);
    (0..1_000).filter(|number| *number != lost).for_each(|number| {
        decoder.on_datagram(PathSeq(number), None);
    });
    // 990 is 1,023 before 2,013, and the oldest that is stored.
    decoder.on_datagram(PathSeq(2_013), None);
    let symbol = repair(3, &[(lost, &packet)]);
    let recovered = Recovered { flow_seq: FLOW_SEQ, packet: packet.to_vec() };
    assert_eq!(decoder.on_repair(Time::START, PathSeq(1_000), 10, 3, &symbol), [recovered]);
    decoder.on_datagram(PathSeq(2_014), None);
    assert_eq!((decoder.base, decoder.ring.len()), (991, CAPACITY as usize));
    assert_eq!(decoder.on_datagram(PathSeq(990), None), [], "it is too old");
}

/// Returns the bytes that it has allocated.
fn allocated(decoder: &Decoder) -> usize {
    let symbols = decoder.ring.iter().flatten().chain(&decoder.spare).map(Vec::capacity);
    let waiting = decoder.waiting.iter().map(|waiting| waiting.symbol.capacity());
    let equations = decoder
        .equations
        .iter()
        .map(|equation| equation.symbol.capacity() + equation.missing.capacity() * size_of::<(u64, u8)>());
    symbols.chain(waiting).chain(equations).sum::<usize>()
        + decoder.ring.capacity() * size_of::<Option<Vec<u8>>>()
        + decoder.waiting.capacity() * size_of::<PendingSymbol>()
}

/// A peer sends the longest packets, loses many, and sends more symbols than are stored.
#[test]
fn memory_stays_within_its_bound() {
    let mut decoder = decoder(1_500);
    for number in 0..3 * CAPACITY {
        match number % 32 {
            0..8 => {}
            8..24 => {
                decoder.on_datagram(PathSeq(number), Some((FLOW_SEQ, &[number as u8 | 1; 1_500])));
            }
            _ => {
                let span = number.min(if number % 64 < 32 { 20 } else { MAX_SPAN }) as u16;
                let symbol = vec![number as u8; FLOW_SEQ_LEN + 1_500];
                decoder.on_repair(Time::START, PathSeq(number), span, number as u8 % 64, &symbol);
                decoder.on_datagram(PathSeq(number), None);
            }
        }
        assert!(allocated(&decoder) <= Decoder::max_bytes(1_500), "{number}: {}", allocated(&decoder));
        assert!(decoder.ring.len() <= CAPACITY as usize && decoder.spare.len() <= MAX_SPARE);
    }
    assert_eq!(decoder.spare.len(), MAX_SPARE - 1, "the last one is in use");
    // 1,024 + 16 + 2 * (16 + 32) symbols of 1,504 bytes, 2 * 1,024 places of 24, 2 * 32 waiting of 56, and 2 * 16
    // equations of up to 16 * 16 missing of 16.
    assert!(cfg!(not(target_pointer_width = "64")) || Decoder::max_bytes(1_500) == 1_892_352);
}
