//! Paths by slot.

use std::ops::{Index, IndexMut};

use crate::id::{MAX_PATHS, PathId};

/// The paths of one peer, each in its slot.
///
/// A slot outlives its path: a removed path leaves the entry vacant, so the slots behind it keep their numbers.
#[derive(Debug)]
pub struct PathTable<T>(Vec<T>);

impl<T> PathTable<T> {
    /// Puts `path` into the slot `slot`, which is an existing one or the next.
    pub fn put(&mut self, slot: u8, path: T) {
        match self.0.get_mut(usize::from(slot)) {
            Some(entry) => *entry = path,
            None => self.0.push(path),
        }
    }

    /// Returns the number of slots, vacant ones included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the paths in order of their slots.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Returns the paths in order of their slots.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }

    /// Returns the path in `slot`.
    pub fn in_slot(&self, slot: u8) -> Option<&T> {
        self.0.get(usize::from(slot))
    }

    /// Returns the next slot that was never used, if there is one.
    pub fn next_slot(&self) -> Option<u8> {
        (self.0.len() < MAX_PATHS).then_some(self.0.len() as u8)
    }

    /// Copies the identifiers that `id` gives the paths, so that the paths can change while a loop goes over them.
    pub fn ids(&self, id: fn(&T) -> PathId) -> impl Iterator<Item = PathId> + use<T> {
        let mut ids = [PathId::default(); MAX_PATHS];
        let count = self.0.len().min(MAX_PATHS);
        ids.iter_mut().zip(&self.0).for_each(|(entry, path)| *entry = id(path));
        ids.into_iter().take(count)
    }
}

impl<T> FromIterator<T> for PathTable<T> {
    fn from_iter<I: IntoIterator<Item = T>>(paths: I) -> Self {
        Self(paths.into_iter().collect())
    }
}

impl<T> Index<PathId> for PathTable<T> {
    type Output = T;

    fn index(&self, path: PathId) -> &T {
        &self.0[usize::from(path.slot)]
    }
}

impl<T> IndexMut<PathId> for PathTable<T> {
    fn index_mut(&mut self, path: PathId) -> &mut T {
        &mut self.0[usize::from(path.slot)]
    }
}

impl<'a, T> IntoIterator for &'a PathTable<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut PathTable<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
