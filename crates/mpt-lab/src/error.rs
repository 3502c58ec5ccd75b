//! What can go wrong in the laboratory, and what to do about it.

use std::{io, process::Command};

/// A step of an experiment that failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The laboratory makes network namespaces, which only root may.
    #[error("network namespaces need root; hint: run with sudo")]
    NotRoot,
    /// The same, of what can be measured elsewhere, too.
    #[error(
        "network namespaces need root; hint: run with sudo, in namespaces of your own (--substrate emu), or in the simulator (--substrate sim)"
    )]
    NotRootHere,
    /// The kernel keeps user namespaces from this user.
    #[error(
        "this system gives users no namespaces of their own ({0}); hint: sysctl kernel.unprivileged_userns_clone=1 or \
         kernel.apparmor_restrict_unprivileged_userns=0, where there is such a setting, or use --substrate sim"
    )]
    NoUserNamespace(io::Error),
    /// A program that an experiment needs is not installed.
    #[error("'{tool}' is not installed; hint: apt install {package}")]
    Missing {
        /// The program.
        tool: String,
        /// The Debian package it is in.
        package: String,
    },
    /// There is no tunnel to measure.
    #[error("the program 'mpt' was not found; hint: cargo build --release -p mpt, or put it on the search path")]
    NoTunnel,
    /// A contender that a case has no use for.
    #[error("not applicable: {0}")]
    Inapplicable(&'static str),
    /// A program ended with an error.
    #[error("{command}: {message}")]
    Failed {
        /// What was run.
        command: String,
        /// What it said.
        message: String,
    },
    /// A namespace of the wanted name exists already; nothing was touched.
    #[error(
        "network namespace '{0}' exists already; hint: choose another name, or remove it with 'ip netns delete {0}'"
    )]
    Clash(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A program printed what could not be understood, or nothing.
    #[error("{tool} gave no usable answer: {message}")]
    Unreadable {
        /// The program.
        tool: &'static str,
        /// What is wrong with the answer.
        message: String,
    },
}

/// The result of a step of an experiment.
pub type Result<T> = std::result::Result<T, LabError>;

/// Says what was tried when the system refuses it.
pub trait During<T> {
    /// This result with `what` was tried in its error.
    fn during(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> During<T> for std::result::Result<T, E> {
    fn during(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|error| LabError::System { what: what.into(), source: error.into() })
    }
}

/// Checks that a program is on the search path.
pub fn require(tool: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()) {
        true => Ok(()),
        false => Err(LabError::Missing { tool: tool.into(), package: package_of(tool).into() }),
    }
}

/// Runs a program to its end and returns what it printed.
pub fn run(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.output().during(&shown)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(LabError::Failed { command: shown, message: complaint(&output) }),
    }
}

/// The command as one would type it.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn complaint(output: &std::process::Output) -> String {
    let text = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    match String::from_utf8_lossy(text).trim() {
        "" => output.status.to_string(),
        text => text.to_string(),
    }
}

/// The Debian package that has a program, where its name differs.
fn package_of(tool: &str) -> &str {
    match tool {
        "ip" | "tc" | "ss" => "iproute2",
        "ping" => "iputils-ping",
        "nft" => "nftables",
        "sh" => "dash",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_reported_with_its_package() {
        let error = require("no-such-program").unwrap_err();
        assert_eq!(error.to_string(), "'no-such-program' is not installed; hint: apt install no-such-program");
        assert_eq!(package_of("ping"), "iputils-ping");
        assert!(require("sh").is_ok());
    }

    #[test]
    fn a_failed_program_is_quoted() {
        let error = run(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "sh -c echo broken >&2; exit 3: broken");
    }
}
