//! A temporary folder: configurations with keys, captures, files to download.

use super::cleanup::{self, Resource};
use crate::error::{Context, Result};
use std::{env, fs, path::PathBuf};

/// A folder that is removed when this is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Creates a folder in the system's temporary folder. The name starts with a namespace's name, which identifies the
    /// owner.
    pub(crate) fn create(name: &str) -> Result<Self> {
        let folder = env::temp_dir().join(name);
        let create = || fs::create_dir_all(&folder).context(folder.display().to_string());
        cleanup::create(Resource::Folder(folder.clone()), create)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        cleanup::remove(&Resource::Folder(self.0.clone()));
    }
}
