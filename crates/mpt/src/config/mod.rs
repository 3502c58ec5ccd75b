//! The configuration file: from TOML to checked values.
//!
//! ```text
//!   FILE -> toml -> reader + value_types -> schema -> model::File -> checks
//!             \         \                      \                      /
//!              '---------'--> ProblemLog: every problem with its line <
//! ```
//!
//! - [`model`] is the result for the rest of the program;
//! - [`defaults`] has every default with its reason;
//! - `schema` is the file format: one function per table, one line per key;
//! - `include` reads peers from separate files;
//! - `rules` reads classification rules;
//! - [`peer_source`] reads peers on demand;
//! - [`servers`] reads several servers of one peer, [`server_list`] signed lists of them;
//! - [`tls`] has paths over TLS;
//! - `native` has the keys of native mode, `original` those for peers that run the original MPT;
//! - [`describe`] converts a configuration to the format of the original MPT;
//! - `values` are values with their lines, and the enumerations that [`defaults`] needs;
//! - `value_types` are the types of values (a port, a duration, a prefix) and `reader` extracts them from a table;
//! - `checks` has the checks that involve several values.
//!
//! Reading continues after an error, so that a user sees all of them at once. A wrong value is left out, and its
//! absence causes no further error. `docs/guide/config.md` is the user reference; a test keeps it complete.

pub mod bypass;
mod checks;
pub mod defaults;
pub mod describe;
pub mod forward;
mod include;
pub mod model;
mod native;
mod original;
pub mod peer_source;
mod problem;
mod reader;
mod rules;
mod schema;
pub mod server_list;
pub mod servers;
mod tables;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod value_types;
mod values;

use std::path::Path;

pub use checks::NAME_SERVER_COUNT;
pub use model::File;
pub use problem::{Problem, ProblemSeverity};
pub(crate) use value_types::is_host;

use crate::files::Files;
use crate::legacy::toml::{Allowed, Imported};
use crate::legacy::{self, LegacyProblem, LegacySetup, Note};
use crate::secrets;
use model::FileFormat;
use problem::ProblemLog;
use toml::de::DeTable;

/// Reads and checks the file at `path` and its key files. Warnings are in [`File::warnings`].
///
/// # Errors
/// All problems, in the order of lines. It is an error, too, if others may read a file with a secret.
pub fn load(path: &Path) -> Result<File, Vec<Problem>> {
    load_from(Files::DISK, path)
}

/// Does the same with these files.
pub(crate) fn load_from(files: &Files, path: &Path) -> Result<File, Vec<Problem>> {
    match files.read(path, u64::MAX) {
        Ok(read) => {
            let mut log = ProblemLog::new(path, &read.text).with_permissions(read.permissions).with_files(files);
            if read.may_be_changed_by_others {
                log.warn_loose(1, path);
            }
            checked(log, &read.text)
        }
        Err(error) => Err(vec![unreadable(path, &error)]),
    }
}

/// Reads and checks `text` as the file at `path`, and its key files.
///
/// # Errors
/// All problems, in the order of lines.
pub fn parse(path: &Path, text: &str) -> Result<File, Vec<Problem>> {
    checked(ProblemLog::new(path, text), text)
}

fn checked(mut log: ProblemLog<'_>, text: &str) -> Result<File, Vec<Problem>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() && legacy::wg_quick::is_wg_quick(text) {
        return Err(vec![log.wg_quick()]);
    }
    errors.iter().for_each(|error| log.syntax(error));
    let file = schema::file(document.get_ref(), &mut log);
    let (errors, warnings) = log.finish();
    if errors.is_empty() { Ok(File { warnings, ..file }) } else { Err(errors) }
}

/// Reads a configuration directory of the original, as `mpt import` followed by `mpt up`. Notes list settings without
/// effect.
///
/// # Errors
/// All problems of its files, as text.
pub fn load_original(folder: &Path, allowed: Allowed) -> Result<(File, Vec<Note>), Vec<String>> {
    let Imported { text, notes } = import_original(folder, allowed)?;
    Ok((parse_original(Files::DISK, folder, &text)?, notes))
}

/// Converts a configuration directory of the original.
///
/// # Errors
/// All problems of its files, as text.
pub(crate) fn import_original(folder: &Path, allowed: Allowed) -> Result<Imported, Vec<String>> {
    let text = |problems: Vec<_>| problems.iter().map(LegacyProblem::to_string).collect::<Vec<_>>();
    let setup = LegacySetup::load(&[folder.to_owned()]).map_err(text)?;
    Ok(legacy::toml::write(&setup, allowed, legacy::folder::template(&setup).as_deref()))
}

/// Reads a converted configuration directory of the original.
///
/// # Errors
/// All problems, as text.
pub(crate) fn parse_original(files: &Files, folder: &Path, text: &str) -> Result<File, Vec<String>> {
    let read = checked(ProblemLog::new(folder, text).with_files(files), text);
    let file =
        read.map_err(|problems| problems.iter().map(|problem| without_line(problem).to_string()).collect::<Vec<_>>())?;
    Ok(File { format: FileFormat::Original, ..file })
}

/// Checks a file for consistency again, after it was changed at run time.
///
/// # Errors
/// All problems.
pub fn check(file: &File) -> Result<(), Vec<Problem>> {
    let mut log = ProblemLog::new(&file.path, "");
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
        severity: ProblemSeverity::Error,
        file: path.to_owned(),
        line: None,
        what: format!("cannot be read: {error}"),
        hint: Some(hint),
    }
}

/// Removes the line, which refers to intermediate text.
fn without_line(problem: &Problem) -> Problem {
    Problem { line: None, ..problem.clone() }
}
