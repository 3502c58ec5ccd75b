//! Checks that involve several values.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use mpt_proto::classify::Pattern;
use mpt_proto::sched::SchedulerKind;

use super::model::{At, Auto, File, Path, Peer};
use super::problem::ProblemLog;
use super::values::Mode;
use super::{bypass, defaults, forward, tls};
use crate::interface_name::RESERVED;
use crate::nft;

/// Checks the values of `file` for consistency.
pub fn check(file: &File, log: &mut ProblemLog<'_>) {
    own_addresses(file, log);
    mtu(file, log);
    names(file, log);
    keys(file, log);
    networks(file, log);
    routes(file, log);
    workers(file, log);
    rules(file, log);
    unreachable_rules(file, log);
    redundant_scheduler(file, log);
    kill_switch(file, log);
    bypass::check(file, log);
    forward::check(file, log);
    tls::check(file, log);
    gateway(file, log);
    share(file, log);
    delegate(file, log);
    dns(file, log);
    for path in paths(file) {
        addresses(path, log);
        loops(path, file, log);
    }
    duplicate_paths(file, log);
    file.peers.iter().filter_map(|peer| peer.auto.as_ref()).for_each(|auto| remotes(auto, file, log));
}

/// Servers of a group hand packets to each other, which only peers of one worker can.
fn workers(file: &File, log: &mut ProblemLog<'_>) {
    if *file.workers > 1 && file.peers.iter().any(|peer| peer.server.is_some()) {
        let hint = "leave it out: workers are for a server with many peers, and a site has few".to_owned();
        log.error(file.workers.line, "workers: not with a peer that has several servers".to_owned(), Some(hint));
    }
}

/// Automatic paths are bound to interfaces, so routes do not affect them; but a remote inside the tunnel's own network
/// is an error.
fn remotes(auto: &Auto, file: &File, log: &mut ProblemLog<'_>) {
    for at in &auto.remotes {
        port_in_address(at, log);
        if let Some(net) = file.addresses.iter().find(|net| net.contains(&at.ip())) {
            let what = format!("remote: {} is inside the tunnel, whose address in line {} is {net}", at.ip(), net.line);
            log.error(at.line, what, Some("name the peer's address outside of the tunnel".to_owned()));
        }
    }
}

/// Warns of `2001:db8::7:4754`, which is an address without a port.
fn port_in_address(at: &At<SocketAddr>, log: &mut ProblemLog<'_>) {
    let IpAddr::V6(ip) = at.ip() else { return };
    let text = ip.to_string();
    if let Some((address, port)) = text.rsplit_once(':').filter(|(_, last)| *last == defaults::PORT.to_string()) {
        let what = format!("remote: {ip} is an address without a port");
        log.warn(at.line, what, &format!("if {port} is the port: \"[{address}]:{port}\""));
    }
}

/// Checks the tunnel's name, and addresses that are unusable or duplicate.
fn own_addresses(file: &File, log: &mut ProblemLog<'_>) {
    if RESERVED.contains(&file.interface.as_str()) {
        let what = format!("interface: {:?} is a reserved name", file.interface.value);
        log.error(file.interface.line, what, Some(format!("for example interface = {:?}", defaults::INTERFACE)));
    }
    for (number, net) in file.addresses.iter().enumerate() {
        let host = "write the address of this host, for example 10.77.0.1/24 or fd77::1/64";
        let is_last = net.addr().is_ipv4() && net.addr() == net.broadcast();
        if net.addr().is_loopback() {
            log.error(net.line, format!("address: {net} is a loopback address"), Some(host.to_owned()));
        } else if net.prefix_len() + 1 < net.max_prefix_len() && net.addr() == net.network() {
            log.warn(net.line, format!("address: {net} is the network address"), host);
        } else if net.prefix_len() + 1 < net.max_prefix_len() && is_last {
            log.warn(net.line, format!("address: {net} is the broadcast address of its network"), host);
        } else if file.addresses[..number].contains(net) {
            log.warn(net.line, format!("address: {net} is a duplicate"), "remove one of the two");
        }
    }
}

/// IPv6 needs an MTU of 1280 (RFC 8200 section 5); below it the kernel removes the IPv6 addresses.
const IPV6_MTU: usize = 1280;

fn mtu(file: &File, log: &mut ProblemLog<'_>) {
    let Some(mtu) = &file.mtu else { return };
    let v6 = file.addresses.iter().chain(&file.routes).find(|net| net.addr().is_ipv6());
    if let Some(net) = v6.filter(|_| **mtu < IPV6_MTU) {
        let what = format!("mtu: {mtu} is too small for IPv6, and line {} has {net}", net.line);
        log.error(mtu.line, what, Some(format!("mtu = {IPV6_MTU} or more, or no IPv6 in the tunnel")));
    }
}

fn names(file: &File, log: &mut ProblemLog<'_>) {
    let peers = file.peers.iter().map(|peer| &peer.name);
    check_unique(peers.map(|name| (name.value.clone(), name.line)), log, |name, first| {
        (format!("name: the peer in {first} has the name {name:?} too"), "give each peer a unique name")
    });
    for peer in &file.peers {
        let paths = peer.paths.iter().map(|path| &path.name);
        check_unique(paths.map(|name| (name.value.clone(), name.line)), log, |name, first| {
            let what = format!("name: the path in {first} of this peer has the name {name:?} too");
            (what, "give each path of a peer a unique name; by default it is named after its interface")
        });
    }
}

/// A peer is identified only by its key.
fn keys(file: &File, log: &mut ProblemLog<'_>) {
    let keys = || file.peers.iter().filter_map(|peer| Some((peer.protocol.public_key()?, peer.protocol.line)));
    check_unique(keys(), log, |_, first| {
        (format!("public_key: the peer in {first} has the same"), "each peer needs its own key: mpt key new")
    });
    let own = file.identity.as_ref().map(|identity| *identity.public());
    for (_, line) in keys().filter(|(key, _)| Some(*key) == own) {
        let hint = "run mpt key public at the peer, with the private key there";
        log.error(line, "public_key: this is the key of this host", Some(hint.to_owned()));
    }
}

/// Servers of one peer have the same networks.
fn networks(file: &File, log: &mut ProblemLog<'_>) {
    let mut groups = HashSet::new();
    let is_first = |peer: &&Peer| peer.server.as_ref().is_none_or(|server| groups.insert(server.group.clone()));
    let all = file.peers.iter().filter(is_first).flat_map(|peer| {
        let mut seen = HashSet::new();
        let from: Vec<_> = peer.local_networks.iter().map(|net| net.value).collect();
        let own = peer.networks.iter().filter(move |net| peer.original.is_none() || seen.insert(net.value));
        own.map(move |net| ((net.value, from.clone()), net.line))
    });
    for (net, line) in own_networks(file) {
        let what = format!("networks: {net} is the address of this host in the tunnel, and not of the peer");
        let hint = "list the address that the file of the peer has in address, or a larger network";
        log.error(line, what, Some(hint.to_owned()));
    }
    check_unique(all, log, |(net, _), first| {
        let what = format!("networks: {net} is already in {first}");
        (what, "a packet goes to the peer with the longest prefix that matches; equal ones cannot be told apart")
    });
}

/// Returns the networks of one address that is an own one: the kernel sends nothing there by the tunnel, and the
/// addresses of the peer are often left out. A larger network with an own address is usual.
fn own_networks(file: &File) -> BTreeMap<IpNet, usize> {
    let is_own = |net: &IpNet| {
        net.prefix_len() == net.max_prefix_len() && file.addresses.iter().any(|own| own.addr() == net.addr())
    };
    let all = file.peers.iter().filter(|peer| peer.original.is_none()).flat_map(|peer| &peer.networks);
    all.filter(|net| is_own(net)).map(|net| (net.value, net.line)).collect()
}

fn routes(file: &File, log: &mut ProblemLog<'_>) {
    // A network inside the whole Internet does not serve the rest of it.
    let overlap = |net: &IpNet, route: &IpNet| net.contains(route) || route.prefix_len() > 0 && route.contains(net);
    let served: Vec<_> = file.peers.iter().flat_map(|peer| &peer.networks).collect();
    for route in file.routes.iter().filter(|route| !served.iter().any(|net| overlap(net, route))) {
        let what = format!("routes: {route} is routed into the tunnel, but is in no peer's networks");
        log.warn(route.line, what, "add it to the networks of a peer");
    }
    let all = |ipv6: bool| file.routes.iter().find(|net| net.prefix_len() == 0 && net.addr().is_ipv6() == ipv6);
    let has_ipv6 = file.addresses.iter().any(|address| address.addr().is_ipv6());
    if *file.mode != Mode::Native {
        return;
    }
    match (all(false), all(true)) {
        (Some(v4), None) if !*file.kill_switch => {
            let what = format!("routes: {v4} leaves IPv6 beside the tunnel");
            log.warn(v4.line, what, "add \"::/0\", and an IPv6 address to address; or switch IPv6 off on this host");
        }
        (_, Some(v6)) if !has_ipv6 => {
            let what = format!("routes: {v6} is routed into the tunnel, and no address is IPv6");
            log.warn(v6.line, what, "add one to address, for example \"fd77::1/64\"");
        }
        _ => {}
    }
}

/// Paths of incoming peers get their names later, so these are not checked.
fn rules(file: &File, log: &mut ProblemLog<'_>) {
    let has_incoming =
        file.includes || file.peer_source.is_some() || file.peers.iter().any(|peer| peer.paths.is_empty());
    for (rule, name) in file.rules.iter().filter_map(|rule| Some((rule, rule.path.as_ref()?))) {
        if !has_incoming && !paths(file).any(|path| path.name.value == *name) {
            let what = format!("path: no path has the name {name:?}");
            log.warn(rule.line, what, "use the name of a [[peer.path]], by default its interface");
        }
    }
}

/// The first matching rule decides.
fn unreachable_rules(file: &File, log: &mut ProblemLog<'_>) {
    let Some(all) = file.rules.iter().position(|rule| rule.pattern == Pattern::default()) else { return };
    if let Some(rule) = file.rules.get(all + 1) {
        let what = "rule: never used, because the rule before it has no condition and matches every packet";
        log.warn(rule.line, what, "put the rule without a condition last");
    }
}

/// The receiver recognizes copies by their sequence number.
fn redundant_scheduler(file: &File, log: &mut ProblemLog<'_>) {
    let Some(peer) = file.peers.iter().find(|peer| !peer.framing().sequence) else { return };
    if file.scheduler.value == SchedulerKind::Redundant && *file.mode == Mode::Plain {
        let what =
            format!("scheduler: \"redundant\" needs sequence numbers, and the peer {:?} has none", peer.name.value);
        log.error(file.scheduler.line, what, Some("sequence = true in [plain]".to_owned()));
    }
}

/// A kill switch without a default route would only disconnect the host from the Internet.
fn kill_switch(file: &File, log: &mut ProblemLog<'_>) {
    if *file.kill_switch && !file.routes.iter().any(|route| route.prefix_len() == 0) {
        let hint = "routes = [\"0.0.0.0/0\", \"::/0\"] sends everything through the tunnel".to_owned();
        log.error(file.kill_switch.line, "kill_switch: no default route leads into the tunnel", Some(hint));
    }
    let outside = || file.outside.iter().flatten();
    if let Some(first) = outside().next().filter(|_| !*file.kill_switch) {
        log.error(
            first.line,
            "outside: only with a kill switch",
            Some("kill_switch = true; or leave outside out".to_owned()),
        );
    }
    for all in outside().filter(|net| net.prefix_len() == 0) {
        let hint = "list the networks that must stay reachable; or leave kill_switch out".to_owned();
        log.error(all.line, format!("outside: {} is everything", **all), Some(hint));
    }
}

/// Without a gateway, the host's own settings decide what it forwards.
fn gateway(file: &File, log: &mut ProblemLog<'_>) {
    if file.masquerade {
        return;
    }
    let between = Some(file.client_to_client.line).filter(|_| *file.client_to_client);
    let lines = [(between, "client_to_client"), (file.lan.first().map(|net| net.line), "lan")];
    for (line, key) in lines.into_iter().filter_map(|(line, key)| Some((line?, key))) {
        let hint = format!("masquerade = true; or leave {key} out, and MPT restricts nothing");
        log.error(line, format!("{key}: only with masquerade"), Some(hint));
    }
}

/// A shared interface may be missing, because it may appear later.
fn share(file: &File, log: &mut ProblemLog<'_>) {
    let (line, hint) = (file.share.line, "name the interface with the hosts, for example share = \"lan0\"".to_owned());
    for (number, name) in file.share.iter().enumerate() {
        let why = match name.as_str() {
            name if *name == **file.interface => "is the tunnel's own interface",
            name if RESERVED.contains(&name) => "is a reserved name",
            name if nft::quoted(name).is_none() => "is a name that nftables has no notation for",
            _ if file.share[..number].contains(name) => "is a duplicate",
            _ => continue,
        };
        log.error(line, format!("share: {name:?} {why}"), Some(hint.clone()));
    }
    if !file.share.is_empty() && !file.routes.iter().any(|net| net.prefix_len() == 0) {
        let what = "share: no default route leads into the tunnel, so the hosts reach only the networks of routes";
        log.warn(line, what, "routes = [\"0.0.0.0/0\", \"::/0\"] sends everything through the tunnel");
    }
}

fn delegate(file: &File, log: &mut ProblemLog<'_>) {
    let Some(net) = &file.delegate else { return };
    let (what, hint) = match file.share.len() {
        0 => ("share names no interface".to_owned(), "share = \"lan0\", the interface with the hosts"),
        1 => match file
            .addresses
            .iter()
            .map(|address| address.value)
            .find(|address| address.contains(&IpNet::V6(net.value)))
        {
            Some(address) => (format!("{} is inside the tunnel, by {address}", net.value), "use another network"),
            None if file.addresses.iter().any(|address| address.addr().is_ipv6()) => return,
            None => ("the tunnel has no IPv6 address".to_owned(), "address = [\"10.77.0.2/24\", \"fd00:77::2/64\"]"),
        },
        several => (format!("share names {several} interfaces"), "share one interface, such as a bridge of several"),
    };
    log.error(net.line, format!("delegate: {what}"), Some(hint.to_owned()));
}

/// The C library uses three name servers (`MAXNS`).
pub const NAME_SERVER_COUNT: usize = 3;

fn dns(file: &File, log: &mut ProblemLog<'_>) {
    if let Some(surplus) = file.dns.get(NAME_SERVER_COUNT) {
        let what = format!("dns: programs use {NAME_SERVER_COUNT} name servers, and {} is one more", **surplus);
        log.error(surplus.line, what, Some(format!("list {NAME_SERVER_COUNT} at most")));
    }
    for server in &file.dns {
        let leads = |net: &IpNet| net.contains(&**server);
        if !server.is_loopback() && !file.routes.iter().chain(&file.addresses).any(|net| leads(net)) {
            let what = format!("dns: {} is reached beside the tunnel", **server);
            log.warn(server.line, what, "add its network to routes, or choose a name server in the tunnel");
        }
    }
}

/// Checks a path's own addresses.
fn addresses(path: &Path, log: &mut ProblemLog<'_>) {
    let Some(at) = &path.remote else { return };
    let remote = at.ip();
    port_in_address(at, log);
    if let Some(local) = path.local.as_ref().filter(|local| local.is_ipv4() != remote.is_ipv4()) {
        let what = format!("local: {local} and the remote address {remote} are of different IP versions");
        log.error(
            local.line,
            what,
            Some("a path is either IPv4 or IPv6; the tunnel carries both over either".to_owned()),
        );
    }
    let link_local = matches!(remote, IpAddr::V6(ip) if ip.is_unicast_link_local());
    if link_local && path.interface.is_none() {
        let what = format!("remote: {remote} is a link-local address, which needs an interface");
        log.error(at.line, what, Some("for example interface = \"eth1\"".to_owned()));
    }
}

/// A tunnel's own packets must not enter the tunnel.
fn loops(path: &Path, file: &File, log: &mut ProblemLog<'_>) {
    if let Some(interface) = path.interface.as_ref().filter(|name| name.value == file.interface.value) {
        let what = format!("interface: {:?} is the tunnel's own interface", interface.value);
        log.error(interface.line, what, Some("name the interface that leads to the Internet".to_owned()));
        return;
    }
    let Some(at) = &path.remote else { return };
    let remote = at.ip();
    if let Some(net) = file.addresses.iter().find(|net| net.contains(&remote)) {
        let what = format!("remote: {remote} is inside the tunnel, whose address in line {} is {net}", net.line);
        log.error(at.line, what, Some("name the peer's address outside of the tunnel".to_owned()));
    } else if let Some(route) = file.routes.iter().find(|route| leads_back(route, path, remote)) {
        let what = format!("remote: {remote} is routed into the tunnel by {route} in line {}", route.line);
        log.error(at.line, what, Some("bind the path, for example interface = \"eth1\"".to_owned()));
    }
}

/// Returns true if a route sends the tunnel's own packets into the tunnel. A default route does not: the remote address
/// gets a bypass route.
fn leads_back(route: &IpNet, path: &Path, remote: IpAddr) -> bool {
    path.interface.is_none() && route.prefix_len() > 0 && route.contains(&remote)
}

/// The addresses that distinguish a path from others.
#[derive(PartialEq, Eq, Hash)]
struct PathAddresses {
    interface: Option<String>,
    local: Option<IpAddr>,
    port: u16,
    to: Destination,
}

#[derive(PartialEq, Eq, Hash)]
enum Destination {
    /// In plain mode the source address identifies a path. The port is excluded, because NAT changes it.
    Host(IpAddr),
    /// In native mode datagrams carry a path ID, so equal addresses are only a configuration mistake.
    Port(SocketAddr),
    /// Any address, for a peer that connects to us.
    Incoming(usize),
}

fn duplicate_paths(file: &File, log: &mut ProblemLog<'_>) {
    let all = (0..).zip(&file.peers).flat_map(|(i, peer)| {
        let paths = peer.paths.iter().filter(|path| path.tls.is_none());
        paths.map(move |path| (path_addresses(*file.mode, i, peer, path), path.line()))
    });
    check_unique(all, log, |endpoints, first| {
        let same = |remote: String| {
            format!("remote: the path in {first} goes to {remote} over the same interface and local address")
        };
        let what = match endpoints.to {
            Destination::Host(remote) => same(remote.to_string()),
            Destination::Port(remote) => same(remote.to_string()),
            Destination::Incoming(_) => {
                format!("remote: the path in {first} uses the same interface and local address")
            }
        };
        (what, "paths to one address need different interfaces or local addresses")
    });
}

fn path_addresses(mode: Mode, number: usize, peer: &Peer, path: &Path) -> PathAddresses {
    let to = match (&path.remote, mode) {
        (Some(remote), Mode::Plain) => Destination::Host(remote.ip()),
        (Some(remote), Mode::Native) => Destination::Port(remote.value),
        (None, _) => Destination::Incoming(number),
    };
    let interface = path.interface.as_ref().map(|name| name.value.clone());
    PathAddresses { interface, local: path.local.as_ref().map(|ip| ip.value), port: *peer.local_port, to }
}

fn paths(file: &File) -> impl Iterator<Item = &Path> {
    file.peers.iter().flat_map(|peer| &peer.paths)
}

/// Reports duplicate values; `message` receives the value and a description of the first one's line.
fn check_unique<K: Eq + Hash>(
    all: impl Iterator<Item = (K, usize)>,
    log: &mut ProblemLog<'_>,
    message: impl Fn(&K, &str) -> (String, &'static str),
) {
    let mut first = HashMap::new();
    for (value, line) in all {
        if let Some(first) = first.get(&value) {
            let (what, hint) = message(&value, &log.describe_line(*first));
            log.error(line, what, Some(hint.to_owned()));
        } else {
            first.insert(value, line);
        }
    }
}
