//! Status changes, round by round, with every authentication type, and with datagrams lost and repeated.

use mpt_proto::legacy::control::{Code, ControlEvent, Refused, TRIES};
use mpt_proto::legacy::wire::{AuthType, ControlMessage, DOWN, Nonce, Opcode, PathEnds, UP};

use crate::peer::*;

fn ends(host: u8) -> [u8; 32] {
    let path = path(host);
    PathEnds { initiator: path.public, responder: path.remote }.encode()
}

const SIZE: [u8; 4] = [32, 0, 0, 0];

#[test]
fn a_status_change_reaches_the_original_in_four_rounds() {
    for auth in TYPES {
        let (mut ours, mut peer) = (trusting(1, auth), Peer::new(auth));
        ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();

        let round1 = ours.poll_transmit().unwrap();
        assert_eq!((round1.to, round1.bytes.len()), (control(2), 44 + auth.overhead()));
        assert_eq!(ControlMessage::decode(&round1.bytes).unwrap().announced(), Some(32));
        ours.handle_datagram(ms(1), control(2), &peer.reply(&round1.bytes)).unwrap();

        let round3 = ours.poll_transmit().unwrap();
        assert_eq!((round3.bytes[1], round3.bytes.len()), (DOWN, 72 + auth.overhead()));
        ours.handle_datagram(ms(2), control(2), &peer.reply(&round3.bytes)).unwrap();

        assert_eq!(peer.received, [ends(1)]);
        assert_eq!(events(&mut ours), [ControlEvent::StatusConfirmed { connection: pair(1), path: path(1) }]);
        assert_eq!((ours.poll_transmit(), ours.next_deadline()), (None, None));
    }
}

#[test]
fn a_status_change_of_the_original_is_answered_in_four_rounds() {
    for auth in TYPES {
        for (code, up) in [(DOWN, false), (UP, true)] {
            let (mut ours, peer) = (trusting(1, auth), Peer::new(auth));
            let round1 = peer.request(Opcode::PathStatus, code, 1, [0; 4], &SIZE);
            ours.handle_datagram(ms(0), control(2), &round1).unwrap();
            let round2 = ours.poll_transmit().unwrap();
            let decoded = ControlMessage::decode(&round2.bytes).unwrap();
            assert_eq!((round2.to, decoded.round, decoded.code, decoded.body), (control(2), 2, 0, &SIZE[..]));
            assert_eq!(events(&mut ours), []);

            let round3 = peer.request(Opcode::PathStatus, code, 3, decoded.auth.nonce(), &ends(2));
            ours.handle_datagram(ms(1), control(2), &round3).unwrap();
            let round4 = ours.poll_transmit().unwrap();
            let decoded = ControlMessage::decode(&round4.bytes).unwrap();
            assert_eq!((decoded.round, decoded.code, round4.bytes.len()), (4, 0, 40 + auth.overhead()));
            assert!(auth != AuthType::Sha256 || secret().verifies(&round4.bytes));
            assert_eq!(events(&mut ours), [status(1, up)]);
        }
    }
}

#[test]
fn an_unknown_path_is_confirmed_without_a_change() {
    let (mut ours, peer) = (trusting(1, AuthType::None), Peer::new(AuthType::None));
    ours.handle_datagram(ms(0), control(2), &peer.request(Opcode::PathStatus, DOWN, 1, [0; 4], &SIZE)).unwrap();
    ours.handle_datagram(ms(0), control(2), &peer.request(Opcode::PathStatus, DOWN, 3, [0; 4], &ends(1))).unwrap();
    assert_eq!(transmits(&mut ours).len(), 2);
    assert_eq!(events(&mut ours), []);
}

#[test]
fn a_request_is_sent_six_times_half_a_second_apart() {
    let mut ours = trusting(1, AuthType::Nonce);
    ours.send_status(ms(0), pair(1), control(2), path(1), true).unwrap();
    let first = ours.poll_transmit().unwrap();
    for try_number in 1..u64::from(TRIES) {
        assert_eq!(ours.next_deadline(), Some(ms(500 * try_number)));
        ours.handle_timeout(ms(500 * try_number - 1));
        assert_eq!(ours.poll_transmit(), None, "sent too early");
        ours.handle_timeout(ms(500 * try_number));
        assert_eq!(transmits(&mut ours), std::slice::from_ref(&first));
    }
    ours.handle_timeout(ms(3000));
    let failed = ControlEvent::ExchangeFailed {
        connection: pair(1),
        opcode: Opcode::PathStatus,
        path: Some(path(1)),
        code: Code::TIMEOUT,
    };
    assert_eq!((events(&mut ours), ours.poll_transmit(), ours.next_deadline()), (vec![failed], None, None));
}

#[test]
fn each_round_has_six_tries_of_its_own() {
    let (mut ours, mut peer) = (trusting(1, AuthType::Nonce), Peer::new(AuthType::Nonce));
    ours.send_status(ms(0), pair(1), control(2), path(1), true).unwrap();
    (1..6).for_each(|n| ours.handle_timeout(ms(500 * n)));
    let round1 = transmits(&mut ours);
    assert_eq!(round1.len(), 6);
    ours.handle_datagram(ms(2600), control(2), &peer.reply(&round1[5].bytes)).unwrap();
    (1..6).for_each(|n| ours.handle_timeout(ms(2600 + 500 * n)));
    let round3 = transmits(&mut ours);
    assert_eq!(round3.len(), 6);
    ours.handle_datagram(ms(5500), control(2), &peer.reply(&round3[5].bytes)).unwrap();
    assert_eq!(events(&mut ours), [ControlEvent::StatusConfirmed { connection: pair(1), path: path(1) }]);
}

#[test]
fn a_repeated_reply_is_ignored() {
    let (mut ours, mut peer) = (trusting(1, AuthType::Sha256), Peer::new(AuthType::Sha256));
    ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    let round2 = peer.reply(&ours.poll_transmit().unwrap().bytes);
    ours.handle_datagram(ms(1), control(2), &round2).unwrap();
    assert_eq!(ours.handle_datagram(ms(1), control(2), &round2), Err(Refused::Unexpected));
    let round3 = transmits(&mut ours);
    assert_eq!(round3.len(), 1);
    let round4 = peer.reply(&round3[0].bytes);
    ours.handle_datagram(ms(2), control(2), &round4).unwrap();
    assert_eq!(ours.handle_datagram(ms(2), control(2), &round4), Err(Refused::Unexpected));
    assert_eq!(events(&mut ours).len(), 1);
}

/// Returns host 1 after round 2 of an exchange that host 2 started, and the nonce.
fn after_round_two(auth: AuthType) -> (mpt_proto::legacy::control::ControlChannel, Peer, Nonce) {
    let (mut ours, peer) = (trusting(1, auth), Peer::new(auth));
    ours.handle_datagram(ms(0), control(2), &peer.request(Opcode::PathStatus, DOWN, 1, [0; 4], &SIZE)).unwrap();
    let nonce = ControlMessage::decode(&ours.poll_transmit().unwrap().bytes).unwrap().auth.nonce();
    (ours, peer, nonce)
}

#[test]
fn a_repeated_first_round_gets_the_same_nonce() {
    let (mut ours, peer, nonce) = after_round_two(AuthType::Sha256);
    ours.handle_datagram(ms(500), control(2), &peer.request(Opcode::PathStatus, DOWN, 1, [0; 4], &SIZE)).unwrap();
    let again = ControlMessage::decode(&ours.poll_transmit().unwrap().bytes).unwrap().auth.nonce();
    assert_eq!(again, nonce);
}

#[test]
fn a_repeated_third_round_is_confirmed_again_and_executed_once() {
    for auth in TYPES {
        let (mut ours, peer, nonce) = after_round_two(auth);
        let round3 = peer.request(Opcode::PathStatus, DOWN, 3, nonce, &ends(2));
        ours.handle_datagram(ms(1), control(2), &round3).unwrap();
        ours.handle_datagram(ms(501), control(2), &round3).unwrap();
        let round4 = transmits(&mut ours);
        assert_eq!(round4.len(), 2);
        assert_eq!(round4[0], round4[1]);
        assert_eq!(events(&mut ours), [status(1, false)]);
    }
}

#[test]
fn a_late_first_round_does_not_discard_the_reply() {
    let (mut ours, peer, nonce) = after_round_two(AuthType::Sha256);
    let round3 = peer.request(Opcode::PathStatus, DOWN, 3, nonce, &ends(2));
    ours.handle_datagram(ms(1), control(2), &round3).unwrap();
    ours.handle_datagram(ms(2), control(2), &peer.request(Opcode::PathStatus, DOWN, 1, [0; 4], &SIZE)).unwrap();
    ours.handle_datagram(ms(501), control(2), &round3).unwrap();
    let rounds: Vec<_> = transmits(&mut ours).iter().map(|t| ControlMessage::decode(&t.bytes).unwrap().round).collect();
    assert_eq!(rounds, [4, 2, 4]);
    assert_eq!(events(&mut ours), [status(1, false)]);
}

#[test]
fn a_third_round_without_a_first_is_refused() {
    for auth in TYPES {
        let (mut ours, peer) = (trusting(1, auth), Peer::new(auth));
        let round3 = peer.request(Opcode::PathStatus, DOWN, 3, peer.nonce, &ends(2));
        assert_eq!(ours.handle_datagram(ms(0), control(2), &round3), Err(Refused::Unexpected));
        assert_eq!((ours.poll_event(), ours.poll_transmit()), (None, None));
    }
}

#[test]
fn a_replayed_third_round_is_refused() {
    let (mut ours, peer, nonce) = after_round_two(AuthType::Sha256);
    let round3 = peer.request(Opcode::PathStatus, DOWN, 3, nonce, &ends(2));
    ours.handle_datagram(ms(1), control(2), &round3).unwrap();
    assert_eq!(events(&mut ours).len(), 1);
    ours.handle_datagram(ms(60_000), control(2), &peer.request(Opcode::PathStatus, DOWN, 1, [0; 4], &SIZE)).unwrap();
    assert_eq!(ours.handle_datagram(ms(60_001), control(2), &round3), Err(Refused::WrongNonce));
    assert_eq!(events(&mut ours), []);
}

#[test]
fn exchanges_of_one_connection_are_queued_and_outdated_ones_dropped() {
    let (mut ours, mut peer) = (trusting(1, AuthType::None), Peer::new(AuthType::None));
    let first = connection(1, AuthType::None).paths[0];
    ours.send_status(ms(0), pair(1), control(2), first, false).unwrap();
    ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    ours.send_status(ms(0), pair(1), control(2), path(1), true).unwrap();
    assert_eq!(ours.next_deadline(), Some(ms(500)));
    let mut codes = vec![];
    while let Some(transmit) = ours.poll_transmit() {
        codes.push((transmit.bytes[1], transmit.bytes[4]));
        ours.handle_datagram(ms(1), control(2), &peer.reply(&transmit.bytes)).unwrap();
    }
    assert_eq!(codes, [(DOWN, 1), (DOWN, 3), (UP, 1), (UP, 3)]);
    assert_eq!(peer.received[1], ends(1));
    assert_eq!(events(&mut ours).len(), 2);
}

#[test]
fn an_error_of_the_peer_ends_the_exchange_with_its_code() {
    let (mut ours, mut peer) = (trusting(1, AuthType::Nonce), Peer::new(AuthType::Nonce));
    peer.answer = (4, vec![]);
    ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    for _ in 0..2 {
        let request = ours.poll_transmit().unwrap();
        ours.handle_datagram(ms(1), control(2), &peer.reply(&request.bytes)).unwrap();
    }
    let failed = ControlEvent::ExchangeFailed {
        connection: pair(1),
        opcode: Opcode::PathStatus,
        path: Some(path(1)),
        code: Code::NO_CONNECTION,
    };
    assert_eq!(events(&mut ours), [failed]);
}
