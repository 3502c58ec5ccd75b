//! A set of packet numbers, one bit each. To look for a member in a range costs a step for each 64 numbers of the
//! range: a peer chooses the ranges of its ACKs.

use std::collections::VecDeque;

/// The set. Numbers are added in rising order.
#[derive(Clone, Debug, Default)]
pub(super) struct NumberSet {
    /// The first word has the bits of the packet numbers from 64 times this on.
    first_word: u64,
    words: VecDeque<u64>,
}

impl NumberSet {
    /// Adds a number that is greater than all before.
    pub(super) fn push(&mut self, number: u64) {
        let (word, bit) = place(number);
        if self.words.is_empty() {
            self.first_word = word;
        }
        while self.first_word + (self.words.len() as u64) <= word {
            self.words.push_back(0);
        }
        if let Some(last) = self.words.back_mut() {
            *last |= bit;
        }
    }

    /// Returns the least member from `from` to `last`.
    pub(super) fn next(&self, from: u64, last: u64) -> Option<u64> {
        let (word, bit) = place(from.max(self.first_word * WIDTH));
        let start = usize::try_from(word - self.first_word).ok().filter(|start| *start < self.words.len())?;
        let masks = std::iter::once(!(bit - 1)).chain(std::iter::repeat(u64::MAX));
        let words = (word..=last / WIDTH).zip(self.words.range(start..)).zip(masks);
        let (number, word) = words.map(|((number, word), mask)| (number, word & mask)).find(|(_, word)| *word != 0)?;
        Some(number * WIDTH + u64::from(word.trailing_zeros())).filter(|member| *member <= last)
    }

    /// Returns the least member.
    pub(super) fn first(&self) -> Option<u64> {
        self.next(0, u64::MAX)
    }

    /// Returns whether the number is a member.
    pub(super) fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        let word = word.checked_sub(self.first_word).and_then(|word| self.words.get(word as usize));
        word.is_some_and(|word| word & bit != 0)
    }

    /// Removes a number.
    pub(super) fn remove(&mut self, number: u64) {
        let (word, bit) = place(number);
        let word = word.checked_sub(self.first_word).and_then(|word| self.words.get_mut(word as usize));
        if let Some(word) = word {
            *word &= !bit;
        }
        while self.words.front() == Some(&0) {
            self.words.pop_front();
            self.first_word += 1;
        }
    }

    /// Releases memory that is not used.
    pub(super) fn shrink(&mut self) {
        self.words.shrink_to_fit();
    }
}

/// Returns which word has the bit of a packet number, and a mask with this bit alone.
fn place(number: u64) -> (u64, u64) {
    (number / WIDTH, 1 << (number % WIDTH))
}

/// Bits of a word.
const WIDTH: u64 = u64::BITS as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_has_the_members_of_an_ordered_set() {
        let (mut set, mut model, mut random) = (NumberSet::default(), BTreeSet::new(), 7_u64);
        let mut number = 1_000_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (choice, offset) = (random >> 62, (random >> 40) % 300);
            match choice {
                0 => {
                    number += 1 + offset * offset / 300;
                    set.push(number);
                    model.insert(number);
                }
                1 => {
                    let gone = model.range(number.saturating_sub(offset)..).next().copied().unwrap_or(number);
                    set.remove(gone);
                    model.remove(&gone);
                }
                2 => {
                    if let Some(least) = model.pop_first() {
                        set.remove(least);
                    }
                }
                _ => {
                    let from = number.saturating_sub(offset);
                    let last = from + offset % 140;
                    assert_eq!(set.next(from, last), model.range(from..=last).next().copied());
                    assert_eq!(set.contains(from), model.contains(&from));
                }
            }
            assert_eq!(set.first(), model.first().copied());
        }
        assert_eq!(set.next(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn removed_numbers_take_no_memory() {
        let mut set = NumberSet::default();
        (0..10_000).for_each(|number| set.push(number));
        (0..10_000).for_each(|number| set.remove(number));
        assert!(set.words.is_empty());
        set.push(u64::MAX - 1);
        assert_eq!((set.words.len(), set.first()), (1, Some(u64::MAX - 1)));
    }
}
