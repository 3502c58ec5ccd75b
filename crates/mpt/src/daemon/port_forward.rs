//! `[[forward]]` and `reachable`: connections of visitors to a host behind a peer, with the visitors' addresses.
//!
//! ```text
//!   visitor --- port 8443 of the server === tunnel === the site --- 192.168.5.10:443
//! ```
//!
//! The server changes the destination alone, so the host sees who visits, and its answers must return by the tunnel.
//! The site marks each connection that begins in the tunnel; its answers get the mark of a routing rule, unless the
//! tunnel has the default route anyway.

use std::fmt::Write as _;

use ipnet::IpNet;

use super::policy_routing;
use crate::config::File;
use crate::config::forward::Forward;
use crate::firewall_mark::answer_mark_of;
use crate::nft;

/// The chains and rules of a tunnel with forwards, or with a list of reachable networks.
#[derive(Debug, Default)]
pub struct PortForward {
    /// Rules for forwarded packets.
    pub forward: String,
    /// Further chains.
    pub chains: String,
}

impl PortForward {
    /// Makes those of a configuration. `tunnel` is the notation of its interface.
    pub fn of(file: &File, tunnel: &str) -> Self {
        let mut all = Self::default();
        if !file.forwards.is_empty() {
            let rules: String = file.forwards.iter().map(translation).collect();
            all.chains += &format!(
                "  chain prerouting {{\n    type nat hook prerouting priority dstnat; policy accept;\n    \
                 iifname {tunnel} accept\n{rules}  }}\n"
            );
            all.forward.extend(file.forwards.iter().map(|forward| permission(forward, tunnel)));
        }
        if !file.reachable.is_empty() {
            let nets = IpNet::aggregate(&file.reachable.iter().map(|net| net.value).collect());
            let condition = format!("iifname {tunnel} ct state new ");
            all.forward += &nft::destination_rules(&condition, &nets, "accept");
            for direction in ["iifname", "oifname"] {
                let _ = writeln!(all.forward, "    {direction} {tunnel} ct state established,related accept");
            }
            if let Some(mark) = answer_mark(file) {
                all.chains += &answers(tunnel, mark);
            }
        }
        all
    }

    /// Returns true if the tunnel has neither.
    pub fn is_empty(&self) -> bool {
        self.forward.is_empty()
    }
}

/// Returns the mark of answers to connections that began in the tunnel; `None` if they return by it in any case.
pub fn answer_mark(file: &File) -> Option<u32> {
    let leads = [false, true].into_iter().all(|ipv6| policy_routing::routes_everything(file, ipv6));
    policy_routing::mark(file).filter(|_| !file.reachable.is_empty() && !leads).map(answer_mark_of)
}

/// Returns the rule that leads a port of this host, at any of its addresses, into the tunnel.
fn translation(forward: &Forward) -> String {
    let Forward { port, to, .. } = forward;
    let (family, keyword) = if to.is_ipv4() { ("ipv4", "ip") } else { ("ipv6", "ip6") };
    let protocol = forward.protocol_name();
    format!(
        "    meta nfproto {family} fib daddr type local {protocol} dport {} dnat {keyword} to {}\n",
        port.value, to.value
    )
}

fn permission(forward: &Forward, tunnel: &str) -> String {
    let (to, protocol) = (forward.to.value, forward.protocol_name());
    let keyword = if to.is_ipv4() { "ip" } else { "ip6" };
    format!("    oifname {tunnel} {keyword} daddr {} {protocol} dport {} ct status dnat accept\n", to.ip(), to.port())
}

fn answers(tunnel: &str, mark: u32) -> String {
    format!(
        "  chain incoming {{\n    type filter hook prerouting priority mangle; policy accept;\n    \
         iifname {tunnel} ct state new ct mark set {mark:#x}\n    \
         iifname != {tunnel} ct mark {mark:#x} meta mark set {mark:#x}\n  }}\n  \
         chain answering {{\n    type route hook output priority mangle; policy accept;\n    \
         ct mark {mark:#x} ct direction reply meta mark set {mark:#x}\n  }}\n"
    )
}
