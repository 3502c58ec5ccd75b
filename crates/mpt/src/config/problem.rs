//! Problems with a configuration file: location, message and hint.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::files::Files;
use crate::{Failure, secrets};

/// A problem with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Error or warning.
    pub severity: ProblemSeverity,
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; absent if it concerns the whole file.
    pub line: Option<usize>,
    /// Description of the fault, with the value.
    pub what: String,
    /// Remedy.
    pub hint: Option<String>,
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemSeverity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but may not do what was intended.
    Warning,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let hint = problem.hint.clone();
        Self { what: Problem { hint: None, ..problem }.to_string(), hint }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        let severity = if self.severity == ProblemSeverity::Warning { " warning:" } else { "" };
        write!(f, "{severity} {}", self.what)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Numbers the lines of several files, so that one number is a location: lines of the main file as they are, those of
/// the `n`th included one from `n` times [`Self::STEP`] on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(Vec<PathBuf>);

impl Lines {
    /// More lines than any configuration has.
    const STEP: usize = 1 << 20;

    /// Adds an included file; returns the base of its line numbers.
    pub fn include(&mut self, path: PathBuf) -> usize {
        self.0.push(path);
        self.0.len() * Self::STEP
    }

    /// Returns the included file of a line, and the line in it; `None` for the main file.
    pub fn locate(&self, line: usize) -> Option<(&Path, usize)> {
        let file = (line / Self::STEP).checked_sub(1)?;
        Some((self.0.get(file)?, line % Self::STEP))
    }
}

/// Collects the problems of one file.
pub struct ProblemLog<'t> {
    path: &'t Path,
    text: &'t str,
    /// The base of its line numbers.
    base: usize,
    /// The files that it includes.
    lines: Lines,
    /// The problems of those.
    included: (Vec<Problem>, Vec<Problem>),
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    unknown: Vec<Unknown>,
    /// Every key that was requested, as `table.key`.
    known: BTreeSet<String>,
    /// The file's permissions, until they have been reported as too open.
    permissions: Option<u32>,
    /// Lines that are not TOML.
    broken: BTreeSet<usize>,
    comma_missed: bool,
    files: &'t Files,
}

/// An unknown key.
struct Unknown {
    table: &'static str,
    key: String,
    line: usize,
}

impl<'t> ProblemLog<'t> {
    /// Makes an empty log.
    pub fn new(path: &'t Path, text: &'t str) -> Self {
        Self {
            path,
            text,
            base: 0,
            lines: Lines::default(),
            included: Default::default(),
            errors: Vec::new(),
            warnings: Vec::new(),
            unknown: Vec::new(),
            known: BTreeSet::new(),
            permissions: None,
            broken: BTreeSet::new(),
            comma_missed: false,
            files: Files::DISK,
        }
    }

    /// Sets where the files are read that it names.
    pub fn with_files(self, files: &'t Files) -> Self {
        Self { files, ..self }
    }

    /// Returns where the files are read that it names.
    pub fn files(&self) -> &'t Files {
        self.files
    }

    /// Sets the file's permissions.
    pub fn with_permissions(self, permissions: u32) -> Self {
        Self { permissions: Some(permissions), ..self }
    }

    /// Sets the base of the line numbers, for an included file.
    pub fn counted_from(self, base: usize) -> Self {
        Self { base, ..self }
    }

    /// Returns the included files.
    pub fn lines(&mut self) -> &mut Lines {
        &mut self.lines
    }

    /// Takes over the problems of an included file.
    pub fn absorb(&mut self, other: ProblemLog<'_>) {
        self.broken.extend(&other.broken);
        let (errors, warnings) = other.finish();
        self.included.0.extend(errors);
        self.included.1.extend(warnings);
    }

    /// Describes a line, for messages about another one.
    pub fn describe_line(&self, line: usize) -> String {
        match self.lines.locate(line) {
            Some((file, line)) => format!("line {line} of {}", file.display()),
            None => format!("line {line}"),
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &'t Path {
        self.path
    }

    /// Reports an error in `line`.
    pub fn error(&mut self, line: usize, what: impl Into<String>, hint: Option<String>) {
        if !self.broken.contains(&line) {
            let problem = self.problem(line, what.into(), hint);
            self.errors.push(problem);
        }
    }

    /// Reports something missing or misplaced in `line` or the table that begins there. Ignored if the file has syntax
    /// errors, which may be the cause.
    pub fn structure(&mut self, line: usize, what: &str, hint: String) {
        if !self.is_broken() {
            self.error(line, what, Some(hint));
        }
    }

    /// Reports that `key` in `line` is a secret and others may read the file. Reports this once.
    pub fn secret(&mut self, line: usize, key: &str) {
        if let Some(loose) = self.permissions.and_then(secrets::LoosePermissions::of) {
            self.permissions = None;
            let what = format!("{key}: a secret, and this file {loose}");
            self.error(line, what, Some(secrets::chmod(self.path)));
        }
    }

    /// Reports a warning for `line`.
    pub fn warn(&mut self, line: usize, what: impl Into<String>, hint: &str) {
        let problem = self.problem(line, what.into(), Some(hint.to_owned()));
        self.warnings.push(Problem { severity: ProblemSeverity::Warning, ..problem });
    }

    /// Returns the problem of a file of wg-quick.
    pub fn wg_quick(&self) -> Problem {
        let hint = format!("mpt import {} -o tunnel.toml converts it", self.path.display());
        self.problem(self.base + 1, "this is a file of wg-quick".to_owned(), Some(hint))
    }

    /// Warns that others may change a file or a folder, and so add peers; `line` is the first of the file, or names the
    /// folder.
    pub fn warn_loose(&mut self, line: usize, path: &Path) {
        let hint = format!("chown root {0}; chmod go-w {0}", path.display());
        self.warn(
            line,
            format!("others than its owner and root may change {}, and so add peers", path.display()),
            &hint,
        );
    }

    /// Reports a TOML syntax error. Reports one per line, since later ones are the parser's guesses; and one missing
    /// comma, since an unclosed bracket causes one in every following line.
    pub fn syntax(&mut self, error: &toml::de::Error) {
        let line = error.span().map_or(1, |span| self.line(span.start));
        let comma = error.message().starts_with("missing comma");
        if !(comma && std::mem::replace(&mut self.comma_missed, comma)) {
            self.error(line, format!("not TOML: {}", error.message()), Some(self.syntax_hint(error.message(), line)));
        }
        self.broken.insert(line);
    }

    /// Returns true if the file has syntax errors, so that missing or unknown keys cannot be determined.
    pub fn is_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// Records that `key` of `table` is known, present or not.
    pub fn add_known(&mut self, table: &str, key: &str) {
        self.known.insert(dotted(table, key));
    }

    /// Records an unknown `key` in `table`.
    pub fn unknown(&mut self, table: &'static str, key: &str, line: usize) {
        self.unknown.push(Unknown { table, key: key.to_owned(), line });
    }

    /// Returns the line of the byte at `offset`, from 1.
    pub fn line(&self, offset: usize) -> usize {
        self.base
            + 1
            + self.text.as_bytes()[..offset.min(self.text.len())].iter().filter(|byte| **byte == b'\n').count()
    }

    /// Returns a value as it is in the file, shortened for a message.
    pub fn shown(&self, span: Range<usize>) -> String {
        let text = self.text.get(span).unwrap_or_default();
        if may_be_key(text) {
            return "this value".to_owned();
        }
        let line = text.lines().next().unwrap_or_default();
        let mut shown: String =
            line.chars().take(MAX_SHOWN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        if shown.len() < text.len() {
            shown.push_str("...");
        }
        shown
    }

    /// Returns errors and warnings, each in the order of lines.
    pub fn finish(mut self) -> (Vec<Problem>, Vec<Problem>) {
        if !self.is_broken() {
            self.report_unknown();
        }
        let own = self.path.to_owned();
        let in_order = |mut problems: Vec<Problem>, included: Vec<Problem>| {
            problems.extend(included);
            problems.sort_by_key(|problem| (problem.file != own, problem.file.clone(), problem.line));
            problems
        };
        (in_order(self.errors, self.included.0), in_order(self.warnings, self.included.1))
    }

    /// Returns every key that was requested, as `table.key`.
    #[cfg(test)]
    pub fn known(&self) -> &BTreeSet<String> {
        &self.known
    }

    fn report_unknown(&mut self) {
        for unknown in std::mem::take(&mut self.unknown) {
            let Unknown { table, key, line } = &unknown;
            self.error(*line, format!("unknown key {key:?} {}", describe_table(table)), Some(self.suggest(&unknown)));
        }
    }

    /// Suggests the intended key, the table that the key belongs to, or the known keys.
    fn suggest(&self, unknown: &Unknown) -> String {
        let keys: Vec<_> = self.known.iter().map(|known| known.rsplit_once('.').unwrap_or(("", known))).collect();
        let here: Vec<_> = keys.iter().filter(|(table, _)| *table == unknown.table).map(|(_, key)| *key).collect();
        if let Some(key) = nearest(&unknown.key, here.iter().copied()) {
            return format!("did you mean {key:?}?");
        }
        // Of several tables with this key, the outermost is the most likely.
        let elsewhere = keys.iter().filter(|(_, key)| *key == unknown.key);
        match elsewhere.min_by_key(|(table, _)| table.len()) {
            Some((table, key)) => format!("{key:?} belongs {}", describe_table(table)),
            None => format!("known here: {}", here.join(", ")),
        }
    }

    fn problem(&self, line: usize, what: String, hint: Option<String>) -> Problem {
        let (file, line) = self.lines.locate(line).unwrap_or((self.path, line - self.base));
        Problem { severity: ProblemSeverity::Error, file: file.to_owned(), line: Some(line), what, hint }
    }

    fn syntax_hint(&self, message: &str, line: usize) -> String {
        if ["missing comma", "in array", "unclosed"].iter().any(|sign| message.contains(sign)) {
            return "a bracket in this line or an earlier one may not be closed".to_owned();
        }
        if message.starts_with("duplicate") {
            return "a key or a [table] may occur once; [[peer]] and [[peer.path]] may be repeated".to_owned();
        }
        self.quotes(line).unwrap_or_else(|| "addresses, durations, keys and names must be in quotes".to_owned())
    }

    /// Suggests quotes, which are the most frequent omission in a line that is not TOML.
    fn quotes(&self, line: usize) -> Option<String> {
        let (key, value) = self.text.lines().nth(line - self.base - 1)?.split_once('=')?;
        let (key, value) = (key.trim(), value.trim());
        if value.is_empty() || value.starts_with('#') {
            return Some(format!("{key} has no value: write one, or remove the line"));
        }
        if value.contains(['\u{201c}', '\u{201d}', '\u{201e}', '\u{2018}', '\u{2019}', '\u{ab}', '\u{bb}']) {
            return Some("these are typographic quotes; write \"".to_owned());
        }
        if key.ends_with("_key") || may_be_key(value) {
            return (!value.starts_with('"')).then(|| format!("put the value in quotes: {key} = \"...\""));
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || ".:/-_".contains(c);
        let number = value.parse::<f64>().is_ok();
        let bare = !number && value.chars().all(is_word);
        bare.then(|| format!("put the value in quotes: {key} = {value:?}"))
    }
}

/// Returns the word of `words` of which `word` may be a misspelling.
pub fn nearest<'w>(word: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let likeness = |other: &str| strsim::normalized_damerau_levenshtein(word, other);
    let scored = words.into_iter().map(|other| (likeness(other), other)).filter(|(score, _)| *score >= MIN_SIMILARITY);
    scored.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, other)| other)
}

/// Returns true if a text may contain a key, or most of one: keys are 44 characters of base64.
fn may_be_key(text: &str) -> bool {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    text.split(|c| !is_base64(c)).any(|word| word.len() >= 40)
}

fn dotted(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

fn describe_table(table: &str) -> String {
    match table {
        "" => "at the top of the file, before the first [table]".to_owned(),
        "peer" | "peer.path" | "rule" => format!("in [[{table}]]"),
        _ => format!("in [{table}]"),
    }
}

/// Maximum characters of a value in messages.
const MAX_SHOWN: usize = 60;
/// Minimum similarity for a misspelling; 1 is equality. A transposition in a word of five letters has 0.8, and
/// unrelated keys of the schema stay below 0.6.
const MIN_SIMILARITY: f64 = 0.7;
