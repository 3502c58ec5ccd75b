//! Tests of the queue on single cases; [`ahead`]: out of order; [`conservation`]: random; [`standing`]: with a sender.

mod ahead;
mod conservation;
mod priority;
mod standing;

use super::*;
use crate::packet::ip::{self, Ip, TCP, Version};
use crate::packet::tests::{assert_checksums, packet};
use crate::packet::{Offload, Segmentation, SegmentationKind, ecn};
use crate::tuning::queue::drr::QUANTUM;
use std::collections::HashMap;

const MS: Duration = Duration::from_millis(1);
const ROOMY: usize = 100 * MAX_SUPER_PACKET;
const NOW: Time = Time::after(Duration::from_secs(1));
/// TCP payload and packet length in a tunnel with an MTU of 1400 over IPv4.
const PAYLOAD: usize = 1_360;
const LEN: usize = 1_400;

/// Builds a super-packet of `count` packets of `payload` bytes; TCP sequence numbers start at `first`.
fn many(first: u32, count: usize, payload: usize) -> SuperPacket {
    from(packet(Version::V4, TCP, count * payload, first), payload)
}

fn single(seq: u32) -> SuperPacket {
    many(seq, 1, PAYLOAD)
}

fn from(bytes: Vec<u8>, payload: usize) -> SuperPacket {
    let (kind, header) = match Ip::parse(&bytes).unwrap().version {
        Version::V4 => (SegmentationKind::Tcp4 { cwr: false }, 40),
        Version::V6 => (SegmentationKind::Tcp6 { cwr: false }, 60),
    };
    let segmentation = Segmentation { kind, size: payload as u16, header };
    let len = bytes.len();
    SuperPacket::new(bytes, len, Offload { checksum: None, segmentation: Some(segmentation) }).unwrap()
}

fn written(packet: &InnerPacket) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.write(&mut bytes);
    bytes
}

fn seq(packet: &InnerPacket) -> u32 {
    u32::from_be_bytes(written(packet)[24..28].try_into().unwrap())
}

/// Takes the next packet and compares it with its description.
fn next(queue: &mut Queue, now: Time, drops: &mut Drops) -> Option<(Head, InnerPacket)> {
    let head = queue.head(now, drops)?;
    let (_, packet) = queue.pop().expect("head described it");
    assert_eq!(packet.len(), head.len);
    Some((head, packet))
}

/// Returns the buckets of the next `count` packets at the same time.
fn order(queue: &mut Queue, count: usize) -> Vec<u16> {
    let mut drops = Drops::default();
    (0..count).map(|_| next(queue, NOW, &mut drops).unwrap().0.bucket).collect()
}

#[test]
fn a_sparse_flow_overtakes_the_backlog_of_a_bulk_flow() {
    let mut queue = Queue::new(ROOMY, Aqm::default());
    (0..10).for_each(|i| assert_eq!(queue.push(NOW, 7, many(i * 100_000, 44, PAYLOAD)), 0));
    order(&mut queue, 10);
    let bulk = queue.head(NOW, &mut Drops::default()).unwrap();
    assert_eq!((bulk.bucket, bulk.sparse, bulk.backlog), (7, false, 430 * LEN));
    queue.push(NOW, 3, many(1, 1, 100));
    let voice = Head { len: 140, bucket: 3, sparse: true, backlog: 140, mark: Mark::default() };
    assert_eq!(queue.head(NOW, &mut Drops::default()), Some(voice), "though a packet of the bulk flow was next");
    assert_eq!(order(&mut queue, 3), [3, 7, 7]);
}

#[test]
fn the_backlog_includes_flows_that_take_turns() {
    let mut queue = Queue::new(ROOMY, Aqm::default());
    (0..10).for_each(|i| assert_eq!(queue.push(NOW, 7, many(i * 100_000, 44, PAYLOAD)), 0));
    queue.push(NOW, 8, many(1, 44, PAYLOAD));
    order(&mut queue, 4);
    let head = queue.head(NOW, &mut Drops::default()).unwrap();
    assert_eq!((head.bucket, head.backlog), (7, queue.bytes()), "all waiting bytes");
    queue.pop();
    let head = queue.head(NOW, &mut Drops::default()).unwrap();
    assert_eq!((head.bucket, head.backlog), (8, 2 * 42 * LEN), "42 of its own and as many of the other");
}

#[test]
fn a_flow_that_keeps_sending_little_stays_sparse_and_one_that_sends_much_does_not() {
    let mut queue = Queue::new(ROOMY, Aqm::default());
    let mut drops = Drops::default();
    queue.push(NOW, 7, many(0, 44, PAYLOAD));
    order(&mut queue, 2);
    for i in 0..10 {
        queue.push(NOW, 3, many(i, 1, 100));
        let (head, _) = next(&mut queue, NOW, &mut drops).unwrap();
        assert_eq!((head.bucket, head.sparse), (3, true), "packet {i}");
        assert_eq!(order(&mut queue, 3), [7, 7, 7]);
    }
}

#[test]
fn a_burst_of_a_new_flow_is_sparse_for_one_quantum() {
    let mut queue = Queue::new(ROOMY, Aqm::default());
    queue.push(NOW, 3, many(0, 44, PAYLOAD));
    let sparse: Vec<_> = (0..4).map(|_| next(&mut queue, NOW, &mut Drops::default()).unwrap().0.sparse).collect();
    assert_eq!(sparse, [true, true, false, false], "1514 bytes allow a second packet of 1400 to begin");
}

#[test]
fn two_bulk_flows_share_bytes_evenly_whatever_their_packets_lengths() {
    let mut queue = Queue::new(ROOMY, Aqm::default());
    for i in 0..20 {
        queue.push(NOW, 1, many(i, 44, PAYLOAD));
        queue.push(NOW, 2, many(i, 200, 260));
    }
    let mut sent = HashMap::from([(1, 0), (2, 0)]);
    for _ in 0..2_000 {
        let (head, packet) = next(&mut queue, NOW, &mut Drops::default()).unwrap();
        *sent.get_mut(&head.bucket).unwrap() += packet.len() as i64;
        // Shreedhar and Varghese, "Efficient fair queuing using deficit round robin", 1996, lemma 2: after any number
        // of turns, the bytes sent differ from the sum of the quanta by less than the longest packet; here both are in
        // one turn.
        assert!((sent[&1] - sent[&2]).abs() <= QUANTUM + 2 * LEN as i64);
    }
}

#[test]
fn a_superpacket_of_44_packets_takes_turns_with_another_flow() {
    let mut queue = Queue::new(ROOMY, Aqm::default());
    queue.push(NOW, 1, many(0, 44, PAYLOAD));
    queue.push(NOW, 2, many(0, 44, PAYLOAD));
    let order = order(&mut queue, 88);
    let longest_batch = order.chunk_by(|a, b| a == b).map(<[u16]>::len).max();
    assert_eq!(longest_batch, Some(2), "a quantum is 1514 of 1400 bytes, so two at most in a turn");
    assert!(queue.is_empty());
}

/// Returns the packets of a flow whose queue is 40 packets for a second, 1 ms each.
fn standing_queue(queue: &mut Queue, drops: &mut Drops, packet: impl Fn() -> SuperPacket) -> Vec<InnerPacket> {
    (0..40).for_each(|_| assert_eq!(queue.push(NOW, 1, packet()), 0));
    let send = |ms| {
        let now = NOW + MS * ms;
        while queue.len() < 40 {
            queue.push(now, 1, packet());
        }
        next(queue, now, drops).unwrap().1
    };
    (0..1_000).map(send).collect()
}

#[test]
fn an_ect_packet_is_marked_and_stays_valid() {
    for (version, ect) in [(Version::V4, ecn::ECT0), (Version::V4, ecn::ECT1), (Version::V6, ecn::ECT0)] {
        let mut bytes = packet(version, TCP, 2 * PAYLOAD, 1);
        ip::set_tos(&mut bytes, version, 0xb8 | ect);
        let (mut queue, mut drops) = (Queue::new(ROOMY, Aqm::default()), Drops::default());
        let sent = standing_queue(&mut queue, &mut drops, || from(bytes.clone(), PAYLOAD));
        assert_eq!((drops.total(), queue.take_dropped()), (0, 0));
        let (marked, rest): (Vec<_>, Vec<_>) = sent.iter().partition(|packet| packet.tos() == 0xb8 | ecn::CE);
        assert!(marked.len() > 10, "{}", marked.len());
        assert!(rest.iter().all(|packet| packet.tos() == 0xb8 | ect));
        for packet in sent {
            assert_checksums(&written(&packet));
            assert_eq!(Ip::parse(&written(&packet)).unwrap().tos, packet.tos());
        }
    }
}

#[test]
fn a_not_ect_packet_is_dropped_and_counted_once() {
    let (mut queue, mut drops) = (Queue::new(ROOMY, Aqm::default()), Drops::default());
    let sent = standing_queue(&mut queue, &mut drops, || single(1));
    assert!(sent.iter().all(|packet| packet.tos() == 0));
    assert!(drops.of(Dropped::Aqm) > 10);
    assert_eq!(queue.take_dropped(), drops.of(Dropped::Aqm));
    assert_eq!(queue.take_dropped(), 0);
}

#[test]
fn a_longer_target_applies_at_once() {
    let (mut queue, mut drops) = (Queue::new(ROOMY, Aqm::default()), Drops::default());
    queue.set_delay(MS * 41, MS * 100);
    standing_queue(&mut queue, &mut drops, || single(1));
    assert_eq!(drops.total(), 0, "40 packets of 1 ms are 40 ms");
}

#[test]
fn without_codel_everything_leaves_in_order_however_late() {
    let (mut queue, mut drops) = (Queue::new(ROOMY, Aqm::Off), Drops::default());
    queue.set_delay(MS, MS);
    (0..100).for_each(|i| assert_eq!(queue.push(NOW, 1, single(i)), 0));
    let late = |i| NOW + MS * 1_000 * i;
    let seqs: Vec<_> = (0..100).map(|i| seq(&next(&mut queue, late(i), &mut drops).unwrap().1)).collect();
    assert_eq!(seqs, (0..100).collect::<Vec<_>>());
    assert_eq!(drops.total(), 0);
}

#[test]
fn overflow_hits_the_flow_with_the_most_bytes_at_its_front() {
    let mut queue = Queue::new(4 * (40 + 44 * PAYLOAD), Aqm::default());
    queue.push(NOW, 1, single(1));
    (0..3).for_each(|i| assert_eq!(queue.push(NOW, 2, many(i * 100_000, 44, PAYLOAD)), 0));
    assert!(!queue.has_room());
    let dropped = queue.push(NOW, 3, many(0, 44, PAYLOAD));
    assert_eq!(dropped, 88, "half of 132 is more than one super-packet");
    assert_eq!(queue.len(), 1 + 44 + 44);
    let mut left: HashMap<u16, Vec<u32>> = HashMap::new();
    while let Some((head, packet)) = next(&mut queue, NOW, &mut Drops::default()) {
        left.entry(head.bucket).or_default().push(seq(&packet));
    }
    assert_eq!(left[&1], [1]);
    assert_eq!((left[&2].len(), left[&2][0]), (44, 200_000));
    assert_eq!(left[&3].len(), 44);
}

#[test]
fn a_flood_of_small_packets_is_dropped_in_batches() {
    let mut queue = Queue::new(MAX_SUPER_PACKET, Aqm::default());
    let dropped = std::iter::repeat_with(|| queue.push(NOW, 1, many(1, 1, 10))).find(|dropped| *dropped > 0);
    assert_eq!(dropped, Some(DROP_BATCH as u64));
}

#[test]
fn a_packet_within_the_limit_is_never_dropped() {
    let mut queue = Queue::new(4 * MAX_SUPER_PACKET, Aqm::Off);
    let mut pushed = 0;
    while queue.has_room() {
        assert_eq!(queue.push(NOW, 1, many(0, 48, PAYLOAD)), 0);
        pushed += 1;
    }
    assert_eq!(pushed, 4, "the limit is four of the largest");
}

#[test]
fn the_head_stays_until_it_is_taken() {
    let (mut queue, mut drops) = (Queue::new(4 * MAX_SUPER_PACKET, Aqm::default()), Drops::default());
    assert!(queue.pop().is_none());
    queue.push(NOW, 1, single(5));
    queue.push(NOW, 1, single(6));
    let first = queue.head(NOW, &mut drops);
    assert_eq!(queue.head(NOW + MS * 10_000, &mut drops), first);
    queue.push(NOW, 2, single(7));
    assert_eq!(queue.pop().map(|(_, packet)| seq(&packet)), Some(5));
    assert!(queue.pop().is_none(), "head was not called");
}

#[test]
fn pop_returns_nothing_if_the_head_was_dropped() {
    let (mut queue, mut drops) = (Queue::new(MAX_SUPER_PACKET, Aqm::default()), Drops::default());
    queue.push(NOW, 1, many(0, 44, PAYLOAD));
    queue.head(NOW, &mut drops).unwrap();
    assert_eq!(queue.push(NOW, 1, many(100_000, 44, PAYLOAD)), 44);
    assert!(queue.pop().is_none());
    assert_eq!(next(&mut queue, NOW, &mut drops).map(|(_, packet)| seq(&packet)), Some(100_000));
}

#[test]
fn a_buffer_is_returned_with_its_last_packet() {
    let mut queue = Queue::new(ROOMY, Aqm::default());
    queue.push(NOW, 1, many(0, 3, PAYLOAD));
    let mut take = || next(&mut queue, NOW, &mut Drops::default()).unwrap().1.into_buffer();
    let buffers = [take(), take(), take()].map(|buffer| buffer.map(|bytes| bytes.len()));
    assert_eq!(buffers, [None, None, Some(40 + 3 * PAYLOAD)]);
}

#[test]
fn a_drained_queue_behaves_as_a_new_one() {
    let mut queue = Queue::new(ROOMY, Aqm::default());
    (0..5).for_each(|bucket| assert_eq!(queue.push(NOW, bucket, many(0, 44, PAYLOAD)), 0));
    order(&mut queue, 10);
    assert_eq!(queue.drain().count(), 210);
    assert_eq!((queue.len(), queue.bytes(), queue.allocated), (0, 0, 0));
    queue.push(NOW, 1, single(1));
    assert!(queue.head(NOW, &mut Drops::default()).unwrap().sparse);
}
