//! A peer with valid keys that sends any frames: a million steps of the fuzz harness, with the laws after each.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/harness/attacker.rs"]
mod attacker;
#[path = "../../../fuzz/harness/malicious_peer.rs"]
mod malicious_peer;
mod support;

use malicious_peer::Harness;
use mpt_proto::peer::MAX_HELD_BYTES;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use support::heap::Counting;

#[global_allocator]
static HEAP: Counting = Counting;

/// Steps of one run; `MPT_MALICIOUS_STEPS` is the count of a long one.
const STEPS: u64 = 1_000_000;
/// Steps of one game: after a restart of both ends the next begins.
const GAME: u64 = 20_000;

#[test]
fn whatever_an_authenticated_peer_sends_it_costs_little_and_others_nothing() {
    let wanted = std::env::var("MPT_MALICIOUS_STEPS").map_or(STEPS, |steps| steps.parse().unwrap());
    let (mut done, mut most) = (0, (0, 0));
    for game in 0.. {
        let mut random = Pcg64Mcg::seed_from_u64(game);
        println!("game {game}");
        let mut harness = Harness::new(game as u8, || HEAP.bytes());
        let (mut script, mut steps) = (vec![0; 1 << 14], 0);
        while steps < GAME {
            random.fill_bytes(&mut script);
            steps += harness.run(&script);
        }
        (done, most) = (done + steps, (most.0.max(harness.most.0), most.1.max(harness.most.1)));
        if done >= wanted {
            break;
        }
    }
    println!("{done} steps: {:.1} MB held, {:.1} MB allocated", most.0 as f64 / 1e6, most.1 as f64 / 1e6);
    assert!(most.0 >= MAX_HELD_BYTES && most.1 > 20_000_000, "the games reach the limit: {most:?}");
}

#[test]
fn the_fuzz_seeds_pass() {
    let folder = format!("{}/../../fuzz/seeds/malicious_peer", env!("CARGO_MANIFEST_DIR"));
    for file in std::fs::read_dir(&folder).unwrap() {
        let file = file.unwrap().path();
        println!("{}", file.display());
        malicious_peer::check(&std::fs::read(file).unwrap());
    }
}
