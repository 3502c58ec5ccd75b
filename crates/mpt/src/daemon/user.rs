//! The user of a running tunnel, who has no rights to the files of root.
//!
//! The directory of control sockets and the folder of files that outlive the tunnel belong to that user. Whatever root
//! writes in a directory of another user may be redirected by a link there, so the commands that write in them become
//! that user first.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use mpt_linux::privilege::{self, Capability};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::libc;
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{Gid, Uid, fchown, fchownat, geteuid};

use super::state_folder;
use crate::control::RunDir;
use crate::secrets::USER;
use crate::{Failure, config};

/// The capabilities for reloading, returning interfaces and a clean shutdown; all others are dropped.
pub(super) fn required_capabilities(file: &config::File) -> Vec<Capability> {
    let ports = file.peers.iter().map(|peer| *peer.local_port);
    let mut ports = ports.chain([*file.port]).chain(file.original.as_ref().map(|original| original.control_port));
    let low = ports.any(|port| port < 1024);
    let raw = privilege::binding_needs_raw().then_some(Capability::NetRaw);
    let bind = low.then_some(Capability::NetBindService);
    [Some(Capability::NetAdmin), raw, bind].into_iter().flatten().collect()
}

/// Returns the user and the group of `mpt web` and `mpt hooks`, which may read the status of every tunnel: `mpt-web`,
/// or else a number that no user has.
pub(crate) fn status_reader() -> (Uid, Gid) {
    let named = nix::unistd::User::from_name("mpt-web").ok().flatten().map(|named| (named.uid, named.gid));
    named.unwrap_or((Uid::from_raw(65_521), Gid::from_raw(65_521)))
}

/// Becomes the user that may read the status of tunnels, if this process is root's, and drops all capabilities.
///
/// # Errors
/// The kernel refused the change.
pub(crate) fn become_status_reader() -> Result<(), Failure> {
    if geteuid().is_root() && privilege::may_change_user() {
        let (user, group) = status_reader();
        return Ok(privilege::become_user(user.as_raw(), group.as_raw(), &[])?);
    }
    if geteuid().is_root() {
        eprintln!("warning: staying root without capabilities: CAP_SETUID and CAP_SETGID are missing");
    }
    Ok(privilege::keep_only(&[])?)
}

/// User and group.
#[derive(Clone, Copy, Debug)]
struct User {
    user: Uid,
    group: Gid,
}

/// Becomes the user of running tunnels if this process is root's, and keeps only these capabilities. Returns true if it
/// has become that user. Otherwise it stays the user that it is, without the other capabilities.
///
/// # Errors
/// The directory of control sockets is not that user's and cannot be given to it, or is out of its reach.
pub(super) fn give_up_root(run: &RunDir, kept: &[Capability]) -> Result<bool, Failure> {
    if !geteuid().is_root() {
        // A service manager gave it CAP_NET_BIND_SERVICE for a port that a reload may add, and its filter of system
        // calls may forbid to drop it.
        privilege::keep_only(&[kept, &[Capability::NetBindService]].concat())?;
        return Ok(false);
    }
    let User { user, group } = User::of(run.path());
    let given = match privilege::may_change_user() {
        true => give(run.path(), user, group, RUN_DIR_MODE),
        false => Err(Errno::EPERM.into()),
    };
    match given {
        Ok(()) => {}
        // A container without these rights, or without this user.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => {
            tracing::warn!(%user, "staying root, with rights to its files: CAP_SETUID, CAP_SETGID and CAP_CHOWN are missing");
            privilege::keep_only(kept)?;
            return Ok(false);
        }
        Err(error) => return Err(cannot_give(run.path(), &error)),
    }
    if let Err(error) = give(&state_folder(), user, group, STATE_FOLDER_MODE) {
        let folder = state_folder().display().to_string();
        tracing::warn!(folder, %error, "cannot be given to user {user}: counters and times are not kept");
    }
    privilege::become_user(user.as_raw(), group.as_raw(), kept)?;
    match fs::read_dir(run.path()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let failure = Failure::new(format!("{} is out of reach of user {user}", run.path().display()));
            Err(failure.hint("everybody must be able to pass the directories above it: chmod o+x"))
        }
        _ => Ok(true),
    }
}

impl User {
    /// Returns the owner of this directory if that is not root, else the user `mpt` if there is one, else a number that
    /// no user has.
    fn of(directory: &Path) -> Self {
        let owner = fs::metadata(directory).ok().filter(|directory| directory.uid() != 0);
        let owner = owner.map(|owner| Self { user: owner.uid().into(), group: owner.gid().into() });
        let named = || nix::unistd::User::from_name(USER).ok().flatten();
        owner.or_else(|| named().map(|named| Self { user: named.uid, group: named.gid })).unwrap_or(Self::NUMBERED)
    }

    /// Distributions assign no user these numbers: systemd lists 65520 to 65533 as unused, and Debian reserves 65000 to
    /// 65533 (policy 9.2.2). User namespaces with 65536 users, as of containers, have them.
    const NUMBERED: Self = Self { user: Uid::from_raw(65_520), group: Gid::from_raw(65_520) };
}

/// Creates a directory if it is missing, and gives it to the user with all files of root in it.
///
/// Another user cannot have put a file of root there: only root owns the directory and may write to it, and each file
/// has this name alone. All changes are by descriptor, so that no name can be exchanged meanwhile.
fn give(path: &Path, user: Uid, group: Gid, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    let directory = File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)?;
    let before = directory.metadata()?;
    if before.uid() == user.as_raw() {
        return Ok(());
    }
    if before.uid() != 0 {
        return Err(io::Error::other(format!("it belongs to user {}, not to root or user {user}", before.uid())));
    }
    if before.permissions().mode() & 0o022 != 0 {
        return Err(io::Error::other("others than root may write to it"));
    }
    for file in files_of_root(&directory)? {
        fchownat(&file, "", Some(user), Some(group), AtFlags::AT_EMPTY_PATH)?;
    }
    Ok(fchown(directory.as_fd(), Some(user), Some(group))?)
}

/// Opens all files of root in a directory for nothing else than to change their owner.
fn files_of_root(directory: &File) -> io::Result<Vec<OwnedFd>> {
    let entries = fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    let names = names?;
    let is_ours = |name: &OsString| Path::new(name).extension().is_some_and(|kind| OURS.iter().any(|our| kind == *our));
    if !names.iter().all(is_ours) {
        return Err(io::Error::other("other programs use this directory"));
    }
    let mut files = Vec::new();
    for name in names {
        let file =
            openat(directory, name.as_os_str(), OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        let status = fstat(&file)?;
        if status.st_uid == 0 && status.st_nlink != 1 {
            return Err(io::Error::other(format!("{} has another name elsewhere", name.display())));
        }
        if status.st_uid == 0 {
            files.push(file);
        }
    }
    Ok(files)
}

fn cannot_give(path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot use {} for control sockets: {error}", path.display()));
    failure.hint("set MPT_RUN_DIR to a directory for nothing else, or leave it out")
}

/// The extensions of files in these directories.
const OURS: [&str; 9] = ["sock", "status", "lock", "undo", "usage", "handshake", "addresses", "new", "tls"];
/// Everybody may list the running tunnels.
const RUN_DIR_MODE: u32 = 0o755;
const STATE_FOLDER_MODE: u32 = 0o700;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn only_a_directory_and_files_of_root_alone_are_given_away() {
        if !geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let User { user, group } = User::NUMBERED;
        let given = || give(&path, user, group, RUN_DIR_MODE).map_err(|error| error.to_string());
        fs::create_dir(&path).unwrap();
        chown(&path, Some(65_521), None).unwrap();
        assert_eq!(given().unwrap_err(), "it belongs to user 65521, not to root or user 65520");
        chown(&path, Some(0), None).unwrap();

        // A file of root with a second name, as a hard link gives it to /etc/shadow.
        let (secret, link) = (folder.path().join("secret"), path.join("mpt0.lock"));
        fs::write(&secret, "").unwrap();
        fs::hard_link(&secret, &link).unwrap();
        assert_eq!(given().unwrap_err(), "mpt0.lock has another name elsewhere");
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        fs::write(path.join("mpt0.usage"), "").unwrap();
        given().unwrap();
        let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
        assert_eq!([&path, &link, &path.join("mpt0.usage")].map(|path| owner(path)), [65_520; 3]);
        assert_eq!(owner(&secret), 0, "a link is not followed");
    }

    #[test]
    fn every_kind_of_low_port_keeps_its_capability() {
        let keeps = |text: &str| {
            let file = config::parse(Path::new("test.toml"), text).unwrap();
            required_capabilities(&file).contains(&Capability::NetBindService)
        };
        let peer = "mode = \"plain\"\naddress = [\"10.77.0.1/24\"]\n[[peer]]\n[[peer.path]]\nremote = \"192.0.2.2\"\n";
        assert!(!keeps(peer));
        assert!(keeps(&format!("port = 53\n{peer}")));
        assert!(keeps(&peer.replace("[[peer]]", "[[peer]]\nlocal_port = 53")));
        assert!(keeps(&peer.replace("[[peer]]", "[original]\ncontrol_port = 53\n[[peer]]")));
        assert!(!keeps(&peer.replace("[[peer]]", "[original]\ncontrol_port = 1053\n[[peer]]")));
    }
}
