//! Random pushes, pops and pauses against a model without round robin and CoDel: a list per bucket.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Push {
        bucket: u16,
        count: usize,
        payload: usize,
        ect: bool,
    },
    /// Calls `head`, and takes the packet or leaves it.
    Next {
        take: bool,
    },
    Pause {
        ms: u32,
    },
    /// Parks the next flow, or unparks all.
    Park {
        unpark: bool,
    },
}

/// Buckets of all classes.
const BUCKETS: [u16; 6] = [0, 1, 1_023, 1_024, 1_280, 1_535];

fn step() -> impl Strategy<Value = Step> {
    let push = (prop::sample::select(&BUCKETS[..]), 1..48usize, 20..1_361usize, any::<bool>());
    prop_oneof![
        2 => push.prop_map(|(bucket, count, payload, ect)| Step::Push { bucket, count, payload, ect }),
        24 => prop::bool::weighted(0.9).prop_map(|take| Step::Next { take }),
        3 => (1..60u32).prop_map(|ms| Step::Pause { ms }),
        3 => any::<bool>().prop_map(|unpark| Step::Park { unpark }),
    ]
}

/// Sequence numbers and lengths of the waiting packets by bucket, and counts of those that left.
#[derive(Default)]
struct Model {
    waiting: HashMap<u16, VecDeque<(u32, usize)>>,
    next_seq: u32,
    pushed: u64,
    popped: u64,
    limit_drops: u64,
}

impl Model {
    fn push(&mut self, bucket: u16, count: usize, payload: usize, ect: bool) -> SuperPacket {
        let mut bytes = packet(Version::V4, TCP, count * payload, self.next_seq);
        ip::set_tos(&mut bytes, Version::V4, if ect { ecn::ECT0 } else { ecn::NOT_ECT });
        for _ in 0..count {
            self.waiting.entry(bucket).or_default().push_back((self.next_seq, payload + 40));
            self.next_seq += payload as u32;
        }
        self.pushed += count as u64;
        from(bytes, payload)
    }

    /// Removes a packet that left. Those before it in its bucket must have been dropped.
    fn pop(&mut self, bucket: u16, packet: &InnerPacket) {
        assert_checksums(&written(packet));
        let waiting = self.waiting.get_mut(&bucket).expect("something was pushed there");
        while waiting.front().is_some_and(|(first, _)| *first != seq(packet)) {
            waiting.pop_front();
        }
        assert_eq!(waiting.pop_front(), Some((seq(packet), packet.len())), "in order, whole, and never twice");
        self.popped += 1;
    }
}

fn run(aqm: Aqm, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (mut queue, mut drops, mut model) = (Queue::new(3 * MAX_SUPER_PACKET, aqm), Drops::default(), Model::default());
    let (mut now, mut taken_drops, mut parked) = (NOW, 0, false);
    for step in steps {
        match step {
            Step::Pause { ms } => now += MS * ms,
            Step::Park { unpark: true } => {
                queue.unpark();
                parked = false;
            }
            Step::Park { unpark: false } => {
                parked |= queue.head(now, &mut drops).is_some();
                queue.park();
            }
            Step::Push { bucket, count, payload, ect } => {
                let packet = model.push(bucket, count, payload, ect);
                model.limit_drops += queue.push(now, bucket, packet);
            }
            Step::Next { take } => {
                let head = queue.head(now, &mut drops);
                let is_consistent = head.is_none() == queue.is_empty() || (parked && head.is_none());
                prop_assert!(is_consistent);
                if let Some(head) = head.filter(|_| take) {
                    model.pop(head.bucket, &queue.pop().expect("head described it").1);
                }
            }
        }
        taken_drops += queue.take_dropped();
        prop_assert_eq!(model.pushed, model.popped + model.limit_drops + taken_drops + queue.len() as u64);
        prop_assert!(queue.allocated <= queue.limit);
    }
    prop_assert_eq!(taken_drops, drops.of(Dropped::Aqm));
    prop_assert!(aqm != Aqm::Off || drops.total() == 0);
    queue.unpark();
    while let Some((head, packet)) = next(&mut queue, now, &mut drops) {
        let waiting = queue.bytes() + packet.len();
        prop_assert!(head.backlog <= waiting);
        model.pop(head.bucket, &packet);
    }
    prop_assert_eq!((queue.len(), queue.bytes(), queue.allocated), (0, 0, 0));
    prop_assert_eq!(model.pushed, model.popped + model.limit_drops + drops.of(Dropped::Aqm));
    Ok(())
}

proptest! {
    #[test]
    fn with_codel_every_packet_leaves_once_in_order_or_is_counted(steps in prop::collection::vec(step(), 1..600)) {
        run(Aqm::default(), steps)?;
    }

    #[test]
    fn without_codel_every_packet_leaves_once_in_order_or_is_dropped(steps in prop::collection::vec(step(), 1..600)) {
        run(Aqm::Off, steps)?;
    }
}
