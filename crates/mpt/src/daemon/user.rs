//! The user of a running tunnel, who has no rights to the files of root.
//!
//! The directory of control sockets and the folder of files that outlive the tunnel belong to that user. Whatever root
//! writes in a directory of another user may be redirected by a link there, so the commands that write in them become
//! that user first.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use mpt_linux::privilege::{self, Capability};
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::libc;
use nix::unistd::{Gid, Uid, fchown, fchownat, geteuid};

use super::state_folder;
use crate::Failure;
use crate::control::RunDir;
use crate::secrets::USER;

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
        privilege::keep_only(kept)?;
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

/// Creates a directory if it is missing, and gives it to the user with all files that belonged to its former owner.
///
/// Another user cannot have put a file of root there: the files of root go along only if root alone could write to the
/// directory.
fn give(path: &Path, user: Uid, group: Gid, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    let directory = File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)?;
    let before = directory.metadata()?;
    if before.uid() == user.as_raw() {
        return Ok(());
    }
    let entries: io::Result<Vec<_>> = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect();
    let entries = entries?;
    let is_ours = |name: &OsString| Path::new(name).extension().is_some_and(|kind| OURS.iter().any(|our| kind == *our));
    if before.permissions().mode() & 0o022 != 0 || !entries.iter().all(is_ours) {
        return Err(io::Error::other("other programs use this directory"));
    }
    for name in &entries {
        let entry = nix::sys::stat::fstatat(&directory, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        if entry.st_uid == before.uid() {
            fchownat(&directory, name.as_os_str(), Some(user), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        }
    }
    Ok(fchown(directory.as_fd(), Some(user), Some(group))?)
}

fn cannot_give(path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot use {} for control sockets: {error}", path.display()));
    failure.hint("set MPT_RUN_DIR to a directory for nothing else, or leave it out")
}

/// The extensions of files in these directories.
const OURS: [&str; 6] = ["sock", "lock", "undo", "usage", "handshake", "new"];
/// Everybody may list the running tunnels.
const RUN_DIR_MODE: u32 = 0o755;
const STATE_FOLDER_MODE: u32 = 0o700;
