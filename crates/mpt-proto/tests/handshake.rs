//! Attacks on the handshake and on datagrams: every refusal is silent, and changes nothing.

mod ends;

use std::time::Duration;

use blake2::digest::consts::U16;
use blake2::digest::{Digest, KeyInit, Mac};
use ends::*;
use mpt_proto::crypto::aead::Cipher;
use mpt_proto::crypto::association::SessionEvent;
use mpt_proto::crypto::handshake::{COOKIE_REPLY_LEN, Capabilities, Ciphers};
use mpt_proto::crypto::keys::PublicKey;
use mpt_proto::drops::Dropped;
use mpt_proto::path::PathId;
use mpt_proto::time::Time;

fn flipped(message: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..message.len() * 8).map(|bit| {
        let mut message = message.to_vec();
        message[bit / 8] ^= 1 << (bit % 8);
        (bit, message)
    })
}

/// Returns a time for the `i`th message: 40 per second are below the load limit.
fn below_load(i: usize) -> Time {
    START + Duration::from_millis(25) * i as u32
}

/// Recomputes MAC1, which needs the receiver's public key only.
fn resign(receiver: &PublicKey, message: &mut [u8]) {
    let key = blake2::Blake2s256::new().chain_update(b"mpt-mac1").chain_update(receiver.as_bytes()).finalize();
    let (body, macs) = message.split_at_mut(message.len() - 32);
    let mut mac = <blake2::Blake2sMac<U16> as KeyInit>::new_from_slice(&key).expect("a key of 32 bytes");
    mac.update(body);
    macs[..16].copy_from_slice(&mac.finalize().into_bytes());
}

#[test]
fn a_handshake_gives_both_ends_the_same_session_and_datagrams_go_both_ways() {
    let (mut a, mut b) = two();
    handshake(START, &mut a, &mut b);
    assert!(!b.peer.is_established(START), "a responder waits for the first datagram");
    send(START, &mut a, &mut b, b"first");
    send(START, &mut b, &mut a, b"second");

    let (ours, theirs) = (a.established(), b.established());
    assert_eq!((ours.len(), theirs.len()), (1, 1));
    assert_eq!((ours[0].cipher, theirs[0].cipher), (Cipher::Aes256Gcm, Cipher::Aes256Gcm));
    assert_eq!((ours[0].initiated, theirs[0].initiated), (true, false));
    assert_eq!((ours[0].version, ours[0].restarted), (1, false));
}

/// The check of MAC1 needs the receiver's public key, so everybody who has that key can make it: `Visible to an
/// observer` in docs/guide/security.md.
#[test]
fn who_knows_the_public_keys_recognizes_both_ends_by_mac1_and_nobody_else_does() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    let Reaction::Reply(response) = b.handle(START, a.address, &initiation) else { panic!("no response") };
    let recognizes = |message: &[u8]| {
        let is_for = |seed: &u8| {
            let mut again = message.to_vec();
            resign(keys(*seed).public(), &mut again);
            again == message
        };
        (1..=200).filter(is_for).collect::<Vec<_>>()
    };
    assert_eq!((recognizes(&initiation), recognizes(&response)), (vec![2], vec![1]));
    // The sealed static key of the initiator is in no message.
    let contains = |key: &PublicKey| initiation.windows(32).any(|window| window == key.as_bytes());
    assert!(!contains(a.us.keys.public()) && !contains(b.us.keys.public()));
}

#[test]
fn the_cipher_is_the_one_that_the_slower_cpu_prefers() {
    let mut a = end_with(1, *keys(2).public(), [7; 32], Capabilities { features: 0xA5, ..Capabilities::new(true) });
    let mut b = end_with(2, *keys(1).public(), [7; 32], Capabilities::new(false));
    handshake(START, &mut a, &mut b);
    send(START, &mut a, &mut b, b"body");
    let (ours, theirs) = (a.established()[0], b.established()[0]);
    assert_eq!((ours.cipher, theirs.cipher), (Cipher::ChaCha20Poly1305, Cipher::ChaCha20Poly1305));
    assert_eq!(theirs.payload.capabilities.features, 0xA5);
}

#[test]
fn ends_without_a_common_cipher_get_no_session() {
    let only = |cipher| Capabilities { ciphers: Ciphers::only(cipher), ..Capabilities::new(true) };
    let mut a = end_with(1, *keys(2).public(), [7; 32], only(Cipher::Aes256Gcm));
    let mut b = end_with(2, *keys(1).public(), [7; 32], only(Cipher::ChaCha20Poly1305));
    let initiation = a.initiate(START);
    assert_eq!(b.handle(START, a.address, &initiation), Reaction::Dropped(Dropped::NoCommonCipher));
}

#[test]
fn every_flipped_bit_of_an_initiation_is_refused_without_an_answer() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    // MAC2, the last 128 bits, is not looked at without load.
    for (bit, forged) in flipped(&initiation).take(initiation.len() * 8 - 128) {
        assert!(matches!(b.handle(below_load(bit), a.address, &forged), Reaction::Dropped(_)), "bit {bit}");
    }
    assert!(matches!(b.handle(START, a.address, &initiation), Reaction::Reply(_)), "and changes nothing");
}

#[test]
fn every_flipped_bit_of_an_initiation_is_refused_even_with_a_valid_mac1() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    for (bit, mut forged) in flipped(&initiation[..initiation.len() - 32]) {
        forged.extend_from_slice(&[0; 32]);
        resign(b.us.keys.public(), &mut forged);
        assert!(matches!(b.handle(below_load(bit), a.address, &forged), Reaction::Dropped(_)), "bit {bit}");
    }
    assert!(matches!(b.handle(START, a.address, &initiation), Reaction::Reply(_)), "and changes nothing");
}

#[test]
fn every_flipped_bit_of_a_response_is_refused_without_an_answer() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    let Reaction::Reply(response) = b.handle(START, a.address, &initiation) else { panic!("no response") };
    for (bit, forged) in flipped(&response).take(response.len() * 8 - 128) {
        assert!(matches!(a.handle(below_load(bit), b.address, &forged), Reaction::Dropped(_)), "bit {bit}");
    }
    for (bit, mut forged) in flipped(&response[..response.len() - 32]) {
        forged.extend_from_slice(&[0; 32]);
        resign(a.us.keys.public(), &mut forged);
        assert!(matches!(a.handle(below_load(bit), b.address, &forged), Reaction::Dropped(_)), "bit {bit}");
    }
    assert_eq!(a.handle(START, b.address, &response), Reaction::Done, "and changes nothing");
}

#[test]
fn every_flipped_bit_of_a_datagram_is_refused_and_does_not_move_the_window() {
    let (mut a, mut b) = two();
    handshake(START, &mut a, &mut b);
    let datagram = a.seal(START, b"an inner packet").unwrap();
    for (bit, forged) in flipped(&datagram) {
        assert!(matches!(b.handle(START, a.address, &forged), Reaction::Dropped(_)), "bit {bit}");
    }
    assert!(matches!(b.handle(START, a.address, &datagram), Reaction::Data(..)));
    assert_eq!(b.handle(START, a.address, &datagram), Reaction::Dropped(Dropped::Duplicate));
}

#[test]
fn a_truncated_message_is_refused() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    for len in 0..initiation.len() {
        assert!(matches!(b.handle(START, a.address, &initiation[..len]), Reaction::Dropped(_)), "{len}");
    }
    handshake(START + Duration::from_secs(6), &mut b, &mut a);
    let datagram = b.seal(START, b"an inner packet").unwrap();
    for len in 0..datagram.len() {
        assert!(matches!(a.handle(START, b.address, &datagram[..len]), Reaction::Dropped(_)), "{len}");
    }
}

#[test]
fn a_replayed_initiation_is_stale() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    assert!(matches!(b.handle(START, a.address, &initiation), Reaction::Reply(_)));
    assert_eq!(b.handle(START, a.address, &initiation), Reaction::Dropped(Dropped::StaleHandshake));
}

#[test]
fn a_copy_from_another_source_gets_the_same_response_once() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    let sources: Vec<_> = (0..50).map(|port| (a.address.ip(), port).into()).collect();
    let first = b.handle(START, sources[0], &initiation);
    assert!(matches!(first, Reaction::Reply(_)));
    let late = START + Duration::from_secs(5);
    let repeated = sources.iter().filter(|from| b.handle(late, **from, &initiation) == first).count();
    assert_eq!(repeated, 31, "one for each of the other paths that a peer can have");
    let again = b.handle(late, sources[1], &initiation);
    assert_eq!(again, Reaction::Dropped(Dropped::StaleHandshake));
}

#[test]
fn a_copy_that_is_late_or_comes_after_the_first_datagram_is_stale() {
    let (mut a, mut b) = two();
    let elsewhere = ([192, 0, 2, 9], 4754).into();
    let initiation = a.initiate(START);
    let Reaction::Reply(response) = b.handle(START, a.address, &initiation) else { panic!("no response") };
    let late = START + Duration::from_secs(10);
    assert_eq!(b.handle(late, elsewhere, &initiation), Reaction::Dropped(Dropped::StaleHandshake));
    assert_eq!(a.handle(START, b.address, &response), Reaction::Done);
    send(START, &mut a, &mut b, b"confirmed");
    assert_eq!(b.handle(START, elsewhere, &initiation), Reaction::Dropped(Dropped::StaleHandshake));
}

#[test]
fn an_initiation_older_than_the_last_one_is_stale() {
    let (mut a, mut b) = two();
    let first = a.initiate(START);
    let later = START + Duration::from_secs(6);
    let second = a.poll(later).unwrap().message;
    assert!(matches!(b.handle(later, a.address, &second), Reaction::Reply(_)));
    assert_eq!(b.handle(later, a.address, &first), Reaction::Dropped(Dropped::StaleHandshake));
}

#[test]
fn a_replayed_response_completes_nothing() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    let Reaction::Reply(response) = b.handle(START, a.address, &initiation) else { panic!("no response") };
    assert_eq!(a.handle(START, b.address, &response), Reaction::Done);
    assert_eq!(a.handle(START, b.address, &response), Reaction::Dropped(Dropped::UnknownSession));
    assert_eq!(a.established().len(), 1);
}

#[test]
fn a_wrong_preshared_key_completes_nothing() {
    let mut a = end_with(1, *keys(2).public(), [8; 32], Capabilities::new(true));
    let mut b = end(2, *keys(1).public());
    let initiation = a.initiate(START);
    let Reaction::Reply(response) = b.handle(START, a.address, &initiation) else { panic!("no response") };
    assert_eq!(a.handle(START, b.address, &response), Reaction::Dropped(Dropped::NotAuthentic));
    assert_eq!(a.seal(START, b""), Err(Dropped::NoSession));
}

#[test]
fn an_unknown_initiator_gets_no_answer() {
    let (_, mut b) = two();
    let mut stranger = end(3, *keys(2).public());
    let initiation = stranger.initiate(START);
    assert_eq!(b.handle(START, stranger.address, &initiation), Reaction::Dropped(Dropped::UnknownPeer));
}

#[test]
fn an_initiation_for_another_responder_gets_no_answer() {
    let (_, mut b) = two();
    let mut a = end(1, *keys(3).public());
    let initiation = a.initiate(START);
    assert_eq!(b.handle(START, a.address, &initiation), Reaction::Dropped(Dropped::BadMac));
    let mut resigned = initiation;
    resign(b.us.keys.public(), &mut resigned);
    assert_eq!(b.handle(START, a.address, &resigned), Reaction::Dropped(Dropped::NotAuthentic));
}

#[test]
fn nothing_is_sent_to_a_static_key_of_low_order() {
    let one = std::array::from_fn(|at| u8::from(at == 0));
    for key in [[0; 32], one] {
        let mut a = end(1, PublicKey::from_bytes(key));
        a.peer.request(START);
        assert!(a.poll(START).is_none(), "key {key:02x?}");
        assert_eq!(a.peer.next_deadline(), None);
    }
}

#[test]
fn an_initiation_without_the_secret_key_of_its_claimed_peer_fails_at_the_payload() {
    // The static key of a peer is public, so an attacker can seal it; it cannot compute `ss`.
    let (_, mut b) = two();
    let mut attacker = end(3, *keys(2).public());
    let real = end(1, *keys(2).public()).initiate(START);
    let mut forged = attacker.initiate(START);
    forged[88..].copy_from_slice(&real[88..]);
    resign(b.us.keys.public(), &mut forged);
    assert!(matches!(b.handle(START, attacker.address, &forged), Reaction::Dropped(_)));
}

#[test]
fn under_load_an_initiator_gets_a_cookie_and_is_admitted_with_it() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    let Reaction::Reply(reply) = flood(&mut b, &initiation) else { panic!("no cookie") };
    assert_eq!(reply.len(), COOKIE_REPLY_LEN);
    assert!(reply.len() < initiation.len());
    assert_eq!(a.handle(START, b.address, &reply), Reaction::Done);

    let later = START + Duration::from_millis(5_400);
    let second = a.poll(later).unwrap();
    assert!(has_mac2(&second.message) && second.attempt == 2);
    let Reaction::Reply(cookie) = flood(&mut b, &initiation) else { panic!("no cookie") };
    assert_eq!(cookie.len(), COOKIE_REPLY_LEN, "still under load");
    let Reaction::Reply(response) = b.handle(later, a.address, &second.message) else { panic!("no response") };
    assert_eq!(a.handle(later, b.address, &response), Reaction::Done);
}

/// Sends `b` one initiation repeatedly until it returns a cookie.
fn flood(b: &mut End, initiation: &[u8]) -> Reaction {
    let from = ([192, 0, 2, 1], 4754).into();
    let mut reactions = (0..200).map(|_| b.handle(START + Duration::from_millis(5_400), from, initiation));
    let cookie = reactions.find(|r| matches!(r, Reaction::Reply(reply) if reply.len() == COOKIE_REPLY_LEN));
    cookie.expect("load")
}

#[test]
fn an_unexpected_or_damaged_cookie_reply_is_refused() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    let Reaction::Reply(reply) = flood(&mut b, &initiation) else { panic!("no cookie") };
    for (bit, forged) in flipped(&reply) {
        assert!(matches!(a.handle(START, b.address, &forged), Reaction::Dropped(_)), "bit {bit}");
    }
    assert_eq!(end(1, *keys(2).public()).handle(START, b.address, &reply), Reaction::Dropped(Dropped::UnknownSession));
}

#[test]
fn a_stale_cookie_costs_nothing() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    let Reaction::Reply(reply) = flood(&mut b, &initiation) else { panic!("no cookie") };
    assert_eq!(a.handle(START, b.address, &reply), Reaction::Done);

    let mut b = end_with(2, *keys(1).public(), [7; 32], Capabilities::new(true));
    b.guard = mpt_proto::crypto::handshake::HandshakeGuard::new(b.us.keys.public(), [99; 32]);
    let (second, third) = (START + Duration::from_secs(6), START + Duration::from_secs(12));
    let with_cookie = a.poll(second).unwrap().message;
    assert!(has_mac2(&with_cookie));
    assert!(matches!(b.handle(second, a.address, &with_cookie), Reaction::Reply(_)));
    assert!(!has_mac2(&a.poll(third).unwrap().message), "a cookie is used once");
}

#[test]
fn a_cookie_reply_counts_only_while_an_initiation_waits_and_from_where_it_was_sent() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    let Reaction::Reply(reply) = flood(&mut b, &initiation) else { panic!("no cookie") };
    let elsewhere = ([192, 0, 2, 2], 4755).into();
    assert_eq!(a.handle(START, elsewhere, &reply), Reaction::Dropped(Dropped::UnknownSession));
    assert_eq!(a.handle(START, b.address, &reply), Reaction::Done);

    let later = START + Duration::from_secs(60);
    let initiation = a.poll(later).unwrap().message;
    let Reaction::Reply(response) = b.handle(later, a.address, &initiation) else { panic!("no response") };
    // The reply of the initiator to the response, as anybody can write it.
    let mut forger = end(1, *keys(2).public());
    let Reaction::Reply(forged) = flood(&mut forger, &b.initiate(later)) else { panic!("no cookie") };
    let to_response = [&forged[..5], &response[5..8], &forged[8..]].concat();
    assert_eq!(b.handle(later, a.address, &to_response), Reaction::Dropped(Dropped::UnknownSession));
    assert_eq!(a.handle(later, b.address, &response), Reaction::Done);
    assert_eq!(a.handle(later, b.address, &reply), Reaction::Dropped(Dropped::UnknownSession));
}

fn has_mac2(message: &[u8]) -> bool {
    message[message.len() - 16..] != [0; 16]
}

#[test]
fn random_datagrams_get_no_answer_and_change_nothing() {
    let (mut a, mut b) = two();
    handshake(START, &mut a, &mut b);
    send(START, &mut a, &mut b, b"confirmed");
    b.events();
    let seen = [a.initiate(START + Duration::from_secs(6)), a.seal(START, b"x").unwrap()];
    let (mut rng, deadline) = (SplitMix64(7), b.peer.next_deadline());
    for i in 0..100_000 {
        let now = START + Duration::from_micros(1_500) * i;
        let mut datagram = seen[rng.below(2) as usize].clone();
        for _ in 0..=rng.below(4) {
            let at = rng.below(datagram.len() as u64) as usize;
            datagram[at] = datagram[at].wrapping_add(1 + rng.below(255) as u8);
        }
        datagram.truncate(datagram.len().saturating_sub((rng.below(3) * rng.below(20)) as usize));
        // A change of MAC2 alone has no effect without load.
        let authentic = seen[0].len() - 16;
        if seen.contains(&datagram) || datagram.len() == seen[0].len() && datagram[..authentic] == seen[0][..authentic]
        {
            continue;
        }
        let reaction = b.handle(now, a.address, &datagram);
        assert!(matches!(reaction, Reaction::Dropped(_)), "{datagram:02x?}");
    }
    assert_eq!((b.events(), b.peer.next_deadline()), (vec![], deadline));
    assert!(matches!(b.handle(START, a.address, &seen[1]), Reaction::Data(..)), "the window has not moved");
}

#[test]
fn equal_numbers_on_different_paths_are_not_replays() {
    let (mut a, mut b) = two();
    handshake(START, &mut a, &mut b);
    for slot in 0..32 {
        let datagram = a.seal_on(START, PathId { slot, generation: 9 }, b"x").unwrap();
        assert!(matches!(b.handle(START, a.address, &datagram), Reaction::Data(number, _) if number.0 == 0));
    }
}

#[test]
fn a_retried_initiation_retires_the_index_of_the_previous_one() {
    let (mut a, _) = two();
    a.peer.request(START);
    let first = a.poll(START).unwrap().index;
    a.poll(START + Duration::from_secs(6)).unwrap();
    assert_eq!(a.events(), [SessionEvent::Retired(first)]);
}
