//! Exchanges with the scripted original: each command, each authentication type, both roles, and what is refused by
//! default. docs/guide/moving-from-the-original.md has these results as a table.

use mpt_proto::legacy::control::{Accept, Code, ControlChannel, ControlEvent, LegacyConnection, Refused};
use mpt_proto::legacy::wire::{AuthKey, AuthType, Opcode};

use crate::original::{Connection, DEFAULT_KEY, Original, Step};
use crate::peer::*;

/// Everything that the operator can permit.
const PERMITTED: (bool, bool) = (true, true);

/// The channel of host 1, with the connection if `known`.
fn ours(auth: AuthType, (unauthenticated, public_key): (bool, bool), known: bool) -> ControlChannel {
    let accept = Accept { unauthenticated, public_key, create: Some(secret()) };
    let mut ours = ControlChannel::new(accept, [1; 32]);
    if known {
        ours.add_connection(connection(1, auth));
    }
    ours
}

/// The connection of the scripted host 2.
fn theirs(auth: AuthType, key: &str) -> Connection {
    let paths = [10, 11].map(|net| (ip(&format!("192.168.{net}.2")), ip(&format!("192.168.{net}.1")), 0));
    Connection {
        local: ip("10.77.0.2"),
        remote: ip("10.77.0.1"),
        auth: auth as u8,
        key: key.into(),
        paths: paths.into(),
    }
}

fn original(connections: Vec<Connection>, auth: AuthType) -> Original {
    let mut original = Original::new(connections);
    original.global_key = SECRET.into();
    original.text = original.text.replace("auth_type = 0", &format!("auth_type = {}", auth as u8));
    original
}

/// Runs an exchange of the original with our channel; our channel answers a creation with `TEXT`.
fn run_theirs(
    ours: &mut ControlChannel,
    mut exchange: crate::original::Exchange,
) -> (Result<(), Refused>, Option<Step>) {
    let mut request = exchange.sent().to_vec();
    loop {
        if let Err(why) = ours.handle_datagram(ms(0), control(2), &request) {
            return (Err(why), None);
        }
        if let Some(ControlEvent::CreateRequested { connection: asked, text, .. }) = ours.poll_event() {
            let auth = text.lines().find_map(|line| line.strip_prefix("auth_type = ")?.parse().ok()).unwrap();
            let auth = AuthType::from_wire(auth).unwrap();
            ours.add_connection(LegacyConnection { created: true, ..connection(1, auth) });
            ours.answer_create(asked, Ok(&text));
        }
        match exchange.reply(&ours.poll_transmit().expect("an answer").bytes) {
            Step::Send(next) => request = next,
            done @ Step::Done(..) => return (Ok(()), Some(done)),
        }
    }
}

/// Delivers our requests to the original until nothing is due, and returns our events.
fn run_ours(ours: &mut ControlChannel, original: &mut Original) -> Vec<ControlEvent> {
    let mut now = 0;
    loop {
        while let Some(request) = ours.poll_transmit() {
            if let Some(reply) = original.receive(&request.bytes) {
                let _ = ours.handle_datagram(ms(now), control(2), &reply);
            }
        }
        if ours.next_deadline().is_none() {
            return events(ours);
        }
        now += 500;
        ours.handle_timeout(ms(now));
    }
}

fn failed(code: Code, opcode: Opcode) -> ControlEvent {
    let path = (opcode == Opcode::PathStatus).then_some(path(1));
    ControlEvent::ExchangeFailed { connection: pair(1), opcode, path, code }
}

fn confirmed() -> ControlEvent {
    ControlEvent::StatusConfirmed { connection: pair(1), path: path(1) }
}

#[test]
fn the_bytes_of_a_status_change_are_those_of_the_capture() {
    let hex = |text: &str| -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    };
    let ends = "00000000000000000000ffff0a4d0001 00000000000000000000ffff0a4d0002";
    let data = "00000000000000000000ffffc0a80b01 00000000000000000000ffffc0a80b02";
    let mut scripted = Original::new(vec![Connection {
        local: ip("10.77.0.1"),
        remote: ip("10.77.0.2"),
        auth: 0,
        key: DEFAULT_KEY.into(),
        paths: vec![(ip("192.168.11.1"), ip("192.168.11.2"), 0)],
    }]);
    let mut far = Original::new(vec![theirs(AuthType::None, DEFAULT_KEY)]);
    let mut channel = ours(AuthType::None, PERMITTED, true);
    channel.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    let mut exchange = scripted.status(0, 0, true);
    for (request, reply) in [
        (format!("a2800000 01040000 {ends} 20000000"), format!("a2000000 02040000 {ends} 20000000")),
        (format!("a2800000 03040000 {ends} {data}"), format!("a2000000 04040000 {ends}")),
    ] {
        assert_eq!(exchange.sent(), hex(&request), "the scripted original");
        assert_eq!(channel.poll_transmit().unwrap().bytes, hex(&request), "ours");
        let answer = far.receive(&hex(&request)).unwrap();
        assert_eq!(answer, hex(&reply));
        exchange.reply(&answer);
        channel.handle_datagram(ms(0), control(2), &answer).unwrap();
    }
    assert_eq!((far.connections[0].paths[1].2, events(&mut channel)), (0x80, vec![confirmed()]));
    scripted.connections.clear();
}

#[test]
fn a_status_change_of_ours_is_applied_by_the_original_for_each_type() {
    for auth in TYPES {
        let mut peer = original(vec![theirs(auth, SECRET)], auth);
        let mut ours = ours(auth, (false, false), true);
        for (down, status) in [(true, 0x80), (false, 0)] {
            ours.send_status(ms(0), pair(1), control(2), path(1), !down).unwrap();
            assert_eq!(run_ours(&mut ours, &mut peer), [confirmed()], "{auth:?}");
            assert_eq!(peer.connections[0].paths[1].2, status, "{auth:?}");
        }
    }
}

#[test]
fn a_status_change_of_the_original_is_applied_if_permitted() {
    for auth in TYPES {
        for permitted in [false, true] {
            let peer = original(vec![theirs(auth, SECRET)], auth);
            let mut ours = ours(auth, (permitted, false), true);
            let (result, done) = run_theirs_status(&mut ours, peer.status(0, 1, true));
            let applied = permitted || auth == AuthType::Sha256;
            assert_eq!(result, if applied { Ok(()) } else { Err(Refused::Unauthenticated) }, "{auth:?}");
            assert_eq!(done.is_some(), applied);
        }
    }
}

/// As [`run_theirs`]; checks the event.
fn run_theirs_status(
    ours: &mut ControlChannel,
    mut exchange: crate::original::Exchange,
) -> (Result<(), Refused>, Option<Step>) {
    for _ in 0..2 {
        if let Err(why) = ours.handle_datagram(ms(0), control(2), exchange.sent()) {
            return (Err(why), None);
        }
        if let done @ Step::Done(..) = exchange.reply(&ours.poll_transmit().expect("an answer").bytes) {
            assert_eq!((&done, events(ours)), (&Step::Done(0, vec![]), vec![status(1, false)]));
            return (Ok(()), Some(done));
        }
    }
    panic!("no end")
}

#[test]
fn the_original_creates_a_connection_of_each_type_at_ours() {
    for auth in TYPES {
        let mut peer = original(vec![theirs(auth, SECRET)], auth);
        let mut ours = ours(auth, PERMITTED, false);
        let (result, done) = run_theirs(&mut ours, peer.create(0));
        assert_eq!(result, Ok(()), "{auth:?}");
        assert_eq!(done, Some(Step::Done(0, peer.text.clone().into_bytes())), "{auth:?}");

        // It continues with the key that the text does not have.
        peer.take_answer(0);
        let (result, _) = run_theirs_status(&mut ours, peer.status(0, 1, true));
        assert_eq!(result, Ok(()), "{auth:?}: its status change");
        ours.send_status(ms(0), pair(1), control(2), path(1), true).unwrap();
        assert_eq!(run_ours(&mut ours, &mut peer), [confirmed()], "{auth:?}: our status change");
        assert_eq!(run_theirs(&mut ours, peer.create(0)).1, Some(Step::Done(5, vec![1])), "{auth:?}: once more");
    }
}

#[test]
fn without_permission_a_creation_must_repeat_the_nonce_and_the_public_key_is_refused_afterwards() {
    for auth in [AuthType::None, AuthType::Nonce] {
        let peer = original(vec![theirs(auth, SECRET)], auth);
        let (result, _) = run_theirs(&mut ours(auth, (false, true), false), peer.create(0));
        assert_eq!(result, Err(Refused::WrongNonce), "{auth:?}");
    }
    let mut peer = original(vec![theirs(AuthType::Sha256, SECRET)], AuthType::Sha256);
    let mut ours = ours(AuthType::Sha256, (false, false), false);
    assert_eq!(run_theirs(&mut ours, peer.create(0)).0, Ok(()));
    peer.take_answer(0);
    assert_eq!(run_theirs_status(&mut ours, peer.status(0, 1, true)).0, Err(Refused::PublicKey));
}

#[test]
fn a_lone_third_round_creates_nothing_even_if_nonces_do_not_count() {
    let peer = original(vec![theirs(AuthType::None, SECRET)], AuthType::None);
    let mut scratch = ours(AuthType::None, PERMITTED, false);
    let mut exchange = peer.create(0);
    scratch.handle_datagram(ms(0), control(2), exchange.sent()).unwrap();
    let Step::Send(third) = exchange.reply(&scratch.poll_transmit().unwrap().bytes) else { panic!("round 3") };
    let mut fresh = ours(AuthType::None, PERMITTED, false);
    assert_eq!(fresh.handle_datagram(ms(0), control(2), &third), Err(Refused::Unexpected));
}

#[test]
fn ours_creates_a_connection_of_each_type_at_the_original() {
    for auth in TYPES {
        for signs_with_new_key in [false, true] {
            let mut peer = original(Vec::new(), auth);
            peer.signs_with_new_key = signs_with_new_key;
            let mut ours = ours(auth, PERMITTED, true);
            let text = peer.text.clone() + "[path_0]\npublic_ipaddr = 192.168.11.1\nremote_ipaddr = 192.168.11.2\n";
            ours.create(ms(0), pair(1), control(2), &text).unwrap();
            let created = run_ours(&mut ours, &mut peer);
            assert!(matches!(&created[..], [ControlEvent::Created { .. }]), "{auth:?}: {created:?}");
            ours.add_connection(LegacyConnection { created: true, ..connection(1, auth) });

            ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
            assert_eq!(run_ours(&mut ours, &mut peer), [confirmed()], "{auth:?}: our status change");
            assert_eq!(peer.connections[0].paths[0].2, 0x80);
            let (result, _) = run_theirs_status(&mut ours, peer.status(0, 0, true));
            assert_eq!(result, Ok(()), "{auth:?}: its status change");
        }
    }
}

#[test]
fn a_second_creation_is_reported_as_existing_for_each_type_and_each_permission() {
    for auth in TYPES {
        for permission in [(false, false), (true, false), (false, true), PERMITTED] {
            for (refuses_early, key) in [(false, SECRET), (true, SECRET), (false, DEFAULT_KEY), (true, DEFAULT_KEY)] {
                let mut peer = original(vec![theirs(auth, key)], auth);
                peer.refuses_early = refuses_early;
                let mut ours = ours(auth, permission, false);
                ours.add_connection(LegacyConnection { created: key == DEFAULT_KEY, ..connection(1, auth) });
                ours.create(ms(0), pair(1), control(2), TEXT).unwrap();
                // Round 3 is not sent after a round 2 that is signed with a key which is not accepted.
                let is_refused = key == SECRET || refuses_early || permission.1;
                let code = if is_refused { Code::EXISTS } else { Code::AUTHENTICATION };
                let seen = run_ours(&mut ours, &mut peer);
                assert_eq!(
                    seen,
                    [failed(code, Opcode::Create)],
                    "{auth:?} {permission:?} early: {refuses_early} {key}"
                );
            }
        }
    }
}

#[test]
fn an_unproven_refusal_does_not_end_a_creation() {
    let mut peer = original(vec![theirs(AuthType::None, SECRET)], AuthType::None);
    peer.refuses_early = true;
    let mut ours = ours(AuthType::None, (false, false), true);
    ours.create(ms(0), pair(1), control(2), TEXT).unwrap();
    let first = ours.poll_transmit().unwrap().bytes;
    let refusal = peer.receive(&first).unwrap();
    assert_eq!(ours.handle_datagram(ms(1), control(2), &refusal), Err(Refused::WrongAuthType));
    peer.connections.clear();
    let valid = peer.receive(&first).unwrap();
    ours.handle_datagram(ms(2), control(2), &valid).unwrap();
    assert!(ours.poll_transmit().is_some(), "round 3");
    let elsewhere = "192.0.2.7:60456".parse().unwrap();
    assert_eq!(ours.handle_datagram(ms(3), elsewhere, &refusal), Err(Refused::Unexpected));
}

#[test]
fn a_server_that_has_the_public_key_creates_nothing_for_a_connection_with_another() {
    let mut peer = original(Vec::new(), AuthType::Sha256);
    peer.global_key = DEFAULT_KEY.into();
    let mut ours = ours(AuthType::Sha256, PERMITTED, true);
    ours.create(ms(0), pair(1), control(2), TEXT).unwrap();
    assert_eq!(run_ours(&mut ours, &mut peer), [failed(Code::AUTHENTICATION, Opcode::Create)]);
    assert!(peer.connections.is_empty());
}

#[test]
fn a_connection_that_was_not_created_never_uses_the_public_key() {
    let public = original(vec![theirs(AuthType::Sha256, DEFAULT_KEY)], AuthType::Sha256);
    let mut channel = ours(AuthType::Sha256, PERMITTED, true);
    let refused = channel.handle_datagram(ms(0), control(2), public.status(0, 1, true).sent());
    assert_eq!(refused, Err(Refused::PublicKey));
    channel.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    for _ in 0..6 {
        assert!(AuthKey::from_text(SECRET).verifies(&channel.poll_transmit().unwrap().bytes));
        let now = channel.next_deadline().unwrap();
        channel.handle_timeout(now);
    }
}

const TEXT: &str = ";;;;;;; a connection\n[connection]\nauth_type = 0\n";
