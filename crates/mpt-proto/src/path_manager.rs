//! The path manager: derives the paths to a peer that is configured with `interfaces` and not with single paths.
//!
//! It is called with the host's interfaces whenever they change, and returns the changes to make:
//!
//! ```text
//!   interfaces, addresses, routes -> candidates(policy) -> Paths::update -> Add, Move, Suspend, Remove
//! ```
//!
//! A *candidate* is an interface with a usable address from which a remote address is reachable. Its key is interface,
//! remote and number, not the local address: if that changes, the path moves and keeps its state. An interface without
//! a candidate suspends its paths; one that disappears removes them.

use std::net::{IpAddr, SocketAddr};

/// The configuration of the path manager for one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The interfaces to use.
    pub interfaces: Patterns,
    /// Interfaces that other paths of the peer use.
    pub taken: Vec<String>,
    /// Addresses of the peer, best first.
    pub remotes: Vec<SocketAddr>,
    /// Selects the addresses that are used on each interface.
    pub pairs: Pairs,
    /// Number of paths between two addresses, each from its own port.
    pub ports: u8,
}

/// Selects the addresses of the peer that get a path on an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairs {
    /// The first reachable one.
    #[default]
    One,
    /// Every reachable one.
    FullMesh,
}

/// Patterns of interface names: `*` matches any text, `?` any character, and `!` in front excludes. A name matches if
/// no pattern excludes it, and one includes it or none includes any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(Vec<String>);

/// A network interface of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// True if it is up with a carrier, and neither loopback nor the tunnel itself.
    pub usable: bool,
    /// Its addresses, in the system's order of preference.
    pub addresses: Vec<IpAddr>,
}

/// A possible path to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidatePath {
    /// Interface name.
    pub interface: String,
    /// Interface index.
    pub index: u32,
    /// Local address.
    pub local: IpAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Distinguishes the paths between the same addresses, from 0.
    pub number: u8,
}

/// A change to make; each has the path's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// A new path.
    Add(String, CandidatePath),
    /// The path gets another local address, or the same one after a suspension.
    Move(String, CandidatePath),
    /// The path has no candidate at present.
    Suspend(String, CandidatePath),
    /// The path's interface is gone, or the path is not configured any more.
    Remove(String, CandidatePath),
}

/// The paths that the manager has added.
#[derive(Clone, Debug, Default)]
pub struct Paths(Vec<ManagedPath>);

#[derive(Clone, Debug)]
struct ManagedPath {
    name: String,
    candidate: CandidatePath,
    suspended: bool,
    /// The last move failed.
    move_failed: bool,
}

impl Patterns {
    /// Matches every interface.
    pub fn all() -> Self {
        Self::default()
    }

    /// Creates a list of patterns.
    pub fn new(patterns: impl IntoIterator<Item = String>) -> Self {
        Self(patterns.into_iter().collect())
    }

    /// Returns true if an interface of this name is used.
    pub fn matches(&self, name: &str) -> bool {
        let (mut any, mut included) = (false, false);
        for pattern in &self.0 {
            match pattern.strip_prefix('!') {
                Some(excluded) if glob_matches(excluded.as_bytes(), name.as_bytes()) => return false,
                Some(_) => {}
                None => (any, included) = (true, included || glob_matches(pattern.as_bytes(), name.as_bytes())),
            }
        }
        included || !any
    }
}

fn glob_matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => glob_matches(rest, name) || !name.is_empty() && glob_matches(pattern, &name[1..]),
        (Some((b'?', rest)), Some((_, name))) => glob_matches(rest, name),
        (Some((expected, rest)), Some((actual, name))) => expected == actual && glob_matches(rest, name),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

impl Policy {
    fn uses(&self, interface: &Interface) -> bool {
        interface.usable && self.interfaces.matches(&interface.name) && !self.taken.contains(&interface.name)
    }

    /// Returns the candidates. `has_route(interface, local, remote)` tests for a route.
    pub fn candidates(
        &self,
        interfaces: &[Interface],
        mut has_route: impl FnMut(&Interface, IpAddr, IpAddr) -> bool,
    ) -> Vec<CandidatePath> {
        let mut candidates = Vec::new();
        for interface in interfaces.iter().filter(|interface| self.uses(interface)) {
            // All paths on an interface share its sockets, one per IP version.
            let mut local: [Option<IpAddr>; 2] = [None, None];
            for remote in &self.remotes {
                let local = &mut local[usize::from(remote.is_ipv6())];
                let fits = |own: &IpAddr| is_same_scope(*own, remote.ip()) && local.is_none_or(|local| local == *own);
                let mut own = interface.addresses.iter().copied().filter(fits);
                let Some(own) = own.find(|own| has_route(interface, *own, remote.ip())) else { continue };
                *local = Some(own);
                candidates.extend((0..self.ports.max(1)).map(|number| CandidatePath {
                    interface: interface.name.clone(),
                    index: interface.index,
                    local: own,
                    remote: *remote,
                    number,
                }));
                if self.pairs == Pairs::One {
                    break;
                }
            }
        }
        candidates
    }
}

/// Returns true if two addresses have the same IP version and both or neither are link-local.
pub fn is_same_scope(own: IpAddr, remote: IpAddr) -> bool {
    let link_local = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    own.is_ipv4() == remote.is_ipv4() && link_local(own) == link_local(remote)
}

impl Paths {
    /// Returns the changes after which each candidate has a path. `interfaces` are all; `is_free` tests a name.
    pub fn update(
        &mut self,
        candidates: &[CandidatePath],
        interfaces: &[Interface],
        is_free: impl Fn(&str) -> bool,
    ) -> Vec<PathChange> {
        let mut changes = Vec::new();
        self.0.retain_mut(|path| {
            let change = path.update(candidates, interfaces);
            let stays = !matches!(change, Some(PathChange::Remove(..)));
            changes.extend(change);
            stays
        });
        for candidate in candidates {
            if !self.0.iter().any(|path| path.candidate.is_same(candidate)) {
                let name = self.name(candidate, &is_free);
                self.0.push(ManagedPath {
                    name: name.clone(),
                    candidate: candidate.clone(),
                    suspended: false,
                    move_failed: false,
                });
                changes.push(PathChange::Add(name, candidate.clone()));
            }
        }
        changes
    }

    /// Removes every path.
    pub fn clear(&mut self) -> Vec<PathChange> {
        self.0.drain(..).map(|path| PathChange::Remove(path.name, path.candidate)).collect()
    }

    /// Records that a path could not be added or moved. The next update tries again.
    pub fn on_failed(&mut self, change: &PathChange) {
        match change {
            PathChange::Add(name, _) => self.0.retain(|path| path.name != *name),
            PathChange::Move(name, _) => {
                self.0.iter_mut().filter(|path| path.name == *name).for_each(|path| path.move_failed = true);
            }
            PathChange::Suspend(..) | PathChange::Remove(..) => {}
        }
    }

    /// Iterates over the candidates of the paths that are not suspended.
    pub fn active(&self) -> impl Iterator<Item = &CandidatePath> {
        self.0.iter().filter(|path| !path.suspended).map(|path| &path.candidate)
    }

    /// Iterates over the suspended paths: names and last candidates.
    pub fn suspended(&self) -> impl Iterator<Item = (&str, &CandidatePath)> {
        self.0.iter().filter(|path| path.suspended).map(|path| (path.name.as_str(), &path.candidate))
    }

    /// Returns true if the manager has no path, not even a suspended one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the interface's name, numbered from the second path on.
    fn name(&self, candidate: &CandidatePath, is_free: &impl Fn(&str) -> bool) -> String {
        let free = |name: &String| is_free(name) && self.0.iter().all(|path| path.name != *name);
        let numbered = (2..).map(|number| format!("{}-{number}", candidate.interface));
        std::iter::once(candidate.interface.clone())
            .chain(numbered)
            .find(free)
            .expect("there is always a greater number")
    }
}

impl ManagedPath {
    fn update(&mut self, candidates: &[CandidatePath], interfaces: &[Interface]) -> Option<PathChange> {
        let found = candidates.iter().find(|candidate| candidate.is_same(&self.candidate));
        if let Some(candidate) = found {
            let moves = std::mem::take(&mut self.suspended) | std::mem::take(&mut self.move_failed)
                || *candidate != self.candidate;
            self.candidate = candidate.clone();
            return moves.then(|| PathChange::Move(self.name.clone(), candidate.clone()));
        }
        let same_interface: Vec<_> =
            candidates.iter().filter(|candidate| candidate.interface == self.candidate.interface).collect();
        let exists = interfaces.iter().any(|interface| interface.name == self.candidate.interface);
        // If the interface has another candidate, this path is not suspended but removed.
        if !exists || !same_interface.is_empty() {
            return Some(PathChange::Remove(self.name.clone(), self.candidate.clone()));
        }
        let was_suspended = std::mem::replace(&mut self.suspended, true);
        (!was_suspended).then(|| PathChange::Suspend(self.name.clone(), self.candidate.clone()))
    }
}

impl CandidatePath {
    fn is_same(&self, other: &Self) -> bool {
        (&self.interface, self.remote, self.number) == (&other.interface, other.remote, other.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(remotes: &[&str]) -> Policy {
        let remotes = remotes.iter().map(|remote| remote.parse().unwrap()).collect();
        Policy { interfaces: Patterns::all(), taken: Vec::new(), remotes, pairs: Pairs::One, ports: 1 }
    }

    fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Interface { index, name: name.to_owned(), usable: true, addresses }
    }

    /// Returns the changes for `interfaces`, from all of whose addresses everything is reachable.
    fn update(paths: &mut Paths, policy: &Policy, interfaces: &[Interface]) -> Vec<String> {
        let candidates = policy.candidates(interfaces, |_, _, _| true);
        let changes = paths.update(&candidates, interfaces, |name| name != "taken");
        changes.iter().map(describe).collect()
    }

    fn describe(change: &PathChange) -> String {
        let (what, name, candidate) = match change {
            PathChange::Add(name, candidate) => ("add", name, candidate),
            PathChange::Move(name, candidate) => ("move", name, candidate),
            PathChange::Suspend(name, candidate) => ("suspend", name, candidate),
            PathChange::Remove(name, candidate) => ("remove", name, candidate),
        };
        format!("{what} {name}: {} -> {}", candidate.local, candidate.remote)
    }

    #[test]
    fn patterns_include_and_exclude() {
        let takes = |patterns: &[&str], name| Patterns::new(patterns.iter().map(ToString::to_string)).matches(name);
        assert!(takes(&[], "eth0"));
        assert!(takes(&["eth*", "wwan?"], "eth10") && takes(&["eth*", "wwan?"], "wwan0"));
        assert!(!takes(&["eth*", "wwan?"], "wlan0") && !takes(&["eth*", "wwan?"], "wwan10"));
        assert!(takes(&["!docker*", "!veth*"], "eth0") && !takes(&["!docker*", "!veth*"], "docker0"));
        assert!(!takes(&["*", "!eth1"], "eth1") && !takes(&["!eth1", "*"], "eth1"));
        assert!(takes(&["e*1*0"], "eth1.100") && !takes(&["e*1*0"], "eth1.101"));
    }

    #[test]
    fn every_interface_that_reaches_the_peer_is_a_candidate() {
        let mut hosts = [
            interface(2, "eth0", &["192.0.2.1"]),
            interface(3, "wwan0", &["100.64.0.9"]),
            interface(4, "docker0", &["172.17.0.1"]),
            interface(5, "mpt0", &["10.77.0.1"]),
            interface(6, "wlan0", &["fe80::1", "2001:db8::1"]),
        ];
        hosts[3].usable = false;
        let candidates =
            policy(&["203.0.113.7:4754"]).candidates(&hosts, |interface, _, _| interface.name != "docker0");
        let candidates: Vec<_> =
            candidates.iter().map(|candidate| (candidate.interface.as_str(), candidate.local.to_string())).collect();
        assert_eq!(candidates, [("eth0", "192.0.2.1".to_owned()), ("wwan0", "100.64.0.9".to_owned())]);
    }

    #[test]
    fn an_interface_in_use_gets_no_path() {
        let policy = Policy { taken: vec!["eth0".to_owned()], ..policy(&["203.0.113.7:4754"]) };
        assert_eq!(policy.candidates(&[interface(2, "eth0", &["192.0.2.1"])], |_, _, _| true), []);
    }

    #[test]
    fn the_first_reachable_remote_is_used_or_all_in_a_full_mesh() {
        let hosts = [interface(2, "eth0", &["192.0.2.1", "fe80::1", "2001:db8::1"])];
        let policy = policy(&["[2001:db8:1::7]:1", "203.0.113.7:1", "203.0.113.8:1"]);
        let remotes = |policy: &Policy| {
            let candidates = policy.candidates(&hosts, |_, own, _| own.is_ipv4());
            candidates.iter().map(|candidate| candidate.remote.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(remotes(&policy), ["203.0.113.7:1"]);
        assert_eq!(remotes(&Policy { pairs: Pairs::FullMesh, ..policy }), ["203.0.113.7:1", "203.0.113.8:1"]);
    }

    #[test]
    fn an_address_without_a_route_is_skipped() {
        let hosts = [interface(2, "eth0", &["10.0.0.1", "192.0.2.1"])];
        let candidates = policy(&["203.0.113.7:1"]).candidates(&hosts, |_, own, _| own.to_string() == "192.0.2.1");
        assert_eq!(candidates[0].local.to_string(), "192.0.2.1");
    }

    #[test]
    fn paths_are_added_moved_suspended_and_removed() {
        let (mut paths, policy) = (Paths::default(), policy(&["203.0.113.7:1"]));
        let eth = |addresses: &[&str]| interface(2, "eth0", addresses);
        assert_eq!(update(&mut paths, &policy, &[eth(&["192.0.2.1"])]), ["add eth0: 192.0.2.1 -> 203.0.113.7:1"]);
        assert!(update(&mut paths, &policy, &[eth(&["192.0.2.1"])]).is_empty());
        assert_eq!(update(&mut paths, &policy, &[eth(&["192.0.2.9"])]), ["move eth0: 192.0.2.9 -> 203.0.113.7:1"]);
        assert_eq!(update(&mut paths, &policy, &[eth(&[])]), ["suspend eth0: 192.0.2.9 -> 203.0.113.7:1"]);
        assert_eq!(paths.suspended().map(|(name, _)| name).collect::<Vec<_>>(), ["eth0"]);
        assert!(!paths.is_empty());
        assert!(update(&mut paths, &policy, &[eth(&[])]).is_empty());
        assert_eq!(update(&mut paths, &policy, &[eth(&["192.0.2.9"])]), ["move eth0: 192.0.2.9 -> 203.0.113.7:1"]);
        assert_eq!(update(&mut paths, &policy, &[]), ["remove eth0: 192.0.2.9 -> 203.0.113.7:1"]);
        assert!(update(&mut paths, &policy, &[]).is_empty());
    }

    #[test]
    fn a_failed_change_is_returned_again() {
        let (mut paths, policy) = (Paths::default(), policy(&["203.0.113.7:1"]));
        let mut update = |own: &str, fails: bool| {
            let interfaces = [interface(2, "eth0", &[own])];
            let changes = paths.update(&policy.candidates(&interfaces, |_, _, _| true), &interfaces, |_| true);
            changes.iter().filter(|_| fails).for_each(|change| paths.on_failed(change));
            changes.iter().map(describe).collect::<Vec<_>>()
        };
        for fails in [true, false] {
            assert_eq!(update("192.0.2.1", fails), ["add eth0: 192.0.2.1 -> 203.0.113.7:1"]);
        }
        for fails in [true, false] {
            assert_eq!(update("192.0.2.9", fails), ["move eth0: 192.0.2.9 -> 203.0.113.7:1"]);
        }
        assert!(update("192.0.2.9", false).is_empty());
    }

    #[test]
    fn an_interface_with_a_new_index_moves_its_path() {
        let (mut paths, policy) = (Paths::default(), policy(&["203.0.113.7:1"]));
        update(&mut paths, &policy, &[interface(2, "usb0", &["192.0.2.1"])]);
        let changes = update(&mut paths, &policy, &[interface(9, "usb0", &["192.0.2.1"])]);
        assert_eq!(changes, ["move usb0: 192.0.2.1 -> 203.0.113.7:1"]);
    }

    #[test]
    fn several_ports_are_several_paths_with_unique_names() {
        let (mut paths, policy) = (Paths::default(), Policy { ports: 3, ..policy(&["203.0.113.7:1"]) });
        let changes = update(&mut paths, &policy, &[interface(2, "taken", &["192.0.2.1"])]);
        let names: Vec<_> = changes.iter().map(|change| change.split(':').next().unwrap()).collect();
        assert_eq!(names, ["add taken-2", "add taken-3", "add taken-4"]);
    }

    #[test]
    fn a_path_whose_candidate_changed_is_replaced() {
        let (mut paths, policy) = (Paths::default(), policy(&["203.0.113.7:1", "[2001:db8:1::7]:1"]));
        update(&mut paths, &policy, &[interface(2, "eth0", &["192.0.2.1"])]);
        let changes = update(&mut paths, &policy, &[interface(2, "eth0", &["2001:db8::1"])]);
        let expected = ["remove eth0: 192.0.2.1 -> 203.0.113.7:1", "add eth0: 2001:db8::1 -> [2001:db8:1::7]:1"];
        assert_eq!(changes, expected);
    }
}
