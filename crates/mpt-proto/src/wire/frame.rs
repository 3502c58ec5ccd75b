//! Frames: what a sealed datagram carries, one or more of them.
//!
//! ```text
//!  0 1 2 3 4 5 6 7
//! |L|F|   type    |  L = 1: the last frame, which runs to the end of the datagram; F: a flag, which only DATA has
//! | length, 16    |  only with L = 0: bytes of the body
//! | body ...      |
//!
//! type         body                                                                          fixed
//! 1 DATA       bucket 2, flow sequence 4, inner packet; F: its headers are offered as a context  6
//! 2 ACK        path 1, largest 8, delay 4, received 4, CE count 4, runs (see ack.rs)            21
//! 3 SKIP       bucket 2, from 4, to 4, both included, 256 numbers at most                       10
//! 4 REPAIR     span 10 bits, seed 6 bits, repair symbol                                         2
//! 5 PATH       0 challenge 8 | 1 response 8 | 2 status: path 1, status 1, order 4                9, 7
//! 6 ADDR       0 add: id 1, port 2, address 4 or 16 | 1 remove: id 1                            2
//! 7 PROBE      padding, whatever it is; alone and from 1000 bytes on it asks for an ACK at once   0
//! 8 CONTROL    type 1, length 2, value, as often as needed                                       0
//! 9 CLOSE      code 2, text in UTF-8                                                             2
//! 10 COMPRESSED  bucket 2, flow sequence 4, reference 1, headers and payload (see headers)        7
//! 11 CONTEXT   0 known: bucket 2, flow sequence 4 | 1 unknown: bucket 2, reference 1             7, 4
//! ```
//!
//! Every frame has its length before its meaning, so an unknown type, a flag on a type that has none and an unknown kind of
//! PATH or ADDR are skipped: versions can meet. A body too short or too long for what it must hold is [`Malformed`] and ends
//! the datagram, for only a broken peer can have sealed it. Numbers are big-endian.
//!
//! A datagram with nothing but an inner packet costs 7 bytes here and 28 outside the seal ([`crate::wire::native`]). Of a packet of a flow that
//! goes on, most of its own headers stay away ([`crate::headers`]).

mod ack;
mod read;
mod write;

use std::net::IpAddr;

pub use ack::{AckFrame, AckRanges, MAX_RUNS, RUNS_LEN};
pub use read::{Frames, MalformedFrame, Tlvs};
pub use write::{Full, Writer};

use super::native::PathTag;
use crate::header_compression::Reference;

/// One frame, borrowed from the datagram it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// An inner packet.
    Data(DataFrame<'a>),
    /// What has arrived on a path.
    Ack(AckFrame<'a>),
    /// Inner packets that will not come any more.
    Skip(SkipFrame),
    /// Forward error correction.
    Repair(RepairFrame<'a>),
    /// About a path.
    Path(PathFrame),
    /// About an address.
    Addr(AddrFrame),
    /// Padding, with its length in bytes: fills a datagram to a size that is to be tried or that its batch has.
    Probe(usize),
    /// Configuration and capabilities.
    Control(Tlvs<'a>),
    /// The sender ends the association.
    Close(CloseFrame<'a>),
    /// An inner packet without what its context says.
    Compressed(CompressedFrame<'a>),
    /// About a context.
    Context(ContextFrame),
}

/// An inner packet with its place in the order of its flow bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFrame<'a> {
    /// Everything but the packet.
    pub header: DataHeader,
    /// The inner packet.
    pub packet: &'a [u8],
}

/// A DATA frame without its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The bucket whose order the packet belongs to.
    pub bucket: u16,
    /// The low 32 bits of its number there; [`crate::crypto::replay::expand`] finds the others.
    pub sequence: u32,
    /// Its headers are offered as a context; see [`crate::headers`].
    pub offers: bool,
}

impl DataHeader {
    /// The bytes in front of a packet that runs to the end of its datagram, which is how most are sent.
    pub fn encode_last(&self) -> [u8; DATA_HEADER] {
        let ([a, b], [s, t, u, v]) = (self.bucket.to_be_bytes(), self.sequence.to_be_bytes());
        [self.kind() | LAST, a, b, s, t, u, v]
    }

    fn kind(&self) -> u8 {
        if self.offers { DATA | FLAG } else { DATA }
    }
}

/// Bytes of a DATA frame in front of its packet when it is the last of its datagram.
pub const DATA_HEADER: usize = 7;

/// An inner packet whose headers are told by their difference from a context; see [`crate::headers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedFrame<'a> {
    /// As in [`DataHeader`].
    pub bucket: u16,
    /// As in [`DataHeader`].
    pub sequence: u32,
    /// The context.
    pub reference: Reference,
    /// What is left of the headers, and the payload.
    pub rest: &'a [u8],
}

impl CompressedFrame<'_> {
    /// The bytes in front of `rest` when that runs to the end of the datagram.
    pub fn encode_last(&self) -> [u8; COMPRESSED_HEADER] {
        let ([a, b], [s, t, u, v]) = (self.bucket.to_be_bytes(), self.sequence.to_be_bytes());
        [COMPRESSED | LAST, a, b, s, t, u, v, self.reference]
    }
}

/// Bytes of a COMPRESSED frame in front of what is left of the headers when it is the last of its datagram.
pub const COMPRESSED_HEADER: usize = 8;

/// A word about a context, from the end that would need it to read what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextFrame {
    /// What the packet with this number offered is there.
    Known {
        /// The bucket.
        bucket: u16,
        /// The low 32 bits of the number.
        sequence: u32,
    },
    /// There is no such context.
    Unknown {
        /// The bucket.
        bucket: u16,
        /// What something referred to.
        reference: Reference,
    },
}

/// Numbers of a flow bucket that the sender has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkipFrame {
    /// The bucket.
    pub bucket: u16,
    /// The low 32 bits of the first number.
    pub from: u32,
    /// The low 32 bits of the last number, which is included.
    pub to: u32,
}

/// A repair symbol for the datagrams of the path that it comes on; see [`crate::repair::fec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairFrame<'a> {
    /// How many numbers before that of its own datagram the window begins, below 1024.
    pub span: u16,
    /// What the coefficients are generated from, below 64.
    pub seed: u8,
    /// The symbol.
    pub symbol: &'a [u8],
}

/// Bytes of a REPAIR frame in front of its symbol when it is the last of its datagram.
pub const REPAIR_HEADER: usize = 3;

/// A word about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFrame {
    /// Send these bytes back on the path on which they came (RFC 9000 section 8.2).
    Challenge([u8; 8]),
    /// The bytes of a challenge.
    Response([u8; 8]),
    /// What the sender wants one of its paths to be used for.
    Status {
        /// The path, as the sender names it.
        path: PathTag,
        /// What for.
        status: PathUsage,
        /// Grows with every word about a path, so that a late one is known to be late.
        order: u32,
    },
}

/// What a path is to be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUsage {
    /// Traffic.
    Available,
    /// Traffic when no available path lives.
    Standby,
    /// Nothing new: it is about to go.
    Draining,
}

/// A word about an address of the sender's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddrFrame {
    /// The sender can also be reached here.
    Add {
        /// The sender's name for the address.
        id: u8,
        /// The address.
        ip: IpAddr,
        /// The UDP port.
        port: u16,
    },
    /// The sender can be reached there no longer.
    Remove {
        /// The sender's name for the address.
        id: u8,
    },
}

/// Why the sender ends the association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseFrame<'a> {
    /// The reason for programs.
    pub code: u16,
    /// The reason for people; whoever prints it escapes it.
    pub text: &'a str,
}

const LAST: u8 = 0x80;
const FLAG: u8 = 0x40;

const DATA: u8 = 1;
const ACK: u8 = 2;
const SKIP: u8 = 3;
const REPAIR: u8 = 4;
const PATH: u8 = 5;
const ADDR: u8 = 6;
const PROBE: u8 = 7;
const CONTROL: u8 = 8;
const CLOSE: u8 = 9;
const COMPRESSED: u8 = 10;
const CONTEXT: u8 = 11;

const CHALLENGE: u8 = 0;
const RESPONSE: u8 = 1;
const STATUS: u8 = 2;

const KNOWN: u8 = 0;
const UNKNOWN: u8 = 1;

const ADD: u8 = 0;
const REMOVE: u8 = 1;

#[cfg(test)]
mod tests;
