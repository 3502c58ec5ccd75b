//! Names of tunnels and peers: they are parts of paths, units and shell commands.

use std::fmt;
use std::str::FromStr;

use crate::interface_name::RESERVED;

/// The name of a tunnel or a peer.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let fits = (1..=MAX).contains(&text.len()) && text.chars().all(is_plain) && !text.starts_with('-');
        match fits && !RESERVED.contains(&text) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("a name has 1 to {MAX} letters, digits, \"-\" and \"_\"")),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The longest name of an interface.
const MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_safe_in_paths_units_and_commands() {
        for name in ["mpt0", "home-1", "A_b"] {
            assert_eq!(name.parse::<Name>().unwrap().as_str(), name);
        }
        for wrong in ["", "..", "a/b", "a.b", "-x", "a b", "a@b", "$x", "é", "0123456789abcdef", "lo"] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }
}
