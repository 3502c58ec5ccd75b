//! Paths: one way from here to a peer.

pub mod ack;
pub mod delivery;
pub mod feedback;
pub mod receive;
pub mod rtt;
pub mod sample;
pub mod sent;
pub mod window;

use std::fmt;

/// A local socket, that is a way out of this host. Several paths may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u8);

/// A path of one peer: its slot, and how often the slot has been given to a new path. A late word about a path that is
/// gone never touches its successor, and a nonce built from both never repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId {
    /// Index among the peer's paths, below [`MAX_PATHS`].
    pub slot: u8,
    /// Counts the paths that have had this slot.
    pub generation: u8,
}

/// Number of a datagram on its path. Every path counts for itself, so reordering between paths never looks like loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathSeq(pub u64);

/// The most paths a peer can have.
pub const MAX_PATHS: usize = 32;

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}
