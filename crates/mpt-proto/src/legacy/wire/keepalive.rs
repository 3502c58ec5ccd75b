//! The keepalive of a path: a control message after a GRE header, on the data port.
//!
//! The GRE header (RFC 2784) is always the short one, without a sequence number even if data has one, and its protocol
//! type is that of the connection although no IP packet follows. The first byte after the header identifies a
//! keepalive: 0xA1, where an IP packet has its version. A receiver checks nothing else; the source address of the
//! datagram identifies the path. It is never authenticated and never answered.

use std::net::IpAddr;

use super::{Auth, AuthKey, ControlMessage, HEADER_LEN, Opcode};

/// Length of a keepalive's UDP payload.
pub const KEEPALIVE_LEN: usize = 4 + HEADER_LEN;

/// Returns the UDP payload of a keepalive between two tunnel addresses.
pub fn keepalive(sender: IpAddr, receiver: IpAddr) -> Vec<u8> {
    let message = ControlMessage {
        opcode: Opcode::Keepalive,
        code: 0,
        auth: Auth::None,
        round: 0,
        initiator: sender,
        responder: receiver,
        body: &[],
    };
    let mut out = Vec::with_capacity(KEEPALIVE_LEN);
    out.extend(if sender.is_ipv4() { [0, 0, 0x08, 0x00] } else { [0, 0, 0x86, 0xDD] });
    out.extend(message.encode(&AuthKey::PUBLIC));
    out
}

/// Returns true if the UDP payload of a datagram on the data port is a keepalive, by the rule of the original.
pub fn is_keepalive(payload: &[u8]) -> bool {
    let sequence_number = payload.first().is_some_and(|flags| flags & 0x10 != 0);
    let header = if sequence_number { 8 } else { 4 };
    payload.len() >= 8 && payload.get(header) == Some(&(Opcode::Keepalive as u8))
}
