//! The compressible headers and their encoding: IPv4 without options or IPv6, with TCP without options or with
//! timestamps in the usual layout, or with UDP.
//!
//! ```text
//! TCP  control 1 | flags 1 | sequence 4? | ack 4? | window 2? | IPv4 id 2? | timestamp 3-4? | echo 3-4? | checksum 2
//! UDP                                                          IPv4 id 2                               | checksum 2
//! ```
//!
//! The bits of control, from the highest, are one each for the presence of sequence, ack, window and id, and two each
//! for the width of timestamp and echo (0, 3 or 4 bytes). An absent field is equal to that of the context. Window,
//! flags and checksum are sent as values, all other fields as the difference from the context, modulo their size.
//! Lengths and the IPv4 checksum are derived from the packet. The segments of one super-packet are compressed to equal
//! lengths and still leave in one GSO batch, except for one identification in 65,536, which is that of the context.
//!
//! The TCP or UDP checksum is sent unchanged: it protects the inner packet end to end.

use std::ops::Range;

use super::MAX_HEADER;
use crate::packet::checksum;
use crate::packet::ip::{TCP, UDP};
use crate::packet::{read_u16, write_u16};

/// A header compressed against a context, without the checksum, which is computed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coded {
    bytes: [u8; MAX_CODED],
    len: usize,
    checksum_at: usize,
}

impl Coded {
    /// Returns its length in bytes on the wire, with the checksum.
    pub fn len(&self) -> usize {
        self.len + 2
    }

    /// Writes it to `out`, which has a length of [`Self::len`], with the checksum of the final header.
    pub fn write(&self, header: &[u8], out: &mut [u8]) {
        out[..self.len].copy_from_slice(&self.bytes[..self.len]);
        out[self.len..].copy_from_slice(&header[self.checksum_at..self.checksum_at + 2]);
    }

    fn new(checksum_at: usize) -> Self {
        Self { bytes: [0; MAX_CODED], len: 0, checksum_at }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Control and flags have 2 bytes, the fields at their maximum length 4, 4, 2, 2, 4 and 4.
const MAX_CODED: usize = 22;

/// The headers of an earlier packet, against which others are compressed.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderContext {
    bytes: [u8; MAX_HEADER],
    layout: Layout,
}

impl HeaderContext {
    /// Returns the headers at the start of `packet` if they are compressible.
    pub fn of(packet: &[u8]) -> Option<Self> {
        let layout = Layout::of(packet)?;
        let mut bytes = [0; MAX_HEADER];
        bytes[..layout.len].copy_from_slice(&packet[..layout.len]);
        Some(Self { bytes, layout })
    }

    /// Compresses the complete `header` of a packet of `total` bytes if it matches this context.
    pub fn compress(&self, header: &[u8], total: usize) -> Option<Coded> {
        let Self { layout, .. } = self;
        if header.len() != layout.len
            || !layout.matches_context(self.header(), header)
            || !layout.are_lengths_derivable(header, total)
        {
            return None;
        }
        let mut coded = Coded::new(layout.checksum_at());
        if layout.tcp {
            compress_tcp(layout, self.header(), header, &mut coded);
        } else if layout.v4 {
            coded.put(&read_u16(header, 4).wrapping_sub(read_u16(self.header(), 4)).to_be_bytes());
        }
        Some(coded)
    }

    /// Expands the header at the start of `body`, and appends it to `out` with the payload that follows. `None` if the
    /// body is invalid.
    pub fn expand(&self, body: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let layout = &self.layout;
        let mut header = self.bytes;
        let header = &mut header[..layout.len];
        let mut reader = Reader(body);
        if layout.tcp {
            expand_tcp(layout, header, &mut reader)?;
        } else if layout.v4 {
            add_u16(header, 4, reader.read_u16()?);
        }
        write_u16(header, layout.checksum_at(), reader.read_u16()?);
        layout.finish(header, layout.len + reader.0.len())?;
        out.extend_from_slice(header);
        out.extend_from_slice(reader.0);
        Some(())
    }

    fn header(&self) -> &[u8] {
        &self.bytes[..self.layout.len]
    }
}

/// The layout of a compressible header.
#[derive(Clone, Copy, Debug)]
struct Layout {
    v4: bool,
    tcp: bool,
    timestamps: bool,
    /// The offset of the transport header.
    transport: usize,
    /// Bytes of both headers.
    len: usize,
}

impl Layout {
    /// Returns the layout of the headers at the start of `packet`; `None` if they are not compressible.
    fn of(packet: &[u8]) -> Option<Self> {
        let (v4, transport, protocol) = match packet.first()? >> 4 {
            // In a fragment the bytes of the transport header are arbitrary.
            4 if packet[0] == 0x45 && packet.len() >= 20 && read_u16(packet, 6) & 0x3fff == 0 => (true, 20, packet[9]),
            6 if packet.len() >= 40 => (false, 40, packet[6]),
            _ => return None,
        };
        let rest = &packet[transport..];
        let (tcp, timestamps, transport_len) = match protocol {
            TCP if rest.len() >= 20 && rest[12] >> 4 == 5 => (true, false, 20),
            TCP if rest.len() >= 32 && rest[12] >> 4 == 8 && rest[20..24] == TIMESTAMPS => (true, true, 32),
            UDP if rest.len() >= 8 => (false, false, 8),
            _ => return None,
        };
        Some(Self { v4, tcp, timestamps, transport, len: transport + transport_len })
    }

    /// Returns true if all constant fields are equal, so the layout is the same.
    fn matches_context(&self, context: &[u8], header: &[u8]) -> bool {
        let same = |range: Range<usize>| context[range.clone()] == header[range];
        let ip = if self.v4 { same(0..2) && same(6..10) && same(12..20) } else { same(0..4) && same(6..40) };
        let at = self.transport;
        ip && same(at..at + 4)
            && (!self.tcp || same(at + 12..at + 13) && same(at + 18..at + 20))
            && (!self.timestamps || same(at + 20..at + 24))
    }

    fn checksum_at(&self) -> usize {
        self.transport + if self.tcp { 16 } else { 6 }
    }

    /// Returns true if [`Self::finish`] reproduces lengths and IPv4 checksum, for a packet of `total` bytes.
    fn are_lengths_derivable(&self, header: &[u8], total: usize) -> bool {
        let transport_len = total - self.transport;
        let network = if self.v4 {
            usize::from(read_u16(header, 2)) == total && read_u16(header, 10) == ipv4_checksum(header)
        } else {
            usize::from(read_u16(header, 4)) == transport_len
        };
        network && (self.tcp || usize::from(read_u16(header, self.transport + 4)) == transport_len)
    }

    /// Writes lengths and IPv4 checksum.
    fn finish(&self, header: &mut [u8], total: usize) -> Option<()> {
        let total = u16::try_from(total).ok()?;
        let transport_len = total - self.transport as u16;
        if !self.tcp {
            write_u16(header, self.transport + 4, transport_len);
        }
        if self.v4 {
            write_u16(header, 2, total);
            let sum = ipv4_checksum(header);
            write_u16(header, 10, sum);
        } else {
            write_u16(header, 4, transport_len);
        }
        Some(())
    }
}

/// Returns the checksum of an IPv4 header without options; the value of its field is ignored.
fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum = (0..20).step_by(2).filter(|at| *at != 10).map(|at| u64::from(read_u16(header, at))).sum();
    !checksum::fold(sum)
}

/// NOP, NOP, and a timestamp option (RFC 7323 appendix A).
const TIMESTAMPS: [u8; 4] = [1, 1, 8, 10];

const SEQUENCE: u8 = 0x80;
const ACK: u8 = 0x40;
const WINDOW: u8 = 0x20;
const ID: u8 = 0x10;
/// The shift of the timestamp's width; that of the echo has shift 0.
const TIMESTAMP: u32 = 2;
/// Offsets of the fields of the TCP header.
const SEQUENCE_AT: usize = 4;
const ACK_AT: usize = 8;
const FLAGS_AT: usize = 13;
const WINDOW_AT: usize = 14;
const TIMESTAMP_AT: usize = 24;
const ECHO_AT: usize = 28;

fn compress_tcp(layout: &Layout, context: &[u8], header: &[u8], coded: &mut Coded) {
    let (old, new) = (&context[layout.transport..], &header[layout.transport..]);
    coded.put(&[0, new[FLAGS_AT]]);
    let mut control = 0;
    for (at, bit) in [(SEQUENCE_AT, SEQUENCE), (ACK_AT, ACK)] {
        let delta = read_u32(new, at).wrapping_sub(read_u32(old, at));
        if delta != 0 {
            control |= bit;
            coded.put(&delta.to_be_bytes());
        }
    }
    if read_u16(new, WINDOW_AT) != read_u16(old, WINDOW_AT) {
        control |= WINDOW;
        coded.put(&new[WINDOW_AT..WINDOW_AT + 2]);
    }
    if layout.v4 && read_u16(header, 4) != read_u16(context, 4) {
        control |= ID;
        coded.put(&read_u16(header, 4).wrapping_sub(read_u16(context, 4)).to_be_bytes());
    }
    if layout.timestamps {
        for (at, shift) in [(TIMESTAMP_AT, TIMESTAMP), (ECHO_AT, 0)] {
            let delta = read_u32(new, at).wrapping_sub(read_u32(old, at));
            let width: u8 = match delta {
                0 => 0,
                1..0x100_0000 => 3,
                _ => 4,
            };
            // A width of three bytes is encoded as 2, one of four bytes as 3.
            control |= width.saturating_sub(1) << shift;
            coded.put(&delta.to_be_bytes()[4 - usize::from(width)..]);
        }
    }
    coded.bytes[0] = control;
}

fn expand_tcp(layout: &Layout, header: &mut [u8], reader: &mut Reader<'_>) -> Option<()> {
    let ([control, flags], at) = (reader.take::<2>()?, layout.transport);
    header[at + FLAGS_AT] = flags;
    for (field, bit) in [(SEQUENCE_AT, SEQUENCE), (ACK_AT, ACK)] {
        if control & bit != 0 {
            add_u32(header, at + field, u32::from_be_bytes(reader.take()?));
        }
    }
    if control & WINDOW != 0 {
        write_u16(header, at + WINDOW_AT, reader.read_u16()?);
    }
    if control & ID != 0 {
        let delta = reader.read_u16().filter(|_| layout.v4)?;
        add_u16(header, 4, delta);
    }
    for (field, shift) in [(TIMESTAMP_AT, TIMESTAMP), (ECHO_AT, 0)] {
        let delta = match control >> shift & 3 {
            0 => continue,
            2 => reader.take().map(|[a, b, c]| u32::from_be_bytes([0, a, b, c])),
            3 => reader.take().map(u32::from_be_bytes),
            _ => None,
        };
        add_u32(header, at + field, delta.filter(|_| layout.timestamps)?);
    }
    Some(())
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn read_u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn add_u32(bytes: &mut [u8], at: usize, delta: u32) {
    let sum = read_u32(bytes, at).wrapping_add(delta);
    bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
}

fn add_u16(bytes: &mut [u8], at: usize, delta: u16) {
    let sum = read_u16(bytes, at).wrapping_add(delta);
    write_u16(bytes, at, sum);
}
