//! Sets `MPT_VERSION` for `mpt --version`: the version, and in a release build from a repository the commit as well.
//!
//! Other builds carry no commit, because each commit would then compile the crate and all its tests again.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let mut version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    if env::var("PROFILE").as_deref() == Ok("release") {
        // Git appends to this log whenever HEAD moves.
        if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
            println!("cargo:rerun-if-changed={log}");
        }
        if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) {
            version.push_str(&format!(" ({commit})"));
        }
    }
    println!("cargo:rustc-env=MPT_VERSION={version}");
}

/// Returns the output of git, or `None` without git or a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
