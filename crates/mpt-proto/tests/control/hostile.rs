//! A million modified messages: none causes a panic, and none changes anything without authentication.

use mpt_proto::legacy::control::{Accept, ControlChannel, ControlEvent};
use mpt_proto::legacy::wire::{AuthKey, AuthType, ControlMessage, DOWN, Opcode, PathEnds};

use crate::peer::*;

/// SplitMix64 (Steele, Lea, Flood), reproducible by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns a modified copy: bits flipped, bytes replaced, or the end cut off or extended.
    fn mutate(&mut self, message: &[u8]) -> Vec<u8> {
        let mut changed = message.to_vec();
        while changed == message {
            for _ in 0..=self.below(4) {
                let at = self.below(changed.len().max(1));
                match (self.below(5), changed.get_mut(at)) {
                    (0, _) => changed.truncate(at),
                    (1, _) => changed.extend((0..at % 40).map(|n| n as u8)),
                    (2, Some(byte)) => *byte = [0, 1, 2, 3, 4, 36, 0x80, 0xA1, 0xA3, 0xFF][at % 10],
                    (_, Some(byte)) => *byte ^= 1 << (at % 8),
                    (_, None) => {}
                }
            }
        }
        changed
    }
}

/// Returns all messages to host 1 in the exchanges below, signed correctly for the authentication type.
fn messages(auth: AuthType, key: &AuthKey) -> Vec<Vec<u8>> {
    let peer = Peer { key: key.clone(), ..Peer::new(auth) };
    let ends = PathEnds { initiator: path(2).public, responder: path(2).remote }.encode();
    let ask = |opcode, round, body: &[u8]| peer.request(opcode, DOWN, round, peer.nonce, body);
    let reply = |round, body| {
        let (initiator, responder) = (ip("10.77.0.1"), ip("10.77.0.2"));
        let auth = auth.with(peer.nonce);
        ControlMessage { opcode: Opcode::PathStatus, code: 0, auth, round, initiator, responder, body }.encode(key)
    };
    vec![
        ask(Opcode::PathStatus, 1, &[32, 0, 0, 0]),
        ask(Opcode::PathStatus, 3, &ends),
        ask(Opcode::Create, 1, &[9, 0, 0, 0]),
        ask(Opcode::Create, 3, b";;;;;;;\n[connection]\n"),
        reply(2, &[32, 0, 0, 0]),
        reply(4, &[]),
    ]
}

/// Returns true if there was any event except a keepalive, or any datagram sent; both need authentication.
fn changed(ours: &mut ControlChannel) -> bool {
    let events = events(ours).into_iter().any(|event| !matches!(event, ControlEvent::Keepalive { .. }));
    !transmits(ours).is_empty() || events
}

#[test]
fn a_million_changed_messages_change_nothing_without_authentication() {
    let seed = 0x4D50_5431;
    let mut random = Random(seed);
    let accept = Accept { create: Some(secret()), ..Accept::default() };
    let mut ours = ControlChannel::new(accept, [1; 32]);
    ours.add_connection(connection(1, AuthType::Sha256));
    // A pending exchange makes replies and a third round possible.
    ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
    ours.handle_datagram(ms(0), control(2), &messages(AuthType::Sha256, &secret())[0]).unwrap();
    transmits(&mut ours);

    let guessed = AuthKey::from_text("somebody else's key");
    let right: Vec<_> = TYPES.iter().flat_map(|auth| messages(*auth, &secret())).collect();
    let forged: Vec<_> = TYPES.iter().flat_map(|auth| messages(*auth, &guessed)).collect();
    let deadline = ours.next_deadline();
    for n in 0..1_000_000 {
        let from = if n % 3 == 0 { "192.0.2.7:1".parse().unwrap() } else { control(2) };
        let message = if n % 2 == 0 { &right[random.below(right.len())] } else { &forged[random.below(forged.len())] };
        let message = random.mutate(message);
        let _ = ours.handle_datagram(ms(0), from, &message);
        assert!(!changed(&mut ours), "seed {seed:#x}, message {n}: {message:02x?}");
        assert_eq!(ours.next_deadline(), deadline);
    }
}

#[test]
fn without_any_policy_changed_messages_still_do_not_panic() {
    let seed = 0x4D50_5432;
    let mut random = Random(seed);
    let mut hosts = TYPES.map(|auth| (auth, trusting(1, auth), messages(auth, &secret())));
    for n in 0..200_000_u64 {
        let (_, ours, messages) = &mut hosts[random.below(3)];
        let which = random.below(messages.len());
        let message = random.mutate(&messages[which]);
        ours.handle_timeout(ms(n));
        let _ = ours.send_status(ms(n), pair(1), control(2), path(1), n % 2 == 0);
        let _ = ours.handle_datagram(ms(n), control(2), &message);
        changed(ours);
    }
}

#[test]
fn the_unchanged_messages_are_accepted() {
    let mut ours = ControlChannel::new(Accept { create: Some(secret()), ..Accept::default() }, [1; 32]);
    ours.add_connection(connection(1, AuthType::Sha256));
    let messages = messages(AuthType::Sha256, &secret());
    for request in [&messages[0], &messages[2]] {
        assert_eq!(ours.handle_datagram(ms(0), control(2), request), Ok(()));
        assert!(changed(&mut ours));
    }
}
