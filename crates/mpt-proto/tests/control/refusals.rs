//! Refused messages: by default those without proof of origin, and always those with a wrong one.

use mpt_proto::legacy::control::{Accept, Code, ControlChannel, ControlEvent, Refused};
use mpt_proto::legacy::wire::{AuthKey, AuthType, ControlMessage, DOWN, Opcode};

use crate::peer::*;

const SIZE: [u8; 4] = [32, 0, 0, 0];

fn strict(auth: AuthType) -> ControlChannel {
    let mut control = ControlChannel::new(Accept::default(), [1; 32]);
    control.add_connection(connection(1, auth));
    control
}

fn round1(peer: &Peer) -> Vec<u8> {
    peer.request(Opcode::PathStatus, DOWN, 1, [0; 4], &SIZE)
}

#[test]
fn types_without_a_secret_are_refused_by_default() {
    for auth in [AuthType::None, AuthType::Nonce] {
        let mut ours = strict(auth);
        assert_eq!(ours.handle_datagram(ms(0), control(2), &round1(&Peer::new(auth))), Err(Refused::Unauthenticated));
        assert_eq!((ours.poll_transmit(), ours.poll_event()), (None, None));
    }
    let mut ours = strict(AuthType::Sha256);
    assert_eq!(ours.handle_datagram(ms(0), control(2), &round1(&Peer::new(AuthType::Sha256))), Ok(()));
}

#[test]
fn the_public_key_is_refused_by_default() {
    let mut ours = strict(AuthType::Sha256);
    let public =
        mpt_proto::legacy::control::LegacyConnection { key: AuthKey::PUBLIC, ..connection(1, AuthType::Sha256) };
    ours.add_connection(public);
    let peer = Peer { key: AuthKey::PUBLIC, ..Peer::new(AuthType::Sha256) };
    assert_eq!(ours.handle_datagram(ms(0), control(2), &round1(&peer)), Err(Refused::PublicKey));
    assert_eq!(ours.create(ms(0), pair(1), control(2), ";;;;\n"), Err(Refused::PublicKey));
}

#[test]
fn the_authentication_type_is_that_of_the_connection_not_of_the_message() {
    for expected in TYPES {
        for sent in TYPES.into_iter().filter(|sent| *sent != expected) {
            let refused = trusting(1, expected).handle_datagram(ms(0), control(2), &round1(&Peer::new(sent)));
            assert_eq!(refused, Err(Refused::WrongAuthType), "{sent:?} to {expected:?}");
        }
    }
}

#[test]
fn types_without_a_secret_are_accepted_only_from_a_paths_far_end() {
    for auth in [AuthType::None, AuthType::Nonce] {
        let mut ours = trusting(1, auth);
        let request = round1(&Peer::new(auth));
        assert_eq!(
            ours.handle_datagram(ms(0), "192.0.2.7:60456".parse().unwrap(), &request),
            Err(Refused::UnknownSource)
        );
        assert_eq!(ours.handle_datagram(ms(0), "[::ffff:192.168.11.2]:9".parse().unwrap(), &request), Ok(()));
        assert_eq!(ours.poll_transmit().unwrap().to, "192.168.11.2:9".parse().unwrap());
    }
}

#[test]
fn a_wrong_key_changes_nothing_and_gets_no_answer() {
    let mut ours = strict(AuthType::Sha256);
    let stranger = Peer { key: AuthKey::from_text("not the key"), ..Peer::new(AuthType::Sha256) };
    assert_eq!(ours.handle_datagram(ms(0), control(2), &round1(&stranger)), Err(Refused::WrongDigest));
    assert_eq!((ours.poll_transmit(), ours.poll_event()), (None, None));
}

#[test]
fn an_unknown_connection_is_refused() {
    let mut ours = trusting(2, AuthType::None);
    let refused = ours.handle_datagram(ms(0), control(2), &round1(&Peer::new(AuthType::None)));
    assert_eq!(refused, Err(Refused::UnknownConnection));
    assert_eq!(ours.send_status(ms(0), pair(1), control(2), path(1), true), Err(Refused::UnknownConnection));
}

#[test]
fn a_wrong_nonce_in_round_three_is_refused() {
    for auth in [AuthType::Nonce, AuthType::Sha256] {
        let (mut ours, peer) = (trusting(1, auth), Peer::new(auth));
        ours.handle_datagram(ms(0), control(2), &round1(&peer)).unwrap();
        let nonce = ControlMessage::decode(&ours.poll_transmit().unwrap().bytes).unwrap().auth.nonce();
        let guess = nonce.map(|byte| byte ^ 1);
        let round3 = peer.request(Opcode::PathStatus, DOWN, 3, guess, &[0; 32]);
        assert_eq!(ours.handle_datagram(ms(1), control(2), &round3), Err(Refused::WrongNonce));
    }
}

#[test]
fn a_forged_reply_does_not_end_an_exchange() {
    let mut ours = strict(AuthType::Sha256);
    let mut stranger = Peer { key: AuthKey::from_text("not the key"), ..Peer::new(AuthType::Sha256) };
    ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    let round1 = ours.poll_transmit().unwrap().bytes;
    let forged = ControlMessage { code: 4, round: 2, ..ControlMessage::decode(&round1).unwrap() }.encode(&stranger.key);
    assert_eq!(ours.handle_datagram(ms(1), control(2), &forged), Err(Refused::WrongDigest));

    stranger.key = secret();
    ours.handle_datagram(ms(2), control(2), &stranger.reply(&round1)).unwrap();
    assert_eq!(ControlMessage::decode(&ours.poll_transmit().unwrap().bytes).unwrap().round, 3);
}

#[test]
fn when_only_forged_replies_came_the_exchange_fails_with_that_code() {
    let mut ours = strict(AuthType::Sha256);
    ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    let round1 = ours.poll_transmit().unwrap().bytes;
    let forged = ControlMessage { round: 2, ..ControlMessage::decode(&round1).unwrap() }.encode(&AuthKey::PUBLIC);
    assert_eq!(ours.handle_datagram(ms(1), control(2), &forged), Err(Refused::WrongDigest));
    (1..=6).for_each(|n| ours.handle_timeout(ms(500 * n)));
    let failed = ControlEvent::ExchangeFailed {
        connection: pair(1),
        opcode: Opcode::PathStatus,
        path: Some(path(1)),
        code: Code::AUTHENTICATION,
    };
    assert_eq!(events(&mut ours), [failed]);
}

#[test]
fn a_reply_without_a_digest_is_accepted_only_from_the_host_that_got_the_request() {
    let (mut ours, mut peer) = (strict(AuthType::Nonce), Peer::new(AuthType::Nonce));
    ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    let round2 = peer.reply(&ours.poll_transmit().unwrap().bytes);
    let elsewhere = "192.0.2.7:60456".parse().unwrap();
    assert_eq!(ours.handle_datagram(ms(1), elsewhere, &round2), Err(Refused::UnknownSource));
    assert_eq!(ours.handle_datagram(ms(1), control(2), &round2), Ok(()));
}

#[test]
fn a_round_four_with_another_nonce_is_refused() {
    for auth in [AuthType::Nonce, AuthType::Sha256] {
        let (mut ours, mut peer) = (strict(auth), Peer::new(auth));
        ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
        let round2 = peer.reply(&ours.poll_transmit().unwrap().bytes);
        ours.handle_datagram(ms(1), control(2), &round2).unwrap();
        let round3 = ours.poll_transmit().unwrap().bytes;
        let other = auth.with([9; 4]);
        let round4 =
            ControlMessage { code: 0, round: 4, auth: other, body: &[], ..ControlMessage::decode(&round3).unwrap() };
        assert_eq!(ours.handle_datagram(ms(2), control(2), &round4.encode(&secret())), Err(Refused::WrongNonce));
    }
}

#[test]
fn a_keepalive_refreshes_the_path_it_came_from_and_needs_no_authentication() {
    let mut ours = strict(AuthType::Sha256);
    let alive = Peer::new(AuthType::None).request(Opcode::Keepalive, 0, 0, [0; 4], &[]);
    ours.handle_datagram(ms(0), "192.168.11.2:60456".parse().unwrap(), &alive).unwrap();
    assert_eq!(events(&mut ours), [ControlEvent::Keepalive { connection: pair(1), path: path(1) }]);
    let stranger = "192.0.2.7:60456".parse().unwrap();
    assert_eq!(ours.handle_datagram(ms(0), stranger, &alive), Err(Refused::UnknownSource));
    assert_eq!((ours.poll_event(), ours.poll_transmit()), (None, None));
}

#[test]
fn local_commands_from_the_network_are_not_commands() {
    let mut ours = trusting(1, AuthType::None);
    let command = mpt_proto::legacy::wire::LocalCommand::command("path down 192.168.11.1 192.168.11.2");
    assert!(matches!(ours.handle_datagram(ms(0), control(2), &command), Err(Refused::Malformed(_))));
}

#[test]
fn removing_a_connection_drops_its_exchanges() {
    let (mut ours, peer) = (strict(AuthType::Sha256), Peer::new(AuthType::Sha256));
    ours.handle_datagram(ms(0), control(2), &round1(&peer)).unwrap();
    ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    ours.remove_connection(pair(1));
    assert_eq!(ours.next_deadline(), None);
    assert_eq!(ours.handle_datagram(ms(1), control(2), &round1(&peer)), Err(Refused::UnknownConnection));
}

#[test]
fn a_changed_key_is_used_at_once() {
    let (mut ours, mut peer) = (strict(AuthType::Sha256), Peer::new(AuthType::Sha256));
    ours.handle_datagram(ms(0), control(2), &round1(&peer)).unwrap();
    let changed = AuthKey::from_text("another key, as good as the first");
    ours.add_connection(mpt_proto::legacy::control::LegacyConnection {
        key: changed.clone(),
        ..connection(1, AuthType::Sha256)
    });
    assert_eq!(ours.handle_datagram(ms(1), control(2), &round1(&peer)), Err(Refused::WrongDigest));
    peer.key = changed;
    ours.handle_datagram(ms(2), control(2), &round1(&peer)).unwrap();
    let nonce = ControlMessage::decode(&transmits(&mut ours)[1].bytes).unwrap().auth.nonce();
    let round3 = peer.request(Opcode::PathStatus, DOWN, 3, nonce, &[0; 32]);
    assert_eq!(ours.handle_datagram(ms(3), control(2), &round3), Ok(()));
}
