//! Which headers can be compressed, and how: IPv4 without options or IPv6, with TCP, its timestamps in the usual place or no options at
//! all, or with UDP.
//!
//! ```text
//! TCP     control 1 | flags 1 | sequence 4? | ack 4? | window 2? | IPv4 id 2? | timestamp 3 or 4? | echo 3 or 4? | checksum 2
//! UDP                                                             IPv4 id 2                                      | checksum 2
//! ```
//!
//! Control says, from its highest bit down, whether sequence, ack, window and id follow (one bit each) and how long the timestamp and
//! its echo are (two bits each: 0, 3 or 4 bytes). What does not follow is as in the context. Window, flags and checksum are the values themselves, all else is
//! the difference from the context's, modulo its size. Lengths and the IPv4 checksum follow from the packet. The segments that were cut from one
//! super-packet come out equally long, but for one identification in 65,536 that is the context's own, so that they still leave in one send.
//!
//! The TCP or UDP checksum is carried as it is: it is the flow's own, end to end, and says whether a packet was whole before it came here.

use std::ops::Range;

use super::LONGEST;
use crate::packet::checksum;
use crate::packet::ip::{TCP, UDP};
use crate::packet::{put_word, word};

/// A header without what its context says: everything but the checksum, which is the last to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coded {
    bytes: [u8; MOST],
    len: usize,
    checksum_at: usize,
}

impl Coded {
    /// Bytes on the wire, with the checksum.
    pub fn len(&self) -> usize {
        self.len + 2
    }

    /// Writes it to `out`, which is [`Self::len`] bytes long, with the checksum of the finished header.
    pub fn write(&self, header: &[u8], out: &mut [u8]) {
        out[..self.len].copy_from_slice(&self.bytes[..self.len]);
        out[self.len..].copy_from_slice(&header[self.checksum_at..self.checksum_at + 2]);
    }

    fn new(checksum_at: usize) -> Self {
        Self { bytes: [0; MOST], len: 0, checksum_at }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Control, flags, and every field at its longest.
const MOST: usize = 2 + 4 + 4 + 2 + 2 + 4 + 4;

/// Headers that others can be compressed against: those of an earlier packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderContext {
    bytes: [u8; LONGEST],
    layout: Layout,
}

impl HeaderContext {
    /// The headers at the beginning of `packet`, if others can be compressed against them.
    pub fn of(packet: &[u8]) -> Option<Self> {
        let layout = Layout::of(packet)?;
        let mut bytes = [0; LONGEST];
        bytes[..layout.len].copy_from_slice(&packet[..layout.len]);
        Some(Self { bytes, layout })
    }

    /// Compresses the whole `header` of a packet of `total` bytes, if this is its context.
    pub fn compress(&self, header: &[u8], total: usize) -> Option<Coded> {
        let Self { layout, .. } = self;
        if header.len() != layout.len || !layout.agree(self.header(), header) || !layout.is_regular(header, total) {
            return None;
        }
        let mut coded = Coded::new(layout.checksum_at());
        if layout.tcp {
            compress_tcp(layout, self.header(), header, &mut coded);
        } else if layout.v4 {
            coded.put(&word(header, 4).wrapping_sub(word(self.header(), 4)).to_be_bytes());
        }
        Some(coded)
    }

    /// Puts the header back that was compressed to what `body` begins with, and appends it to `out` with the payload that follows. `None` when
    /// the body is not what was compressed.
    pub fn expand(&self, body: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let layout = &self.layout;
        let mut header = self.bytes;
        let header = &mut header[..layout.len];
        let mut reader = Reader(body);
        if layout.tcp {
            expand_tcp(layout, header, &mut reader)?;
        } else if layout.v4 {
            add_word(header, 4, reader.word()?);
        }
        put_word(header, layout.checksum_at(), reader.word()?);
        layout.finish(header, layout.len + reader.0.len())?;
        out.extend_from_slice(header);
        out.extend_from_slice(reader.0);
        Some(())
    }

    fn header(&self) -> &[u8] {
        &self.bytes[..self.layout.len]
    }
}

/// Where things are in a header that can be compressed.
#[derive(Clone, Copy, Debug)]
struct Layout {
    v4: bool,
    tcp: bool,
    timestamps: bool,
    /// Where the transport header begins.
    transport: usize,
    /// Bytes of both headers.
    len: usize,
}

impl Layout {
    /// That of the headers at the beginning of `packet`; none where they cannot be compressed.
    fn of(packet: &[u8]) -> Option<Self> {
        let (v4, transport, protocol) = match packet.first()? >> 4 {
            // More fragments, or not the first one: what follows may be anything.
            4 if packet[0] == 0x45 && packet.len() >= 20 && word(packet, 6) & 0x3fff == 0 => (true, 20, packet[9]),
            6 if packet.len() >= 40 => (false, 40, packet[6]),
            _ => return None,
        };
        let rest = &packet[transport..];
        let (tcp, timestamps, own) = match protocol {
            TCP if rest.len() >= 20 && rest[12] >> 4 == 5 => (true, false, 20),
            TCP if rest.len() >= 32 && rest[12] >> 4 == 8 && rest[20..24] == TIMESTAMPS => (true, true, 32),
            UDP if rest.len() >= 8 => (false, false, 8),
            _ => return None,
        };
        Some(Self { v4, tcp, timestamps, transport, len: transport + own })
    }

    /// Whether nothing differs but what may, so that the layout is the same.
    fn agree(&self, context: &[u8], header: &[u8]) -> bool {
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

    /// Whether lengths and IPv4 checksum are what [`Self::finish`] will put there, for a packet of `total` bytes.
    fn is_regular(&self, header: &[u8], total: usize) -> bool {
        let own = total - self.transport;
        let network = if self.v4 {
            usize::from(word(header, 2)) == total && word(header, 10) == ipv4_checksum(header)
        } else {
            usize::from(word(header, 4)) == own
        };
        network && (self.tcp || usize::from(word(header, self.transport + 4)) == own)
    }

    /// Writes lengths and IPv4 checksum.
    fn finish(&self, header: &mut [u8], total: usize) -> Option<()> {
        let total = u16::try_from(total).ok()?;
        let own = total - self.transport as u16;
        if !self.tcp {
            put_word(header, self.transport + 4, own);
        }
        if self.v4 {
            put_word(header, 2, total);
            let sum = ipv4_checksum(header);
            put_word(header, 10, sum);
        } else {
            put_word(header, 4, own);
        }
        Some(())
    }
}

/// The checksum of an IPv4 header without options, whatever its field holds.
fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum = (0..20).step_by(2).filter(|at| *at != 10).map(|at| u64::from(word(header, at))).sum();
    !checksum::fold(sum)
}

/// NOP, NOP, and a timestamp option (RFC 7323 appendix A).
const TIMESTAMPS: [u8; 4] = [1, 1, 8, 10];

const SEQUENCE: u8 = 0x80;
const ACK: u8 = 0x40;
const WINDOW: u8 = 0x20;
const ID: u8 = 0x10;
/// How far up the width of the timestamp stands; that of the echo stands below it.
const TIMESTAMP: u32 = 2;
/// Where TCP keeps its fields.
const SEQUENCE_AT: usize = 4;
const ACK_AT: usize = 8;
const FLAGS_AT: usize = 13;
const WINDOW_AT: usize = 14;
const TIMESTAMP_AT: usize = 24;
const ECHO_AT: usize = 28;

fn compress_tcp(layout: &Layout, with: &[u8], header: &[u8], coded: &mut Coded) {
    let (old, new) = (&with[layout.transport..], &header[layout.transport..]);
    coded.put(&[0, new[FLAGS_AT]]);
    let mut control = 0;
    for (at, bit) in [(SEQUENCE_AT, SEQUENCE), (ACK_AT, ACK)] {
        let grown = number(new, at).wrapping_sub(number(old, at));
        if grown != 0 {
            control |= bit;
            coded.put(&grown.to_be_bytes());
        }
    }
    if word(new, WINDOW_AT) != word(old, WINDOW_AT) {
        control |= WINDOW;
        coded.put(&new[WINDOW_AT..WINDOW_AT + 2]);
    }
    if layout.v4 && word(header, 4) != word(with, 4) {
        control |= ID;
        coded.put(&word(header, 4).wrapping_sub(word(with, 4)).to_be_bytes());
    }
    if layout.timestamps {
        for (at, shift) in [(TIMESTAMP_AT, TIMESTAMP), (ECHO_AT, 0)] {
            let grown = number(new, at).wrapping_sub(number(old, at));
            let width: u8 = match grown {
                0 => 0,
                1..0x100_0000 => 3,
                _ => 4,
            };
            // Three bytes are written as 2, four as 3.
            control |= width.saturating_sub(1) << shift;
            coded.put(&grown.to_be_bytes()[4 - usize::from(width)..]);
        }
    }
    coded.bytes[0] = control;
}

fn expand_tcp(layout: &Layout, header: &mut [u8], reader: &mut Reader<'_>) -> Option<()> {
    let ([control, flags], at) = (reader.take::<2>()?, layout.transport);
    header[at + FLAGS_AT] = flags;
    for (field, bit) in [(SEQUENCE_AT, SEQUENCE), (ACK_AT, ACK)] {
        if control & bit != 0 {
            add_number(header, at + field, u32::from_be_bytes(reader.take()?));
        }
    }
    if control & WINDOW != 0 {
        put_word(header, at + WINDOW_AT, reader.word()?);
    }
    if control & ID != 0 {
        let grown = reader.word().filter(|_| layout.v4)?;
        add_word(header, 4, grown);
    }
    for (field, shift) in [(TIMESTAMP_AT, TIMESTAMP), (ECHO_AT, 0)] {
        let grown = match control >> shift & 3 {
            0 => continue,
            2 => reader.take().map(|[a, b, c]| u32::from_be_bytes([0, a, b, c])),
            3 => reader.take().map(u32::from_be_bytes),
            _ => None,
        };
        add_number(header, at + field, grown.filter(|_| layout.timestamps)?);
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

    fn word(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn add_number(bytes: &mut [u8], at: usize, grown: u32) {
    let sum = number(bytes, at).wrapping_add(grown);
    bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
}

fn add_word(bytes: &mut [u8], at: usize, grown: u16) {
    let sum = word(bytes, at).wrapping_add(grown);
    put_word(bytes, at, sum);
}
