//! A lock file that limits a tunnel to one process.
//!
//! Anyone who may open the file may lock it, so only its owner may. flock(2) releases the lock when the process ends,
//! however it ends, so no stale lock remains. The holder removes the file; a process that then locks the removed file
//! detects that its name refers to another file, and retries.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// A file locked by this process.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: Flock<File>,
}

impl Lock {
    /// Locks the file at `path`, creates it if needed, and writes the process ID. Returns `None` if another process has
    /// locked it.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let mut open = OpenOptions::new();
            let file = open.create(true).truncate(false).write(true).mode(0o600).open(path)?;
            let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
                Err((_, errno)) => return Err(errno.into()),
            };
            if is_named(path, &file)? {
                file.set_permissions(fs::Permissions::from_mode(0o600))?;
                file.set_len(0)?;
                writeln!(file, "{}", std::process::id())?;
                return Ok(Some(Self { path: path.to_owned(), _file: file }));
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A remaining file is harmless: only the lock counts.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns true if `path` still refers to `file`.
fn is_named(path: &Path, file: &File) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_excludes_others_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mpt0.lock");
        let first = Lock::take(&path).unwrap().unwrap();
        assert!(Lock::take(&path).unwrap().is_none());
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o077, 0, "nobody else can lock it");
        drop(first);
        assert!(!path.exists());
        assert!(Lock::take(&path).unwrap().is_some());
    }

    #[test]
    fn a_file_left_behind_by_a_crash_is_no_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mpt0.lock");
        fs::write(&path, "4194304 and a long line\n").unwrap();
        let _lock = Lock::take(&path).unwrap().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    }
}
