//! Errors of the laboratory, with hints.

use std::{io, process::Command};

/// Failure of a step of an experiment.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Creating network namespaces needs root.
    #[error("network namespaces need root; hint: run with sudo")]
    NotRoot,
    /// Creating network namespaces needs root, and the experiment can also run elsewhere.
    #[error(
        "network namespaces need root; hint: run with sudo, in a user namespace (--substrate emu), or in the simulator (--substrate sim)"
    )]
    NotRootHere,
    /// The kernel refuses user namespaces to this user.
    #[error(
        "user namespaces are not available to this user ({0}); hint: sysctl kernel.unprivileged_userns_clone=1 or \
         kernel.apparmor_restrict_unprivileged_userns=0, where there is such a setting, or use --substrate sim"
    )]
    NoUserNamespace(io::Error),
    /// A required program is not installed.
    #[error("'{tool}' is not installed; hint: apt install {package}")]
    Missing {
        /// The program.
        tool: String,
        /// The Debian package that contains the program.
        package: String,
    },
    /// The program `mpt` was not found.
    #[error("the program 'mpt' was not found; hint: cargo build --release -p mpt, or put it on the search path")]
    NoTunnel,
    /// A contender is not applicable to the case.
    #[error("not applicable: {0}")]
    Inapplicable(&'static str),
    /// A program ended with an error.
    #[error("{command}: {message}")]
    Failed {
        /// The command line.
        command: String,
        /// Its error output.
        message: String,
    },
    /// A namespace of this name already exists; nothing was changed.
    #[error(
        "network namespace '{0}' exists already; hint: choose another name, or remove it with 'ip netns delete {0}'"
    )]
    Clash(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// A program's output is empty or cannot be parsed.
    #[error("unreadable output of {tool}: {message}")]
    Unreadable {
        /// The program.
        tool: &'static str,
        /// The problem with the output.
        message: String,
    },
}

/// The result of a step of an experiment.
pub type Result<T> = std::result::Result<T, LabError>;

/// Adds the failed operation to a system error.
pub trait Context<T> {
    /// Returns this result with the operation `what` in its error.
    fn context(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|error| LabError::System { what: what.into(), source: error.into() })
    }
}

/// Returns an error unless the program is on the search path.
pub fn require(tool: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()) {
        true => Ok(()),
        false => Err(LabError::Missing { tool: tool.into(), package: package_of(tool).into() }),
    }
}

/// Runs a program to its end and returns its standard output.
pub fn run(command: &mut Command) -> Result<String> {
    let shown = command_line(command);
    let output = command.output().context(&shown)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(LabError::Failed { command: shown, message: error_message(&output) }),
    }
}

/// Returns the command line as a user would type it.
pub fn command_line(command: &Command) -> String {
    let arguments = std::iter::once(command.get_program()).chain(command.get_args());
    arguments.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn error_message(output: &std::process::Output) -> String {
    let text = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    match String::from_utf8_lossy(text).trim() {
        "" => output.status.to_string(),
        text => text.to_string(),
    }
}

/// Returns the Debian package of a program; the program's name unless it differs.
fn package_of(tool: &str) -> &str {
    match tool {
        "ip" | "tc" | "ss" => "iproute2",
        "ping" => "iputils-ping",
        "nft" => "nftables",
        "sh" => "dash",
        "etcd" => "etcd-server",
        "etcdctl" => "etcd-client",
        "bird" => "bird2",
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
