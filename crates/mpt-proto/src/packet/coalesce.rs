//! Receive offload: merges packets into super-packets for the TUN device, the inverse of [`super::SuperPacket`].
//!
//! The rules are those of the kernel's own receive offload: the packets belong to one TCP or UDP flow, are in sequence,
//! and their headers differ only as segmentation would make them differ; each has the length of the first, but the last
//! may be shorter. A packet with a wrong checksum is never merged: the super-packet gets new checksums, so the damaged
//! packet would become valid. A partial checksum is not verified: the seal protected the packet since the kernel of
//! its sender left it so.

use std::collections::VecDeque;

use super::ip::{Ip, TCP, UDP, Version};
use super::{Checksum, ChecksumState, Offload, Segmentation, SegmentationKind, checksum, read_u16, write_u16};

/// Merges packets by flow, and returns the writes for the TUN device.
#[derive(Debug)]
pub struct Coalescer {
    open: Vec<OpenSuperPacket>,
    ready: VecDeque<TunWrite>,
    spare: Vec<Vec<u8>>,
    merge: Merge,
}

/// The protocols for which the TUN device accepts super-packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merge {
    /// TCP over IPv4 and IPv6 (TSO).
    pub tcp: bool,
    /// UDP (USO, Linux 6.2).
    pub udp: bool,
}

/// One write to the TUN device.
#[derive(Debug)]
pub struct TunWrite {
    /// The checksum and segmentation work left to the kernel.
    pub offload: Offload,
    /// The packet, or the super-packet.
    pub bytes: Vec<u8>,
    /// The number of packets in it.
    pub packets: u32,
}

/// A super-packet that accepts more packets.
#[derive(Debug)]
struct OpenSuperPacket {
    bytes: Vec<u8>,
    shape: Shape,
    segment: usize,
    packets: u32,
    next_seq: u32,
    closed: bool,
    /// The state of the checksum of the first packet, which decides if no other is merged with it.
    checksum: ChecksumState,
}

/// The offsets of the headers of a mergeable packet.
#[derive(Clone, Copy, Debug)]
struct Shape {
    version: Version,
    protocol: u8,
    transport: usize,
    header: usize,
}

impl Coalescer {
    /// Makes a coalescer that merges the protocols in `merge`, and passes every other packet through.
    pub fn new(merge: Merge) -> Self {
        Self { open: Vec::new(), ready: VecDeque::new(), spare: Vec::new(), merge }
    }

    /// Adds one complete IP packet, which [`Ip::parse`] has parsed as `ip`.
    pub fn push(&mut self, ip: &Ip, packet: &[u8]) {
        self.push_with(ip, packet, ChecksumState::Final);
    }

    /// Adds one IP packet whose TCP checksum may be partial: it is left to the kernel with a packet that may be merged,
    /// and completed in any other.
    pub fn push_with(&mut self, ip: &Ip, packet: &[u8], checksum: ChecksumState) {
        let mergeable = match ip.protocol {
            TCP => self.merge.tcp,
            UDP => self.merge.udp,
            _ => false,
        };
        match mergeable.then(|| Shape::of(ip, packet, checksum)).flatten() {
            Some(shape) => self.merge(shape, packet, checksum),
            None => {
                self.flush_flow_of(ip, packet);
                self.pass_through(ip, packet, checksum);
            }
        }
    }

    /// Closes every open super-packet, at the end of a batch.
    pub fn flush(&mut self) {
        for open in self.open.drain(..) {
            self.ready.push_back(open.finish());
        }
    }

    /// Returns the next write for the TUN device, in order.
    pub fn poll(&mut self) -> Option<TunWrite> {
        self.ready.pop_front()
    }

    /// Takes a buffer back for reuse.
    pub fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < 2 * OPEN_FLOWS {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    fn merge(&mut self, shape: Shape, packet: &[u8], checksum: ChecksumState) {
        let same_flow = self.open.iter().position(|open| open.is_same_flow(&shape, packet));
        if let Some(at) = same_flow {
            if self.open[at].append(&shape, packet) {
                return;
            }
            let done = self.open.remove(at);
            self.ready.push_back(done.finish());
        } else if self.open.len() == OPEN_FLOWS {
            let oldest = self.open.remove(0);
            self.ready.push_back(oldest.finish());
        }
        let bytes = self.buffer(packet);
        self.open.push(OpenSuperPacket::new(shape, bytes, checksum));
    }

    fn pass_through(&mut self, ip: &Ip, packet: &[u8], checksum: ChecksumState) {
        let mut bytes = self.buffer(packet);
        if checksum == ChecksumState::Partial {
            complete_tcp(ip, &mut bytes);
        }
        self.ready.push_back(TunWrite { offload: Offload::default(), bytes, packets: 1 });
    }

    /// Flushes the flow of a packet that cannot be merged, which must not overtake earlier packets of its flow.
    fn flush_flow_of(&mut self, ip: &Ip, packet: &[u8]) {
        let of_same_hosts = |open: &OpenSuperPacket| open.addresses() == addresses(ip.version, packet);
        while let Some(at) = self.open.iter().position(of_same_hosts) {
            let done = self.open.remove(at);
            self.ready.push_back(done.finish());
        }
    }

    fn buffer(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(packet);
        bytes
    }
}

impl Shape {
    /// Returns the shape of a packet that can be merged: TCP with data and no flags but ACK, PSH and FIN, or UDP.
    fn of(ip: &Ip, packet: &[u8], checksum: ChecksumState) -> Option<Self> {
        if ip.fragment || !is_network_header_mergeable(ip, packet) {
            return None;
        }
        let transport = &packet[ip.transport..ip.total];
        let (header, min) = match ip.protocol {
            TCP if transport.len() > 20 && transport[13] & !(FIN | PSH) == ACK => {
                (usize::from(transport[12] >> 4) * 4, 20)
            }
            UDP if transport.len() > 8
                && read_u16(transport, 4) as usize == transport.len()
                && read_u16(transport, 6) != 0 =>
            {
                (8, 8)
            }
            _ => return None,
        };
        let is_valid = || checksum::fold(checksum::sum(ip.pseudo_sum(transport.len()), transport)) == 0xffff;
        if header < min || header >= transport.len() || checksum == ChecksumState::Final && !is_valid() {
            return None;
        }
        Some(Self {
            version: ip.version,
            protocol: ip.protocol,
            transport: ip.transport,
            header: ip.transport + header,
        })
    }
}

impl OpenSuperPacket {
    fn new(shape: Shape, bytes: Vec<u8>, checksum: ChecksumState) -> Self {
        let payload = bytes.len() - shape.header;
        let closed = shape.protocol == TCP && bytes[shape.transport + 13] & (FIN | PSH) != 0;
        let next_seq = if shape.protocol == TCP { tcp_seq(&bytes, &shape).wrapping_add(payload as u32) } else { 0 };
        Self { shape, segment: payload, packets: 1, next_seq, closed, bytes, checksum }
    }

    fn addresses(&self) -> &[u8] {
        addresses(self.shape.version, &self.bytes)
    }

    fn is_same_flow(&self, shape: &Shape, packet: &[u8]) -> bool {
        let ports = |bytes: &[u8]| {
            [bytes[shape.transport], bytes[shape.transport + 1], bytes[shape.transport + 2], bytes[shape.transport + 3]]
        };
        self.shape.version == shape.version
            && self.shape.protocol == shape.protocol
            && self.addresses() == addresses(shape.version, packet)
            && ports(&self.bytes) == ports(packet)
    }

    /// Appends the packet's payload if segmentation of the result would reproduce the packet.
    fn append(&mut self, shape: &Shape, packet: &[u8]) -> bool {
        let payload = &packet[shape.header..];
        let fits = !self.closed
            && shape.header == self.shape.header
            && payload.len() <= self.segment
            && self.bytes.len() + payload.len() <= MAX_BYTES
            && (shape.protocol == TCP || self.packets < MAX_DATAGRAMS)
            && self.network_header_continues(packet)
            && (shape.protocol == UDP || self.tcp_header_continues(shape, packet));
        if !fits {
            return false;
        }
        self.bytes.extend_from_slice(payload);
        self.packets += 1;
        self.next_seq = self.next_seq.wrapping_add(payload.len() as u32);
        self.closed = payload.len() < self.segment;
        if shape.protocol == TCP {
            let last = packet[shape.transport + 13] & (FIN | PSH);
            self.bytes[shape.transport + 13] |= last;
            self.closed |= last != 0;
        }
        true
    }

    /// Returns true if all but length, identification and checksum is equal, and the IPv4 identification is the next.
    fn network_header_continues(&self, packet: &[u8]) -> bool {
        let ours = &self.bytes;
        match self.shape.version {
            Version::V6 => ours[..4] == packet[..4] && ours[6..8] == packet[6..8],
            Version::V4 => {
                let counts_up = read_u16(packet, 4) == read_u16(ours, 4).wrapping_add(self.packets as u16);
                ours[..2] == packet[..2] && ours[6..10] == packet[6..10] && counts_up
            }
        }
    }

    /// Returns true if the packet is in sequence, with the same acknowledgement, window and options.
    fn tcp_header_continues(&self, shape: &Shape, packet: &[u8]) -> bool {
        let (ours, theirs) = (&self.bytes[shape.transport..shape.header], &packet[shape.transport..shape.header]);
        tcp_seq(packet, shape) == self.next_seq
            && ours[8..13] == theirs[8..13]
            && ours[14..16] == theirs[14..16]
            && ours[18..] == theirs[18..]
    }

    fn finish(mut self) -> TunWrite {
        if self.packets == 1 && self.checksum == ChecksumState::Final {
            return TunWrite { offload: Offload::default(), bytes: self.bytes, packets: 1 };
        }
        let (shape, len) = (self.shape, self.bytes.len());
        self.write_lengths();
        let ip = Ip::parse(&self.bytes).expect("lengths were just written");
        let (kind, offset) = match (shape.protocol, shape.version) {
            (UDP, _) => (SegmentationKind::Udp, 6),
            (_, Version::V4) => (SegmentationKind::Tcp4 { cwr: false }, 16),
            (_, Version::V6) => (SegmentationKind::Tcp6 { cwr: false }, 16),
        };
        let pseudo = checksum::fold(ip.pseudo_sum(len - shape.transport));
        write_u16(&mut self.bytes, shape.transport + offset, pseudo);
        let segmentation = Segmentation { kind, size: self.segment as u16, header: shape.header as u16 };
        TunWrite {
            offload: Offload {
                checksum: Some(Checksum { start: shape.transport as u16, offset: offset as u16 }),
                segmentation: (self.packets > 1).then_some(segmentation),
            },
            bytes: self.bytes,
            packets: self.packets,
        }
    }

    fn write_lengths(&mut self) {
        let len = self.bytes.len();
        match self.shape.version {
            Version::V6 => write_u16(&mut self.bytes, 4, (len - 40) as u16),
            Version::V4 => {
                write_u16(&mut self.bytes, 2, len as u16);
                write_u16(&mut self.bytes, 10, 0);
                let sum = checksum::checksum(0, &self.bytes[..self.shape.transport]);
                write_u16(&mut self.bytes, 10, sum);
            }
        }
        if self.shape.protocol == UDP {
            write_u16(&mut self.bytes, self.shape.transport + 4, (len - self.shape.transport) as u16);
        }
    }
}

/// Maximum number of flows that are merged at once. Bulk transfers interleave few; a further flow flushes the oldest.
const OPEN_FLOWS: usize = 8;
/// Maximum length of an IPv4 packet, and of a super-packet that Linux accepts over TUN.
const MAX_BYTES: usize = 65_535;
/// Maximum number of datagrams that Linux accepts in one UDP super-packet (UDP_MAX_SEGMENTS, 128 since 6.9).
const MAX_DATAGRAMS: u32 = 64;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// Replaces the partial checksum of a TCP segment by the final one. Panics unless [`Ip::has_tcp_header`].
pub fn complete_tcp(ip: &Ip, packet: &mut [u8]) {
    let segment = &mut packet[ip.transport..ip.total];
    write_u16(segment, 16, 0);
    let sum = checksum::checksum(ip.pseudo_sum(segment.len()), segment);
    write_u16(segment, 16, sum);
}

/// Returns true if there are no options and the checksum is valid: the merged packet gets a new IPv4 header checksum.
fn is_network_header_mergeable(ip: &Ip, packet: &[u8]) -> bool {
    ip.version == Version::V6 || (ip.transport == 20 && checksum::fold(checksum::sum(0, &packet[..20])) == 0xffff)
}

fn addresses(version: Version, packet: &[u8]) -> &[u8] {
    match version {
        Version::V4 => &packet[12..20],
        Version::V6 => &packet[8..40],
    }
}

fn tcp_seq(packet: &[u8], shape: &Shape) -> u32 {
    let at = shape.transport + 4;
    u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
}
