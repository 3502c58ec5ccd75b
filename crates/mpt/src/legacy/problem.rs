//! What is wrong with a file, and what is not carried over from it.

use std::fmt;

/// A mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyProblem {
    /// The file, as it was named.
    pub file: String,
    /// The line, counted from 1; 0 when it is about the whole file.
    pub line: usize,
    /// What is wrong, and what was expected there.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

/// Something in a file that has no effect here, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The file, as it was named.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is not carried over, and why.
    pub what: String,
}

impl LegacyProblem {
    /// A mistake in line `line` of `file`.
    pub fn new(file: &str, line: usize, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { file: file.into(), line, what: what.into(), hint: hint.into() }
    }

    /// Where it is and what is wrong, without what to do about it.
    pub fn location_and_cause(&self) -> String {
        Note::new(&self.file, self.line, &*self.what).to_string()
    }
}

impl Note {
    /// A remark about line `line` of `file`.
    pub fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.into(), line, what: what.into() }
    }
}

impl fmt::Display for LegacyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  hint: {}", self.location_and_cause(), self.hint)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        place(f, &self.file, self.line)?;
        f.write_str(&self.what)
    }
}

impl std::error::Error for LegacyProblem {}

fn place(f: &mut fmt::Formatter<'_>, file: &str, line: usize) -> fmt::Result {
    if line == 0 { write!(f, "{file}: ") } else { write!(f, "{file}:{line}: ") }
}
