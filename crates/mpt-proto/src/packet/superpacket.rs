//! A super-packet: one read of the TUN device, which stands for up to 64 KiB of one flow.
//!
//! The packets it stands for are never made ahead of time. Whoever sends one has it written straight into the datagram that
//! carries it, so a byte of payload is copied once on its way from the TUN device to the socket, and a packet
//! that must be sent again is cut again. Cutting follows what a network card does with the same request: IP
//! lengths, IP identification and TCP sequence numbers advance, FIN and PSH stay on the last segment, CWR on the first.

use super::ip::{Ip, TCP, UDP, Version};
use super::{Offload, SegmentationKind, checksum, put_word, word};
use crate::classify::Mark;
use crate::drops::Dropped;

/// One read of the TUN device.
#[derive(Debug)]
pub struct SuperPacket {
    bytes: Vec<u8>,
    ip: Ip,
    /// Bytes of network and transport header, which every packet repeats; all of them where the two cannot be told from the rest.
    header: usize,
    cut: Option<Cut>,
    checksum: Option<super::Checksum>,
    mark: Mark,
}

/// How the packets of a super-packet differ.
#[derive(Clone, Copy, Debug)]
struct Cut {
    kind: SegmentationKind,
    /// Payload bytes in every packet but the last.
    size: usize,
    /// How many packets there are.
    count: usize,
}

const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

impl SuperPacket {
    /// Takes what the TUN device gave: the first `len` bytes of a buffer.
    ///
    /// # Errors
    /// [`Dropped::BadInner`] with the buffer, when the bytes are not an IP packet or do not fit the request.
    pub fn new(bytes: Vec<u8>, len: usize, offload: Offload) -> Result<Self, (Dropped, Vec<u8>)> {
        match Self::check(&bytes[..len], offload) {
            Ok((ip, header, cut)) => {
                Ok(Self { bytes, ip, header, cut, checksum: offload.checksum, mark: Mark::default() })
            }
            Err(why) => Err((why, bytes)),
        }
    }

    fn check(bytes: &[u8], offload: Offload) -> Result<(Ip, usize, Option<Cut>), Dropped> {
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
            return Ok((ip, header.filter(|_| is_usual(&ip, offload.checksum)).unwrap_or(ip.total), None));
        };
        let size = usize::from(request.size);
        let protocol = if request.kind == SegmentationKind::Udp { UDP } else { TCP };
        let header = ip.transport + transport.filter(|_| ip.protocol == protocol).ok_or(Dropped::BadInner)?;
        if size == 0 || header >= ip.total {
            return Err(Dropped::BadInner);
        }
        Ok((ip, header, Some(Cut { kind: request.kind, size, count: (ip.total - header).div_ceil(size) })))
    }

    /// The length of the transport header. The kernel's own figure is a hint that may be longer.
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

    /// The header that all its packets share.
    pub fn ip(&self) -> &Ip {
        &self.ip
    }

    /// The bytes as they came from the TUN device.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.ip.total]
    }

    /// The bytes, to be changed in place where lengths stay as they are.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.ip.total]
    }

    /// What the classifier found out about it.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Remembers what the classifier found out.
    pub fn set_mark(&mut self, mark: Mark) {
        self.mark = mark;
    }

    /// Whether a transport checksum is still to be computed.
    pub fn checksum_is_partial(&self) -> bool {
        self.checksum.is_some()
    }

    /// How many packets it stands for, at least one.
    pub fn count(&self) -> usize {
        self.cut.map_or(1, |cut| cut.count)
    }

    /// The length in bytes of packet number `index`.
    pub fn len_of(&self, index: usize) -> usize {
        self.header + self.payload(index).len()
    }

    /// How long the network and transport headers of its packets are, together.
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// The length in bytes of all its packets, each with its own header.
    pub fn len_of_all(&self) -> usize {
        let last = self.count() - 1;
        last * self.len_of(0) + self.len_of(last)
    }

    /// Writes packet number `index` to `out`, which is exactly as long as [`Self::len_of`] says. All checksums are final.
    pub fn write(&self, index: usize, out: &mut [u8]) {
        let (header, payload) = out.split_at_mut(self.header);
        self.write_header(index, header);
        self.write_payload(index, header, payload);
    }

    /// Writes the headers of packet number `index`, all but the transport checksum, to `out`, which is [`Self::header_len`] bytes long.
    pub fn write_header(&self, index: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[..self.header]);
        let Some(cut) = self.cut else { return };
        let len = self.len_of(index);
        self.fix_network_header(out, len, index);
        match cut.kind {
            SegmentationKind::Udp => put_word(out, self.ip.transport + 4, (len - self.ip.transport) as u16),
            SegmentationKind::Tcp4 { cwr } | SegmentationKind::Tcp6 { cwr } => {
                self.fix_tcp_header(out, cut, index, cwr);
            }
        }
    }

    /// Writes the payload of packet number `index` to `out`, and the transport checksum to its `header`, which [`Self::write_header`] has written.
    pub fn write_payload(&self, index: usize, header: &mut [u8], out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[self.payload(index)]);
        let (start, field, sum) = match (self.cut, self.checksum) {
            (Some(cut), _) => {
                let at = if cut.kind == SegmentationKind::Udp { 6 } else { 16 };
                let len = header.len() + out.len() - self.ip.transport;
                (self.ip.transport, self.ip.transport + at, Some(self.ip.pseudo_sum(len)))
            }
            (None, Some(c)) => (usize::from(c.start), usize::from(c.start) + usize::from(c.offset), None),
            (None, None) => return,
        };
        if sum.is_some() {
            put_word(header, field, 0);
        }
        // A field that the kernel has begun holds the pseudo-header sum already, so it takes part in the sum as it stands.
        let sum = checksum::sum(sum.unwrap_or(0), &header[start..]);
        put_word(header, field, never_zero(checksum::checksum(sum, out), self.ip.protocol));
    }

    /// Gives the buffer back.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    fn payload(&self, index: usize) -> std::ops::Range<usize> {
        let Some(cut) = self.cut else { return self.header..self.ip.total };
        let start = self.header + index * cut.size;
        start..(start + cut.size).min(self.ip.total)
    }

    fn fix_network_header(&self, out: &mut [u8], len: usize, index: usize) {
        match self.ip.version {
            Version::V6 => put_word(out, 4, (len - 40) as u16),
            Version::V4 => {
                put_word(out, 2, len as u16);
                put_word(out, 4, word(out, 4).wrapping_add(index as u16));
                put_word(out, 10, 0);
                let sum = checksum::checksum(0, &out[..self.ip.transport]);
                put_word(out, 10, sum);
            }
        }
    }

    fn fix_tcp_header(&self, out: &mut [u8], cut: Cut, index: usize, cwr: bool) {
        let tcp = &mut out[self.ip.transport..];
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add((index * cut.size) as u32);
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        if index + 1 < cut.count {
            tcp[13] &= !FIN_PSH;
        }
        if cwr && index > 0 {
            tcp[13] &= !CWR;
        }
    }
}

/// Whether a checksum that is asked for is the transport protocol's own, where that has it.
fn is_usual(ip: &Ip, checksum: Option<super::Checksum>) -> bool {
    let offset = if ip.protocol == UDP { 6 } else { 16 };
    checksum.is_none_or(|c| usize::from(c.start) == ip.transport && c.offset == offset)
}

/// A UDP checksum that comes out as zero is sent as all ones, since zero means that there is none (RFC 768).
fn never_zero(sum: u16, protocol: u8) -> u16 {
    if sum == 0 && protocol == UDP { 0xffff } else { sum }
}
