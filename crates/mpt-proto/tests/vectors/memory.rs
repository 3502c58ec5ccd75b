//! Which keys of a session are left in the memory of the process after a rekey.
#![allow(clippy::disallowed_types, reason = "the test reads the memory of its process; the core has no I/O")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use mpt_proto::crypto::association::Association;
use mpt_proto::crypto::handshake::{
    Capabilities, ClaimedInitiation, Clock, EphemeralInput, HandshakeMessage, Identity, Incarnation,
};
use mpt_proto::crypto::keys::{KeyPair, PresharedKey};
use mpt_proto::path::{LinkId, PathId};
use mpt_proto::time::Time;
use mpt_proto::wire::native::{OVERHEAD, SessionIndex};

use crate::independent::{keys_of_handshake, rekey_keys};

/// Private keys that no other test of this process uses.
const STATICS: [[u8; 32]; 2] = [[0x5a; 32], [0x6b; 32]];
const PSK: u8 = 0xa0;

fn psk() -> [u8; 32] {
    std::array::from_fn(|at| PSK.wrapping_add(at as u8))
}

/// Returns the writable memory of this process without the stack of this thread, where values are written over. Every
/// bit is inverted, so a later search does not find what an earlier snapshot contains.
fn snapshot() -> Vec<u8> {
    let (here, mut bytes) = (0u8, Vec::with_capacity(64 << 20));
    let stack = std::ptr::from_ref(&here) as usize;
    let memory = File::open("/proc/self/mem").unwrap();
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        let target = bytes.as_ptr() as usize;
        if !rest.starts_with("rw") || (start..end).contains(&stack) || (start..end).contains(&target) {
            continue;
        }
        let mut region = vec![0; end - start];
        if memory.read_exact_at(&mut region, start as u64).is_ok() {
            region.iter_mut().for_each(|byte| *byte = !*byte);
            bytes.extend(&region);
        }
    }
    bytes
}

fn fresh(ephemeral: u8, index: u32) -> EphemeralInput {
    EphemeralInput { ephemeral: [ephemeral; 32], index: SessionIndex::new(index), jitter: 0 }
}

/// Each end with its association; both are in this process.
struct End(Identity, Association);

fn confirm(now: Time, from: &mut End, to: &mut End) {
    let mut datagram = vec![0; OVERHEAD];
    from.1.seal(now, PathId { slot: 0, generation: 0 }, &mut datagram).unwrap();
    to.1.open(now, &mut datagram).unwrap();
}

fn handshake(now: Time, ends: &mut [End; 2]) {
    let [a, b] = ends;
    let source = (LinkId(0), "192.0.2.1:4754".parse().unwrap());
    a.1.request(now);
    let initiation = a.1.poll_transmit(now, &mut a.0, || fresh(0x71, 1)).unwrap().message;
    let Some(HandshakeMessage::Initiation(initiation)) = HandshakeMessage::decode(&initiation) else { panic!() };
    let claimed = ClaimedInitiation::open(&b.0, &initiation).unwrap().verify(&b.0).unwrap();
    let response = b.1.handle_initiation(now, &b.0, claimed, source, || fresh(0x72, 2)).unwrap().message;
    let Some(HandshakeMessage::Response(response)) = HandshakeMessage::decode(&response) else { panic!() };
    a.1.handle_response(now, &a.0, &response).unwrap();
    confirm(now, a, b);
}

/// Returns the values of both messages, and the memory while the initiator waits for the response.
fn rekey(now: Time, ends: &mut [End; 2]) -> ([Vec<u8>; 2], Vec<u8>) {
    let [a, b] = ends;
    a.1.replace_session(now);
    let ask = a.1.poll_rekey(now, || fresh(0x73, 3)).unwrap();
    let waiting = snapshot();
    b.1.handle_rekey(now, b.0.keys.public(), SessionIndex::new(2), &ask, || fresh(0x74, 4)).unwrap();
    let answer = b.1.poll_rekey(now, || panic!("an answer needs nothing new")).unwrap();
    a.1.handle_rekey(now, a.0.keys.public(), SessionIndex::new(1), &answer, || panic!("nor does its receiver"))
        .unwrap();
    confirm(now, a, b);
    ([ask, answer].map(|message| message.to_body()[3..].to_vec()), waiting)
}

/// Returns a private key as a key pair stores it: clamped (RFC 7748 section 5).
fn clamped(ephemeral: u8) -> [u8; 32] {
    let mut key = [ephemeral; 32];
    (key[0], key[31]) = (ephemeral & 0xf8, ephemeral & 0x7f | 0x40);
    key
}

fn contains(memory: &[u8], secret: &[u8; 32]) -> bool {
    let inverted = secret.map(|byte| !byte);
    memory.windows(32).any(|bytes| bytes == inverted)
}

/// The keys are computed after the memory was copied, so what is found was left by the core.
#[test]
fn a_rekey_leaves_neither_its_ephemeral_keys_nor_the_chaining_key_before_it_in_memory() {
    let peers = [1, 0].map(|peer: usize| *KeyPair::generate(STATICS[peer]).public());
    let mut ends = [0, 1].map(|end: usize| {
        let clock = Clock::new(Duration::from_secs(1_800_000_000));
        let identity = Identity { keys: KeyPair::generate(STATICS[end]), capabilities: Capabilities::new(true), clock };
        End(identity, Association::new(peers[end], PresharedKey::from_bytes(psk()), Incarnation([end as u8; 8])))
    });
    let now = Time::after(Duration::from_secs(10));
    handshake(now, &mut ends);
    let before = snapshot();
    let (messages, waiting) = rekey(now + Duration::from_secs(120), &mut ends);
    let after = snapshot();
    ends.iter_mut().for_each(|end| end.1.handle_timeout(now + Duration::from_secs(180)));
    let expired = snapshot();

    let [old_key, _, chaining] = keys_of_handshake(STATICS, [[0x71; 32], [0x72; 32]], &psk());
    let [new_key, _, next] = rekey_keys(&chaining, [[0x73; 32], [0x74; 32]], messages);
    let found = |memory| [old_key, chaining, new_key, next].map(|key| contains(memory, &key));
    assert_eq!(found(&before), [true, true, false, false], "the search finds keys that are in use");
    assert_eq!(found(&after), [true, false, true, true], "datagrams of the old session may still be under way");
    assert_eq!(found(&expired), [false, false, true, true]);
    assert!(contains(&waiting, &clamped(0x73)), "the search finds an ephemeral key that is in use");
    for ephemeral in [0x73, 0x74] {
        assert!(!contains(&after, &clamped(ephemeral)) && !contains(&after, &[ephemeral; 32]), "{ephemeral:x}");
    }
}
