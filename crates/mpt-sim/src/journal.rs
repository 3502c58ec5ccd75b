//! The journal of a run: a hash over every datagram that arrives and every packet that is delivered, with their times.
//!
//! Two runs with equal journals carried the same bytes at the same times, so a change without effect on behaviour
//! leaves every journal unchanged. Each simulation test has its journals in `lab/journals`, one file per test program,
//! and fails if one of them differs. `.cargo/config.toml` sets [`FOLDER`]; with [`ACCEPT`] set, the files are written.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, thread};

/// Environment variable: the folder with the committed journals.
pub const FOLDER: &str = "MPT_JOURNALS";
/// Environment variable: if set, journals are written instead of compared.
pub const ACCEPT: &str = "MPT_JOURNALS_ACCEPT";

/// A hash over the events of a run. If it is dropped in a test's thread, it is compared with the committed one.
#[derive(Debug, Default)]
pub struct Journal(DefaultHasher);

impl Journal {
    /// Adds an event.
    pub fn record(&mut self, event: impl Hash) {
        event.hash(&mut self.0);
    }

    /// Returns the hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.0.finish()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let test = thread::current().name().filter(|name| *name != "main").map(str::to_owned);
        if let Some((folder, test)) = env::var_os(FOLDER).zip(test).filter(|_| !thread::panicking()) {
            compare(Path::new(&folder), &test, self.hash());
        }
    }
}

/// The journals of this process: for each test in the order in which its runs ended.
static ENDED: Mutex<BTreeMap<String, Vec<u64>>> = Mutex::new(BTreeMap::new());

fn compare(folder: &Path, test: &str, hash: u64) {
    let Some(file) = journal_file(folder) else { return };
    let mut ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    let runs = ended.entry(test.to_owned()).or_default();
    runs.push(hash);
    let line = line(test, runs.len(), hash);
    let committed = fs::read_to_string(&file).unwrap_or_default();
    if env::var_os(ACCEPT).is_some() {
        fs::write(&file, merged(&committed, &ended)).expect("the folder of the journals can be written");
        return;
    }
    drop(ended);
    assert!(
        committed.lines().any(|known| known == line),
        "the journal of this run is not the one in {}: {line}\nhint: if the change is intended, {ACCEPT}=1 cargo test -p mpt-sim",
        file.display()
    );
}

/// Returns the journal file of this program. Cargo appends a hash to the name of a test program, which is removed.
fn journal_file(folder: &Path) -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let (name, _) = program.file_stem()?.to_str()?.rsplit_once('-')?;
    Some(folder.join(format!("{name}.txt")))
}

/// Replaces the lines of the tests that ran in the `committed` text, and keeps those of the others.
fn merged(committed: &str, ended: &BTreeMap<String, Vec<u64>>) -> String {
    let test_of = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let mut tests: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for kept in committed.lines().filter(|line| !ended.contains_key(&test_of(line))) {
        tests.entry(test_of(kept)).or_default().push(kept.to_owned());
    }
    for (test, runs) in ended {
        tests.insert(test.clone(), runs.iter().zip(1..).map(|(hash, run)| line(test, run, *hash)).collect());
    }
    tests.into_values().flatten().map(|line| line + "\n").collect()
}

fn line(test: &str, run: usize, hash: u64) -> String {
    format!("{test} {run} {hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepting_the_journals_of_one_test_keeps_those_of_the_others() {
        let committed = "a 1 0000000000000001\na 2 0000000000000002\nb 1 0000000000000003\n";
        let merged = merged(committed, &BTreeMap::from([("a".to_owned(), vec![9])]));
        assert_eq!(merged, "a 1 0000000000000009\nb 1 0000000000000003\n");
    }
}
