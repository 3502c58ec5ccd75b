//! Peers with a name in place of an address: `remote = "home.example.org"` in `[[peer]]`.
//!
//! ```text
//!   look up   at the start, every 5 minutes, and every 5 s while no peer with the name is up
//!   answer    the same addresses as before: nothing changes, because resolvers shuffle them
//!             others: they are used; the one that worked until then stays as the last
//!   silence   5 s after the last change: the first address becomes the last, so that each is tried
//! ```
//!
//! The address that worked stays among those that are tried, so a wrong answer interrupts the tunnel for seconds,
//! once, and a missing answer has no effect. See [`crate::resolver`] for the lookup itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mpt_linux::reactor::Interest;
use mpt_proto::stats::PeerStatus;
use mpt_proto::time::Time;

use super::diagnosis::is_alive;
use super::{Daemon, NAMES, name_servers, policy_routing};
use crate::config::model::Peer;
use crate::config::{File, is_host};
use crate::control::report::Report;
use crate::resolver::{DnsAnswer, Lookup, Resolver};

/// The names of all peers, and their addresses.
#[derive(Debug, Default)]
pub(super) struct Names {
    resolver: Option<Resolver>,
    hosts: BTreeMap<String, ResolvedName>,
    /// The resolvers from before the tunnel.
    resolvers: Vec<IpAddr>,
    /// Time of the next poll.
    due: Option<Time>,
}

/// A name that is looked up.
#[derive(Debug)]
struct ResolvedName {
    /// The last answer.
    answer: BTreeSet<IpAddr>,
    /// The addresses to use, in this order.
    addresses: Vec<IpAddr>,
    /// Time at which `addresses` changed.
    changed: Time,
    /// A lookup is running.
    is_pending: bool,
    /// Time of the next lookup.
    next: Time,
    /// Time of the last log line about a failure.
    failed: Option<Time>,
}

impl Names {
    /// Makes an empty set, for a host with these resolvers.
    pub(super) fn new(resolvers: Vec<IpAddr>) -> Self {
        Self { resolvers, ..Self::default() }
    }

    /// Makes a poll due: an answer came, or the state of a path has changed.
    pub(super) fn schedule(&mut self, now: Time) {
        if !self.hosts.is_empty() {
            self.due = Some(now);
        }
    }

    /// Returns the addresses of a peer: those of its file, then those of its names.
    pub(super) fn remotes(&self, peer: &Peer) -> Vec<SocketAddr> {
        let Some(auto) = &peer.auto else { return Vec::new() };
        let mut remotes: Vec<_> = auto.remotes.iter().map(|remote| **remote).collect();
        for name in &auto.names {
            let addresses = self.hosts.get(&name.name).map_or(&[][..], |host| &host.addresses);
            remotes.extend(addresses.iter().map(|ip| SocketAddr::new(*ip, name.port)));
        }
        remotes
    }

    /// Takes the names of the configuration. Returns true if there is any.
    fn set(&mut self, now: Time, file: &File) -> bool {
        let autos = file.peers.iter().filter_map(|peer| peer.auto.as_ref());
        let names: BTreeSet<&String> = autos.flat_map(|auto| &auto.names).map(|name| &name.name).collect();
        self.hosts.retain(|name, _| names.contains(name));
        for name in names {
            if !self.hosts.contains_key(name) {
                tracing::info!(name, "looking up the address of a peer");
                self.hosts.insert(name.clone(), ResolvedName::new(now));
                self.due = Some(now);
            }
        }
        !self.hosts.is_empty()
    }

    /// Looks up what is due, and changes to the next address of silent peers. Returns true if addresses have changed.
    fn look_up_due(&mut self, now: Time, file: &File, status: &[PeerStatus], interfaces: &[String]) -> bool {
        let (mut changed, mut due) = (false, None::<Time>);
        for (name, host) in &mut self.hosts {
            let is_alive = has_alive_path(name, file, status);
            changed |= !is_alive && host.try_next(now);
            if host.next <= now && !host.is_pending {
                if let Some(resolver) = &self.resolver {
                    resolver.look_up(lookup(name, file, interfaces, &self.resolvers));
                    (host.is_pending, host.next) = (true, now + REFRESH);
                } else {
                    host.next = now + RETRY;
                }
            }
            let next = if is_alive { host.next } else { host.next.min(host.changed.max(now) + RETRY) };
            due = Some(due.map_or(next, |due| due.min(next)));
        }
        self.due = due;
        changed
    }
}

/// Returns how to look up a name: over these interfaces, with the resolvers from before the tunnel.
fn lookup(name: &str, file: &File, interfaces: &[String], before: &[IpAddr]) -> Lookup {
    Lookup {
        name: name.to_owned(),
        interfaces: interfaces.to_vec(),
        inside: name_servers::of(file),
        former: name_servers::resolv_conf().former(&file.interface),
        before: before.to_vec(),
    }
}

impl ResolvedName {
    fn new(now: Time) -> Self {
        let (answer, addresses) = (BTreeSet::new(), Vec::new());
        Self { answer, addresses, changed: now, is_pending: false, next: now, failed: None }
    }

    /// Changes to the next address if the first has been silent for a while, and requests a lookup.
    fn try_next(&mut self, now: Time) -> bool {
        if now.since(self.changed) < RETRY {
            return false;
        }
        (self.changed, self.next) = (now, now);
        if self.addresses.len() < 2 {
            return false;
        }
        self.addresses.rotate_left(1);
        true
    }

    /// Takes the addresses that a lookup returned. `in_use` is the first address if it works. Returns true if there are
    /// others than before.
    fn on_answer(&mut self, now: Time, answer: Vec<IpAddr>, in_use: Option<IpAddr>) -> bool {
        let set: BTreeSet<_> = answer.iter().copied().collect();
        if set == self.answer {
            return false;
        }
        let keeps = in_use.filter(|own| set.contains(own));
        let last = in_use.filter(|own| !set.contains(own));
        let others = answer.into_iter().filter(|ip| Some(*ip) != keeps);
        let addresses: Vec<_> = keeps.into_iter().chain(others).chain(last).collect();
        self.answer = set;
        let changed = addresses != self.addresses;
        (self.addresses, self.changed) = (addresses, now);
        changed
    }
}

/// Returns true if any peer with this name has a path that is alive.
fn has_alive_path(name: &str, file: &File, status: &[PeerStatus]) -> bool {
    let has_name = |peer: &&Peer| peer.auto.iter().flat_map(|auto| &auto.names).any(|own| own.name == name);
    file.peers.iter().filter(has_name).any(|own| status.iter().any(|peer| peer.name == *own.name && is_alive(peer)))
}

impl Daemon {
    /// Takes the names of a changed configuration, and starts the resolver for the first of them.
    pub(super) fn set_names(&mut self, now: Time) {
        if !self.names.set(now, &self.file) || self.names.resolver.is_some() {
            return;
        }
        let started = Resolver::start(policy_routing::mark(&self.file));
        let started = started.map_err(|error| error.to_string()).and_then(|resolver| {
            let added = self.workers.watch(&resolver, NAMES, Interest::Read);
            added.map(|()| resolver).map_err(|error| error.to_string())
        });
        match started {
            Ok(resolver) => self.names.resolver = Some(resolver),
            Err(error) => tracing::warn!(error, "cannot start the lookup of names"),
        }
    }

    /// Handles answers and what is due, and returns the next deadline.
    pub(super) fn poll_names(&mut self, now: Time) -> Option<Time> {
        if self.names.due.is_none_or(|due| due > now) {
            return self.names.due;
        }
        let status = self.workers.status().peers;
        let answers = self.names.resolver.as_mut().map(Resolver::take_answers).unwrap_or_default();
        let mut changed = false;
        for answer in answers {
            changed |= self.handle_answer(now, answer, &status);
        }
        changed |= self.names.look_up_due(now, &self.file, &status, &self.interface_sync.usable);
        if changed {
            self.interface_sync.schedule(now);
        }
        self.names.due
    }

    fn handle_answer(&mut self, now: Time, answer: DnsAnswer, status: &[PeerStatus]) -> bool {
        let DnsAnswer { name, addresses } = answer;
        let Some(host) = self.names.hosts.get_mut(&name) else { return false };
        host.is_pending = false;
        let is_usable = |ip: &IpAddr| {
            let is_inside = self.file.addresses.iter().any(|net| net.contains(ip));
            is_host(*ip) && !ip.is_loopback() && !is_inside
        };
        let addresses = addresses.and_then(|all| {
            let usable: Vec<_> = all.iter().copied().filter(is_usable).collect();
            if usable.is_empty() { Err(format!("the answer {all:?} is no address of a peer")) } else { Ok(usable) }
        });
        match addresses {
            Ok(addresses) => {
                let in_use = host.addresses.first().copied().filter(|_| has_alive_path(&name, &self.file, status));
                let changed = host.on_answer(now, addresses, in_use);
                if changed || host.failed.take().is_some() {
                    let addresses = &host.addresses;
                    tracing::info!(name, ?addresses, "address of a peer looked up");
                }
                changed
            }
            Err(error) => {
                host.next = now + RETRY;
                if host.failed.is_none_or(|failed| now.since(failed) >= LOG_INTERVAL) {
                    host.failed = Some(now);
                    tracing::warn!(name, "cannot look up the address of a peer: {error}; hint: {HINT}");
                }
                false
            }
        }
    }

    /// Returns how to look up the name of a server for paths over TLS.
    pub(super) fn lookup(&self, name: &str) -> Lookup {
        lookup(name, &self.file, &self.interface_sync.usable, &self.names.resolvers)
    }

    /// Adds the name of each path's address to a report.
    pub(super) fn report_names(&self, report: &mut Report) {
        for peer in &mut report.peers {
            let Some(own) = self.file.peers.iter().find(|own| *own.name == peer.name) else { continue };
            let names = own.auto.iter().flat_map(|auto| &auto.names);
            for name in names {
                let Some(host) = self.names.hosts.get(&name.name) else { continue };
                let at = |ip: &IpAddr| SocketAddr::new(*ip, name.port).to_string();
                let all: Vec<_> = host.addresses.iter().map(at).collect();
                for path in peer.paths.iter_mut().filter(|path| all.contains(&path.remote)) {
                    path.remote_name = Some(name.name.clone());
                }
            }
        }
    }
}

/// Interval of lookups while the peer is up. DynDNS names have a lifetime of 1 to 5 minutes.
const REFRESH: Duration = Duration::from_secs(300);
/// Interval of lookups, and of changes to the next address, while it is not. In between, a handshake is tried 3 times.
const RETRY: Duration = Duration::from_secs(5);
/// Minimum interval of log lines about the same name.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
const HINT: &str = "is the name right, and does a resolver of /etc/resolv.conf answer? dig NAME; it is tried again";

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(all: &[u8]) -> Vec<IpAddr> {
        all.iter().map(|last| IpAddr::from([192, 0, 2, *last])).collect()
    }

    fn after(seconds: u64) -> Time {
        Time::START + Duration::from_secs(seconds)
    }

    #[test]
    fn a_shuffled_answer_changes_nothing_and_another_one_keeps_the_address_that_works_as_the_last() {
        let mut host = ResolvedName::new(after(0));
        assert!(host.on_answer(after(1), ips(&[1, 2]), None));
        assert!(!host.on_answer(after(2), ips(&[2, 1]), Some(ips(&[1])[0])));
        assert_eq!(host.addresses, ips(&[1, 2]));
        assert!(host.on_answer(after(3), ips(&[2, 3, 1]), Some(ips(&[1])[0])));
        assert_eq!(host.addresses, ips(&[1, 2, 3]), "the address in use stays the first");
        assert!(host.on_answer(after(4), ips(&[7]), Some(ips(&[1])[0])));
        assert_eq!(host.addresses, ips(&[7, 1]));
    }

    #[test]
    fn each_address_of_a_silent_peer_is_tried_for_5_seconds() {
        let mut host = ResolvedName::new(after(0));
        host.on_answer(after(10), ips(&[1, 2, 3]), None);
        assert!(!host.try_next(after(14)));
        assert!(host.try_next(after(15)) && !host.try_next(after(19)) && host.try_next(after(20)));
        assert_eq!(host.addresses, ips(&[3, 1, 2]));
        assert_eq!(host.next, after(20), "a lookup is due, too");
    }
}
