//! What has come of the numbers behind a hole. A place costs next to nothing where packets follow one another, and a
//! jump in the numbers takes no room for what it leaves out: a peer that jumps in each of a thousand buckets would have
//! half a gigabyte set aside with as many packets.

use std::collections::VecDeque;

/// Things by number, in pages that are there when something is in them.
#[derive(Debug)]
pub(super) struct SparseWindow<T> {
    /// The first is always there.
    pages: VecDeque<Option<Box<Page<T>>>>,
    /// The number of the first page.
    first: u64,
    /// Pages that are there.
    count: usize,
}

#[derive(Debug)]
struct Page<T> {
    /// Which places are taken, as a bit set.
    taken: u64,
    places: [Option<T>; PAGE as usize],
}

const PAGE: u64 = 64;
/// Pages whose list stays reserved: every flow bucket has one, and few need more at a time.
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

    /// Puts something in a place; false when that is taken.
    pub(super) fn put(&mut self, number: u64, what: impl FnOnce() -> T) -> bool {
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
            page.places[(number % PAGE) as usize] = Some(what());
        }
        is_free
    }

    /// The lowest number that has something, and that.
    pub(super) fn first(&self) -> Option<(u64, &T)> {
        let page = self.pages.front()?.as_ref()?;
        let place = page.taken.trailing_zeros();
        Some((self.first * PAGE + u64::from(place), page.places.get(place as usize)?.as_ref()?))
    }

    /// Takes out what [`Self::first`] shows.
    pub(super) fn take_first(&mut self) -> Option<T> {
        let page = self.pages.front_mut()?.as_mut()?;
        let what = page.places.get_mut(page.taken.trailing_zeros() as usize)?.take();
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
        what
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_jump_leaves_out_takes_no_room() {
        let mut places = SparseWindow::default();
        assert!(places.put(1, || ()) && places.put(16_384, || ()));
        assert_eq!(places.pages.iter().flatten().count(), 2);
        places.take_first().unwrap();
        assert_eq!((places.pages.len(), places.first().map(|(number, ())| number)), (1, Some(16_384)));
        places.take_first().unwrap();
        assert_eq!((places.pages.capacity(), places.take_first()), (0, None));
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
