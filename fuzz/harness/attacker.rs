//! A peer with valid keys that sends any frames: it has sessions with an endpoint, and no rules.

use std::net::SocketAddr;
use std::time::Duration;

use mpt_proto::crypto::association::{Association, SessionEvent};
use mpt_proto::crypto::handshake::{Capabilities, Clock, EphemeralInput, HandshakeMessage, Identity, Incarnation};
use mpt_proto::crypto::keys::{KeyPair, PresharedKey};
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::path::{LinkId, PathId};
use mpt_proto::time::Time;
use mpt_proto::wire::native::{HEADER, OVERHEAD, SessionIndex};

/// The attacker's end of the sessions.
pub struct Attacker {
    identity: Identity,
    association: Association,
    drawn: u64,
    /// The source of its datagrams.
    pub address: SocketAddr,
}

/// The wall clock at the start of a game, after the start of 1970.
pub const WALL_CLOCK: Duration = Duration::from_secs(1_000_000);

/// Returns the keys of an end.
pub fn keys(end: u8) -> KeyPair {
    KeyPair::generate([end; 32])
}

impl Attacker {
    /// Makes an attacker with the keys of the end `own`, and the end `peer` to attack.
    pub fn new(own: u8, peer: u8) -> Self {
        let association = Association::new(*keys(peer).public(), PresharedKey::default(), Incarnation([own; 8]));
        let identity =
            Identity { keys: keys(own), capabilities: Capabilities::new(true), clock: Clock::new(WALL_CLOCK) };
        Self { identity, association, drawn: 0, address: SocketAddr::from(([198, 51, 100, 1], 4754)) }
    }

    /// Forgets all sessions, as a restart does.
    pub fn restart(&mut self, peer: u8, incarnation: u8) {
        self.association =
            Association::new(*keys(peer).public(), PresharedKey::default(), Incarnation([incarnation; 8]));
    }

    /// Requests a session if there is none. Returns the initiation, if one is due.
    pub fn initiate(&mut self, now: Time) -> Option<Vec<u8>> {
        if self.association.is_established(now) {
            return None;
        }
        self.association.handle_timeout(now);
        self.association.request(now);
        self.drawn += 1;
        let mut ephemeral = [7; 32];
        ephemeral[..8].copy_from_slice(&self.drawn.to_be_bytes());
        let input = EphemeralInput { ephemeral, index: SessionIndex::new(self.drawn as u32), jitter: 0 };
        Some(self.association.poll_transmit(now, &mut self.identity, || input)?.message)
    }

    /// Takes a datagram of the other end. Returns the slot, the number and the frames of a sealed one.
    pub fn receive(&mut self, now: Time, datagram: &mut [u8]) -> Option<(u8, u64, Vec<u8>)> {
        match HandshakeMessage::decode(datagram) {
            Some(HandshakeMessage::Response(response)) => {
                let _ = self.association.handle_response(now, &self.identity, &response);
                while self.association.poll_event().is_some_and(|event: SessionEvent| event != SessionEvent::GaveUp) {}
                None
            }
            Some(_) => None,
            None => {
                let opened = self.association.open(now, datagram).ok()?;
                Some((opened.path.slot(), opened.number.0, opened.body.to_vec()))
            }
        }
    }

    /// Seals `body` as the next datagram of a slot; `None` without a session.
    pub fn seal(&mut self, now: Time, slot: u8, body: &[u8]) -> Option<Vec<u8>> {
        let mut datagram = vec![0; OVERHEAD + body.len()];
        datagram[HEADER..HEADER + body.len()].copy_from_slice(body);
        self.association.seal(now, PathId { slot, generation: 0 }, &mut datagram).ok()?;
        Some(datagram)
    }

    /// Returns the metadata of its datagrams.
    pub fn meta(&self, len: usize) -> RecvMeta {
        RecvMeta { link: LinkId(0), from: self.address, tos: 0, segment: len, arrived_at: None }
    }

    /// Establishes a session with an endpoint.
    pub fn connect(&mut self, now: Time, endpoint: &mut Endpoint) {
        let mut initiation = self.initiate(now).expect("an initiation");
        endpoint.handle_datagrams(now, &self.meta(initiation.len()), &mut initiation);
        while let Some(batch) = endpoint.poll_transmit(now) {
            for datagram in batch.bytes().chunks(batch.segment) {
                self.receive(now, &mut datagram.to_vec());
            }
            endpoint.recycle_transmit(batch);
        }
        let mut first = self.seal(now, 0, &[]).expect("a session");
        endpoint.handle_datagrams(now, &self.meta(first.len()), &mut first);
    }
}

/// Appends a frame with its length.
pub fn push_frame(body: &mut Vec<u8>, kind: u8, content: &[u8]) {
    body.push(kind);
    body.extend((content.len() as u16).to_be_bytes());
    body.extend(content);
}

/// Appends a DATA frame.
pub fn push_data(body: &mut Vec<u8>, bucket: u16, sequence: u32, packet: &[u8]) {
    push_frame(body, 1, &[&bucket.to_be_bytes()[..], &sequence.to_be_bytes(), packet].concat());
}

/// Appends a SKIP frame.
pub fn push_skip(body: &mut Vec<u8>, bucket: u16, from: u32, to: u32) {
    push_frame(body, 3, &[&bucket.to_be_bytes()[..], &from.to_be_bytes(), &to.to_be_bytes()].concat());
}

/// Returns an IPv4 packet of this protocol from the attacker's network.
pub fn inner_packet(protocol: u8, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len.max(28)];
    let total = (packet.len() as u16).to_be_bytes();
    packet[..12].copy_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0]);
    packet[12..20].copy_from_slice(&[10, 66, 0, 1, 10, 88, 0, 1]);
    packet
}
