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
mod tests {
    use std::time::Duration;

    use super::*;

    const FLOW_SEQ: FlowSeq = FlowSeq { bucket: 7, sequence: 9 };

    fn decoder(max_packet: usize) -> Decoder {
        Decoder::new(Time::START, PathSeq(0), max_packet)
    }

    /// Returns the symbol of a packet with these bytes alone.
    fn source(packet: &[u8]) -> Vec<u8> {
        [&encode_flow_seq(FLOW_SEQ)[..], packet].concat()
    }

    /// Returns the repair symbol of these sources by number.
    fn repair(seed: u8, sources: &[(u64, &[u8])]) -> Vec<u8> {
        let mut symbol = vec![0; sources.iter().map(|(_, packet)| FLOW_SEQ_LEN + packet.len()).max().unwrap()];
        for (number, packet) in sources {
            field::add_multiple(&mut symbol, coefficient(seed, *number), &source(packet));
        }
        symbol
    }

    #[test]
    fn it_is_idle_five_seconds_after_the_last_symbol() {
        let (mut decoder, moment) = (decoder(100), Duration::from_nanos(1));
        assert!(!decoder.is_idle(Time::START + IDLE_AFTER));
        assert!(decoder.is_idle(Time::START + IDLE_AFTER + moment));
        let used = Time::START + Duration::from_secs(3);
        decoder.on_repair(used, PathSeq(1), 1, 0, &[1; 30]);
        assert!(!decoder.is_idle(used + IDLE_AFTER) && decoder.is_idle(used + IDLE_AFTER + moment));
    }

    #[test]
    fn the_longest_packet_is_stored_and_a_longer_one_is_not() {
        for (len, is_stored) in [(100, true), (101, false)] {
            let mut decoder = decoder(100);
            decoder.on_datagram(PathSeq(0), Some((FLOW_SEQ, &vec![1; len])));
            assert_eq!(decoder.is_known(0), is_stored, "{len}");
        }
    }

    #[test]
    fn the_first_datagram_of_a_number_counts() {
        let mut decoder = decoder(100);
        decoder.on_datagram(PathSeq(0), Some((FLOW_SEQ, &[1; 30])));
        decoder.on_datagram(PathSeq(0), Some((FLOW_SEQ, &[2; 30])));
        assert_eq!(decoder.source(0), Some(&source(&[1; 30])[..]));
    }

    #[test]
    fn a_symbol_without_a_packet_or_longer_than_any_is_ignored() {
        let packet = [1; 30];
        for invalid in [FLOW_SEQ_LEN, FLOW_SEQ_LEN + 31] {
            let mut decoder = decoder(packet.len());
            assert_eq!(decoder.on_repair(Time::START, PathSeq(1), 1, 0, &vec![1; invalid]), []);
            decoder.on_datagram(PathSeq(1), None);
            let symbol = repair(0, &[(0, &packet)]);
            let recovered = Recovered { flow_seq: FLOW_SEQ, packet: packet.to_vec() };
            assert_eq!(decoder.on_repair(Time::START, PathSeq(2), 2, 0, &symbol), [recovered], "{invalid} bytes");
        }
    }

    #[test]
    fn a_symbol_shorter_than_a_source_of_its_window_is_ignored() {
        let mut decoder = decoder(100);
        decoder.on_datagram(PathSeq(0), Some((FLOW_SEQ, &[1; 30])));
        assert_eq!(decoder.on_repair(Time::START, PathSeq(2), 2, 0, &[1; 20]), []);
        assert!(!decoder.is_known(1) && decoder.equations.is_empty());
    }

    #[test]
    fn symbols_wait_for_late_datagrams_until_few_are_missing() {
        let (count, missing) = (40, MAX_MISSING as u64 + 4);
        let packets: Vec<Vec<u8>> = (0..count).map(|number| vec![number as u8 + 1; 30]).collect();
        let sources: Vec<(u64, &[u8])> = (0..).zip(packets.iter().map(Vec::as_slice)).collect();
        let mut decoder = decoder(100);
        let arrive = |decoder: &mut Decoder, number: u64| {
            decoder.on_datagram(PathSeq(number), Some((FLOW_SEQ, &packets[number as usize]))).len()
        };
        (missing..count).for_each(|number| assert_eq!(arrive(&mut decoder, number), 0));
        for (own, seed) in (count..).zip(0..MAX_MISSING as u8 + 2) {
            let symbol = repair(seed, &sources);
            assert_eq!(decoder.on_repair(Time::START, PathSeq(own), own as u16, seed, &symbol), []);
            decoder.on_datagram(PathSeq(own), None);
        }
        assert_eq!((0..3).map(|number| arrive(&mut decoder, number)).sum::<usize>(), 0);
        assert!(decoder.equations.is_empty());
        assert_eq!(arrive(&mut decoder, 3), MAX_MISSING);
    }

    #[test]
    fn a_late_symbol_recovers_a_packet_of_the_last_thousand() {
        let (packet, lost) = ([1; 30], 995);
        let mut decoder = decoder(100);
        (0..1_000).filter(|number| *number != lost).for_each(|number| {
            decoder.on_datagram(PathSeq(number), None);
        });
        // 990 is 1,023 before 2,013, and the oldest that is stored.
        decoder.on_datagram(PathSeq(2_013), None);
        let symbol = repair(3, &[(lost, &packet)]);
        let recovered = Recovered { flow_seq: FLOW_SEQ, packet: packet.to_vec() };
        assert_eq!(decoder.on_repair(Time::START, PathSeq(1_000), 10, 3, &symbol), [recovered]);
        decoder.on_datagram(PathSeq(2_014), None);
        assert_eq!((decoder.base, decoder.ring.len()), (991, CAPACITY as usize));
        assert_eq!(decoder.on_datagram(PathSeq(990), None), [], "it is too old");
    }

    /// Returns the bytes that it has allocated.
    fn allocated(decoder: &Decoder) -> usize {
        let symbols = decoder.ring.iter().flatten().chain(&decoder.spare).map(Vec::capacity);
        let waiting = decoder.waiting.iter().map(|waiting| waiting.symbol.capacity());
        let equations = decoder
            .equations
            .iter()
            .map(|equation| equation.symbol.capacity() + equation.missing.capacity() * size_of::<(u64, u8)>());
        symbols.chain(waiting).chain(equations).sum::<usize>()
            + decoder.ring.capacity() * size_of::<Option<Vec<u8>>>()
            + decoder.waiting.capacity() * size_of::<PendingSymbol>()
    }

    /// A peer sends the longest packets, loses many, and sends more symbols than are stored.
    #[test]
    fn memory_stays_within_its_bound() {
        let mut decoder = decoder(1_500);
        for number in 0..3 * CAPACITY {
            match number % 32 {
                0..8 => {}
                8..24 => {
                    decoder.on_datagram(PathSeq(number), Some((FLOW_SEQ, &[number as u8 | 1; 1_500])));
                }
                _ => {
                    let span = number.min(if number % 64 < 32 { 20 } else { MAX_SPAN }) as u16;
                    let symbol = vec![number as u8; FLOW_SEQ_LEN + 1_500];
                    decoder.on_repair(Time::START, PathSeq(number), span, number as u8 % 64, &symbol);
                    decoder.on_datagram(PathSeq(number), None);
                }
            }
            assert!(allocated(&decoder) <= Decoder::max_bytes(1_500), "{number}: {}", allocated(&decoder));
            assert!(decoder.ring.len() <= CAPACITY as usize && decoder.spare.len() <= MAX_SPARE);
        }
        assert_eq!(decoder.spare.len(), MAX_SPARE - 1, "the last one is in use");
        // 1,024 + 16 + 2 * (16 + 32) symbols of 1,504 bytes, 2 * 1,024 places of 24, 2 * 32 waiting of 56, and 2 * 16
        // equations of up to 16 * 16 missing of 16.
        assert!(cfg!(not(target_pointer_width = "64")) || Decoder::max_bytes(1_500) == 1_892_352);
    }
}
