use std::sync::Arc;

use super::*;
use crate::classify::Mark;
use crate::packet::{Offload, SuperPacket};

fn packet() -> InnerPacket {
    of(Class::Bulk)
}

fn of(class: Class) -> InnerPacket {
    let mut bytes = vec![0u8; 40];
    bytes[..4].copy_from_slice(&[0x45, 0, 0, 40]);
    let mut packet = SuperPacket::new(bytes, 40, Offload::default()).unwrap();
    packet.set_mark(Mark { class, ..Mark::default() });
    InnerPacket::new(Arc::new(packet), 0, false)
}

fn flow_seq(sequence: u32) -> FlowSeq {
    FlowSeq { bucket: 7, sequence }
}

const LIMIT: Duration = Duration::from_secs(1);

#[test]
fn a_lost_packet_is_retransmitted_and_an_acknowledged_one_is_removed() {
    let mut repair = RetransmitQueue::default();
    let keys = [1, 2].map(|n| repair.on_sent(Time::START, packet(), flow_seq(n)));
    assert!(repair.on_outcome(keys[0], Outcome::Acked).is_some());
    assert!(repair.on_outcome(keys[1], Outcome::Lost).is_none());
    assert_eq!(repair.pop().map(|(key, flow_seq, _)| (key, flow_seq.sequence)), Some((keys[1], 2)));
    assert!(repair.head().is_none());
    assert!(repair.on_outcome(keys[1], Outcome::Acked).is_some());
    assert!(
        repair.on_outcome(keys[1], Outcome::Lost).is_none(),
        "the outcome of the first copy has no effect any more"
    );
    assert!(repair.head().is_none());
}

#[test]
fn a_packet_is_lost_when_all_its_copies_are() {
    let mut repair = RetransmitQueue::default();
    let key = repair.on_sent(Time::START, packet(), flow_seq(1));
    repair.on_outcome(key, Outcome::Lost);
    repair.pop();
    repair.take_copy(key).unwrap();
    repair.on_outcome(key, Outcome::Lost);
    assert_eq!((repair.losses(key), repair.head().is_none()), (1, true));
    repair.on_outcome(key, Outcome::Lost);
    assert_eq!((repair.losses(key), repair.head().is_none()), (2, false));
}

#[test]
fn a_packet_with_a_spurious_loss_is_not_retransmitted() {
    let mut repair = RetransmitQueue::default();
    let key = repair.on_sent(Time::START, packet(), flow_seq(1));
    repair.on_outcome(key, Outcome::Lost);
    repair.on_outcome(key, Outcome::Spurious);
    assert!(repair.head().is_none());
}

#[test]
fn a_packet_past_its_deadline_is_given_up_with_one_skip() {
    let mut repair = RetransmitQueue::default();
    let key = repair.on_sent(Time::START, packet(), flow_seq(9));
    repair.on_outcome(key, Outcome::Lost);
    assert_eq!(repair.give_up(Time::START + LIMIT, LIMIT).count(), 0);
    assert_eq!(repair.give_up(Time::START + 2 * LIMIT, LIMIT).count(), 1);
    assert_eq!((repair.pop_skip(), repair.pop_skip()), (Some(flow_seq(9)), None));
    assert!(repair.head().is_none());
}

#[test]
fn a_packet_is_queued_for_retransmission_once() {
    let mut repair = RetransmitQueue::default();
    let key = repair.on_sent(Time::START, packet(), flow_seq(1));
    repair.retransmit(key);
    repair.retransmit(key);
    repair.on_outcome(key, Outcome::Lost);
    assert!(repair.pop().is_some() && repair.pop().is_none());
    repair.on_outcome(key, Outcome::Lost);
    assert!(repair.pop().is_some(), "this copy was lost as well");
}

#[test]
fn realtime_packets_are_retransmitted_before_bulk_and_never_late() {
    let mut repair = RetransmitQueue::default();
    let bulk = repair.on_sent(Time::START, packet(), flow_seq(1));
    let [late, timely] = [0, 150].map(|ms| {
        let sent = Time::after(Duration::from_millis(ms));
        repair.on_sent(sent, of(Class::Realtime), flow_seq(2 + ms as u32))
    });
    [bulk, late, timely].into_iter().for_each(|key| repair.retransmit(key));
    let order = |repair: &RetransmitQueue| repair.lost.iter().copied().collect::<Vec<_>>();
    assert_eq!(order(&repair), [timely, late, bulk]);
    // 200 ms are twice the deadline of a realtime packet.
    assert_eq!(repair.give_up(Time::after(2 * REALTIME_DEADLINE), LIMIT).count(), 1);
    assert_eq!(order(&repair), [timely, bulk]);
}

#[test]
fn a_key_of_a_cleared_queue_identifies_no_later_packet() {
    let mut repair = RetransmitQueue::default();
    let key = repair.on_sent(Time::START, packet(), flow_seq(1));
    let second = repair.on_sent(Time::START, packet(), flow_seq(1));
    repair.clear();
    repair.on_sent(Time::START, packet(), flow_seq(2));
    repair.on_sent(Time::START, packet(), flow_seq(2));
    assert!(repair.on_outcome(key, Outcome::Acked).is_none());
    assert!(repair.on_outcome(second, Outcome::Acked).is_none());
}

fn lost(repair: &mut RetransmitQueue, class: Class, sequence: u32) -> PacketKey {
    let key = repair.on_sent(Time::START, of(class), flow_seq(sequence));
    repair.on_outcome(key, Outcome::Lost);
    key
}

#[test]
fn nothing_is_retransmitted_while_suspended() {
    let mut repair = RetransmitQueue::default();
    lost(&mut repair, Class::Bulk, 1);
    repair.suspend();
    assert!(repair.head().is_none());
    repair.resume();
    assert_eq!(repair.head().map(|(bucket, packet)| (bucket, packet.len())), Some((7, 40)));
}

#[test]
fn a_copy_is_taken_of_a_packet_in_flight_and_of_no_other() {
    let mut repair = RetransmitQueue::default();
    let key = repair.on_sent(Time::START, packet(), flow_seq(1));
    assert_eq!((repair.needs_copy(key), repair.is_single(key)), (true, true));
    assert_eq!(repair.in_flight(key), Some((flow_seq(1), 1)));
    assert_eq!(repair.take_copy(key).map(|(flow_seq, _)| flow_seq), Some(flow_seq(1)));
    assert_eq!((repair.needs_copy(key), repair.is_single(key)), (true, false));
    assert_eq!(repair.in_flight(key), Some((flow_seq(1), 2)));
    repair.on_outcome(key, Outcome::Lost);
    assert_eq!((repair.needs_copy(key), repair.is_single(key)), (true, false), "another was sent before");
    repair.on_outcome(key, Outcome::Lost);
    assert_eq!((repair.needs_copy(key), repair.is_single(key)), (false, false), "none is in flight");
    assert!(repair.take_copy(key).is_none());
    assert_eq!(repair.in_flight(key), Some((flow_seq(1), 0)));
    assert_eq!(repair.peek(key).map(|(flow_seq, _)| flow_seq), Some(flow_seq(1)));
    repair.pop();
    assert_eq!(repair.in_flight(key), Some((flow_seq(1), 1)));
    repair.on_outcome(key, Outcome::Acked);
    assert!(repair.peek(key).is_none() && repair.in_flight(key).is_none() && !repair.needs_copy(key));
    assert_eq!(repair.losses(key), 0);
}

#[test]
fn a_packet_with_a_copy_in_flight_is_not_retransmitted() {
    let mut repair = RetransmitQueue::default();
    let key = repair.on_sent(Time::START, packet(), flow_seq(1));
    repair.take_copy(key).unwrap();
    repair.retransmit(key);
    assert!(repair.head().is_none());
}

#[test]
fn a_place_is_used_again_under_another_key() {
    let mut repair = RetransmitQueue::default();
    let mut old = repair.on_sent(Time::START, packet(), flow_seq(0));
    for sequence in 1..5 {
        repair.on_outcome(old, Outcome::Acked);
        let new = repair.on_sent(Time::START, packet(), flow_seq(sequence));
        assert!(repair.in_flight(old).is_none() && repair.peek(old).is_none());
        assert_eq!(repair.in_flight(new), Some((flow_seq(sequence), 1)));
        assert_eq!(repair.entries.len(), 1);
        old = new;
    }
}

#[test]
fn the_first_lost_packet_is_given_up_with_a_skip() {
    let mut repair = RetransmitQueue::default();
    let _ = [1, 2].map(|sequence| lost(&mut repair, Class::Bulk, sequence));
    assert_eq!(repair.give_up_head().map(|(flow_seq, _)| flow_seq), Some(flow_seq(1)));
    assert_eq!((repair.pop_skip(), repair.has_skips()), (Some(flow_seq(1)), false));
    assert_eq!(repair.pop().map(|(_, flow_seq, _)| flow_seq), Some(flow_seq(2)));
    assert!(repair.give_up_head().is_none());
}

#[test]
fn lost_packets_for_another_way_leave_a_skip_and_realtime_ones_end() {
    let mut repair = RetransmitQueue::default();
    let arrived = lost(&mut repair, Class::Bulk, 1);
    let _ = [2, 3].map(|sequence| lost(&mut repair, Class::Bulk, sequence));
    lost(&mut repair, Class::Realtime, 4);
    repair.on_outcome(arrived, Outcome::Spurious);
    let taken = repair.take_lost();
    assert_eq!(taken.iter().map(|packet| packet.mark().class).collect::<Vec<_>>(), [Class::Bulk; 2]);
    assert_eq!([(); 3].map(|()| repair.pop_skip()), [Some(flow_seq(3)), Some(flow_seq(2)), None]);
    assert_eq!(repair.counts(), (0, 3));
    assert!(repair.head().is_none() && repair.is_empty());
}

#[test]
fn counts_are_kept_when_the_queue_is_cleared() {
    let mut repair = RetransmitQueue::default();
    (1..=2).for_each(|sequence| {
        lost(&mut repair, Class::Bulk, sequence);
        repair.pop();
    });
    (3..=5).for_each(|sequence| {
        lost(&mut repair, Class::Bulk, sequence);
    });
    assert_eq!(repair.give_up(Time::START + 2 * LIMIT, LIMIT).count(), 3);
    lost(&mut repair, Class::Bulk, 6);
    repair.give_up_head();
    assert_eq!(repair.counts(), (2, 4));
    repair.clear();
    assert_eq!((repair.counts(), repair.is_empty(), repair.has_skips()), ((2, 4), true, false));
}

#[test]
fn memory_is_released_when_no_packet_and_no_skip_is_left() {
    let mut repair = RetransmitQueue::default();
    let key = repair.on_sent(Time::START, packet(), flow_seq(1));
    assert!(!repair.is_empty());
    repair.shrink();
    assert_eq!(repair.in_flight(key), Some((flow_seq(1), 1)));
    repair.on_outcome(key, Outcome::Acked);
    repair.skip(flow_seq(2));
    assert!(repair.is_empty() && repair.has_skips());
    repair.shrink();
    assert_eq!(repair.pop_skip(), Some(flow_seq(2)));
    assert_ne!(repair.entries.capacity(), 0);
    repair.shrink();
    assert_eq!(repair.entries.capacity(), 0);
}
