//! Gateway mode: enables IP forwarding and source NAT (masquerading) for packets from the tunnel.
//!
//! The NAT rules are an nftables table with the tunnel's name and our comment, by which it is recognized. If a table of
//! that name lacks the comment, it stays untouched and the tunnel does not start. Other tables stay in effect; a
//! firewall that drops forwarded packets continues to do so.
//!
//! The previous forwarding state is saved in a file beside the control socket before it is changed. After a crash, the
//! file makes the next `mpt up` or `mpt down` restore the state. Several tunnels can need forwarding: the last one
//! restores it.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Failure;
use crate::config::File;
use crate::control::RunDir;

/// The active configuration, reverted on drop.
#[derive(Debug)]
pub struct Gateway {
    run: RunDir,
    name: String,
}

impl Gateway {
    /// Applies the configuration; first reverts what a crash left behind. Returns `None` if masquerading is off.
    ///
    /// # Errors
    /// `nft` is missing or fails, a foreign table has the name, or forwarding cannot be enabled.
    pub fn open(file: &File, run: &RunDir) -> Result<Option<Self>, Failure> {
        clean(&file.interface, run)?;
        if !file.masquerade {
            return Ok(None);
        }
        reject_foreign_table(&file.interface)?;
        let ipv6 = file.addresses.iter().any(|address| address.addr().is_ipv6());
        let sysctls = if ipv6 { &SYSCTLS[..] } else { &SYSCTLS[..1] };
        let gateway = Self { run: run.clone(), name: file.interface.to_string() };
        save_state(&gateway.name, run, sysctls)?;
        nft(&table(&file.interface))?;
        for sysctl in sysctls {
            write(sysctl, "1")?;
        }
        tracing::info!(table = %table_name(&file.interface), "masquerading packets from the tunnel");
        Ok(Some(gateway))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Err(failure) = clean(&self.name, &self.run) {
            tracing::warn!(%failure, "cannot revert masquerading or forwarding");
        }
    }
}

/// Reverts the configuration of the tunnel with this name, if its state file exists. Returns true if it existed.
///
/// # Errors
/// Something could not be reverted. The file then stays for another attempt.
pub fn clean(name: &str, run: &RunDir) -> Result<bool, Failure> {
    let state_file = run.undo_file(name);
    let Ok(text) = fs::read_to_string(&state_file) else { return Ok(false) };
    if is_ours(name)? == Some(true) {
        nft(&format!("delete table inet {}\n", table_name(name)))?;
    }
    for (sysctl, before) in text.lines().filter_map(|line| line.split_once('=')) {
        let still_needed = other_states(name, run).iter().any(|other| value(other, sysctl).is_some());
        if SYSCTLS.contains(&sysctl) && !still_needed {
            write(sysctl, before)?;
        }
    }
    fs::remove_file(&state_file).map_err(|error| cannot("remove", &state_file, &error))?;
    Ok(true)
}

/// Saves the values of the sysctls, or those from before another tunnel changed them.
fn save_state(name: &str, run: &RunDir, sysctls: &[&str]) -> Result<(), Failure> {
    let (path, others) = (run.undo_file(name), other_states(name, run));
    let line = |sysctl: &&str| {
        let before = others.iter().find_map(|other| value(other, sysctl));
        let now = || fs::read_to_string(Path::new(SYSCTL_ROOT).join(sysctl)).map(|text| text.trim().to_owned());
        let before =
            before.map_or_else(now, Ok).map_err(|error| cannot("read", &Path::new(SYSCTL_ROOT).join(sysctl), &error));
        before.map(|before| format!("{sysctl}={before}\n"))
    };
    let text: String = sysctls.iter().map(line).collect::<Result<_, _>>()?;
    fs::write(&path, text).map_err(|error| cannot("write", &path, &error))
}

/// Returns the saved states of other tunnels.
fn other_states(name: &str, run: &RunDir) -> Vec<String> {
    let names = run.names().into_iter().filter(|other| other != name);
    names.filter_map(|other| fs::read_to_string(run.undo_file(&other)).ok()).collect()
}

fn value(state: &str, sysctl: &str) -> Option<String> {
    state.lines().find_map(|line| Some(line.split_once('=').filter(|(name, _)| *name == sysctl)?.1.to_owned()))
}

/// Sysctls below [`SYSCTL_ROOT`] that enable forwarding: IPv4, and IPv6 if the tunnel uses it.
const SYSCTLS: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];
const SYSCTL_ROOT: &str = "/proc/sys";

fn write(sysctl: &str, value: &str) -> Result<(), Failure> {
    let path = Path::new(SYSCTL_ROOT).join(sysctl);
    fs::write(&path, value).map_err(|error| cannot("write", &path, &error))
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot {what} {}: {error}", path.display())).hint("masquerade needs root")
}

/// The nftables table: packets that enter by the tunnel and leave by another interface get that interface's address.
fn table(interface: &str) -> String {
    format!(
        "table inet {} {{\n  comment \"{}\"\n  chain postrouting {{\n    type nat hook postrouting priority srcnat; \
         policy accept;\n    iifname \"{interface}\" oifname != \"{interface}\" masquerade\n  }}\n}}\n",
        table_name(interface),
        comment(interface)
    )
}

fn comment(interface: &str) -> String {
    format!("mpt: made for {interface}, removed with it")
}

/// nftables allows fewer characters in names than Linux in interface names.
fn table_name(interface: &str) -> String {
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_string() } else { format!("_{:02x}", c as u32) };
    format!("mpt_{}", interface.chars().map(plain).collect::<String>())
}

fn reject_foreign_table(interface: &str) -> Result<(), Failure> {
    match is_ours(interface)? {
        None => Ok(()),
        Some(true) => nft(&format!("delete table inet {}\n", table_name(interface))),
        Some(false) => {
            let name = table_name(interface);
            let failure = Failure::new(format!("the nftables table inet {name} exists and is not ours"));
            Err(failure.hint(format!("inspect it with `nft list table inet {name}`, then rename or delete it")))
        }
    }
}

/// Returns true if this tunnel's table has our comment; `None` if there is no table.
fn is_ours(interface: &str) -> Result<Option<bool>, Failure> {
    let mut command = Command::new(program());
    let listed = command.args(["list", "table", "inet", &table_name(interface)]).stdin(Stdio::null()).output();
    let listed = listed.map_err(|error| no_nft(&error))?;
    let text = String::from_utf8_lossy(&listed.stdout);
    Ok(listed.status.success().then(|| text.contains(&comment(interface))))
}

/// Runs an nftables script atomically.
fn nft(script: &str) -> Result<(), Failure> {
    let mut command = Command::new(program());
    let piped = command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(|error| no_nft(&error))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(|error| no_nft(&error))?;
    }
    let output = child.wait_with_output().map_err(|error| no_nft(&error))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stderr = stderr.lines().next().unwrap_or_default().to_owned();
    Err(Failure::new(format!("nft: {stderr}")).hint("masquerade needs root, and a kernel with nftables (5.7 or later)"))
}

/// The search path of a service may lack `sbin`.
fn program() -> PathBuf {
    let paths = ["/usr/sbin/nft", "/sbin/nft"].map(PathBuf::from);
    paths.into_iter().find(|path| path.exists()).unwrap_or_else(|| "nft".into())
}

fn no_nft(error: &io::Error) -> Failure {
    Failure::new(format!("cannot run nft: {error}")).hint("masquerade needs the package nftables")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_interfaces_have_different_table_names() {
        assert_eq!(table_name("mpt0"), "mpt_mpt0");
        assert_eq!(table_name("home-b.1"), "mpt_home_2db.1");
        assert_ne!(table_name("a_2d"), table_name("a-"));
    }

    #[test]
    fn a_sysctl_is_read_from_its_own_line() {
        let state = "net/ipv4/ip_forward=0\nnet/ipv6/conf/all/forwarding=1\n";
        assert_eq!(value(state, SYSCTLS[0]), Some("0".to_owned()));
        assert_eq!(value(state, SYSCTLS[1]), Some("1".to_owned()));
        assert_eq!(value(state, "net/ipv4"), None);
    }
}
