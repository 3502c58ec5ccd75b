//! The sender of one path: remembers, by reference, what it sent lately, and combines it into repair symbols.

use std::collections::VecDeque;

use super::{FlowSeq, MAX_SOURCES, MAX_SPAN, PLACE, coefficient, encode_place, field};
use crate::path::PathSeq;
use crate::queue::InnerPacket;

/// Makes repair symbols.
#[derive(Debug, Default)]
pub struct Encoder {
    window: VecDeque<Source>,
    /// Sources since the last repair symbol.
    fresh: usize,
    seed: u8,
    /// Where a packet is written before it is added.
    scratch: Vec<u8>,
    symbol: Vec<u8>,
}

#[derive(Debug)]
struct Source {
    number: u64,
    place: FlowSeq,
    packet: InnerPacket,
}

/// A repair symbol that is ready to be sent as the next datagram of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairSymbol<'a> {
    /// How many numbers before its own the window begins.
    pub span: u16,
    /// What the coefficients are generated from.
    pub seed: u8,
    /// The combination.
    pub bytes: &'a [u8],
}

impl Encoder {
    /// Remembers a packet that was sent in the datagram with this number.
    pub fn on_source(&mut self, number: PathSeq, place: FlowSeq, packet: InnerPacket) {
        if self.window.len() == MAX_SOURCES {
            self.window.pop_front();
        }
        self.window.push_back(Source { number: number.0, place, packet });
        self.fresh += 1;
    }

    /// How many packets no repair symbol covers yet.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// Combines the last `sources` packets, to be sent in the datagram with the number `own`.
    pub fn symbol(&mut self, own: PathSeq, sources: usize) -> Option<RepairSymbol<'_>> {
        while self.window.front().is_some_and(|source| own.0 - source.number > MAX_SPAN) {
            self.window.pop_front();
        }
        if self.window.is_empty() {
            self.fresh = 0;
        }
        let Self { window, fresh, seed, scratch, symbol } = self;
        let covered = || window.iter().skip(window.len().saturating_sub(sources));
        let span = own.0 - covered().next()?.number;
        let longest = covered().map(|source| source.packet.len()).max().unwrap_or(0);
        (*fresh, *seed) = (0, (*seed + 1) % SEEDS);
        symbol.clear();
        symbol.resize(PLACE + longest, 0);
        for source in covered() {
            let factor = coefficient(*seed, source.number);
            scratch.resize(source.packet.len(), 0);
            source.packet.write(scratch);
            field::add_multiple(symbol, factor, &encode_place(source.place));
            field::add_multiple(&mut symbol[PLACE..], factor, scratch);
        }
        Some(RepairSymbol { span: span as u16, seed: *seed, bytes: symbol })
    }

    /// Forgets everything: nothing is protected any more.
    pub fn clear(&mut self) {
        self.window.clear();
        self.fresh = 0;
    }
}

/// As many as the frame has bits for.
const SEEDS: u8 = 64;
