//! Feedback against a peer that may send anything: every packet has one outcome, and nothing panics.

use std::collections::BTreeMap;
use std::time::Duration;

use mpt_proto::cc::{Controller, ControllerKind};
use mpt_proto::path::ack::{Ack, PeerTime, Range};
use mpt_proto::path::estimator::PathEstimator;
use mpt_proto::path::sent_packets::{Outcome, PacketKey, Payload};
use mpt_proto::path::{PathId, PathSeq};
use mpt_proto::time::Time;
use proptest::prelude::*;

const PATH: PathId = PathId { slot: 0, generation: 0 };

/// An event at a path's sender.
#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Skip(u64),
    Hear(Box<Ack>),
    Wait(Duration),
    Abandon,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1u32..2_000).prop_map(Step::Send),
        1 => (1u64..5).prop_map(Step::Skip),
        6 => ack(0..200).prop_map(|ack| Step::Hear(Box::new(ack))),
        1 => ack(0..u64::MAX).prop_map(|ack| Step::Hear(Box::new(ack))),
        4 => (0u64..200_000).prop_map(|us| Step::Wait(Duration::from_micros(us))),
        1 => Just(Step::Abandon),
    ]
}

fn ack(seqs: std::ops::Range<u64>) -> impl Strategy<Value = Ack> {
    let ranges = prop::collection::vec((seqs.clone(), 0u64..20), 0..8);
    (ranges, seqs, any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(ranges, largest, received_at, delay, ce)| Ack {
        largest: PathSeq(largest),
        received_at: PeerTime(received_at),
        delay: Duration::from_micros(u64::from(delay)),
        ranges: ranges.into_iter().map(|(first, more)| Range { first, last: first.saturating_add(more) }).collect(),
        ce,
        ..Ack::default()
    })
}

/// A packet may be reported acknowledged once, or lost once and then spurious once; nothing else.
fn record_outcome(fates: &mut BTreeMap<u64, Vec<Outcome>>, fate: Outcome, token: u64) {
    let outcomes = fates.entry(token).or_default();
    outcomes.push(fate);
    assert!(
        matches!(outcomes[..], [Outcome::Acked] | [Outcome::Lost] | [Outcome::Lost, Outcome::Spurious]),
        "{token}: {outcomes:?}"
    );
}

proptest! {
    #[test]
    fn each_packet_has_one_outcome_whatever_the_peer_sends(steps in prop::collection::vec(step(), 1..200), name in 0..ControllerKind::NAMES.len()) {
        let mut controller = Controller::new(ControllerKind::NAMES[name].1.build());
        controller.add_path(PATH, 1_400, None);
        let (mut feedback, mut fates, mut sizes) = (PathEstimator::default(), BTreeMap::new(), BTreeMap::new());
        let (mut now, mut next) = (Time::START, 0);
        for step in steps {
            let mut report = |outcome, payload| {
                let Payload::Packet(PacketKey(number)) = payload else { panic!("{payload:?}") };
                record_outcome(&mut fates, outcome, number);
            };
            match step {
                Step::Send(bytes) => {
                    feedback.on_sent(now, PathSeq(next), bytes, Payload::Packet(PacketKey(next)));
                    sizes.insert(next, u64::from(bytes));
                    next += 1;
                }
                Step::Skip(by) => next += by,
                Step::Hear(ack) => {
                    let outcome = feedback.on_ack(now, &ack, &mut report);
                    outcome.ack.iter().for_each(|ack| controller.on_ack(PATH, ack));
                    outcome.loss.iter().for_each(|loss| controller.on_loss(PATH, loss));
                    controller.on_spurious_loss(PATH, outcome.spurious);
                }
                Step::Wait(time) => {
                    now += time;
                    let wake = feedback.on_deadline(now, &mut report);
                    wake.loss.iter().for_each(|loss| controller.on_loss(PATH, loss));
                }
                Step::Abandon => {
                    feedback.abandon(now, &mut report);
                }
            }
            let waiting: u64 = sizes.iter().filter(|(token, _)| !fates.contains_key(token)).map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(feedback.in_flight(), waiting);
            let (room, burst) = (controller.room(PATH, feedback.in_flight()), controller.burst(PATH));
            prop_assert!(room <= controller.window(PATH) && burst > 0);
            controller.pacing(PATH);
        }
    }
}
