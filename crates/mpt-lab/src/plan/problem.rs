//! Errors in plans: place, problem, hint.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

/// The first error in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    file: PathBuf,
    line: usize,
    what: String,
    hint: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what, hint } = self;
        write!(f, "{}:{line}: {what}", file.display())?;
        if hint.is_empty() { Ok(()) } else { write!(f, "\n  hint: {hint}") }
    }
}

impl std::error::Error for Problem {}

/// The text of a plan and its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanText<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl PlanText<'_> {
    /// Returns an error at a place in the text. A hint inside the message, as in errors of links, replaces the given
    /// hint.
    pub(super) fn problem(&self, span: Range<usize>, what: impl Into<String>, hint: impl Into<String>) -> Problem {
        let (what, hint) = (what.into(), hint.into());
        let (what, hint) = match what.split_once("; hint: ") {
            Some((what, inside)) => (what.to_owned(), inside.to_owned()),
            None => (what, hint),
        };
        let before = self.text.as_bytes().iter().take(span.start);
        Problem { file: self.file.into(), line: 1 + before.filter(|byte| **byte == b'\n').count(), what, hint }
    }

    /// Converts an error of the TOML parser.
    pub(super) fn syntax(&self, error: &toml::de::Error) -> Problem {
        let message = error.message();
        let (what, hint) = match message.split_once(", expected ") {
            Some((what, expected)) => (what, format!("known here: {}", expected.trim_start_matches("one of "))),
            None => (message, "put texts in quotes and lists in brackets; docs/guide/lab.md shows every key".into()),
        };
        self.problem(error.span().unwrap_or(0..0), what, with_suggestion(what, hint))
    }
}

/// Suggests the known key that is most similar to an unknown one, in place of the list of all known keys.
fn with_suggestion(what: &str, hint: String) -> String {
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let Some(unknown) = quoted(what).into_iter().next() else { return hint };
    let similarity = |known: &String| (strsim::normalized_damerau_levenshtein(&unknown, known) * 100.0) as u32;
    let best = quoted(&hint).into_iter().max_by_key(similarity);
    best.filter(|known| similarity(known) >= MIN_SIMILARITY).map_or(hint, |known| format!("did you mean '{known}'?"))
}

/// In percent; the same limit as in the configuration parser of `mpt`.
const MIN_SIMILARITY: u32 = 70;
