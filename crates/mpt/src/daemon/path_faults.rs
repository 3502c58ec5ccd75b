//! The faults of paths: no carrier, no address or no route; and of peers that this host calls and that have no path.
//!
//! The core has one state for all of these: a link that cannot be used. So the reasons are kept here. Each run of
//! [`super::interface_sync`] determines them again; log, events and status report them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use mpt_linux::netlink::Netlink;
use mpt_proto::path_manager::{Interface, Paths, Patterns, Policy, is_same_scope};

use crate::config::File;
use crate::config::model::{Path, Peer};
use crate::control::report::Report;

/// The first of these that a path lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathFault {
    /// The interface is missing, down, or has no carrier.
    Carrier,
    /// The interface has no address of the right kind, or the configured local address is gone.
    Address,
    /// No route leads from the interface to the peer.
    Route,
}

/// The faults at the last run.
#[derive(Debug, Default)]
pub(super) struct PathFaults {
    /// By the names of peer and path.
    paths: BTreeMap<(String, String), PathFault>,
    /// The peers that this host calls and that have no path.
    peers: BTreeMap<String, WithoutPath>,
    /// The causes in the last events of paths that are down.
    reported: BTreeMap<(String, String), &'static str>,
}

/// The reason for which a peer has no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WithoutPath {
    reason: String,
    /// The lookup of the peer's name has log lines of its own.
    is_logged: bool,
}

impl PathFault {
    /// Returns the cause in status and events.
    pub(super) fn cause(self) -> &'static str {
        match self {
            Self::Carrier => "carrier",
            Self::Address => "address",
            Self::Route => "route",
        }
    }

    /// Returns what a path over this interface to `remote` lacks. `local` is its only address, if configured.
    fn of(
        interface: Option<&Interface>,
        local: Option<IpAddr>,
        remote: Option<IpAddr>,
        mut has_route: impl FnMut(&Interface, IpAddr, IpAddr) -> bool,
    ) -> Option<Self> {
        let Some(interface) = interface.filter(|interface| interface.usable) else { return Some(Self::Carrier) };
        let fits = |own: &&IpAddr| {
            local.is_none_or(|local| local == **own) && remote.is_none_or(|remote| is_same_scope(**own, remote))
        };
        let mut own = interface.addresses.iter().filter(fits).peekable();
        if own.peek().is_none() {
            return Some(Self::Address);
        }
        let remote = remote?;
        (!own.any(|own| has_route(interface, *own, remote))).then_some(Self::Route)
    }
}

impl fmt::Display for PathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Carrier => "no carrier",
            Self::Address => "no address",
            Self::Route => "no route to the peer",
        })
    }
}

impl PathFaults {
    /// Begins a run with the paths of the file.
    pub(super) fn look_at_configured(&mut self, file: &File, interfaces: &[Interface], netlink: &mut Netlink) {
        self.paths.clear();
        let all = file.peers.iter().flat_map(|peer| peer.paths.iter().map(move |path| (peer, path)));
        for (peer, path) in all.filter(|(_, path)| path.tls.is_none()) {
            let reaches =
                |interface: &Interface, own, remote| netlink.reaches(remote, own, interface.index).unwrap_or(true);
            if let Some(fault) = fault_of_configured(path, interfaces, reaches) {
                self.paths.insert((peer.name.to_string(), path.name.to_string()), fault);
            }
        }
    }

    /// Adds the suspended paths of a peer.
    pub(super) fn look_at_suspended(&mut self, peer: &str, paths: &Paths, interfaces: &[Interface]) {
        for (name, candidate) in paths.suspended() {
            let interface = interfaces.iter().find(|interface| interface.name == candidate.interface);
            // A route would have made it a candidate.
            let fault = PathFault::of(interface, None, Some(candidate.remote.ip()), |_, _, _| false);
            self.paths.extend(fault.map(|fault| ((peer.to_owned(), name.to_owned()), fault)));
        }
    }

    /// Sets the peers that this host calls and that have no path, and logs the changes.
    pub(super) fn set_without_path(&mut self, peers: BTreeMap<String, WithoutPath>) {
        for (peer, now) in peers.iter().filter(|(peer, now)| now.is_logged && self.peers.get(*peer) != Some(*now)) {
            tracing::warn!(peer, "no path to the peer: {}; hint: mpt doctor", now.reason);
        }
        for (peer, _) in self.peers.iter().filter(|(peer, was)| was.is_logged && !peers.contains_key(*peer)) {
            tracing::info!(peer, "resolved: no path to the peer");
        }
        self.peers = peers;
    }

    /// Returns what a path lacks.
    pub(super) fn of(&self, peer: &str, path: &str) -> Option<PathFault> {
        // A server with many peers has no faults, as it calls nobody.
        (!self.paths.is_empty()).then(|| self.paths.get(&(peer.to_owned(), path.to_owned())).copied()).flatten()
    }

    /// Returns the cause of a path that the core reports as down for `cause`, if it is known better.
    fn cause(&self, peer: &str, path: &str, cause: &str) -> Option<&'static str> {
        match (cause, self.of(peer, path)?) {
            // An interface whose carrier came back is tried before it has an address.
            ("carrier" | "silent", fault @ (PathFault::Address | PathFault::Route)) => Some(fault.cause()),
            _ => None,
        }
    }

    /// Corrects the causes in an event.
    pub(super) fn correct_event(&mut self, peer: &str, path: &str, from: &mut String, to: &mut String) {
        let key = (peer.to_owned(), path.to_owned());
        if let Some(reported) = self.reported.remove(&key) {
            *from = reported.to_owned();
        }
        if let Some(cause) = self.cause(peer, path, to) {
            *to = cause.to_owned();
            self.reported.insert(key, cause);
        }
    }

    /// Corrects the causes in a report, and adds the peers without a path.
    pub(super) fn fill_report(&self, report: &mut Report) {
        if self.paths.is_empty() && self.peers.is_empty() {
            return;
        }
        for peer in &mut report.peers {
            let without = self.peers.get(&peer.name).filter(|_| peer.paths.is_empty());
            peer.no_path = without.map(|without| without.reason.clone());
            for path in &mut peer.paths {
                if let Some(cause) = path.cause.as_deref().and_then(|cause| self.cause(&peer.name, &path.name, cause)) {
                    path.cause = Some(cause.to_owned());
                }
            }
        }
    }
}

fn fault_of_configured(
    path: &Path,
    interfaces: &[Interface],
    has_route: impl FnMut(&Interface, IpAddr, IpAddr) -> bool,
) -> Option<PathFault> {
    let local = path.local.as_deref().copied();
    match (&path.interface, local) {
        (Some(name), _) => {
            let interface = interfaces.iter().find(|interface| interface.name == **name);
            // Its socket is bound to another address of the interface if the configured one is gone.
            PathFault::of(interface, None, path.remote_ip().or(local), has_route)
                .filter(|fault| *fault != PathFault::Route || path.remote.is_some())
        }
        (None, Some(local)) => match interfaces.iter().find(|interface| interface.addresses.contains(&local)) {
            Some(interface) => PathFault::of(Some(interface), Some(local), path.remote_ip(), has_route),
            None => Some(PathFault::Address),
        },
        (None, None) => None,
    }
}

impl WithoutPath {
    /// Returns why the path manager has no candidate for this peer. `tun` is the tunnel's own interface.
    pub(super) fn of(peer: &Peer, policy: &Policy, interfaces: &[Interface], tun: u32) -> Self {
        let names: Vec<_> = peer.auto.iter().flat_map(|auto| &auto.names).map(|name| name.name.as_str()).collect();
        let remotes: Vec<_> = policy.remotes.iter().take(MAX_NAMED).map(|remote| remote.ip().to_string()).collect();
        if remotes.is_empty() {
            return Self { reason: format!("the address of {} is not known yet", names.join(", ")), is_logged: false };
        }
        let others = || interfaces.iter().filter(|interface| interface.index != tun && interface.name != "lo");
        let matching = || others().filter(|interface| policy.interfaces.matches(&interface.name));
        let usable = || matching().filter(|interface| interface.usable);
        let fits = |own: &IpAddr| policy.remotes.iter().any(|remote| is_same_scope(*own, remote.ip()));
        let is_any = policy.interfaces == Patterns::all();
        let remotes = remotes.join(" or ");
        let reason = if usable().any(|interface| interface.addresses.iter().any(fits)) {
            format!("no interface has a route to {remotes}")
        } else if usable().next().is_some() {
            format!("no interface has an address from which {remotes} can be reached")
        } else if matching().next().is_some() {
            let which = if is_any { "" } else { " that matches interfaces" };
            format!("no interface{which} is up with a carrier")
        } else if is_any {
            "there is no interface but that of the tunnel".to_owned()
        } else {
            "no interface matches interfaces in the file".to_owned()
        };
        Self { reason, is_logged: true }
    }
}

/// Addresses of a peer in a reason: a list of servers has up to 16.
const MAX_NAMED: usize = 3;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mpt_proto::path_manager::Pairs;

    use super::*;
    use crate::config;

    fn interface(name: &str, usable: bool, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Interface { index: 2, name: name.to_owned(), usable, addresses }
    }

    fn peer(lines: &str) -> Peer {
        let text = format!(
            "private_key = \"ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00=\"\naddress = [\"10.77.0.1/24\"]\n\
             [[peer]]\npublic_key = \"L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=\"\n{lines}\n"
        );
        config::parse(Path::new("mpt0.toml"), &text).unwrap().peers.remove(0)
    }

    #[test]
    fn the_first_of_carrier_address_and_route_that_is_missing_is_named() {
        let peer = peer("[[peer.path]]\ninterface = \"eth2\"\nremote = \"203.0.113.7\"");
        let fault = |interfaces: &[Interface], route| {
            fault_of_configured(&peer.paths[0], interfaces, |_, _, _| route).map(PathFault::cause)
        };
        assert_eq!(fault(&[], true), Some("carrier"));
        assert_eq!(fault(&[interface("eth2", false, &["192.0.2.1"])], true), Some("carrier"));
        assert_eq!(fault(&[interface("eth2", true, &[])], true), Some("address"));
        assert_eq!(fault(&[interface("eth2", true, &["fe80::1", "2001:db8::1"])], true), Some("address"));
        assert_eq!(fault(&[interface("eth2", true, &["192.0.2.1"])], false), Some("route"));
        assert_eq!(fault(&[interface("eth2", true, &["192.0.2.1"])], true), None);
    }

    #[test]
    fn a_local_address_that_is_gone_is_named() {
        let peer = peer("[[peer.path]]\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.7\"");
        let fault = |own: &[&str]| fault_of_configured(&peer.paths[0], &[interface("eth2", true, own)], |_, _, _| true);
        assert_eq!(fault(&["192.0.2.9"]), Some(PathFault::Address));
        assert_eq!(fault(&["192.0.2.9", "192.0.2.1"]), None);
    }

    #[test]
    fn an_event_has_the_cause_and_the_return_from_it() {
        let mut faults = PathFaults::default();
        let correct = |faults: &mut PathFaults, from: &str, to: &str| {
            let (mut from, mut to) = (from.to_owned(), to.to_owned());
            faults.correct_event("office", "eth2", &mut from, &mut to);
            [from, to]
        };
        faults.paths.insert(("office".to_owned(), "eth2".to_owned()), PathFault::Address);
        assert_eq!(correct(&mut faults, "up", "carrier"), ["up", "address"]);
        faults.paths.clear();
        assert_eq!(correct(&mut faults, "carrier", "up"), ["address", "up"]);
        assert_eq!(correct(&mut faults, "up", "carrier"), ["up", "carrier"]);
    }

    #[test]
    fn a_peer_without_a_path_has_a_reason() {
        let reason = |lines: &str, remotes: &[&str], interfaces: &[Interface]| {
            let peer = peer(lines);
            let auto = peer.auto.as_ref().unwrap();
            let policy = Policy {
                interfaces: auto.interfaces.clone(),
                taken: Vec::new(),
                remotes: remotes.iter().map(|remote| remote.parse().unwrap()).collect(),
                pairs: Pairs::One,
                ports: 1,
            };
            WithoutPath::of(&peer, &policy, interfaces, 9).reason
        };
        let (any, to) = ("remote = \"203.0.113.7\"", ["203.0.113.7:4754"].as_slice());
        let wlan = "remote = \"203.0.113.7\"\ninterfaces = [\"wlan*\"]";
        let eth = |usable, own: &[&str]| [interface("eth1", usable, own)];
        assert_eq!(reason(any, to, &eth(true, &["192.0.2.1"])), "no interface has a route to 203.0.113.7");
        let expected = "no interface has an address from which 203.0.113.7 can be reached";
        assert_eq!(reason(any, to, &eth(true, &["fe80::1"])), expected);
        assert_eq!(reason(any, to, &eth(false, &[])), "no interface is up with a carrier");
        assert_eq!(reason(any, to, &[]), "there is no interface but that of the tunnel");
        assert_eq!(reason(wlan, to, &eth(true, &["192.0.2.1"])), "no interface matches interfaces in the file");
        let wlan0 = [interface("wlan0", false, &[])];
        assert_eq!(reason(wlan, to, &wlan0), "no interface that matches interfaces is up with a carrier");
        let name = "remote = \"home.example.org\"";
        assert_eq!(reason(name, &[], &[]), "the address of home.example.org is not known yet");
    }
}
