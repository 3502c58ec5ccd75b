//! Attacks on a live endpoint in native mode only increment counters. Every bit of a captured message is flipped, every
//! datagram is replayed, reordered and mutated; nothing is answered, nothing is accepted, nothing grows.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::drops::Dropped;
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;
use support::heap::Counting;
use support::native::{Datagram, Pair, numbers, total_drops};

#[global_allocator]
static HEAP: Counting = Counting;

/// Returns all messages that differ from `message` in one bit.
fn flipped(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..message.len() * 8).map(|bit| {
        let mut message = message.to_vec();
        message[bit / 8] ^= 1 << (bit % 8);
        message
    })
}

/// Checks that each of `forged` increments one counter of end `at` by one and is not answered; 40 per second are no
/// load.
fn assert_rejected(pair: &mut Pair, at: usize, forged: impl Iterator<Item = Vec<u8>>) {
    for (i, bytes) in forged.enumerate() {
        pair.now += Duration::from_millis(25);
        let before = total_drops(&pair.ends[at]);
        pair.deliver(at, &Datagram { to: at, bytes });
        assert_eq!(total_drops(&pair.ends[at]), before + 1, "message {i}");
        assert_eq!(pair.poll(at).len(), 0, "message {i} was answered");
    }
}

#[test]
fn every_flipped_bit_of_both_handshake_messages_is_counted_and_not_answered() {
    let mut pair = Pair::new();
    let initiation = pair.poll(0).pop().unwrap();
    // MAC2, the last 128 bits, counts under load only: `a_wrong_mac2_counts_as_absent`.
    let bits = initiation.bytes.len() * 8 - 128;
    assert_rejected(&mut pair, 1, flipped(&initiation.bytes).take(bits));
    pair.deliver(1, &initiation);
    let response = pair.poll(1).pop().unwrap();

    let mut second = Pair::new();
    let initiation = second.poll(0).pop().unwrap();
    second.deliver(1, &initiation);
    let good = second.poll(1).pop().unwrap();
    assert_eq!(good.bytes.len(), response.bytes.len());
    for forged in flipped(&good.bytes).take(good.bytes.len() * 8 - 128) {
        let before = total_drops(&second.ends[0]);
        second.deliver(0, &Datagram { to: 0, bytes: forged });
        assert_eq!((total_drops(&second.ends[0]), second.poll(0).len()), (before + 1, 0));
    }
    second.deliver(0, &good);
    assert!(!second.poll(0).is_empty(), "the genuine message is accepted");
}

#[test]
fn every_flipped_bit_of_a_cookie_reply_is_counted_and_not_answered() {
    let mut pair = Pair::new();
    let initiation = pair.poll(0).pop().unwrap();
    let reply = (0..200).find_map(|_| {
        pair.deliver(1, &initiation);
        pair.poll(1).pop().filter(|datagram| datagram.bytes.len() == 64)
    });
    let reply = reply.expect("an end under load answers with cookies");
    for forged in flipped(&reply.bytes) {
        let before = total_drops(&pair.ends[0]);
        pair.deliver(0, &Datagram { to: 0, bytes: forged });
        assert_eq!((total_drops(&pair.ends[0]), pair.poll(0).len()), (before + 1, 0));
    }
}

#[test]
fn every_flipped_bit_of_a_data_packet_is_counted_and_not_answered() {
    let mut pair = Pair::established();
    let good = pair.packet(0, 7, 60);
    pair.discard_pending();
    for forged in flipped(&good.bytes) {
        let before = total_drops(&pair.ends[1]);
        pair.deliver(1, &Datagram { to: 1, bytes: forged });
        assert_eq!((total_drops(&pair.ends[1]), pair.poll(1).len()), (before + 1, 0));
        assert_eq!(pair.delivered(1).len(), 0);
    }
    pair.deliver(1, &good);
    assert_eq!(numbers(&pair.delivered(1)), [7]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Shuffled and repeated datagrams deliver each packet once; the first copy counts.
    #[test]
    fn replays_and_reordering_deliver_each_packet_once(order in prop::collection::vec(0..80usize, 1..200)) {
        let mut pair = Pair::established();
        let datagrams: Vec<_> = (0..80).map(|n| pair.packet(0, n, 60)).collect();
        pair.discard_pending();
        let mut delivered = Vec::new();
        for i in &order {
            pair.deliver(1, &datagrams[*i]);
            delivered.extend(numbers(&pair.delivered(1)));
        }
        // Nothing of the sender arrives any more, so nothing is repaired.
        pair.advance_without_network(1, Duration::from_secs(2));
        delivered.extend(numbers(&pair.delivered(1)));
        let mut expected: Vec<u64> = order.iter().map(|i| *i as u64).collect();
        expected.sort_unstable();
        expected.dedup();
        let repeats = (order.len() - expected.len()) as u64;
        delivered.sort_unstable();
        prop_assert_eq!(delivered, expected);
        prop_assert_eq!(pair.ends[1].status().peers[0].drops.of(Dropped::Duplicate), repeats);
    }
}

#[test]
fn a_datagram_within_the_replay_window_is_accepted_and_an_older_one_is_not() {
    let sequence = |datagram: &Datagram| u32::from_be_bytes(datagram.bytes[8..12].try_into().unwrap());
    let mut pair = Pair::established();
    let oldest = [0, 1].map(|n| pair.packet(0, n, 60));
    let last = sequence(&oldest[0]) + 8_192;
    let mut newest = 0;
    for number in 2.. {
        pair.queue_packet(0, number, 60);
        pair.now += Duration::from_millis(1);
        let now = pair.now;
        pair.ends.iter_mut().for_each(|end| end.handle_deadline(now));
        for datagram in pair.poll(0).into_iter().take_while(|datagram| sequence(datagram) <= last) {
            newest = sequence(&datagram);
            pair.deliver(1, &datagram);
        }
        pair.poll(1).iter().for_each(|datagram| pair.deliver(0, datagram));
        if newest == last {
            break;
        }
    }
    let too_old = |pair: &Pair| pair.ends[1].status().peers[0].drops.of(Dropped::TooOld);
    pair.deliver(1, &oldest[1]);
    assert_eq!(too_old(&pair), 0);
    pair.deliver(1, &oldest[0]);
    assert_eq!(too_old(&pair), 1);
}

/// Returns a mutated message that differs from all good ones.
fn forgery(rng: &mut Pcg64Mcg, good: &[Vec<u8>]) -> Vec<u8> {
    std::iter::repeat_with(|| mutated(rng, good)).find(|bytes| !good.contains(bytes)).unwrap()
}

/// Mutates a random good message in a random way.
fn mutated(rng: &mut Pcg64Mcg, good: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = good[rng.random_range(0..good.len())].clone();
    match rng.random_range(0..6) {
        0 => bytes.truncate(rng.random_range(0..bytes.len())),
        1 => bytes.extend((0..rng.random_range(1..64)).map(|_| rng.random::<u8>())),
        2 => {
            let other = &good[rng.random_range(0..good.len())];
            let cut = rng.random_range(1..bytes.len().min(other.len()));
            bytes.truncate(cut);
            bytes.extend(&other[cut..]);
        }
        3 => bytes = (0..rng.random_range(0..256)).map(|_| rng.random::<u8>()).collect(),
        _ => {
            for _ in 0..rng.random_range(1..8) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
        }
    }
    bytes
}

/// Runs ten million forgeries with `MPT_FORGERIES=10000000`, preferably with `--release`; a hundredth of that
/// otherwise.
#[test]
fn mutated_datagrams_grow_nothing_and_are_not_answered() {
    let forgeries: u64 = std::env::var("MPT_FORGERIES").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let mut pair = Pair::new();
    let initiation = pair.poll(0).pop().unwrap();
    pair.deliver(1, &initiation);
    let response = pair.poll(1).pop().unwrap();
    let mut pair = Pair::established();
    let mut good = vec![initiation.bytes, response.bytes];
    good.extend((0..4).map(|n| pair.packet(0, n, 40 + 300 * n as usize).bytes));
    good.push(pair.packet(1, 0, 400).bytes);
    pair.discard_pending();
    // The captured datagrams are delivered first, so that a mutation outside the authenticated bytes is a replay.
    for bytes in &good[2..6] {
        pair.deliver(1, &Datagram { to: 1, bytes: bytes.clone() });
    }
    assert_eq!(pair.delivered(1).len(), 4);
    pair.advance(Duration::from_secs(1));
    pair.discard_pending();

    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let before = total_drops(&pair.ends[1]);
    let mut heap = None;
    for n in 0..forgeries {
        let bytes = forgery(&mut rng, &good);
        pair.deliver(1, &Datagram { to: 1, bytes });
        assert_eq!(pair.poll(1).len(), 0, "number {n} was answered");
        assert_eq!(pair.delivered(1).len(), 0, "number {n} was delivered");
        // Tables reach their final size during the first forgeries.
        if n == forgeries / 100 {
            heap = Some(HEAP.bytes());
        }
    }
    // An initiation may wait for the next turn.
    pair.advance(Duration::from_millis(1));
    assert_eq!(total_drops(&pair.ends[1]) - before, forgeries);
    let grown = HEAP.bytes() - heap.unwrap();
    println!("{forgeries} forgeries: {grown} bytes grown");
    assert!(grown.abs() < 4_096, "{grown} bytes");
}
