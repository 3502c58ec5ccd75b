//! The receiver of one path: keeps what arrived lately, and solves repair symbols for what did not.
//!
//! Each repair symbol is an equation in the symbols that are missing. Equations are kept so that each has one missing
//! symbol, its pivot, that no other has (Gauss and Jordan); one that is left with its pivot alone is solved. A datagram that was
//! only late leaves the equations when it arrives.

use std::collections::VecDeque;
use std::time::Duration;

use super::{MAX_SPAN, PLACE, Place, coefficient, decode_place, encode_place, field};
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
    spare: Vec<Vec<u8>>,
    used: Time,
}

#[derive(Debug)]
struct Equation {
    /// Number and coefficient of each missing symbol; the first one is the pivot, whose coefficient is 1.
    missing: Vec<(u64, u8)>,
    symbol: Vec<u8>,
}

/// What a lost DATA frame said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Its place, of whose number only the low bits are known: see [`super::widen`].
    pub place: Place,
    /// The packet, and zeros after it.
    pub packet: Vec<u8>,
}

/// Equations that wait for another one. Losses beyond that are too many for the code anyway.
const MAX_EQUATIONS: usize = 16;
/// Missing symbols in an equation that is worth keeping.
const MAX_MISSING: usize = 32;
/// Without a repair symbol for so long, nothing is kept.
const IDLE: Duration = Duration::from_secs(5);

impl Decoder {
    /// Begins with the datagrams from `number` on.
    pub fn new(now: Time, number: PathSeq) -> Self {
        Self { base: number.0, ring: VecDeque::new(), equations: Vec::new(), spare: Vec::new(), used: now }
    }

    /// Whether the peer has stopped sending repair symbols.
    pub fn is_idle(&self, now: Time) -> bool {
        now.since(self.used) > IDLE
    }

    /// A datagram arrived, with this in its DATA frame if it has one. Gives what can be solved since.
    pub fn on_datagram(&mut self, number: PathSeq, data: Option<(Place, &[u8])>) -> Vec<Recovered> {
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
        let mut equation = Equation { missing: Vec::new(), symbol: symbol.to_vec() };
        for number in first..own.0 {
            let factor = coefficient(seed, number);
            match self.source(number) {
                Some(known) if known.len() > symbol.len() => return Vec::new(),
                Some(known) => field::add_multiple(&mut equation.symbol, factor, known),
                None if equation.missing.len() == MAX_MISSING => return Vec::new(),
                None => equation.missing.push((number, factor)),
            }
        }
        self.insert(equation);
        self.solve()
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
            self.base = number;
        }
        while number - self.base >= CAPACITY {
            self.spare.extend(self.ring.pop_front().flatten().filter(|_| self.spare.len() < SPARE));
            self.base += 1;
        }
        let base = self.base;
        self.equations.retain(|equation| equation.missing.iter().all(|(number, _)| *number >= base));
        let len = (number - base) as usize + 1;
        if self.ring.len() < len {
            self.ring.resize(len, None);
        }
        true
    }

    /// Puts a symbol where it belongs, and takes it out of the equations.
    fn know(&mut self, number: u64, symbol: Vec<u8>) {
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

    /// Takes out what has been solved.
    fn solve(&mut self) -> Vec<Recovered> {
        let mut recovered = Vec::new();
        for solved in self.equations.extract_if(.., |equation| equation.missing.len() == 1) {
            let index = (solved.missing[0].0 - self.base) as usize;
            recovered.extend(read(&solved.symbol));
            if self.ring.len() <= index {
                self.ring.resize(index + 1, None);
            }
            self.ring[index] = Some(solved.symbol);
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

/// Twice the longest window: a repair symbol may be late, too.
const CAPACITY: u64 = 2 * MAX_SPAN;
/// Buffers kept for reuse.
const SPARE: usize = 16;
