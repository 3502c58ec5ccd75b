//! Requirements of every scheduler, checked over all of them.

use super::*;
use proptest::prelude::*;

fn snapshot(slot: u8, weight: u32, srtt_ms: u64, room: u64) -> PathSnapshot {
    PathSnapshot {
        id: PathId { slot, generation: 0 },
        weight,
        srtt: Duration::from_millis(srtt_ms),
        room,
        burst: 1_500,
        ..PathSnapshot::default()
    }
}

/// A path whose window alone decides.
pub(super) fn windowed(slot: u8, srtt_ms: u64, cwnd: u64, in_flight: u64) -> PathSnapshot {
    let room = cwnd.saturating_sub(in_flight);
    PathSnapshot {
        cwnd,
        in_flight,
        window: room,
        min_rtt: Duration::from_millis(srtt_ms),
        ..snapshot(slot, 1, srtt_ms, room)
    }
}

/// Returns the slot of the path of a packet of 1250 bytes.
pub(super) fn choose(scheduler: &mut impl Schedule, paths: &[PathSnapshot], backlog: u64) -> Option<u8> {
    let now = Time::after(Duration::from_secs(1));
    scheduler
        .choose(1_250, &SchedInput { snapshots: paths, backlog, now, ..SchedInput::default() })
        .path()
        .map(|path| path.slot)
}

/// Sends `count` packets of `len` bytes and returns the slots of their paths.
fn send(scheduler: &mut impl Schedule, paths: &[PathSnapshot], count: usize, len: usize) -> Vec<u8> {
    let input = SchedInput { snapshots: paths, backlog: 1 << 30, ..SchedInput::default() };
    let mut sent = Vec::new();
    for _ in 0..count {
        if let Some(path) = scheduler.choose(len, &input).path() {
            scheduler.on_sent(path, len, &input);
            sent.push(path.slot);
        }
    }
    sent
}

fn share(sent: &[u8], slot: u8) -> f64 {
    sent.iter().filter(|s| **s == slot).count() as f64 / sent.len() as f64
}

#[test]
fn weights_are_kept_and_interleaved() {
    let paths = [snapshot(0, 3, 0, u64::MAX), snapshot(1, 1, 0, u64::MAX)];
    assert_eq!(send(&mut SchedulerKind::Weighted.build(), &paths, 8, 100), [0, 0, 1, 0, 0, 0, 1, 0]);
}

#[test]
fn twelve_co_prime_weights_are_kept() {
    // The weights with which the original uses only the path of weight 41 (original-mpt.md section 5).
    let weights = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41];
    let total: u32 = weights.iter().sum();
    let paths: Vec<_> = (0..).zip(weights).map(|(slot, weight)| snapshot(slot, weight, 0, u64::MAX)).collect();
    let sent = send(&mut SchedulerKind::Weighted.build(), &paths, 10 * total as usize, 1_400);
    for path in &paths {
        let count = sent.iter().filter(|slot| **slot == path.id.slot).count();
        assert_eq!(count, 10 * path.weight as usize);
    }
}

#[test]
fn extreme_weights_neither_overflow_nor_starve() {
    let paths = [snapshot(0, 10_000, 0, u64::MAX), snapshot(1, 1, 0, u64::MAX)];
    let sent = send(&mut SchedulerKind::Weighted.build(), &paths, 20_002, 65_000);
    assert_eq!(sent.iter().filter(|slot| **slot == 1).count(), 2);
}

#[test]
fn what_a_rule_sent_over_one_path_is_not_made_good_for_ever() {
    let paths = [snapshot(0, 1, 0, u64::MAX), snapshot(1, 1, 0, u64::MAX)];
    let mut scheduler = SchedulerKind::Weighted.build();
    let input = SchedInput { snapshots: &paths, backlog: 1 << 30, ..SchedInput::default() };
    (0..1_000_000).for_each(|_| scheduler.on_sent(paths[0].id, 50_000, &input));
    let sent = send(&mut scheduler, &paths, 10_000, 1_250);
    assert!(share(&sent, 0) > 0.4, "{}", share(&sent, 0));
}

#[test]
fn round_robin_ignores_weights() {
    let paths = [snapshot(0, 9, 0, u64::MAX), snapshot(1, 1, 0, u64::MAX), snapshot(2, 5, 0, u64::MAX)];
    assert_eq!(send(&mut SchedulerKind::RoundRobin.build(), &paths, 6, 100), [0, 1, 2, 0, 1, 2]);
}

#[test]
fn min_rtt_takes_the_next_path_when_the_first_is_full() {
    let mut scheduler = SchedulerKind::MinRtt.build();
    assert_eq!(send(&mut scheduler, &[snapshot(0, 1, 40, 2_000), snapshot(1, 1, 10, 2_000)], 1, 1_400), [1]);
    assert_eq!(send(&mut scheduler, &[snapshot(0, 1, 40, 2_000), snapshot(1, 1, 10, 1_000)], 1, 1_400), [0]);
}

#[derive(Debug)]
struct Fixed(Decision);

impl Schedule for Fixed {
    fn choose(&mut self, _: usize, _: &SchedInput<'_>) -> Decision {
        self.0
    }
}

#[test]
fn a_closure_is_a_factory_of_a_custom_scheduler() {
    let paths = [snapshot(0, 1, 0, u64::MAX), snapshot(1, 1, 0, u64::MAX)];
    let chosen = Decision::Send(paths[1].id);
    let config = SchedulerConfig::custom(move || Box::new(Fixed(chosen)) as Box<dyn Schedule + Send>);
    assert_eq!(send(&mut config.build(), &paths, 2, 100), [1, 1]);
    assert_eq!((config.name(), SchedulerConfig::from(SchedulerKind::Bm).name()), ("custom", "bm"));
}

#[test]
fn a_decision_for_a_path_that_is_full_or_no_candidate_is_a_wait() {
    let paths = [snapshot(0, 1, 0, 2_000), snapshot(1, 1, 0, 500)];
    let input = SchedInput { snapshots: &paths, ..SchedInput::default() };
    let decide = |decision, input: &SchedInput<'_>| super::choose(&mut Fixed(decision), 1_000, input);
    let [open, full] = paths.map(|path| Decision::Send(path.id));
    assert_eq!([decide(open, &input), decide(full, &input)], [open, Decision::Wait]);
    assert_eq!(decide(open, &SchedInput { candidates: PathSet::only(paths[1].id), ..input }), Decision::Wait);
    assert_eq!(decide(Decision::Send(PathId { slot: 9, generation: 0 }), &input), Decision::Wait);
}

#[test]
fn every_kind_has_a_name_of_its_own() {
    for (name, kind) in SchedulerKind::NAMES {
        assert_eq!(kind.name(), *name);
    }
}

/// Paths with windows that are empty, partly used or full, and pacers that let something pass or not.
fn snapshots() -> impl Strategy<Value = Vec<PathSnapshot>> {
    let used = prop_oneof![Just(0.0), Just(1.0), 0.0..1.0f64];
    let path = (1u32..=10_000, 0u64..400, 1_472u64..1 << 20, used, any::<bool>(), 1u64..1_000);
    prop::collection::vec(path, 1..=crate::id::MAX_PATHS).prop_map(|paths| (0..).zip(paths).map(path_of).collect())
}

fn path_of((slot, (weight, srtt, cwnd, used, paced, mbit)): (u8, (u32, u64, u64, f64, bool, u64))) -> PathSnapshot {
    let path = windowed(slot, srtt, cwnd, (cwnd as f64 * used) as u64);
    let opens_in = if paced || path.window < 1_472 { Duration::from_millis(1) } else { Duration::ZERO };
    let room = if paced { 0 } else { path.window };
    let oldest = if path.in_flight > 0 { path.srtt } else { Duration::ZERO };
    PathSnapshot {
        weight,
        room,
        paced: paced && path.window >= 1_472,
        opens_in,
        oldest,
        rate: Rate::from_bits(mbit * 1_000_000),
        ..path
    }
}

proptest! {
    #[test]
    fn no_scheduler_exceeds_a_window(inputs in prop::collection::vec((snapshots(), any::<u16>(), 1u64..1 << 22), 1..20), len in 40usize..1_472) {
        for (name, kind) in SchedulerKind::NAMES {
            let mut scheduler = kind.build();
            let mut now = Time::START;
            for (paths, bucket, backlog) in &inputs {
                now += Duration::from_millis(7);
                let input = SchedInput { snapshots: paths, backlog: *backlog, now, bucket: *bucket, ..SchedInput::default() };
                if let Some(retransmit) = scheduler.on_idle(&input) {
                    prop_assert!(input.open(1_472).any(|open| open.id == retransmit.to), "{name}");
                }
                if let Some(path) = scheduler.choose(len, &input).path() {
                    prop_assert!(input.open(len).any(|open| open.id == path), "{name}");
                    scheduler.on_sent(path, len, &input);
                }
            }
        }
    }

    #[test]
    fn no_scheduler_waits_without_an_event_that_ends_the_wait(inputs in prop::collection::vec((snapshots(), any::<u16>(), 1u64..1 << 22), 1..20), len in 40usize..1_472) {
        for (name, kind) in SchedulerKind::NAMES {
            let mut scheduler = kind.build();
            for (paths, bucket, backlog) in &inputs {
                let input = SchedInput { snapshots: paths, backlog: *backlog, now: Time::START, bucket: *bucket, ..SchedInput::default() };
                scheduler.on_idle(&input);
                if scheduler.choose(len, &input) == Decision::Wait {
                    // An acknowledgement, or the pacer.
                    let comes = paths.iter().any(|path| path.in_flight > 0) || scheduler.wait(len, &input).is_some();
                    prop_assert!(comes, "{name}");
                }
            }
        }
    }

    #[test]
    fn a_path_that_is_all_there_is_gets_everything_it_has_room_for(path in snapshots(), bucket: u16, backlog in 1u64..1 << 22) {
        let paths = [PathSnapshot { room: path[0].window, opens_in: Duration::ZERO, min_rtt: path[0].srtt, ..path[0] }];
        for (name, kind) in SchedulerKind::NAMES {
            let input = SchedInput { snapshots: &paths, backlog, now: Time::START, bucket, ..SchedInput::default() };
            let decision = kind.build().choose(40, &input);
            prop_assert_eq!(decision == Decision::Wait, paths[0].room < 40, "{}", name);
        }
    }

    #[test]
    fn weighted_shares_follow_any_weights(weights in prop::collection::vec(1u32..=100, 2..6)) {
        let paths: Vec<_> = (0..).zip(&weights).map(|(slot, weight)| snapshot(slot, *weight, 0, u64::MAX)).collect();
        let total: u32 = weights.iter().sum();
        let sent = send(&mut SchedulerKind::Weighted.build(), &paths, 20 * total as usize, 1_400);
        for path in &paths {
            prop_assert!((share(&sent, path.id.slot) - f64::from(path.weight) / f64::from(total)).abs() < 1e-9);
        }
    }

    #[test]
    fn the_same_scenes_lead_to_the_same_choices(paths in snapshots(), len in 40usize..1_472) {
        for (_, kind) in SchedulerKind::NAMES {
            prop_assert_eq!(send(&mut kind.build(), &paths, 50, len), send(&mut kind.build(), &paths, 50, len));
        }
    }
}
