//! Files that outlive the tunnel, in the state folder.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::{fs, io, mem};

/// A file that a thread writes, because packets must not wait for a slow disk.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// The consequence of a failure, for the log.
    consequence: &'static str,
    writing: Option<JoinHandle<io::Result<()>>>,
    /// The last write failed.
    has_failed: bool,
}

impl StateFile {
    pub(super) fn new(path: PathBuf, consequence: &'static str) -> Self {
        Self { path, consequence, writing: None, has_failed: false }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Starts to write. Returns false if the disk is still busy with the last write.
    pub(super) fn start(&mut self, bytes: Vec<u8>) -> bool {
        if self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return false;
        }
        self.finish();
        let path = self.path.clone();
        match thread::Builder::new().name("state".to_owned()).spawn(move || write(&path, &bytes)) {
            Ok(writing) => self.writing = Some(writing),
            Err(error) => self.on_failure(&error),
        }
        true
    }

    /// Returns true if the last write that has ended failed.
    pub(super) fn has_failed(&mut self) -> bool {
        if self.writing.as_ref().is_some_and(JoinHandle::is_finished) {
            self.finish();
        }
        self.has_failed
    }

    /// Waits until the file is on the disk.
    pub(super) fn finish(&mut self) {
        match self.writing.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => self.on_failure(&error),
            Some(Ok(Ok(()))) => self.has_failed = false,
            Some(Err(_)) => self.has_failed = true,
            None => {}
        }
    }

    fn on_failure(&mut self, error: &io::Error) {
        if !mem::replace(&mut self.has_failed, true) {
            tracing::warn!(file = %self.path.display(), %error, "cannot write: {}", self.consequence);
        }
    }
}

/// Writes a new file and renames it over the old one. A complete file exists at any time, also after a loss of power.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut next = OsString::from(path);
    next.push(".new");
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = fs::File::create(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_remembered_until_a_write_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state").join("mpt0.usage");
        fs::write(folder.path().join("state"), "a file in place of the folder").unwrap();
        let mut file = StateFile::new(path.clone(), "nothing is kept");
        let mut has_failed_after = |bytes: &[u8]| {
            assert!(file.start(bytes.to_vec()));
            file.finish();
            file.has_failed()
        };
        assert!(has_failed_after(b"1"));
        fs::remove_file(folder.path().join("state")).unwrap();
        assert!(!has_failed_after(b"2"));
        assert_eq!(fs::read(&path).unwrap(), b"2");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
