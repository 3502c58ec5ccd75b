//! Frames: the content of a sealed datagram, one or more of them.
//!
//! ```text
//!  0 1 2 3 4 5 6 7
//! |L|F|   type    |  L = 1: the last frame, which extends to the end of the datagram; F: a flag, used by DATA only
//! | length, 16    |  only with L = 0: bytes of the body
//! | body ...      |
//!
//! type         body                                                                          fixed
//! 1 DATA       bucket 2, flow sequence 4, inner packet; F: its headers are offered as a context  6
//! 2 ACK        path 1, largest 8, delay 4, received 4, CE count 4, ranges (see ack.rs)          21
//! 3 SKIP       bucket 2, from 4, to 4, both included, 256 numbers at most                       10
//! 4 REPAIR     span 10 bits, seed 6 bits, repair symbol                                         2
//! 5 PATH       0 challenge 8 | 1 response 8 | 2 status: path 1, status 1, order 4                9, 7
//! 6 ADDR       0 add: id 1, port 2, address 4 or 16 | 1 remove: id 1                            2
//! 7 PROBE      padding of any content; alone and with 1000 bytes or more it requests an ACK at once  0
//! 8 CONTROL    type 1, length 2, value, repeated; 1 rekey, 2 rekeyed (see rekey.rs), 3 test,     0
//!              4 tested (see path_test.rs), 5 list, 6 taken (see server_list.rs)
//! 9 CLOSE      code 2, text in UTF-8                                                             2
//! 10 COMPRESSED  bucket 2, flow sequence 4, reference 1, compressed headers and payload          7
//! 11 CONTEXT   0 known: bucket 2, flow sequence 4 | 1 unknown: bucket 2, reference 1             7, 4
//! 12 PARTIAL   as DATA, but the packet's TCP checksum is the sum of its pseudo-header alone      6
//! ```
//!
//! The length of a frame does not depend on its type, so an unknown type, a flag on a type without one and an unknown
//! kind of PATH or ADDR are skipped, which allows different versions to interoperate. A body of the wrong length is a
//! [`MalformedFrame`] and ends the datagram: only a defective peer can have sealed it. Numbers are big-endian.
//!
//! A datagram with one inner packet has an overhead of 7 bytes here and 28 outside the seal ([`crate::wire::native`]).
//! In a long flow most of the packet's own headers are compressed ([`crate::header_compression`]).

mod ack;
mod busy;
mod path_test;
mod read;
mod rekey;
mod server_list;
mod write;

use std::net::IpAddr;

pub use ack::{ACK_RANGES_LEN, AckFrame, AckRanges, MAX_ACK_RANGES};
pub use busy::BUSY_BODY;
pub use path_test::{LoadedPath, PathTestMessage};
pub use read::{Frames, MalformedFrame, Tlvs};
pub use rekey::{RekeyMessage, RekeyShare, SHARE};
pub use server_list::ServerListMessage;
pub use write::{Full, Writer};

use super::native::PathTag;
use crate::header_compression::Reference;

/// One frame, borrowed from its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// An inner packet.
    Data(DataFrame<'a>),
    /// Acknowledges datagrams of a path.
    Ack(AckFrame<'a>),
    /// Announces inner packets that will not be sent again.
    Skip(SkipFrame),
    /// Forward error correction.
    Repair(RepairFrame<'a>),
    /// Validates a path, or changes its status.
    Path(PathFrame),
    /// Adds or removes an address.
    Addr(AddrFrame),
    /// Padding, with its length in bytes: fills a datagram to a probed size, or to the segment size of its batch.
    Probe(usize),
    /// Values by type: the messages of a rekey ([`RekeyMessage`]), of a path test ([`PathTestMessage`]) and about lists
    /// of servers ([`ServerListMessage`]); other types are skipped.
    Control(Tlvs<'a>),
    /// Ends the association.
    Close(CloseFrame<'a>),
    /// An inner packet with headers compressed against a context.
    Compressed(CompressedFrame<'a>),
    /// Confirms a context, or reports it as unknown.
    Context(ContextFrame),
}

/// An inner packet with its position in its flow bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFrame<'a> {
    /// All fields before the packet.
    pub header: DataHeader,
    /// The inner packet.
    pub packet: &'a [u8],
}

/// The header of a DATA frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The bucket of the packet.
    pub bucket: u16,
    /// The low 32 bits of its number in the bucket; [`crate::crypto::replay::expand`] restores the others.
    pub sequence: u32,
    /// The form of the packet.
    pub form: DataForm,
}

/// The forms of a packet that is not compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataForm {
    /// A complete packet.
    Complete,
    /// A complete packet whose headers are offered as a context; see [`crate::header_compression`].
    OffersContext,
    /// A packet with payload whose TCP checksum is still the sum of the pseudo-header, as the kernel left it to the
    /// sender. The seal protects the packet on the way, and the receiver's kernel completes the checksum where the
    /// packet leaves the host, if it does: neither end reads the payload for it. Sent to a peer that announces it.
    PartialChecksum,
}

impl DataHeader {
    /// Returns the bytes before a packet that extends to the end of its datagram, the common case.
    pub fn encode_last(&self) -> [u8; DATA_HEADER] {
        let ([a, b], [s, t, u, v]) = (self.bucket.to_be_bytes(), self.sequence.to_be_bytes());
        [self.kind() | LAST, a, b, s, t, u, v]
    }

    fn kind(&self) -> u8 {
        match self.form {
            DataForm::Complete => DATA,
            DataForm::OffersContext => DATA | FLAG,
            DataForm::PartialChecksum => PARTIAL,
        }
    }
}

/// Bytes of a DATA frame before its packet, if it is the last frame of its datagram.
pub const DATA_HEADER: usize = 7;

/// An inner packet whose headers are encoded relative to a context; see [`crate::header_compression`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedFrame<'a> {
    /// As in [`DataHeader`].
    pub bucket: u16,
    /// As in [`DataHeader`].
    pub sequence: u32,
    /// The context.
    pub reference: Reference,
    /// The compressed headers, and the payload.
    pub rest: &'a [u8],
}

impl CompressedFrame<'_> {
    /// Returns the bytes before `rest` if it extends to the end of the datagram.
    pub fn encode_last(&self) -> [u8; COMPRESSED_HEADER] {
        let ([a, b], [s, t, u, v]) = (self.bucket.to_be_bytes(), self.sequence.to_be_bytes());
        [COMPRESSED | LAST, a, b, s, t, u, v, self.reference]
    }
}

/// Bytes of a COMPRESSED frame before the compressed headers, if it is the last frame of its datagram.
pub const COMPRESSED_HEADER: usize = 8;

/// Feedback of the decompressor about a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextFrame {
    /// The receiver has stored the context that the packet with this number offered.
    Known {
        /// The bucket.
        bucket: u16,
        /// The low 32 bits of the number.
        sequence: u32,
    },
    /// The receiver does not have this context.
    Unknown {
        /// The bucket.
        bucket: u16,
        /// The reference that could not be resolved.
        reference: Reference,
    },
}

/// Numbers of a flow bucket that will not be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkipFrame {
    /// The bucket.
    pub bucket: u16,
    /// The low 32 bits of the first number.
    pub from: u32,
    /// The low 32 bits of the last number, which is included.
    pub to: u32,
}

/// A repair symbol for datagrams of the path on which it is sent; see [`crate::repair::fec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairFrame<'a> {
    /// The distance from the first number of the window to that of its own datagram, below 1024.
    pub span: u16,
    /// The seed of the coefficients, below 64.
    pub seed: u8,
    /// The symbol.
    pub symbol: &'a [u8],
}

/// Bytes of a REPAIR frame before its symbol, if it is the last frame of its datagram.
pub const REPAIR_HEADER: usize = 3;

/// A message about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFrame {
    /// The receiver returns these bytes on the same path (RFC 9000 section 8.2).
    Challenge([u8; 8]),
    /// The bytes of a challenge.
    Response([u8; 8]),
    /// Sets the use of one of the sender's paths.
    Status {
        /// The path, in the sender's numbering.
        path: PathTag,
        /// Its use.
        status: PathUsage,
        /// Increases with every status of a path, so that a reordered one is detected.
        order: u32,
    },
}

/// The use of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUsage {
    /// Carries traffic.
    Available,
    /// Carries traffic while no available path is up.
    Standby,
    /// Carries no new traffic: it is about to be removed.
    Draining,
    /// Carries traffic while the available paths are full.
    Overflow,
    /// Carries traffic while no other path is up: the session is in reserve for that with another server.
    Reserve,
}

/// A message about an address of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddrFrame {
    /// The sender is reachable at this address as well.
    Add {
        /// The sender's id of the address.
        id: u8,
        /// The address.
        ip: IpAddr,
        /// The UDP port.
        port: u16,
    },
    /// The sender is no longer reachable at this address.
    Remove {
        /// The sender's id of the address.
        id: u8,
    },
}

/// The reason why the sender ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseFrame<'a> {
    /// The machine-readable reason.
    pub code: u16,
    /// The human-readable reason; it must be escaped before printing.
    pub text: &'a str,
}

impl CloseFrame<'_> {
    /// The sender stops, or serves none of its peers any more.
    pub const STOPPING: u16 = 1;
    /// The sender has removed the receiver from its peers.
    pub const REMOVED: u16 = 2;
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
const PARTIAL: u8 = 12;

const CHALLENGE: u8 = 0;
const RESPONSE: u8 = 1;
const STATUS: u8 = 2;

const KNOWN: u8 = 0;
const UNKNOWN: u8 = 1;

const ADD: u8 = 0;
const REMOVE: u8 = 1;

#[cfg(test)]
mod tests;
