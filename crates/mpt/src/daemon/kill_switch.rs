//! The kill switch: a table of nftables that drops what leaves the host by another interface than the tunnel.
//!
//! Routing rules steer packets, and a program can evade them: it selects an interface for its socket, or a DHCP server
//! adds routes that are more specific than the default route. The hooks of netfilter see each packet with the interface
//! by which it leaves, however that was selected.
//!
//! ```text
//!   output    accept    lo, the tunnel, our own mark, which packets of `[[bypass]]` have, too
//!             drop      with `dns`: queries to other name servers
//!             accept    DHCP, neighbour discovery, multicast membership: a link fails without these
//!             accept    local networks
//!             drop
//!   forward   accept    the tunnel, connections of `[[bypass]]`; from the tunnel to shared interfaces, and
//!                       answers to visitors of `[[forward]]`
//!             drop      with `dns`: queries to other name servers
//!             accept    local networks
//!             drop
//! ```
//!
//! Local networks are those of `outside` in the configuration. Without that key they are the networks of the addresses
//! of other interfaces, as far as their addresses are private: a hostile access point can hand out an address in the
//! network of any public server. For the same reason a network that overlaps with one of the tunnel is not local.
//!
//! The table refers to names of interfaces, so it is in effect before they exist and after this process has ended. It
//! is removed by a clean shutdown, by `mpt down`, and by a reload without `kill_switch`.

use std::collections::BTreeMap;

use ipnet::IpNet;
use mpt_linux::netlink::Netlink;

use super::{bypass_rules, policy_routing, share};
use crate::Failure;
use crate::config::File;
use crate::nft::{self, Table};

/// The table of one tunnel.
#[derive(Debug)]
pub struct KillSwitch {
    table: Table,
    /// A table of an earlier process may exist.
    is_unknown: bool,
}

impl KillSwitch {
    /// Makes that of the tunnel with this interface. Nothing is changed yet.
    pub fn of(interface: &str) -> Self {
        let comment = format!("mpt: kill switch of {interface}");
        Self { table: Table::new("mptkill", interface, comment, "kill_switch"), is_unknown: true }
    }

    /// Installs the table, or removes it, as the configuration requires.
    ///
    /// # Errors
    /// `nft` is missing or fails, or a foreign table has the name. An earlier table stays.
    pub fn apply(&mut self, file: &File, netlink: &mut Netlink) -> Result<(), Failure> {
        if !policy_routing::has_kill_switch(file) {
            return if self.is_unknown { self.clear().map(drop) } else { Ok(()) };
        }
        self.is_unknown = true;
        let local = match &file.outside {
            Some(_) => BTreeMap::new(),
            None => attached_networks(file, netlink)?,
        };
        self.table.install(chains(file, &local)?)
    }

    /// Installs the table again if it was deleted or changed. Returns true if it was.
    ///
    /// # Errors
    /// As for [`Self::apply`].
    pub fn restore(&mut self) -> Result<bool, Failure> {
        self.table.restore()
    }

    /// Returns the name of the table.
    pub fn table(&self) -> &str {
        self.table.name()
    }

    /// Removes the table. Returns true if there was one.
    ///
    /// # Errors
    /// `nft` fails. Without `nft` there is no table.
    pub fn clear(&mut self) -> Result<bool, Failure> {
        let was_active = self.table.clear()?;
        self.is_unknown = false;
        Ok(was_active)
    }

    /// Returns true if the table exists.
    pub fn is_active(&self) -> bool {
        self.table.is_active()
    }
}

/// Returns the private networks of all interfaces but the tunnel, by interface.
fn attached_networks(file: &File, netlink: &mut Netlink) -> Result<BTreeMap<String, Vec<IpNet>>, Failure> {
    let links = netlink.links()?;
    let name = |index: u32| links.iter().find(|link| link.index == index).map(|link| link.name.clone());
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (index, prefix) in netlink.all_addresses()? {
        let Some(name) = name(index).filter(|name| name != "lo" && *name != *file.interface) else { continue };
        let Ok(net) = IpNet::new(prefix.address, prefix.length) else { continue };
        if is_local(&net.trunc(), file) {
            found.entry(name).or_default().push(net.trunc());
        }
    }
    for nets in found.values_mut() {
        *nets = IpNet::aggregate(nets);
    }
    Ok(found)
}

/// Returns true if a network is private and does not overlap with a network of the tunnel.
fn is_local(net: &IpNet, file: &File) -> bool {
    let is_inside = |wide: &&str| wide.parse::<IpNet>().is_ok_and(|wide| wide.contains(net));
    let overlaps = |own: &IpNet| own.prefix_len() > 0 && (own.contains(net) || net.contains(&own.trunc()));
    nft::PRIVATE.iter().any(is_inside) && !file.routes.iter().chain(&file.addresses).any(|own| overlaps(own))
}

/// Destinations that no router forwards (RFC 3927, RFC 5771, RFC 4291): names of printers, and the like.
const LINK_LOCAL: [&str; 4] = ["169.254.0.0/16", "224.0.0.0/24", "fe80::/10", "ff02::/16"];

fn chains(file: &File, local: &BTreeMap<String, Vec<IpNet>>) -> Result<String, Failure> {
    let (tunnel, mark) = (nft::quoted_tunnel(&file.interface)?, policy_routing::mark(file).unwrap_or_default());
    let (networks, beside) = (accept_networks(file, local), bypass_rules::accept_forwarded(file));
    let link = if file.outside.is_none() { nft::destination_rules("", &LINK_LOCAL, "accept") } else { String::new() };
    let (queries, mut leases, mut answers) = (drop_queries(file), String::new(), String::new());
    if !file.forwards.is_empty() {
        // Answers to visitors, whose connections `[[forward]]` has led into the tunnel.
        answers += &format!("    iifname {tunnel} ct status dnat ct direction reply accept\n");
    }
    if let Some(shared) = share::set(file) {
        // The offer of a DHCP server (RFC 2131 section 4.1). The answers from the tunnel have any destination.
        leases = format!("    oifname {shared} ip daddr 255.255.255.255 udp sport 67 udp dport 68 accept\n");
        answers += &format!("    iifname {tunnel} oifname {shared} accept\n");
        if let Some(net) = &file.delegate {
            leases += &format!("    oifname {shared} ip6 daddr {} accept\n", net.value);
        }
    }
    Ok(format!(
        "  chain output {{\n    type filter hook output priority {LAST}; policy drop;\n    \
         oifname {{ \"lo\", {tunnel} }} accept\n    meta mark {mark:#x} accept\n\
         {queries}{KEEP_LINKS}{leases}{link}{networks}  }}\n  \
         chain forward {{\n    type filter hook forward priority {LAST}; policy drop;\n    \
         oifname {tunnel} accept\n{beside}{answers}{queries}{networks}  }}\n"
    ))
}

/// Returns rules that drop queries to other name servers than those of `dns`: the one that a router of the uplink
/// announces is often in a local network, and would see each name.
fn drop_queries(file: &File) -> String {
    if file.dns.is_empty() {
        return String::new();
    }
    let rule = |(family, keyword): (&str, &str)| {
        let of_family = file.dns.iter().filter(|server| server.is_ipv6() == (keyword == "ip6"));
        let servers: Vec<_> = of_family.map(|server| server.value.to_string()).collect();
        let others = match servers.is_empty() {
            true => format!("meta nfproto {family}"),
            false => format!("{keyword} daddr != {{ {} }}", servers.join(", ")),
        };
        format!("    {others} meta l4proto {{ tcp, udp }} th dport 53 drop\n")
    };
    [("ipv4", "ip"), ("ipv6", "ip6")].map(rule).concat()
}

fn accept_networks(file: &File, local: &BTreeMap<String, Vec<IpNet>>) -> String {
    let listed: Vec<IpNet> = file.outside.iter().flatten().map(|net| **net).collect();
    let mut lines = nft::destination_rules("", &IpNet::aggregate(&listed), "accept");
    for (interface, nets) in local {
        // Nothing is accepted on an interface that nftables cannot name.
        if let Some(name) = nft::quoted(interface) {
            lines += &nft::destination_rules(&format!("oifname {name} "), nets, "accept");
        }
    }
    lines
}

/// DHCP (RFC 2131), also for IPv6 (RFC 8415); neighbour and router discovery, which is not forwarded (RFC 4861 section
/// 3.1); membership of multicast groups (RFC 3376, RFC 3810). A DHCP client that renews its lease at a server beyond
/// the link falls back to a broadcast.
const KEEP_LINKS: &str = "    ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept
    ip6 daddr { fe80::/10, ff02::/16 } udp sport 546 udp dport 547 accept
    ip6 hoplimit 255 icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept
    ip6 daddr ff02::/16 icmpv6 type { mld-listener-report, mld-listener-reduction, mld2-listener-report } accept
    ip ttl 1 ip protocol igmp accept
";

/// After all chains that may still change the route of a packet.
const LAST: i32 = 300;

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "private_key = \"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\"\naddress = [\"10.77.0.1/24\"]\n\
        routes = [\"0.0.0.0/0\", \"10.82.0.0/16\"]\nkill_switch = true\n";
    const PEER: &str =
        "[[peer]]\npublic_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\nremote = \"192.0.2.1\"\n";

    fn file(more: &str) -> File {
        crate::config::parse(std::path::Path::new("a.toml"), &format!("{FILE}{more}{PEER}")).unwrap()
    }

    #[test]
    fn only_private_networks_beside_those_of_the_tunnel_are_local() {
        let file = file("");
        let is_local = |net: &str| is_local(&net.parse().unwrap(), &file);
        for net in ["192.168.7.0/24", "10.1.0.0/16", "172.31.0.0/16", "100.64.3.0/24", "fd12::/64", "fe80::/64"] {
            assert!(is_local(net), "{net}");
        }
        // Public, wider than private, of a route into the tunnel, of its address.
        for net in
            ["198.51.100.0/24", "0.0.0.0/1", "8.0.0.0/5", "10.82.7.0/24", "10.0.0.0/8", "10.77.0.0/25", "2001:db8::/32"]
        {
            assert!(!is_local(net), "{net}");
        }
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused() {
        let problem = |text: &str| match crate::config::parse(std::path::Path::new("a.toml"), text) {
            Ok(_) => String::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        };
        let everything = problem(&format!("{FILE}outside = [\"::/0\"]\n{PEER}"));
        assert!(everything.contains("outside: ::/0 is everything") && everything.contains("hint:"), "{everything}");
        let open = format!("{FILE}outside = [\"192.168.7.0/24\"]\n{PEER}").replace("kill_switch = true\n", "");
        assert!(problem(&open).contains("outside: only with a kill switch"), "{}", problem(&open));
        let misspelt = problem(&format!("{FILE}outsides = []\n{PEER}"));
        assert!(misspelt.contains("did you mean") && misspelt.contains("outside"), "{misspelt}");
    }

    #[test]
    fn queries_leave_for_the_listed_name_servers_alone() {
        let chains = |more: &str| chains(&file(more), &BTreeMap::new()).unwrap();
        assert!(!chains("").contains("dport 53"));
        let v4 = chains("dns = [\"10.77.0.1\"]\n");
        assert_eq!(v4.matches("ip daddr != { 10.77.0.1 } meta l4proto { tcp, udp } th dport 53 drop").count(), 2);
        assert_eq!(v4.matches("meta nfproto ipv6 meta l4proto { tcp, udp } th dport 53 drop").count(), 2);
    }

    #[test]
    fn answers_to_visitors_of_forwarded_ports_pass() {
        let chains = |more: &str| chains(&file(more), &BTreeMap::new()).unwrap();
        let forward = "[[forward]]\nport = 8443\nto = \"10.82.0.9:443\"\npeer = \"peer\"\n";
        assert!(chains(forward).contains("iifname \"mpt0\" ct status dnat ct direction reply accept"));
        assert!(!chains("").contains("dnat"));
    }

    #[test]
    fn listed_networks_replace_the_attached_ones() {
        let attached = BTreeMap::from([("eth0".to_owned(), vec!["192.168.7.0/24".parse().unwrap()])]);
        let chains = |file: &File, local: &_| chains(file, local).unwrap();
        assert!(chains(&file(""), &attached).contains("oifname \"eth0\" ip daddr { 192.168.7.0/24 } accept"));
        let listed = chains(&file("outside = [\"198.51.100.0/24\"]\n"), &BTreeMap::new());
        assert!(listed.contains("ip daddr { 198.51.100.0/24 } accept") && !listed.contains("224.0.0.0/24"));
        let none = chains(&file("outside = []\n"), &BTreeMap::new());
        assert!(!none.contains("oifname \"eth0\"") && none.matches("policy drop").count() == 2);
    }
}
