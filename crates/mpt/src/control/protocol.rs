//! Requests and responses.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::report::Report;
use crate::Failure;

/// What a running tunnel is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Tell how it is.
    Status {},
    /// Take a path up or down.
    Path {
        /// The peer's name.
        peer: String,
        /// The path's name.
        path: String,
        /// Up or down.
        action: Action,
    },
    /// Take the paths between two addresses up or down.
    Ends {
        /// This host's address, as the peer knows it.
        local: IpAddr,
        /// The peer's.
        remote: IpAddr,
        /// Up or down.
        action: Action,
    },
    /// Give an interface an address (up) or take it away (down).
    Address {
        /// Give, or take away.
        action: Action,
        /// The address.
        address: IpAddr,
        /// The length of its network's prefix.
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
    /// Read the configuration again, and begin anew with one connection or with all.
    Reload {
        /// A file of the original's, or a peer's name.
        connection: Option<String>,
    },
    /// Begin anew with one connection or with all.
    Restart {
        /// A file of the original's, or a peer's name.
        connection: Option<String>,
    },
    /// End a connection, and take its file out of use.
    Delete {
        /// A file of the original's, or a peer's name.
        connection: String,
    },
    /// Write one connection or all to their files.
    Save {
        /// A file of the original's, or a peer's name.
        connection: Option<String>,
    },
    /// Ask the peer to create its side of a connection; answered when the peer has answered.
    Create {
        /// A file of the original's, or a peer's name.
        connection: String,
    },
    /// End.
    Down {},
}

/// What can be done to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Use it again.
    Up,
    /// Do not use it until told otherwise.
    Down,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// It is done, or under way in the case of [`Request::Down`].
    Done {},
    /// How it is.
    Status(Report),
    /// It cannot be done.
    Error {
        /// Why.
        what: String,
        /// What to try.
        hint: Option<String>,
    },
}

impl From<Failure> for Response {
    fn from(failure: Failure) -> Self {
        Self::Error { what: failure.what, hint: failure.hint }
    }
}
