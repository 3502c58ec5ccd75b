//! Handshakes over paths that an attacker controls: a tunnel lasts while one path carries both directions.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::time::Time;
use support::wire::{Attacker, RESPONSE, Wire, handshake_type};

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
