//! Rejects files with secrets that others may access. Messages about such a file never contain any of its text.

use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::unistd::{Group, geteuid};

/// Returns the permission bits of a file that may contain a secret. Permission to read is not counted for the group
/// `mpt` of a file of root: that group is for tunnels that a service manager starts without root.
pub fn permissions(metadata: &Metadata) -> u32 {
    let permissions = metadata.permissions().mode() & 0o7777;
    let is_shared = metadata.uid() == 0 && permissions & 0o040 != 0 && Some(metadata.gid()) == group_of_tunnels();
    if is_shared { permissions & !0o040 } else { permissions }
}

/// Returns the group of running tunnels, if the host has it.
pub fn group_of_tunnels() -> Option<u32> {
    Group::from_name(USER).ok().flatten().map(|group| group.gid.as_raw())
}

/// The user and the group of running tunnels.
pub const USER: &str = "mpt";

/// Returns true if others than root and the user of this process may change a file, or the files of a folder.
pub fn may_be_changed_by_others(metadata: &Metadata) -> bool {
    let is_foreign = metadata.uid() != 0 && metadata.uid() != geteuid().as_raw();
    is_foreign || metadata.permissions().mode() & 0o022 != 0
}

/// Returns a hint for a file that cannot be read or written; `otherwise` if permission is not the cause.
pub fn hint_for(error: &io::Error, otherwise: &str) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "chown it to the user that runs mpt, or with the systemd unit: chown root:mpt, chmod 640; a running tunnel cannot access files of others"
        }
        _ => otherwise,
    }
    .to_owned()
}

/// Permissions that let others read or change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoosePermissions(u32);

impl LoosePermissions {
    /// Returns the permissions if they are too open for a secret.
    pub fn of(permissions: u32) -> Option<Self> {
        (permissions & 0o077 != 0).then_some(Self(permissions))
    }
}

impl fmt::Display for LoosePermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "is open to others than its owner (mode {:04o})", self.0)
    }
}

/// Returns the command that restricts the permissions. A file of root and the group `mpt` stays readable for that
/// group.
pub fn chmod(path: &Path) -> String {
    let owner = fs::metadata(path).map(|metadata| (metadata.uid(), metadata.gid()));
    chmod_to(strictest(owner.ok(), group_of_tunnels()), path)
}

fn strictest(owner: Option<(u32, u32)>, group_of_tunnels: Option<u32>) -> &'static str {
    match (owner, group_of_tunnels) {
        (Some((0, group)), Some(tunnels)) if group == tunnels => "640",
        _ => "600",
    }
}

fn chmod_to(mode: &str, path: &Path) -> String {
    let path = path.display().to_string();
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)) && !path.starts_with('-');
    if plain { format!("chmod {mode} {path}") } else { format!("chmod {mode} -- '{}'", path.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_have_access() {
        for strict in [0o600, 0o400, 0o700, 0o4600] {
            assert_eq!(LoosePermissions::of(strict), None);
        }
        for loose in [0o644, 0o640, 0o604, 0o660, 0o620, 0o601] {
            assert_eq!(LoosePermissions::of(loose), Some(LoosePermissions(loose)));
        }
        assert_eq!(LoosePermissions(0o644).to_string(), "is open to others than its owner (mode 0644)");
    }

    #[test]
    fn a_file_for_the_group_of_tunnels_stays_readable_for_it() {
        assert_eq!(strictest(Some((0, 970)), Some(970)), "640");
        for other in [(Some((0, 0)), Some(970)), (Some((970, 970)), Some(970)), (Some((0, 0)), None), (None, Some(970))]
        {
            assert_eq!(strictest(other.0, other.1), "600");
        }
    }

    #[test]
    fn the_command_can_be_typed_as_it_stands() {
        assert_eq!(chmod(Path::new("/etc/mpt/home.toml")), "chmod 600 /etc/mpt/home.toml");
        assert_eq!(chmod(Path::new("/tmp/my key")), "chmod 600 -- '/tmp/my key'");
        assert_eq!(chmod(Path::new("/tmp/it's")), r"chmod 600 -- '/tmp/it'\''s'");
    }
}
