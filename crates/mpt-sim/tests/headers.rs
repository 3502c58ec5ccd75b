//! Header compression between two endpoints: what goes over the wire, and what comes out whatever is lost.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::drops::Dropped;
use mpt_sim::host::numbered;
use support::native::{Pair, Shot, endpoint, keys, peer};

/// Bytes of a numbered packet.
const LEN: usize = 1_000;
/// GRE, frame and tag around a packet as it is.
const FULL: usize = 12 + 7 + LEN + 16;
/// The frame is a byte longer, and of the 28 bytes of headers identification and checksum are left.
const COMPRESSED: usize = FULL + 1 - 28 + 4;

/// The datagram with the next packet of the flow, which is not delivered.
fn send(pair: &mut Pair, number: u64) -> Shot {
    pair.pass(Duration::from_millis(10));
    pair.packet(0, number, LEN)
}

/// Sends packets that arrive, until they are compressed. Returns the number of the next one.
fn warm_up(pair: &mut Pair, first: u64) -> u64 {
    for number in first.. {
        let shot = send(pair, number);
        pair.give(1, &shot);
        if shot.bytes.len() == COMPRESSED {
            return number + 1;
        }
        assert_eq!(shot.bytes.len(), FULL);
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
fn a_flow_that_goes_on_leaves_its_headers_out_and_comes_out_as_it_was() {
    let mut pair = Pair::established();
    let next = warm_up(&mut pair, 0);
    assert_eq!(next, 5, "four packets are a question and its answer");
    assert_eq!(pair.delivered(1), expected(0..next));
}

#[test]
fn every_compressed_packet_is_read_by_itself() {
    let mut pair = Pair::established();
    let next = warm_up(&mut pair, 0);
    pair.delivered(1);
    let shots: Vec<_> = (next..next + 6).map(|number| send(&mut pair, number)).collect();
    assert!(shots.iter().all(|shot| shot.bytes.len() == COMPRESSED));
    // The last comes first, and the others not at all, or late.
    [5, 0, 3].into_iter().for_each(|index: usize| pair.give(1, &shots[index]));
    pair.pass(Duration::from_secs(5));
    let mut delivered = pair.delivered(1);
    delivered.sort();
    assert_eq!(delivered, expected(next..next + 6), "what was lost was sent again");
    assert_eq!(unknown_contexts(&pair), 0);
}

#[test]
fn what_begins_anew_is_sent_whole_until_it_says_that_it_can_read_more() {
    let mut pair = Pair::established();
    let next = warm_up(&mut pair, 0);
    pair.delivered(1);
    pair.ends[1] = endpoint(keys(2), 3, vec![peer("near".into(), &keys(1), vec![], &["0.0.0.0/0"])]);
    // The caller finds out that nobody answers, and calls.
    let mut number = next;
    while pair.ends[1].status().peers[0].paths.is_empty() {
        pair.offer(0, number, LEN);
        pair.pass(Duration::from_secs(1));
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
fn a_flow_that_rested_for_longer_than_contexts_are_kept_begins_anew() {
    let mut pair = Pair::established();
    let next = warm_up(&mut pair, 0);
    pair.pass(Duration::from_secs(40));
    let shot = send(&mut pair, next);
    assert_eq!(shot.bytes.len(), FULL);
    pair.give(1, &shot);
    warm_up(&mut pair, next + 1);
    assert_eq!(unknown_contexts(&pair), 0);
}
