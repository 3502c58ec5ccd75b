//! Sets `MPT_VERSION` for `mpt --version` and `mpt-lab --version`: the version, and in a release build the commit.
//! The commit is in `packaging/commit` of a source archive, and git returns it in a repository.
//!
//! Other builds carry no commit, because each commit would then compile the crate and all its tests again.

use std::env;
use std::fs;
use std::process::Command;

/// `git archive` replaces the text between the dollar signs of this file by the commit and its time.
const ARCHIVED: &str = "../../packaging/commit";

fn main() {
    println!("cargo:rerun-if-changed=../mpt/build.rs");
    println!("cargo:rerun-if-changed={ARCHIVED}");
    let mut version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    if env::var("PROFILE").as_deref() == Ok("release") {
        // The archive first: a repository around an unpacked archive is another project's.
        if let Some(commit) = archived_commit().or_else(repository_commit) {
            version.push_str(&format!(" ({commit})"));
        }
    }
    println!("cargo:rustc-env=MPT_VERSION={version}");
}

/// Returns the first twelve digits of the commit that `git archive` wrote, or `None` outside of an archive.
fn archived_commit() -> Option<String> {
    let text = fs::read_to_string(ARCHIVED).ok()?;
    let commit = text.get(..12)?;
    commit.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| commit.to_owned())
}

/// Returns the commit of the repository, or `None` without git or a repository.
fn repository_commit() -> Option<String> {
    // Git appends to this log whenever HEAD moves.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// Returns the output of git, or `None` without git or a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
