//! The configuration file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config::{self, Problem, ProblemSeverity};
use crate::doctor::facts::Config;

/// Reads the file, which a running tunnel may have named: other kinds than regular files are left out. A directory is
/// one of the original MPT, which the checks do not know.
pub fn read(path: &Path) -> Config {
    match fs::metadata(path) {
        Ok(kind) if kind.is_dir() => Config::Absent,
        Ok(kind) if !kind.is_file() => broken(path, "it is no file"),
        Ok(_) => match config::load(path) {
            Ok(file) => Config::Read(Box::new(file)),
            Err(problems) => Config::Broken(path.to_owned(), problems),
        },
        Err(error) => broken(path, &format!("cannot be read: {error}")),
    }
}

fn broken(path: &Path, what: &str) -> Config {
    let (file, what) = (PathBuf::from(path), what.to_owned());
    let hint = Some("name a configuration file: mpt doctor FILE".to_owned());
    Config::Broken(path.to_owned(), vec![Problem { severity: ProblemSeverity::Error, file, line: None, what, hint }])
}
