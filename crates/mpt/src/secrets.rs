//! Reads files with secrets, and rejects those that others may access.
//!
//! Text from such a file is wiped from memory on drop. Messages about a file never contain any of its text.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::unistd::geteuid;
use zeroize::Zeroizing;

/// The contents and permissions of a file.
pub struct SecretText {
    /// The contents.
    pub text: Zeroizing<String>,
    /// The permission bits of the file that was read.
    pub permissions: u32,
    /// Others than root and the user of this process may change the file.
    pub is_loose: bool,
}

/// Reads at most `limit` bytes of a file.
///
/// # Errors
/// The system's error, or [`io::ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read(path: &Path, limit: u64) -> io::Result<SecretText> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let permissions = metadata.permissions().mode() & 0o7777;
    let is_loose = is_changed_by_others(&metadata);
    let mut text = Zeroizing::new(String::with_capacity(metadata.len().min(limit) as usize + SPARE));
    file.take(limit).read_to_string(&mut text)?;
    Ok(SecretText { text, permissions, is_loose })
}

/// Returns true if others than root and the user of this process may change a file, or the files of a folder.
pub fn is_changed_by_others(metadata: &Metadata) -> bool {
    let is_foreign = metadata.uid() != 0 && metadata.uid() != geteuid().as_raw();
    is_foreign || metadata.permissions().mode() & 0o022 != 0
}

/// Growing a buffer would leave an unwiped copy behind; the reader needs this much space to detect the end.
const SPARE: usize = 64;

/// Returns a hint for a file that cannot be read or written; `otherwise` if permission is not the cause.
pub fn hint_for(error: &io::Error, otherwise: &str) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "chown it to the user that runs mpt: a running tunnel cannot access files of others"
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

/// Returns the command that restricts the permissions.
pub fn chmod(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)) && !path.starts_with('-');
    if plain { format!("chmod 600 {path}") } else { format!("chmod 600 -- '{}'", path.replace('\'', r"'\''")) }
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
    fn the_command_can_be_typed_as_it_stands() {
        assert_eq!(chmod(Path::new("/etc/mpt/home.toml")), "chmod 600 /etc/mpt/home.toml");
        assert_eq!(chmod(Path::new("/tmp/my key")), "chmod 600 -- '/tmp/my key'");
        assert_eq!(chmod(Path::new("/tmp/it's")), r"chmod 600 -- '/tmp/it'\''s'");
    }
}
