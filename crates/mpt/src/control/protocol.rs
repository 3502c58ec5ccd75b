//! Requests and responses.

use serde::{Deserialize, Serialize};

use super::report::Report;
use crate::Failure;

/// What a running tunnel is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Tell how it is.
    Status,
    /// Take a path up or down.
    Path {
        /// The peer's name.
        peer: String,
        /// The path's name.
        path: String,
        /// Up or down.
        action: Action,
    },
    /// End.
    Down,
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
