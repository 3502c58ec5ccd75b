//! The vectors as the core produces them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use mpt_proto::RemoteAddress;
use mpt_proto::crypto::aead::Cipher;
use mpt_proto::crypto::association::Association;
use mpt_proto::crypto::handshake::{
    Capabilities, ClaimedInitiation, Clock, EphemeralInput, HandshakeGuard, HandshakeMessage, Identity, Incarnation,
    Rejection, Tai64n,
};
use mpt_proto::crypto::keys::{KeyPair, PresharedKey};
use mpt_proto::crypto::replay;
use mpt_proto::drops::Drops;
use mpt_proto::header_compression::{Compressor, HeaderForm};
use mpt_proto::packet::ip::Ip;
use mpt_proto::packet::{Offload, SuperPacket, checksum};
use mpt_proto::path::{LinkId, PathId, PathSeq};
use mpt_proto::queue::{Aqm, InnerPacket, Queue};
use mpt_proto::repair::FlowSeq;
use mpt_proto::repair::fec::{Decoder, Encoder};
use mpt_proto::time::Time;
use mpt_proto::wire::frame::{
    ACK_RANGES_LEN, AckFrame, AckRanges, AddrFrame, CloseFrame, CompressedFrame, ContextFrame, DataForm, DataFrame,
    DataHeader, Frame, PathFrame, PathUsage, RepairFrame, ServerListMessage, SkipFrame, Tlvs, Writer,
};
use mpt_proto::wire::native::{HEADER, Header, OVERHEAD, PathTag, SessionIndex, nonce};

use crate::packets::{Fields, tcp, udp};
use crate::text::Vectors;

const NOW: Time = Time::after(Duration::from_secs(10));
/// The wall clock when the run began; messages are written ten seconds later.
const CLOCK: Duration = Duration::from_nanos(1_800_000_000_123_456_789);
const PSK: u8 = 0xa0;
const GATE: u8 = 0xd0;

/// One end's fixed values.
struct Fixed {
    name: &'static str,
    private: u8,
    ephemeral: u8,
    index: u32,
    run: u8,
    source: ([u8; 4], u16),
}

const INITIATOR: Fixed = Fixed {
    name: "initiator",
    private: 0x40,
    ephemeral: 0x80,
    index: 0x01_23_45,
    run: 0x11,
    source: ([192, 0, 2, 1], 4754),
};
const RESPONDER: Fixed = Fixed {
    name: "responder",
    private: 0x60,
    ephemeral: 0xc0,
    index: 0xab_cd_ef,
    run: 0x22,
    source: ([192, 0, 2, 2], 4754),
};
/// The second initiation has these.
const SECOND: Fixed = Fixed { ephemeral: 0x20, index: 0x55_66_77, ..INITIATOR };

/// Octets that count up.
fn counting<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|at| first.wrapping_add(at as u8))
}

impl Fixed {
    fn keys(&self) -> KeyPair {
        KeyPair::generate(counting(self.private))
    }

    fn fresh(&self) -> EphemeralInput {
        EphemeralInput { ephemeral: counting(self.ephemeral), index: SessionIndex::new(self.index), jitter: 0 }
    }

    fn address(&self) -> SocketAddr {
        self.source.into()
    }

    fn end(&self, peer: &Self, has_aes: bool) -> End {
        let us = Identity { keys: self.keys(), capabilities: Capabilities::new(has_aes), clock: Clock::new(CLOCK) };
        let (psk, run) = (PresharedKey::from_bytes(counting(PSK)), Incarnation([self.run; 8]));
        End { us, peer: Association::new(*peer.keys().public(), psk, run) }
    }
}

/// One end of a session.
struct End {
    us: Identity,
    peer: Association,
}

/// The other end, for both.
const SOURCE: RemoteAddress = (LinkId(0), SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4754));

impl End {
    fn initiate(&mut self, now: Time, fixed: &Fixed) -> Vec<u8> {
        self.peer.request(now);
        let mut message = self.peer.poll_transmit(now, &mut self.us, || fixed.fresh()).unwrap().message;
        self.peer.prove_address(now, SOURCE, &mut message);
        message
    }

    fn answer(&mut self, initiation: &[u8]) -> Vec<u8> {
        let Some(HandshakeMessage::Initiation(initiation)) = HandshakeMessage::decode(initiation) else {
            panic!("not an initiation")
        };
        let knock = ClaimedInitiation::open(&self.us, &initiation).unwrap().verify(&self.us).unwrap();
        self.peer.handle_initiation(NOW, &self.us, knock, SOURCE, || RESPONDER.fresh()).unwrap().message
    }

    fn complete(&mut self, response: &[u8]) {
        let Some(HandshakeMessage::Response(response)) = HandshakeMessage::decode(response) else {
            panic!("not a response")
        };
        self.peer.handle_response(NOW, &self.us, &response).unwrap();
    }

    fn seal(&mut self, path: PathId, body: &[u8]) -> Vec<u8> {
        self.seal_at(NOW, path, body)
    }

    fn seal_at(&mut self, now: Time, path: PathId, body: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; body.len() + OVERHEAD];
        datagram[HEADER..HEADER + body.len()].copy_from_slice(body);
        self.peer.seal(now, path, &mut datagram).unwrap();
        datagram
    }
}

pub fn vectors() -> Vectors {
    let mut out = Vectors::default();
    out.comment("Test vectors of MPT's native mode; docs/protocol.md describes the protocol.");
    out.comment("Produced by: MPT_VECTORS_ACCEPT=1 cargo test -p mpt-proto --test vectors");
    out.comment(
        "Octets are hexadecimal. A line that begins with spaces continues the line before. Numbers are decimal.",
    );
    keys(&mut out);
    let (mut initiator, mut responder) = handshake(&mut out);
    cookie(&mut out);
    datagrams(&mut out, &mut initiator, &mut responder);
    rekey(&mut out, &mut initiator, &mut responder);
    chacha(&mut out);
    numbers(&mut out);
    runs(&mut out);
    headers(&mut out);
    repair(&mut out);
    out
}

fn keys(out: &mut Vectors) {
    out.section("keys", "Private keys are the octets before the clamping of RFC 7748 section 5.");
    for end in [&INITIATOR, &RESPONDER] {
        out.octets(&format!("{}.private", end.name), &counting::<32>(end.private));
        out.octets(&format!("{}.public", end.name), end.keys().public().as_bytes());
        out.octets(&format!("{}.ephemeral_private", end.name), &counting::<32>(end.ephemeral));
        out.octets(&format!("{}.index", end.name), &SessionIndex::new(end.index).to_bytes());
        out.octets(&format!("{}.run", end.name), &[end.run; 8]);
    }
    out.octets("preshared", &counting::<32>(PSK));
}

fn handshake(out: &mut Vectors) -> (End, End) {
    let (mut initiator, mut responder) = (INITIATOR.end(&RESPONDER, true), RESPONDER.end(&INITIATOR, true));
    out.section("initiation", "The UDP payload, with MAC2 zero. The payload is what is sealed in it.");
    let initiation = initiator.initiate(NOW, &INITIATOR);
    out.value("clock_ns", (CLOCK + (NOW - Time::START)).as_nanos());
    let written = Tai64n::from_unix(CLOCK + (NOW - Time::START)).to_bytes();
    out.octets("payload", &[&written[..], &hello(&INITIATOR, true)].concat());
    out.octets("message", &initiation);
    out.section("response", "The answer to the message in [initiation]. The cipher is the one that both ends derive.");
    let response = responder.answer(&initiation);
    out.octets("payload", &hello(&RESPONDER, true));
    out.octets("message", &response);
    initiator.complete(&response);
    transport(out, &initiation, &response);
    (initiator, responder)
}

/// The payload without the timestamp.
fn hello(end: &Fixed, has_aes: bool) -> Vec<u8> {
    let mut payload = Vec::new();
    let hello = mpt_proto::crypto::handshake::HandshakePayload {
        version: 1,
        incarnation: Incarnation([end.run; 8]),
        capabilities: Capabilities::new(has_aes),
    };
    hello.encode(SessionIndex::new(end.index), &mut payload);
    payload
}

/// The core does not export its keys, so an independent implementation of Noise derives them from the messages.
fn transport(out: &mut Vectors, initiation: &[u8], response: &[u8]) {
    let [to_responder, to_initiator] = crate::independent::transport_keys(initiation, response);
    out.section("transport", "The keys after the messages in [initiation] and [response].");
    out.value("cipher", Cipher::Aes256Gcm.name());
    out.octets("to_responder", &to_responder);
    out.octets("to_initiator", &to_initiator);
}

fn cookie(out: &mut Vectors) {
    let mut initiator = INITIATOR.end(&RESPONDER, true);
    let first = initiator.initiate(NOW, &INITIATOR);
    let mut gate = HandshakeGuard::new(RESPONDER.keys().public(), counting(GATE));
    let reply = (0..200).find_map(|_| reply(&mut gate, &first)).unwrap();
    let Some(HandshakeMessage::CookieReply(read)) = HandshakeMessage::decode(&reply) else {
        panic!("not a cookie reply")
    };
    initiator.peer.handle_cookie(NOW, SOURCE, &read).unwrap();
    let later = NOW + Duration::from_secs(2);
    let second = initiator.initiate(later, &SECOND);
    let Some(HandshakeMessage::Initiation(message)) = HandshakeMessage::decode(&second) else {
        panic!("not an initiation")
    };
    gate.admit(later, INITIATOR.address(), &message.signed).unwrap();

    out.section(
        "cookie",
        "A responder under load answers the message in [initiation] with the reply. It accepts the second initiation,\n\
         whose MAC2 is keyed with the cookie. A responder is free in how it makes cookies; this one computes them\n\
         from the secret, the period and the source.",
    );
    out.octets("secret", &counting::<32>(GATE));
    out.value("period", 0);
    out.value("source", INITIATOR.address());
    out.octets("reply", &reply);
    out.octets("second.ephemeral_private", &counting::<32>(SECOND.ephemeral));
    out.octets("second.index", &SessionIndex::new(SECOND.index).to_bytes());
    out.octets("second.message", &second);
}

fn reply(gate: &mut HandshakeGuard, initiation: &[u8]) -> Option<Vec<u8>> {
    let Some(HandshakeMessage::Initiation(message)) = HandshakeMessage::decode(initiation) else {
        panic!("not an initiation")
    };
    match gate.admit(NOW, INITIATOR.address(), &message.signed) {
        Err(Rejection::Reply(reply)) => Some(reply.to_vec()),
        Ok(()) => None,
        Err(Rejection::Silent(why)) => panic!("{why}"),
    }
}

/// One datagram of the initiator with these frames.
fn datagram(out: &mut Vectors, end: &mut End, name: &str, path: PathId, meaning: &str, body: &[u8]) {
    out.section(&format!("datagram.{name}"), "");
    out.value("slot", path.slot);
    out.value("generation", path.generation);
    out.value("number", end.peer.next_number(path.slot).0);
    out.value("frames", meaning);
    out.octets("body", body);
    let sealed = end.seal(path, body);
    out.octets("datagram", &sealed);
}

const PATH: PathId = PathId { slot: 5, generation: 2 };
const FLOW: Fields =
    Fields { v4: true, id: 7, sequence: 1_000, acknowledged: 2_000, window: 512, timestamps: Some((900, 800)) };

/// The body of a datagram whose only frame is this one, without length.
fn alone(frame: &Frame<'_>) -> Vec<u8> {
    let mut body = vec![0; 2_000];
    let len = Writer::new(&mut body).finish(frame).unwrap();
    body.truncate(len);
    body
}

fn datagrams(out: &mut Vectors, initiator: &mut End, responder: &mut End) {
    let mut confirmation = initiator.seal(PathId { slot: 0, generation: 0 }, &[]);
    out.section("confirmation", "The first datagram under the session: slot 0, generation 0, number 0, and no frame.");
    out.octets("datagram", &confirmation);
    responder.peer.open(NOW, &mut confirmation).unwrap();
    let mut one =
        |name: &str, meaning: &str, frame: &Frame<'_>| datagram(out, initiator, name, PATH, meaning, &alone(frame));
    data(&mut one);
    acknowledgements(&mut one);
    paths(&mut one);
    addresses(&mut one);
    others(&mut one);
    several(out, initiator);
    server_list(out, initiator, responder);
    let moved = PathId { slot: 31, generation: 9 };
    datagram(out, initiator, "slot_31", moved, "probe 0", &alone(&Frame::Probe(0)));
    datagram(out, responder, "from_responder", PathId { slot: 0, generation: 0 }, "probe 3", &alone(&Frame::Probe(3)));
}

/// A part of a list of servers, and its answer.
fn server_list(out: &mut Vectors, initiator: &mut End, responder: &mut End) {
    let part = ServerListMessage::Part { version: 0x0102, len: 300, offset: 298, part: &[0xaa, 0xbb] }.to_body();
    let taken = ServerListMessage::Taken { version: 0x0102, len: 300 }.to_body();
    let mut one = |end: &mut End, name: &str, meaning: &str, body: &[u8]| {
        datagram(out, end, name, PATH, meaning, &alone(&Frame::Control(Tlvs::decode(body).unwrap())));
    };
    one(responder, "server_list_from_responder", "control 5=0000000000000102012c012aaabb", &part);
    one(initiator, "server_list_taken", "control 6=0000000000000102012c", &taken);
}

fn data(one: &mut impl FnMut(&str, &str, &Frame<'_>)) {
    let packet = tcp(&FLOW, b"inner");
    let of = |bucket, sequence, form| {
        Frame::Data(DataFrame { header: DataHeader { bucket, sequence, form }, packet: &packet })
    };
    let complete = of(0x0123, 0x4567_8901, DataForm::Complete);
    one("data", "data bucket 291 sequence 1164413185 offers 0", &complete);
    let offer = of(0x0123, 0x4567_8902, DataForm::OffersContext);
    one("data_offers_context", "data bucket 291 sequence 1164413186 offers 1", &offer);
    let mut unfinished = packet.clone();
    let pseudo = Ip::parse(&packet).unwrap().pseudo_sum(packet.len() - 20);
    unfinished[36..38].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
    let header = DataHeader { bucket: 0x0123, sequence: 0x4567_8904, form: DataForm::PartialChecksum };
    let partial = Frame::Data(DataFrame { header, packet: &unfinished });
    one("data_partial_checksum", "data bucket 291 sequence 1164413188 partial checksum 14c8", &partial);
    let compressed = CompressedFrame {
        bucket: 0x0123,
        sequence: 0x4567_8903,
        reference: 0x02,
        rest: b"\x80\x18\x00\x00\x00\x05\xab\xcdinner",
    };
    one("compressed", "compressed bucket 291 sequence 1164413187 reference 2", &Frame::Compressed(compressed));
    let known = ContextFrame::Known { bucket: 0x0123, sequence: 0x4567_8902 };
    one("context_known", "context known bucket 291 sequence 1164413186", &Frame::Context(known));
    let unknown = ContextFrame::Unknown { bucket: 0x0123, reference: 2 };
    one("context_unknown", "context unknown bucket 291 reference 2", &Frame::Context(unknown));
}

fn acknowledgements(one: &mut impl FnMut(&str, &str, &Frame<'_>)) {
    let mut room = [0; ACK_RANGES_LEN];
    let (largest, runs) = AckRanges::encode([95..=100, 90..=90, 80..=87], &mut room).unwrap();
    let ack = AckFrame {
        path: PathTag::from_byte(3 << 3),
        largest,
        delay: 250,
        received: 4_000_000_000,
        ce: 3,
        ranges: runs,
    };
    let meaning = "ack slot 3 largest 100 delay 250 received 4000000000 ce 3 runs 95-100 90-90 80-87";
    one("ack", meaning, &Frame::Ack(ack));
    one(
        "skip",
        "skip bucket 1279 from 4294967295 to 3",
        &Frame::Skip(SkipFrame { bucket: 1_279, from: u32::MAX, to: 3 }),
    );
}

fn paths(one: &mut impl FnMut(&str, &str, &Frame<'_>)) {
    one("path_challenge", "path challenge 0102030405060708", &Frame::Path(PathFrame::Challenge(counting(1))));
    one("path_response", "path response 0102030405060708", &Frame::Path(PathFrame::Response(counting(1))));
    for (name, status) in
        [("available", PathUsage::Available), ("standby", PathUsage::Standby), ("draining", PathUsage::Draining)]
    {
        let frame = Frame::Path(PathFrame::Status { path: PathTag::from_byte(5 << 3 | 2), status, order: 0x0a0b_0c0d });
        let meaning = format!("path status slot 5 generation 2 status {name} order 168496141");
        one(&format!("path_status_{name}"), &meaning, &frame);
    }
}

fn addresses(one: &mut impl FnMut(&str, &str, &Frame<'_>)) {
    let add = |id, ip: &str| Frame::Addr(AddrFrame::Add { id, ip: ip.parse().unwrap(), port: 4_754 });
    one("addr_add_v4", "addr add 1 192.0.2.7 4754", &add(1, "192.0.2.7"));
    one("addr_add_v6", "addr add 2 2001:db8::7 4754", &add(2, "2001:db8::7"));
    one("addr_remove", "addr remove 1", &Frame::Addr(AddrFrame::Remove { id: 1 }));
}

fn others(one: &mut impl FnMut(&str, &str, &Frame<'_>)) {
    one("probe", "probe 32", &Frame::Probe(32));
    let repair = RepairFrame { span: 20, seed: 33, symbol: &counting::<24>(0x30) };
    one("repair", "repair span 20 seed 33", &Frame::Repair(repair));
    let control = Tlvs::decode(&[9, 0, 2, 0xaa, 0xbb, 7, 0, 0]).unwrap();
    one("control", "control 9=aabb 7=", &Frame::Control(control));
    one("close", "close 258 see you", &Frame::Close(CloseFrame { code: 0x0102, text: "see you" }));
}

/// Frames with their lengths, a type and a kind that this version does not know, and a last frame without length.
fn several(out: &mut Vectors, initiator: &mut End) {
    let mut body = vec![0; 200];
    let mut writer = Writer::new(&mut body);
    writer.push(&Frame::Path(PathFrame::Challenge(counting(1)))).unwrap();
    writer.push(&Frame::Skip(SkipFrame { bucket: 1, from: 2, to: 3 })).unwrap();
    let len = writer.len();
    body.truncate(len);
    body.extend([0x3f, 0, 2, 0xde, 0xad]);
    body.extend([0x05, 0, 1, 0x63]);
    body.extend(alone(&Frame::Addr(AddrFrame::Remove { id: 9 })));
    let meaning = "path challenge 0102030405060708; skip bucket 1 from 2 to 3; ignored; ignored; addr remove 9";
    datagram(out, initiator, "several_frames", PATH, meaning, &body);
}

/// A rekey of the session by the initiator of its handshake.
fn rekey(out: &mut Vectors, initiator: &mut End, responder: &mut End) {
    out.section(
        "rekey",
        "The initiator asks for new keys, 120 s after the handshake. Its datagram and the answer are sealed under the\n\
         session in [transport]. The keys after it, and the confirmation under them, are those of the new session.",
    );
    let later = NOW + Duration::from_secs(120);
    let asking = Fixed { ephemeral: 0x28, index: 0x13_57_9b, ..INITIATOR };
    let answering = Fixed { ephemeral: 0x38, index: 0x24_68_ac, ..RESPONDER };
    initiator.peer.replace_session(later);
    for (end, fixed, name) in [(&asking, &INITIATOR, "rekey"), (&answering, &RESPONDER, "rekeyed")] {
        out.octets(&format!("{name}.ephemeral_private"), &counting::<32>(end.ephemeral));
        out.octets(&format!("{name}.index"), &SessionIndex::new(end.index).to_bytes());
        let (from, to) = if fixed.name == INITIATOR.name {
            (&mut *initiator, &mut *responder)
        } else {
            (&mut *responder, &mut *initiator)
        };
        let message = from.peer.poll_rekey(later, || end.fresh()).unwrap();
        let value = message.to_body();
        let body = alone(&Frame::Control(Tlvs::decode(&value).unwrap()));
        out.octets(&format!("{name}.body"), &body);
        out.value(&format!("{name}.number"), from.peer.next_number(PATH.slot).0);
        let datagram = from.seal_at(later, PATH, &body);
        out.octets(&format!("{name}.datagram"), &datagram);
        let mut received = datagram;
        let session = to.peer.open(later, &mut received).unwrap().session;
        to.peer.handle_rekey(later, to.us.keys.public(), session, &message, || answering.fresh()).unwrap();
    }
    let [_, _, chaining] = crate::independent::handshake_keys();
    let [to_responder, to_initiator, next] = crate::independent::rekey_keys(
        &chaining,
        [0x28, 0x38].map(counting),
        [&asking, &answering].map(|end| {
            let mut value = vec![0, 0, 0, 1];
            value.extend(SessionIndex::new(end.index).to_bytes());
            value.extend(KeyPair::generate(counting(end.ephemeral)).public().as_bytes());
            value
        }),
    );
    out.octets("chaining", &chaining);
    out.octets("to_responder", &to_responder);
    out.octets("to_initiator", &to_initiator);
    out.octets("next_chaining", &next);
    out.value("confirmation.number", initiator.peer.next_number(PATH.slot).0);
    let mut confirmation = initiator.seal_at(later, PATH, &[]);
    out.octets("confirmation.datagram", &confirmation);
    responder.peer.open(later, &mut confirmation).unwrap();
}

fn chacha(out: &mut Vectors) {
    let (mut initiator, mut responder) = (INITIATOR.end(&RESPONDER, true), RESPONDER.end(&INITIATOR, false));
    let initiation = initiator.initiate(NOW, &INITIATOR);
    let response = responder.answer(&initiation);
    initiator.complete(&response);
    out.section(
        "chacha20_poly1305",
        "The responder has no AES instructions, all else is as above. The transport keys are those of [transport],\n\
         because the payloads of the handshake do not enter the chaining key.",
    );
    out.octets("response", &response);
    out.octets("body", &alone(&Frame::Probe(3)));
    out.octets("datagram", &initiator.seal(PATH, &alone(&Frame::Probe(3))));
}

fn numbers(out: &mut Vectors) {
    let header =
        |number| Header::new(SessionIndex::new(RESPONDER.index), PathTag::from(PATH), PathSeq(number)).encode();
    out.section("numbers", "The header and the nonce of a datagram with a number above 2^32: slot 5, generation 2.");
    out.value("number", 0x1_2345_6789u64);
    out.octets("header", &header(0x1_2345_6789));
    out.octets("nonce", &nonce(PathTag::from(PATH), PathSeq(0x1_2345_6789)));
    out.section("expansion", "What 32 bits expand to: expected number, bits = full number.");
    let turn = 1u64 << 32;
    for (at, (expected, low)) in [
        (0, 0),
        (0, u32::MAX),
        (10, 5),
        (turn - 1, 0),
        (turn, u32::MAX),
        (3 * turn + 5, 0x8000_0005),
        (3 * turn + 5, 0x8000_0006),
        (3 * turn + 0x8000_0000, 0),
        (3 * turn + 0x8000_0001, 0),
    ]
    .into_iter()
    .enumerate()
    {
        out.value(&at.to_string(), format!("{expected} {low} = {}", replay::expand(expected, low)));
    }
}

fn runs(out: &mut Vectors) {
    out.section("runs", "The ranges of an ACK frame, from the largest number down, and their octets.");
    let ranges = [
        vec![0..=0],
        vec![37..=100],
        vec![95..=100, 90..=90, 80..=87],
        vec![70_000..=90_000, 16_450..=16_500, 0..=64],
        vec![(1 << 40) - 1..=1 << 40, 5..=9],
    ];
    for (at, ranges) in ranges.into_iter().enumerate() {
        let text = ranges.iter().map(|range| format!("{}-{}", range.start(), range.end())).collect::<Vec<_>>();
        let mut room = [0; ACK_RANGES_LEN];
        let body = alone_runs(AckRanges::encode(ranges, &mut room).unwrap());
        out.value(&format!("{at}.ranges"), text.join(" "));
        out.octets(&format!("{at}.octets"), &body[22..]);
    }
}

fn alone_runs((largest, runs): (PathSeq, AckRanges<'_>)) -> Vec<u8> {
    alone(&Frame::Ack(AckFrame { path: PathTag::from_byte(0), largest, delay: 0, received: 0, ce: 0, ranges: runs }))
}

/// A packet whose headers are a context, and later ones that are compressed against it.
fn headers(out: &mut Vectors) {
    let next = Fields {
        id: 9,
        sequence: 2_448,
        acknowledged: 2_100,
        window: 600,
        timestamps: Some((1_000, 0x0100_0400)),
        ..FLOW
    };
    let same = |fields: Fields| Fields { v4: false, timestamps: None, ..fields };
    let only_acknowledges = Fields { acknowledged: 1_999, ..same(FLOW) };
    let payload = b"payload".as_slice();
    for (name, context, packet) in [
        ("tcp_v4_timestamps", tcp(&FLOW, payload), tcp(&next, b"longer payload")),
        ("tcp_v6", tcp(&same(FLOW), payload), tcp(&only_acknowledges, b"")),
        ("udp_v4", udp(&FLOW, payload), udp(&Fields { id: 6, ..FLOW }, b"other")),
        ("udp_v6", udp(&same(FLOW), payload), udp(&same(FLOW), b"other")),
    ] {
        out.section(
            &format!("headers.{name}"),
            "The context is the header of the first packet; the body is what follows the reference.",
        );
        let offered = offer(&context);
        out.octets("context_packet", &context);
        out.octets("packet", &packet);
        out.octets("body", &compress(offered, &packet));
    }
}

/// Sends a packet until its headers are offered as a context, and confirms the context. Returns the next number.
fn offer(packet: &[u8]) -> (Compressor, u32) {
    let (mut compressor, bucket) = (Compressor::default(), 3);
    let header = &packet[..header_len(packet)];
    let is_offer =
        |sequence: &u32| compressor.choose(NOW, bucket, *sequence, header, packet.len()) == HeaderForm::Offer;
    let sequence = (0..10).find(is_offer).unwrap();
    compressor.on_known(NOW, bucket, sequence);
    (compressor, sequence + 1)
}

fn compress((mut compressor, sequence): (Compressor, u32), packet: &[u8]) -> Vec<u8> {
    let (header, payload) = packet.split_at(header_len(packet));
    let HeaderForm::Compressed(reference, coded) = compressor.choose(NOW, 3, sequence, header, packet.len()) else {
        panic!("not compressed")
    };
    assert_eq!(u32::from(reference), sequence - 1);
    let mut body = vec![0; coded.len()];
    coded.write(header, &mut body);
    body.extend(payload);
    body
}

fn header_len(packet: &[u8]) -> usize {
    let (network, protocol) = if packet[0] >> 4 == 4 { (20, packet[9]) } else { (40, packet[6]) };
    network + if protocol == 17 { 8 } else { usize::from(packet[network + 12] >> 4) * 4 }
}

/// Three datagrams with packets and one without, and the repair symbol that follows them.
fn repair(out: &mut Vectors) {
    out.section(
        "repair",
        "Datagrams 100, 101 and 103 carried the packets, datagram 102 none. Datagram 104 carries the repair symbol.",
    );
    let mut encoder = Encoder::default();
    let sources = [(100, 3, 0x0012_3456, 20), (101, 1_279, 7, 1), (103, 1_535, 0xffff_ffff, 9)];
    for (number, bucket, sequence, len) in sources {
        let packet = udp(&FLOW, &counting::<32>(0x41)[..len]);
        let place = FlowSeq { bucket, sequence };
        encoder.on_source(PathSeq(number), place, inner(&packet));
        out.value(&format!("{number}.place"), format!("{bucket} {sequence}"));
        out.octets(&format!("{number}.packet"), &packet);
    }
    let symbol = encoder.symbol(PathSeq(104), 8).unwrap();
    out.value("number", 104);
    out.value("span", symbol.span);
    out.value("seed", symbol.seed);
    out.octets("symbol", symbol.bytes);
    out.octets(
        "body",
        &alone(&Frame::Repair(RepairFrame { span: symbol.span, seed: symbol.seed, symbol: symbol.bytes })),
    );
    recover(symbol.span, symbol.seed, symbol.bytes);
}

/// The receiver of the core recovers the packet in datagram 101.
fn recover(span: u16, seed: u8, symbol: &[u8]) {
    let mut decoder = Decoder::new(NOW, PathSeq(100), 1_500);
    for (number, bucket, sequence, len) in [(100, 3, 0x0012_3456, 20), (103, 1_535, 0xffff_ffff, 9)] {
        let packet = udp(&FLOW, &counting::<32>(0x41)[..len]);
        decoder.on_datagram(PathSeq(number), Some((FlowSeq { bucket, sequence }, &packet)));
    }
    decoder.on_datagram(PathSeq(102), None);
    let recovered = decoder.on_repair(NOW, PathSeq(104), span, seed, symbol);
    assert_eq!(recovered.len(), 1);
    assert_eq!(recovered[0].flow_seq, FlowSeq { bucket: 1_279, sequence: 7 });
    let lost = udp(&FLOW, &counting::<32>(0x41)[..1]);
    assert_eq!(recovered[0].packet[..lost.len()], lost);
}

/// A packet as the queue returns it.
fn inner(packet: &[u8]) -> InnerPacket {
    let mut queue = Queue::new(0, Aqm::Off);
    queue.push(NOW, 0, SuperPacket::new(packet.to_vec(), packet.len(), Offload::default()).unwrap());
    queue.head(NOW, &mut Drops::default()).unwrap();
    queue.pop().unwrap().1
}
