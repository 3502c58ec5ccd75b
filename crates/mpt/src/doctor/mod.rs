//! `mpt doctor`: checks of the host and of a tunnel, each with a cause and a cure.
//!
//! ```text
//!   gather   control socket, files, /proc, netlink, nft, a datagram to each silent address   -> Facts
//!   checks   one small function a check, over the facts alone                                -> Findings
//!   render   text or JSON; bundle: a folder for a bug report, with keys removed and addresses masked
//! ```
//!
//! [`gather`] changes nothing on the host and waits at most [`gather::LIMIT`] for each source. [`checks::CHECKS`] is
//! the list of checks; a check whose source did not answer is skipped, and the output has the reason.

mod bundle;
mod checks;
mod facts;
mod gather;
mod mask;
mod render;
mod sources;

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::Failure;
use crate::control::RunDir;
use render::{Checked, Verdict};

/// The tunnel to check.
#[derive(Clone, Debug)]
struct CheckedTunnel {
    interface: Option<String>,
    file: Option<PathBuf>,
}

/// Runs all checks, prints the result, and writes a folder for a bug report if there is a name for it.
///
/// # Errors
/// A check failed, or the tunnel cannot be selected.
pub fn run(target: Option<&str>, json: bool, bundle: Option<&Path>) -> Result<(), Failure> {
    let facts = gather::gather(&CheckedTunnel::select(target)?);
    let checked = Checked::of(&facts);
    if !facts.is_root {
        eprintln!("warning: not root: checks of the firewall, the configuration and the tunnel may be skipped");
    }
    if let Some(folder) = bundle {
        bundle::write(folder, &facts, &checked)?;
        eprintln!("wrote {}; read it before you send it", folder.display());
    }
    crate::output::print(if json { checked.json() } else { checked.text() })?;
    match checked.count(Verdict::Failed) {
        0 => Ok(()),
        1 => Err(Failure::new("1 check failed")),
        failed => Err(Failure::new(format!("{failed} checks failed"))),
    }
}

impl CheckedTunnel {
    /// Takes a name with a slash or the ending `.toml` for a file, any other for an interface. Without a name, that is
    /// the only running tunnel, or else the only one that is configured or has left a socket.
    fn select(name: Option<&str>) -> Result<Self, Failure> {
        match name {
            Some(name) if name.contains('/') || name.ends_with(".toml") => {
                Ok(Self { interface: None, file: Some(name.into()) })
            }
            Some(name) => Ok(Self::named(name)),
            None => Self::only(),
        }
    }

    fn named(name: &str) -> Self {
        let file = config_folder().join(format!("{name}.toml"));
        Self { interface: Some(name.to_owned()), file: Some(file).filter(|file| file.is_file()) }
    }

    fn only() -> Result<Self, Failure> {
        let run = RunDir::from_env();
        let (running, known, files) = (run.running(), run.names(), files());
        match (&running[..], &known[..], &files[..]) {
            ([name], ..) | ([], [name], _) => Ok(Self::named(name)),
            ([], [], [file]) => Ok(Self { interface: None, file: Some(file.clone()) }),
            ([], [], []) => {
                Err(Failure::new(format!("no tunnel is running, and {} has none", config_folder().display()))
                    .hint("name a configuration file: mpt doctor FILE"))
            }
            _ => Err(Failure::new("there are several tunnels").hint("name one: mpt doctor NAME, or mpt doctor FILE")),
        }
    }
}

fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(config_folder()).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|kind| kind == "toml")).collect()
}

fn config_folder() -> PathBuf {
    env::var_os("MPT_CONFIG_DIR").map_or_else(|| "/etc/mpt".into(), PathBuf::from)
}
