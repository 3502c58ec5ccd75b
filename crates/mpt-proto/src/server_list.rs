//! Lists of servers, which a server sends to its sites. The core reads the number of the version alone: who made a list
//! and what it means is decided outside.

/// The most octets of a list: 16 servers with some addresses each.
pub const MAX_LIST: usize = 4096;

/// A list of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerList {
    /// Grows with each list of a cluster.
    pub version: u64,
    /// The list, 1 to [`MAX_LIST`] octets.
    pub bytes: Vec<u8>,
}

/// A peer has sent a list of servers, or offers one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerListEvent {
    /// Name of the peer.
    pub peer: String,
    /// The list, or the reason why there is none.
    pub offered: OfferedList,
}

/// A list that a peer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferedList {
    /// It is newer than the present one, and is here. Nothing vouches for its contents.
    Newer(ServerList),
    /// It has this version, which is lower than that of the present one. Reported once for each version.
    Older(u64),
    /// No list is taken from this peer. Reported once.
    Unwanted,
}
