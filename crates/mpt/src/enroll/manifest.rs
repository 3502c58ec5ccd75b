//! The record of what a command created on this host. It is written before each step, so that a crash leaves nothing
//! that the record lacks, and [`super::undo`] removes everything in it, the last first.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::host::Systemd;
use super::state::{self, Readers, StateFolder};
use crate::Failure;

/// The steps of a command, in their order.
#[derive(Debug)]
pub struct Manifest<'s> {
    state: &'s StateFolder,
    steps: Vec<Step>,
}

/// Something that was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A file.
    File(PathBuf),
    /// A folder. It is removed only if it is empty.
    Folder(PathBuf),
    /// A unit of systemd that was enabled and started.
    Unit(String),
}

impl<'s> Manifest<'s> {
    /// Reads the record of a tunnel; an empty one if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(state: &'s StateFolder) -> Result<Self, Failure> {
        Ok(Self { state, steps: state.read(FILE)?.unwrap_or_default() })
    }

    /// Returns the steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Creates a file that does not exist.
    ///
    /// # Errors
    /// It exists, or the system's error.
    pub fn file(&mut self, path: &Path, text: &str, readers: Readers) -> Result<(), Failure> {
        // An undo after a crash would remove the file of another program.
        if path.symlink_metadata().is_ok() {
            return Err(state::cannot("create", path, &ErrorKind::AlreadyExists.into()));
        }
        let step = Step::File(path.to_owned());
        self.record(step.clone())?;
        // The cause of the failure, such as a full disk, may prevent this too.
        state::write_new(path, text, readers).inspect_err(|_| drop(self.forget(&step)))
    }

    /// Creates a folder if it does not exist.
    ///
    /// # Errors
    /// The system's error.
    pub fn folder(&mut self, path: &Path, readers: Readers) -> Result<(), Failure> {
        if path.is_dir() {
            return Ok(());
        }
        let step = Step::Folder(path.to_owned());
        self.record(step.clone())?;
        state::new_folder(path, readers).inspect_err(|_| drop(self.forget(&step)))
    }

    /// Enables and starts a unit.
    ///
    /// # Errors
    /// `systemctl` fails.
    pub fn unit(&mut self, systemd: &Systemd, unit: String) -> Result<(), Failure> {
        self.record(Step::Unit(unit.clone()))?;
        systemd.enable(&unit)
    }

    /// Removes a step from the record.
    ///
    /// # Errors
    /// The system's error.
    pub fn forget(&mut self, step: &Step) -> Result<(), Failure> {
        self.steps.retain(|known| known != step);
        self.state.write(FILE, &self.steps)
    }

    /// Removes the record itself.
    ///
    /// # Errors
    /// The system's error.
    pub fn discard(&self) -> Result<(), Failure> {
        let path = self.state.file(FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(state::cannot("remove", &path, &error)),
            _ => Ok(()),
        }
    }

    fn record(&mut self, step: Step) -> Result<(), Failure> {
        self.steps.retain(|known| *known != step);
        self.steps.push(step);
        self.state.write(FILE, &self.steps)
    }
}

/// The name of the record.
pub const FILE: &str = "manifest.json";
