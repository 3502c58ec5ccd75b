//! Which packet numbers of a path have been seen: no datagram is taken twice (RFC 6479, RFC 4303 section 3.4.3).
//!
//! A bitmap ring of 64-bit words moves with the largest number accepted. One word more than the window is kept, as RFC 6479
//! proposes, so that moving on clears whole words and no bit is ever shifted. Each path has a window of its own: a slow path
//! never looks like a replay of a fast one.
//!
//! The wire carries 32 of 64 bits. [`Window::expand`] finds the number nearest to the one expected next, as RFC 9000
//! appendix A.3 does for QUIC; it is right as long as fewer than 2^31 datagrams in a row are lost.
//!
//! A number is only accepted after the datagram proved authentic: what is forged must not move the window.

use crate::drops::Dropped;
use crate::path::{MAX_PATHS, PathSeq};
use crate::wire::native::PathTag;

/// The numbers seen on one path. 1,048 bytes.
#[derive(Clone, Debug)]
pub struct Window {
    largest: Option<u64>,
    words: [u64; WORDS],
}

impl Window {
    /// The number, of those with these low 32 bits, that is nearest to the one expected next.
    pub fn expand(&self, low: u32) -> PathSeq {
        PathSeq(expand(self.largest.map_or(0, |largest| largest.saturating_add(1)), low))
    }

    /// Whether `number` can be accepted: `Duplicate` when it was, `TooOld` when nobody knows.
    pub fn check(&self, number: PathSeq) -> Result<(), Dropped> {
        let (word, bit) = place(number.0);
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
        let (word, bit) = place(number.0);
        self.words[word] |= bit;
        Ok(())
    }

    /// Moves the window until it reaches `number`, and clears the words that come in.
    fn move_to(&mut self, number: u64) {
        let newest = self.largest.unwrap_or(0);
        for word in (newest / 64 + 1..=number / 64).rev().take(WORDS) {
            self.words[(word % WORDS as u64) as usize] = 0;
        }
        self.largest = self.largest.max(Some(number));
    }
}

impl Default for Window {
    fn default() -> Self {
        Self { largest: None, words: [0; WORDS] }
    }
}

/// The numbers seen on every path of a peer. A path that was never used costs a pointer.
#[derive(Clone, Debug, Default)]
pub struct ReplayWindows([Option<Box<Window>>; MAX_PATHS]);

impl ReplayWindows {
    /// As [`Window::expand`], on the path's slot.
    pub fn expand(&self, path: PathTag, low: u32) -> PathSeq {
        self.of(path).map_or_else(|| PathSeq(expand(0, low)), |window| window.expand(low))
    }

    /// As [`Window::check`], on the path's slot.
    pub fn check(&self, path: PathTag, number: PathSeq) -> Result<(), Dropped> {
        self.of(path).map_or(Ok(()), |window| window.check(number))
    }

    /// As [`Window::accept`], on the path's slot. The first datagram of a slot allocates its window.
    pub fn accept(&mut self, path: PathTag, number: PathSeq) -> Result<(), Dropped> {
        self.0[usize::from(path.slot())].get_or_insert_default().accept(number)
    }

    fn of(&self, path: PathTag) -> Option<&Window> {
        self.0[usize::from(path.slot())].as_deref()
    }
}

/// How far a number may lie behind the largest one: 92 ms at 1 Gbit/s in datagrams of 1,400 bytes, and about what
/// WireGuard allows. It bounds reordering within a path only; between paths there is no bound.
pub const WINDOW: u64 = 8192;
const WORDS: usize = WINDOW as usize / 64 + 1;

fn place(number: u64) -> (usize, u64) {
    ((number / 64 % WORDS as u64) as usize, 1 << (number % 64))
}

/// The number with the low bits `low` that is nearest to `expected` (RFC 9000 appendix A.3).
pub fn expand(expected: u64, low: u32) -> u64 {
    const HALF: u64 = 1 << 31;
    const TURN: u64 = 1 << 32;
    let near = expected & !(TURN - 1) | u64::from(low);
    if near.saturating_add(HALF) <= expected && near < u64::MAX - TURN {
        near + TURN
    } else if near > expected.saturating_add(HALF) && near >= TURN {
        near - TURN
    } else {
        near
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// What the window should do, without a ring: remember everything.
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

    /// Walks that stay near the largest number, fall behind it, and leap.
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
        fn the_window_decides_as_one_that_forgets_nothing(numbers in walk()) {
            let (mut window, mut naive) = (Window::default(), Naive::default());
            for number in numbers {
                prop_assert_eq!(window.accept(PathSeq(number)), naive.accept(number), "number {}", number);
            }
        }

        #[test]
        fn no_number_is_accepted_twice(numbers in prop::collection::vec(0..20_000u64, 1..2_000)) {
            let (mut window, mut accepted) = (Window::default(), HashSet::new());
            for number in numbers {
                if window.accept(PathSeq(number)).is_ok() {
                    prop_assert!(accepted.insert(number), "{} twice", number);
                }
            }
        }

        #[test]
        fn low_bits_expand_to_any_number_within_half_a_turn(expected in 0..u64::MAX / 2, off in -(1i64 << 31) + 1..1i64 << 31) {
            let number = expected.saturating_add_signed(off);
            prop_assert_eq!(expand(expected, number as u32), number);
        }

        #[test]
        fn expanding_never_panics(expected: u64, low: u32) {
            prop_assert_eq!(expand(expected, low) as u32, low);
        }
    }

    #[test]
    fn the_window_is_8192_numbers_wide() {
        let mut window = Window::default();
        window.accept(PathSeq(100_000)).unwrap();
        assert_eq!(window.accept(PathSeq(100_000 - 8191)), Ok(()));
        assert_eq!(window.accept(PathSeq(100_000 - 8192)), Err(Dropped::TooOld));
    }

    #[test]
    fn after_a_leap_of_any_size_the_whole_window_is_open() {
        for leap in [64, 8_191, 8_192, 8_256, 8_320, 1_000_003] {
            let mut window = Window::default();
            (0..10_000).for_each(|number| window.accept(PathSeq(number)).unwrap());
            let largest = 9_999 + leap;
            window.accept(PathSeq(largest)).unwrap();
            for number in (largest - WINDOW + 1).max(10_000)..largest {
                assert_eq!(window.accept(PathSeq(number)), Ok(()), "{number} after a leap of {leap}");
            }
        }
    }

    #[test]
    fn numbers_go_on_where_32_bits_end() {
        let last = u64::from(u32::MAX);
        let mut window = Window { largest: Some(last - 1), words: [0; WORDS] };
        for number in [last + 1, last, last + 2] {
            assert_eq!(window.expand(number as u32), PathSeq(number));
            window.accept(PathSeq(number)).unwrap();
        }
    }

    #[test]
    fn the_largest_number_of_all_is_taken_once() {
        let mut window = Window { largest: Some(u64::MAX - 70), words: [0; WORDS] };
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
}
