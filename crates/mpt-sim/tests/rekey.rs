//! Rekeys inside the session: a tunnel in use lasts whatever happens to open handshakes.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::crypto::handshake::Capabilities;
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::RecvMeta;
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use mpt_sim::net::address;
use support::native::{endpoint, keys, path_to, peer};
use support::wire::{
    Attacker, COOKIE_REPLY, Carried, INITIATION, RESPONSE, Wire, forged_cookie_reply, handshake_type, nobody,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
/// One-way delays of two paths: the first answers first.
const DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(40)];
/// Packets come every 100 ms; a lost one is sent again within two round trips of the slower path.
const NO_OUTAGE: Duration = Duration::from_millis(400);

/// The session index in the clear header of a data datagram.
fn session_of(bytes: &[u8]) -> Option<[u8; 3]> {
    bytes.strip_prefix(&[0x30, 0, 0x88, 0xb5])?.first_chunk().copied()
}

/// Datagrams that passed on the wire, as an observer sees them.
#[derive(Default)]
struct Seen {
    initiations: Vec<Time>,
    /// The times at which a session to the server was first used.
    sessions: Vec<Time>,
    indexes: Vec<[u8; 3]>,
}

/// Observes what `attacker` lets pass.
fn observed(mut attacker: Attacker) -> (std::rc::Rc<std::cell::RefCell<Seen>>, Attacker) {
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Seen::default()));
    let shared = seen.clone();
    let observer = Box::new(move |now, datagram: Carried| {
        let mut seen = shared.borrow_mut();
        if handshake_type(&datagram.bytes) == Some(INITIATION) && datagram.path == 0 {
            seen.initiations.push(now);
        }
        if let Some(session) = session_of(&datagram.bytes).filter(|_| datagram.to == 1)
            && !seen.indexes.contains(&session)
        {
            seen.indexes.push(session);
            seen.sessions.push(now);
        }
        attacker(now, datagram)
    });
    (seen, observer)
}

fn rate(seed: u64) -> impl FnMut(u64) -> bool {
    let mut state = seed;
    move |percent| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 100 < percent
    }
}

/// Rekeys follow each other by 120 s to 121 s and a second of retries for each that was lost.
fn assert_rekeyed(seen: &Seen, until: Duration) {
    let gaps: Vec<_> = seen.sessions.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let wanted = until.as_secs() / 120 - 1;
    assert!(gaps.len() as u64 >= wanted, "{} rekeys in {until:?}", gaps.len());
    assert!(gaps.iter().all(|gap| (SECOND * 119..SECOND * 135).contains(gap)), "{gaps:?}");
}

#[test]
fn a_session_rekeys_every_two_minutes_for_an_hour_without_an_open_handshake() {
    let (seen, attacker) = observed(nobody());
    let mut wire = Wire::new(&DELAYS, attacker);
    wire.run(HOUR - SECOND);
    assert_eq!(seen.borrow().initiations.len(), 1, "{:?}", seen.borrow().initiations);
    assert_rekeyed(&seen.borrow(), HOUR);
    assert!(wire.longest_outage(1, SECOND, HOUR - SECOND) <= NO_OUTAGE);
}

#[test]
fn a_session_rekeys_for_an_hour_with_a_third_of_all_datagrams_lost() {
    let mut lost = rate(7);
    let (seen, attacker) = observed(Box::new(move |_, datagram| if lost(33) { vec![] } else { vec![datagram] }));
    let mut wire = Wire::new(&DELAYS, attacker);
    wire.run(HOUR - SECOND);
    assert_rekeyed(&seen.borrow(), HOUR);
    let late: Vec<_> = seen.borrow().initiations.iter().copied().filter(|at| *at > Time::after(SECOND * 30)).collect();
    assert_eq!(late, [], "no open handshake once there is a session");
}

/// One path loses what goes to the client, then what goes to the server, then the same of the other path.
#[test]
fn a_session_rekeys_for_an_hour_while_each_path_is_half_dead_in_turn() {
    let (seen, attacker) = observed(Box::new(|now: Time, datagram| {
        let turn = (now - Time::START).as_secs() / 300 % 4;
        let is_lost = (datagram.path as u64, datagram.to as u64) == (turn / 2, turn % 2) && now > Time::after(SECOND);
        if is_lost { vec![] } else { vec![datagram] }
    }));
    let mut wire = Wire::new(&DELAYS, attacker);
    wire.run(HOUR - SECOND);
    assert_rekeyed(&seen.borrow(), HOUR);
    let outage = wire.longest_outage(1, SECOND, HOUR - SECOND);
    assert!(outage <= SECOND * 5 / 4, "{outage:?}");
}

/// Everything that is open is dropped once the session is there: handshakes come through only after two hours.
#[test]
fn who_stops_all_open_handshakes_ends_a_session_after_two_hours_and_not_before() {
    let is_open = |bytes: &[u8]| handshake_type(bytes).is_some();
    let (seen, attacker) =
        observed(Box::new(
            move |now, datagram| {
                if now > Time::after(SECOND) && is_open(&datagram.bytes) { vec![] } else { vec![datagram] }
            },
        ));
    let mut wire = Wire::new(&DELAYS, attacker);
    wire.run(HOUR * 2 - SECOND);
    assert!(wire.longest_outage(1, SECOND, HOUR * 2 - SECOND) <= NO_OUTAGE);
    assert_rekeyed(&seen.borrow(), HOUR * 2);
    let healing: Vec<_> = seen.borrow().initiations.iter().copied().skip(1).collect();
    assert!(healing.first().is_some_and(|at| (HOUR..HOUR + SECOND).contains(&(*at - Time::START))), "{healing:?}");
    wire.run(HOUR * 2 + SECOND * 400);
    let last = *wire.delivered[1].last().unwrap();
    assert!((HOUR * 2..HOUR * 2 + SECOND * 181).contains(&(last - Time::START)), "{last:?}");
    // The tunnel is back with the first handshake that arrives.
    wire.set_attacker(nobody());
    wire.run(HOUR * 2 + SECOND * 410);
    assert!(wire.longest_outage(1, HOUR * 2 + SECOND * 406, HOUR * 2 + SECOND * 410) <= NO_OUTAGE);
}

#[test]
fn a_handshake_proves_the_static_keys_every_hour() {
    let (seen, attacker) = observed(nobody());
    let mut wire = Wire::new(&DELAYS, attacker);
    wire.run(HOUR * 3 + SECOND * 60);
    let hours: Vec<_> = seen.borrow().initiations.iter().map(|at| (*at - Time::START).as_secs() / 60).collect();
    assert_eq!(hours, [0, 60, 120, 180]);
    assert!(wire.longest_outage(1, SECOND, HOUR * 3) <= NO_OUTAGE);
}

#[test]
fn an_old_peer_gets_open_handshakes_every_two_minutes() {
    for old in [0, 1] {
        let (seen, attacker) = observed(nobody());
        let mut wire = Wire::new(&DELAYS, attacker);
        wire.restart(old, Capabilities::new(true).without_rekeys());
        wire.run(HOUR);
        let count = seen.borrow().initiations.len();
        assert!((29..=31).contains(&count), "{count} initiations");
        assert!(wire.longest_outage(1, SECOND, HOUR) <= NO_OUTAGE);
    }
}

/// Returns an initiation of an unknown end to the end `to`.
fn strangers_initiation(to: usize) -> Vec<u8> {
    let far = vec![peer("far".into(), &keys(to as u16 + 1), vec![path_to(to)], &["0.0.0.0/0"])];
    let mut stranger = endpoint(keys(99), 99, far);
    stranger.poll_transmit(Time::START).unwrap().bytes().to_vec()
}

/// A flood keeps both ends under load, in the other's name, and an observer on every path answers each open message
/// with a forged cookie reply before the genuine one. 660 s are five rekeys.
#[test]
fn a_flood_and_forged_cookies_on_every_path_neither_end_nor_delay_a_rekey() {
    let (seen, attacker) = observed(Box::new(|now, datagram| {
        // Cookie replies of the ends are always late.
        let is_cookie = handshake_type(&datagram.bytes) == Some(COOKIE_REPLY);
        let forged = forged_cookie_reply(now, &datagram);
        if is_cookie { vec![] } else { forged.into_iter().chain([datagram]).collect() }
    }));
    let mut wire = Wire::new(&DELAYS, attacker);
    wire.run(SECOND * 5);
    let forged = [strangers_initiation(0), strangers_initiation(1)];
    for turn in 1..655 * 20 {
        for (end, number) in (0..2).flat_map(|end| (0..50).map(move |number| (end, number))) {
            let (link, from) = (LinkId(number % 2), address(1 - end, usize::from(number % 2)));
            let received = RecvMeta { link, from, tos: 0, segment: forged[end].len(), arrived_at: None };
            wire.deliver_from(end, &received, &mut forged[end].clone());
        }
        wire.run(SECOND * 5 + SECOND / 20 * turn);
    }
    assert_rekeyed(&seen.borrow(), SECOND * 660);
    let outage = wire.longest_outage(1, SECOND, SECOND * 658);
    assert!(outage <= NO_OUTAGE, "{outage:?}");
    assert_eq!(seen.borrow().initiations.len(), 2, "the first one, and its copy after the first forged reply");
}

/// Every short datagram arrives again after 100 s on the other path; the replay windows refuse it.
#[test]
fn replayed_rekeys_have_no_effect() {
    let mut recorded = std::collections::VecDeque::new();
    let (seen, attacker) = observed(Box::new(move |now: Time, datagram: Carried| {
        let mut out = vec![datagram.clone()];
        if datagram.bytes.len() < 400 {
            recorded.push_back((now + SECOND * 100, Carried { path: 1 - datagram.path, ..datagram }));
        }
        while recorded.front().is_some_and(|(at, _)| *at <= now) {
            out.extend(recorded.pop_front().map(|(_, datagram)| datagram));
        }
        out
    }));
    let mut wire = Wire::new(&DELAYS, attacker);
    wire.run(SECOND * 1_200);
    assert_rekeyed(&seen.borrow(), SECOND * 1_200);
    assert!(wire.longest_outage(1, SECOND, SECOND * 1_200) <= NO_OUTAGE);
}

/// An end restarts at each moment around the rekey at 120 s, while both ends send.
#[test]
fn a_restart_of_either_end_in_the_middle_of_a_rekey_is_over_within_seconds() {
    for (restarted, ms) in (0..2).flat_map(|end| (119_900..120_400).step_by(10).map(move |ms| (end, ms))) {
        let mut wire = Wire::new(&DELAYS, nobody());
        wire.server_sends = true;
        wire.run(Duration::from_millis(ms));
        wire.restart(restarted, Capabilities::new(true));
        wire.run(SECOND * 140);
        for to in 0..2 {
            let outage = wire.longest_outage(to, SECOND * 100, SECOND * 140);
            assert!(outage <= SECOND * 7 / 2, "end {restarted} at {ms} ms: {outage:?} to {to}");
        }
        for end in &wire.ends {
            let status = end.status();
            let all = status.peers.iter().map(|peer| &peer.drops).chain([&status.drops]);
            assert_eq!(all.map(|drops| drops.of(Dropped::NotAuthentic)).sum::<u64>(), 0, "end {restarted} at {ms} ms");
        }
    }
}

/// Responses of handshakes never arrive at the client, which is all that an observer needs to stop on an old version.
#[test]
fn who_stops_only_handshake_responses_does_not_end_a_session() {
    let mut wire = Wire::new(
        &DELAYS,
        Box::new(|now, datagram| {
            let is_response = handshake_type(&datagram.bytes) == Some(RESPONSE);
            if now > Time::after(SECOND) && is_response { vec![] } else { vec![datagram] }
        }),
    );
    wire.run(SECOND * 600);
    assert!(wire.longest_outage(1, SECOND, SECOND * 600) <= NO_OUTAGE);
}
