//! The configuration file: from TOML to values that have been checked.
//!
//! ```text
//!   FILE -> toml -> reader + forms -> schema -> model::File -> checks
//!             \         \                \                      /
//!              '---------'--> Log: every problem with its line <
//! ```
//!
//! - [`model`] is what the rest of the program sees;
//! - [`defaults`] holds every default with its reason;
//! - `schema` is the file format: one function per table, one line per key;
//! - `include` reads peers from files of their own;
//! - `rules` says which packets are treated otherwise than others;
//! - `native` are the parts of it that only native mode has, `original` those for peers that run the original MPT, and
//!   `secrets` the files with keys;
//! - `forms` are the kinds of values (a port, a duration, a prefix) and `reader` takes them out of a table;
//! - `checks` is what can only be judged when several values are known.
//!
//! Reading goes on after an error, so that a user sees all of them at once. A value that is wrong is left out, and no
//! further error follows from its absence. `docs/guide/config.md` is the reference for people; a test keeps it complete.

mod checks;
pub mod defaults;
mod forms;
mod include;
pub mod model;
mod native;
mod original;
mod problem;
mod reader;
mod rules;
mod schema;
pub(crate) mod secrets;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use model::File;
pub use problem::{Problem, Severity};

use problem::Log;
use toml::de::DeTable;

/// Reads and checks the file at `path`, and the files with keys that it names. What is odd but allowed is in
/// [`File::warnings`].
///
/// # Errors
/// Everything that is wrong with it, in the order of its lines; also that others may read it when there is a secret in it.
pub fn load(path: &Path) -> Result<File, Vec<Problem>> {
    match secrets::read(path, u64::MAX) {
        Ok(read) => checked(Log::new(path, &read.text).with_permissions(read.permissions), &read.text),
        Err(error) => Err(vec![unreadable(path, &error)]),
    }
}

/// Reads and checks `text`, which stands or will stand in the file at `path`, and the files with keys that it names.
///
/// # Errors
/// Everything that is wrong with it, in the order of its lines.
pub fn parse(path: &Path, text: &str) -> Result<File, Vec<Problem>> {
    checked(Log::new(path, text), text)
}

fn checked(mut log: Log<'_>, text: &str) -> Result<File, Vec<Problem>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    errors.iter().for_each(|error| log.syntax(error));
    let file = schema::file(document.get_ref(), &mut log);
    let (errors, warnings) = log.finish();
    if errors.is_empty() { Ok(File { warnings, ..file }) } else { Err(errors) }
}

/// Checks the values of a file against one another once more, after it was changed while the tunnel runs.
///
/// # Errors
/// What is wrong with it.
pub fn check(file: &File) -> Result<(), Vec<Problem>> {
    let mut log = Log::new(&file.path, "");
    *log.lines() = file.lines.clone();
    checks::check(file, &mut log);
    let (errors, _) = log.finish();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
    let hint = match error.kind() {
        std::io::ErrorKind::InvalidData => "the file must be UTF-8 text".to_owned(),
        _ => secrets::hint_for(error, "name a configuration file; docs/guide/config.md shows one to start from"),
    };
    Problem {
        severity: Severity::Error,
        file: path.to_owned(),
        line: None,
        what: format!("cannot be read: {error}"),
        hint: Some(hint),
    }
}
