//! Header compression between two endpoints: datagrams on the wire and delivered packets under loss.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::drops::Dropped;
use mpt_sim::host::numbered;
use support::native::{Datagram, Pair, endpoint, keys, peer};

/// Bytes of a numbered packet.
const LEN: usize = 1_000;
/// GRE, frame header and tag around an uncompressed packet.
const FULL: usize = 12 + 7 + LEN + 16;
/// The frame header is a byte longer, and of the 28 header bytes identification and checksum remain.
const COMPRESSED: usize = FULL + 1 - 28 + 4;

/// Returns the datagram with the next packet of the flow without delivering it.
fn send(pair: &mut Pair, number: u64) -> Datagram {
    pair.advance(Duration::from_millis(10));
    pair.packet(0, number, LEN)
}

/// Sends and delivers packets until they are compressed. Returns the next number.
fn warm_up(pair: &mut Pair, first: u64) -> u64 {
    for number in first.. {
        let datagram = send(pair, number);
        pair.deliver(1, &datagram);
        if datagram.bytes.len() == COMPRESSED {
            return number + 1;
        }
        assert_eq!(datagram.bytes.len(), FULL);
        assert!(number < first + 10, "a flow that goes on is compressed");
    }
    unreachable!("numbers do not end")
}

fn unknown_contexts(pair: &Pair) -> u64 {
    pair.ends[1].status().peers[0].drops.of(Dropped::UnknownContext)
}

fn expected(numbers: impl Iterator<Item = u64>) -> Vec<Vec<u8>> {
    numbers.map(|number| numbered(number, LEN)).collect()
}

#[test]
fn an_established_flow_is_compressed_and_restored_exactly() {
    let mut pair = Pair::established();
    let next = warm_up(&mut pair, 0);
    assert_eq!(next, 5, "four packets are a question and its answer");
    assert_eq!(pair.delivered(1), expected(0..next));
}

#[test]
fn every_compressed_packet_is_decoded_independently() {
    let mut pair = Pair::established();
    let next = warm_up(&mut pair, 0);
    pair.delivered(1);
    let datagrams: Vec<_> = (next..next + 6).map(|number| send(&mut pair, number)).collect();
    assert!(datagrams.iter().all(|datagram| datagram.bytes.len() == COMPRESSED));
    // The last datagram arrives first, the others late or never.
    [5, 0, 3].into_iter().for_each(|index: usize| pair.deliver(1, &datagrams[index]));
    pair.advance(Duration::from_secs(5));
    let mut delivered = pair.delivered(1);
    delivered.sort();
    assert_eq!(delivered, expected(next..next + 6), "what was lost was sent again");
    assert_eq!(unknown_contexts(&pair), 0);
}

#[test]
fn after_a_restart_packets_are_sent_uncompressed_until_the_capability_is_known() {
    let mut pair = Pair::established();
    let next = warm_up(&mut pair, 0);
    pair.delivered(1);
    pair.ends[1] = endpoint(keys(2), 3, vec![peer("near".into(), &keys(1), vec![], &["0.0.0.0/0"])]);
    // The initiator detects that there is no answer and starts a handshake.
    let mut number = next;
    while pair.ends[1].status().peers[0].paths.is_empty() {
        pair.queue_packet(0, number, LEN);
        pair.advance(Duration::from_secs(1));
        number += 1;
        assert!(number < next + 60, "it comes back");
    }
    pair.delivered(1);
    let first = number;
    let next = warm_up(&mut pair, first);
    assert!(pair.delivered(1).ends_with(&expected(first..next)));
    assert_eq!(unknown_contexts(&pair), 0);
}

#[test]
fn a_flow_idle_for_longer_than_the_context_lifetime_starts_again() {
    let mut pair = Pair::established();
    let next = warm_up(&mut pair, 0);
    pair.advance(Duration::from_secs(40));
    let datagram = send(&mut pair, next);
    assert_eq!(datagram.bytes.len(), FULL);
    pair.deliver(1, &datagram);
    warm_up(&mut pair, next + 1);
    assert_eq!(unknown_contexts(&pair), 0);
}
