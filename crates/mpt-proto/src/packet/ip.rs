//! IP header fields (RFC 791, RFC 8200), parsed and validated once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ecn;
use crate::drops::Dropped;

/// The IP version of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The fields of an IP header that the tunnel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// The version.
    pub version: Version,
    /// Type of service or traffic class: DSCP and ECN.
    pub tos: u8,
    /// The packet length in bytes from the header; never more than the bytes available.
    pub total: usize,
    /// The offset of the transport header.
    pub transport: usize,
    /// The transport protocol, or the number of the first IPv6 extension header.
    pub protocol: u8,
    /// True for a fragment; the bytes at `transport` are then arbitrary.
    pub fragment: bool,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
}

/// Flags of a TCP segment (RFC 9293 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFlags {
    /// It begins a connection.
    pub syn: bool,
    /// Its acknowledgement number is valid.
    pub ack: bool,
    /// It resets the connection.
    pub rst: bool,
}

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

impl Ip {
    /// Parses the header at the start of `bytes`.
    ///
    /// # Errors [`Dropped::BadInner`] if it is not IP, or if its lengths are inconsistent or exceed `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Dropped> {
        match bytes.first().map(|b| b >> 4) {
            Some(4) => Self::parse_v4(bytes),
            Some(6) => Self::parse_v6(bytes),
            _ => Err(Dropped::BadInner),
        }
    }

    fn parse_v4(bytes: &[u8]) -> Result<Self, Dropped> {
        let h: &[u8; 20] = bytes.first_chunk().ok_or(Dropped::BadInner)?;
        let header = usize::from(h[0] & 0x0f) * 4;
        let total = usize::from(u16::from_be_bytes([h[2], h[3]]));
        if header < 20 || total < header || total > bytes.len() {
            return Err(Dropped::BadInner);
        }
        Ok(Self {
            version: Version::V4,
            tos: h[1],
            total,
            transport: header,
            protocol: h[9],
            fragment: u16::from_be_bytes([h[6], h[7]]) & 0x3fff != 0,
            source: Ipv4Addr::new(h[12], h[13], h[14], h[15]).into(),
            destination: Ipv4Addr::new(h[16], h[17], h[18], h[19]).into(),
        })
    }

    fn parse_v6(bytes: &[u8]) -> Result<Self, Dropped> {
        let h: &[u8; 40] = bytes.first_chunk().ok_or(Dropped::BadInner)?;
        let total = 40 + usize::from(u16::from_be_bytes([h[4], h[5]]));
        if total > bytes.len() {
            return Err(Dropped::BadInner);
        }
        let address =
            |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&h[at..at + 16]).expect("16 bytes of a 40-byte header"));
        Ok(Self {
            version: Version::V6,
            tos: h[0] << 4 | h[1] >> 4,
            total,
            transport: 40,
            protocol: h[6],
            fragment: h[6] == 44,
            source: address(8).into(),
            destination: address(24).into(),
        })
    }

    /// Returns source and destination port of a TCP or UDP packet, if the packet contains them.
    pub fn ports(&self, bytes: &[u8]) -> Option<(u16, u16)> {
        if self.fragment || !matches!(self.protocol, TCP | UDP) {
            return None;
        }
        let ports = bytes.get(self.transport..self.transport + 4)?;
        Some((u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]])))
    }

    /// Returns true for a TCP segment with room for the fixed header.
    pub fn has_tcp_header(&self) -> bool {
        self.protocol == TCP && !self.fragment && self.total >= self.transport + 20
    }

    /// Returns true for a TCP segment with the ACK flag only and no data.
    pub fn is_pure_ack(&self, bytes: &[u8]) -> bool {
        if self.protocol != TCP || self.fragment {
            return false;
        }
        let fields = bytes.get(self.transport + 12).zip(bytes.get(self.transport + 13));
        fields
            .is_some_and(|(offset, flags)| *flags == ACK && self.transport + usize::from(offset >> 4) * 4 == self.total)
    }

    /// Returns the flags of a TCP segment with room for the fixed header.
    pub fn tcp_flags(&self, bytes: &[u8]) -> Option<TcpFlags> {
        let flags = *bytes.get(self.transport + 13).filter(|_| self.has_tcp_header())?;
        Some(TcpFlags { syn: flags & SYN != 0, ack: flags & ACK != 0, rst: flags & RST != 0 })
    }

    /// Returns true for a TCP segment with SYN and ACK.
    pub fn is_syn_ack(&self, bytes: &[u8]) -> bool {
        self.tcp_flags(bytes).is_some_and(|flags| flags.syn && flags.ack)
    }

    /// Returns the acknowledgement number of a TCP segment that [`Self::is_pure_ack`] has accepted.
    pub fn acknowledged(&self, bytes: &[u8]) -> Option<u32> {
        self.transport_u32(bytes, 8)
    }

    /// Returns true if a pure ACK has no options but timestamps (RFC 7323), so it reports no reordered or duplicate
    /// data.
    pub fn is_plain_ack(&self, bytes: &[u8]) -> bool {
        matches!(bytes.get(self.transport + 20..self.total), Some([] | [1, 1, 8, 10, _, _, _, _, _, _, _, _]))
    }

    /// Returns the sequence number of a TCP segment, if the packet contains it.
    pub fn sequence(&self, bytes: &[u8]) -> Option<u32> {
        let is_segment = self.protocol == TCP && !self.fragment;
        is_segment.then(|| self.transport_u32(bytes, 4)).flatten()
    }

    /// Returns timestamp and echo of a TCP segment that has them in the usual layout (RFC 7323 appendix A).
    pub fn timestamps(&self, bytes: &[u8]) -> Option<(u32, u32)> {
        let has_options = bytes.get(self.transport + 12).is_some_and(|offset| offset >> 4 >= 8);
        let has_timestamps = has_options && bytes.get(self.transport + 20..self.transport + 24) == Some(&[1, 1, 8, 10]);
        has_timestamps.then(|| self.transport_u32(bytes, 24).zip(self.transport_u32(bytes, 28))).flatten()
    }

    fn transport_u32(&self, bytes: &[u8], offset: usize) -> Option<u32> {
        Some(u32::from_be_bytes(*bytes.get(self.transport + offset..)?.first_chunk()?))
    }

    /// Returns the pseudo-header sum of a TCP or UDP checksum, for `len` bytes of transport header and payload.
    pub fn pseudo_sum(&self, len: usize) -> u64 {
        let addresses = match (self.source, self.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => sum_of(&s.octets()) + sum_of(&d.octets()),
            (IpAddr::V6(s), IpAddr::V6(d)) => sum_of(&s.octets()) + sum_of(&d.octets()),
            _ => unreachable!("both addresses come from one header"),
        };
        addresses + u64::from(self.protocol) + len as u64
    }
}

/// Replaces the type of service of the packet in `bytes`, which [`Ip::parse`] has accepted.
pub fn set_tos(bytes: &mut [u8], version: Version, tos: u8) {
    match version {
        Version::V4 => ecn::set_tos_v4(bytes, tos),
        Version::V6 => {
            bytes[0] = bytes[0] & 0xf0 | tos >> 4;
            bytes[1] = bytes[1] & 0x0f | tos << 4;
        }
    }
}

/// The TCP flags with ACK only.
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;

fn sum_of(octets: &[u8]) -> u64 {
    super::checksum::sum(0, octets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::packet;

    /// The inner echo request of a capture of the original MPT, without its payload.
    const ECHO: [u8; 20] = [
        0x45, 0x00, 0x00, 0x14, 0x9c, 0x78, 0x40, 0x00, 0x40, 0x01, 0x89, 0xd4, 0x0a, 0x4d, 0x00, 0x01, 0x0a, 0x4d,
        0x00, 0x02,
    ];

    #[test]
    fn a_header_yields_addresses_and_length() {
        let ip = Ip::parse(&ECHO).unwrap();
        assert_eq!((ip.version, ip.protocol, ip.total, ip.transport), (Version::V4, 1, 20, 20));
        assert_eq!(ip.source, IpAddr::from([10, 77, 0, 1]));
        assert_eq!(ip.ports(&ECHO), None);
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let with_byte = |at: usize, value: u8| {
            let mut bytes = ECHO;
            bytes[at] = value;
            Ip::parse(&bytes)
        };
        assert_eq!(with_byte(3, 21), Err(Dropped::BadInner), "longer than the bytes there are");
        assert_eq!(with_byte(3, 19), Err(Dropped::BadInner), "shorter than its own header");
        assert_eq!(with_byte(0, 0x44), Err(Dropped::BadInner), "header shorter than 20 bytes");
        assert_eq!(with_byte(0, 0xa1), Err(Dropped::BadInner), "a keepalive of the original");
        assert_eq!(Ip::parse(&[]), Err(Dropped::BadInner));
        assert_eq!(Ip::parse(&[0x60; 39]), Err(Dropped::BadInner));
    }

    #[test]
    fn a_segment_yields_sequence_number_and_timestamps() {
        let mut bytes = packet(Version::V4, TCP, 20, 1);
        bytes[24..28].copy_from_slice(&[0, 0, 1, 2]);
        bytes[40..52].copy_from_slice(&[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9]);
        let ip = Ip::parse(&bytes).unwrap();
        assert_eq!((ip.sequence(&bytes), ip.timestamps(&bytes)), (Some(258), None), "its header ends before them");
        bytes[32] = 8 << 4;
        assert_eq!(ip.timestamps(&bytes), Some((7, 9)));
        assert_eq!(ip.timestamps(&bytes[..50]), None);
        assert_eq!(Ip { protocol: UDP, ..ip }.sequence(&bytes), None);
    }

    #[test]
    fn tos_is_read_and_written_in_both_versions() {
        let mut v6 = [0u8; 40];
        v6[0] = 0x60;
        for (bytes, version) in [(&mut ECHO.to_vec()[..], Version::V4), (&mut v6[..], Version::V6)] {
            set_tos(bytes, version, 0xb9);
            assert_eq!(Ip::parse(bytes).unwrap().tos, 0xb9);
            set_tos(bytes, version, 0x00);
            assert_eq!(Ip::parse(bytes).unwrap().tos, 0x00);
        }
    }
}
