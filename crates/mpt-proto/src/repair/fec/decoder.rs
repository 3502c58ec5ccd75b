//! The receiver of one path: keeps what arrived lately, and solves repair symbols for what did not.
//!
//! Each repair symbol is an equation in the symbols that are missing. Equations are kept so that each has one missing
//! symbol, its pivot, that no other has (Gauss and Jordan); one that is left with its pivot alone is solved. A datagram that was
//! only late leaves the equations when it arrives. Where paths reorder, a hundred datagrams may be late when a repair symbol arrives: it
//! waits until few of its window are missing, since every one that comes out of an equation again costs as much as it did to put it in.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::{FlowSeq, MAX_SPAN, PLACE, coefficient, decode_place, encode_place, field};
use crate::path::PathSeq;
use crate::time::Time;

/// Solves for what is missing.
#[derive(Debug)]
pub struct Decoder {
    /// The number of the first entry of `ring`.
    base: u64,
    /// By number: not known, known to carry no data (empty), or the symbol.
    ring: VecDeque<Option<Vec<u8>>>,
    equations: Vec<Equation>,
    /// Repair symbols too much of whose window is still missing, oldest first.
    waiting: VecDeque<PendingSymbol>,
    spare: Vec<Vec<u8>>,
    used: Time,
}

#[derive(Debug)]
struct Equation {
    /// Number and coefficient of each missing symbol; the first one is the pivot, whose coefficient is 1.
    missing: Vec<(u64, u8)>,
    symbol: Vec<u8>,
}

/// A repair symbol that is no equation yet.
#[derive(Debug)]
struct PendingSymbol {
    /// Its window.
    window: Range<u64>,
    seed: u8,
    symbol: Vec<u8>,
    /// How many of the window are missing.
    missing: usize,
}

/// What a lost DATA frame said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Its place, of whose number only the low bits are known: see [`super::widen`].
    pub place: FlowSeq,
    /// The packet, and zeros after it.
    pub packet: Vec<u8>,
}

/// Equations that wait for another one. Losses beyond that are too many for the code anyway.
const MAX_EQUATIONS: usize = 16;
/// Repair symbols that wait for what is late.
const MAX_WAITING: usize = 32;
/// Missing symbols in a new equation: a window of 128 loses so many when every eighth packet is lost.
const MAX_MISSING: usize = 16;
/// Without a repair symbol for so long, nothing is kept.
const IDLE: Duration = Duration::from_secs(5);

impl Decoder {
    /// Begins with the datagrams from `number` on.
    pub fn new(now: Time, number: PathSeq) -> Self {
        let (ring, waiting) = (VecDeque::new(), VecDeque::new());
        Self { base: number.0, ring, equations: Vec::new(), waiting, spare: Vec::new(), used: now }
    }

    /// Whether the peer has stopped sending repair symbols.
    pub fn is_idle(&self, now: Time) -> bool {
        now.since(self.used) > IDLE
    }

    /// A datagram arrived, with this in its DATA frame if it has one. Gives what can be solved since.
    pub fn on_datagram(&mut self, number: PathSeq, data: Option<(FlowSeq, &[u8])>) -> Vec<Recovered> {
        if !self.make_room(number.0) || self.is_known(number.0) {
            return Vec::new();
        }
        let mut symbol = self.spare.pop().unwrap_or_default();
        symbol.clear();
        if let Some((place, packet)) = data {
            symbol.extend_from_slice(&encode_place(place));
            symbol.extend_from_slice(packet);
        }
        self.know(number.0, symbol);
        self.solve()
    }

    /// A repair symbol arrived in the datagram with this number. Gives what can be solved since.
    pub fn on_repair(&mut self, now: Time, own: PathSeq, span: u16, seed: u8, symbol: &[u8]) -> Vec<Recovered> {
        self.used = now;
        let first = own.0.checked_sub(u64::from(span)).filter(|first| *first >= self.base);
        let Some(first) = first.filter(|_| u64::from(span) <= MAX_SPAN && symbol.len() > PLACE) else {
            return Vec::new();
        };
        let missing = (first..own.0).filter(|number| !self.is_known(*number)).count();
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(PendingSymbol { window: first..own.0, seed, symbol: symbol.to_vec(), missing });
        self.solve()
    }

    /// Makes equations of the repair symbols of whose window enough has arrived.
    fn set_up(&mut self) {
        while let Some(at) = self.waiting.iter().position(|waiting| waiting.missing <= MAX_MISSING) {
            let Some(PendingSymbol { window, seed, symbol, .. }) = self.waiting.remove(at) else { return };
            let longest = symbol.len();
            let mut equation = Equation { missing: Vec::new(), symbol };
            let mut is_sound = true;
            for number in window {
                let factor = coefficient(seed, number);
                match self.source(number) {
                    Some(known) if known.len() > longest => is_sound = false,
                    Some(known) => field::add_multiple(&mut equation.symbol, factor, known),
                    None => equation.missing.push((number, factor)),
                }
            }
            if is_sound {
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

    /// Makes the ring reach to `number`; false when it is too old.
    fn make_room(&mut self, number: u64) -> bool {
        let Some(index) = number.checked_sub(self.base) else { return false };
        if index >= 2 * CAPACITY {
            // Everything that is kept is too old.
            self.ring.clear();
            self.equations.clear();
            self.waiting.clear();
            self.base = number;
        }
        while number - self.base >= CAPACITY {
            self.spare.extend(self.ring.pop_front().flatten().filter(|_| self.spare.len() < SPARE));
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

    /// Puts a symbol where it belongs, and takes it out of the equations.
    fn know(&mut self, number: u64, symbol: Vec<u8>) {
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

    /// Adds an equation and keeps the pivots apart.
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

    /// Takes out what has been solved, until nothing more follows from it.
    fn solve(&mut self) -> Vec<Recovered> {
        let mut recovered = Vec::new();
        loop {
            self.set_up();
            let solved = self.equations.iter().position(|equation| equation.missing.len() == 1);
            let Some(Equation { missing, mut symbol }) = solved.map(|at| self.equations.remove(at)) else { break };
            let index = (missing[0].0 - self.base) as usize;
            recovered.extend(read(&symbol));
            // As long as the longest of its window; longer than the next window's, that one could not be used.
            symbol.truncate(symbol.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            if self.ring.len() <= index {
                self.ring.resize(index + 1, None);
            }
            self.know(missing[0].0, symbol);
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

/// What a source symbol says; nothing when it is of a datagram without data.
fn read(symbol: &[u8]) -> Option<Recovered> {
    let (place, packet) = symbol.split_first_chunk::<PLACE>()?;
    let has_data = packet.iter().any(|byte| *byte != 0);
    has_data.then(|| Recovered { place: decode_place(*place), packet: packet.to_vec() })
}

/// Four times the longest window: a repair symbol may be late, and what is missing in it later.
const CAPACITY: u64 = 4 * MAX_SPAN;
/// Buffers kept for reuse.
const SPARE: usize = 16;
