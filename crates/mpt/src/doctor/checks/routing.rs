//! Routes, rules, names and programs that change them.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use mpt_linux::netlink::Rule;

use super::{Finding, Outcome, failed, unless, warning};
use crate::config::File;
use crate::daemon::policy_routing;
use crate::doctor::facts::{Facts, NetworkFacts};
use crate::firewall_mark::MARK_OF_TUNNELS;

pub fn reverse_path_filter(facts: &Facts) -> Outcome {
    let file = with_all_routes(facts)?;
    if !policy_routing::routes_everything(file, false) {
        return None;
    }
    let setting = |name: &str| facts.host.rp_filter.get(name).copied().unwrap_or(0);
    let names = facts.host.rp_filter.keys().map(String::as_str);
    let others = names.filter(|name| !["all", "default", "lo", facts.interface.as_str()].contains(name));
    let strict: Vec<_> = others.filter(|name| setting(name).max(setting("all")) == 1).collect();
    unless(strict.is_empty(), || {
        let cause = format!("rp_filter is 1 on {}: the kernel drops what peers send there", strict.join(", "));
        failed(cause, "sysctl -w net.ipv4.conf.all.rp_filter=2, and the same line in /etc/sysctl.d")
    })
}

/// Returns the configuration if it routes all traffic of an IP version into the tunnel.
fn with_all_routes(facts: &Facts) -> Option<&File> {
    let leads = |file: &&File| [false, true].iter().any(|ipv6| policy_routing::routes_everything(file, *ipv6));
    facts.file().filter(leads)
}

pub fn rules_missing(facts: &Facts) -> Outcome {
    let file = with_all_routes(facts).filter(|_| facts.is_running())?;
    let families = [(false, "IPv4"), (true, "IPv6")].into_iter();
    let families = families.filter(|(ipv6, _)| policy_routing::routes_everything(file, *ipv6));
    let missing = families.filter(|(ipv6, _)| ours(&facts.network, *ipv6).count() < RULES);
    Some(
        missing
            .map(|(_, family)| {
                let cause = format!("routing rules of the tunnel for {family} are missing: traffic leaves beside it");
                failed(cause, "the tunnel restores them within a second; if not, its log has the reason: mpt reload")
            })
            .collect(),
    )
}

fn ours(network: &NetworkFacts, ipv6: bool) -> impl Iterator<Item = &Rule> {
    let rules = network.rules.iter().map(|(rule, _)| rule);
    rules.filter(move |rule| rule.ipv6 == ipv6 && rule.mark.is_some() && rule.mark == network.mark)
}

pub fn foreign_rules(facts: &Facts) -> Outcome {
    let network = &facts.network;
    with_all_routes(facts)?;
    let mut findings = Vec::new();
    for ipv6 in [false, true] {
        let Some(first) = ours(network, ipv6).map(|rule| rule.priority).min() else { continue };
        let earlier = network.rules.iter().filter(|(rule, _)| rule.ipv6 == ipv6 && rule.priority < first);
        findings.extend(
            earlier.filter(|(rule, source)| takes_traffic(rule, *source)).map(|(rule, _)| foreign(rule, first)),
        );
    }
    Some(findings)
}

/// Returns true unless the rule is the kernel's own, for marked packets alone, or for packets from one address, as of
/// answers from the address of an uplink.
fn takes_traffic(rule: &Rule, source_length: u8) -> bool {
    let is_for_marked = rule.mark.is_some() && !rule.invert;
    let is_of_tunnel = rule.mark.is_some_and(|mark| mark & 0xffff_0000 == MARK_OF_TUNNELS);
    let is_for_one = source_length == if rule.ipv6 { 128 } else { 32 };
    !is_for_marked && !is_of_tunnel && !is_for_one && ![TABLE_LOCAL, TABLE_NONE].contains(&rule.table)
}

fn foreign(rule: &Rule, first: u32) -> Finding {
    let cause =
        format!("another program's rule {rule} precedes those of the tunnel ({first}): its traffic leaves beside it");
    warning(cause, format!("ip rule shows it; end the other VPN, or give its rules priorities above {}", first + 1))
}

pub fn dns_leak(facts: &Facts) -> Outcome {
    let (file, tun) = (with_all_routes(facts)?, facts.tun()?);
    let leaks = |device: &Option<u32>| device.is_some_and(|device| device != tun);
    let resolvers = facts.network.resolvers.iter();
    let resolvers =
        resolvers.filter(|(at, device)| policy_routing::routes_everything(file, at.is_ipv6()) && leaks(device));
    let finding = |(at, device): &(IpAddr, Option<u32>)| {
        let link = device.and_then(|device| facts.link_by_index(device)).map_or("another interface", |link| &link.name);
        let cause = format!("the resolver {at} is reached by {link}, beside the tunnel: its owner sees all names");
        let cure =
            "dns = [\"9.9.9.9\"] in the configuration, or another name server that is reached through the tunnel";
        warning(cause, cure)
    };
    Some(resolvers.map(finding).collect())
}

pub fn ipv6_leak(facts: &Facts) -> Outcome {
    let (file, tun) = (with_all_routes(facts)?, facts.tun()?);
    let is_half = policy_routing::routes_everything(file, false) && !policy_routing::routes_everything(file, true);
    if !is_half || policy_routing::has_kill_switch(file) {
        return None;
    }
    unless(facts.network.ipv6_internet.is_none_or(|device| device == tun), || {
        warning(
            "IPv6 leaves beside the tunnel, which carries IPv4 alone",
            "add ::/0 to routes, and an IPv6 address at both ends; or kill_switch = true, which blocks IPv6",
        )
    })
}

pub fn address_clash(facts: &Facts) -> Outcome {
    let file = facts.file()?;
    let others = facts.network.addresses.iter().filter(|(index, _)| Some(*index) != facts.tun());
    let clash = |(index, prefix): &(u32, mpt_linux::netlink::Prefix)| {
        let other = IpNet::new(prefix.address, prefix.length).ok()?;
        let net = file.addresses.iter().map(|own| own.trunc()).find(|net| overlaps(net, &other))?;
        let link = facts.link_by_index(*index)?;
        let cause = format!("{} has the address {prefix}, and {net} is the network of the tunnel", link.name);
        Some(warning(cause, "choose another network for the tunnel, at both ends"))
    };
    Some(others.filter_map(clash).collect())
}

fn overlaps(net: &IpNet, other: &IpNet) -> bool {
    net.prefix_len() > 0 && (net.contains(&other.trunc()) || other.trunc().contains(net))
}

pub fn managed_interface(facts: &Facts) -> Outcome {
    let finding = |path: &PathBuf| {
        let cause =
            format!("{} configures {}: addresses and routes of the tunnel may vanish", path.display(), facts.interface);
        let name = &facts.interface;
        warning(
            cause,
            format!("exclude it there: [Match] Name=!{name} (networkd), unmanaged-devices ({name}, NetworkManager)"),
        )
    };
    Some(facts.host.managers.iter().map(finding).collect())
}

pub fn foreign_routes(facts: &Facts) -> Outcome {
    with_all_routes(facts)?;
    unless(!facts.host.networkd_removes_routes, || {
        warning(
            "systemd-networkd removes routes of other programs when it starts again; the tunnel restores its own",
            "ManageForeignRoutes=no, ManageForeignRoutingPolicyRules=no, below [Network] in /etc/systemd/networkd.conf",
        )
    })
}

/// Rules of a tunnel in each IP version.
const RULES: usize = 2;
/// The table of the host's own addresses.
const TABLE_LOCAL: u32 = 255;
/// A rule that selects no table, as that of VRF (l3mdev).
const TABLE_NONE: u32 = 0;
