//! Executes commands other than `status` and `down`: the original's `addr`, `int`, `path`, `reload`, `restart`,
//! `delete`, `save` and `create`, which support peers of every kind as far as possible.
//!
//! A connection is named by its file, as in the original, or by the peer's name.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use mpt_linux::netlink::{Change, Link, Netlink, Prefix};
use mpt_proto::PeerError;
use mpt_proto::config::PeerConfig;
use mpt_proto::legacy::control::Refused;
use mpt_proto::time::Time;

use super::config_files::Reread;
use super::peers::CloseReason;
use super::{Daemon, control_port, routes, server_lists, setup};
use crate::Failure;
use crate::config::model::{At, FileFormat, Mode, OriginalPeer, Peer};
use crate::config::{self, File, describe};
use crate::control::{Action, ClientToken, EventKind, PAGE, Request, Response};
use crate::legacy::write;
use crate::secrets;

impl Daemon {
    /// Executes a request. Returns `None` if the response follows after the peer's answer.
    pub(super) fn handle_request(&mut self, now: Time, client: ClientToken, request: &Request) -> Option<Response> {
        let done = match request {
            Request::Status { first, count } => {
                // Packets pass between two pages.
                return Some(Response::Status(self.status_report(now, *first, count.unwrap_or(PAGE).min(PAGE))));
            }
            Request::PeerStatus { peer } => {
                let index = self.workers.index_of(peer);
                let report = index.map(|index| Response::Status(self.status_report(now, index, 1)));
                return Some(report.unwrap_or_else(|| {
                    Failure::new(format!("there is no peer {peer}")).hint("`mpt peer list` lists them").into()
                }));
            }
            Request::Watch {} | Request::Down {} => Ok(()),
            Request::Path { peer, path, action } => {
                return self.set_paths(now, client, vec![(peer.clone(), path.clone())], *action);
            }
            Request::Test { peer, path } => {
                let started = self.start_path_test(now, client, peer, path);
                return started.err().map(Response::from);
            }
            Request::Ends { local, remote, action } => match self.paths_between(*local, *remote) {
                Ok(names) => return self.set_paths(now, client, names, *action),
                Err(failure) => Err(failure),
            },
            Request::Address { action, address, length, interface } => {
                self.set_address(*action, Prefix { address: *address, length: *length }, interface)
            }
            Request::Interface { interface, action } => self.set_interface(now, interface, *action),
            Request::Bypass { seconds } => self.set_bypass(now, *seconds),
            Request::Reload { connection } => self.reload(now, connection.as_deref()),
            Request::Restart { connection } => self.restart(now, connection.as_deref()),
            Request::Delete { connection } => self.delete(now, connection),
            Request::Save { connection } => self.save(connection.as_deref()),
            Request::Create { connection } => {
                let result = self.create(now, client, connection);
                return result.err().map(Response::from);
            }
        };
        Some(done.map_or_else(Response::from, |()| Response::Done {}))
    }

    /// Removes a peer, and responds to clients that wait for it.
    fn end_peer(&mut self, now: Time, index: usize, reason: CloseReason) -> Peer {
        let peer = self.remove_peer(now, index, reason);
        if let Some(original) = &peer.original {
            self.end_exchanges_of(control_port::pair(original));
        }
        peer
    }

    fn set_path(&mut self, now: Time, peer: &str, path: &str, action: Action) -> Result<(), Failure> {
        if action == Action::Up {
            self.metering.check_may_go_up(peer, path)?;
        }
        self.workers.enable_path(now, peer, path, action == Action::Up).map_err(|error| {
            let what = match error {
                PeerError::NoSuchPeer => format!("there is no peer {peer}"),
                PeerError::NoSuchPath => format!("there is no path {path} to the peer {peer}"),
                PeerError::NotNative
                | PeerError::NoAddress
                | PeerError::NoSlot
                | PeerError::PathDown
                | PeerError::Busy => error.to_string(),
            };
            Failure::new(what).hint("mpt path list")
        })
    }

    /// Takes paths up or down. Responds at once, or when the peers that run the original have confirmed it.
    fn set_paths(
        &mut self,
        now: Time,
        client: ClientToken,
        names: Vec<(String, String)>,
        action: Action,
    ) -> Option<Response> {
        if let Err(failure) = names.iter().try_for_each(|(peer, path)| self.set_path(now, peer, path, action)) {
            return Some(failure.into());
        }
        self.process_path_events(now);
        let awaited = self.status_changes(&names);
        if awaited.is_empty() {
            return Some(Response::Done {});
        }
        self.respond_after(client, awaited);
        None
    }

    /// Returns the paths between two addresses, as the original names paths.
    fn paths_between(&self, local: IpAddr, remote: IpAddr) -> Result<Vec<(String, String)>, Failure> {
        let all = self.file.peers.iter().flat_map(|peer| peer.paths.iter().map(move |path| (peer, path)));
        let between = all.filter(|(_, path)| path.public() == Some(local) && path.remote_ip() == Some(remote));
        let names: Vec<_> = between.map(|(peer, path)| (peer.name.to_string(), path.name.to_string())).collect();
        if names.is_empty() {
            return Err(Failure::new(format!("there is no path from {local} to {remote}")).hint("mpt path list"));
        }
        Ok(names)
    }

    /// Takes an interface with all its paths up or down. The paths go down first, so that the peers can still be
    /// notified.
    fn set_interface(&mut self, now: Time, name: &str, action: Action) -> Result<(), Failure> {
        let mut netlink = Netlink::open()?;
        let link = self.own_interface(name, &mut netlink)?;
        let up = action == Action::Up;
        if up {
            netlink.set_up(link.index, true)?;
        }
        for (peer, path) in self.paths_over(name, &netlink.addresses(link.index)?) {
            if self.metering.is_stopped(&peer, &path) {
                continue;
            }
            // The endpoint has no path that waits for the peer's first datagram.
            let _ = self.workers.enable_path(now, &peer, &path, up);
        }
        if !up {
            self.process_path_events(now);
            self.serve_control_port(now);
            netlink.set_up(link.index, false)?;
        } else if let Err(failure) = self.routes.apply(&self.file, &mut netlink) {
            tracing::warn!(%failure, "routes");
        }
        Ok(())
    }

    fn set_address(&mut self, action: Action, prefix: Prefix, interface: &str) -> Result<(), Failure> {
        let mut netlink = Netlink::open()?;
        let index = self.own_interface(interface, &mut netlink)?.index;
        let (change, already) = match action {
            Action::Up => (netlink.add_address(index, prefix)?, "has the address"),
            Action::Down => (netlink.remove_address(index, prefix)?, "does not have the address"),
        };
        match change {
            Change::Applied => {
                if index == self.workers.tun_index() {
                    self.interface_sync.on_address_commanded(prefix, action == Action::Up);
                }
                Ok(())
            }
            Change::Unchanged => Err(Failure::new(format!("{interface} {already} {prefix} already"))),
        }
    }

    /// Returns an interface that belongs to the tunnel: its own, or one that a path uses. The control socket gives no
    /// rights to others.
    fn own_interface(&self, name: &str, netlink: &mut Netlink) -> Result<Link, Failure> {
        let none = || Failure::new(format!("there is no interface {name}")).hint("`ip link` lists them");
        let link = netlink.link(name)?.ok_or_else(none)?;
        let is_own = link.index == self.workers.tun_index()
            || self.workers.interfaces().contains(&link.index)
            || !self.paths_over(name, &netlink.addresses(link.index)?).is_empty();
        let foreign = || {
            Failure::new(format!("{name} is neither the interface of this tunnel nor one of its paths"))
                .hint("root changes others with `ip address` and `ip link`")
        };
        is_own.then_some(link).ok_or_else(foreign)
    }

    /// Returns the paths over an interface: bound to it, or to one of its addresses.
    fn paths_over(&self, interface: &str, addresses: &[Prefix]) -> Vec<(String, String)> {
        let by_address = |local: &IpAddr| addresses.iter().any(|prefix| prefix.address == *local);
        let all = self.file.peers.iter().flat_map(|peer| peer.paths.iter().map(move |path| (peer, path)));
        let by_it = all.filter(|(_, path)| match &path.interface {
            Some(name) => **name == interface,
            None => path.local.as_deref().is_some_and(by_address),
        });
        by_it.map(|(peer, path)| (peer.name.to_string(), path.name.to_string())).collect()
    }

    /// Reads the configuration again and restarts one connection or all with it. Without a named connection, unchanged
    /// peers continue undisturbed, except those of the original, which are always restarted. The keys that are fixed at
    /// the start must be unchanged; everything is prepared before anything changes.
    pub(super) fn reload(&mut self, now: Time, connection: Option<&str>) -> Result<(), Failure> {
        self.service.reloading();
        let reloaded = self.read_again(now, connection);
        self.service.ready();
        self.service.on_paths_changed();
        reloaded
    }

    fn read_again(&mut self, now: Time, connection: Option<&str>) -> Result<(), Failure> {
        let Reread { file: mut fresh, identity } = self.config_files.read()?;
        keep_created(&self.file, &mut fresh);
        let groups = server_lists::overlay(&mut fresh, self.server_lists.groups());
        self.check_reloadable(&fresh, connection)?;
        let certificate = self.tls_helper.as_ref().map(|helper| helper.prepare(&fresh, identity)).transpose();
        let certificate = certificate.map_err(nothing_changed)?;
        let same_policy = (*self.file.scheduler, &self.file.rules, &self.file.probe)
            == (*fresh.scheduler, &fresh.rules, &fresh.probe);
        let keeps_unchanged = connection.is_none() && same_policy;
        let is_selected = |peer: &Peer| !same_policy || connection.is_none_or(|name| is_named(peer, name));
        let unchanged = if keeps_unchanged { unchanged_peers(&self.file, &fresh) } else { HashSet::new() };
        let new = |peer: &&Peer| is_selected(peer) && !unchanged.contains(peer.name.as_str());
        let new: Vec<_> = fresh.peers.iter().filter(new).cloned().collect();
        let fresh = merge_reloaded(&self.file, &fresh, is_selected)?;
        let ready = setup::prepare_peers(&fresh, new, &mut self.sockets).map_err(nothing_changed)?;
        while let Some(index) =
            self.file.peers.iter().position(|p| is_selected(p) && !unchanged.contains(p.name.as_str()))
        {
            let returns = fresh.peers.iter().any(|peer| peer.name == self.file.peers[index].name);
            self.end_peer(now, index, if returns { CloseReason::Restarts } else { CloseReason::Removed });
        }
        self.server_lists.set_groups(groups);
        let adopted = self.adopt(now, fresh, ready);
        let passed = self.tls_helper.as_mut().map_or(Ok(()), |helper| {
            helper.watch.on_reloaded();
            helper.pass(certificate.flatten())
        });
        adopted.and(passed.map_err(partly_done))
    }

    /// Returns an error if this configuration needs a new start.
    fn check_reloadable(&self, fresh: &File, connection: Option<&str>) -> Result<(), Failure> {
        let hint = "nothing was changed; this takes effect at the next start: mpt down, then mpt up";
        if let Some((line, key)) = changed_startup_key(&self.file, fresh) {
            return Err(fresh.problem(line, format!("{key} cannot change while the tunnel runs"), hint).into());
        }
        if *fresh.mode == Mode::Native && fresh.accepts_incoming() && !self.sockets.can_listen() {
            return Err(fresh
                .problem(0, "the first peer that connects to this host needs the port, which is in use", hint)
                .into());
        }
        connection.map_or(Ok(()), |name| find(fresh, name).map(drop))
    }

    /// Runs with this configuration, after the peers that it replaces have been ended. `ready` are those to add.
    fn adopt(&mut self, now: Time, fresh: File, ready: Vec<(Peer, PeerConfig)>) -> Result<(), Failure> {
        let files: Vec<_> = ready.iter().map(|(peer, _)| peer.clone()).collect();
        self.yield_to_files(&files);
        tracing::info!(added = ready.len(), "configuration reloaded");
        fresh.warnings.iter().for_each(|problem| tracing::warn!("{problem}"));
        let File { peers, original, offload, .. } = self.file.clone();
        let routes = fresh.routes.clone();
        let order: Vec<_> = fresh.peers.iter().map(|peer| peer.name.value.clone()).collect();
        self.file = File { peers, original, offload, ..fresh };
        if let Some(source) = &mut self.peer_source {
            source.on_reload(&self.file);
        }
        self.narrow_peers = None;
        self.add_prepared(now, ready)?;
        self.file.peers.sort_by_key(|peer| order.iter().position(|name| *name == peer.name.value));
        self.configure_server_lists(now);
        self.close_unconfigured(now);
        self.publish(EventKind::Reloaded {});
        self.apply_routes(routes).map_err(partly_done)?;
        match self.bypass_until {
            Some(_) => Ok(()),
            None => self.config_files.set_name_servers(&self.file).map_err(partly_done),
        }
    }

    /// Restarts one connection or all without reading files: every path is up again.
    fn restart(&mut self, now: Time, connection: Option<&str>) -> Result<(), Failure> {
        if let Some(name) = connection {
            find(&self.file, name)?;
        }
        let names: Vec<_> = self.file.peers.iter().map(|peer| peer.name.to_string()).collect();
        for name in names {
            let selected = |p: &Peer| *p.name == name && connection.is_none_or(|name| is_named(p, name));
            if let Some(index) = self.file.peers.iter().position(selected) {
                let ready = setup::prepare_peers(&self.file, vec![self.file.peers[index].clone()], &mut self.sockets)?;
                self.end_peer(now, index, CloseReason::Restarts);
                self.add_prepared(now, ready)?;
            }
        }
        Ok(())
    }

    /// Ends a connection and disables its file.
    fn delete(&mut self, now: Time, connection: &str) -> Result<(), Failure> {
        let index = find(&self.file, connection)?;
        if self.file.format == FileFormat::Original {
            check_own_file(&self.file, &self.file.peers[index])?;
            let name = self.file.peers[index].original.as_ref().map(|original| original.file.clone());
            let renamed = name.map_or(Ok(()), |name| self.config_files.disable(&name));
            renamed.map_err(|error| file_failure(&format!("cannot rename the file of {connection}"), &error))?;
        }
        let gone = self.end_peer(now, index, CloseReason::Removed);
        self.close_unconfigured(now);
        let routes = routes::routes_without(&self.file, &gone);
        self.apply_routes(routes)
    }

    /// Writes one connection or all to their files.
    fn save(&mut self, connection: Option<&str>) -> Result<(), Failure> {
        if self.file.format == FileFormat::Toml {
            let what = format!("commands do not write {}", self.file.path.display());
            return Err(Failure::new(what).hint("edit the file, then `mpt reload`"));
        }
        if let Some(name) = connection {
            find(&self.file, name)?;
        }
        let is_selected = |peer: &&Peer| connection.is_none_or(|name| is_named(peer, name));
        let selected: Vec<_> = self.file.peers.iter().filter(is_selected).collect();
        selected.iter().try_for_each(|peer| check_own_file(&self.file, peer))?;
        for peer in selected {
            let Some(saved) = describe::connection(&self.file, peer) else { continue };
            let file = saved.file.clone();
            let saved = self.config_files.save(saved);
            saved.map_err(|error| file_failure(&format!("cannot write {file}"), &error))?;
        }
        Ok(())
    }

    /// Requests that the peer creates its side of a connection.
    fn create(&mut self, now: Time, client: ClientToken, connection: &str) -> Result<(), Failure> {
        let peer = &self.file.peers[find(&self.file, connection)?];
        let described = describe::connection(&self.file, peer).zip(peer.original.as_ref());
        let (described, original) = described.ok_or_else(|| not_original(connection))?;
        let pair = control_port::pair(original);
        let path_used = peer.paths.iter().find(|path| path.original.create).or(peer.paths.first());
        let to = path_used.and_then(|path| Some(SocketAddr::new(path.remote_ip()?, original.control_port)));
        let (Some(to), Some(port)) = (to, &mut self.control_port) else { return Err(not_original(connection)) };
        let text = write::message(&described);
        port.create(now, pair, to, &text).map_err(|why| match why {
            Refused::PublicKey => Failure::new("this connection has only the public key of the original")
                .hint("set auth_key, or allow it: --public-key, or public_key = true in [original]"),
            _ => Failure::new(format!("cannot send the request to the peer: {why:?}")),
        })?;
        self.respond_after(client, vec![(pair, None)]);
        Ok(())
    }
}

fn nothing_changed(failure: Failure) -> Failure {
    Failure { what: format!("{}; nothing was changed", failure.what), ..failure }
}

fn partly_done(failure: Failure) -> Failure {
    Failure { what: format!("{}; the peers were changed as in the file", failure.what), ..failure }
}

/// Marks the connections that were created at a peer: an original that continues with the public key knows nothing of a
/// reload here.
fn keep_created(running: &File, fresh: &mut File) {
    let created: Vec<_> =
        running.peers.iter().filter_map(|peer| peer.original.as_ref().filter(|o| o.created)).collect();
    for original in fresh.peers.iter_mut().filter_map(|peer| peer.original.as_mut()) {
        let is_it = |known: &&OriginalPeer| control_port::pair(known) == control_port::pair(original);
        original.created = created.iter().copied().any(|known| is_it(&known) && known.key == original.key);
    }
}

/// Returns the fresh file with unselected peers as they are running, and the routes for these peers, without the routes
/// that only their new versions need.
fn merge_reloaded(running: &File, fresh: &File, is_selected: impl Fn(&Peer) -> bool) -> Result<File, Failure> {
    let others: Vec<_> = running.peers.iter().filter(|peer| !is_selected(peer)).cloned().collect();
    let (selected, unselected): (Vec<_>, Vec<_>) = fresh.peers.iter().cloned().partition(|peer| is_selected(peer));
    let serves_others = |route: &&At<IpNet>| routes::serves(running, route, &others);
    let only_later = |route: &&At<IpNet>| {
        routes::serves(fresh, route, &unselected) && !routes::serves(fresh, route, &selected) && !serves_others(route)
    };
    let is_new = |route: &&At<IpNet>| !fresh.routes.iter().any(|known| known.value == route.value);
    let their_routes = running.routes.iter().filter(serves_others).filter(is_new);
    let routes = fresh.routes.iter().filter(|route| !only_later(route)).chain(their_routes).copied().collect();
    let whole =
        File { peers: others.iter().cloned().chain(selected.iter().cloned()).collect(), routes, ..fresh.clone() };
    config::check(&whole).map_err(|problems| {
        let what = problems.first().map_or("", |problem| &problem.what);
        Failure::new(format!("{what}, together with the other connections"))
            .hint("nothing was changed; mpt reload without a name reloads all")
    })?;
    Ok(whole)
}

/// Returns the names of the peers that a reload leaves alone.
fn unchanged_peers(running: &File, fresh: &File) -> HashSet<String> {
    let running: HashMap<&str, &Peer> = running.peers.iter().map(|peer| (peer.name.as_str(), peer)).collect();
    let is_same = |peer: &&Peer| peer.original.is_none() && running.get(peer.name.as_str()) == Some(peer);
    fresh.peers.iter().filter(is_same).map(|peer| peer.name.to_string()).collect()
}

/// Returns the line and name of the first key that takes effect only at the next start and has changed.
fn changed_startup_key(running: &File, fresh: &File) -> Option<(usize, &'static str)> {
    let key = |file: &File| file.identity.as_ref().map(|keys| *keys.public());
    let line = |at: Option<usize>| at.unwrap_or(0);
    let original = |file: &File| file.original.as_ref().map(|o| (o.control_port, o.template.is_some()));
    // A directory of the original lacks what the command line set.
    let allowed = |file: &File| file.original.as_ref().map(|o| (o.unauthenticated, o.public_key));
    let same_allowed = running.format == FileFormat::Original || allowed(running) == allowed(fresh);
    let source = |file: &File| file.peer_source.as_ref().map(|source| source.socket.value.clone());
    let source_line = fresh.peer_source.as_ref().map(|source| source.socket.line);
    // A certificate is renewed while the tunnel runs.
    let tls = |file: &File| file.tls.as_ref().map(|tls| (*tls.listen, tls.path.clone()));
    let is_added = running.tls.is_none() || fresh.tls.is_none();
    let tls_key = if is_added { "[tls]" } else { "listen or path of [tls]" };
    let same_original = same_allowed && original(running) == original(fresh);
    let all = [
        (running.mode == fresh.mode, fresh.mode.line, "mode"),
        (key(running) == key(fresh), 0, "the private key"),
        (running.interface == fresh.interface, fresh.interface.line, "interface"),
        (running.addresses == fresh.addresses, line(fresh.addresses.first().map(|address| address.line)), "address"),
        (running.port == fresh.port, fresh.port.line, "port"),
        (running.workers == fresh.workers, fresh.workers.line, "workers"),
        (running.server_id == fresh.server_id, 0, "server_id"),
        (
            running.session_routes == fresh.session_routes,
            line(fresh.session_routes.as_ref().map(|table| table.line)),
            "session_routes",
        ),
        (running.mtu == fresh.mtu, line(fresh.mtu.as_ref().map(|mtu| mtu.line)), "mtu"),
        (running.masquerade == fresh.masquerade, 0, "masquerade"),
        (running.share.is_empty() == fresh.share.is_empty(), fresh.share.line, "share"),
        (running.delegate == fresh.delegate, line(fresh.delegate.as_ref().map(|net| net.line)), "delegate"),
        (running.delegate.is_none() || running.share == fresh.share, fresh.share.line, "share"),
        (running.forwards.is_empty() == fresh.forwards.is_empty(), 0, "the first or the last [[forward]]"),
        (tls(running) == tls(fresh), line(fresh.tls.as_ref().map(|tls| tls.listen.line)), tls_key),
        (source(running) == source(fresh), line(source_line), "peer_source"),
        (running.reachable.is_empty() == fresh.reachable.is_empty(), 0, "reachable"),
        (same_original, 0, "[original]"),
    ];
    all.into_iter().find(|(same, ..)| !same).map(|(_, line, key)| (line, key))
}

/// Fails if the peer's file holds several connections, as positional files of the original may: it is written
/// and disabled as a whole.
fn check_own_file(file: &File, peer: &Peer) -> Result<(), Failure> {
    let name = |peer: &Peer| peer.original.as_ref().map(|original| original.file.clone());
    let Some(own) = name(peer) else { return Ok(()) };
    let connections = file.peers.iter().filter(|other| name(other).as_ref() == Some(&own));
    let connections: Vec<_> = connections.map(|peer| peer.name.as_str()).collect();
    if connections.len() == 1 {
        return Ok(());
    }
    let what = format!("{own} holds several connections, {}; nothing was changed", connections.join(", "));
    Err(Failure::new(what).hint("give each a file of its own, then `mpt reload`"))
}

fn file_failure(what: &str, error: &io::Error) -> Failure {
    Failure::new(format!("{what}: {error}")).hint(secrets::hint_for(error, "check free space and permissions"))
}

fn not_original(connection: &str) -> Failure {
    Failure::new(format!("{connection} is not a connection of the original MPT"))
        .hint("it needs [peer.original], and the file needs [original]")
}

/// Returns true if `name` is the peer's file or name.
fn is_named(peer: &Peer, name: &str) -> bool {
    *peer.name == name || peer.original.as_ref().is_some_and(|original| original.file == name)
}

fn find(file: &File, name: &str) -> Result<usize, Failure> {
    file.peers.iter().position(|peer| is_named(peer, name)).ok_or_else(|| {
        let known = file.peers.iter().map(|peer| peer.original.as_ref().map_or(&*peer.name, |original| &original.file));
        let known = known.map(String::as_str).collect::<Vec<_>>().join(", ");
        Failure::new(format!("there is no connection {name}")).hint(format!("connections: {known}"))
    })
}
