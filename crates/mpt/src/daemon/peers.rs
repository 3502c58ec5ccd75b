//! Adds, changes and removes peers while the tunnel runs: by command, or when a peer requests a connection.
//!
//! In every case a new peer is a configuration that is parsed and checked like any other, and a change is a removal and
//! an addition. Its sequence numbers then restart, which the remote resequencer detects.

use crate::daemon::workers::Workers;
use ipnet::IpNet;
use mpt_linux::netlink::Netlink;
use mpt_proto::PeerError;
use mpt_proto::config::PeerConfig;
use mpt_proto::legacy::control::{AddressPair, Code, ControlEvent, LegacyPath};
use mpt_proto::peer::PathEvent;
use mpt_proto::time::Time;
use mpt_proto::wire::frame::CloseFrame;

use super::{Daemon, control_port, pending, routes, setup};
use crate::Failure;
use crate::config::model::{At, Peer};
use crate::config::{self, File, describe};
use crate::legacy::model::ConnectionConfig;
use crate::legacy::toml::{self, Allowed};
use crate::legacy::{LegacySetup, merge, write};

/// The reason for which this end closes the session with a peer that it removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    Removed,
    /// It is added again at once, maybe with other settings.
    Restarts,
}

impl CloseReason {
    fn frame(self) -> (u16, &'static str) {
        match self {
            Self::Removed => (CloseFrame::REMOVED, ""),
            Self::Restarts => (CloseFrame::STOPPING, "it starts again at once"),
        }
    }
}

impl Daemon {
    /// Adds a peer.
    ///
    /// # Errors
    /// The system refused a change; the peer is not added.
    pub(super) fn add_peer(&mut self, now: Time, peer: Peer) -> Result<(), Failure> {
        let ready = setup::prepare_peers(&self.file, vec![peer], &mut self.sockets)?;
        self.add_prepared(now, ready)
    }

    /// Adds peers whose sockets are open.
    ///
    /// # Errors
    /// The system refused a change.
    pub(super) fn add_prepared(&mut self, now: Time, peers: Vec<(Peer, PeerConfig)>) -> Result<(), Failure> {
        for link in self.sockets.take_new() {
            self.workers.add_link(link)?;
        }
        self.workers.add_peers(now, peers.iter().map(|(_, config)| config));
        for (peer, _) in peers {
            if let Some(port) = &mut self.control_port {
                port.add(&peer);
            }
            tracing::info!(peer = %peer.name, paths = peer.paths.len(), "peer added");
            self.file.peers.push(peer);
        }
        self.add_tls_paths(now)?;
        self.metering.configure(&self.file);
        self.configure_server_lists(now);
        self.interface_sync.schedule(now);
        self.resync_interfaces(now);
        Ok(())
    }

    /// Removes the peer at `index`, and closes its session for this reason.
    pub(super) fn remove_peer(&mut self, now: Time, index: usize, reason: CloseReason) -> Peer {
        self.metering.count_final(now, &mut self.workers);
        let peer = self.file.peers.remove(index);
        if let Some(index) = self.workers.index_of(&peer.name) {
            let (code, text) = reason.frame();
            self.workers.close(now, index, code, text);
        }
        if let Err(error) = self.workers.remove_peer(&peer.name) {
            tracing::warn!(peer = %peer.name, %error, "peer not removed");
        }
        if let Some((source, key)) = self.peer_source.as_mut().zip(peer.protocol.public_key()) {
            source.on_peer_removed(&key);
        }
        self.end_path_tests_of(&peer.name);
        self.forget_peer_paths(&peer.name);
        self.forget_session_routes(&peer.name);
        self.path_changes.forget(&peer.name);
        self.remove_tls_paths(now, &peer.name);
        self.interface_sync.schedule(now);
        if let Some(port) = &mut self.control_port {
            port.remove(&peer);
        }
        tracing::info!(peer = %peer.name, "peer removed");
        peer
    }

    /// Adds and removes routes for the current peers.
    pub(super) fn apply_routes(&mut self, routes: Vec<At<IpNet>>) -> Result<(), Failure> {
        self.file.routes = routes;
        self.routes.apply(&self.file, &mut Netlink::open()?)?;
        self.interface_sync.on_default_routes_changed();
        self.sync_gateway()?;
        self.watch_tables(self.workers.now())
    }

    /// Notifies the peer of a path's change, if this host caused or detected it. The original does not announce the
    /// return of keepalives, because it takes ours as a report; a peer like this one waits for the report.
    pub(super) fn notify_peer(&mut self, now: Time, name: &str, event: &PathEvent) {
        let Some(port) = &mut self.control_port else { return };
        let Some(up) = event.own_view else { return };
        let Some(peer) = self.file.peers.iter().find(|peer| *peer.name == name) else { return };
        let Some(path) = peer.paths.iter().find(|path| *path.name == event.path) else { return };
        let status = self.workers.peers().find(|peer| peer.name() == name);
        let states = status.map_or_else(Vec::new, |peer| peer.status().paths);
        port.notify(now, peer, path, up, |name| states.iter().any(|path| path.name == name && path.state.is_up()));
    }

    /// Handles the events of the control port, and returns its next deadline.
    pub(super) fn serve_control_port(&mut self, now: Time) -> Option<Time> {
        while let Some(event) = self.control_port.as_mut()?.poll_event(now) {
            self.handle_event(now, event);
        }
        self.control_port.as_mut()?.flush()
    }

    fn handle_event(&mut self, now: Time, event: ControlEvent) {
        match event {
            ControlEvent::PathStatus { connection, path, up } => {
                self.each_path(connection, path, |workers, peer, path| workers.handle_report(now, peer, path, up));
            }
            ControlEvent::Keepalive { connection, path } => {
                self.each_path(connection, path, |workers, peer, path| workers.handle_keepalive(now, peer, path));
            }
            ControlEvent::StatusConfirmed { connection, path } => {
                tracing::debug!(peer = %connection.remote, "peer notified");
                self.end_exchange((connection, Some(path)), &Ok(()));
            }
            ControlEvent::CreateRequested { connection, from, text } => {
                let created = self.create_connection(now, connection, &text);
                match &created {
                    Ok(_) => tracing::info!(%from, peer = %connection.remote, "connection created"),
                    Err(code) => tracing::warn!(%from, peer = %connection.remote, %code, "connection not created"),
                }
                if let Some(port) = &mut self.control_port {
                    port.control().answer_create(connection, created.as_deref().map_err(|code| *code));
                }
            }
            ControlEvent::Created { connection, text } => {
                let result = self.apply_answer(now, connection, &text);
                self.end_exchange((connection, None), &result);
            }
            ControlEvent::ExchangeFailed { connection, path: Some(path), code, .. } => {
                tracing::warn!(peer = %connection.remote, %code, "cannot notify the peer of a path's state");
                self.end_exchange((connection, Some(path)), &Err(pending::status_failure(path, code)));
            }
            ControlEvent::ExchangeFailed { connection, path: None, code, .. } => {
                let failure = Failure::new(format!("the connection was not created: {code}"));
                self.end_exchange((connection, None), &Err(failure.hint(pending::create_hint(code))));
            }
        }
    }

    /// Applies a message of the peer to the paths that it names.
    fn each_path(
        &mut self,
        pair: AddressPair,
        path: LegacyPath,
        mut apply: impl FnMut(&mut Workers, &str, &str) -> Result<(), PeerError>,
    ) {
        let Some(index) = self.peer_of(pair) else { return };
        let peer = &self.file.peers[index];
        for local in peer.paths.iter().filter(|local| control_port::wire_name(local) == Some(path)) {
            if let Err(error) = apply(&mut self.workers, &peer.name, &local.name) {
                tracing::warn!(peer = %peer.name, path = %local.name, %error, "path state not applied");
            }
        }
    }

    pub(super) fn peer_of(&self, pair: AddressPair) -> Option<usize> {
        let is_it = |peer: &Peer| peer.original.as_ref().is_some_and(|o| control_port::pair(o) == pair);
        self.file.peers.iter().position(is_it)
    }

    /// Creates this host's side of a requested connection. Returns its description for the peer.
    fn create_connection(&mut self, now: Time, pair: AddressPair, text: &str) -> Result<String, Code> {
        let peer = ConnectionConfig::from_message("peer", text).map_err(|_| Code::NO_CONNECTION)?;
        let interface = describe::interface(&self.file);
        let original = self.file.original.as_ref().ok_or(Code::NO_CONNECTION)?;
        let template = original.template.as_ref().ok_or(Code::NO_CONNECTION)?;
        let is_taken = |port: &u16| self.file.peers.iter().any(|peer| *peer.local_port == *port);
        let local_port =
            (template.local_port.max(1)..=u16::MAX).find(|port| !is_taken(port)).ok_or(Code::NO_CONNECTION)?;
        let template = ConnectionConfig { local_port, local_cmd_port: original.control_port, ..template.clone() };
        let tunnel = interface.tunnels.last().ok_or(Code::NO_CONNECTION)?;
        let key = template.auth_key.clone();
        let connection = merge::for_peer(&template, &peer, tunnel, key)?;
        // The authenticated message names these two addresses, so the text must have the same.
        if (connection.ip_local, connection.ip_remote) != (Some(pair.local), Some(pair.remote)) {
            return Err(Code::NO_CONNECTION);
        }
        let described = write::message(&connection);
        self.check_overlap(&connection).and_then(|()| self.add_connection(now, connection)).map_err(|failure| {
            tracing::warn!(%failure, "connection not created");
            Code::NO_CONNECTION
        })?;
        Ok(described)
    }

    /// Updates our side of a connection with the peer's answer.
    fn apply_answer(&mut self, now: Time, pair: AddressPair, text: &str) -> Result<(), Failure> {
        let index = self.peer_of(pair).ok_or_else(|| Failure::new("the connection was removed meanwhile"))?;
        let own = describe::connection(&self.file, &self.file.peers[index]);
        let answer = ConnectionConfig::from_message("the peer's answer", text).ok();
        let both = own.zip(answer).and_then(|(own, answer)| merge::with_answer(&own, &answer).ok());
        let both = both.ok_or_else(|| Failure::new("the peer's answer does not describe this connection"))?;
        let before = self.remove_peer(now, index, CloseReason::Restarts);
        match self.add_connection(now, both) {
            Ok(()) => self.apply_routes(routes::routes_without(&self.file, &before)),
            Err(failure) => {
                // Restores the previous connection.
                let restored = self.add_peer(now, before).and_then(|()| self.apply_routes(self.file.routes.clone()));
                if let Err(failure) = restored {
                    tracing::error!(%failure, "cannot restore the connection");
                }
                Err(failure)
            }
        }
    }

    /// Adds a connection as a peer that is parsed and checked like one from a file.
    fn add_connection(&mut self, now: Time, connection: ConnectionConfig) -> Result<(), Failure> {
        let name = free_name(&connection, &self.file.peers);
        let (mut peer, routes) = self.parse_connection(ConnectionConfig { name, ..connection })?;
        if let Some(original) = &mut peer.original {
            original.created = true;
        }
        let mut whole = self.file.clone();
        whole.peers.push(peer.clone());
        config::check(&whole).map_err(first_problem)?;
        self.add_peer(now, peer)?;
        let before = self.file.routes.clone();
        let more = routes.into_iter().filter(|net| !before.iter().any(|known| known.value == net.value));
        self.apply_routes(before.iter().copied().chain(more).collect()).inspect_err(|_| {
            // Without its routes it is unusable.
            self.remove_peer(now, self.file.peers.len() - 1, CloseReason::Removed);
            if let Err(failure) = self.apply_routes(before) {
                tracing::warn!(%failure, "routes");
            }
        })
    }

    /// Rejects networks that overlap with a network of another peer. A peer with the default network does not count.
    fn check_overlap(&self, connection: &ConnectionConfig) -> Result<(), Failure> {
        let (peer, _) = self.parse_connection(connection.clone())?;
        let all = self.file.peers.iter().flat_map(|peer| &peer.networks).map(|net| net.value);
        let all: Vec<IpNet> = all.filter(|net| net.prefix_len() > 0).collect();
        let taken = |net: &IpNet| all.iter().any(|other| other.contains(net) || net.contains(other));
        match peer.networks.iter().find(|net| taken(net)) {
            Some(net) => Err(Failure::new(format!("the network {net} overlaps with a network of another peer"))),
            None => Ok(()),
        }
    }

    /// Converts a connection to a peer and its routes.
    pub(super) fn parse_connection(&self, connection: ConnectionConfig) -> Result<(Peer, Vec<At<IpNet>>), Failure> {
        let interface = describe::interface(&self.file);
        let setup = LegacySetup { interface, connections: vec![connection], template: None, notes: Vec::new() };
        let text = toml::write(&setup, Allowed::default(), None).text;
        let File { mut peers, routes, .. } = config::parse(&self.file.path, &text).map_err(first_problem)?;
        let peer = peers.pop().ok_or_else(|| Failure::new("no connection"))?;
        Ok((peer, routes))
    }
}

/// Returns the connection's name, truncated to the limit for peers, or that of its file if another peer has the name.
fn free_name(connection: &ConnectionConfig, peers: &[Peer]) -> String {
    let own = toml::peer_name(&connection.name);
    match peers.iter().any(|peer| *peer.name == own) {
        true => connection.file.trim_end_matches(".conf").to_owned(),
        false => own,
    }
}

/// Returns the first of several problems, without a location: there is no file.
fn first_problem(problems: Vec<config::Problem>) -> Failure {
    let what = problems.into_iter().next().map_or_else(String::new, |problem| problem.what);
    Failure::new(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_common_truncation_become_unique() {
        let named = |end: &str| format!("the_boat_of_the_harbour_master_{end}");
        let text = format!("[connection]\nip_ver = 4\nname = {}\nip_remote = 10.77.0.3\n", named("second"));
        let second = ConnectionConfig {
            file: "peer_10_77_0_3.conf".into(),
            ..ConnectionConfig::from_message("peer", &text).unwrap()
        };
        let own = toml::peer_name(&named("second"));
        assert_eq!((own.clone(), own.len()), (toml::peer_name(&named("several")), 32));
        assert_eq!(free_name(&second, &[]), own);

        let file = "mode = 'plain'\naddress = ['10.77.0.1/24']\n[[peer]]\nname = 'NAME'\n[[peer.path]]\nremote = '192.0.2.1'\n";
        let first = config::parse("a.toml".as_ref(), &file.replace("NAME", &own)).unwrap();
        assert_eq!(free_name(&second, &first.peers), "peer_10_77_0_3");
    }
}
