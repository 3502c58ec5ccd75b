//! Gateway mode: enables IP forwarding and source NAT (masquerading) for packets from the tunnel.
//!
//! The table of nftables with the tunnel's name translates addresses. It also drops what the configuration does not
//! allow, because the kernel forwards between all interfaces of the host:
//!
//! ```text
//!   from the tunnel     to the Internet      accept: by an interface that a default route leads to, no private address
//!                       to another client    accept with client_to_client
//!                       to other networks    accept with lan
//!   to the tunnel                            drop, except answers
//!   from the Internet   elsewhere            drop, except answers, and packets to which a rule of the host gave
//!                                            another destination (DNAT); accept if the host forwarded before
//! ```
//!
//! Other tables stay in effect; a firewall that drops forwarded packets continues to do so.
//!
//! The previous forwarding state is saved in a file beside the control socket before it is changed. After a crash, the
//! file makes the next `mpt up` or `mpt down` restore the state. Several tunnels can need forwarding: the last one
//! restores it.

use std::fs;
use std::io;
use std::path::Path;

use ipnet::IpNet;
use mpt_linux::netlink::Netlink;

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
    /// The sysctls that it needs.
    sysctls: &'static [&'static str],
    /// Families that the host did not forward before.
    only_for_tunnel: Vec<&'static str>,
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
        table.reject_foreign()?;
        let ipv6 = file.addresses.iter().any(|address| address.addr().is_ipv6());
        let sysctls = if ipv6 { &SYSCTLS[..] } else { &SYSCTLS[..1] };
        save_state(&file.interface, run, sysctls)?;
        let only_for_tunnel = families_not_forwarded(&file.interface, run);
        let name = file.interface.to_string();
        let mut gateway = Self { run: run.clone(), name, table, sysctls, only_for_tunnel };
        gateway.apply(file, &mut Netlink::open()?)?;
        for sysctl in sysctls {
            write(sysctl, "1")?;
        }
        tracing::info!(table = gateway.table.name(), "masquerading packets from the tunnel");
        Ok(Some(gateway))
    }
}

impl Gateway {
    /// Installs the table for this configuration and the present default routes. Does nothing if it is installed.
    ///
    /// # Errors
    /// The kernel refused a query, `nft` fails, or a foreign table has the name.
    pub fn apply(&mut self, file: &File, netlink: &mut Netlink) -> Result<(), Failure> {
        let (uplinks, links) = (netlink.default_links()?, netlink.links()?);
        let uplinks = links.iter().filter(|link| uplinks.contains(&link.index) && link.name != self.name);
        let chains = Chains {
            tunnel: nft::quoted_tunnel(&self.name)?,
            uplinks: uplinks.filter_map(|link| nft::quoted(&link.name)).collect(),
            client_to_client: *file.client_to_client,
            lan: IpNet::aggregate(&file.lan.iter().map(|net| net.value).collect()),
            only_for_tunnel: &self.only_for_tunnel,
        };
        self.table.install(chains.text())
    }

    /// Enables forwarding again where it is off. Returns true if it was anywhere.
    ///
    /// # Errors
    /// A setting cannot be read or written.
    pub fn restore_forwarding(&self) -> Result<bool, Failure> {
        let mut restored = false;
        for sysctl in self.sysctls {
            if read(sysctl)? == "0" {
                write(sysctl, "1")?;
                restored = true;
            }
        }
        Ok(restored)
    }

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
        before.map_or_else(|| read(sysctl), Ok).map(|before| format!("{sysctl}={before}\n"))
    };
    let text: String = sysctls.iter().map(line).collect::<Result<_, _>>()?;
    fs::write(&path, text).map_err(|error| cannot("write", &path, &error))
}

/// Returns the families that the host did not forward before any tunnel changed that.
fn families_not_forwarded(name: &str, run: &RunDir) -> Vec<&'static str> {
    let state = fs::read_to_string(run.undo_file(name)).unwrap_or_default();
    let was_off = |sysctl: &str| value(&state, sysctl).as_deref() == Some("0");
    SYSCTLS.into_iter().zip(["ipv4", "ipv6"]).filter(|(sysctl, _)| was_off(sysctl)).map(|(_, family)| family).collect()
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

fn read(sysctl: &str) -> Result<String, Failure> {
    let path = Path::new(SYSCTL_ROOT).join(sysctl);
    let text = fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?;
    Ok(text.trim().to_owned())
}

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

/// The settings that determine the chains.
struct Chains<'a> {
    tunnel: String,
    /// Notations of the interfaces that default routes lead to.
    uplinks: Vec<String>,
    client_to_client: bool,
    lan: Vec<IpNet>,
    /// Families that the host did not forward before.
    only_for_tunnel: &'a [&'static str],
}

impl Chains<'_> {
    fn text(&self) -> String {
        let Self { tunnel, .. } = self;
        let uplinks = format!("{{ {} }}", self.uplinks.join(", "));
        let between = if self.client_to_client { "accept" } else { "drop" };
        let mut from_tunnel = format!("    oifname {tunnel} {between}\n");
        from_tunnel += &nft::destination_rules("", &self.lan, "accept");
        let mut beside = String::new();
        if !self.uplinks.is_empty() {
            // A host with one interface has its LAN there.
            from_tunnel += &nft::destination_rules("", &nft::PRIVATE, "drop");
            from_tunnel += &format!("    oifname {uplinks} accept\n");
            let rule = |family: &&str| format!("    meta nfproto {family} iifname {uplinks} jump from_uplink\n");
            beside = self.only_for_tunnel.iter().map(rule).collect();
        }
        format!(
            "  chain from_tunnel {{\n    ct state established,related accept\n{from_tunnel}    drop\n  }}\n  \
             chain from_uplink {{\n    ct state established,related accept\n    ct status dnat accept\n    drop\n  }}\n  \
             chain forward {{\n    type filter hook forward priority filter; policy accept;\n    \
             iifname {tunnel} jump from_tunnel\n    oifname {tunnel} ct state established,related accept\n    \
             oifname {tunnel} drop\n{beside}  }}\n  \
             chain postrouting {{\n    type nat hook postrouting priority srcnat; policy accept;\n    \
             iifname {tunnel} oifname != {tunnel} masquerade\n  }}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(top: &str) -> String {
        let key = "private_key = \"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\"";
        let peer = "[[peer]]\npublic_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\nremote = \"192.0.2.1\"\n";
        let text = format!("{key}\naddress = [\"10.77.0.1/24\"]\n{top}\n{peer}");
        match crate::config::parse(Path::new("a.toml"), &text) {
            Ok(_) => String::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn whom_the_gateway_forwards_for_is_checked() {
        assert_eq!(problems("masquerade = true\nclient_to_client = true\nlan = [\"10.1.0.0/16\"]"), "");
        assert!(problems("client_to_client = true").contains("client_to_client: only with masquerade"));
        assert!(problems("lan = [\"10.1.0.0/16\"]").contains("lan: only with masquerade"));
        let misspelt = problems("masquerade = true\nclients_to_client = true");
        assert!(misspelt.contains("did you mean") && misspelt.contains("client_to_client"), "{misspelt}");
    }

    #[test]
    fn without_a_default_route_nothing_is_forwarded() {
        let chains = |uplinks: &[&str]| {
            let uplinks = uplinks.iter().filter_map(|name| nft::quoted(name)).collect();
            let only_for_tunnel = &["ipv4"];
            let tunnel = "\"mpt0\"".to_owned();
            Chains { tunnel, uplinks, client_to_client: false, lan: Vec::new(), only_for_tunnel }.text()
        };
        assert!(!chains(&[]).contains("{  }") && !chains(&[]).contains("jump from_uplink"));
        assert!(chains(&["eth0", "wwan0"]).contains("oifname { \"eth0\", \"wwan0\" } accept"));
        assert!(chains(&["eth0"]).contains("meta nfproto ipv4 iifname { \"eth0\" } jump from_uplink"));
    }

    #[test]
    fn a_sysctl_is_read_from_its_own_line() {
        let state = "net/ipv4/ip_forward=0\nnet/ipv6/conf/all/forwarding=1\n";
        assert_eq!(value(state, SYSCTLS[0]), Some("0".to_owned()));
        assert_eq!(value(state, SYSCTLS[1]), Some("1".to_owned()));
        assert_eq!(value(state, "net/ipv4"), None);
    }
}
