//! What is wrong with a plan, where, and what to try.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

/// The first thing that is wrong with a plan.
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

/// The text of a plan and the file it came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// What is wrong at a place in the text. A hint that stands in the message, as those of links do, is taken from there.
    pub(super) fn problem(&self, span: Range<usize>, what: impl Into<String>, hint: impl Into<String>) -> Problem {
        let (what, hint) = (what.into(), hint.into());
        let (what, hint) = match what.split_once("; hint: ") {
            Some((what, inside)) => (what.to_owned(), inside.to_owned()),
            None => (what, hint),
        };
        let before = self.text.as_bytes().iter().take(span.start);
        Problem { file: self.file.into(), line: 1 + before.filter(|byte| **byte == b'\n').count(), what, hint }
    }

    /// What the TOML parser has to say.
    pub(super) fn syntax(&self, error: &toml::de::Error) -> Problem {
        let message = error.message();
        let (what, hint) = match message.split_once(", expected ") {
            Some((what, expected)) => (what, format!("known here: {}", expected.trim_start_matches("one of "))),
            None => (message, "texts and lists stand in quotes and brackets; docs/guide/lab.md shows every key".into()),
        };
        self.problem(error.span().unwrap_or(0..0), what, closer(what, hint))
    }
}

/// The known word that an unknown one may be a misspelling of, in place of all known words.
fn closer(what: &str, hint: String) -> String {
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let Some(word) = quoted(what).into_iter().next() else { return hint };
    let likeness = |known: &String| (strsim::normalized_damerau_levenshtein(&word, known) * 100.0) as u32;
    let best = quoted(&hint).into_iter().max_by_key(likeness);
    best.filter(|known| likeness(known) >= ALIKE).map_or(hint, |known| format!("did you mean '{known}'?"))
}

/// In percent; as `mpt` takes words for misspellings of one another.
const ALIKE: u32 = 70;
