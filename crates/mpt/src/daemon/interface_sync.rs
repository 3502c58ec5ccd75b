//! Keeps paths in sync with the interfaces: passes netlink state to [`mpt_proto::path_manager`] and applies its
//! decisions. Configured paths in native mode follow the addresses of their interfaces, too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mpt_linux::Error;
use mpt_linux::netlink::{Netlink, Prefix};
use mpt_linux::udp::SocketSpec;
use mpt_proto::config::PathConfig;
use mpt_proto::path::LinkId;
use mpt_proto::path_manager::{CandidatePath, Interface, Pairs, PathChange, Paths, Policy};
use mpt_proto::time::Time;

use super::links::Link;
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
    links: BTreeMap<SocketKey, LinkId>,
    /// Sockets for incoming connections, one for each local address: a response is sent from the address that was
    /// contacted.
    listening: BTreeMap<IpAddr, LinkId>,
    /// The usable local addresses of each configured socket at the last run.
    configured: BTreeMap<LinkId, Vec<IpAddr>>,
    /// Time of the next run, after a change.
    due: Option<Time>,
    /// An interface or an address has changed, and routes have not been retried since.
    retry_routes: bool,
    /// The gateway has not been updated since default routes or interfaces may have changed.
    pub(super) default_routes_changed: bool,
    /// Failures of routes and of nftables.
    pub(super) route_failures: RetryLog,
    /// Failures of paths and sockets.
    path_failures: RetryLog,
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

/// Paths over one interface share their sockets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SocketKey {
    interface: String,
    ipv6: bool,
    port: u16,
    number: u8,
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
            due: None,
            retry_routes: false,
            default_routes_changed: true,
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
        if self.driver.endpoint.take_remote_addresses_changed() {
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
            let what = "cannot update the nftables table of masquerade".to_owned();
            self.interface_sync.route_failures.record(what, failure.to_string());
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
        self.sync_configured(now, &interfaces);
        if self.file.accepts_incoming() {
            self.listen(now, &interfaces);
            self.advertise_addresses(now, &interfaces);
        } else if !self.interface_sync.listening.is_empty() {
            self.listen(now, &[]);
        }
        let autos = self.file.peers.iter().filter_map(|peer| Some((peer, peer.auto.as_ref()?)));
        let advertised = |peer: &Peer| self.driver.endpoint.remote_addresses(&peer.name);
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
            for change in changes {
                if let Err(failure) = self.change_path(now, &name, port, &change) {
                    self.interface_sync.path_failures.record(describe_failure(&name, &change), failure.to_string());
                    if let Some(paths) = self.interface_sync.peers.get_mut(&name) {
                        paths.on_failed(&change);
                    }
                }
            }
        }
        self.rebind_stale(now);
        self.close_unused();
        Ok(())
    }

    /// Rebinds sockets to another local address if none of their paths uses the current one. Paths of several peers may
    /// differ.
    fn rebind_stale(&mut self, now: Time) {
        let mut by_link: BTreeMap<LinkId, Vec<CandidatePath>> = BTreeMap::new();
        for (key, candidate) in self.active_paths() {
            if let Some(link) = self.interface_sync.links.get(&key) {
                by_link.entry(*link).or_default().push(candidate.clone());
            }
        }
        for (link, candidates) in by_link {
            if candidates.iter().any(|candidate| self.driver.is_bound_to(link, candidate.local, candidate.index)) {
                continue;
            }
            let CandidatePath { interface, index, local, .. } = &candidates[0];
            match self.driver.rebind_link(now, link, *local, Some(*index)) {
                Ok(()) => tracing::info!(interface, %local, "socket rebound to another local address"),
                Err(error) => {
                    self.interface_sync
                        .path_failures
                        .record(format!("cannot bind to {local} on {interface}"), error.to_string());
                }
            }
        }
    }

    /// Returns the candidates of all active paths with their socket keys.
    fn active_paths(&self) -> impl Iterator<Item = (SocketKey, &CandidatePath)> {
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
        self.restore_routing(now, &mut netlink)?;
        if !self.routes.is_incomplete() {
            return Ok(true);
        }
        let retries = std::mem::take(&mut self.interface_sync.retry_routes);
        if retries {
            self.routes.apply(&self.file, &mut netlink)?;
        }
        Ok(retries)
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
                    standby: false,
                };
                match self.is_configured(peer, candidate.remote) {
                    true => self.driver.endpoint.add_path(now, peer, &config),
                    false => self.driver.endpoint.add_remote_path(now, peer, &config),
                }
                .map_err(|error| Failure::new(error.to_string()))?;
                tracing::info!(peer, path = name, local = %candidate.local, remote = %candidate.remote, "path added");
            }
            PathChange::Move(name, candidate) => {
                let link = self.link(candidate, port)?;
                self.driver.rebind_link(now, link, candidate.local, Some(candidate.index))?;
                tracing::info!(peer, path = name, local = %candidate.local, "path uses another local address");
            }
            PathChange::Suspend(name, candidate) => {
                let key = socket_key(candidate, port);
                if !self.active_paths().any(|(other, _)| other == key) {
                    let link = self.link(candidate, port)?;
                    self.driver.endpoint.handle_carrier(now, link, false);
                }
                tracing::info!(peer, path = name, "path suspended: no route to the peer");
            }
            PathChange::Remove(name, _) => {
                // The path is gone if its link was removed.
                let _ = self.driver.endpoint.remove_path(now, peer, name);
                tracing::info!(peer, path = name, "path removed");
            }
        }
        Ok(())
    }

    fn is_configured(&self, peer: &str, remote: SocketAddr) -> bool {
        let peer = self.file.peers.iter().find(|known| *known.name == peer);
        peer.is_some_and(|peer| self.names.remotes(peer).contains(&remote))
    }

    /// Returns the socket of a path, and opens it if needed.
    fn link(&mut self, candidate: &CandidatePath, port: u16) -> Result<LinkId, Failure> {
        let key = socket_key(candidate, port);
        if let Some(link) = self.interface_sync.links.get(&key) {
            return Ok(*link);
        }
        let spec = SocketSpec {
            local: SocketAddr::new(candidate.local, if candidate.number == 0 { port } else { 0 }),
            device: Some(candidate.interface.clone()),
            mark: policy_routing::mark(&self.file),
            offload: self.file.offload,
            ..SocketSpec::default()
        };
        let id = self.sockets.allocate_id().ok_or_else(|| Failure::new("too many sockets"))?;
        let opened = Link::open_managed(id, spec, candidate.index).and_then(|link| self.driver.add_link(link));
        opened.inspect_err(|_| self.sockets.release_id(id))?;
        self.interface_sync.links.insert(key, id);
        Ok(id)
    }

    /// Listens on every local address, and closes the sockets of others.
    fn listen(&mut self, now: Time, interfaces: &[Interface]) {
        let all = interfaces.iter().filter(|interface| interface.index != self.interface_sync.tun);
        let port = *self.file.port;
        let free = |own: &&IpAddr| !is_link_local(**own) && !self.sockets.is_bound_to(SocketAddr::new(**own, port));
        let all: BTreeSet<_> = all.flat_map(|interface| &interface.addresses).filter(free).collect();
        let (driver, sockets) = (&mut self.driver, &mut self.sockets);
        self.interface_sync.listening.retain(|address, id| {
            let stays = all.contains(address);
            if !stays {
                tracing::info!(%address, "stopped listening: address removed");
                driver.endpoint.remove_link(now, *id);
                driver.remove_link(*id);
                sockets.release_id(*id);
            }
            stays
        });
        for address in all {
            if self.interface_sync.listening.contains_key(address) {
                continue;
            }
            let what = format!("cannot listen on {address}");
            let Some(id) = self.sockets.allocate_id() else {
                self.interface_sync.path_failures.record(what, "too many sockets".to_owned());
                return;
            };
            let local = SocketAddr::new(*address, *self.file.port);
            let mark = policy_routing::mark(&self.file);
            let spec = SocketSpec { local, mark, offload: self.file.offload, ..SocketSpec::default() };
            match Link::listen(id, spec).and_then(|link| self.driver.add_link(link)) {
                Ok(()) => drop(self.interface_sync.listening.insert(*address, id)),
                Err(error) => {
                    self.sockets.release_id(id);
                    self.interface_sync.path_failures.record(what, error.to_string());
                }
            }
        }
    }

    /// Advertises our addresses to peers with `pairs = "fullmesh"`.
    fn advertise_addresses(&mut self, now: Time, interfaces: &[Interface]) {
        let usable = interfaces.iter().filter(|interface| interface.usable).flat_map(|interface| &interface.addresses);
        let at = |own: &IpAddr| SocketAddr::new(*own, *self.file.port);
        let open =
            usable.filter(|own| self.interface_sync.listening.contains_key(*own) || self.sockets.is_bound_to(at(own)));
        let all: Vec<_> = open.map(at).collect();
        for peer in self.file.peers.iter().filter(|peer| peer.connects_to_us() && peer.pairs == Pairs::FullMesh) {
            if let Err(error) = self.driver.endpoint.advertise_addresses(now, &peer.name, &all) {
                tracing::warn!(peer = %peer.name, %error, "addresses not advertised");
            }
        }
    }

    /// Removes the state of a removed peer.
    pub(super) fn forget_peer_paths(&mut self, peer: &str) {
        self.interface_sync.peers.remove(peer);
        self.close_unused();
    }

    /// Closes the sockets that no configured path uses.
    pub(super) fn close_unconfigured(&mut self, now: Time) {
        for id in self.sockets.take_unconfigured(&self.file.peers) {
            self.driver.endpoint.remove_link(now, id);
            self.driver.remove_link(id);
            self.interface_sync.configured.remove(&id);
        }
    }

    fn close_unused(&mut self) {
        let status = self.driver.endpoint.status();
        let used = |link: LinkId| status.peers.iter().flat_map(|peer| &peer.paths).any(|path| path.link == link);
        let (driver, sockets) = (&mut self.driver, &mut self.sockets);
        self.interface_sync.links.retain(|_, id| {
            let stays = used(*id);
            if !stays {
                driver.remove_link(*id);
                sockets.release_id(*id);
            }
            stays
        });
    }

    /// Updates configured sockets: if its address is gone, a socket with an interface is bound to another address of
    /// it. The peer is notified of every change, because it needs a datagram from an address before it can respond
    /// there.
    fn sync_configured(&mut self, now: Time, interfaces: &[Interface]) {
        let all: Vec<_> = self.sockets.configured().map(|(device, local, id)| (device.clone(), local, id)).collect();
        for (device, local, id) in all {
            let usable = interfaces.iter().filter(|interface| interface.usable);
            let usable = usable.filter(|interface| device.as_ref().is_none_or(|name| interface.name == *name));
            let own = usable.flat_map(|interface| &interface.addresses).copied();
            let own: Vec<_> = own.filter(|own| own.is_ipv4() == local.is_ipv4()).collect();
            let before = self.interface_sync.configured.insert(id, own.clone());
            if before.as_ref().is_none_or(|before| *before == own) {
                continue;
            }
            let target = if local.ip().is_unspecified() || own.contains(&local.ip()) {
                Some(local.ip()).filter(|_| !own.is_empty())
            } else {
                own.iter().copied().find(|own| device.is_some() && !is_link_local(*own))
            };
            match target {
                Some(target) => match self.driver.rebind_link(now, id, target, None) {
                    Ok(()) => tracing::info!(?device, local = %target, "local addresses changed"),
                    Err(error) => {
                        let (from, on) = (SocketAddr::new(target, local.port()), device.as_deref().unwrap_or("any"));
                        self.interface_sync
                            .path_failures
                            .record(format!("cannot bind to {from} on {on}"), error.to_string());
                        // The next run retries.
                        self.interface_sync.configured.extend(before.map(|before| (id, before)));
                    }
                },
                None => {
                    tracing::info!(?device, %local, "local address removed");
                    self.driver.handle_address_gone(now, id);
                }
            }
        }
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

fn socket_key(candidate: &CandidatePath, port: u16) -> SocketKey {
    SocketKey {
        interface: candidate.interface.clone(),
        ipv6: candidate.local.is_ipv6(),
        port,
        number: candidate.number,
    }
}

/// Returns the path manager's policy for a peer. It leaves out interfaces with configured paths.
fn path_policy(peer: &Peer, auto: &Auto, mut remotes: Vec<SocketAddr>, advertised: Vec<SocketAddr>) -> Policy {
    let more =
        advertised.into_iter().filter(|advertised| peer.pairs == Pairs::FullMesh && !remotes.contains(advertised));
    remotes.extend(more.collect::<Vec<_>>());
    Policy {
        interfaces: auto.interfaces.clone(),
        taken: peer.paths.iter().filter_map(|path| path.interface.as_deref().cloned()).collect(),
        remotes,
        pairs: peer.pairs,
        ports: auto.ports,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Minimum interval: changes come in bursts, and each run costs some system calls. The first of a burst is not delayed.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
