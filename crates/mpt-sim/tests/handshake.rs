//! Handshakes over paths that an attacker controls: a tunnel lasts while one path carries both directions.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::crypto::handshake::Clock;
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::RecvMeta;
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use mpt_sim::net::address;
use support::native::{Datagram, Pair, WALL_CLOCK, endpoint, endpoint_at, keys, numbers, path_to, peer};
use support::wire::{Attacker, Carried, INITIATION, RESPONSE, Wire, forged_cookie_reply, handshake_type, nobody};

const SECOND: Duration = Duration::from_secs(1);
/// One-way delays of two paths: the first answers first.
const DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(40)];
/// Three round trips of the slower path, and a second.
const SOON: Duration = Duration::from_millis(1_240);

/// From `start` on, the first path loses what goes to the client: everything, or the responses of handshakes.
fn half_dead(start: Duration, responses_only: bool) -> Attacker {
    Box::new(move |now, datagram| {
        let is_target = !responses_only || handshake_type(&datagram.bytes) == Some(RESPONSE);
        let is_lost = now >= Time::after(start) && (datagram.to, datagram.path) == (0, 0) && is_target;
        if is_lost { vec![] } else { vec![datagram] }
    })
}

#[test]
fn a_path_that_brings_nothing_back_does_not_prevent_the_first_session() {
    for responses_only in [false, true] {
        let mut wire = Wire::new(&DELAYS, half_dead(Duration::ZERO, responses_only));
        wire.run(SECOND * 10);
        let first = wire.delivered[1].first().copied();
        assert!(first.is_some_and(|at| at <= Time::after(SOON)), "responses only {responses_only}: {first:?}");
    }
}

#[test]
fn a_path_that_falls_half_dead_in_use_ends_no_tunnel() {
    for responses_only in [false, true] {
        let mut wire = Wire::new(&DELAYS, half_dead(SECOND * 5, responses_only));
        wire.run(SECOND * 600);
        let outage = wire.longest_outage(1, SECOND, SECOND * 600);
        assert!(outage <= SOON, "responses only {responses_only}: {outage:?}");
    }
}

#[test]
fn forged_cookie_replies_to_every_handshake_message_end_no_tunnel() {
    // The last forgeries to each end are repeated every second, because a cookie is good for 120 s only.
    let mut last: [Vec<Carried>; 2] = [vec![], vec![]];
    let mut next = Time::START;
    let mut wire = Wire::new(
        &DELAYS,
        Box::new(move |now, seen| {
            let forged = forged_cookie_reply(now, &seen);
            if let Some(forged) = &forged {
                last[forged.to].truncate(3);
                last[forged.to].insert(0, forged.clone());
            }
            let repeated = if now >= next { last.concat() } else { vec![] };
            next = if now >= next { now + SECOND } else { next };
            [seen].into_iter().chain(forged).chain(repeated).collect()
        }),
    );
    wire.run(SECOND * 600);
    let outage = wire.longest_outage(1, SECOND, SECOND * 600);
    let refused = [0, 1].map(|end: usize| wire.ends[end].status().drops.of(Dropped::BadMac));
    assert!(outage <= SECOND / 2 && refused == [0, 0], "{outage:?}, refused {refused:?}");
}

/// Returns an initiation of a stranger to the server, whose public key is all that it needs.
fn stranger_initiation() -> Vec<u8> {
    let server = vec![peer("server".into(), &keys(2), vec![path_to(1)], &["0.0.0.0/0"])];
    let mut stranger = endpoint(keys(99), 99, server);
    let batch = stranger.poll_transmit(Time::START).unwrap();
    assert_eq!(handshake_type(batch.bytes()), Some(INITIATION));
    batch.bytes().to_vec()
}

/// The source addresses of the flood are those of the client. The flood of 5000 a second lasts for 600 s.
#[test]
fn a_flood_in_the_name_of_the_client_ends_no_tunnel() {
    let mut wire = Wire::new(&DELAYS, nobody());
    let forged = stranger_initiation();
    wire.run(SECOND * 5);
    for turn in 1..600 * 20 {
        for number in 0..250 {
            let (link, from) = (LinkId(number % 2), address(0, usize::from(number % 2)));
            let received = RecvMeta { link, from, tos: 0, segment: forged.len(), arrived_at: None };
            wire.deliver_from(1, &received, &mut forged.clone());
        }
        wire.run(SECOND * 5 + SECOND / 20 * turn);
    }
    let outage = wire.longest_outage(1, SECOND, SECOND * 604);
    assert!(outage <= SECOND / 2, "{outage:?}");
}

/// Restarts the client of an established pair at second 10, with this clock.
fn restarted_with(clock: impl FnOnce(&Pair) -> Clock) -> Pair {
    let mut pair = Pair::established();
    pair.advance(SECOND * 9);
    let server = vec![peer("far".into(), &keys(2), vec![path_to(1)], &["0.0.0.0/0"])];
    pair.ends[0] = endpoint_at(pair.now, clock(&pair), keys(1), 3, server);
    pair
}

fn stale(pair: &Pair) -> u64 {
    pair.ends[1].status().drops.of(Dropped::StaleHandshake)
}

/// Returns true if a packet of the client arrives at once.
fn carries(pair: &mut Pair) -> bool {
    pair.queue_packet(0, 7, 100);
    pair.exchange();
    !pair.delivered(1).is_empty()
}

/// A host without a battery for its clock: it starts an hour behind, and network time sets it right after 20 s.
#[test]
fn a_host_whose_clock_was_wrong_at_the_start_gets_in_when_it_is_set() {
    let mut pair = restarted_with(|_| Clock::new(WALL_CLOCK - SECOND * 3_600));
    pair.advance(SECOND * 20);
    assert!(!carries(&mut pair) && stale(&pair) >= 5, "{}", stale(&pair));
    let (refused, wall_clock) = (stale(&pair), WALL_CLOCK + (pair.now - Time::START));
    pair.ends[0].set_wall_clock(pair.now, wall_clock);
    // An initiation is repeated after 5.4 s at most.
    pair.advance(SECOND * 6);
    assert_eq!((carries(&mut pair), stale(&pair)), (true, refused), "the next initiation gets in");
}

#[test]
fn a_host_that_remembers_its_last_timestamp_gets_in_at_once_with_a_clock_that_is_behind() {
    let mut pair = restarted_with(|pair| {
        let mut clock = Clock::new(WALL_CLOCK - SECOND * 3_600);
        clock.resume_after(pair.ends[0].last_timestamp().expect("an initiation was sent"));
        clock
    });
    assert!(carries(&mut pair));
    assert_eq!(stale(&pair), 0);
}

#[test]
fn a_clock_that_is_set_back_ends_no_tunnel() {
    let mut pair = Pair::established();
    for turn in 0..600 {
        let wall_clock = (WALL_CLOCK + (pair.now - Time::START)).saturating_sub(SECOND * 3_600 * (turn / 100));
        pair.ends[0].set_wall_clock(pair.now, wall_clock);
        pair.advance(SECOND);
        assert!(carries(&mut pair), "at {:?}", pair.now);
    }
    assert_eq!(stale(&pair), 0);
}

/// Returns the datagrams that are sealed under a session, not handshakes.
fn sealed(datagrams: &[Datagram]) -> usize {
    datagrams.iter().filter(|datagram| handshake_type(&datagram.bytes).is_none()).count()
}

#[test]
fn after_a_suspend_no_old_key_seals_or_opens_and_traffic_flows_within_a_round_trip() {
    for suspended in [0, 1] {
        let mut pair = Pair::established();
        let other = 1 - suspended;
        assert!(carries(&mut pair));
        // An inner packet waits here; a datagram under the old key is on its way to us.
        pair.queue_packet(suspended, 1, 100);
        let to_us = pair.packet(other, 2, 100);
        pair.ends[suspended].handle_suspend(pair.now, [77; 32]);

        let unknown = |pair: &Pair| {
            let status = pair.ends[suspended].status();
            let drops = status.peers.iter().map(|peer| &peer.drops).chain([&status.drops]);
            drops.map(|drops| drops.of(Dropped::UnknownSession)).sum::<u64>()
        };
        let before = unknown(&pair);
        pair.deliver(suspended, &to_us);
        assert_eq!((unknown(&pair), pair.delivered(suspended).len()), (before + 1, 0));

        // Half a round trip, and the other half: the first datagram under a key follows the response.
        let initiation = pair.poll(suspended);
        assert_eq!((sealed(&initiation), initiation.len()), (0, 1));
        pair.deliver(other, &initiation[0]);
        let response = pair.poll(other);
        let response = response.iter().find(|datagram| handshake_type(&datagram.bytes).is_some());
        pair.deliver(suspended, response.expect("a response"));
        let data = pair.poll(suspended);
        assert!(sealed(&data) > 0);
        data.iter().for_each(|datagram| pair.deliver(other, datagram));
        assert_eq!(numbers(&pair.delivered(other)), [1], "end {suspended} was suspended");

        // Both directions, and the next rekey.
        pair.exchange();
        pair.queue_packet(other, 3, 100);
        pair.exchange();
        assert!(numbers(&pair.delivered(suspended)).contains(&3));
        pair.advance(SECOND * 300);
        assert!(carries(&mut pair));
    }
}

/// A virtual machine that is set back repeats its packet numbers, so the key must be another.
#[test]
fn two_copies_of_a_host_share_no_key_after_they_learn_of_it() {
    let first_sealed = |seed: u8| {
        let mut pair = Pair::established();
        pair.ends[0].handle_suspend(pair.now, [seed; 32]);
        let initiation = pair.poll(0).remove(0);
        pair.deliver(1, &initiation);
        let response = pair.poll(1).remove(0);
        pair.deliver(0, &response);
        (initiation.bytes, pair.packet(0, 9, 100).bytes)
    };
    let (one, two) = (first_sealed(1), first_sealed(2));
    assert_ne!(one.0[..40], two.0[..40], "the ephemeral keys");
    assert_ne!(one.1[12..], two.1[12..]);
}
