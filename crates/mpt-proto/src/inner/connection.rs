//! The TCP connection of a packet, and the order of sequence numbers.

use std::net::IpAddr;

use crate::packet::ip::Ip;

/// Addresses and ports of a TCP flow, the data's source first.
pub(super) type Connection = ((IpAddr, u16), (IpAddr, u16));

/// Returns the connection whose data `packet` is.
pub(super) fn connection(ip: &Ip, packet: &[u8]) -> Option<Connection> {
    let (source, destination) = ip.ports(packet)?;
    Some(((ip.source, source), (ip.destination, destination)))
}

/// Returns the connection whose data flows against `packet`.
pub(super) fn reverse(ip: &Ip, packet: &[u8]) -> Option<Connection> {
    connection(ip, packet).map(|(source, destination)| (destination, source))
}

/// Returns true if the sequence number `a` is after `b` (RFC 9293 section 3.4).
pub(super) fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}
