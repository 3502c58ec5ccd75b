//! Control messages of the original MPT (University of Debrecen, 2012-2019), bit for bit.
//!
//! ```text
//! offset  length
//!      0       1  opcode: A1 keepalive, A2 path status, A3 connection create
//!      1       1  request: sub-command; reply: result code, 0 is success
//!      2       1  authentication type 0, 1 or 2
//!      3       1  authentication length sh: 0, 4 or 36
//!      4       4  (types 1 and 2) nonce
//!      8      32  (type 2) SHA-256, see `auth`
//!   sh+4       1  round 1..4, 0 for a keepalive
//!   sh+5       1  IP version of the tunnel
//!   sh+6       2  zero
//!   sh+8      16  the initiator's tunnel address, IPv4 as ::ffff:a.b.c.d
//!  sh+24      16  the responder's tunnel address
//!  sh+40          body
//! ```
//!
//! A reply is the request edited in place, so the two addresses keep their order in all four rounds. Rounds 1 and 2
//! carry the size of the data, in the byte order of the host that runs the original; all its platforms are little
//! endian, and so is this codec. Round 3 carries the data. This module has no connections and no keys;
//! [`crate::legacy::control`] decides which messages are accepted.

mod auth;
mod keepalive;
mod local;

use std::net::{IpAddr, Ipv6Addr};

pub use auth::{Auth, AuthKey, AuthType, Nonce};
pub use keepalive::{KEEPALIVE_LEN, is_keepalive, keepalive};
pub use local::{END, LocalCommand};

/// One control message between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlMessage<'a> {
    /// The operation.
    pub opcode: Opcode,
    /// The sub-command of a request, or the result of a reply: 0 is success.
    pub code: u8,
    /// The authentication, with its nonce if the type has one.
    pub auth: Auth,
    /// 1 and 3 are requests, 2 and 4 the replies to them, 0 is a keepalive.
    pub round: u8,
    /// Tunnel address of the host that started the exchange.
    pub initiator: IpAddr,
    /// Tunnel address of the responder.
    pub responder: IpAddr,
    /// The bytes after the header.
    pub body: &'a [u8],
}

/// The operation of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// Reports that a path is alive; never answered.
    Keepalive = 0xA1,
    /// A path goes up or down.
    PathStatus = 0xA2,
    /// Creates a connection from the enclosed text.
    Create = 0xA3,
}

/// The reason why bytes are not a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedMessage {
    /// The message is shorter than its header.
    Truncated,
    /// The opcode is not one that is used between hosts.
    Opcode,
    /// The authentication type does not exist, or its length is wrong.
    Auth,
    /// The IP version is neither 4 nor 6, or contradicts the addresses.
    Version,
    /// The local command is not UTF-8.
    Text,
}

impl<'a> ControlMessage<'a> {
    /// Decodes a message. It does not verify the digest of type 2: [`AuthKey::verifies`] does, with the same bytes.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let [opcode, code, auth_type, auth_len, ..] = *bytes else { return Err(MalformedMessage::Truncated) };
        let opcode = Opcode::from_wire(opcode).ok_or(MalformedMessage::Opcode)?;
        let auth_type = AuthType::from_wire(auth_type).ok_or(MalformedMessage::Auth)?;
        if usize::from(auth_len) != auth_type.overhead() {
            return Err(MalformedMessage::Auth);
        }
        let auth = Auth::read(auth_type, bytes).ok_or(MalformedMessage::Truncated)?;
        let header = bytes.get(4 + auth_type.overhead()..).ok_or(MalformedMessage::Truncated)?;
        let (header, body) = header.split_first_chunk::<36>().ok_or(MalformedMessage::Truncated)?;
        let (initiator, responder) = (address(header, 4), address(header, 20));
        if header[1] != version(initiator) || header[1] != version(responder) {
            return Err(MalformedMessage::Version);
        }
        Ok(Self { opcode, code, auth, round: header[0], initiator, responder, body })
    }

    /// Encodes the message; type 2 is signed with `key`.
    pub fn encode(&self, key: &AuthKey) -> Vec<u8> {
        let auth = self.auth.kind();
        let mut out = Vec::with_capacity(HEADER_LEN + auth.overhead() + self.body.len());
        out.extend([self.opcode as u8, self.code, auth as u8, auth.overhead() as u8]);
        self.auth.write(&mut out);
        out.extend([self.round, version(self.initiator), 0, 0]);
        out.extend(octets(self.initiator));
        out.extend(octets(self.responder));
        out.extend(self.body);
        if auth == AuthType::Sha256 {
            key.sign(&mut out);
        }
        out
    }

    /// Returns the size of the data that rounds 1 and 2 announce.
    pub fn announced(&self) -> Option<u32> {
        self.body.first_chunk().map(|size| u32::from_le_bytes(*size))
    }
}

impl Opcode {
    fn from_wire(byte: u8) -> Option<Self> {
        [Self::Keepalive, Self::PathStatus, Self::Create].into_iter().find(|o| *o as u8 == byte)
    }
}

/// The two ends of a path in the data of a status change: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathEnds {
    /// The initiator's address as the responder sees it.
    pub initiator: IpAddr,
    /// The responder's address as the initiator sees it.
    pub responder: IpAddr,
}

impl PathEnds {
    /// Bytes on the wire.
    pub const LEN: usize = 32;

    /// Decodes the first 32 bytes of a body.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let ends = body.first_chunk::<32>()?;
        Some(Self { initiator: address(ends, 0), responder: address(ends, 16) })
    }

    /// Returns the encoded body.
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..16].copy_from_slice(&octets(self.initiator));
        out[16..].copy_from_slice(&octets(self.responder));
        out
    }
}

/// Length of a message without authentication and without body.
pub const HEADER_LEN: usize = 40;

/// Minimum first byte of a control message: 0xA0, whose upper half is not a version of IP.
pub const CONTROL: u8 = 0xA0;

/// The code of a status change: the path goes down.
pub const DOWN: u8 = 0x80;

/// The code of a status change: the path goes up.
pub const UP: u8 = 0x00;

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address<const N: usize>(bytes: &[u8; N], at: usize) -> IpAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
}

fn version(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

#[cfg(test)]
mod tests;
