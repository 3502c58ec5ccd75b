//! Creation of a connection by the other end.

use mpt_proto::legacy::control::{Accept, Code, ControlChannel, ControlEvent, Refused};
use mpt_proto::legacy::wire::{AuthKey, AuthType, ControlMessage, Nonce, Opcode};

use crate::peer::*;

const TEXT: &str = ";;;;;;; a connection\n[connection]\nname = c_A\n";

fn server() -> ControlChannel {
    ControlChannel::new(Accept { create: Some(secret()), ..Accept::default() }, [1; 32])
}

fn peer() -> Peer {
    Peer::new(AuthType::Sha256)
}

/// Runs round 1 and round 2, and returns the nonce.
fn begin(ours: &mut ControlChannel, peer: &Peer) -> Nonce {
    let size = (TEXT.len() as u32).to_le_bytes();
    ours.handle_datagram(ms(0), control(2), &peer.request(Opcode::Create, 0, 1, [0; 4], &size)).unwrap();
    ControlMessage::decode(&ours.poll_transmit().unwrap().bytes).unwrap().auth.nonce()
}

fn round3(peer: &Peer, nonce: Nonce) -> Vec<u8> {
    peer.request(Opcode::Create, 0, 3, nonce, TEXT.as_bytes())
}

#[test]
fn a_peer_with_the_global_key_can_create_a_connection() {
    let (mut ours, peer) = (server(), peer());
    let nonce = begin(&mut ours, &peer);
    ours.handle_datagram(ms(1), control(2), &round3(&peer, nonce)).unwrap();
    let asked = ControlEvent::CreateRequested { connection: pair(1), from: control(2), text: TEXT.into() };
    assert_eq!((events(&mut ours), ours.poll_transmit()), (vec![asked], None));

    ours.answer_create(pair(1), Ok(TEXT));
    let round4 = ours.poll_transmit().unwrap();
    let decoded = ControlMessage::decode(&round4.bytes).unwrap();
    assert_eq!((decoded.round, decoded.code, decoded.body), (4, 0, TEXT.as_bytes()));
    assert!(secret().verifies(&round4.bytes));
}

#[test]
fn a_repeated_request_is_answered_again_even_when_the_connection_exists_by_then() {
    let (mut ours, peer) = (server(), peer());
    let nonce = begin(&mut ours, &peer);
    ours.handle_datagram(ms(1), control(2), &round3(&peer, nonce)).unwrap();
    assert_eq!(ours.handle_datagram(ms(2), control(2), &round3(&peer, nonce)), Err(Refused::Unexpected));
    ours.answer_create(pair(1), Ok(TEXT));
    let key = AuthKey::from_text("the new connection's own key");
    ours.add_connection(mpt_proto::legacy::control::LegacyConnection { key, ..connection(1, AuthType::Sha256) });
    ours.handle_datagram(ms(501), control(2), &round3(&peer, nonce)).unwrap();
    let replies = transmits(&mut ours);
    assert_eq!(replies.len(), 2);
    assert_eq!(replies[0], replies[1]);
    assert_eq!(events(&mut ours).len(), 1);
}

#[test]
fn a_connection_that_exists_is_refused_in_77_bytes() {
    let (mut ours, peer) = (server(), peer());
    ours.add_connection(connection(1, AuthType::None));
    let nonce = begin(&mut ours, &peer);
    ours.handle_datagram(ms(1), control(2), &round3(&peer, nonce)).unwrap();
    let reply = ours.poll_transmit().unwrap();
    let decoded = ControlMessage::decode(&reply.bytes).unwrap();
    assert_eq!((decoded.code, decoded.body, reply.bytes.len()), (Code::EXISTS.0, &[1][..], 77));
    assert_eq!(events(&mut ours), []);
}

#[test]
fn nothing_is_created_unless_the_policy_accepts_it() {
    let mut ours = ControlChannel::new(Accept::default(), [1; 32]);
    let request = peer().request(Opcode::Create, 0, 1, [0; 4], &[1, 0, 0, 0]);
    assert_eq!(ours.handle_datagram(ms(0), control(2), &request), Err(Refused::CreateNotAccepted));
    assert_eq!(ours.poll_transmit(), None);
}

#[test]
fn a_template_without_a_key_of_its_own_creates_nothing() {
    let mut ours = ControlChannel::new(Accept { create: Some(AuthKey::PUBLIC), ..Accept::default() }, [1; 32]);
    let stranger = Peer { key: AuthKey::PUBLIC, ..peer() };
    let request = stranger.request(Opcode::Create, 0, 1, [0; 4], &[1, 0, 0, 0]);
    assert_eq!(ours.handle_datagram(ms(0), control(2), &request), Err(Refused::PublicKey));
}

#[test]
fn a_single_third_round_creates_nothing() {
    let (mut ours, peer) = (server(), peer());
    let lone = round3(&peer, peer.nonce);
    assert_eq!(ours.handle_datagram(ms(0), control(2), &lone), Err(Refused::Unexpected));
    assert_eq!((ours.poll_event(), ours.poll_transmit()), (None, None));
}

#[test]
fn creation_requires_a_digest_for_every_authentication_type() {
    let mut ours =
        ControlChannel::new(Accept { create: Some(secret()), unauthenticated: true, public_key: true }, [1; 32]);
    for auth in [AuthType::None, AuthType::Nonce] {
        let request = Peer::new(auth).request(Opcode::Create, 0, 1, [0; 4], &[1, 0, 0, 0]);
        assert_eq!(ours.handle_datagram(ms(0), control(2), &request), Err(Refused::WrongAuthType));
    }
}

#[test]
fn text_that_cannot_be_read_is_answered_with_code_4() {
    let (mut ours, peer) = (server(), peer());
    let nonce = begin(&mut ours, &peer);
    let unreadable = peer.request(Opcode::Create, 0, 3, nonce, b";;;;\xff\xfe");
    ours.handle_datagram(ms(1), control(2), &unreadable).unwrap();
    assert_eq!(ours.poll_transmit().unwrap().bytes[1], Code::NO_CONNECTION.0);
    assert_eq!(events(&mut ours), []);
}

#[test]
fn a_refusal_is_sent_to_the_peer() {
    let (mut ours, peer) = (server(), peer());
    let nonce = begin(&mut ours, &peer);
    ours.handle_datagram(ms(1), control(2), &round3(&peer, nonce)).unwrap();
    ours.answer_create(pair(1), Err(Code::ALL_PATHS_DOWN));
    assert_eq!(ours.poll_transmit().unwrap().bytes[1], 6);
    ours.answer_create(pair(1), Ok(TEXT));
    assert_eq!(ours.poll_transmit(), None, "already answered");
}

/// Requests a connection by host 1 from the original, which answers round 4 with `answer`.
fn create(answer: (u8, Vec<u8>)) -> Vec<ControlEvent> {
    let mut ours = ControlChannel::new(Accept::default(), [1; 32]);
    ours.add_connection(connection(1, AuthType::None));
    let mut peer = Peer { answer, ..peer() };
    ours.create(ms(0), pair(1), control(2), TEXT).unwrap();
    while let Some(request) = ours.poll_transmit() {
        ours.handle_datagram(ms(1), control(2), &peer.reply(&request.bytes)).unwrap();
    }
    assert_eq!(peer.received, [TEXT.as_bytes()], "the text is complete");
    events(&mut ours)
}

#[test]
fn the_connection_that_the_peer_created_is_returned_as_text() {
    let created = ControlEvent::Created { connection: pair(1), text: TEXT.into() };
    assert_eq!(create((0, TEXT.into())), [created]);
}

#[test]
fn a_reply_that_lacks_its_last_36_bytes_is_read_up_to_its_last_line() {
    let whole = format!("{TEXT}auth_type = 2\n; a comment that is longer than 36 bytes\n");
    let cut = whole.as_bytes()[..whole.len() - 36].to_vec();
    let created = ControlEvent::Created { connection: pair(1), text: format!("{TEXT}auth_type = 2\n") };
    assert_eq!(create((0, cut)), [created]);
}

#[test]
fn an_existing_connection_is_reported_as_such() {
    let failed =
        ControlEvent::ExchangeFailed { connection: pair(1), opcode: Opcode::Create, path: None, code: Code::EXISTS };
    assert_eq!(create((5, vec![1])), [failed]);
}

#[test]
fn two_channels_create_a_connection() {
    let mut client = ControlChannel::new(Accept::default(), [2; 32]);
    client.add_connection(connection(2, AuthType::Sha256));
    let mut server = server();
    client.create(ms(0), pair(2), control(1), TEXT).unwrap();
    for _ in 0..2 {
        let request = client.poll_transmit().unwrap();
        server.handle_datagram(ms(0), control(2), &request.bytes).unwrap();
        if server.poll_event().is_some() {
            server.answer_create(pair(1), Ok(TEXT));
        }
        let reply = server.poll_transmit().unwrap();
        client.handle_datagram(ms(0), control(1), &reply.bytes).unwrap();
    }
    assert_eq!(events(&mut client), [ControlEvent::Created { connection: pair(2), text: TEXT.into() }]);
}
