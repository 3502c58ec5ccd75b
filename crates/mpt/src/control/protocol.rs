//! Requests and responses.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::report::{PathTestReport, Report};
use crate::Failure;

/// A request to a running tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Return the status report: of all peers, or of some, because a report of thousands takes milliseconds.
    Status {
        /// Number of peers to skip.
        #[serde(default)]
        first: usize,
        /// Maximum number of peers; default: all.
        #[serde(default)]
        count: Option<usize>,
    },
    /// Return the status report with one peer.
    PeerStatus {
        /// The peer's name.
        peer: String,
    },
    /// Send events from now on, in lines of their own.
    Watch {},
    /// Take a path up or down.
    Path {
        /// The peer's name.
        peer: String,
        /// The path's name.
        path: String,
        /// Up or down.
        action: Action,
    },
    /// Measure a path with traffic of its own; answered when both directions are measured.
    Test {
        /// The peer's name.
        peer: String,
        /// The path's name.
        path: String,
    },
    /// Take the paths between two addresses up or down.
    Ends {
        /// This host's address, as the peer sees it.
        local: IpAddr,
        /// The peer's address.
        remote: IpAddr,
        /// Up or down.
        action: Action,
    },
    /// Add an address to an interface (up) or remove it (down).
    Address {
        /// Add or remove.
        action: Action,
        /// The address.
        address: IpAddr,
        /// The prefix length of its network.
        length: u8,
        /// The interface.
        interface: String,
    },
    /// Take an interface with all its paths up or down.
    Interface {
        /// The interface.
        interface: String,
        /// Up or down.
        action: Action,
    },
    /// Let everything leave beside the tunnel for a while.
    Bypass {
        /// For so long; `null` ends it.
        seconds: Option<u64>,
    },
    /// Read the configuration again, and restart one connection or all.
    Reload {
        /// A file of the original, or a peer's name.
        connection: Option<String>,
    },
    /// Restart one connection or all.
    Restart {
        /// A file of the original, or a peer's name.
        connection: Option<String>,
    },
    /// End a connection, and disable its file.
    Delete {
        /// A file of the original, or a peer's name.
        connection: String,
    },
    /// Write one connection or all to their files.
    Save {
        /// A file of the original, or a peer's name.
        connection: Option<String>,
    },
    /// Request that the peer creates its side of a connection; answered after the peer's answer.
    Create {
        /// A file of the original, or a peer's name.
        connection: String,
    },
    /// End the tunnel.
    Down {},
}

impl Request {
    /// Requests the status of all peers.
    pub const STATUS: Self = Self::Status { first: 0, count: None };

    /// Returns true if the request changes nothing.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::Status { .. } | Self::PeerStatus { .. } | Self::Watch {})
    }
}

/// An operation on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Enable the path.
    Up,
    /// Disable the path until it is enabled again.
    Down,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Done, or in progress in the case of [`Request::Down`].
    Done {},
    /// The status report.
    Status(Report),
    /// The result of [`Request::Test`].
    Tested(PathTestReport),
    /// An event, for a client that watches.
    Event(Event),
    /// Events were lost, because the client did not read.
    Lost {
        /// Number of events.
        events: u64,
    },
    /// The request failed.
    Error {
        /// The reason.
        what: String,
        /// Remedy.
        hint: Option<String>,
    },
}

/// An event of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The event.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kind of an event. Readers should skip unknown kinds and fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The state of a path has changed.
    Path {
        /// The peer's name.
        peer: String,
        /// The path's name.
        path: String,
        /// `up`, or the cause for which it was down.
        from: String,
        /// `up`, or the cause for which it is down.
        to: String,
    },
    /// One of several servers of a peer is used otherwise now.
    Server {
        /// The server's name, `PEER/SERVER`.
        peer: String,
        /// `active`, `standby` or `idle`.
        to: String,
    },
    /// A path has used up 80 % of its limit.
    LimitWarning {
        /// The peer's name.
        peer: String,
        /// The path's name.
        path: String,
    },
    /// A path has used up its limit.
    Limit {
        /// The peer's name.
        peer: String,
        /// The path's name.
        path: String,
    },
    /// The largest inner packet has changed.
    Mtu {
        /// In bytes.
        mtu_bytes: usize,
    },
    /// The configuration was read again.
    Reloaded {},
    /// The tunnel ends.
    Stopping {},
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

impl From<Failure> for Response {
    fn from(failure: Failure) -> Self {
        Self::Error { what: failure.what, hint: failure.hint }
    }
}
