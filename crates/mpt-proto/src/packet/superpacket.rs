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
    /// Header bytes that every packet repeats.
    header: usize,
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
            Ok((ip, cut)) => Ok(Self { bytes, ip, cut, checksum: offload.checksum, mark: Mark::default() }),
            Err(why) => Err((why, bytes)),
        }
    }

    fn check(bytes: &[u8], offload: Offload) -> Result<(Ip, Option<Cut>), Dropped> {
        let ip = Ip::parse(bytes)?;
        if let Some(c) = offload.checksum {
            let field = usize::from(c.start) + usize::from(c.offset);
            if usize::from(c.start) < ip.transport || field + 2 > ip.total {
                return Err(Dropped::BadInner);
            }
        }
        let Some(request) = offload.segmentation else { return Ok((ip, None)) };
        let size = usize::from(request.size);
        let header = ip.transport + Self::transport_header(bytes, &ip, request.kind).ok_or(Dropped::BadInner)?;
        if size == 0 || header >= ip.total {
            return Err(Dropped::BadInner);
        }
        Ok((ip, Some(Cut { kind: request.kind, size, header, count: (ip.total - header).div_ceil(size) })))
    }

    /// The length of the transport header. The kernel's own figure is a hint that may be longer.
    fn transport_header(bytes: &[u8], ip: &Ip, kind: SegmentationKind) -> Option<usize> {
        if kind == SegmentationKind::Udp {
            return (ip.protocol == UDP).then_some(8);
        }
        let offset = bytes.get(ip.transport + 12)?;
        (ip.protocol == TCP && *offset >= 0x50).then_some(usize::from(offset >> 4) * 4)
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
        self.cut.map_or(self.ip.total, |cut| cut.header + self.payload(cut, index).len())
    }

    /// The length in bytes of all its packets, each with its own header.
    pub fn len_of_all(&self) -> usize {
        let last = self.count() - 1;
        last * self.len_of(0) + self.len_of(last)
    }

    /// Writes packet number `index` to `out`, which is exactly as long as [`Self::len_of`] says. All checksums are final.
    pub fn write(&self, index: usize, out: &mut [u8]) {
        match self.cut {
            None => {
                out.copy_from_slice(self.bytes());
                self.finish_checksum(out);
            }
            Some(cut) => self.write_segment(cut, index, out),
        }
    }

    /// Gives the buffer back.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    fn payload(&self, cut: Cut, index: usize) -> std::ops::Range<usize> {
        let start = cut.header + index * cut.size;
        start..(start + cut.size).min(self.ip.total)
    }

    fn write_segment(&self, cut: Cut, index: usize, out: &mut [u8]) {
        let (header, payload) = out.split_at_mut(cut.header);
        header.copy_from_slice(&self.bytes[..cut.header]);
        payload.copy_from_slice(&self.bytes[self.payload(cut, index)]);
        self.fix_network_header(out, index);
        let field = match cut.kind {
            SegmentationKind::Udp => self.fix_udp_header(out),
            SegmentationKind::Tcp4 { cwr } | SegmentationKind::Tcp6 { cwr } => {
                self.fix_tcp_header(out, cut, index, cwr)
            }
        };
        self.write_checksum(out, self.ip.transport, field);
    }

    fn fix_network_header(&self, out: &mut [u8], index: usize) {
        let len = out.len() as u16;
        match self.ip.version {
            Version::V6 => put_word(out, 4, len - 40),
            Version::V4 => {
                put_word(out, 2, len);
                put_word(out, 4, word(out, 4).wrapping_add(index as u16));
                put_word(out, 10, 0);
                let sum = checksum::checksum(0, &out[..self.ip.transport]);
                put_word(out, 10, sum);
            }
        }
    }

    fn fix_udp_header(&self, out: &mut [u8]) -> usize {
        put_word(out, self.ip.transport + 4, (out.len() - self.ip.transport) as u16);
        6
    }

    fn fix_tcp_header(&self, out: &mut [u8], cut: Cut, index: usize, cwr: bool) -> usize {
        let tcp = &mut out[self.ip.transport..];
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add((index * cut.size) as u32);
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        if index + 1 < cut.count {
            tcp[13] &= !FIN_PSH;
        }
        if cwr && index > 0 {
            tcp[13] &= !CWR;
        }
        16
    }

    /// Completes the checksum of a packet that is not cut, where the kernel left it to us.
    fn finish_checksum(&self, out: &mut [u8]) {
        if let Some(c) = self.checksum {
            let (start, offset) = (usize::from(c.start), usize::from(c.offset));
            // The field holds the pseudo-header sum already, so it takes part in the sum as it stands.
            let sum = checksum::checksum(0, &out[start..]);
            put_word(out, start + offset, never_zero(sum, self.ip.protocol));
        }
    }

    fn write_checksum(&self, out: &mut [u8], transport: usize, field: usize) {
        put_word(out, transport + field, 0);
        let sum = checksum::checksum(self.ip.pseudo_sum(out.len() - transport), &out[transport..]);
        put_word(out, transport + field, never_zero(sum, self.ip.protocol));
    }
}

/// A UDP checksum that comes out as zero is sent as all ones, since zero means that there is none (RFC 768).
fn never_zero(sum: u16, protocol: u8) -> u16 {
    if sum == 0 && protocol == UDP { 0xffff } else { sum }
}
