//! Tables of nftables that belong to a tunnel.
//!
//! A table has a name and a comment of ours. If a table of the name lacks the comment, it stays untouched and the
//! tunnel does not start. Changes are single transactions: a table that is replaced is in effect at any moment. Tables
//! of others stay in effect; what they drop stays dropped.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Failure;

/// A table of a tunnel.
#[derive(Debug)]
pub struct Table {
    name: String,
    comment: String,
    /// The configuration key that needs it.
    key: &'static str,
    installed: Option<Installed>,
}

/// The contents of an installed table.
#[derive(Debug)]
struct Installed {
    content: String,
    /// The same as `nft list` prints it.
    listing: String,
}

impl Table {
    /// Names the table `PREFIX_INTERFACE` for the configuration key `key`.
    pub fn new(prefix: &str, interface: &str, comment: String, key: &'static str) -> Self {
        Self { name: table_name(prefix, interface), comment, key, installed: None }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Installs the table with these chains, in place of an earlier one of ours. Does nothing if it has them already.
    ///
    /// # Errors
    /// `nft` is missing or fails, or a foreign table has the name.
    pub fn install(&mut self, content: String) -> Result<(), Failure> {
        if self.installed.as_ref().is_some_and(|installed| installed.content == content) {
            return Ok(());
        }
        self.reject_foreign()?;
        let Self { name, comment, .. } = &*self;
        // Adding a table that exists changes nothing, so deleting succeeds in any case.
        self.run(&format!(
            "table inet {name}\ndelete table inet {name}\ntable inet {name} {{\n  comment \"{comment}\"\n{content}}}\n"
        ))?;
        let listing = self.list()?.unwrap_or_default();
        self.installed = Some(Installed { content, listing });
        Ok(())
    }

    /// Fails if a foreign table has the name.
    ///
    /// # Errors
    /// There is one, or `nft` cannot be run.
    pub fn reject_foreign(&self) -> Result<(), Failure> {
        let Self { name, .. } = self;
        if self.is_ours()? != Some(false) {
            return Ok(());
        }
        let failure = Failure::new(format!("the nftables table inet {name} exists and is not ours"));
        Err(failure.hint(format!("inspect it with `nft list table inet {name}`, then rename or delete it")))
    }

    /// Installs the table again if its contents have changed. Returns true if they had.
    ///
    /// # Errors
    /// As for [`Self::install`].
    pub fn restore(&mut self) -> Result<bool, Failure> {
        let Some(installed) = &self.installed else { return Ok(false) };
        let (content, listed) = (installed.content.clone(), self.list());
        if listed.as_ref().is_ok_and(|listed| listed.as_ref() == Some(&installed.listing)) {
            return Ok(false);
        }
        // After a failure, the next call of `install` must not assume that the table exists.
        self.installed = None;
        listed?;
        self.install(content).map(|()| true)
    }

    /// Removes the table if it is ours. Returns true if it was.
    ///
    /// # Errors
    /// `nft` fails.
    pub fn remove(&mut self) -> Result<bool, Failure> {
        self.installed = None;
        let is_ours = self.is_ours()? == Some(true);
        if is_ours {
            self.run(&format!("delete table inet {}\n", self.name))?;
        }
        Ok(is_ours)
    }

    /// Does the same. Without `nft` there is no table.
    ///
    /// # Errors
    /// `nft` fails.
    pub fn clear(&mut self) -> Result<bool, Failure> {
        let is_active = self.is_active();
        if is_active {
            self.remove()?;
        }
        Ok(is_active)
    }

    /// Returns true if the table exists and is ours.
    pub fn is_active(&self) -> bool {
        self.is_ours().is_ok_and(|ours| ours == Some(true))
    }

    /// Returns true if the table has our comment; `None` if there is no table.
    ///
    /// # Errors
    /// `nft` cannot be run.
    pub fn is_ours(&self) -> Result<Option<bool>, Failure> {
        Ok(self.list()?.map(|listing| listing.contains(&self.comment)))
    }

    /// Returns the table without counters and the contents of its sets; `None` if there is none.
    fn list(&self) -> Result<Option<String>, Failure> {
        let mut command = Command::new(program());
        let command =
            command.args(["--stateless", "--terse", "list", "table", "inet", &self.name]).stdin(Stdio::null());
        let listed = command.output().map_err(|error| self.no_nft(&error))?;
        Ok(listed.status.success().then(|| String::from_utf8_lossy(&listed.stdout).into_owned()))
    }

    /// Runs a script as one transaction.
    fn run(&self, script: &str) -> Result<(), Failure> {
        let mut command = Command::new(program());
        let piped = command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = piped.spawn().map_err(|error| self.no_nft(&error))?;
        if let Some(mut input) = child.stdin.take() {
            // It fails if `nft` has ended early. Then its output has the reason, and waiting leaves no zombie.
            let _ = input.write_all(script.as_bytes());
        }
        let output = child.wait_with_output().map_err(|error| self.no_nft(&error))?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stderr = stderr.lines().next().unwrap_or_default();
        let hint = format!("{} needs root, and a kernel with nftables (5.7 or later)", self.key);
        Err(Failure::new(format!("nft: {stderr}")).hint(hint))
    }

    fn no_nft(&self, error: &io::Error) -> Failure {
        Failure::new(format!("cannot run nft: {error}")).hint(format!("{} needs the package nftables", self.key))
    }
}

/// Returns an interface name as a string of nftables, in which an asterisk at the end would match any rest; `None` if
/// nftables has no notation for it.
pub fn quoted(interface: &str) -> Option<String> {
    let has_notation = !interface.contains(['"', '\\']);
    let escaped = interface.strip_suffix('*').map_or_else(|| interface.to_owned(), |start| format!("{start}\\*"));
    has_notation.then(|| format!("\"{escaped}\""))
}

/// Returns the notation of the tunnel's own interface.
///
/// # Errors
/// There is none.
pub fn quoted_tunnel(interface: &str) -> Result<String, Failure> {
    quoted(interface).ok_or_else(|| {
        Failure::new(format!("nftables cannot name the interface {interface}")).hint("choose another interface name")
    })
}

/// Returns rules with this verdict for these destinations, one for each IP version among them. Networks must not
/// overlap.
pub fn destination_rules(condition: &str, nets: &[impl ToString], verdict: &str) -> String {
    let nets: Vec<String> = nets.iter().map(ToString::to_string).collect();
    let rule = |(family, ipv6): (&str, bool)| {
        let nets: Vec<_> = nets.iter().filter(|net| net.contains(':') == ipv6).map(String::as_str).collect();
        let set = nets.join(", ");
        (!nets.is_empty()).then(|| format!("    {condition}{family} daddr {{ {set} }} {verdict}\n"))
    };
    [("ip", false), ("ip6", true)].into_iter().filter_map(rule).collect()
}

/// Private addresses (RFC 1918, RFC 6598, RFC 4193) and those of a link (RFC 3927, RFC 4291).
pub const PRIVATE: [&str; 7] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "fc00::/7", "fe80::/10"];

/// Returns the name of a table.
pub fn table_name(prefix: &str, interface: &str) -> String {
    format!("{prefix}_{}", encoded(interface))
}

/// nftables allows fewer characters in names than Linux in interface names.
fn encoded(interface: &str) -> String {
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_string() } else { format!("_{:02x}", c as u32) };
    interface.chars().map(plain).collect()
}

/// Returns the program `nft`. The search path of a service may lack `sbin`.
pub fn program() -> PathBuf {
    let paths = ["/usr/sbin/nft", "/sbin/nft"].map(PathBuf::from);
    paths.into_iter().find(|path| path.exists()).unwrap_or_else(|| "nft".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(interface: &str) -> String {
        Table::new("mpt", interface, String::new(), "masquerade").name
    }

    #[test]
    fn different_interfaces_have_different_table_names() {
        assert_eq!(name("mpt0"), "mpt_mpt0");
        assert_eq!(name("home-b.1"), "mpt_home_2db.1");
        assert_ne!(name("a_2d"), name("a-"));
    }

    #[test]
    fn destinations_of_each_ip_version_have_a_rule() {
        let both = "    oifname \"a\" ip daddr { 10.0.0.0/8, 192.0.2.1 } drop\n    oifname \"a\" ip6 daddr { fc00::/7 } drop\n";
        assert_eq!(destination_rules("oifname \"a\" ", &["10.0.0.0/8", "fc00::/7", "192.0.2.1"], "drop"), both);
        assert_eq!(destination_rules("", &["fe80::/10"], "accept"), "    ip6 daddr { fe80::/10 } accept\n");
        assert_eq!(destination_rules("", &[""; 0], "accept"), "");
    }

    #[test]
    fn an_interface_name_matches_only_itself() {
        assert_eq!(quoted("mpt0").as_deref(), Some(r#""mpt0""#));
        assert_eq!(quoted("mpt*").as_deref(), Some(r#""mpt\*""#));
        assert_eq!([quoted("a\"b"), quoted("a\\")], [None, None]);
    }
}
