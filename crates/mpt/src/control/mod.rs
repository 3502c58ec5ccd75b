//! How a running tunnel is talked to: one line of JSON there, one line back, over a Unix socket.
//!
//! ```text
//!   mpt status, path, down                         mpt up
//!        |                                            |
//!     Client --- /run/mpt/INTERFACE.sock --------> Server (inside the daemon's loop, never blocking it)
//!                /run/mpt/INTERFACE.lock              '-> (Token, Request) ... respond(Token, Response)
//! ```
//!
//! Whoever may write to the socket may control the tunnel; its mode is 0660. `docs/guide/status.md` describes the protocol and
//! the status report. Nothing here knows what a request does: that is the daemon's business.

mod client;
mod connection;
mod lock;
mod protocol;
pub mod report;
mod server;

use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::{env, fs};

pub use client::Client;
pub use protocol::{Action, Request, Response};
pub use server::{Server, Token};

use crate::Failure;
use lock::Lock;

/// The directory with the sockets of the running tunnels.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

/// Keeps a tunnel from being brought up.
#[derive(Debug)]
pub struct Claim(#[expect(dead_code, reason = "what counts is that it is held")] Lock);

/// Where it is unless `MPT_RUN_DIR` says otherwise: the Filesystem Hierarchy Standard's place for sockets (section 3.15).
const RUN_DIR: &str = "/run/mpt";

impl RunDir {
    /// The directory at `path`.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self(path.as_ref().to_owned())
    }

    /// `/run/mpt`, or what the environment variable `MPT_RUN_DIR` says.
    pub fn from_env() -> Self {
        Self(env::var_os("MPT_RUN_DIR").map_or_else(|| RUN_DIR.into(), PathBuf::from))
    }

    /// The interfaces of the tunnels that have a socket here, sorted. One that crashed may be among them.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let name = |path: PathBuf| Some(path.file_name()?.to_str()?.strip_suffix(".sock")?.to_owned());
        let mut names: Vec<_> = entries.filter_map(|entry| name(entry.path())).collect();
        names.sort();
        names
    }

    /// Where a tunnel notes what must be undone.
    pub fn notes(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.undo"))
    }

    /// Takes the place of a tunnel that is not running, until the claim is dropped.
    ///
    /// # Errors
    /// When it is running.
    pub fn claim(&self, name: &str) -> Result<Option<Claim>, Failure> {
        match Lock::take(&self.lock(name)) {
            Ok(Some(lock)) => Ok(Some(Claim(lock))),
            Ok(None) => Err(Failure::new(format!("the tunnel {name} is running"))),
            // Without the directory nothing runs that could be asked.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::new(format!("cannot use {}: {error}", self.lock(name).display()))),
        }
    }

    /// Leaves a socket file of a tunnel that is not running, as a crash does, so that it is found.
    pub fn remember(&self, name: &str) {
        if let Err(error) = UnixListener::bind(self.socket(name)) {
            tracing::warn!(%error, "`mpt down` finds what is left behind only by the name {name}");
        }
    }

    /// Removes the socket file of a tunnel that is not running; whether there was one.
    pub fn forget(&self, name: &str) -> bool {
        fs::remove_file(self.socket(name)).is_ok()
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }

    fn lock(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.lock"))
    }
}
