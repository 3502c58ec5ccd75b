//! A server that is killed and started again, over two paths that lose datagrams. Its client may be in use or idle.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::crypto::handshake::Capabilities;
use mpt_proto::time::Time;
use mpt_proto::wire::frame::CloseFrame;
use mpt_sim::seed::Seed;
use support::wire::{Attacker, INITIATION, Wire, handshake_type};

const MS: Duration = Duration::from_millis(1);
const DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(60)];
/// Longer than the session is young: no probe of its beginning is under way.
const KILLED: Duration = Duration::from_secs(20);

/// Loses datagrams at random, and all while the server does not run.
fn network(seed: Seed, loss: f64, started: Duration) -> Attacker {
    let mut count = 0_u64;
    Box::new(move |now, datagram| {
        count += 1;
        let dead = (Time::after(KILLED)..Time::after(started)).contains(&now);
        match dead || seed.fork(&format!("datagram {count}")).unit() < loss {
            true => vec![],
            false => vec![datagram],
        }
    })
}

/// One game: whether the client sends, what the network loses, how long the server does not run, and whether it knows
/// the addresses of its last run afterwards.
#[derive(Clone, Copy)]
struct Game {
    in_use: bool,
    loss: f64,
    down: Duration,
    recalls: bool,
}

/// Returns the time from the start of the server to the first packet of each host that wants to send: of both if the
/// client is in use, of the server alone if it is idle.
fn recovery(game: Game, seed: Seed) -> Duration {
    let started = KILLED + game.down;
    let mut wire = Wire::new(&DELAYS, network(seed, game.loss, started));
    wire.run(Duration::from_secs(5));
    wire.client_sends = game.in_use;
    wire.run(KILLED);
    let addresses: Vec<_> = wire.ends[1].learned_paths().map(|(key, link, at)| (*key, link, at)).collect();
    assert!(!addresses.is_empty(), "{seed:?}");
    wire.run(started);
    wire.restart(1, Capabilities::new(true));
    for (key, link, at) in addresses.iter().filter(|_| game.recalls) {
        wire.ends[1].recall_path(wire.now, key, *link, *at).unwrap();
    }
    wire.server_sends = true;
    let ends = if game.in_use { 0..2 } else { 0..1 };
    for step in 1..=300 {
        wire.run(started + MS * 100 * step);
        let first = |end: usize| wire.delivered[end].iter().find(|at| **at > Time::after(started)).copied();
        if let Some(all) = ends.clone().map(first).collect::<Option<Vec<_>>>() {
            return *all.iter().max().unwrap() - Time::after(started);
        }
    }
    panic!("no traffic for 30 s: {seed:?}");
}

/// Returns the longest recovery, and that of 99 %, over seeds, losses and times in milliseconds for which the server
/// does not run.
fn longest(in_use: bool, recalls: bool, downs: &[u64]) -> [Duration; 2] {
    let mut all = Vec::new();
    for (loss, down) in [0.0, 0.02, 0.1].iter().flat_map(|loss| downs.iter().map(move |down| (*loss, *down))) {
        for seed in 0..SEEDS {
            // Not in step with probes.
            let down = MS * (down + seed * 13) as u32;
            all.push(recovery(Game { in_use, loss, down, recalls }, Seed(seed)));
        }
    }
    all.sort_unstable();
    let [median, most, longest] = [all.len() / 2, all.len() * 99 / 100, all.len() - 1].map(|index| all[index]);
    println!("in use: {in_use}, addresses: {recalls}: median {median:?}, 99 % {most:?}, longest {longest:?}");
    [longest, most]
}

const SEEDS: u64 = 16;
const DOWNS: [u64; 5] = [50, 400, 1_000, 3_000, 7_000];

#[test]
fn a_restarted_server_carries_traffic_of_a_client_in_use_within_a_second() {
    // Of 10 % of all datagrams, those of a handshake are lost on both paths in one run of hundreds.
    let [longest, most] = longest(true, true, &DOWNS);
    assert!(most < Duration::from_secs(1) && longest < Duration::from_secs(2), "{most:?}, {longest:?}");
}

#[test]
fn a_restarted_server_carries_traffic_of_an_idle_client_within_two_seconds() {
    assert!(longest(false, true, &DOWNS)[0] < Duration::from_secs(2));
}

/// Without the addresses, for example because the client has another one by then, the client detects the silence after
/// a second, and initiates every 500 to 833 ms for the next seven. Two initiations in a row may be lost.
#[test]
fn a_client_in_use_finds_a_restarted_server_by_itself_within_two_and_a_half_seconds() {
    for down in [50, 400, 1_000, 3_000] {
        let [longest, _] = longest(true, false, &[down]);
        assert!(longest < MS * 2_500, "{down} {longest:?}");
    }
}

/// `mpt restart`: the client closes its session and starts again at once. Its initiation arrives together with the
/// CLOSE, or before it if the quicker path loses the CLOSE.
#[test]
fn a_client_that_closes_its_session_and_starts_again_has_no_gap() {
    let restarted = Duration::from_secs(5);
    for quick_path_loses in [false, true] {
        let attacker: Attacker = Box::new(move |now, sent| {
            let is_lost = quick_path_loses && sent.path == 0 && now == Time::after(restarted);
            let is_initiation = handshake_type(&sent.bytes) == Some(INITIATION);
            if is_lost && !is_initiation { vec![] } else { vec![sent] }
        });
        let mut wire = Wire::new(&[MS * 20, MS * 40], attacker);
        wire.run(restarted);
        wire.ends[0].close(wire.now, 0, CloseFrame::REMOVED, "");
        wire.run(restarted);
        wire.restart(0, Capabilities::new(true));
        wire.run(restarted * 2);
        let gap = wire.longest_outage(1, restarted, restarted * 2);
        assert!(gap < MS * 300, "{gap:?}, quick path loses: {quick_path_loses}");
    }
}
