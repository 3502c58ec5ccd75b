//! The sender of one path: holds references to the packets sent recently, and combines them into repair symbols.

use std::collections::VecDeque;

use super::{FLOW_SEQ_LEN, FlowSeq, MAX_SOURCES, MAX_SPAN, coefficient, encode_flow_seq, field};
use crate::id::PathSeq;
use crate::queue::InnerPacket;

/// Makes repair symbols.
#[derive(Debug, Default)]
pub struct Encoder {
    window: VecDeque<Source>,
    /// Sources since the last repair symbol.
    uncovered: usize,
    seed: u8,
    /// Buffer for a packet before it is added to the symbol.
    scratch: Vec<u8>,
    symbol: Vec<u8>,
}

#[derive(Debug)]
struct Source {
    number: u64,
    flow_seq: FlowSeq,
    packet: InnerPacket,
}

/// A repair symbol to be sent as the next datagram of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairSymbol<'a> {
    /// The distance from the first number of the window to its own.
    pub span: u16,
    /// The seed of the coefficients.
    pub seed: u8,
    /// The combination.
    pub bytes: &'a [u8],
}

impl Encoder {
    /// Stores a packet that was sent in the datagram with this number.
    pub fn on_source(&mut self, number: PathSeq, flow_seq: FlowSeq, packet: InnerPacket) {
        if self.window.len() == MAX_SOURCES {
            self.window.pop_front();
        }
        self.window.push_back(Source { number: number.0, flow_seq, packet });
        self.uncovered += 1;
    }

    /// Returns the number of packets that no repair symbol covers.
    pub fn uncovered(&self) -> usize {
        self.uncovered
    }

    /// Combines the last `sources` packets, to be sent in the datagram with the number `own`.
    pub fn symbol(&mut self, own: PathSeq, sources: usize) -> Option<RepairSymbol<'_>> {
        while self.window.front().is_some_and(|source| own.0 - source.number > MAX_SPAN) {
            self.window.pop_front();
        }
        if self.window.is_empty() {
            self.uncovered = 0;
        }
        let Self { window, uncovered, seed, scratch, symbol } = self;
        let covered = || window.iter().skip(window.len().saturating_sub(sources));
        let span = own.0 - covered().next()?.number;
        let longest = covered().map(|source| source.packet.len()).max().unwrap_or(0);
        (*uncovered, *seed) = (0, (*seed + 1) % SEEDS);
        symbol.clear();
        symbol.resize(FLOW_SEQ_LEN + longest, 0);
        for source in covered() {
            let factor = coefficient(*seed, source.number);
            scratch.resize(source.packet.len(), 0);
            source.packet.write(scratch);
            field::add_multiple(symbol, factor, &encode_flow_seq(source.flow_seq));
            field::add_multiple(&mut symbol[FLOW_SEQ_LEN..], factor, scratch);
        }
        Some(RepairSymbol { span: span as u16, seed: *seed, bytes: symbol })
    }

    /// Drops all packets: nothing is protected.
    pub fn clear(&mut self) {
        self.window.clear();
        self.uncovered = 0;
    }
}

/// The number of seeds that the frame can encode.
const SEEDS: u8 = 64;
