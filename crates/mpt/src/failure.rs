//! What is told to the user when a command cannot be carried out.

use std::error::Error;
use std::fmt;

use crate::config::Problem;

/// What went wrong, with what, and what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong, with what.
    pub what: String,
    /// What to try.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure that explains itself.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None }
    }

    /// With something to try.
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

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let hint = problem.hint.clone();
        Self { what: Problem { hint: None, ..problem }.to_string(), hint }
    }
}
