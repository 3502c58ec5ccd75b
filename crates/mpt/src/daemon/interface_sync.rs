//! Keeps paths in sync with the interfaces: passes netlink state to [`mpt_proto::path_manager`] and applies its
//! decisions. Configured paths in native mode follow the addresses of their interfaces, too. [`super::path_sockets`]
//! opens and closes the sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mpt_linux::Error;
use mpt_linux::netlink::{Netlink, Prefix};
use mpt_proto::config::{PathConfig, PathRole};
use mpt_proto::path::LinkId;
use mpt_proto::path_manager::{CandidatePath, Interface, Pairs, PathChange, Paths, Policy};
use mpt_proto::time::Time;

use super::path_faults::{PathFault, PathFaults, WithoutPath};
use super::path_sockets::{SocketKey, socket_key};
use super::restore_limit::RestoreLimit;
use super::retry_log::RetryLog;
use super::{Daemon, policy_routing};
use crate::Failure;
use crate::config::defaults;
use crate::config::model::{Auto, Mode, Peer};

/// The state of the synchronization.
#[derive(Debug)]
pub(super) struct InterfaceSync {
    pub(super) tun: u32,
    /// Names of the interfaces that paths may use.
    pub(super) usable: Vec<String>,
    /// By the peer's name.
    peers: BTreeMap<String, Paths>,
    pub(super) links: BTreeMap<SocketKey, LinkId>,
    /// Sockets for incoming connections, one for each local address: a response is sent from the address that was
    /// contacted.
    pub(super) listening: BTreeMap<IpAddr, LinkId>,
    /// The usable local addresses of each configured socket at the last run.
    pub(super) configured: BTreeMap<LinkId, Vec<IpAddr>>,
    /// The faults of paths and peers at the last run.
    pub(super) faults: PathFaults,
    /// Time of the next run, after a change.
    due: Option<Time>,
    /// An interface or an address has changed, and routes have not been retried since.
    retry_routes: bool,
    /// The gateway has not been updated since default routes or interfaces may have changed.
    pub(super) default_routes_changed: bool,
    /// A route over the TUN device may have been removed since all were last restored.
    pub(super) tun_routes_gone: bool,
    /// Failures of routes and of nftables.
    pub(super) route_failures: RetryLog,
    /// Failures of paths and sockets.
    pub(super) path_failures: RetryLog,
    /// Restored rules, routes and addresses.
    pub(super) routing_limit: RestoreLimit,
    /// Restored tables of nftables.
    pub(super) table_limit: RestoreLimit,
    /// Forwarding that was switched on again.
    pub(super) forwarding_limit: RestoreLimit,
    /// Addresses of the tunnel that a command removed.
    pub(super) removed_addresses: BTreeSet<Prefix>,
    last_sync: Time,
}

impl InterfaceSync {
    /// Makes an empty state. Paths never use the TUN device with this index.
    pub(super) fn new(tun: u32) -> Self {
        Self {
            tun,
            usable: Vec::new(),
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            listening: BTreeMap::new(),
            configured: BTreeMap::new(),
            faults: PathFaults::default(),
            due: None,
            retry_routes: false,
            default_routes_changed: true,
            tun_routes_gone: false,
            route_failures: RetryLog::default(),
            path_failures: RetryLog::default(),
            routing_limit: RestoreLimit::default(),
            table_limit: RestoreLimit::default(),
            forwarding_limit: RestoreLimit::default(),
            removed_addresses: BTreeSet::new(),
            last_sync: Time::START,
        }
    }

    /// An interface or an address has changed. Not called for routes: our own route changes cause events, too, and
    /// would reset the backoff.
    pub(super) fn on_interfaces_changed(&mut self) {
        self.on_default_routes_changed();
        self.retry_routes = true;
        self.route_failures.reset_backoff();
        self.path_failures.reset_backoff();
    }

    /// A default route has changed, or the configuration of the gateway.
    pub(super) fn on_default_routes_changed(&mut self) {
        self.default_routes_changed = true;
    }

    /// A command added or removed an address of the tunnel. A removed one is not restored.
    pub(super) fn on_address_commanded(&mut self, address: Prefix, added: bool) {
        match added {
            true => self.removed_addresses.remove(&address),
            false => self.removed_addresses.insert(address),
        };
    }

    /// Schedules a run after a change.
    pub(super) fn schedule(&mut self, now: Time) {
        self.due = self.due.or(Some(now.max(self.last_sync + MIN_INTERVAL)));
    }

    /// Returns all interfaces. Those that paths must not use are marked as not usable.
    fn interfaces(&self, netlink: &mut Netlink) -> Result<Vec<Interface>, Error> {
        let addresses = netlink.all_addresses()?;
        let of = |index| addresses.iter().filter(move |(link, _)| *link == index).map(|(_, prefix)| prefix.address);
        let interface = |link: mpt_linux::netlink::Link| Interface {
            index: link.index,
            usable: link.up && link.running && link.index != self.tun && link.name != "lo",
            addresses: of(link.index).collect(),
            name: link.name,
        };
        Ok(netlink.links()?.into_iter().map(interface).collect())
    }
}

impl Daemon {
    /// Synchronizes if a change or a retry is due, and returns the next deadline.
    pub(super) fn poll_interfaces(&mut self, now: Time) -> Option<Time> {
        if self.workers.take_remote_addresses_changed() {
            self.interface_sync.schedule(now);
        }
        let routes = self.interface_sync.route_failures.take_due(now);
        if routes | self.interface_sync.path_failures.take_due(now) {
            self.interface_sync.retry_routes |= routes;
            self.interface_sync.schedule(now);
        }
        if self.interface_sync.routing_limit.take_due(now) {
            self.interface_sync.schedule(now);
        }
        if self.interface_sync.due.is_some_and(|due| due <= now) {
            self.sync_interfaces(now);
        }
        if self.interface_sync.table_limit.take_due(now) {
            self.restore_tables(now);
        }
        if self.interface_sync.forwarding_limit.take_due(now) {
            self.restore_forwarding(now);
        }
        let sync = &self.interface_sync;
        let retries = [sync.route_failures.due(), sync.path_failures.due()];
        let limits = [&sync.routing_limit, &sync.table_limit, &sync.forwarding_limit].map(RestoreLimit::due);
        [sync.due].into_iter().chain(retries).chain(limits).flatten().min()
    }

    /// Synchronizes routes and paths with the interfaces.
    pub(super) fn sync_interfaces(&mut self, now: Time) {
        (self.interface_sync.due, self.interface_sync.last_sync) = (None, now);
        if let Err(failure) = self.sync_gateway() {
            let what = "cannot update the nftables table of masquerade or share".to_owned();
            self.interface_sync.route_failures.record(what, failure.to_string());
        }
        if let Err(failure) = self.sync_delegation(now) {
            self.interface_sync
                .route_failures
                .record("cannot serve the shared interface".to_owned(), failure.to_string());
        }
        match self.sync_routes(now) {
            Ok(true) => self.interface_sync.route_failures.finish(now),
            Ok(false) => {}
            Err(error) => {
                self.interface_sync.route_failures.fail(now, "cannot set the routes".to_owned(), error.to_string())
            }
        }
        match self.sync_paths(now) {
            Ok(()) => self.interface_sync.path_failures.finish(now),
            Err(error) => self.interface_sync.path_failures.fail(
                now,
                "cannot synchronize with the interfaces".to_owned(),
                error.to_string(),
            ),
        }
    }

    fn sync_paths(&mut self, now: Time) -> Result<(), Error> {
        if *self.file.mode != Mode::Native {
            return Ok(());
        }
        let mut netlink = Netlink::open_for(policy_routing::mark(&self.file))?;
        let interfaces = self.interface_sync.interfaces(&mut netlink)?;
        let usable = interfaces.iter().filter(|interface| interface.usable);
        self.interface_sync.usable = usable.map(|interface| interface.name.clone()).collect();
        self.set_names(now);
        // Before the sockets change, because their changes are logged with the reason.
        let mut without_path = BTreeMap::new();
        self.interface_sync.faults.look_at_configured(&self.file, &interfaces, &mut netlink);
        self.sync_configured(now, &interfaces);
        if self.file.accepts_incoming() {
            self.listen(now, &interfaces);
            self.recall_peers(now);
            self.advertise_addresses(now, &interfaces);
        } else if !self.interface_sync.listening.is_empty() {
            self.listen(now, &[]);
        }
        let autos = self.file.peers.iter().filter_map(|peer| Some((peer, peer.auto.as_ref()?)));
        let advertised = |peer: &Peer| self.workers.remote_addresses(&peer.name);
        let policies: Vec<_> = autos
            .map(|(peer, auto)| {
                (peer.name.to_string(), path_policy(peer, auto, self.names.remotes(peer), advertised(peer)))
            })
            .collect();
        for (name, policy) in policies {
            let reaches = |interface: &Interface, own: IpAddr, remote: IpAddr| {
                netlink.reaches(remote, own, interface.index).unwrap_or(false)
            };
            let candidates = policy.candidates(&interfaces, reaches);
            let Some(peer) = self.file.peers.iter().find(|peer| *peer.name == name) else { continue };
            let is_free = |name: &str| peer.paths.iter().all(|path| *path.name != name);
            let changes =
                self.interface_sync.peers.entry(name.clone()).or_default().update(&candidates, &interfaces, is_free);
            let port = *peer.local_port;
            if let Some(paths) = self.interface_sync.peers.get(&name) {
                self.interface_sync.faults.look_at_suspended(&name, paths, &interfaces);
            }
            for change in changes {
                if let Err(failure) = self.change_path(now, &name, port, &change) {
                    self.interface_sync.path_failures.record(describe_failure(&name, &change), failure.to_string());
                    if let Some(paths) = self.interface_sync.peers.get_mut(&name) {
                        paths.on_failed(&change);
                    }
                }
            }
            without_path.extend(self.reason_without_path(&name, &policy, &interfaces).map(|reason| (name, reason)));
        }
        self.interface_sync.faults.set_without_path(without_path);
        self.rebind_stale(now);
        self.close_unused();
        Ok(())
    }

    /// Returns the candidates of all active paths with their socket keys.
    pub(super) fn active_paths(&self) -> impl Iterator<Item = (SocketKey, &CandidatePath)> {
        self.file.peers.iter().flat_map(|peer| {
            let paths = self.interface_sync.peers.get(&*peer.name);
            paths
                .into_iter()
                .flat_map(Paths::active)
                .map(|candidate| (socket_key(candidate, *peer.local_port), candidate))
        })
    }

    /// Restores the routes that the kernel removed with an interface; the return of the TUN device restores all. Route
    /// events of its own changes must not cause another run. Returns false if missing routes were not looked up.
    fn sync_routes(&mut self, now: Time) -> Result<bool, Failure> {
        if self.tun_is_up == Some(false) {
            return Ok(false);
        }
        let mut netlink = Netlink::open()?;
        self.routes.restore(&mut netlink);
        let restored = self.restore_routing(now, &mut netlink);
        if !self.routes.is_incomplete() {
            return restored.map(|()| true);
        }
        let retries = std::mem::take(&mut self.interface_sync.retry_routes);
        if retries {
            // A route that cannot be restored must not keep the others from being set.
            self.routes.apply(&self.file, &mut netlink)?;
        }
        restored.map(|()| retries)
    }

    /// Returns why a peer that this host calls has no path; `None` if it has one.
    fn reason_without_path(&self, name: &str, policy: &Policy, interfaces: &[Interface]) -> Option<WithoutPath> {
        let peer = self.file.peers.iter().find(|peer| *peer.name == name)?;
        let has_path = !peer.paths.is_empty() || self.interface_sync.peers.get(name).is_some_and(|all| !all.is_empty());
        (!has_path).then(|| WithoutPath::of(peer, policy, interfaces, self.interface_sync.tun))
    }

    fn change_path(&mut self, now: Time, peer: &str, port: u16, change: &PathChange) -> Result<(), Failure> {
        match change {
            PathChange::Add(name, candidate) => {
                let link = self.link(candidate, port)?;
                let config = PathConfig {
                    name: name.clone(),
                    link,
                    remote: Some(candidate.remote),
                    weight: defaults::WEIGHT,
                    liveness: None,
                    alive: false,
                    cap: None,
                    role: PathRole::Available,
                };
                match self.is_configured(peer, candidate.remote) {
                    true => self.workers.add_path(now, peer, &config),
                    false => self.workers.add_remote_path(now, peer, &config),
                }
                .map_err(|error| Failure::new(error.to_string()))?;
                tracing::info!(peer, path = name, local = %candidate.local, remote = %candidate.remote, "path added");
            }
            PathChange::Move(name, candidate) => {
                let link = self.link(candidate, port)?;
                self.workers.rebind_link(now, link, candidate.local, Some(candidate.index))?;
                tracing::info!(peer, path = name, local = %candidate.local, "path uses another local address");
            }
            PathChange::Suspend(name, candidate) => {
                let key = socket_key(candidate, port);
                if !self.active_paths().any(|(other, _)| other == key) {
                    let link = self.link(candidate, port)?;
                    self.workers.handle_carrier(now, link, false);
                }
                let fault = self.interface_sync.faults.of(peer, name).unwrap_or(PathFault::Route);
                tracing::info!(peer, path = name, "path suspended: {fault}");
            }
            PathChange::Remove(name, _) => {
                // The path is gone if its link was removed.
                let _ = self.workers.remove_path(now, peer, name);
                tracing::info!(peer, path = name, "path removed");
            }
        }
        Ok(())
    }

    fn is_configured(&self, peer: &str, remote: SocketAddr) -> bool {
        let peer = self.file.peers.iter().find(|known| *known.name == peer);
        peer.is_some_and(|peer| self.names.remotes(peer).contains(&remote))
    }

    /// Removes the state of a removed peer.
    pub(super) fn forget_peer_paths(&mut self, peer: &str) {
        self.interface_sync.peers.remove(peer);
        self.close_unused();
    }
}

/// Describes the change that failed.
fn describe_failure(peer: &str, change: &PathChange) -> String {
    let (PathChange::Add(name, candidate)
    | PathChange::Move(name, candidate)
    | PathChange::Suspend(name, candidate)
    | PathChange::Remove(name, candidate)) = change;
    format!("peer {peer}: cannot set up path {name} from {} to {}", candidate.local, candidate.remote)
}

/// Returns the path manager's policy for a peer. It leaves out interfaces with configured paths.
fn path_policy(peer: &Peer, auto: &Auto, mut remotes: Vec<SocketAddr>, advertised: Vec<SocketAddr>) -> Policy {
    let more =
        advertised.into_iter().filter(|advertised| peer.pairs == Pairs::FullMesh && !remotes.contains(advertised));
    remotes.extend(more.collect::<Vec<_>>());
    let udp_paths = peer.paths.iter().filter(|path| path.tls.is_none());
    Policy {
        interfaces: auto.interfaces.clone(),
        taken: udp_paths.filter_map(|path| path.interface.as_deref().cloned()).collect(),
        remotes,
        pairs: peer.pairs,
        ports: auto.ports,
    }
}

/// Minimum interval: changes come in bursts, and each run costs some system calls. The first of a burst is not delayed.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
