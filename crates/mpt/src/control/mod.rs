//! The control interface of a running tunnel: JSON requests and responses, one per line, over a Unix socket.
//!
//! ```text
//!   mpt status, path, down                         mpt up
//!        |                                            |
//!     Client --- /run/mpt/INTERFACE.sock --------> Server (inside the daemon's loop, never blocking it)
//!                /run/mpt/INTERFACE.lock              '-> (ClientToken, Request) ... respond(ClientToken, Response)
//!   mpt watch, top, web                                 |
//!     Client --- /run/mpt/INTERFACE.status ------> Server (takes `status` and `watch` only)
//! ```
//!
//! Write access to the control socket permits control of the tunnel; its mode is 0660. `docs/guide/status.md` describes
//! the protocol and the status report. The daemon defines the effect of the requests.

mod client;
mod connection;
pub mod feature_reports;
mod lock;
mod protocol;
pub mod report;
mod server;
pub mod verdict;
pub mod watch;
pub mod watch_all;

use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::{env, fs};

pub use client::ControlClient;
pub(crate) use client::PAGE;
pub(crate) use lock::Lock;
pub use protocol::{Action, Event, EventKind, Request, Response};
pub use server::{ClientToken, ControlServer};

use crate::Failure;

/// The directory with the control sockets of running tunnels.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

/// Prevents the start of a tunnel while it is held.
#[derive(Debug)]
pub struct Claim(#[expect(dead_code, reason = "what counts is that it is held")] Lock);

impl RunDir {
    /// Uses the directory at `path`.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self(path.as_ref().to_owned())
    }

    /// Uses the directory in the environment variable `MPT_RUN_DIR`, or `/run/mpt`.
    pub fn from_env() -> Self {
        Self(env::var_os("MPT_RUN_DIR").map_or_else(|| RUN_DIR.into(), PathBuf::from))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the directory if it does not exist.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(&self) -> Result<(), Failure> {
        server::make_directory(&self.0)
            .map_err(|error| Failure::new(format!("cannot create {}: {error}", self.0.display())))
    }

    /// Returns the interfaces of the tunnels with a socket in this directory, sorted. They include crashed ones.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let name = |path: PathBuf| Some(path.file_name()?.to_str()?.strip_suffix(".sock")?.to_owned());
        // Another user's process may create files there, and root prints the names.
        let is_printable = |name: &String| !name.contains(char::is_control);
        let mut names: Vec<_> = entries.filter_map(|entry| name(entry.path())).filter(is_printable).collect();
        names.sort();
        names
    }

    /// Returns the path of the file with the state that a tunnel must restore.
    pub fn undo_file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.undo"))
    }

    /// Claims a tunnel that is not running, until the claim is dropped.
    ///
    /// # Errors
    /// It is running.
    pub fn claim(&self, name: &str) -> Result<Option<Claim>, Failure> {
        match Lock::take(&self.lock(name)) {
            Ok(Some(lock)) => Ok(Some(Claim(lock))),
            Ok(None) => Err(Failure::new(format!("the tunnel {name} is running"))),
            // Without the directory no tunnel is running.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::new(format!("cannot use {}: {error}", self.lock(name).display()))),
        }
    }

    /// Creates the socket file of a tunnel that is not running, as a crash leaves it, so that `mpt down` finds it.
    pub fn leave_marker(&self, name: &str) {
        if let Err(error) = UnixListener::bind(self.socket(name)) {
            tracing::warn!(%error, "cannot leave a socket file: `mpt down` needs the name {name}");
        }
    }

    /// Removes the socket files of a tunnel that is not running. Returns true if there was one of the control socket.
    pub fn remove_marker(&self, name: &str) -> bool {
        let _ = fs::remove_file(self.status_socket(name));
        fs::remove_file(self.socket(name)).is_ok()
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }

    fn status_socket(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.status"))
    }

    fn lock(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.lock"))
    }
}

/// Default directory, overridden by `MPT_RUN_DIR`: the Filesystem Hierarchy Standard's place for sockets (section
/// 3.15).
const RUN_DIR: &str = "/run/mpt";
