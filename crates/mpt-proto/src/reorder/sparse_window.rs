//! The received numbers behind a hole, in pages of 64. A page is allocated for its first number, so a jump in the
//! numbers allocates one page and not the distance. With one array for the window, a peer could allocate half a
//! gigabyte by a jump in each of a thousand buckets.

use std::collections::VecDeque;

/// Values by number. A page is allocated while it has a value.
#[derive(Debug)]
pub(super) struct SparseWindow<T> {
    /// The first page is always allocated.
    pages: VecDeque<Option<Box<Page<T>>>>,
    /// The number of the first page.
    first: u64,
    /// Pages that are allocated.
    count: usize,
}

#[derive(Debug)]
struct Page<T> {
    /// The places with a value, as a bit set.
    taken: u64,
    places: [Option<T>; PAGE as usize],
}

const PAGE: u64 = 64;
/// A list of pages with more capacity than this is freed when it is empty: every flow bucket has a list, and few need
/// more pages at a time.
const USUAL: usize = 16;

impl<T> Default for SparseWindow<T> {
    fn default() -> Self {
        Self { pages: VecDeque::new(), first: 0, count: 0 }
    }
}

impl<T> SparseWindow<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the bytes that it has allocated.
    pub(super) fn bytes(&self) -> usize {
        self.count * size_of::<Page<T>>() + self.pages.capacity() * size_of::<Option<Box<Page<T>>>>()
    }

    /// Stores a value; false if the number has one.
    pub(super) fn put(&mut self, number: u64, value: impl FnOnce() -> T) -> bool {
        let page = number / PAGE;
        if self.pages.is_empty() {
            self.first = page;
        }
        while page < self.first {
            self.pages.push_front(None);
            self.first -= 1;
        }
        let index = (page - self.first) as usize;
        if self.pages.len() <= index {
            self.pages.resize_with(index + 1, || None);
        }
        let empty = || {
            self.count += 1;
            Box::new(Page { taken: 0, places: std::array::from_fn(|_| None) })
        };
        let page = self.pages[index].get_or_insert_with(empty);
        let bit = 1 << (number % PAGE);
        let is_free = page.taken & bit == 0;
        if is_free {
            page.taken |= bit;
            page.places[(number % PAGE) as usize] = Some(value());
        }
        is_free
    }

    /// Returns true if the number has a value.
    pub(super) fn contains(&self, number: u64) -> bool {
        let index = (number / PAGE).checked_sub(self.first).map(|index| index as usize);
        let page = index.and_then(|index| self.pages.get(index)?.as_ref());
        page.is_some_and(|page| page.taken & 1 << (number % PAGE) != 0)
    }

    /// Returns the lowest number that has a value, and the value.
    pub(super) fn first(&self) -> Option<(u64, &T)> {
        let page = self.pages.front()?.as_ref()?;
        let place = page.taken.trailing_zeros();
        Some((self.first * PAGE + u64::from(place), page.places.get(place as usize)?.as_ref()?))
    }

    /// Removes and returns the value of the lowest number.
    pub(super) fn take_first(&mut self) -> Option<T> {
        let page = self.pages.front_mut()?.as_mut()?;
        let value = page.places.get_mut(page.taken.trailing_zeros() as usize)?.take();
        page.taken &= page.taken - 1;
        if page.taken == 0 {
            self.count -= 1;
            self.pages.pop_front();
            self.first += 1;
            while let Some(None) = self.pages.front() {
                self.pages.pop_front();
                self.first += 1;
            }
            if self.pages.is_empty() && self.pages.capacity() > USUAL {
                self.pages = VecDeque::new();
            }
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_jump_allocates_one_page() {
        let mut places = SparseWindow::default();
        assert!(places.put(1, || ()) && places.put(16_384, || ()));
        assert_eq!(places.pages.iter().flatten().count(), 2);
        places.take_first().unwrap();
        assert_eq!((places.pages.len(), places.first().map(|(number, ())| number)), (1, Some(16_384)));
        places.take_first().unwrap();
        assert_eq!((places.pages.capacity(), places.take_first()), (0, None));
    }

    #[test]
    fn bytes_are_those_of_pages_and_of_their_list() {
        let mut places = SparseWindow::default();
        assert_eq!(places.bytes(), 0);
        assert!([0, 1, 128].into_iter().all(|number| places.put(number, || 7_u32)));
        let list = places.pages.capacity() * size_of::<usize>();
        // A page has its bit set and 64 places of a flag and a value.
        assert_eq!(places.bytes(), 2 * (8 + 64 * 8) + list);
    }

    #[test]
    fn a_list_of_the_usual_capacity_is_kept() {
        for (capacity, kept) in [(USUAL, USUAL), (USUAL + 1, 0)] {
            let mut places = SparseWindow { pages: VecDeque::with_capacity(capacity), first: 0, count: 0 };
            assert!(places.put(5, || ()));
            places.take_first().unwrap();
            assert_eq!(places.pages.capacity(), kept);
        }
    }

    /// Every sequence of six steps: a number at the edge of a page, or the removal of the first.
    #[test]
    fn every_short_sequence_of_steps_is_that_of_a_map() {
        let numbers = [0, 63, 64, 65, 127, 191, 320];
        let (choices, length) = (numbers.len() as u32 + 1, if cfg!(miri) { 2 } else { 6 });
        for code in 0..choices.pow(length) {
            let (mut places, mut map) = (SparseWindow::default(), BTreeMap::new());
            for step in 0..length {
                match numbers.get((code / choices.pow(step) % choices) as usize) {
                    Some(number) => {
                        assert_eq!(places.put(*number, || step), !map.contains_key(number), "code {code}");
                        map.entry(*number).or_insert(step);
                    }
                    None => assert_eq!(places.take_first(), map.pop_first().map(|(_, step)| step), "code {code}"),
                }
                assert_eq!(places.first(), map.first_key_value().map(|(number, step)| (*number, step)), "code {code}");
                assert_eq!(places.is_empty(), map.is_empty(), "code {code}");
                let pages: BTreeSet<_> = map.keys().map(|number| number / PAGE).collect();
                assert_eq!(places.count, pages.len(), "code {code}");
            }
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map_that_is_emptied_from_the_front(steps in prop::collection::vec(prop::option::of(0u64..1_000), 0..400)) {
            let (mut places, mut map) = (SparseWindow::default(), BTreeMap::new());
            for (step, number) in steps.into_iter().enumerate() {
                match number {
                    Some(number) => {
                        prop_assert_eq!(places.put(number, || step), !map.contains_key(&number));
                        map.entry(number).or_insert(step);
                    }
                    None => prop_assert_eq!(places.take_first(), map.pop_first().map(|(_, step)| step)),
                }
                prop_assert_eq!(places.first(), map.first_key_value().map(|(number, step)| (*number, step)));
                prop_assert_eq!(places.is_empty(), map.is_empty());
            }
        }
    }
}
