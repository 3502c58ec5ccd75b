//! `[[bypass]]`: selected traffic leaves beside the tunnel, although everything else leaves through it.
//!
//! A table of nftables gives selected packets the mark of the tunnel's own datagrams, which routing rules and kill
//! switch except. A connection is selected by its first packet and keeps its way by its conntrack mark.
//!
//! ```text
//!   output        the mark; the kernel looks the route up again, in the main table
//!   prerouting    the same for hosts at shared interfaces
//!   postrouting   the address of the uplink as source: a program has chosen that of the tunnel by the first route
//! ```
//!
//! A named set has addresses that another program adds, such as dnsmasq for the names of a service.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::{policy_routing, share};
use crate::Failure;
use crate::config::File;
use crate::config::bypass::BypassRule;
use crate::nft::{self, Table};

/// The table of one tunnel.
#[derive(Debug)]
pub struct BypassRules {
    table: Table,
    /// A table of an earlier process may exist.
    is_unknown: bool,
}

impl BypassRules {
    /// Makes that of the tunnel with this interface. Nothing is changed yet.
    pub fn of(interface: &str) -> Self {
        let comment = format!("mpt: traffic beside {interface}");
        Self { table: Table::new("mptbypass", interface, comment, "bypass"), is_unknown: true }
    }

    /// Installs the table, or removes it, as the configuration requires.
    ///
    /// # Errors
    /// `nft` is missing or fails, or a foreign table has the name.
    pub fn apply(&mut self, file: &File) -> Result<(), Failure> {
        let Some(mark) = mark(file) else {
            return if self.is_unknown { self.clear().map(drop) } else { Ok(()) };
        };
        self.is_unknown = true;
        self.table.install(content(file, mark)?)
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

/// Returns the conntrack mark of connections beside the tunnel; `None` without rules. The tunnel's own datagrams have
/// another one, because they keep their source.
pub fn mark(file: &File) -> Option<u32> {
    policy_routing::mark(file).filter(|_| !file.bypass.is_empty()).map(|mark| mark | 1 << 16)
}

/// Returns the rule that accepts forwarded packets of these connections.
pub fn accept_forwarded(file: &File) -> String {
    let rule = mark(file).filter(|_| !file.share.is_empty()).map(|mark| format!("    ct mark {mark:#x} accept\n"));
    rule.unwrap_or_default()
}

fn content(file: &File, connections: u32) -> Result<String, Failure> {
    let (tunnel, packets) = (nft::quoted_tunnel(&file.interface)?, policy_routing::mark(file).unwrap_or_default());
    let names: BTreeSet<_> = file.bypass.iter().filter_map(|rule| rule.set.as_deref()).collect();
    let set = |(name, version): (&str, u8)| format!("  set {name}{version} {{\n    type ipv{version}_addr\n  }}\n");
    let sets: String = names.into_iter().flat_map(|name| [(name, 4), (name, 6)]).map(set).collect();
    let select: String =
        file.bypass.iter().flat_map(|rule| conditions(rule)).map(|of| format!("    {of}goto beside\n")).collect();
    let shared = share::set(file);
    let prerouting = shared.as_ref().map_or_else(String::new, |shared| {
        format!(
            "  chain prerouting {{\n    type filter hook prerouting priority mangle; policy accept;\n    \
             iifname != {shared} accept\n    ct mark {connections:#x} meta mark set {packets:#x} accept\n    \
             ct state new jump select\n  }}\n"
        )
    });
    let inside = shared.map_or_else(
        || format!("\"lo\", {tunnel}"),
        |shared| format!("\"lo\", {tunnel}, {}", shared.trim_matches(['{', '}', ' '])),
    );
    Ok(format!(
        "{sets}  chain beside {{\n    meta mark set {packets:#x} ct mark set {connections:#x}\n  }}\n  \
         chain select {{\n{select}  }}\n{prerouting}  \
         chain output {{\n    type route hook output priority mangle; policy accept;\n    oifname \"lo\" accept\n    \
         meta mark {packets:#x} accept\n    ct mark {connections:#x} meta mark set {packets:#x} accept\n    \
         ct state new jump select\n  }}\n  \
         chain postrouting {{\n    type nat hook postrouting priority srcnat; policy accept;\n    \
         ct mark {connections:#x} oifname != {{ {inside} }} masquerade\n  }}\n"
    ))
}

/// Returns the conditions of a rule in the notation of nftables, once for each IP version if they differ.
fn conditions(rule: &BypassRule) -> Vec<String> {
    let BypassRule { destination, set, protocol, port, dscp, mark } = rule;
    let common = [
        mark.map(|mark| format!("meta mark {mark:#x} ")),
        protocol.map(|protocol| format!("meta l4proto {protocol} ")),
        port.as_ref().map(|port| ports(port, protocol.is_some())),
    ];
    let common: String = common.into_iter().flatten().collect();
    if destination.is_none() && set.is_none() && dscp.is_none() {
        return vec![common];
    }
    let of_version = |(keyword, version): (&str, u8)| {
        if destination.is_some_and(|net| net.addr().is_ipv6() != (version == 6)) {
            return None;
        }
        let own = [
            destination.map(|net| format!("{keyword} daddr {net} ")),
            set.as_ref().map(|set| format!("{keyword} daddr @{set}{version} ")),
            dscp.map(|dscp| format!("{keyword} dscp {dscp} ")),
        ];
        Some(own.into_iter().flatten().collect::<String>() + &common)
    };
    [("ip", 4), ("ip6", 6)].into_iter().filter_map(of_version).collect()
}

fn ports(range: &RangeInclusive<u16>, has_protocol: bool) -> String {
    let protocols = if has_protocol { "" } else { "meta l4proto { tcp, udp } " };
    match (range.start(), range.end()) {
        (first, last) if first == last => format!("{protocols}th dport {first} "),
        (first, last) => format!("{protocols}th dport {first}-{last} "),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parsed(top: &str, tables: &str) -> Result<File, String> {
        let text = format!(
            "private_key = \"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\"\naddress = [\"10.77.0.1/24\"]\n{top}\n\
             {tables}\n[[peer]]\npublic_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\nremote = \"192.0.2.1\"\n"
        );
        crate::config::parse(Path::new("a.toml"), &text)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    const ALL: &str = "routes = [\"0.0.0.0/0\"]";

    #[test]
    fn conditions_are_those_of_nftables() {
        let conditions = |text: &str| {
            let file = parsed(ALL, &format!("[[bypass]]\n{text}")).expect(text);
            file.bypass.iter().flat_map(|rule| conditions(rule)).collect::<Vec<_>>()
        };
        assert_eq!(conditions("destination = \"203.0.113.0/24\""), ["ip daddr 203.0.113.0/24 "]);
        assert_eq!(conditions("set = \"tv\""), ["ip daddr @tv4 ", "ip6 daddr @tv6 "]);
        assert_eq!(conditions("port = \"5004-5060\""), ["meta l4proto { tcp, udp } th dport 5004-5060 "]);
        assert_eq!(conditions("protocol = \"tcp\"\nport = 25"), ["meta l4proto 6 th dport 25 "]);
        assert_eq!(conditions("dscp = 8\nmark = 16"), ["ip dscp 8 meta mark 0x10 ", "ip6 dscp 8 meta mark 0x10 "]);
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let problem = |top: &str, text: &str| parsed(top, &format!("[[bypass]]\n{text}")).err().unwrap_or_default();
        assert_eq!(problem(ALL, "port = 25"), "");
        for (top, text, expected) in [
            (ALL, "", "this bypass is for everything"),
            (ALL, "destination = \"0.0.0.0/0\"", "this prefix is everything"),
            (ALL, "port = 25\nprotocol = \"icmp\"", "only TCP and UDP have ports"),
            (ALL, "mark = 1297088514", "tunnels use themselves"),
            (ALL, "set = \"My Set\"", "set: "),
            ("", "port = 25", "no default route leads into the tunnel"),
            ("mode = \"plain\"", "port = 25", "bypass has no meaning in plain mode"),
        ] {
            let problem = problem(top, text);
            assert!(problem.contains(expected) && problem.contains("hint:"), "{text}: {problem}");
        }
    }

    #[test]
    fn a_rule_that_any_program_can_meet_causes_a_warning_under_the_kill_switch() {
        let warnings = |text: &str| {
            let file = parsed(&format!("{ALL}\nkill_switch = true"), &format!("[[bypass]]\n{text}")).expect(text);
            file.warnings.iter().map(ToString::to_string).collect::<String>()
        };
        assert!(warnings("dscp = 8").contains("past the kill switch"));
        assert_eq!(warnings("dscp = 8\nmark = 16"), "");
        assert_eq!(warnings("destination = \"203.0.113.0/24\""), "");
    }
}
