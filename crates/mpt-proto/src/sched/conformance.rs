//! What every scheduler must do, checked over all of them.

use super::*;
use proptest::prelude::*;

fn view(slot: u8, weight: u32, srtt_ms: u64, room: u64) -> View {
    View {
        id: PathId { slot, generation: 0 },
        weight,
        srtt: Duration::from_millis(srtt_ms),
        room,
        burst: 1_500,
        ..View::default()
    }
}

/// Sends `count` packets of `len` bytes and says over which slots.
fn send(scheduler: &mut Scheduler, paths: &[View], count: usize, len: usize) -> Vec<u8> {
    let scene = Scene { paths, backlog: 1 << 30 };
    let mut sent = Vec::new();
    for _ in 0..count {
        if let Decision::Send(path) = scheduler.choose(len, &scene) {
            scheduler.on_sent(path, len, &scene);
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
    let paths = [view(0, 3, 0, u64::MAX), view(1, 1, 0, u64::MAX)];
    assert_eq!(send(&mut Scheduler::new(Kind::Weighted), &paths, 8, 100), [0, 0, 1, 0, 0, 0, 1, 0]);
}

#[test]
fn twelve_co_prime_weights_are_kept() {
    // The weights with which the original uses only the path of weight 41 (original-mpt.md section 5).
    let weights = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41];
    let total: u32 = weights.iter().sum();
    let paths: Vec<_> = (0..).zip(weights).map(|(slot, weight)| view(slot, weight, 0, u64::MAX)).collect();
    let sent = send(&mut Scheduler::new(Kind::Weighted), &paths, 10 * total as usize, 1_400);
    for path in &paths {
        let count = sent.iter().filter(|slot| **slot == path.id.slot).count();
        assert_eq!(count, 10 * path.weight as usize);
    }
}

#[test]
fn extreme_weights_neither_overflow_nor_starve() {
    let paths = [view(0, 10_000, 0, u64::MAX), view(1, 1, 0, u64::MAX)];
    let sent = send(&mut Scheduler::new(Kind::Weighted), &paths, 20_002, 65_000);
    assert_eq!(sent.iter().filter(|slot| **slot == 1).count(), 2);
}

#[test]
fn round_robin_ignores_weights() {
    let paths = [view(0, 9, 0, u64::MAX), view(1, 1, 0, u64::MAX), view(2, 5, 0, u64::MAX)];
    assert_eq!(send(&mut Scheduler::new(Kind::RoundRobin), &paths, 6, 100), [0, 1, 2, 0, 1, 2]);
}

#[test]
fn min_rtt_takes_the_next_path_when_the_first_is_full() {
    let mut scheduler = Scheduler::new(Kind::MinRtt);
    assert_eq!(send(&mut scheduler, &[view(0, 1, 40, 2_000), view(1, 1, 10, 2_000)], 1, 1_400), [1]);
    assert_eq!(send(&mut scheduler, &[view(0, 1, 40, 2_000), view(1, 1, 10, 1_000)], 1, 1_400), [0]);
}

#[test]
fn somebodys_experiment_needs_one_box() {
    struct Last;
    impl Schedule for Last {
        fn choose(&mut self, len: usize, scene: &Scene<'_>) -> Decision {
            scene.open(len).last().map_or(Decision::Wait, |path| Decision::Send(path.id))
        }
    }
    let paths = [view(0, 1, 0, u64::MAX), view(1, 1, 0, u64::MAX)];
    assert_eq!(send(&mut Scheduler::Custom(Box::new(Last)), &paths, 2, 100), [1, 1]);
}

fn scenes() -> impl Strategy<Value = Vec<View>> {
    let path = (1u32..=10_000, 0u64..400, prop_oneof![Just(0), Just(u64::MAX), 0u64..5_000]);
    prop::collection::vec(path, 1..=MAX_PATHS_IN_TEST)
        .prop_map(|paths| (0..).zip(paths).map(|(slot, (weight, srtt, room))| view(slot, weight, srtt, room)).collect())
}
const MAX_PATHS_IN_TEST: usize = crate::path::MAX_PATHS;

proptest! {
    #[test]
    fn no_scheduler_uses_a_full_path_or_waits_beside_an_open_one(scenes in prop::collection::vec(scenes(), 1..20), len in 40usize..9_000) {
        for (_, kind) in Kind::NAMES {
            let mut scheduler = Scheduler::new(*kind);
            for paths in &scenes {
                let scene = Scene { paths, backlog: 1 << 30 };
                match scheduler.choose(len, &scene) {
                    Decision::Wait => prop_assert_eq!(scene.open(len).count(), 0),
                    Decision::Send(path) => {
                        prop_assert!(scene.open(len).any(|open| open.id == path));
                        scheduler.on_sent(path, len, &scene);
                    }
                }
            }
        }
    }

    #[test]
    fn weighted_shares_follow_any_weights(weights in prop::collection::vec(1u32..=100, 2..6)) {
        let paths: Vec<_> = (0..).zip(&weights).map(|(slot, weight)| view(slot, *weight, 0, u64::MAX)).collect();
        let total: u32 = weights.iter().sum();
        let sent = send(&mut Scheduler::new(Kind::Weighted), &paths, 20 * total as usize, 1_400);
        for path in &paths {
            prop_assert!((share(&sent, path.id.slot) - f64::from(path.weight) / f64::from(total)).abs() < 1e-9);
        }
    }

    #[test]
    fn the_same_scenes_lead_to_the_same_choices(paths in scenes(), len in 40usize..9_000) {
        for (_, kind) in Kind::NAMES {
            prop_assert_eq!(send(&mut Scheduler::new(*kind), &paths, 50, len), send(&mut Scheduler::new(*kind), &paths, 50, len));
        }
    }
}
