//! A folder of the laboratory: configurations with keys, captures, files to download.

use super::cleanup::{self, Trace};
use crate::error::{During, Result};
use std::{env, fs, path::PathBuf};

/// A folder that is removed when this is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Makes one of the system's temporary folders. A name that begins with that of a namespace tells whose it is.
    pub(crate) fn create(name: &str) -> Result<Self> {
        let folder = env::temp_dir().join(name);
        let create = || fs::create_dir_all(&folder).during(folder.display().to_string());
        cleanup::make(Trace::Folder(folder.clone()), create)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        cleanup::remove(&Trace::Folder(self.0.clone()));
    }
}
