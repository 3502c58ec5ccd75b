//! Files with secrets in them: whose permissions are wider than the owner's are refused.
//!
//! Text that came from such a file is wiped from memory when it is dropped. What is said about a file never repeats a word of it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use zeroize::Zeroizing;

/// What stood in a file, and who may read it.
pub struct SecretText {
    /// All of it.
    pub text: Zeroizing<String>,
    /// The permission bits of the very file that was read.
    pub permissions: u32,
}

/// Reads at most `limit` bytes of a file.
///
/// # Errors
/// What the system says, or [`io::ErrorKind::InvalidData`] when it is not UTF-8.
pub fn read(path: &Path, limit: u64) -> io::Result<SecretText> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let permissions = metadata.permissions().mode() & 0o7777;
    let mut text = Zeroizing::new(String::with_capacity(metadata.len().min(limit) as usize + SPARE));
    file.take(limit).read_to_string(&mut text)?;
    Ok(SecretText { text, permissions })
}

/// A buffer that grows leaves a copy behind that nobody wipes; a reader wants so much room to find the end.
const SPARE: usize = 64;

/// What to try where a file cannot be read or written; `otherwise` where it is not for lack of permission.
pub fn hint_for(error: &io::Error, otherwise: &str) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "chown it to whoever runs mpt: a running tunnel has no right to others' files"
        }
        _ => otherwise,
    }
    .to_owned()
}

/// Permissions by which others than the owner can read or change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoosePermissions(u32);

impl LoosePermissions {
    /// These permissions, if they are too wide for a secret.
    pub fn of(permissions: u32) -> Option<Self> {
        (permissions & 0o077 != 0).then_some(Self(permissions))
    }
}

impl fmt::Display for LoosePermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "is open to others than its owner (mode {:04o})", self.0)
    }
}

/// What to type.
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
