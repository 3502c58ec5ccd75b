//! Errors of the operations that change a running endpoint. A lost packet is no error: it is counted as a
//! [`Dropped`](crate::Dropped).

use std::fmt;

/// The reason why an operation on a peer or on one of its paths had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// No peer has this name.
    NoSuchPeer,
    /// The peer has no path of this name.
    NoSuchPath,
    /// The operation exists in native mode only, and the peer uses plain mode.
    NotNative,
    /// The path has no remote address.
    NoAddress,
    /// The peer has the maximum number of paths, [`MAX_PATHS`](crate::MAX_PATHS).
    NoSlot,
    /// The path is down.
    PathDown,
    /// A path of this peer is being tested.
    Busy,
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchPeer => "there is no peer of this name",
            Self::NoSuchPath => "this peer has no path of this name",
            Self::NotNative => "this peer uses plain mode, in which paths are fixed",
            Self::NoAddress => "this path has no remote address",
            Self::NoSlot => "this peer has the maximum number of paths",
            Self::PathDown => "this path is down",
            Self::Busy => "a path of this peer is being tested",
        })
    }
}

impl std::error::Error for PeerError {}
