//! The path manager: which paths there are to a peer whose configuration says `interfaces` and not which they are.
//!
//! It is told what the host's interfaces are like, as often as that changes, and says what is to be done about it:
//!
//! ```text
//!   interfaces, addresses, routes -> ways(plan) -> Paths::update -> Add, Move, Rest, Remove
//! ```
//!
//! A *way* is an interface with a usable address from which a remote address can be reached. It is known by interface, remote
//! and number, and not by its local address: when that changes the path moves and keeps all that is known of it. An
//! interface that has no way at the moment lets its paths rest; one that is gone takes them along.

use std::net::{IpAddr, SocketAddr};

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The interfaces that are used.
    pub interfaces: Patterns,
    /// Interfaces that other paths of the peer use already.
    pub taken: Vec<String>,
    /// Where the peer can be reached, best first.
    pub remotes: Vec<SocketAddr>,
    /// Which of them each interface leads to.
    pub pairs: Pairs,
    /// How many paths there are between two addresses, each from a port of its own.
    pub ports: u8,
}

/// Which of the peer's addresses an interface leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairs {
    /// The first that can be reached.
    #[default]
    One,
    /// Every one that can be reached.
    FullMesh,
}

/// Patterns of interface names: `*` stands for any text, `?` for a character, and `!` in front excludes. A name is taken when
/// no pattern excludes it and one takes it, or there are none that take any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(Vec<String>);

/// An interface as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// It is up and has a carrier, and is neither loopback nor the tunnel itself.
    pub usable: bool,
    /// Its addresses, those first that the system prefers.
    pub addresses: Vec<IpAddr>,
}

/// A way to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidatePath {
    /// The interface's name.
    pub interface: String,
    /// The interface's index.
    pub index: u32,
    /// The local address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// Tells the paths between the two from each other, from 0.
    pub number: u8,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// There is a new path of this name.
    Add(String, CandidatePath),
    /// The path of this name leaves from another address, or from the same again after a rest.
    Move(String, CandidatePath),
    /// The path of this name has no way at the moment.
    Suspend(String, CandidatePath),
    /// The path of this name is gone with its interface, or is not wanted any more.
    Remove(String, CandidatePath),
}

/// The paths that a plan has led to.
#[derive(Clone, Debug, Default)]
pub struct Paths(Vec<ManagedPath>);

#[derive(Clone, Debug)]
struct ManagedPath {
    name: String,
    candidate: CandidatePath,
    suspended: bool,
    /// It was to leave from another address and could not.
    move_failed: bool,
}

impl Patterns {
    /// Every interface.
    pub fn all() -> Self {
        Self::default()
    }

    /// The interfaces that these patterns take.
    pub fn new(patterns: impl IntoIterator<Item = String>) -> Self {
        Self(patterns.into_iter().collect())
    }

    /// Whether an interface of this name is used.
    pub fn matches(&self, name: &str) -> bool {
        let (mut any, mut taken) = (false, false);
        for pattern in &self.0 {
            match pattern.strip_prefix('!') {
                Some(excluded) if glob_matches(excluded.as_bytes(), name.as_bytes()) => return false,
                Some(_) => {}
                None => (any, taken) = (true, taken || glob_matches(pattern.as_bytes(), name.as_bytes())),
            }
        }
        taken || !any
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

    /// The ways there are. `reaches` says whether a remote address has a route by an interface from a local address.
    pub fn candidates(
        &self,
        interfaces: &[Interface],
        mut has_route: impl FnMut(&Interface, IpAddr, IpAddr) -> bool,
    ) -> Vec<CandidatePath> {
        let mut candidates = Vec::new();
        for interface in interfaces.iter().filter(|interface| self.uses(interface)) {
            // All paths over an interface share its sockets, one for each IP version.
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

/// Whether datagrams from an address can get to another, as far as the two themselves say.
fn is_same_scope(own: IpAddr, remote: IpAddr) -> bool {
    let link_local = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    own.is_ipv4() == remote.is_ipv4() && link_local(own) == link_local(remote)
}

impl Paths {
    /// What is to be done so that there is a path for each of `ways`. `interfaces` are those that exist.
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

    /// Every path, as something that is to be removed.
    pub fn clear(&mut self) -> Vec<PathChange> {
        self.0.drain(..).map(|path| PathChange::Remove(path.name, path.candidate)).collect()
    }

    /// A path could not be made or moved. The next update asks for it again.
    pub fn on_failed(&mut self, change: &PathChange) {
        match change {
            PathChange::Add(name, _) => self.0.retain(|path| path.name != *name),
            PathChange::Move(name, _) => {
                self.0.iter_mut().filter(|path| path.name == *name).for_each(|path| path.move_failed = true);
            }
            PathChange::Suspend(..) | PathChange::Remove(..) => {}
        }
    }

    /// The ways of the paths that do not rest.
    pub fn active(&self) -> impl Iterator<Item = &CandidatePath> {
        self.0.iter().filter(|path| !path.suspended).map(|path| &path.candidate)
    }

    /// The name of the interface, numbered from the second path on.
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
        // An interface that has found another way to the peer does not wait for this one.
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

    fn plan(remotes: &[&str]) -> Policy {
        let remotes = remotes.iter().map(|remote| remote.parse().unwrap()).collect();
        Policy { interfaces: Patterns::all(), taken: Vec::new(), remotes, pairs: Pairs::One, ports: 1 }
    }

    fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Interface { index, name: name.to_owned(), usable: true, addresses }
    }

    /// What becomes of `interfaces`, from all of whose addresses everything can be reached.
    fn update(paths: &mut Paths, plan: &Policy, interfaces: &[Interface]) -> Vec<String> {
        let candidates = plan.candidates(interfaces, |_, _, _| true);
        let changes = paths.update(&candidates, interfaces, |name| name != "taken");
        changes.iter().map(describe).collect()
    }

    fn describe(change: &PathChange) -> String {
        let (what, name, candidate) = match change {
            PathChange::Add(name, candidate) => ("add", name, candidate),
            PathChange::Move(name, candidate) => ("move", name, candidate),
            PathChange::Suspend(name, candidate) => ("rest", name, candidate),
            PathChange::Remove(name, candidate) => ("remove", name, candidate),
        };
        format!("{what} {name}: {} -> {}", candidate.local, candidate.remote)
    }

    #[test]
    fn patterns_take_and_exclude() {
        let takes = |patterns: &[&str], name| Patterns::new(patterns.iter().map(ToString::to_string)).matches(name);
        assert!(takes(&[], "eth0"));
        assert!(takes(&["eth*", "wwan?"], "eth10") && takes(&["eth*", "wwan?"], "wwan0"));
        assert!(!takes(&["eth*", "wwan?"], "wlan0") && !takes(&["eth*", "wwan?"], "wwan10"));
        assert!(takes(&["!docker*", "!veth*"], "eth0") && !takes(&["!docker*", "!veth*"], "docker0"));
        assert!(!takes(&["*", "!eth1"], "eth1") && !takes(&["!eth1", "*"], "eth1"));
        assert!(takes(&["e*1*0"], "eth1.100") && !takes(&["e*1*0"], "eth1.101"));
    }

    #[test]
    fn every_interface_that_reaches_the_peer_is_a_way() {
        let mut hosts = [
            interface(2, "eth0", &["192.0.2.1"]),
            interface(3, "wwan0", &["100.64.0.9"]),
            interface(4, "docker0", &["172.17.0.1"]),
            interface(5, "mpt0", &["10.77.0.1"]),
            interface(6, "wlan0", &["fe80::1", "2001:db8::1"]),
        ];
        hosts[3].usable = false;
        let candidates = plan(&["203.0.113.7:4754"]).candidates(&hosts, |interface, _, _| interface.name != "docker0");
        let candidates: Vec<_> =
            candidates.iter().map(|candidate| (candidate.interface.as_str(), candidate.local.to_string())).collect();
        assert_eq!(candidates, [("eth0", "192.0.2.1".to_owned()), ("wwan0", "100.64.0.9".to_owned())]);
    }

    #[test]
    fn an_interface_that_has_a_path_already_gets_no_other() {
        let plan = Policy { taken: vec!["eth0".to_owned()], ..plan(&["203.0.113.7:4754"]) };
        assert_eq!(plan.candidates(&[interface(2, "eth0", &["192.0.2.1"])], |_, _, _| true), []);
    }

    #[test]
    fn the_first_remote_that_can_be_reached_is_enough_unless_all_are_wanted() {
        let hosts = [interface(2, "eth0", &["192.0.2.1", "fe80::1", "2001:db8::1"])];
        let plan = plan(&["[2001:db8:1::7]:1", "203.0.113.7:1", "203.0.113.8:1"]);
        let remotes = |plan: &Policy| {
            let candidates = plan.candidates(&hosts, |_, own, _| own.is_ipv4());
            candidates.iter().map(|candidate| candidate.remote.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(remotes(&plan), ["203.0.113.7:1"]);
        assert_eq!(remotes(&Policy { pairs: Pairs::FullMesh, ..plan }), ["203.0.113.7:1", "203.0.113.8:1"]);
    }

    #[test]
    fn an_address_without_a_route_is_passed_over() {
        let hosts = [interface(2, "eth0", &["10.0.0.1", "192.0.2.1"])];
        let candidates = plan(&["203.0.113.7:1"]).candidates(&hosts, |_, own, _| own.to_string() == "192.0.2.1");
        assert_eq!(candidates[0].local.to_string(), "192.0.2.1");
    }

    #[test]
    fn paths_come_move_rest_and_go() {
        let (mut paths, plan) = (Paths::default(), plan(&["203.0.113.7:1"]));
        let eth = |addresses: &[&str]| interface(2, "eth0", addresses);
        assert_eq!(update(&mut paths, &plan, &[eth(&["192.0.2.1"])]), ["add eth0: 192.0.2.1 -> 203.0.113.7:1"]);
        assert!(update(&mut paths, &plan, &[eth(&["192.0.2.1"])]).is_empty());
        assert_eq!(update(&mut paths, &plan, &[eth(&["192.0.2.9"])]), ["move eth0: 192.0.2.9 -> 203.0.113.7:1"]);
        assert_eq!(update(&mut paths, &plan, &[eth(&[])]), ["rest eth0: 192.0.2.9 -> 203.0.113.7:1"]);
        assert!(update(&mut paths, &plan, &[eth(&[])]).is_empty());
        assert_eq!(update(&mut paths, &plan, &[eth(&["192.0.2.9"])]), ["move eth0: 192.0.2.9 -> 203.0.113.7:1"]);
        assert_eq!(update(&mut paths, &plan, &[]), ["remove eth0: 192.0.2.9 -> 203.0.113.7:1"]);
        assert!(update(&mut paths, &plan, &[]).is_empty());
    }

    #[test]
    fn what_failed_is_asked_for_again() {
        let (mut paths, plan) = (Paths::default(), plan(&["203.0.113.7:1"]));
        let mut update = |own: &str, fails: bool| {
            let interfaces = [interface(2, "eth0", &[own])];
            let changes = paths.update(&plan.candidates(&interfaces, |_, _, _| true), &interfaces, |_| true);
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
    fn an_interface_that_came_back_under_another_index_moves_its_path() {
        let (mut paths, plan) = (Paths::default(), plan(&["203.0.113.7:1"]));
        update(&mut paths, &plan, &[interface(2, "usb0", &["192.0.2.1"])]);
        let changes = update(&mut paths, &plan, &[interface(9, "usb0", &["192.0.2.1"])]);
        assert_eq!(changes, ["move usb0: 192.0.2.1 -> 203.0.113.7:1"]);
    }

    #[test]
    fn several_ports_are_several_paths_with_names_of_their_own() {
        let (mut paths, plan) = (Paths::default(), Policy { ports: 3, ..plan(&["203.0.113.7:1"]) });
        let changes = update(&mut paths, &plan, &[interface(2, "taken", &["192.0.2.1"])]);
        let names: Vec<_> = changes.iter().map(|change| change.split(':').next().unwrap()).collect();
        assert_eq!(names, ["add taken-2", "add taken-3", "add taken-4"]);
    }

    #[test]
    fn a_way_that_has_become_another_one_is_replaced() {
        let (mut paths, plan) = (Paths::default(), plan(&["203.0.113.7:1", "[2001:db8:1::7]:1"]));
        update(&mut paths, &plan, &[interface(2, "eth0", &["192.0.2.1"])]);
        let changes = update(&mut paths, &plan, &[interface(2, "eth0", &["2001:db8::1"])]);
        let expected = ["remove eth0: 192.0.2.1 -> 203.0.113.7:1", "add eth0: 2001:db8::1 -> [2001:db8:1::7]:1"];
        assert_eq!(changes, expected);
    }
}
