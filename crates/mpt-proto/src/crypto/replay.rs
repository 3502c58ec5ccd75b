//! Replay protection: accepts each packet number of a path at most once (RFC 6479, RFC 4303 section 3.4.3).
//!
//! A ring of 64-bit words, one bit per number, advances with the largest accepted number. The ring has one word more
//! than the window, as RFC 6479 proposes, so that advancing clears whole words and never shifts bits. Each path has its
//! own window, so a datagram of a slow path is never refused as a replay.
//!
//! The wire carries 32 of 64 bits. [`ReplayWindow::expand`] returns the number nearest to the next expected one (RFC
//! 9000 appendix A.3); it is correct unless 2^31 or more datagrams in a row are lost.
//!
//! A number is accepted only after the datagram is authenticated, so a forged datagram cannot move the window.

use crate::drops::Dropped;
use crate::id::{MAX_PATHS, PathSeq};
use crate::wire::native::PathTag;

/// The accepted numbers of one path. 1,048 bytes.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    largest: Option<u64>,
    words: [u64; WORDS],
}

impl ReplayWindow {
    /// Returns the number with these low 32 bits that is nearest to the next expected one.
    pub fn expand(&self, low: u32) -> PathSeq {
        PathSeq(expand(self.largest.map_or(0, |largest| largest.saturating_add(1)), low))
    }

    /// Returns `Duplicate` if `number` was accepted before, `TooOld` if it lies before the window.
    pub fn check(&self, number: PathSeq) -> Result<(), Dropped> {
        let (word, bit) = bit_position(number.0);
        match self.largest.and_then(|largest| largest.checked_sub(number.0)) {
            Some(WINDOW..) => Err(Dropped::TooOld),
            Some(_) if self.words[word] & bit != 0 => Err(Dropped::Duplicate),
            Some(_) | None => Ok(()),
        }
    }

    /// Accepts `number`, once.
    pub fn accept(&mut self, number: PathSeq) -> Result<(), Dropped> {
        self.check(number)?;
        self.move_to(number.0);
        let (word, bit) = bit_position(number.0);
        self.words[word] |= bit;
        Ok(())
    }

    /// Advances the window to `number`, and clears the words that enter it.
    fn move_to(&mut self, number: u64) {
        let newest = self.largest.unwrap_or(0);
        for word in (newest / 64 + 1..=number / 64).rev().take(WORDS) {
            self.words[(word % WORDS as u64) as usize] = 0;
        }
        self.largest = self.largest.max(Some(number));
    }
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { largest: None, words: [0; WORDS] }
    }
}

/// The accepted numbers of every path of a peer. An unused path takes one pointer.
#[derive(Clone, Debug, Default)]
pub struct ReplayWindows([Option<Box<ReplayWindow>>; MAX_PATHS]);

impl ReplayWindows {
    /// Calls [`ReplayWindow::expand`] on the path's slot.
    pub fn expand(&self, path: PathTag, low: u32) -> PathSeq {
        self.of(path).map_or_else(|| PathSeq(expand(0, low)), |window| window.expand(low))
    }

    /// Calls [`ReplayWindow::check`] on the path's slot.
    pub fn check(&self, path: PathTag, number: PathSeq) -> Result<(), Dropped> {
        self.of(path).map_or(Ok(()), |window| window.check(number))
    }

    /// Calls [`ReplayWindow::accept`] on the path's slot. The first datagram of a slot allocates its window.
    pub fn accept(&mut self, path: PathTag, number: PathSeq) -> Result<(), Dropped> {
        self.0[usize::from(path.slot())].get_or_insert_default().accept(number)
    }

    fn of(&self, path: PathTag) -> Option<&ReplayWindow> {
        self.0[usize::from(path.slot())].as_deref()
    }
}

/// Distance from the largest accepted number to the oldest acceptable one: 92 ms at 1 Gbit/s in datagrams of 1,400
/// bytes, about the value of WireGuard. It limits reordering within a path only; reordering between paths has no limit.
pub const WINDOW: u64 = 8192;
const WORDS: usize = WINDOW as usize / 64 + 1;

fn bit_position(number: u64) -> (usize, u64) {
    ((number / 64 % WORDS as u64) as usize, 1 << (number % 64))
}

/// Returns the number with the low bits `low` that is nearest to `expected` (RFC 9000 appendix A.3).
pub fn expand(expected: u64, low: u32) -> u64 {
    const HALF: u64 = 1 << 31;
    const MODULUS: u64 = 1 << 32;
    let near = expected & !(MODULUS - 1) | u64::from(low);
    if near.saturating_add(HALF) <= expected && near < u64::MAX - MODULUS {
        near + MODULUS
    } else if near > expected.saturating_add(HALF) && near >= MODULUS {
        near - MODULUS
    } else {
        near
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// The reference model of the window: stores all numbers.
    #[derive(Default)]
    struct Naive {
        seen: HashSet<u64>,
        largest: Option<u64>,
    }

    impl Naive {
        fn accept(&mut self, number: u64) -> Result<(), Dropped> {
            if self.largest.is_some_and(|largest| number + WINDOW <= largest) {
                return Err(Dropped::TooOld);
            }
            self.largest = self.largest.max(Some(number));
            if self.seen.insert(number) { Ok(()) } else { Err(Dropped::Duplicate) }
        }
    }

    /// Generates sequences that stay near the largest number, fall behind it, and jump.
    fn walk() -> impl Strategy<Value = Vec<u64>> {
        let step = prop_oneof![6 => -70..70i64, 2 => -9000..0i64, 2 => 0..9000i64, 1 => 0..1_000_000i64];
        (0..u64::from(u32::MAX) * 4, prop::collection::vec(step, 1..400)).prop_map(|(start, steps)| {
            let numbers = steps.iter().scan(start as i64, |largest, step| {
                let number = (*largest + step).max(0);
                *largest = (*largest).max(number);
                Some(number as u64)
            });
            numbers.collect()
        })
    }

    proptest! {
        #[test]
        fn the_window_decides_like_one_with_unlimited_memory(numbers in walk()) {
            let (mut window, mut naive) = (ReplayWindow::default(), Naive::default());
            for number in numbers {
                prop_assert_eq!(window.accept(PathSeq(number)), naive.accept(number), "number {}", number);
            }
        }

        #[test]
        fn no_number_is_accepted_twice(numbers in prop::collection::vec(0..20_000u64, 1..2_000)) {
            let (mut window, mut accepted) = (ReplayWindow::default(), HashSet::new());
            for number in numbers {
                if window.accept(PathSeq(number)).is_ok() {
                    prop_assert!(accepted.insert(number), "{} twice", number);
                }
            }
        }

        #[test]
        fn low_bits_expand_to_any_number_within_half_of_the_modulus(expected in 0..u64::MAX / 2, off in -(1i64 << 31) + 1..1i64 << 31) {
            let number = expected.saturating_add_signed(off);
            prop_assert_eq!(expand(expected, number as u32), number);
        }

        #[test]
        fn expanding_never_panics(expected: u64, low: u32) {
            prop_assert_eq!(expand(expected, low) as u32, low);
        }
    }

    #[test]
    fn of_two_numbers_that_are_equally_near_the_larger_is_meant() {
        let half = 1 << 31;
        for expected in [(5 << 32) + 7, (5 << 32) + half + 7] {
            assert_eq!(expand(expected, (expected + half) as u32), expected + half);
        }
    }

    /// Continues `window` with every sequence of `depth` of these numbers, and compares each decision with the model.
    /// Returns the number of decisions.
    fn compare_all(window: &ReplayWindow, seen: &mut Vec<u64>, numbers: &[u64], depth: usize) -> usize {
        let mut decisions = 0;
        for number in numbers {
            let largest = seen.iter().max();
            let expected = match (largest.is_some_and(|largest| number + WINDOW <= *largest), seen.contains(number)) {
                (true, _) => Err(Dropped::TooOld),
                (false, true) => Err(Dropped::Duplicate),
                (false, false) => Ok(()),
            };
            let mut next = window.clone();
            assert_eq!(next.check(PathSeq(*number)), expected, "{number} after {seen:?}");
            assert_eq!(next.accept(PathSeq(*number)), expected, "{number} after {seen:?}");
            decisions += 1;
            if depth > 1 {
                seen.push(*number);
                decisions += compare_all(&next, seen, numbers, depth - 1);
                seen.pop();
            }
        }
        decisions
    }

    /// The sequences consist of numbers at the edges of the bitmap's 64-bit words, of the window and of the ring, in
    /// the first and in the second round of the ring.
    #[test]
    fn every_short_sequence_of_numbers_at_the_edges_is_decided_like_the_model() {
        let ring = WORDS as u64 * 64;
        let edges = [
            0,
            1,
            63,
            64,
            127,
            128,
            WINDOW - 1,
            WINDOW,
            WINDOW + 1,
            ring - 1,
            ring,
            ring + 64,
            2 * ring,
            2 * ring + 63,
        ];
        let depth = if cfg!(miri) { 2 } else { 5 };
        let sequences: usize = (1..=depth).map(|length| edges.len().pow(length)).sum();
        assert_eq!(compare_all(&ReplayWindow::default(), &mut Vec::new(), &edges, depth as usize), sequences);
    }

    #[test]
    fn the_window_is_8192_numbers_wide() {
        let mut window = ReplayWindow::default();
        window.accept(PathSeq(100_000)).unwrap();
        assert_eq!(window.accept(PathSeq(100_000 - 8191)), Ok(()));
        assert_eq!(window.accept(PathSeq(100_000 - 8192)), Err(Dropped::TooOld));
    }

    #[test]
    fn after_a_jump_of_any_size_the_whole_window_is_open() {
        // Miri is some hundred times slower: it tests one number of each 64-bit word.
        let step = if cfg!(miri) { 64 } else { 1 };
        for jump in [64, 8_191, 8_192, 8_256, 8_320, 1_000_003] {
            let mut window = ReplayWindow::default();
            (0..10_000).step_by(step).for_each(|number| window.accept(PathSeq(number)).unwrap());
            let largest = 9_999 + jump;
            window.accept(PathSeq(largest)).unwrap();
            for number in ((largest - WINDOW + 1).max(10_000)..largest).step_by(step) {
                assert_eq!(window.accept(PathSeq(number)), Ok(()), "{number} after a jump of {jump}");
            }
        }
    }

    #[test]
    fn numbers_continue_past_32_bits() {
        let last = u64::from(u32::MAX);
        let mut window = ReplayWindow { largest: Some(last - 1), words: [0; WORDS] };
        for number in [last + 1, last, last + 2] {
            assert_eq!(window.expand(number as u32), PathSeq(number));
            window.accept(PathSeq(number)).unwrap();
        }
    }

    #[test]
    fn the_maximum_number_is_accepted_once() {
        let mut window = ReplayWindow { largest: Some(u64::MAX - 70), words: [0; WORDS] };
        assert_eq!(window.accept(PathSeq(u64::MAX)), Ok(()));
        assert_eq!(window.accept(PathSeq(u64::MAX)), Err(Dropped::Duplicate));
        assert_eq!(window.accept(PathSeq(u64::MAX - 1)), Ok(()));
    }

    #[test]
    fn a_slot_keeps_its_window_when_it_goes_to_a_new_path() {
        let mut windows = ReplayWindows::default();
        let (old, new, other) =
            (PathTag::from_byte(1 << 3), PathTag::from_byte(1 << 3 | 1), PathTag::from_byte(2 << 3));
        windows.accept(old, PathSeq(7)).unwrap();
        assert_eq!(windows.accept(new, PathSeq(7)), Err(Dropped::Duplicate));
        assert_eq!(windows.accept(other, PathSeq(7)), Ok(()));
    }

    #[test]
    fn a_check_and_the_low_bits_refer_to_the_window_of_the_slot() {
        let mut windows = ReplayWindows::default();
        let (used, unused) = (PathTag::from_byte(1 << 3), PathTag::from_byte(2 << 3));
        let number = (1 << 32) + 5;
        windows.accept(used, PathSeq(number)).unwrap();
        assert_eq!(windows.check(used, PathSeq(number)), Err(Dropped::Duplicate));
        assert_eq!(windows.check(unused, PathSeq(number)), Ok(()));
        assert_eq!((windows.expand(used, 6), windows.expand(unused, 6)), (PathSeq(number + 1), PathSeq(6)));
    }
}
