//! Shared interfaces: the hosts there reach through the tunnel what this host reaches through it.
//!
//! ```text
//!   from a shared interface   to the tunnel             accept, with the tunnel's address as source
//!                             elsewhere                 drop, except answers and DNAT; accept if the host forwarded
//!                                                       before, and under the kill switch between shared ones alone
//!   from the tunnel           to a shared interface     drop, except answers and DNAT
//!                             elsewhere                 drop, except answers and DNAT; as before if the host forwarded
//!   from elsewhere            to the tunnel             the same
//! ```
//!
//! The source is translated because a peer cannot announce networks: the other end drops packets from any source that
//! its `networks` lack. Rules refer to names of interfaces, so they are in effect for interfaces that appear later.

use crate::config::File;
use crate::nft;

/// The settings that determine the rules.
pub struct Share<'a> {
    /// Notations of nftables.
    pub tunnel: &'a str,
    pub shared: &'a str,
    /// No rules of `masquerade` are for what the tunnel receives.
    pub is_alone: bool,
    pub has_kill_switch: bool,
    /// Families that the host did not forward before.
    pub only_for_tunnel: &'a [&'static str],
}

impl Share<'_> {
    /// Returns the rules for forwarded packets.
    pub fn forward(&self) -> String {
        let Self { tunnel, shared, .. } = self;
        // A packet that belongs to no connection keeps its source, which is none of the tunnel's.
        let mut rules = format!(
            "    iifname {shared} oifname {tunnel} ct state invalid drop\n    iifname {shared} oifname {tunnel} accept\n"
        );
        if self.is_alone {
            rules += &format!("    iifname {tunnel} oifname {shared} jump answers\n");
        }
        for family in ["ipv4", "ipv6"] {
            let mut add = |condition: &str| rules += &format!("    meta nfproto {family} {condition} jump answers\n");
            if self.only_for_tunnel.contains(&family) {
                add(&format!("iifname {shared}"));
                for direction in ["iifname", "oifname"].iter().filter(|_| self.is_alone) {
                    add(&format!("{direction} {tunnel}"));
                }
            } else if self.has_kill_switch {
                add(&format!("iifname {shared} oifname != {shared}"));
            }
        }
        rules
    }
}

/// Returns the notation of the shared interfaces; `None` if there are none.
pub fn set(file: &File) -> Option<String> {
    let names: Vec<_> = file.share.iter().filter_map(|name| nft::quoted(name)).collect();
    (!names.is_empty()).then(|| format!("{{ {} }}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn problems(share: &str) -> String {
        let text = format!(
            "private_key = \"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\"\naddress = [\"10.77.0.1/24\"]\n\
             routes = [\"0.0.0.0/0\"]\nkill_switch = true\n{share}\n[[peer]]\n\
             public_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\nremote = \"192.0.2.1\"\n"
        );
        match crate::config::parse(Path::new("a.toml"), &text) {
            Ok(file) => file.warnings.iter().map(ToString::to_string).collect(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn interfaces_that_cannot_be_shared_are_refused() {
        for (share, expected) in [
            ("share = \"mpt0\"", "share: \"mpt0\" is the tunnel's own interface"),
            ("share = [\"lan0\", \"lo\"]", "share: \"lo\" is a reserved name"),
            ("share = [\"lan0\", \"lan0\"]", "share: \"lan0\" is a duplicate"),
            ("share = 'lan\"0'", "nftables has no notation"),
            ("share = \"an interface\"", "is not an interface name of 1 to 15 characters"),
            ("share = []", "is not an interface name"),
            ("shared = \"lan0\"", "did you mean"),
        ] {
            let problems = problems(share);
            let is_reported =
                problems.contains(expected) && problems.contains("a.toml:5") && problems.contains("hint:");
            assert!(is_reported, "{share}: {problems}");
        }
        for share in ["share = \"lan0\"", "share = [\"br-lan\", \"eth3\"]"] {
            assert_eq!(problems(share), "");
        }
    }

    #[test]
    fn name_servers_are_addresses_in_the_tunnel_and_three_at_most() {
        assert_eq!(problems("dns = [\"10.77.0.1\", \"127.0.0.1\"]"), "");
        for (dns, expected) in [
            ("dns = \"10.77.0.1\"", "in brackets"),
            ("dns = [\"one.example\"]", "dns: \"one.example\" is not"),
            ("dns = [\"10.77.0.1\", \"10.77.0.2\", \"10.77.0.3\", \"10.77.0.4\"]", "10.77.0.4 is one more"),
            ("dns = [\"2001:db8::53\"]", "dns: 2001:db8::53 is reached beside the tunnel"),
        ] {
            let problems = problems(dns);
            assert!(problems.contains(expected) && problems.contains("a.toml:5"), "{dns}: {problems}");
        }
    }

    #[test]
    fn under_the_kill_switch_a_host_that_forwarded_before_forwards_to_no_uplink() {
        let rules = |has_kill_switch, only_for_tunnel: &[&'static str]| {
            let (tunnel, shared) = ("\"mpt0\"", "{ \"lan0\" }");
            Share { tunnel, shared, is_alone: true, has_kill_switch, only_for_tunnel }.forward()
        };
        assert!(!rules(false, &[]).contains("nfproto"));
        assert!(
            rules(true, &[]).contains("meta nfproto ipv4 iifname { \"lan0\" } oifname != { \"lan0\" } jump answers")
        );
        assert!(rules(true, &["ipv4", "ipv6"]).contains("meta nfproto ipv6 iifname { \"lan0\" } jump answers"));
    }
}
