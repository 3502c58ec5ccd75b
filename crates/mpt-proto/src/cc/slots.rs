//! One value per path, indexed by slot; the identifier of a former path in the slot finds nothing.

use crate::id::PathId;

#[derive(Clone, Debug)]
pub struct Slots<T>(Vec<Option<(PathId, T)>>);

impl<T> Slots<T> {
    pub fn insert(&mut self, path: PathId, value: T) {
        let slot = usize::from(path.slot);
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        self.0[slot] = Some((path, value));
    }

    pub fn remove(&mut self, path: PathId) {
        if self.get(path).is_some() {
            self.0[usize::from(path.slot)] = None;
        }
    }

    pub fn get(&self, path: PathId) -> Option<&T> {
        let (owner, value) = self.0.get(usize::from(path.slot))?.as_ref()?;
        (*owner == path).then_some(value)
    }

    pub fn get_mut(&mut self, path: PathId) -> Option<&mut T> {
        let (owner, value) = self.0.get_mut(usize::from(path.slot))?.as_mut()?;
        (*owner == path).then_some(value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (PathId, &T)> {
        self.0.iter().flatten().map(|(path, value)| (*path, value))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (PathId, &mut T)> {
        self.0.iter_mut().flatten().map(|(path, value)| (*path, value))
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten().map(|(_, value)| value)
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}
