//! The gateway: forwards from the tunnel to the Internet (`masquerade`), and from shared interfaces into the tunnel
//! (`share`). Either has source NAT.
//!
//! The table of nftables with the tunnel's name translates addresses. It also drops what the configuration does not
//! allow, because the kernel forwards between all interfaces of the host:
//!
//! ```text
//!   masquerade:
//!   from the tunnel     to the Internet      accept: by an interface that a default route leads to, no private address
//!                       to another client    accept with client_to_client
//!                       to other networks    accept with lan
//!   to the tunnel                            drop, except answers
//!   from the Internet   elsewhere            drop, except answers, and packets to which a rule of the host gave
//!                                            another destination (DNAT); accept if the host forwarded before
//! ```
//!
//! [`super::share`] has those of `share`. Other tables stay in effect; a firewall that drops forwarded packets goes on
//! doing so. [`super::forwarding`] switches forwarding on.

use std::collections::BTreeSet;

use ipnet::{IpNet, Ipv6Net};
use mpt_linux::netlink::{Link, Netlink};

use super::forwarding::{self, Forwarding};
use super::port_forward::PortForward;
use super::share::{self, Share};
use super::{bypass_rules, policy_routing};
use crate::Failure;
use crate::config::File;
use crate::control::RunDir;
use crate::nft::{self, Table};

/// The active configuration, reverted on drop.
#[derive(Debug)]
pub struct Gateway {
    run: RunDir,
    name: String,
    table: Table,
    forwarding: Forwarding,
    /// Shared interfaces that do not exist.
    missing: BTreeSet<String>,
    /// It stays after the end, for the next process.
    is_kept: bool,
}

impl Gateway {
    /// Applies the configuration; first reverts what a crash left behind. Returns `None` if nothing is forwarded.
    ///
    /// # Errors
    /// `nft` is missing or fails, a foreign table has the name, or forwarding cannot be enabled.
    pub fn open(file: &File, run: &RunDir) -> Result<Option<Self>, Failure> {
        clean(&file.interface, run)?;
        if !is_needed(file) {
            return Ok(None);
        }
        let table = table_of(&file.interface);
        table.reject_foreign()?;
        let (run, name, missing) = (run.clone(), file.interface.to_string(), BTreeSet::new());
        let forwarding = Forwarding::save(file, &run)?;
        let mut gateway = Self { run, name, table, forwarding, missing, is_kept: false };
        gateway.apply(file, &mut Netlink::open()?)?;
        gateway.forwarding.switch_on()?;
        let table = gateway.table.name();
        if file.masquerade {
            tracing::info!(table, "masquerading packets from the tunnel");
        }
        if !file.share.is_empty() {
            tracing::info!(table, interfaces = file.share.join(", "), "masquerading packets into the tunnel");
        }
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
        self.log_missing(file, &links);
        let uplinks = links.iter().filter(|link| uplinks.contains(&link.index) && link.name != self.name);
        let chains = Chains {
            tunnel: nft::quoted_tunnel(&self.name)?,
            uplinks: uplinks.filter_map(|link| nft::quoted(&link.name)).collect(),
            masquerade: file.masquerade,
            client_to_client: *file.client_to_client,
            lan: IpNet::aggregate(&file.lan.iter().map(|net| net.value).collect()),
            shared: share::set(file),
            delegated: file.delegate.as_ref().map(|net| net.value),
            routed: routed(file),
            has_kill_switch: policy_routing::has_kill_switch(file),
            only_for_tunnel: &self.forwarding.only_for_tunnel,
            beside: bypass_rules::accept_forwarded(file),
            ports: PortForward::of(file, &nft::quoted_tunnel(&self.name)?),
        };
        self.table.install(chains.text())
    }

    /// Logs which shared interfaces have appeared or disappeared. The table refers to names, so nothing else is needed.
    fn log_missing(&mut self, file: &File, links: &[Link]) {
        let is_missing = |name: &&String| links.iter().all(|link| link.name != **name);
        let missing: BTreeSet<String> = file.share.iter().filter(is_missing).cloned().collect();
        for interface in missing.difference(&self.missing) {
            tracing::warn!(interface, "share: there is no such interface; it is shared as soon as it appears");
        }
        for interface in self.missing.difference(&missing).filter(|interface| file.share.contains(interface)) {
            tracing::info!(interface, "share: the interface has appeared, and is shared");
        }
        self.missing = missing;
    }

    /// Enables forwarding again where it is off. Returns true if it was anywhere.
    ///
    /// # Errors
    /// A setting cannot be read or written.
    pub fn restore_forwarding(&self) -> Result<bool, Failure> {
        self.forwarding.restore()
    }

    /// Leaves everything to the next process, which takes it over.
    pub fn keep(&mut self) {
        self.is_kept = true;
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
        if self.is_kept {
            return;
        }
        if let Err(failure) = clean(&self.name, &self.run) {
            tracing::warn!(%failure, "cannot revert masquerading or forwarding");
        }
    }
}

/// Returns true if anything is forwarded.
pub fn is_needed(file: &File) -> bool {
    file.masquerade || [file.share.is_empty(), file.forwards.is_empty(), file.reachable.is_empty()].contains(&false)
}

/// Reverts the configuration of the tunnel with this name, if its state file exists. Returns true if it existed.
///
/// # Errors
/// Something could not be reverted. The file then stays for another attempt.
pub fn clean(name: &str, run: &RunDir) -> Result<bool, Failure> {
    if !forwarding::is_saved(name, run) {
        return Ok(false);
    }
    table_of(name).remove()?;
    forwarding::revert(name, run)?;
    Ok(true)
}

/// Returns the networks of peers with global IPv6 addresses. The Internet leads to them by itself, because the provider
/// routes them to this host. The address of a single host is translated.
fn routed(file: &File) -> Vec<Ipv6Net> {
    let networks = file.peers.iter().flat_map(|peer| &peer.networks).map(|net| net.value);
    let global = networks.filter_map(|net| match net {
        IpNet::V6(v6) if v6.network().segments()[0] & 0xe000 == 0x2000 && (3..=64).contains(&v6.prefix_len()) => {
            Some(v6)
        }
        _ => None,
    });
    Ipv6Net::aggregate(&global.collect())
}

/// Returns the table, which is named after the tunnel.
fn table_of(interface: &str) -> Table {
    Table::new(
        "mpt",
        interface,
        format!("mpt: made for {interface}, removed with it"),
        "masquerade, share, forward or reachable",
    )
}

/// The settings that determine the chains.
struct Chains<'a> {
    tunnel: String,
    /// Notations of the interfaces that default routes lead to.
    uplinks: Vec<String>,
    masquerade: bool,
    client_to_client: bool,
    lan: Vec<IpNet>,
    /// The notation of the shared interfaces.
    shared: Option<String>,
    /// The network of the hosts there, whose source is not translated.
    delegated: Option<Ipv6Net>,
    /// Global networks behind peers, whose source is not translated.
    routed: Vec<Ipv6Net>,
    has_kill_switch: bool,
    /// Families that the host did not forward before.
    only_for_tunnel: &'a [&'static str],
    /// The rule that accepts connections beside the tunnel.
    beside: String,
    /// Forwarded ports and reachable networks.
    ports: PortForward,
}

impl Chains<'_> {
    fn text(&self) -> String {
        let Self { tunnel, .. } = self;
        let (mut forward, mut nat, mut chains) = (self.beside.clone(), String::new(), ANSWERS.to_owned());
        forward += &self.ports.forward;
        chains += &self.ports.chains;
        if let Some(shared) = &self.shared {
            let (is_alone, has_kill_switch) = (!self.masquerade, self.has_kill_switch);
            let share = Share { tunnel, shared, is_alone, has_kill_switch, only_for_tunnel: self.only_for_tunnel };
            forward += &share.forward();
            if let Some(net) = self.delegated {
                nat += &format!("    iifname {shared} oifname {tunnel} ip6 saddr {net} accept\n");
            }
            nat += &format!("    iifname {shared} oifname {tunnel} masquerade\n");
        }
        if self.masquerade {
            chains += &self.tunnel_chain();
            forward += &format!(
                "    iifname {tunnel} jump from_tunnel\n    oifname {tunnel} ct state established,related accept\n    \
                 oifname {tunnel} drop\n"
            );
            for net in &self.routed {
                nat += &format!("    iifname {tunnel} ip6 saddr {net} accept\n");
            }
            nat += &format!("    iifname {tunnel} oifname != {tunnel} masquerade\n");
        }
        if !self.ports.is_empty() && !self.masquerade && self.shared.is_none() {
            let rules = ["iifname", "oifname"].map(|direction| format!("{direction} {tunnel} jump answers\n"));
            let families = self.only_for_tunnel.iter();
            let rules =
                families.flat_map(|family| rules.iter().map(move |rule| format!("    meta nfproto {family} {rule}")));
            forward.extend(rules);
        }
        if let Some(uplinks) = self.uplinks() {
            let rule = |family: &&str| format!("    meta nfproto {family} iifname {uplinks} jump answers\n");
            forward.extend(self.only_for_tunnel.iter().map(rule));
        }
        format!(
            "{chains}  chain forward {{\n    type filter hook forward priority filter; policy accept;\n{forward}  }}\n  \
             chain postrouting {{\n    type nat hook postrouting priority srcnat; policy accept;\n{nat}  }}\n"
        )
    }

    fn tunnel_chain(&self) -> String {
        let (tunnel, between) = (&self.tunnel, if self.client_to_client { "accept" } else { "drop" });
        let mut rules = format!("    oifname {tunnel} {between}\n");
        rules += &nft::destination_rules("", &self.lan, "accept");
        if let Some(uplinks) = self.uplinks() {
            // A host with one interface has its LAN there.
            rules += &nft::destination_rules("", &nft::PRIVATE, "drop");
            rules += &format!("    oifname {uplinks} accept\n");
        }
        format!("  chain from_tunnel {{\n    ct state established,related accept\n{rules}    drop\n  }}\n")
    }

    fn uplinks(&self) -> Option<String> {
        (!self.uplinks.is_empty()).then(|| format!("{{ {} }}", self.uplinks.join(", ")))
    }
}

/// For packets that nothing has requested: they are dropped, unless a rule of the host gave them their destination.
const ANSWERS: &str =
    "  chain answers {\n    ct state established,related accept\n    ct status dnat accept\n    drop\n  }\n";

#[cfg(test)]
mod tests {
    use std::path::Path;

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
            let (masquerade, client_to_client, lan, shared, has_kill_switch) = (true, false, Vec::new(), None, false);
            let beside = String::new();
            Chains {
                tunnel,
                uplinks,
                masquerade,
                client_to_client,
                lan,
                shared,
                delegated: None,
                routed: Vec::new(),
                has_kill_switch,
                only_for_tunnel,
                beside,
                ports: PortForward::default(),
            }
            .text()
        };
        assert!(!chains(&[]).contains("{  }") && !chains(&[]).contains("jump answers"));
        assert!(chains(&["eth0", "wwan0"]).contains("oifname { \"eth0\", \"wwan0\" } accept"));
        assert!(chains(&["eth0"]).contains("meta nfproto ipv4 iifname { \"eth0\" } jump answers"));
    }
}
