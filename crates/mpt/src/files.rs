//! The files of a configuration: read from disk, or as another process has read them.
//!
//! A running tunnel has no rights to the files of root. Another process reads the configuration in its place
//! ([`crate::daemon::config_files`]), with a [`Files::recorder`], and sends what it has read; the tunnel reads the same
//! configuration from that.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use crate::secrets;

/// Source of files: the disk, the disk with a record of all that is read, or such a record.
#[derive(Debug)]
pub struct Files(FileBackend);

#[derive(Debug)]
enum FileBackend {
    Disk,
    Recorder(RefCell<Snapshot>),
    Snapshot(RefCell<Snapshot>),
}

/// Contents of the files that were read, by path.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    files: BTreeMap<PathBuf, Result<FileText, SystemError>>,
    folders: BTreeMap<PathBuf, Result<Folder, SystemError>>,
}

/// The contents and permissions of a file. Wiped from memory on drop.
#[derive(Clone, Serialize, Deserialize)]
pub struct FileText {
    /// The contents. Bytes that are not UTF-8 are replaced.
    pub text: String,
    is_utf8: bool,
    /// The permission bits of the file that was read, as [`secrets::permissions`] returns them.
    pub permissions: u32,
    /// Others than root and the user of the process that read the file may change it.
    pub may_be_changed_by_others: bool,
}

/// The files in a folder whose names were wanted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Folder {
    /// The paths, sorted.
    pub files: Vec<PathBuf>,
    /// Others than root and the user of the process that read the folder may change it.
    pub may_be_changed_by_others: bool,
}

/// An error of the system.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SystemError(Option<i32>, String);

impl Files {
    /// Reads from disk.
    pub const DISK: &Self = &Self(FileBackend::Disk);

    /// Reads from disk, and records what is read.
    pub fn recorder() -> Self {
        Self(FileBackend::Recorder(RefCell::default()))
    }

    /// Reads from a snapshot. A file that is not in it does not exist.
    pub fn of(snapshot: Snapshot) -> Self {
        Self(FileBackend::Snapshot(RefCell::new(snapshot)))
    }

    /// Returns what a recorder has recorded.
    pub fn into_snapshot(self) -> Snapshot {
        match self.0 {
            FileBackend::Disk => Snapshot::default(),
            FileBackend::Recorder(snapshot) | FileBackend::Snapshot(snapshot) => snapshot.into_inner(),
        }
    }

    /// Reads at most `limit` bytes of a file of UTF-8.
    ///
    /// # Errors
    /// The system's error, or [`io::ErrorKind::InvalidData`] if it is not UTF-8.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<FileText> {
        let read = self.read_lossy(path, limit)?;
        if read.is_utf8 { Ok(read) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "not UTF-8")) }
    }

    /// Reads at most `limit` bytes of a file of any encoding.
    ///
    /// # Errors
    /// The system's error.
    pub fn read_lossy(&self, path: &Path, limit: u64) -> io::Result<FileText> {
        self.look_up(path, |snapshot| &mut snapshot.files, || from_disk(path, limit))
    }

    /// Lists the files in a folder whose paths are `wanted`. A snapshot has no others.
    ///
    /// # Errors
    /// The system's error.
    pub fn folder(&self, path: &Path, wanted: impl Fn(&Path) -> bool) -> io::Result<Folder> {
        self.look_up(path, |snapshot| &mut snapshot.folders, || folder_from_disk(path, wanted))
    }

    fn look_up<T: Clone>(
        &self,
        path: &Path,
        part: impl Fn(&mut Snapshot) -> &mut BTreeMap<PathBuf, Result<T, SystemError>>,
        read: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match &self.0 {
            FileBackend::Disk => read(),
            FileBackend::Recorder(snapshot) => {
                let result = read().map_err(|error| SystemError(error.raw_os_error(), error.to_string()));
                part(&mut snapshot.borrow_mut()).insert(path.to_owned(), result.clone());
                result.map_err(Into::into)
            }
            FileBackend::Snapshot(snapshot) => {
                let known = part(&mut snapshot.borrow_mut()).get(path).cloned();
                known.ok_or(io::ErrorKind::NotFound)?.map_err(Into::into)
            }
        }
    }
}

impl Snapshot {
    /// Returns the first path that is not UTF-8, which JSON cannot contain.
    pub fn path_without_json(&self) -> Option<&Path> {
        let listed = self.folders.values().flatten().flat_map(|folder| &folder.files);
        let mut paths = self.files.keys().chain(self.folders.keys()).chain(listed);
        paths.find(|path| path.to_str().is_none()).map(PathBuf::as_path)
    }

    /// Returns at least the bytes that it has as JSON, so that a buffer need not grow and leave copies of secrets.
    pub fn size_hint(&self) -> usize {
        let text = |file: &Result<FileText, SystemError>| file.as_ref().map_or(0, |file| JSON_BYTES * file.text.len());
        let files: usize =
            self.files.iter().map(|(path, file)| JSON_BYTES * path.as_os_str().len() + text(file) + ENTRY).sum();
        let folders = self.folders.values().flatten().flat_map(|folder| &folder.files);
        files + folders.map(|path| JSON_BYTES * path.as_os_str().len() + ENTRY).sum::<usize>() + ENTRY
    }
}

/// The most bytes of JSON for a byte of text: `\u0001` for a control character.
pub const JSON_BYTES: usize = 6;
/// Bytes of an entry in JSON beside path and text.
const ENTRY: usize = 512;

impl Drop for FileText {
    fn drop(&mut self) {
        self.text.zeroize();
    }
}

impl fmt::Debug for FileText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileText").field("permissions", &self.permissions).finish_non_exhaustive()
    }
}

impl From<SystemError> for io::Error {
    fn from(SystemError(errno, text): SystemError) -> Self {
        errno.map_or_else(|| Self::other(text), Self::from_raw_os_error)
    }
}

fn from_disk(path: &Path, limit: u64) -> io::Result<FileText> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len().min(limit) as usize + SPARE));
    file.take(limit).read_to_end(&mut bytes)?;
    let (text, is_utf8) = match std::str::from_utf8(&bytes) {
        Ok(text) => (text.to_owned(), true),
        Err(_) => (String::from_utf8_lossy(&bytes).into_owned(), false),
    };
    let permissions = secrets::permissions(&metadata);
    let may_be_changed_by_others = secrets::may_be_changed_by_others(&metadata);
    Ok(FileText { text, is_utf8, permissions, may_be_changed_by_others })
}

fn folder_from_disk(path: &Path, wanted: impl Fn(&Path) -> bool) -> io::Result<Folder> {
    let files: io::Result<Vec<_>> = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect();
    let mut files = files?;
    files.retain(|file| wanted(file));
    files.sort();
    let may_be_changed_by_others = fs::metadata(path).is_ok_and(|folder| secrets::may_be_changed_by_others(&folder));
    Ok(Folder { files, may_be_changed_by_others })
}

/// Growing a buffer would leave an unwiped copy behind; the reader needs this much space to detect the end.
const SPARE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_returns_what_was_read_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("text"), "a \"key\"\n").unwrap();
        fs::write(at("binary"), [0xff, b'x']).unwrap();
        fs::write(at("control"), [1; 4000]).unwrap();
        let recorder = Files::recorder();
        assert_eq!(recorder.read(&at("control"), 9000).unwrap().text.len(), 4000);
        assert_eq!(recorder.read(&at("text"), 100).unwrap().text, "a \"key\"\n");
        assert!(recorder.read(&at("binary"), 100).is_err() && recorder.read(&at("absent"), 100).is_err());
        let wanted = |file: &Path| !file.ends_with("control");
        assert_eq!(recorder.folder(folder.path(), wanted).unwrap().files.len(), 2);
        let snapshot = recorder.into_snapshot();
        let json = serde_json::to_vec(&snapshot).unwrap();
        assert!(json.len() <= snapshot.size_hint(), "{} of {}", json.len(), snapshot.size_hint());
        fs::write(at("text"), "changed").unwrap();

        let files = Files::of(serde_json::from_slice(&json).unwrap());
        assert_eq!(files.read(&at("text"), 100).unwrap().text, "a \"key\"\n");
        assert_eq!(files.read(&at("binary"), 100).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(files.read_lossy(&at("binary"), 100).unwrap().text, "\u{fffd}x");
        for absent in [files.read(&at("absent"), 100).err(), files.read(Path::new("/etc/passwd"), 100).err()] {
            assert_eq!(absent.unwrap().kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(files.folder(folder.path(), wanted).unwrap().files, [at("binary"), at("text")]);
    }
}
