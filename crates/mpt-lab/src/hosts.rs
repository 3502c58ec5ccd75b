//! Files for `mpt up` in two hosts that a person uses.

use crate::{
    error::{Context, LabError, Result},
    topology::{Folder, Host, Topology},
    tunnel::{self, Layout},
};
use std::path::PathBuf;

/// A configuration for each host, with keys of its own; dropping this removes them.
pub struct ReadyFiles {
    program: PathBuf,
    folder: Folder,
}

impl ReadyFiles {
    /// Generates keys and writes both files.
    ///
    /// # Errors
    /// The program `mpt` is missing or fails, or a file cannot be written.
    pub fn write(topology: &Topology, layout: &Layout<'_>) -> Result<Self> {
        let program = tunnel::program().ok_or(LabError::NoTunnel)?;
        let files = Self { folder: Folder::create(topology.a.name())?, program };
        let (a, b) = tunnel::key_pairs(&files.program)?;
        for (host, keys) in [(Host::A, a), (Host::B, b)] {
            let file = files.file(host);
            tunnel::write_secret(&file, &layout.config(host, &keys)).context(file.display().to_string())?;
        }
        Ok(files)
    }

    /// Returns the command line of `mpt up` on a host.
    pub fn up(&self, topology: &Topology, host: Host) -> String {
        format!("{} up {}", self.mpt(topology, host), self.file(host).display())
    }

    /// Returns the command line of `mpt` on a host, without arguments. Both hosts share a file system, so each needs
    /// its own folder for the control socket.
    pub fn mpt(&self, topology: &Topology, host: Host) -> String {
        let (name, folder) = (topology.host(host).name(), &self.folder.0);
        let (run, state) = (tunnel::run_dir(folder, host), tunnel::state_dir(folder, host));
        format!(
            "ip netns exec {name} env MPT_RUN_DIR={} MPT_STATE_DIR={} {}",
            run.display(),
            state.display(),
            self.program.display()
        )
    }

    fn file(&self, host: Host) -> PathBuf {
        self.folder.0.join(format!("{host:?}.toml"))
    }
}
