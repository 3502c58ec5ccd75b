//! The sockets of paths in native mode: those of paths that follow the interfaces, those that listen on each local
//! address, and those of configured paths, which follow the addresses of their interfaces.
//!
//! [`super::interface_sync`] calls all of this; it owns the state, too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use mpt_linux::udp::SocketSpec;
use mpt_proto::path::LinkId;
use mpt_proto::path_manager::{CandidatePath, Interface, Pairs};
use mpt_proto::time::Time;

use super::links::Link;
use super::{Daemon, setup};
use crate::Failure;

/// Paths over one interface share their sockets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SocketKey {
    interface: String,
    ipv6: bool,
    port: u16,
    number: u8,
}

impl Daemon {
    /// Returns the socket of a path, and opens it if needed.
    pub(super) fn link(&mut self, candidate: &CandidatePath, port: u16) -> Result<LinkId, Failure> {
        let key = socket_key(candidate, port);
        if let Some(link) = self.interface_sync.links.get(&key) {
            return Ok(*link);
        }
        let spec = SocketSpec {
            local: SocketAddr::new(candidate.local, if candidate.number == 0 { port } else { 0 }),
            device: Some(candidate.interface.clone()),
            ..setup::socket_spec(&self.file)
        };
        let id = self.sockets.allocate_id().ok_or_else(|| Failure::new("too many sockets"))?;
        let opened = Link::open_managed(id, spec, candidate.index).and_then(|link| self.workers.add_link(link));
        opened.inspect_err(|_| self.sockets.release_id(id))?;
        self.interface_sync.links.insert(key, id);
        Ok(id)
    }

    /// Rebinds sockets to another local address if none of their paths uses the current one. Paths of several peers may
    /// differ.
    pub(super) fn rebind_stale(&mut self, now: Time) {
        let mut by_link: BTreeMap<LinkId, Vec<CandidatePath>> = BTreeMap::new();
        for (key, candidate) in self.active_paths() {
            if let Some(link) = self.interface_sync.links.get(&key) {
                by_link.entry(*link).or_default().push(candidate.clone());
            }
        }
        for (link, candidates) in by_link {
            if candidates.iter().any(|candidate| self.workers.is_bound_to(link, candidate.local, candidate.index)) {
                continue;
            }
            let CandidatePath { interface, index, local, .. } = &candidates[0];
            match self.workers.rebind_link(now, link, *local, Some(*index)) {
                Ok(()) => tracing::info!(interface, %local, "socket rebound to another local address"),
                Err(error) => {
                    self.interface_sync
                        .path_failures
                        .record(format!("cannot bind to {local} on {interface}"), error.to_string());
                }
            }
        }
    }

    /// Listens on every local address, and closes the sockets of others.
    pub(super) fn listen(&mut self, now: Time, interfaces: &[Interface]) {
        let all = interfaces.iter().filter(|interface| interface.index != self.interface_sync.tun);
        let port = *self.file.port;
        let free = |own: &&IpAddr| !is_link_local(**own) && !self.sockets.is_bound_to(SocketAddr::new(**own, port));
        let all: BTreeSet<_> = all.flat_map(|interface| &interface.addresses).filter(free).collect();
        let (workers, sockets) = (&mut self.workers, &mut self.sockets);
        self.interface_sync.listening.retain(|address, id| {
            let stays = all.contains(address);
            if !stays {
                tracing::info!(%address, "stopped listening: address removed");
                workers.remove_paths_over(now, *id);
                workers.close_link(*id);
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
            let spec = SocketSpec { local, ..setup::socket_spec(&self.file) };
            match Link::listen(id, spec).and_then(|link| self.workers.add_link(link)) {
                Ok(()) => drop(self.interface_sync.listening.insert(*address, id)),
                Err(error) => {
                    self.sockets.release_id(id);
                    self.interface_sync.path_failures.record(what, error.to_string());
                }
            }
        }
    }

    /// Advertises our addresses to peers with `pairs = "fullmesh"`.
    pub(super) fn advertise_addresses(&mut self, now: Time, interfaces: &[Interface]) {
        let usable = interfaces.iter().filter(|interface| interface.usable).flat_map(|interface| &interface.addresses);
        let at = |own: &IpAddr| SocketAddr::new(*own, *self.file.port);
        let open =
            usable.filter(|own| self.interface_sync.listening.contains_key(*own) || self.sockets.is_bound_to(at(own)));
        let all: Vec<_> = open.map(at).collect();
        for peer in self.file.peers.iter().filter(|peer| peer.connects_to_us() && peer.pairs == Pairs::FullMesh) {
            if let Err(error) = self.workers.advertise_addresses(now, &peer.name, &all) {
                tracing::warn!(peer = %peer.name, %error, "addresses not advertised");
            }
        }
    }

    /// Closes the sockets that no configured path uses.
    pub(super) fn close_unconfigured(&mut self, now: Time) {
        for id in self.sockets.take_unconfigured(&self.file.peers) {
            self.workers.remove_paths_over(now, id);
            self.workers.close_link(id);
            self.interface_sync.configured.remove(&id);
        }
    }

    pub(super) fn close_unused(&mut self) {
        if self.interface_sync.links.is_empty() {
            return;
        }
        let status = self.workers.status();
        let used = |link: LinkId| status.peers.iter().flat_map(|peer| &peer.paths).any(|path| path.link == link);
        let (workers, sockets) = (&mut self.workers, &mut self.sockets);
        self.interface_sync.links.retain(|_, id| {
            let stays = used(*id);
            if !stays {
                workers.close_link(*id);
                sockets.release_id(*id);
            }
            stays
        });
    }

    /// Updates configured sockets: if its address is gone, a socket with an interface is bound to another address of
    /// it. The peer is notified of every change, because it needs a datagram from an address before it can respond
    /// there.
    pub(super) fn sync_configured(&mut self, now: Time, interfaces: &[Interface]) {
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
                Some(target) => match self.workers.rebind_link(now, id, target, None) {
                    Ok(()) => {
                        tracing::info!(interface = device.as_deref().unwrap_or("any"), local = %target, "local addresses changed")
                    }
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
                    let interface = device.as_deref().unwrap_or("any");
                    match local.ip().is_unspecified() {
                        true => tracing::info!(interface, "the interface has no address"),
                        false => tracing::info!(interface, local = %local.ip(), "the local address is gone"),
                    }
                    self.workers.handle_address_gone(now, id);
                }
            }
        }
    }
}

pub(super) fn socket_key(candidate: &CandidatePath, port: u16) -> SocketKey {
    SocketKey {
        interface: candidate.interface.clone(),
        ipv6: candidate.local.is_ipv6(),
        port,
        number: candidate.number,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
