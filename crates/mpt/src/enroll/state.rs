//! Files of the enrolment: where they are, and writing them whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::{env, net::IpAddr};

use mpt_proto::crypto::keys::KeyPair;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{Name, ServerHost};
use crate::Failure;
use crate::secrets;

/// The folder with the records of one tunnel. Only root may read it.
#[derive(Clone, Debug)]
pub struct StateFolder {
    pub name: Name,
    path: PathBuf,
}

/// The settings of a server that admits sites.
#[derive(Serialize, Deserialize)]
pub struct ServerState {
    /// The addresses and names that lines contain.
    pub addresses: Vec<ServerHost>,
    /// The port of the tunnel and of the enrolment.
    pub port: u16,
    /// The private enrolment key.
    pub key: Zeroizing<String>,
    /// Name servers for sites.
    pub dns: Vec<IpAddr>,
}

impl StateFolder {
    /// Names the folder of a tunnel, whether or not it exists.
    pub fn of(name: &Name) -> Self {
        let base = env::var_os("MPT_ENROLL_DIR").map_or_else(|| PathBuf::from("/var/lib/mpt-enroll"), PathBuf::from);
        Self { name: name.clone(), path: base.join(name.as_str()) }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates the folder if it does not exist.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(&self) -> Result<(), Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(self.path.join(TOKENS));
        made.map_err(|error| cannot("create", &self.path, &error))
    }

    /// Removes the folder with all its files.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(&self) -> Result<(), Failure> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot("remove", &self.path, &error)),
            _ => Ok(()),
        }
    }

    /// Excludes other commands on this tunnel until the lock is dropped. Waits for them.
    ///
    /// # Errors
    /// The system's error.
    pub fn lock(&self) -> Result<Flock<File>, Failure> {
        let path = self.file("lock");
        let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = opened.map_err(|error| cannot("lock", &path, &error))?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| cannot("lock", &path, &errno.into()))
    }

    /// Reads what a server needs to admit sites.
    ///
    /// # Errors
    /// The tunnel was not set up by `mpt setup server`.
    pub fn server(&self) -> Result<ServerState, Failure> {
        self.read(SERVER)?.ok_or_else(|| {
            let what = format!("{} was not set up by mpt setup server on this host", self.name);
            Failure::new(what).hint("mpt setup server; or --tunnel NAME for a tunnel of another name")
        })
    }

    /// Returns the key of the enrolment.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn enrolment_key(&self, server: &ServerState) -> Result<KeyPair, Failure> {
        server.key.parse().map_err(|error| Failure::new(format!("{}: {error}", self.file(SERVER).display())))
    }

    /// Reads a file of JSON; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Failure> {
        let path = self.file(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        let damaged =
            |_| Failure::new(format!("{} is damaged", path.display())).hint("mpt setup undo, then set up again");
        serde_json::from_str(&text).map(Some).map_err(damaged)
    }

    /// Replaces a file of JSON.
    ///
    /// # Errors
    /// The system's error; then the old file remains.
    pub fn write(&self, name: &str, value: &impl Serialize) -> Result<(), Failure> {
        // Large enough: growing would leave an unwiped copy of a key behind.
        let mut text = Zeroizing::new(Vec::with_capacity(4_096));
        serde_json::to_writer_pretty(&mut *text, value).expect("names and numbers can be written as JSON");
        write(&self.file(name), &text, Readers::Root, |part, path| fs::rename(part, path))
    }
}

/// Returns the folder of configurations.
pub fn config_folder() -> PathBuf {
    env::var_os("MPT_CONFIG_DIR").map_or_else(|| PathBuf::from("/etc/mpt"), PathBuf::from)
}

/// Returns the configuration of a tunnel.
pub fn config_file(name: &Name) -> PathBuf {
    config_folder().join(format!("{name}.toml"))
}

/// Returns the name of the folder with the peers of a server, as `include` has it.
pub fn peer_folder(name: &Name) -> String {
    format!("{name}.d")
}

/// Returns the file of a peer.
pub fn peer_file(tunnel: &Name, peer: &Name) -> PathBuf {
    config_folder().join(peer_folder(tunnel)).join(format!("{peer}.toml"))
}

/// Readers of a file beside its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Nobody.
    Root,
    /// The user of running tunnels, by the group `mpt`. Without that group, nobody.
    Tunnels,
    /// Everybody.
    All,
}

impl Readers {
    fn of_file(self) -> (u32, Option<u32>) {
        match (self, secrets::group_of_tunnels()) {
            (Self::All, _) => (0o644, None),
            (Self::Tunnels, Some(group)) => (0o640, Some(group)),
            (Self::Tunnels, None) | (Self::Root, _) => (0o600, None),
        }
    }

    fn of_folder(self) -> (u32, Option<u32>) {
        let (mode, group) = self.of_file();
        (mode | mode >> 2 & 0o111, group)
    }
}

/// Writes a file that does not exist yet, to the disk. A failure leaves none behind.
///
/// # Errors
/// It exists, or the system's error.
pub fn write_new(path: &Path, text: &str, readers: Readers) -> Result<(), Failure> {
    let written = write(path, text.as_bytes(), readers, |part, path| fs::hard_link(part, path));
    let _ = fs::remove_file(part_of(path));
    written
}

/// Writes a file under a hidden name, which no tunnel reads, and then gives it its name: a crash leaves no part of it.
fn write(
    path: &Path,
    text: &[u8],
    readers: Readers,
    name: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> Result<(), Failure> {
    let ((mode, group), part) = (readers.of_file(), part_of(path));
    let _ = fs::remove_file(&part);
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
    let written = opened.and_then(|mut file| {
        file.write_all(text)?;
        set_access(&file, mode, group)?;
        file.sync_all()?;
        name(&part, path)
    });
    written.map_err(|error| {
        let _ = fs::remove_file(&part);
        cannot("write", path, &error)
    })
}

/// Returns the name of a file while it is written.
pub fn part_of(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{}.new", path.file_name().unwrap_or_default().display()))
}

/// Creates a folder that does not exist yet.
///
/// # Errors
/// It exists, or the system's error.
pub fn new_folder(path: &Path, readers: Readers) -> Result<(), Failure> {
    let (mode, group) = readers.of_folder();
    let made = DirBuilder::new().mode(0o700).create(path);
    let made = made.and_then(|()| File::open(path)).and_then(|folder| set_access(&folder, mode, group));
    made.map_err(|error| cannot("create", path, &error))
}

/// Fails unless root runs the command.
///
/// # Errors
/// Another user does.
pub fn require_root(command: &str) -> Result<(), Failure> {
    match geteuid().is_root() {
        true => Ok(()),
        false => Err(Failure::new(format!("mpt {command} needs root")).hint(format!("sudo mpt {command}"))),
    }
}

/// Makes a failure of an operation on a file.
pub fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot {what} {}: {error}", path.display()));
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => failure.hint("free some space, then try again"),
        io::ErrorKind::AlreadyExists => failure.hint("move it away, or choose another --name"),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            failure.hint("root must be able to write there")
        }
        _ => failure,
    }
}

fn set_access(file: &File, mode: u32, group: Option<u32>) -> io::Result<()> {
    if group.is_some() {
        fchown(file, None, group)?;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// The file with [`ServerState`].
pub const SERVER: &str = "server.json";
/// The folder of tokens.
pub const TOKENS: &str = "tokens";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_may_be_passed_by_those_who_may_read() {
        assert_eq!(Readers::All.of_folder().0, 0o755);
        assert_eq!(Readers::Root.of_folder().0, 0o700);
        assert!([0o750, 0o700].contains(&Readers::Tunnels.of_folder().0));
    }

    #[test]
    fn a_file_is_not_replaced_and_a_failed_one_not_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        // A crash left it.
        fs::write(part_of(&path), "fir").unwrap();
        write_new(&path, "first", Readers::Root).unwrap();
        let refused = write_new(&path, "second", Readers::Root).unwrap_err();
        assert!(refused.what.contains("exists") && refused.hint.is_some(), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
