//! Mistakes in files of the original, and notes on settings that are not carried over.

use std::fmt;

/// A mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyProblem {
    /// The name of the file.
    pub file: String,
    /// The line, counted from 1; 0 if it concerns the whole file.
    pub line: usize,
    /// Description of the fault, with the expected value.
    pub what: String,
    /// Remedy.
    pub hint: String,
}

/// A setting without effect here, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The name of the file.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// Settings that are not carried over, each with the reason.
    pub what: String,
}

impl LegacyProblem {
    /// Makes a mistake in line `line` of `file`.
    pub fn new(file: &str, line: usize, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { file: file.into(), line, what: what.into(), hint: hint.into() }
    }

    /// Returns location and message, without the hint.
    pub fn location_and_cause(&self) -> String {
        Note::new(&self.file, self.line, &*self.what).to_string()
    }
}

impl Note {
    /// Makes a note on line `line` of `file`.
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
