//! A scripted host that implements the protocol of the original, and the addresses of all exchanges.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mpt_proto::legacy::control::{
    Accept, AddressPair, ControlChannel, ControlEvent, ControlTransmit, LegacyConnection, LegacyPath,
};
use mpt_proto::legacy::wire::{AuthKey, AuthType, ControlMessage, Nonce, Opcode};
use mpt_proto::time::Time;

pub const SECRET: &str = "8f4c1be1a2d34d55a1f00dfeedc0ffee0123456789abcdef0123456789abcdef";
pub const TYPES: [AuthType; 3] = [AuthType::None, AuthType::Nonce, AuthType::Sha256];

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn ms(millis: u64) -> Time {
    Time::after(Duration::from_millis(millis))
}

pub fn secret() -> AuthKey {
    AuthKey::from_text(SECRET)
}

/// Returns the control address of the host whose addresses end in `host`.
pub fn control(host: u8) -> SocketAddr {
    format!("192.168.10.{host}:60456").parse().unwrap()
}

/// Returns the connection at host 1 or 2: paths 192.168.10.0/24 and 192.168.11.0/24 with 10.77.0.1 and 10.77.0.2
/// inside.
pub fn connection(host: u8, auth: AuthType) -> LegacyConnection {
    let far = 3 - host;
    let path = |net: u8| path_of(host, far, net);
    LegacyConnection { pair: pair(host), auth, key: secret(), created: false, paths: vec![path(10), path(11)] }
}

pub fn pair(host: u8) -> AddressPair {
    AddressPair { local: ip(&format!("10.77.0.{host}")), remote: ip(&format!("10.77.0.{}", 3 - host)) }
}

fn path_of(near: u8, far: u8, net: u8) -> LegacyPath {
    LegacyPath { public: ip(&format!("192.168.{net}.{near}")), remote: ip(&format!("192.168.{net}.{far}")) }
}

/// Returns the second path at host 1 or host 2.
pub fn path(host: u8) -> LegacyPath {
    path_of(host, 3 - host, 11)
}

/// Makes a channel that accepts the same messages as the original.
pub fn trusting(host: u8, auth: AuthType) -> ControlChannel {
    let accept = Accept { unauthenticated: true, public_key: true, create: None };
    let mut control = ControlChannel::new(accept, [host; 32]);
    control.add_connection(connection(host, auth));
    control
}

pub fn transmits(control: &mut ControlChannel) -> Vec<ControlTransmit> {
    std::iter::from_fn(|| control.poll_transmit()).collect()
}

pub fn events(control: &mut ControlChannel) -> Vec<ControlEvent> {
    std::iter::from_fn(|| control.poll_event()).collect()
}

/// Returns the event of a status change of the second path.
pub fn status(host: u8, up: bool) -> ControlEvent {
    ControlEvent::PathStatus { connection: pair(host), path: path(host), up }
}

/// The original's half of an exchange: host 2, as initiator or responder to host 1.
pub struct Peer {
    pub auth: AuthType,
    pub key: AuthKey,
    pub nonce: Nonce,
    /// The result and the body of round 4.
    pub answer: (u8, Vec<u8>),
    /// The data of every round 3 received.
    pub received: Vec<Vec<u8>>,
}

impl Peer {
    pub fn new(auth: AuthType) -> Self {
        Self { auth, key: secret(), nonce: [0xca, 0xa5, 0x51, 0x7e], answer: (0, vec![]), received: vec![] }
    }

    /// Edits a request in place, as the original does for its replies.
    pub fn reply(&mut self, request: &[u8]) -> Vec<u8> {
        let message = ControlMessage::decode(request).unwrap();
        assert_eq!(message.auth.kind(), self.auth);
        assert!(self.auth != AuthType::Sha256 || self.key.verifies(request));
        let auth = self.auth.with(self.nonce);
        match message.round {
            1 => ControlMessage { code: 0, auth, round: 2, ..message }.encode(&self.key),
            3 => {
                assert_eq!(message.auth, auth, "round 3 repeats the nonce");
                self.received.push(message.body.to_vec());
                ControlMessage { code: self.answer.0, round: 4, body: &self.answer.1, ..message }.encode(&self.key)
            }
            other => panic!("round {other} is not a request"),
        }
    }

    /// Makes a request of host 2 to host 1.
    pub fn request(&self, opcode: Opcode, code: u8, round: u8, nonce: Nonce, body: &[u8]) -> Vec<u8> {
        let (initiator, responder) = (ip("10.77.0.2"), ip("10.77.0.1"));
        let auth = self.auth.with(nonce);
        ControlMessage { opcode, code, auth, round, initiator, responder, body }.encode(&self.key)
    }
}
