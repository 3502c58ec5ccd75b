//! Gateway mode: enables IP forwarding and source NAT (masquerading) for packets from the tunnel.
//!
//! The NAT rules are a table of nftables with the tunnel's name. Other tables stay in effect; a firewall that drops
//! forwarded packets continues to do so.
//!
//! The previous forwarding state is saved in a file beside the control socket before it is changed. After a crash, the
//! file makes the next `mpt up` or `mpt down` restore the state. Several tunnels can need forwarding: the last one
//! restores it.

use std::fs;
use std::io;
use std::path::Path;

use super::nft::{self, Table};
use crate::Failure;
use crate::config::File;
use crate::control::RunDir;

/// The active configuration, reverted on drop.
#[derive(Debug)]
pub struct Gateway {
    run: RunDir,
    name: String,
    table: Table,
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
        let table = table_of(&file.interface);
        let chains = chains(&file.interface)?;
        table.reject_foreign()?;
        let ipv6 = file.addresses.iter().any(|address| address.addr().is_ipv6());
        let sysctls = if ipv6 { &SYSCTLS[..] } else { &SYSCTLS[..1] };
        save_state(&file.interface, run, sysctls)?;
        let mut gateway = Self { run: run.clone(), name: file.interface.to_string(), table };
        gateway.table.install(chains)?;
        for sysctl in sysctls {
            write(sysctl, "1")?;
        }
        tracing::info!(table = gateway.table.name(), "masquerading packets from the tunnel");
        Ok(Some(gateway))
    }
}

impl Gateway {
    /// Returns the name of the table.
    pub fn table(&self) -> &str {
        self.table.name()
    }

    /// Installs the table again if it was deleted or changed. Returns true if it was.
    ///
    /// # Errors
    /// `nft` fails, or a foreign table has the name.
    pub fn restore(&mut self) -> Result<bool, Failure> {
        self.table.restore()
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
    table_of(name).remove()?;
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

/// Returns the table, which is named after the tunnel.
fn table_of(interface: &str) -> Table {
    Table::new("mpt", interface, format!("mpt: made for {interface}, removed with it"), "masquerade")
}

/// Returns the chains: packets that enter by the tunnel and leave by another interface get that interface's address.
fn chains(interface: &str) -> Result<String, Failure> {
    let tunnel = nft::quoted_tunnel(interface)?;
    Ok(format!(
        "  chain postrouting {{\n    type nat hook postrouting priority srcnat; policy accept;\n    \
         iifname {tunnel} oifname != {tunnel} masquerade\n  }}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_is_read_from_its_own_line() {
        let state = "net/ipv4/ip_forward=0\nnet/ipv6/conf/all/forwarding=1\n";
        assert_eq!(value(state, SYSCTLS[0]), Some("0".to_owned()));
        assert_eq!(value(state, SYSCTLS[1]), Some("1".to_owned()));
        assert_eq!(value(state, "net/ipv4"), None);
    }
}
