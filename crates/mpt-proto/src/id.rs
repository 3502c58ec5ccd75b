//! Identifiers of links and paths.
//!
//! Each end numbers its own paths. A [`PathId`] is a path of this end and a [`RemotePathId`] one of the peer's; the
//! types keep the two numberings apart. A datagram carries the sender's number, an acknowledgement that of the end it
//! is sent to.

use std::fmt;

/// The most paths of one peer: a slot fits five bits of a datagram's header.
pub const MAX_PATHS: usize = 32;

/// A local UDP socket. Several paths may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u8);

/// A path of this end: its slot, and how often the slot has been given to a new path.
///
/// The generation keeps a late message about a removed path from its successor, and a nonce that is built from both
/// never repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId {
    /// Index among the peer's paths, below [`MAX_PATHS`].
    pub slot: u8,
    /// Counts the paths that have had this slot, modulo 256.
    pub generation: u8,
}

/// A path of the peer, in the peer's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePathId {
    /// Index among the paths of the peer, below [`MAX_PATHS`].
    pub slot: u8,
    /// The low bits of the generation, as a datagram carries them.
    pub generation: u8,
}

/// The number of a datagram in its slot: one more for every datagram sent on any path that has had the slot. It never
/// repeats while both ends keep running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathSeq(pub u64);

/// A set of paths of this end, by slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSet(u32);

impl PathSet {
    /// Every path.
    pub const ALL: Self = Self(u32::MAX);
    /// No path.
    pub const NONE: Self = Self(0);

    /// Returns the set of `path` alone.
    pub const fn only(path: PathId) -> Self {
        Self(1 << path.slot)
    }

    /// Returns true if `path` is in the set.
    pub const fn contains(self, path: PathId) -> bool {
        self.0 & 1 << path.slot != 0
    }

    /// Adds `path`.
    pub fn insert(&mut self, path: PathId) {
        self.0 |= 1 << path.slot;
    }

    /// Returns the number of paths.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns the paths of this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the paths of either set.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Default for PathSet {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromIterator<PathId> for PathSet {
    fn from_iter<I: IntoIterator<Item = PathId>>(paths: I) -> Self {
        paths.into_iter().fold(Self::NONE, |mut set, path| {
            set.insert(path);
            set
        })
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}
