//! Classes and parked flows.

use super::*;

const BULK: u16 = 7;
const INTERACTIVE: u16 = 1_030;
const REALTIME: u16 = 1_300;

#[test]
fn realtime_goes_before_interactive_and_both_before_bulk() {
    let mut queue = Queue::new(ROOMY, Aqm::default());
    for bucket in [BULK, INTERACTIVE, REALTIME] {
        queue.push(NOW, bucket, many(0, 2, PAYLOAD));
    }
    assert_eq!(order(&mut queue, 6), [REALTIME, REALTIME, INTERACTIVE, INTERACTIVE, BULK, BULK]);
}

fn backlog_of_all_classes() -> Queue {
    let mut queue = Queue::new(ROOMY, Aqm::Off);
    for i in 0..20 {
        for bucket in [BULK, INTERACTIVE, REALTIME] {
            queue.push(NOW, bucket, many(i * 100_000, 44, PAYLOAD));
        }
    }
    queue
}

#[test]
fn bulk_keeps_a_ninth_whatever_the_dscp_of_others() {
    let mut queue = backlog_of_all_classes();
    let order = order(&mut queue, 950);
    assert!(order[..46].iter().all(|bucket| *bucket != BULK), "64 KiB go first");
    let bulk = order[50..].iter().filter(|bucket| **bucket == BULK).count();
    assert_eq!(bulk, 100);
}

/// Without a share, interactive flows got nothing beside realtime packets of the path's whole rate.
#[test]
fn interactive_keeps_a_ninth_of_what_realtime_and_it_send() {
    let mut queue = backlog_of_all_classes();
    let order = order(&mut queue, 850);
    let count = |class| order[50..].iter().filter(|bucket| **bucket == class).count();
    let (interactive, realtime) = (count(INTERACTIVE), count(REALTIME));
    assert!(interactive.abs_diff(realtime / 8) <= 2, "{interactive} beside {realtime}");
    assert!(count(BULK).abs_diff(800 / 9) <= 2, "{}", count(BULK));
}

#[test]
fn priority_costs_no_credit_while_no_bulk_waits() {
    let mut queue = Queue::new(ROOMY, Aqm::Off);
    (0..3).for_each(|i| assert_eq!(queue.push(NOW, REALTIME, many(i * 100_000, 44, PAYLOAD)), 0));
    order(&mut queue, 100);
    queue.push(NOW, BULK, single(1));
    assert_eq!(order(&mut queue, 2), [REALTIME, REALTIME]);
}

#[test]
fn a_parked_flow_is_excluded_until_it_is_unparked() {
    let (mut queue, mut drops) = (Queue::new(ROOMY, Aqm::default()), Drops::default());
    (1..4).for_each(|bucket| assert_eq!(queue.push(NOW, bucket, many(0, 2, PAYLOAD)), 0));
    assert_eq!(queue.head(NOW, &mut drops).map(|head| head.bucket), Some(1));
    queue.park();
    assert_eq!(order(&mut queue, 2), [2, 2]);
    queue.unpark();
    assert_eq!(order(&mut queue, 2), [1, 1], "it keeps its turn");
    queue.head(NOW, &mut drops);
    queue.park();
    assert!(queue.head(NOW, &mut drops).is_none() && !queue.is_empty());
    assert_eq!(queue.drain().count(), 2);
}

#[test]
fn a_flow_takes_turns_with_the_parked_flows_of_its_own_class() {
    let (mut queue, mut drops) = (Queue::new(ROOMY, Aqm::Off), Drops::default());
    [REALTIME, 1, 2].into_iter().for_each(|bucket| assert_eq!(queue.push(NOW, bucket, many(0, 44, PAYLOAD)), 0));
    // Two packets use up a flow's first turn; then it takes turns.
    for bucket in [REALTIME, 1] {
        assert_eq!(queue.head(NOW, &mut drops).map(|head| head.bucket), Some(bucket));
        queue.park();
    }
    order(&mut queue, 2);
    let head = queue.head(NOW, &mut drops).unwrap();
    assert_eq!((head.bucket, head.backlog), (2, 2 * 42 * LEN), "42 of its own and as many of the other");
}

#[test]
fn credit_of_parked_bulk_is_bounded() {
    let (mut queue, mut drops) = (Queue::new(ROOMY, Aqm::Off), Drops::default());
    queue.push(NOW, BULK, many(0, 44, PAYLOAD));
    queue.head(NOW, &mut drops);
    queue.park();
    (0..12).for_each(|i| assert_eq!(queue.push(NOW, REALTIME, many(i * 100_000, 44, PAYLOAD)), 0));
    assert!(order(&mut queue, 440).iter().all(|bucket| *bucket == REALTIME));
    queue.unpark();
    let order = order(&mut queue, 20);
    let first = order.iter().take_while(|bucket| **bucket == BULK).count();
    assert_eq!(first, 6, "64 KiB at eight for one: {order:?}");
}
