//! Captures of the original, in both directions; digests were computed by hand from the description of the hash input.

use proptest::prelude::*;

use super::*;

/// The key of the captures of type 2; only the first 32 characters are used.
const KEY: &str = "000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F";
const NONCE: Nonce = [0xca, 0xa5, 0x51, 0x7e];
const SIZE: [u8; 4] = [0x20, 0, 0, 0];

/// Decodes the captures' text form: hexadecimal digits with spaces anywhere.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<char> = digits.chars().filter(|c| !c.is_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&String::from_iter(pair), 16).unwrap()).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const TUNNEL: &str = "00000000000000000000ffff0a4d0001 00000000000000000000ffff0a4d0002";
const PATH: &str = "00000000000000000000ffffc0a80b01 00000000000000000000ffffc0a80b02";

fn path() -> [u8; 32] {
    PathEnds { initiator: ip("192.168.11.1"), responder: ip("192.168.11.2") }.encode()
}

/// Returns code, nonce and body of each of the four rounds by which path 192.168.11.1 to 192.168.11.2 goes down.
fn rounds() -> [(u8, Nonce, Vec<u8>); 4] {
    [(DOWN, [0; 4], SIZE.to_vec()), (0, NONCE, SIZE.to_vec()), (DOWN, NONCE, path().to_vec()), (0, NONCE, vec![])]
}

fn message(round: usize, auth: AuthType, body: &[u8]) -> ControlMessage<'_> {
    let (code, nonce, _) = rounds()[round - 1];
    let (initiator, responder) = (ip("10.77.0.1"), ip("10.77.0.2"));
    let auth = auth.with(nonce);
    ControlMessage { opcode: Opcode::PathStatus, code, auth, round: round as u8, initiator, responder, body }
}

/// Encodes each round, compares it with the capture, and decodes the capture.
fn matches_captures(auth: AuthType, captures: [String; 4]) {
    let key = AuthKey::from_text(KEY);
    for (round, capture) in (1..).zip(captures) {
        let (capture, body) = (hex(&capture), &rounds()[round - 1].2);
        let expected = message(round, auth, body);
        assert_eq!(expected.encode(&key), capture, "round {round}");
        assert_eq!(ControlMessage::decode(&capture), Ok(expected), "round {round}");
    }
}

#[test]
fn captures_without_authentication_are_reproduced() {
    matches_captures(
        AuthType::None,
        [
            format!("a2800000 01040000 {TUNNEL} 20000000"),
            format!("a2000000 02040000 {TUNNEL} 20000000"),
            format!("a2800000 03040000 {TUNNEL} {PATH}"),
            format!("a2000000 04040000 {TUNNEL}"),
        ],
    );
}

#[test]
fn captures_with_a_nonce_are_reproduced() {
    matches_captures(
        AuthType::Nonce,
        [
            format!("a2800104 00000000 01040000 {TUNNEL} 20000000"),
            format!("a2000104 caa5517e 02040000 {TUNNEL} 20000000"),
            format!("a2800104 caa5517e 03040000 {TUNNEL} {PATH}"),
            format!("a2000104 caa5517e 04040000 {TUNNEL}"),
        ],
    );
}

#[test]
fn captures_with_a_digest_are_reproduced() {
    let digests = [
        "6cca7ef27adfd7f4c6a00e4adf7f77070e223282f25e58d56b4572edbf651e2d",
        "bc0df0d89221931d477bd6c5320f270b74e2739ef89c2c49b8918307b46e2846",
        "bb3eaa745dacbfe32c24463bfa2229dd4a344c8763e442caaac73826fbee8260",
        "3b275b698c5094055cfcdde4019b5916afa32d0ee7a540e5cd7bff50df02b66b",
    ];
    matches_captures(
        AuthType::Sha256,
        [
            format!("a2800224 00000000 {} 01040000 {TUNNEL} 20000000", digests[0]),
            format!("a2000224 caa5517e {} 02040000 {TUNNEL} 20000000", digests[1]),
            format!("a2800224 caa5517e {} 03040000 {TUNNEL} {PATH}", digests[2]),
            format!("a2000224 caa5517e {} 04040000 {TUNNEL}", digests[3]),
        ],
    );
}

#[test]
fn lengths_are_those_of_the_captures() {
    let lengths =
        |auth| [1, 2, 3, 4].map(|round| message(round, auth, &rounds()[round - 1].2).encode(&AuthKey::PUBLIC).len());
    assert_eq!(lengths(AuthType::None), [44, 44, 72, 40]);
    assert_eq!(lengths(AuthType::Nonce), [48, 48, 76, 44]);
    assert_eq!(lengths(AuthType::Sha256), [80, 80, 108, 76]);
}

#[test]
fn rounds_one_and_two_announce_the_size() {
    assert_eq!(message(1, AuthType::None, &SIZE).announced(), Some(32));
    assert_eq!(message(4, AuthType::None, &[]).announced(), None);
}

#[test]
fn a_status_change_names_both_ends_of_the_path() {
    assert_eq!(path().to_vec(), hex(PATH));
    let ends = PathEnds { initiator: ip("192.168.11.1"), responder: ip("192.168.11.2") };
    assert_eq!(PathEnds::decode(&path()), Some(ends));
    assert_eq!(PathEnds::decode(&path()[..31]), None);
}

#[test]
fn a_keepalive_is_a_message_behind_four_bytes_of_gre() {
    let captured = hex(&format!("00000800 a1000000 00040000 {TUNNEL}"));
    assert_eq!(keepalive(ip("10.77.0.1"), ip("10.77.0.2")), captured);
    assert_eq!(captured.len(), KEEPALIVE_LEN);
    assert!(is_keepalive(&captured));
    let inside = ControlMessage::decode(&captured[4..]).unwrap();
    assert_eq!((inside.opcode, inside.round, inside.auth), (Opcode::Keepalive, 0, Auth::None));
}

#[test]
fn a_keepalive_of_an_ipv6_tunnel_has_both_version_fields_set() {
    let sent = keepalive(ip("fd78::1"), ip("fd78::2"));
    assert_eq!(sent[..12], hex("000086dd a1000000 00060000")[..]);
    assert_eq!(ControlMessage::decode(&sent[4..]).unwrap().initiator, ip("fd78::1"));
}

#[test]
fn captured_data_is_not_a_keepalive() {
    let without_sequence = hex("00000800 4500002c9c78400040 0189bc0a4d00010a4d0002");
    let with_sequence = hex("1000080000000000 4500002c489f40004001dd950a4d00010a4d0002");
    let ipv6 = hex("100086dd00000000 600816b100403a40");
    for data in [without_sequence, with_sequence, ipv6, vec![0xA1; 7]] {
        assert!(!is_keepalive(&data));
    }
}

#[test]
fn a_sequence_number_that_looks_like_control_is_data() {
    assert!(!is_keepalive(&hex("10000800 a1000000 4500002c")));
    assert!(is_keepalive(&hex("10000800 00000000 a1000000")));
}

#[test]
fn a_local_command_ends_with_a_zero_byte_and_its_answer_does_not() {
    let command = LocalCommand::command("path down 192.168.11.1 192.168.11.2");
    assert_eq!(command[..4], [0xa4, 0, 0, 0]);
    assert_eq!(command.last(), Some(&0));
    assert_eq!(LocalCommand::decode(&command), Ok(LocalCommand::Text("path down 192.168.11.1 192.168.11.2")));
    assert_eq!(LocalCommand::answer("CMD_OK:"), b"\xa4\0\0\0CMD_OK:");
    assert_eq!(LocalCommand::decode(&END), Ok(LocalCommand::End));
    assert_eq!(LocalCommand::decode(b"\xa4\0\0"), Err(MalformedMessage::Truncated));
    assert_eq!(LocalCommand::decode(b"\xa4\0\0\0\xff"), Err(MalformedMessage::Text));
    assert_eq!(LocalCommand::decode(b"\xa2\0\0\0"), Err(MalformedMessage::Opcode));
}

#[test]
fn only_the_first_32_characters_of_a_key_count() {
    assert_eq!(AuthKey::from_text(KEY), AuthKey::from_text(&KEY[..32]));
    assert_ne!(AuthKey::from_text(KEY), AuthKey::from_text(&KEY[..31]));
    assert!(AuthKey::from_text("A0A1A2A3A4A5A6A7A8A9AAABACADAEAFB0B1B2B3B4B5B6B7B8B9BABBBCBDBEBF").is_public());
    assert!(AuthKey::from_text("").is_public());
    assert!(!AuthKey::from_text(KEY).is_public());
}

#[test]
fn debug_output_hides_the_key() {
    assert_eq!(format!("{:?} {:?}", AuthKey::from_text(KEY), AuthKey::PUBLIC), "Key(..) Key(public)");
}

#[test]
fn every_flipped_bit_breaks_the_digest() {
    let key = AuthKey::from_text(KEY);
    let signed = message(3, AuthType::Sha256, &path()).encode(&key);
    assert!(key.verifies(&signed));
    for bit in 0..signed.len() * 8 {
        let mut forged = signed.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(!key.verifies(&forged), "bit {bit}");
    }
}

#[test]
fn contradictory_fields_are_malformed() {
    let good = message(1, AuthType::Nonce, &SIZE).encode(&AuthKey::PUBLIC);
    let with = |at: usize, byte| {
        let mut bad = good.clone();
        bad[at] = byte;
        ControlMessage::decode(&bad).err()
    };
    assert_eq!(with(0, 0xA4), Some(MalformedMessage::Opcode));
    assert_eq!(with(0, 0x45), Some(MalformedMessage::Opcode));
    assert_eq!(with(2, 3), Some(MalformedMessage::Auth));
    assert_eq!(with(3, 36), Some(MalformedMessage::Auth));
    assert_eq!(with(9, 6), Some(MalformedMessage::Version));
    assert_eq!(with(9, 5), Some(MalformedMessage::Version));
    assert_eq!(with(12, 1), Some(MalformedMessage::Version));
}

#[test]
fn every_prefix_of_a_header_is_truncated() {
    for auth in [AuthType::None, AuthType::Nonce, AuthType::Sha256] {
        let whole = message(4, auth, &[]).encode(&AuthKey::PUBLIC);
        for len in 0..whole.len() {
            assert_eq!(ControlMessage::decode(&whole[..len]), Err(MalformedMessage::Truncated), "{auth:?} {len}");
        }
        assert!(ControlMessage::decode(&whole).is_ok());
    }
}

proptest! {
    #[test]
    fn a_decoded_message_encodes_to_the_same_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 40..160), auth in 0..3u8) {
        bytes[..4].copy_from_slice(&[0xA2, 0, auth, [0, 4, 36][usize::from(auth)]]);
        let header = 4 + usize::from(bytes[3]);
        if let Some(rest) = bytes.get_mut(header + 1..header + 4) { rest.copy_from_slice(&[6, 0, 0]); }
        let key = AuthKey::from_text(KEY);
        let Ok(message) = ControlMessage::decode(&bytes) else { return Ok(()) };
        let again = message.encode(&key);
        prop_assert_eq!(ControlMessage::decode(&again), Ok(message));
        prop_assert_eq!(&again[header..], &bytes[header..]);
        prop_assert!(auth != 2 || key.verifies(&again));
    }
}
