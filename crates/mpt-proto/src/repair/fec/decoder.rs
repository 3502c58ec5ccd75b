//! The receiver of one path: stores recent datagrams, and recovers missing ones from repair symbols.
//!
//! Each repair symbol is an equation in the missing symbols. Each equation has a pivot, a missing symbol that no other
//! equation contains (Gauss-Jordan elimination); an equation with its pivot alone is solved. A late datagram is removed
//! from the equations when it arrives. On a path that reorders, a hundred datagrams may be late when a repair symbol
//! arrives: it waits until few symbols of its window are missing, because removing one from an equation costs as much
//! as adding it.

use std::collections::VecDeque;
use std::ops::Range;

use super::{FLOW_SEQ_LEN, FlowSeq, MAX_SPAN, coefficient, decode_flow_seq, encode_flow_seq, field};
use crate::id::PathSeq;
use crate::time::Time;
use crate::tuning::repair::fec::IDLE_AFTER;

/// Recovers missing datagrams.
#[derive(Debug)]
pub struct Decoder {
    /// The number of the first entry of `ring`.
    base: u64,
    /// By number: unknown, known to carry no data (empty), or the symbol.
    ring: VecDeque<Option<Vec<u8>>>,
    equations: Vec<Equation>,
    /// Repair symbols with too many missing symbols in their window, oldest first.
    waiting: VecDeque<PendingSymbol>,
    spare: Vec<Vec<u8>>,
    /// The longest symbol in bytes.
    max_symbol: usize,
    used: Time,
}

#[derive(Debug)]
struct Equation {
    /// Number and coefficient of each missing symbol; the first one is the pivot, whose coefficient is 1.
    missing: Vec<(u64, u8)>,
    symbol: Vec<u8>,
}

/// A repair symbol that is not yet an equation.
#[derive(Debug)]
struct PendingSymbol {
    /// The numbers that it covers.
    window: Range<u64>,
    seed: u8,
    symbol: Vec<u8>,
    /// The number of missing symbols in the window.
    missing: usize,
}

/// The content of a lost DATA frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Bucket and low bits of the number: see [`super::widen`].
    pub flow_seq: FlowSeq,
    /// The packet, followed by zeros.
    pub packet: Vec<u8>,
}

impl Decoder {
    /// Starts with the datagram of this number. A packet longer than `max_packet` is not recovered.
    pub fn new(now: Time, number: PathSeq, max_packet: usize) -> Self {
        let (ring, waiting) = (VecDeque::new(), VecDeque::new());
        let max_symbol = FLOW_SEQ_LEN + max_packet;
        Self { base: number.0, ring, equations: Vec::new(), waiting, spare: Vec::new(), max_symbol, used: now }
    }

    /// Returns the most bytes that a decoder of packets of up to `max_packet` bytes allocates.
    pub const fn max_bytes(max_packet: usize) -> usize {
        // A list may reserve twice what it needs, and a buffer that is used again may have twice its old length.
        let symbols = CAPACITY as usize + MAX_SPARE + 2 * (MAX_EQUATIONS + MAX_WAITING);
        let lists = 2 * CAPACITY as usize * size_of::<Option<Vec<u8>>>() + 2 * MAX_WAITING * size_of::<PendingSymbol>();
        let missing = 2 * MAX_EQUATIONS * MAX_EQUATIONS * MAX_MISSING * size_of::<(u64, u8)>();
        symbols * (FLOW_SEQ_LEN + max_packet) + lists + missing
    }

    /// Returns true if the peer has stopped sending repair symbols.
    pub fn is_idle(&self, now: Time) -> bool {
        now.since(self.used) > IDLE_AFTER
    }

    /// Handles a datagram, with the content of its DATA frame if it has one. Returns the packets recovered with it.
    pub fn on_datagram(&mut self, number: PathSeq, data: Option<(FlowSeq, &[u8])>) -> Vec<Recovered> {
        let too_long = data.is_some_and(|(_, packet)| FLOW_SEQ_LEN + packet.len() > self.max_symbol);
        if !self.extend_ring(number.0) || self.is_known(number.0) || too_long {
            return Vec::new();
        }
        let mut symbol = self.spare.pop().unwrap_or_default();
        symbol.clear();
        if let Some((flow_seq, packet)) = data {
            symbol.reserve_exact(FLOW_SEQ_LEN + packet.len());
            symbol.extend_from_slice(&encode_flow_seq(flow_seq));
            symbol.extend_from_slice(packet);
        }
        self.set_known(number.0, symbol);
        self.solve()
    }

    /// Handles a repair symbol in the datagram with this number. Returns the packets recovered with it.
    pub fn on_repair(&mut self, now: Time, own: PathSeq, span: u16, seed: u8, symbol: &[u8]) -> Vec<Recovered> {
        self.used = now;
        let first = own.0.checked_sub(u64::from(span)).filter(|first| *first >= self.base);
        let is_valid = u64::from(span) <= MAX_SPAN && (FLOW_SEQ_LEN + 1..=self.max_symbol).contains(&symbol.len());
        let Some(first) = first.filter(|_| is_valid) else {
            return Vec::new();
        };
        let missing = (first..own.0).filter(|number| !self.is_known(*number)).count();
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(PendingSymbol { window: first..own.0, seed, symbol: symbol.to_vec(), missing });
        self.solve()
    }

    /// Makes equations of the waiting repair symbols with few enough missing symbols.
    fn form_equations(&mut self) {
        while let Some(at) = self.waiting.iter().position(|waiting| waiting.missing <= MAX_MISSING) {
            let Some(PendingSymbol { window, seed, symbol, .. }) = self.waiting.remove(at) else { return };
            let longest = symbol.len();
            let mut equation = Equation { missing: Vec::new(), symbol };
            let mut is_valid = true;
            for number in window {
                let factor = coefficient(seed, number);
                match self.source(number) {
                    Some(known) if known.len() > longest => is_valid = false,
                    Some(known) => field::add_multiple(&mut equation.symbol, factor, known),
                    None => equation.missing.push((number, factor)),
                }
            }
            if is_valid {
                self.insert(equation);
            }
        }
    }

    fn source(&self, number: u64) -> Option<&[u8]> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.ring.get(index)?.as_deref()
    }

    fn is_known(&self, number: u64) -> bool {
        self.source(number).is_some()
    }

    /// Extends the ring to `number`; false if the number is too old.
    fn extend_ring(&mut self, number: u64) -> bool {
        let Some(index) = number.checked_sub(self.base) else { return false };
        if index >= 2 * CAPACITY {
            // All stored symbols are too old.
            self.ring.clear();
            self.equations.clear();
            self.waiting.clear();
            self.base = number;
        }
        while number - self.base >= CAPACITY {
            self.spare.extend(self.ring.pop_front().flatten().filter(|_| self.spare.len() < MAX_SPARE));
            self.base += 1;
        }
        let base = self.base;
        self.equations.retain(|equation| equation.missing.iter().all(|(number, _)| *number >= base));
        self.waiting.retain(|waiting| waiting.window.start >= base);
        let len = (number - base) as usize + 1;
        if self.ring.len() < len {
            self.ring.resize(len, None);
        }
        true
    }

    /// Stores a symbol, and removes it from the equations.
    fn set_known(&mut self, number: u64, symbol: Vec<u8>) {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.window.contains(&number)) {
            waiting.missing -= 1;
        }
        let affected = |equation: &mut Equation| equation.missing.iter().any(|(missing, _)| *missing == number);
        let affected: Vec<Equation> = self.equations.extract_if(.., affected).collect();
        let index = (number - self.base) as usize;
        for mut equation in affected {
            let at = equation.missing.iter().position(|(missing, _)| *missing == number).expect("it was found above");
            let (_, factor) = equation.missing.remove(at);
            equation.add(factor, &symbol);
            self.insert(equation);
        }
        self.ring[index] = Some(symbol);
    }

    /// Adds an equation, and eliminates its pivot from the others.
    fn insert(&mut self, mut equation: Equation) {
        for other in &self.equations {
            let pivot = other.missing[0].0;
            if let Some(factor) = equation.factor_of(pivot) {
                equation.add_equation(factor, other);
            }
        }
        let Some((pivot, factor)) = equation.missing.first().copied() else { return };
        equation.scale(field::inverse(factor));
        for other in &mut self.equations {
            if let Some(factor) = other.factor_of(pivot) {
                other.add_equation(factor, &equation);
            }
        }
        if self.equations.len() == MAX_EQUATIONS {
            self.equations.remove(0);
        }
        self.equations.push(equation);
    }

    /// Removes solved equations, until no further one can be solved.
    fn solve(&mut self) -> Vec<Recovered> {
        let mut recovered = Vec::new();
        loop {
            self.form_equations();
            let solved = self.equations.iter().position(|equation| equation.missing.len() == 1);
            let Some(Equation { missing, mut symbol }) = solved.map(|at| self.equations.remove(at)) else { break };
            let index = (missing[0].0 - self.base) as usize;
            recovered.extend(decode_source(&symbol));
            // The symbol is padded to the longest of its window; with the padding a window of shorter ones could not
            // use it.
            symbol.truncate(symbol.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            if self.ring.len() <= index {
                self.ring.resize(index + 1, None);
            }
            self.set_known(missing[0].0, symbol);
        }
        recovered
    }
}

impl Equation {
    fn factor_of(&self, number: u64) -> Option<u8> {
        self.missing.iter().find(|(missing, _)| *missing == number).map(|(_, factor)| *factor)
    }

    fn add(&mut self, factor: u8, symbol: &[u8]) {
        if self.symbol.len() < symbol.len() {
            self.symbol.resize(symbol.len(), 0);
        }
        field::add_multiple(&mut self.symbol, factor, symbol);
    }

    fn add_equation(&mut self, factor: u8, other: &Self) {
        self.add(factor, &other.symbol);
        for (number, theirs) in &other.missing {
            let more = field::multiply(factor, *theirs);
            match self.missing.iter_mut().find(|(missing, _)| missing == number) {
                Some((_, ours)) => *ours ^= more,
                None => self.missing.push((*number, more)),
            }
        }
        self.missing.retain(|(_, factor)| *factor != 0);
    }

    fn scale(&mut self, factor: u8) {
        field::scale(&mut self.symbol, factor);
        self.missing.iter_mut().for_each(|(_, ours)| *ours = field::multiply(*ours, factor));
    }
}

/// Decodes a source symbol; `None` for a datagram without data.
fn decode_source(symbol: &[u8]) -> Option<Recovered> {
    let (flow_seq, packet) = symbol.split_first_chunk::<FLOW_SEQ_LEN>()?;
    let has_data = packet.iter().any(|byte| *byte != 0);
    has_data.then(|| Recovered { flow_seq: decode_flow_seq(*flow_seq), packet: packet.to_vec() })
}

/// Maximum number of unsolved equations. More losses exceed the strength of the code anyway.
const MAX_EQUATIONS: usize = 16;
/// Maximum number of repair symbols that wait for late datagrams.
const MAX_WAITING: usize = 32;
/// Maximum number of missing symbols in a new equation: a window of 128 loses this many at a loss of one in eight.
const MAX_MISSING: usize = 16;
/// Four times the longest window: a repair symbol may be late, and the datagrams missing from it later still.
const CAPACITY: u64 = 4 * MAX_SPAN;
/// Maximum number of buffers kept for reuse.
const MAX_SPARE: usize = 16;

#[cfg(test)]
mod tests;
