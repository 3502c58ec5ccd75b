//! Packets that leave ahead of others, and their numbers.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;

/// Takes the next packet; returns its number and its TCP sequence number.
fn pop(queue: &mut Queue) -> Option<(u32, u32)> {
    queue.head(NOW, &mut Drops::default())?;
    queue.pop().map(|(number, packet)| (number, seq(&packet)))
}

/// Takes a packet with `before` bytes in front of it.
fn pop_ahead(queue: &mut Queue, before: u64) -> Option<(u32, u32)> {
    queue.head(NOW, &mut Drops::default())?;
    queue.pop_ahead(before, LEN).map(|(_, number, packet)| (number, seq(&packet)))
}

/// Queues ten packets of a flow in super-packets of four, four and two; TCP sequence numbers count the packets.
fn ten() -> Queue {
    let mut queue = Queue::new(ROOMY, Aqm::Off);
    [(0, 4), (4, 4), (8, 2)].into_iter().for_each(|(first, count)| {
        queue.push(NOW, 7, many(first * PAYLOAD as u32, count, PAYLOAD));
    });
    queue
}

fn nth(n: u32) -> Option<(u32, u32)> {
    Some((n, n * PAYLOAD as u32))
}

#[test]
fn a_packet_that_leaves_ahead_keeps_its_number() {
    let mut queue = ten();
    assert_eq!(pop(&mut queue), nth(0));
    assert_eq!(pop_ahead(&mut queue, 3 * LEN as u64), nth(4), "1, 2 and 3 are in front of it");
    assert_eq!(pop_ahead(&mut queue, 3 * LEN as u64), nth(5));
    assert_eq!(pop_ahead(&mut queue, 4 * LEN as u64), nth(7), "1, 2, 3 and 6 are");
    assert_eq!((queue.len(), queue.bytes()), (6, 6 * LEN));
    assert_eq!([1, 2, 3, 6, 8, 9].map(|_| pop(&mut queue)), [1, 2, 3, 6, 8, 9].map(nth));
    assert_eq!((queue.len(), queue.bytes(), queue.allocated), (0, 0, 0));
}

#[test]
fn the_last_packet_leaves_ahead_of_a_shorter_backlog() {
    let mut queue = ten();
    assert_eq!(
        [(); 10].map(|()| pop_ahead(&mut queue, 1 << 40)),
        [9, 8, 7, 6, 5, 4, 3, 2, 1, 10].map(|n| nth(n).filter(|_| n < 10))
    );
    assert_eq!((pop(&mut queue), queue.allocated), (nth(0), 0));
}

#[test]
fn a_packet_of_another_rule_does_not_leave_ahead() {
    let mut queue = ten();
    let mut other = many(0, 1, PAYLOAD);
    other.set_mark(Mark { rule: Some(3), ..Mark::default() });
    queue.push(NOW, 7, other);
    assert_eq!(pop_ahead(&mut queue, 1 << 40), None, "the last matches another rule");
    assert_eq!(pop_ahead(&mut queue, 3 * LEN as u64), nth(3));
}

#[test]
fn bytes_ahead_include_flows_that_take_turns() {
    let mut queue = ten();
    queue.push(NOW, 3, many(0, 10, PAYLOAD));
    order(&mut queue, 4);
    assert_eq!(
        pop_ahead(&mut queue, 6 * LEN as u64),
        nth(5),
        "two of each have gone, and three of each are to go before"
    );
}

#[test]
fn only_a_drop_before_a_packet_that_left_ahead_leaves_a_hole() {
    let mut queue = ten();
    queue.head(NOW, &mut Drops::default());
    assert_eq!(queue.discard().map(|packet| seq(&packet)), Some(0));
    assert_eq!(queue.poll_hole(), None);
    // The packet with sequence number 1 has number 0.
    assert_eq!(pop_ahead(&mut queue, 2 * LEN as u64), Some((2, 3 * PAYLOAD as u32)));
    queue.head(NOW, &mut Drops::default());
    queue.discard();
    assert_eq!((queue.poll_hole(), queue.poll_hole()), (Some((7, 0)), None));
    assert_eq!(pop(&mut queue), Some((1, 2 * PAYLOAD as u32)));
    assert_eq!(pop(&mut queue), Some((3, 4 * PAYLOAD as u32)));
}

#[test]
fn restarted_numbers_skip_packets_that_left_ahead() {
    let mut queue = ten();
    pop(&mut queue);
    pop_ahead(&mut queue, 2 * LEN as u64);
    queue.renumber();
    assert_eq!(pop_ahead(&mut queue, 2 * LEN as u64), None, "until the packet that left ahead is passed");
    let rest = [1, 2, 4, 5].map(|n| n * PAYLOAD as u32);
    assert_eq!([(); 4].map(|()| pop(&mut queue).unwrap()), [0, 1, 2, 3].map(|n| (n, rest[n as usize])));
    assert_eq!(pop_ahead(&mut queue, LEN as u64), Some((5, 7 * PAYLOAD as u32)));
}

#[derive(Clone, Debug)]
enum Step {
    Push { bucket: u16, count: usize, payload: usize, ect: bool },
    Next,
    Ahead { before: u64, longest: usize },
    Pause { ms: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let push = (0..3u16, 1..100usize, 20..600usize, any::<bool>());
    prop_oneof![
        2 => push.prop_map(|(bucket, count, payload, ect)| Step::Push { bucket, count, payload, ect }),
        20 => Just(Step::Next),
        12 => (0..200_000u64, 200..1_400usize).prop_map(|(before, longest)| Step::Ahead { before, longest }),
        3 => (1..60u32).prop_map(|ms| Step::Pause { ms }),
    ]
}

/// Checks that every number of a bucket is one packet's or one hole's, and that numbers are in arrival order.
fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (mut queue, mut drops, mut now) = (Queue::new(3 * MAX_SUPER_PACKET, Aqm::default()), Drops::default(), NOW);
    let (mut next_seq, mut pushed, mut popped, mut dropped) = (0, 0, 0, 0);
    let mut numbers: HashMap<u16, BTreeMap<u32, Option<u32>>> = HashMap::new();
    let rest = std::iter::repeat_n(Step::Next, 20_000);
    for step in steps.into_iter().chain(rest) {
        let left = match step {
            Step::Pause { ms } => {
                now += MS * ms;
                None
            }
            Step::Push { bucket, count, payload, ect } => {
                let mut bytes = packet(Version::V4, TCP, count * payload, next_seq);
                next_seq += (count * payload) as u32;
                ip::set_tos(&mut bytes, Version::V4, if ect { ecn::ECT0 } else { ecn::NOT_ECT });
                pushed += count as u64;
                dropped += queue.push(now, bucket, from(bytes, payload));
                None
            }
            Step::Next => {
                let head = queue.head(now, &mut drops);
                head.and_then(|head| queue.pop().map(|(number, packet)| (head.bucket, number, packet)))
            }
            Step::Ahead { before, longest } => {
                queue.head(now, &mut drops);
                queue.pop_ahead(before, longest).inspect(|(_, _, packet)| assert!(packet.len() <= longest))
            }
        };
        dropped += queue.take_dropped();
        let holes =
            std::iter::from_fn(|| queue.poll_hole()).map(|(bucket, number)| (bucket, number, None)).collect::<Vec<_>>();
        popped += u64::from(left.is_some());
        let left = left.map(|(bucket, number, packet)| (bucket, number, Some(seq(&packet))));
        for (bucket, number, what) in holes.into_iter().chain(left) {
            prop_assert_eq!(numbers.entry(bucket).or_default().insert(number, what), None, "twice the same number");
        }
        prop_assert_eq!(pushed, popped + dropped + queue.len() as u64);
    }
    prop_assert_eq!((queue.len(), queue.bytes(), queue.allocated), (0, 0, 0));
    for numbers in numbers.values() {
        prop_assert!(numbers.keys().copied().eq(0..numbers.len() as u32), "no number is missing");
        prop_assert!(numbers.values().flatten().is_sorted(), "in arrival order");
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_number_is_accounted_for(steps in prop::collection::vec(step(), 1..300)) {
        run(steps)?;
    }
}
