//! A super-packet: one read of the TUN device, with up to 64 KiB of one flow.
//!
//! Its packets are segmented only when they are sent, directly into the datagram. So a byte of payload is read once
//! between the TUN device and the socket, by the copy or by the seal. A retransmission segments the packet again.
//!
//! Segmentation follows that of a network card: IP lengths, IP identification and TCP sequence numbers advance, FIN and
//! PSH stay on the last segment, CWR on the first.

use super::ip::{Ip, TCP, UDP, Version};
use super::mark::Mark;
use super::{Offload, SegmentationKind, checksum, read_u16, write_u16};
use crate::drops::Dropped;

/// One read of the TUN device.
#[derive(Debug)]
pub struct SuperPacket {
    bytes: Vec<u8>,
    ip: Ip,
    /// Bytes of network and transport header, which every packet repeats; the whole packet if they cannot be separated.
    header: usize,
    segments: Option<SegmentLayout>,
    checksum: Option<super::Checksum>,
    mark: Mark,
}

/// Bytes of the longest super-packet: an IPv6 header and a payload of maximum length.
pub const MAX_SUPER_PACKET: usize = 40 + 65_535;

/// The transport checksum of a packet that was cut from a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// That of the whole packet.
    Final,
    /// The sum of the pseudo-header, as the kernel leaves it. The end that delivers the packet completes it.
    Partial,
}

/// The segmentation of a super-packet.
#[derive(Clone, Copy, Debug)]
struct SegmentLayout {
    kind: SegmentationKind,
    /// Payload bytes in every packet but the last.
    size: usize,
    /// The number of packets.
    count: usize,
}

impl SuperPacket {
    /// Makes a super-packet of a read of the TUN device: the first `len` bytes of a buffer.
    ///
    /// # Errors [`Dropped::BadInner`] with the buffer, if the bytes are not an IP packet or do not match the offload
    /// request.
    pub fn new(bytes: Vec<u8>, len: usize, offload: Offload) -> Result<Self, (Dropped, Vec<u8>)> {
        match Self::check(&bytes[..len], offload) {
            Ok((ip, header, segments)) => {
                Ok(Self { bytes, ip, header, segments, checksum: offload.checksum, mark: Mark::default() })
            }
            Err(reason) => Err((reason, bytes)),
        }
    }

    fn check(bytes: &[u8], offload: Offload) -> Result<(Ip, usize, Option<SegmentLayout>), Dropped> {
        let ip = Ip::parse(bytes)?;
        if let Some(c) = offload.checksum {
            let field = usize::from(c.start) + usize::from(c.offset);
            if usize::from(c.start) < ip.transport || field + 2 > ip.total {
                return Err(Dropped::BadInner);
            }
        }
        let transport = Self::transport_header(bytes, &ip);
        let Some(request) = offload.segmentation else {
            let header = transport.map(|own| ip.transport + own).filter(|header| *header <= ip.total);
            return Ok((ip, header.filter(|_| is_transport_checksum(&ip, offload.checksum)).unwrap_or(ip.total), None));
        };
        let size = usize::from(request.size);
        let protocol = if request.kind == SegmentationKind::Udp { UDP } else { TCP };
        let header = ip.transport + transport.filter(|_| ip.protocol == protocol).ok_or(Dropped::BadInner)?;
        if size == 0 || header >= ip.total {
            return Err(Dropped::BadInner);
        }
        Ok((ip, header, Some(SegmentLayout { kind: request.kind, size, count: (ip.total - header).div_ceil(size) })))
    }

    /// Returns the length of the transport header. The kernel's value is a hint that may be longer.
    fn transport_header(bytes: &[u8], ip: &Ip) -> Option<usize> {
        match ip.protocol {
            _ if ip.fragment => None,
            UDP => Some(8),
            TCP => bytes
                .get(ip.transport + 12)
                .filter(|offset| **offset >= 0x50)
                .map(|offset| usize::from(offset >> 4) * 4),
            _ => None,
        }
    }

    /// Returns the IP header that all its packets share.
    pub fn ip(&self) -> &Ip {
        &self.ip
    }

    /// Returns the bytes as read from the TUN device.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.ip.total]
    }

    /// Returns the bytes for changes in place that keep all lengths.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.ip.total]
    }

    /// Returns the mark of the classifier.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Stores the mark of the classifier.
    pub fn set_mark(&mut self, mark: Mark) {
        self.mark = mark;
    }

    /// Returns true if the transport checksum is still to be computed.
    pub fn checksum_is_partial(&self) -> bool {
        self.checksum.is_some()
    }

    /// Returns the number of packets, at least one.
    pub fn count(&self) -> usize {
        self.segments.map_or(1, |segments| segments.count)
    }

    /// Returns the length in bytes of packet number `index`.
    pub fn len_of(&self, index: usize) -> usize {
        self.header + self.payload(index).len()
    }

    /// Returns the total length of the network and transport headers of one packet.
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// Returns the total length in bytes of all its packets, each with its own header.
    pub fn len_of_all(&self) -> usize {
        let last = self.count() - 1;
        last * self.len_of(0) + self.len_of(last)
    }

    /// Writes packet number `index`, with final checksums, to `out`, which has a length of [`Self::len_of`].
    pub fn write(&self, index: usize, out: &mut [u8]) {
        let (header, payload) = out.split_at_mut(self.header);
        self.write_header(index, header);
        payload.copy_from_slice(self.finish_header(index, header, ChecksumState::Final));
    }

    /// Writes the headers of packet number `index`, except the transport checksum, to `out` ([`Self::header_len`]
    /// bytes).
    pub fn write_header(&self, index: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[..self.header]);
        let Some(segments) = self.segments else { return };
        let len = self.len_of(index);
        self.fix_network_header(out, len, index);
        match segments.kind {
            SegmentationKind::Udp => write_u16(out, self.ip.transport + 4, (len - self.ip.transport) as u16),
            SegmentationKind::Tcp4 { cwr } | SegmentationKind::Tcp6 { cwr } => {
                self.fix_tcp_header(out, segments, index, cwr);
            }
        }
    }

    /// Writes the transport checksum of packet number `index` to its already written `header`, and returns the payload.
    pub fn finish_header(&self, index: usize, header: &mut [u8], checksum: ChecksumState) -> &[u8] {
        let payload = &self.bytes[self.payload(index)];
        let (start, field, sum) = match (self.segments, self.checksum) {
            (Some(segments), _) => {
                let at = if segments.kind == SegmentationKind::Udp { 6 } else { 16 };
                let len = header.len() + payload.len() - self.ip.transport;
                (self.ip.transport, self.ip.transport + at, Some(self.ip.pseudo_sum(len)))
            }
            (None, Some(c)) => (usize::from(c.start), usize::from(c.start) + usize::from(c.offset), None),
            (None, None) => return payload,
        };
        // A partial checksum of the kernel is the pseudo-header sum, so the field itself is included in the sum.
        if let Some(sum) = sum {
            write_u16(header, field, checksum::fold(sum));
        }
        if checksum == ChecksumState::Final {
            let sum = checksum::sum(0, &header[start..]);
            write_u16(header, field, never_zero(checksum::checksum(sum, payload), self.ip.protocol));
        }
        payload
    }

    /// Returns true if the checksum of its packets is that of TCP, and can be left to the receiver. It cannot with IPv4
    /// options: a source route has another destination than the header, which the sum of the pseudo-header includes.
    pub fn has_partial_tcp_checksum(&self) -> bool {
        let has_options = self.ip.version == Version::V4 && self.ip.transport > 20;
        self.ip.protocol == TCP && !has_options && self.checksum.is_some() && self.header < self.ip.total
    }

    /// Returns the buffer.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the length of the buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn payload(&self, index: usize) -> std::ops::Range<usize> {
        let Some(segments) = self.segments else { return self.header..self.ip.total };
        let start = self.header + index * segments.size;
        start..(start + segments.size).min(self.ip.total)
    }

    fn fix_network_header(&self, out: &mut [u8], len: usize, index: usize) {
        match self.ip.version {
            Version::V6 => write_u16(out, 4, (len - 40) as u16),
            Version::V4 => {
                write_u16(out, 2, len as u16);
                write_u16(out, 4, read_u16(out, 4).wrapping_add(index as u16));
                write_u16(out, 10, 0);
                let sum = checksum::checksum(0, &out[..self.ip.transport]);
                write_u16(out, 10, sum);
            }
        }
    }

    fn fix_tcp_header(&self, out: &mut [u8], segments: SegmentLayout, index: usize, cwr: bool) {
        let tcp = &mut out[self.ip.transport..];
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add((index * segments.size) as u32);
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        if index + 1 < segments.count {
            tcp[13] &= !FIN_PSH;
        }
        if cwr && index > 0 {
            tcp[13] &= !CWR;
        }
    }
}

const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Returns true if a requested checksum is that of the transport protocol, or if none is requested.
fn is_transport_checksum(ip: &Ip, checksum: Option<super::Checksum>) -> bool {
    let offset = if ip.protocol == UDP { 6 } else { 16 };
    checksum.is_none_or(|c| usize::from(c.start) == ip.transport && c.offset == offset)
}

/// Replaces a UDP checksum of zero by all ones, because zero means no checksum (RFC 768).
fn never_zero(sum: u16, protocol: u8) -> u16 {
    if sum == 0 && protocol == UDP { 0xffff } else { sum }
}
