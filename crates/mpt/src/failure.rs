//! The error type of commands, for the user.

use std::error::Error;
use std::fmt;

/// An error: what failed, on what, and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The failed operation and its object.
    pub what: String,
    /// Remedy.
    pub hint: Option<String>,
}

impl Failure {
    /// Makes a failure without a hint.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None }
    }

    /// Adds a hint.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl Error for Failure {}

impl From<mpt_linux::Error> for Failure {
    fn from(error: mpt_linux::Error) -> Self {
        Self { what: error.to_string(), hint: error.hint().map(str::to_owned) }
    }
}
