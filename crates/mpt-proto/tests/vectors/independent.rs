//! The committed vectors, decoded without code of the core, as `docs/protocol.md` describes them.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;

use aes_gcm::Aes256Gcm;
use aes_gcm::aead::{AeadInOut, KeyInit, Tag, inout::InOutBuf};
use blake2::digest::consts::U16;
use blake2::digest::{Digest, Mac};
use blake2::{Blake2s256, Blake2sMac};
use chacha20poly1305::{ChaCha20Poly1305, XChaCha20Poly1305};
use hmac::SimpleHmac;

use crate::committed;
use crate::packets::checksum;
use crate::text::Read;

mod fields;
mod frames;
mod gf256;

const NAME: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"MPT native mode, version 1, GRE 0x88B6";

fn read() -> Read {
    Read::parse(&fs::read_to_string(committed()).unwrap())
}

/// The keys of the session that the two messages agree on, with the fixed keys of the vectors.
pub fn transport_keys(initiation: &[u8], response: &[u8]) -> [[u8; 32]; 2] {
    agree(&counting(0x40), &counting(0x80), &counting(0x60), &counting(0xa0), initiation, response).keys
}

/// Contents of both messages, and the keys that follow from them.
struct Agreed {
    first: Vec<u8>,
    second: Vec<u8>,
    keys: [[u8; 32]; 2],
}

/// Plays the initiator with its fixed ephemeral key, and checks that it writes the same initiation.
fn agree(
    initiator: &[u8; 32],
    ephemeral: &[u8; 32],
    responder: &[u8; 32],
    psk: &[u8; 32],
    initiation: &[u8],
    response: &[u8],
) -> Agreed {
    let (initiation, response) = (&initiation[8..initiation.len() - 32], &response[12..response.len() - 32]);
    let builder = || snow::Builder::new(NAME.parse().unwrap()).prologue(PROLOGUE).unwrap().psk(2, psk).unwrap();
    let mut reader = builder().local_private_key(responder).unwrap().build_responder().unwrap();
    let (mut room, mut written) = ([0; 600], [0; 600]);
    let len = reader.read_message(initiation, &mut room).unwrap();
    let first = room[..len].to_vec();

    let public = public(responder);
    let builder = builder().local_private_key(initiator).unwrap().remote_public_key(&public).unwrap();
    let mut writer = builder.fixed_ephemeral_key_for_testing_only(ephemeral).build_initiator().unwrap();
    let len = writer.write_message(&first, &mut written).unwrap();
    assert_eq!(written[..len], *initiation, "the same keys write the same initiation");
    let len = writer.read_message(response, &mut room).unwrap();
    let keys = writer.dangerously_get_raw_split();
    Agreed { first, second: room[..len].to_vec(), keys: [keys.0, keys.1] }
}

/// HKDF of the handshake with three outputs.
fn hkdf(key: &[u8; 32], input: &[u8]) -> [[u8; 32]; 3] {
    let hmac = |key: &[u8], parts: &[&[u8]]| -> [u8; 32] {
        let mut mac = <SimpleHmac<Blake2s256> as KeyInit>::new_from_slice(key).unwrap();
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    };
    let extracted = hmac(key, &[input]);
    let first = hmac(&extracted, &[&[1]]);
    let second = hmac(&extracted, &[&first, &[2]]);
    [first, second, hmac(&extracted, &[&second, &[3]])]
}

fn diffie_hellman(own: &[u8; 32], other: &[u8; 32]) -> [u8; 32] {
    let own = x25519_dalek::StaticSecret::from(*own);
    own.diffie_hellman(&x25519_dalek::PublicKey::from(public(other))).to_bytes()
}

/// The keys that the handshake with these private keys leaves: for the session, and for its rekey.
pub fn keys_of_handshake(statics: [[u8; 32]; 2], ephemerals: [[u8; 32]; 2], psk: &[u8; 32]) -> [[u8; 32]; 3] {
    let [[si, sr], [ei, er]] = [statics, ephemerals];
    let name: [u8; 32] = Blake2s256::digest(NAME).into();
    let inputs = [
        public(&ei),
        diffie_hellman(&ei, &sr),
        diffie_hellman(&si, &sr),
        public(&er),
        diffie_hellman(&ei, &er),
        diffie_hellman(&si, &er),
        *psk,
    ];
    hkdf(&inputs.iter().fold(name, |chaining, input| hkdf(&chaining, input)[0]), &[])
}

/// The same for the fixed keys of the vectors.
pub fn handshake_keys() -> [[u8; 32]; 3] {
    keys_of_handshake([0x40, 0x60].map(counting), [0x80, 0xc0].map(counting), &counting(0xa0))
}

/// The keys that a rekey leaves. `messages` are the values of both messages.
pub fn rekey_keys(chaining: &[u8; 32], ephemerals: [[u8; 32]; 2], messages: [Vec<u8>; 2]) -> [[u8; 32]; 3] {
    let hash = labelled(b"MPT native mode, version 1, rekey", &messages.concat());
    let [asking, answering] = ephemerals;
    let shared = hkdf(chaining, &diffie_hellman(&asking, &answering))[0];
    hkdf(&hkdf(&shared, &counting(0xa0))[0], &hash)
}

fn counting(first: u8) -> [u8; 32] {
    std::array::from_fn(|at| first.wrapping_add(at as u8))
}

fn public(private: &[u8; 32]) -> [u8; 32] {
    x25519_dalek::PublicKey::from(&x25519_dalek::StaticSecret::from(*private)).to_bytes()
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    let mut mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn labelled(label: &[u8], public: &[u8]) -> [u8; 32] {
    Blake2s256::new().chain_update(label).chain_update(public).finalize().into()
}

/// MAC1 and MAC2 at the end of a handshake message.
fn check_macs(message: &[u8], receiver: &[u8], cookie: Option<&[u8; 16]>) {
    let (body, macs) = message.split_at(message.len() - 32);
    assert_eq!(macs[..16], mac(&labelled(b"mpt-mac1", receiver), &[body]));
    let mac2 = cookie.map_or([0; 16], |cookie| mac(cookie, &[body, &macs[..16]]));
    assert_eq!(macs[16..], mac2);
}

#[test]
fn another_implementation_of_noise_reads_the_handshake_and_derives_the_same_keys() {
    let read = read();
    let key = |name: &str| read.array::<32>("keys", name);
    for end in ["initiator", "responder"] {
        assert_eq!(public(&key(&format!("{end}.private"))), key(&format!("{end}.public")));
    }
    let (initiation, response) = (read.octets("initiation", "message"), read.octets("response", "message"));
    let (initiator, ephemeral) = (key("initiator.private"), key("initiator.ephemeral_private"));
    let agreed = agree(&initiator, &ephemeral, &key("responder.private"), &key("preshared"), &initiation, &response);
    assert_eq!(agreed.first, read.octets("initiation", "payload"));
    assert_eq!(agreed.second, read.octets("response", "payload"));
    assert_eq!(agreed.keys, ["to_responder", "to_initiator"].map(|name| read.array("transport", name)));
    assert_eq!(response[12..44], public(&key("responder.ephemeral_private")));
}

#[test]
fn the_clear_parts_and_the_payloads_of_the_handshake_have_the_documented_layout() {
    let read = read();
    let (initiation, response) = (read.octets("initiation", "message"), read.octets("response", "message"));
    let index = |end: &str| read.octets("keys", &format!("{end}.index"));
    assert_eq!(initiation[..8], [&[0, 0, 0x88, 0xb6, 1][..], &index("initiator")].concat());
    assert_eq!(response[..12], [&[0, 0, 0x88, 0xb6, 2][..], &index("responder"), &[0], &index("initiator")].concat());
    assert_eq!((initiation.len(), response.len()), (172, 116));

    let payload = read.octets("initiation", "payload");
    let clock = read.number("initiation", "clock_ns");
    let label = (1u64 << 62) + 10 + clock / 1_000_000_000;
    assert_eq!(payload[..8], label.to_be_bytes());
    assert_eq!(payload[8..12], ((clock % 1_000_000_000) as u32).to_be_bytes());
    for (hello, end) in [(&payload[12..], "initiator"), (&read.octets("response", "payload")[..], "responder")] {
        let run = read.octets("keys", &format!("{end}.run"));
        let capabilities = [1, 8, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(hello, [&index(end)[..], &[1], &run, &[1, 3], &capabilities].concat());
    }
}

#[test]
fn macs_and_cookies_are_computed_as_documented() {
    let read = read();
    let [to_initiator, to_responder] =
        ["initiator", "responder"].map(|end| read.octets("keys", &format!("{end}.public")));
    let initiation = read.octets("initiation", "message");
    check_macs(&initiation, &to_responder, None);
    check_macs(&read.octets("response", "message"), &to_initiator, None);

    let reply = read.octets("cookie", "reply");
    assert_eq!(reply[..8], [&[0, 0, 0x88, 0xb6, 3][..], &initiation[5..8]].concat());
    let cipher = XChaCha20Poly1305::new(&labelled(b"mpt-cook", &to_responder).into());
    let mac1 = &initiation[initiation.len() - 32..initiation.len() - 16];
    let mut cookie: [u8; 16] = reply[32..48].try_into().unwrap();
    let (nonce, tag): ([u8; 24], [u8; 16]) = (reply[8..32].try_into().unwrap(), reply[48..].try_into().unwrap());
    cipher.decrypt_inout_detached(&nonce.into(), mac1, cookie.as_mut_slice().into(), &tag.into()).unwrap();

    let SocketAddr::V4(source) = read.text("cookie", "source").parse().unwrap() else { panic!("not IPv4") };
    let ip = source.ip().to_ipv6_mapped().octets();
    let (period, port) = (read.number("cookie", "period").to_be_bytes(), source.port().to_be_bytes());
    assert_eq!(cookie, mac(&read.octets("cookie", "secret"), &[b"cookie", &period, &ip, &port]));
    let second = read.octets("cookie", "second.message");
    check_macs(&second, &to_responder, Some(&cookie));
    assert_eq!(second[5..8], read.octets("cookie", "second.index"));
}

/// Opens a datagram; the number is the full one.
fn open<C: AeadInOut + KeyInit>(key: &[u8; 32], number: u64, datagram: &[u8]) -> Vec<u8> {
    let (header, sealed) = datagram.split_at(12);
    let (body, tag) = sealed.split_at(sealed.len() - 16);
    let nonce = [&[0, 0, 0, header[7]][..], &number.to_be_bytes()].concat();
    let (mut body, cipher) = (body.to_vec(), C::new_from_slice(key).unwrap());
    let tag: &Tag<C> = tag.try_into().unwrap();
    cipher
        .decrypt_inout_detached(nonce.as_slice().try_into().unwrap(), header, InOutBuf::from(&mut body[..]), tag)
        .unwrap();
    body
}

#[test]
fn every_sealed_datagram_opens_and_holds_the_frames_that_are_named() {
    let read = read();
    let key = |name: &str| read.array::<32>("transport", name);
    let mut opened = 0;
    for section in read.sections("datagram.") {
        let from_responder = section.ends_with("from_responder");
        let (key, receiver) =
            if from_responder { (key("to_initiator"), "initiator") } else { (key("to_responder"), "responder") };
        let (number, datagram) = (read.number(section, "number"), read.octets(section, "datagram"));
        let path = read.number(section, "slot") << 3 | read.number(section, "generation") & 7;
        let index = read.octets("keys", &format!("{receiver}.index"));
        let header = [&[0x30, 0, 0x88, 0xb5][..], &index, &[path as u8], &(number as u32).to_be_bytes()].concat();
        assert_eq!(datagram[..12], header, "{section}");
        let body = open::<Aes256Gcm>(&key, number, &datagram);
        assert_eq!(body, read.octets(section, "body"), "{section}");
        assert_eq!(frames::describe(&body), read.text(section, "frames"), "{section}");
        opened += 1;
    }
    assert_eq!(opened, 25);
    assert_eq!(open::<Aes256Gcm>(&key("to_responder"), 0, &read.octets("confirmation", "datagram")), []);
    let chacha = open::<ChaCha20Poly1305>(&key("to_responder"), 0, &read.octets("chacha20_poly1305", "datagram"));
    assert_eq!(chacha, read.octets("chacha20_poly1305", "body"));
}

#[test]
fn a_rekey_has_the_documented_messages_and_leads_to_the_documented_keys() {
    let read = read();
    let key = |name: &str| read.array::<32>("rekey", name);
    assert_eq!(handshake_keys()[..2], ["to_responder", "to_initiator"].map(|name| read.array("transport", name)));
    assert_eq!(handshake_keys()[2], key("chaining"));
    let sealed_with = [("rekey", "to_responder"), ("rekeyed", "to_initiator")];
    let values = sealed_with.map(|(name, direction)| {
        let number = read.number("rekey", &format!("{name}.number"));
        let datagram = read.octets("rekey", &format!("{name}.datagram"));
        let body = open::<Aes256Gcm>(&read.array("transport", direction), number, &datagram);
        assert_eq!(body, read.octets("rekey", &format!("{name}.body")));
        let kind = if name == "rekey" { 1 } else { 2 };
        let index = read.octets("rekey", &format!("{name}.index"));
        let ephemeral = public(&key(&format!("{name}.ephemeral_private")));
        let value = [&[0, 0, 0, 1][..], &index, &ephemeral].concat();
        assert_eq!(body, [&[0x88, kind, 0, 39][..], &value].concat());
        value
    });
    let ephemerals = ["rekey.ephemeral_private", "rekeyed.ephemeral_private"].map(key);
    let keys = rekey_keys(&key("chaining"), ephemerals, values);
    assert_eq!(keys, ["to_responder", "to_initiator", "next_chaining"].map(key));
    let confirmation = read.octets("rekey", "confirmation.datagram");
    assert_eq!(confirmation[4..7], read.octets("rekey", "rekeyed.index"));
    assert_eq!(open::<Aes256Gcm>(&keys[0], read.number("rekey", "confirmation.number"), &confirmation), []);
}

#[test]
fn truncated_numbers_expand_to_the_nearest_number() {
    let read = read();
    for at in 0..9 {
        let (question, answer) = read.text("expansion", &at.to_string()).split_once(" = ").unwrap();
        let (expected, low) = question.split_once(' ').unwrap();
        let (expected, low, answer): (i128, i128, i128) =
            (expected.parse().unwrap(), low.parse().unwrap(), answer.parse().unwrap());
        let turn = 1i128 << 32;
        let near = expected - expected.rem_euclid(turn) + low;
        let candidates = [near + turn, near, near - turn].into_iter().filter(|number| *number >= 0);
        // Of two that are equally near, the greater one.
        assert_eq!(candidates.min_by_key(|number| (number - expected).abs()), Some(answer), "{expected} {low}");
    }
    let (number, header, nonce) =
        (read.number("numbers", "number"), read.octets("numbers", "header"), read.octets("numbers", "nonce"));
    assert_eq!(header[8..], (number as u32).to_be_bytes());
    assert_eq!(nonce, [&[0, 0, 0, header[7]][..], &number.to_be_bytes()].concat());
}

#[test]
fn the_octets_of_ack_ranges_decode_to_the_ranges_beside_them() {
    let read = read();
    for at in 0..5 {
        let ranges = read.text("runs", &format!("{at}.ranges"));
        let largest = ranges.split(['-', ' ']).nth(1).unwrap().parse().unwrap();
        assert_eq!(frames::runs(largest, &read.octets("runs", &format!("{at}.octets"))), ranges);
    }
}

#[test]
fn compressed_headers_expand_to_the_packet() {
    let read = read();
    let sections: Vec<_> = read.sections("headers.").collect();
    assert_eq!(sections.len(), 4);
    for section in sections {
        let [context, packet, body] = ["context_packet", "packet", "body"].map(|name| read.octets(section, name));
        assert_eq!(fields::expand(&context, &body), packet, "{section}");
        assert!(body.len() < packet.len());
        assert!(packet[0] >> 4 == 6 || checksum(&packet[..20]) == 0);
    }
}

#[test]
fn the_repair_symbol_is_the_combination_of_its_sources_and_recovers_a_lost_one() {
    let read = read();
    let (own, span, seed) =
        (read.number("repair", "number"), read.number("repair", "span"), read.number("repair", "seed"));
    let symbol = read.octets("repair", "symbol");
    let mut sources = BTreeMap::new();
    for number in (own - span..own).filter(|number| read.has("repair", &format!("{number}.packet"))) {
        let (bucket, sequence) = read.text("repair", &format!("{number}.place")).split_once(' ').unwrap();
        let (bucket, sequence): (u32, u32) = (bucket.parse().unwrap(), sequence.parse().unwrap());
        let place = bucket << 21 | sequence & 0xf_ffff;
        sources
            .insert(number, [&place.to_be_bytes()[..], &read.octets("repair", &format!("{number}.packet"))].concat());
    }
    assert_eq!(sources.keys().copied().collect::<Vec<_>>(), [100, 101, 103]);
    let sum = |numbers: &[u64]| {
        let mut sum = vec![0; symbol.len()];
        for (number, source) in sources.iter().filter(|(number, _)| numbers.contains(number)) {
            gf256::add_multiple(&mut sum, gf256::coefficient(seed, *number), source);
        }
        sum
    };
    assert_eq!(sum(&[100, 101, 103]), symbol);

    let mut lost = symbol.clone();
    lost.iter_mut().zip(sum(&[100, 103])).for_each(|(octet, known)| *octet ^= known);
    let inverse = gf256::inverse(gf256::coefficient(seed, 101));
    let lost: Vec<u8> = lost.iter().map(|octet| gf256::multiply(inverse, *octet)).collect();
    assert_eq!(lost[..sources[&101].len()], sources[&101]);
    assert!(lost[sources[&101].len()..].iter().all(|octet| *octet == 0));

    let body = read.octets("repair", "body");
    assert_eq!(frames::describe(&body), format!("repair span {span} seed {seed}"));
    assert_eq!(body[3..], symbol);
}
