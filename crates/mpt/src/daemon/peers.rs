//! Peers that come, change and go while the tunnel runs: by command, or because a peer asks for a connection.
//!
//! Whatever the cause, a new peer is a configuration that has been read and checked like any other, and a peer changes by
//! being removed and added. Its sequence numbers then begin again, which the other end's resequencer understands.

use ipnet::IpNet;
use mpt_linux::netlink::Netlink;
use mpt_proto::config::PeerConfig;
use mpt_proto::control::{Code, ControlEvent, Pair};
use mpt_proto::path::{DownCause, PathState};
use mpt_proto::peer::PathEvent;
use mpt_proto::time::Time;
use mpt_proto::wire::legacy::Opcode;

use super::{Daemon, control_port, routes, setup};
use crate::Failure;
use crate::config::model::{At, Peer};
use crate::config::{self, File};
use crate::control::Response;
use crate::legacy::model::Connection;
use crate::legacy::toml::{self, Allowed};
use crate::legacy::{LegacySetup, describe, merge, write};

impl Daemon {
    /// Brings a peer into the tunnel.
    ///
    /// # Errors
    /// What the system refused; the tunnel is then without it.
    pub(super) fn add_peer(&mut self, now: Time, peer: Peer) -> Result<(), Failure> {
        let ready = setup::prepare_peers(&self.file, vec![peer], &mut self.sockets)?;
        self.add_prepared(now, ready)
    }

    /// Brings peers into the tunnel whose sockets are open.
    ///
    /// # Errors
    /// What the system refused.
    pub(super) fn add_prepared(&mut self, now: Time, peers: Vec<(Peer, PeerConfig)>) -> Result<(), Failure> {
        for link in self.sockets.take_new() {
            self.driver.add_link(link)?;
        }
        for (peer, config) in peers {
            self.driver.endpoint.add_peer(now, &config);
            if let Some(port) = &mut self.control_port {
                port.add(&peer);
            }
            tracing::info!(peer = %peer.name, paths = peer.paths.len(), "peer added");
            self.file.peers.push(peer);
        }
        self.metering.configure(&self.file);
        self.interface_sync.schedule(now);
        self.resync_interfaces(now);
        Ok(())
    }

    /// Takes the peer at `index` out of the tunnel.
    pub(super) fn remove_peer(&mut self, now: Time, index: usize) -> Peer {
        self.metering.count_final(now, &mut self.driver.endpoint);
        let peer = self.file.peers.remove(index);
        self.driver.endpoint.remove_peer(&peer.name);
        self.forget_peer_paths(&peer.name);
        self.interface_sync.schedule(now);
        if let Some(port) = &mut self.control_port {
            port.remove(&peer);
        }
        tracing::info!(peer = %peer.name, "peer removed");
        peer
    }

    /// Sets and removes routes as the peers want it.
    pub(super) fn apply_routes(&mut self, routes: Vec<At<IpNet>>) -> Result<(), Failure> {
        self.file.routes = routes;
        Ok(self.routes.apply(&self.file, &mut Netlink::open()?)?)
    }

    /// Tells the peer what became of a path of its, where that is this host's doing or finding.
    pub(super) fn notify_peer(&mut self, now: Time, name: &str, event: &PathEvent) {
        let Some(port) = &mut self.control_port else { return };
        let Some(up) = status_to_announce(event.from, event.to) else { return };
        let Some(peer) = self.file.peers.iter().find(|peer| *peer.name == name) else { return };
        let Some(path) = peer.paths.iter().find(|path| *path.name == event.path) else { return };
        let told = self.driver.endpoint.peers().iter().find(|peer| peer.name() == name);
        let states = told.map_or_else(Vec::new, |peer| peer.status().paths);
        port.notify(now, peer, path, up, |name| states.iter().any(|path| path.name == name && path.state.is_up()));
    }

    /// Does what came of the control port's messages, and says when it needs to be looked at again.
    pub(super) fn serve_control_port(&mut self, now: Time) -> Option<Time> {
        while let Some(event) = self.control_port.as_mut()?.poll_event(now) {
            self.handle_event(now, event);
        }
        self.control_port.as_mut()?.flush()
    }

    fn handle_event(&mut self, now: Time, event: ControlEvent) {
        match event {
            ControlEvent::PathStatus { connection, path, up } => self.apply_path_status(now, connection, path, up),
            ControlEvent::Keepalive { connection, path } => self.apply_path_status(now, connection, path, true),
            ControlEvent::StatusConfirmed { connection } => {
                tracing::debug!(peer = %connection.remote, "the peer was told")
            }
            ControlEvent::CreateRequested { connection, from, text } => {
                let made = self.create_connection(now, connection, &text);
                match &made {
                    Ok(_) => tracing::info!(%from, peer = %connection.remote, "connection created"),
                    Err(code) => tracing::warn!(%from, peer = %connection.remote, %code, "no connection created"),
                }
                if let Some(port) = &mut self.control_port {
                    port.control().answer_create(connection, made.as_deref().map_err(|code| *code));
                }
            }
            ControlEvent::Created { connection, text } => {
                let joined = self.apply_answer(now, connection, &text);
                self.answer_create(connection, joined.map_or_else(Response::from, |()| Response::Done {}));
            }
            ControlEvent::ExchangeFailed { connection, opcode, code } => {
                if opcode == Opcode::Create {
                    let failure = Failure::new(format!("the connection was not created: {code}"));
                    self.answer_create(connection, failure.hint(hint(code)).into());
                } else {
                    tracing::warn!(peer = %connection.remote, %code, "the peer could not be told of a path");
                }
            }
        }
    }

    fn apply_path_status(&mut self, now: Time, pair: Pair, path: mpt_proto::control::LegacyPath, up: bool) {
        let Some(index) = self.peer_of(pair) else { return };
        let peer = &self.file.peers[index];
        for ours in peer.paths.iter().filter(|ours| control_port::wire_name(ours) == Some(path)) {
            self.driver.endpoint.handle_report(now, &peer.name, &ours.name, up);
        }
    }

    pub(super) fn peer_of(&self, pair: Pair) -> Option<usize> {
        let is_it = |peer: &Peer| peer.original.as_ref().is_some_and(|o| control_port::pair(o) == pair);
        self.file.peers.iter().position(is_it)
    }

    /// Makes this host's side of a connection that a peer asks for; its description, as the peer wants it.
    fn create_connection(&mut self, now: Time, pair: Pair, text: &str) -> Result<String, Code> {
        let peer = Connection::from_message("peer", text).map_err(|_| Code::NO_CONNECTION)?;
        let interface = describe::interface(&self.file);
        let original = self.file.original.as_ref().ok_or(Code::NO_CONNECTION)?;
        let template = original.template.as_ref().ok_or(Code::NO_CONNECTION)?;
        let is_taken = |port: &u16| self.file.peers.iter().any(|peer| *peer.local_port == *port);
        let local_port =
            (template.local_port.max(1)..=u16::MAX).find(|port| !is_taken(port)).ok_or(Code::NO_CONNECTION)?;
        let template = Connection { local_port, local_cmd_port: original.control_port, ..template.clone() };
        let tunnel = interface.tunnels.last().ok_or(Code::NO_CONNECTION)?;
        let key = template.auth_key.clone();
        let made = merge::for_peer(&template, &peer, tunnel, key)?;
        // What was authenticated is a message about these two addresses, so the text must be about them too.
        if (made.ip_local, made.ip_remote) != (Some(pair.local), Some(pair.remote)) {
            return Err(Code::NO_CONNECTION);
        }
        let described = write::message(&made);
        self.check_overlap(&made).and_then(|()| self.add_connection(now, made)).map_err(|failure| {
            tracing::warn!(%failure, "no connection created");
            Code::NO_CONNECTION
        })?;
        Ok(described)
    }

    /// Makes our side of a connection agree with what the peer has made of it.
    fn apply_answer(&mut self, now: Time, pair: Pair, text: &str) -> Result<(), Failure> {
        let index = self.peer_of(pair).ok_or_else(|| Failure::new("the connection is gone meanwhile"))?;
        let own = describe::connection(&self.file, &self.file.peers[index]);
        let answer = Connection::from_message("the peer's answer", text).ok();
        let both = own.zip(answer).and_then(|(own, answer)| merge::with_answer(&own, &answer).ok());
        let both = both.ok_or_else(|| Failure::new("the peer's answer does not describe this connection"))?;
        let before = self.remove_peer(now, index);
        match self.add_connection(now, both) {
            Ok(()) => self.apply_routes(routes::routes_without(&self.file, &before)),
            Err(failure) => {
                // What worked before works on.
                let again = self.add_peer(now, before).and_then(|()| self.apply_routes(self.file.routes.clone()));
                if let Err(failure) = again {
                    tracing::error!(%failure, "the connection is gone");
                }
                Err(failure)
            }
        }
    }

    /// Brings a connection into the tunnel, as a peer that has been read and checked like one from a file.
    fn add_connection(&mut self, now: Time, connection: Connection) -> Result<(), Failure> {
        let name = free_name(&connection, &self.file.peers);
        let (peer, routes) = self.parse_connection(Connection { name, ..connection })?;
        let mut whole = self.file.clone();
        whole.peers.push(peer.clone());
        config::check(&whole).map_err(first_problem)?;
        self.add_peer(now, peer)?;
        let before = self.file.routes.clone();
        let more = routes.into_iter().filter(|net| !before.iter().any(|known| known.value == net.value));
        self.apply_routes(before.iter().copied().chain(more).collect()).inspect_err(|_| {
            // Without its routes it is of no use.
            self.remove_peer(now, self.file.peers.len() - 1);
            if let Err(failure) = self.apply_routes(before) {
                tracing::warn!(%failure, "routes");
            }
        })
    }

    /// Refuses networks that belong to a peer already, as a whole or in part. A peer for everything leaves room for others.
    fn check_overlap(&self, connection: &Connection) -> Result<(), Failure> {
        let (peer, _) = self.parse_connection(connection.clone())?;
        let all = self.file.peers.iter().flat_map(|peer| &peer.networks).map(|net| net.value);
        let all: Vec<IpNet> = all.filter(|net| net.prefix_len() > 0).collect();
        let taken = |net: &IpNet| all.iter().any(|other| other.contains(net) || net.contains(other));
        match peer.networks.iter().find(|net| taken(net)) {
            Some(net) => Err(Failure::new(format!("the network {net} is another peer's, or has a part of it"))),
            None => Ok(()),
        }
    }

    /// A connection as a peer, and the routes that it needs.
    pub(super) fn parse_connection(&self, connection: Connection) -> Result<(Peer, Vec<At<IpNet>>), Failure> {
        let interface = describe::interface(&self.file);
        let setup = LegacySetup { interface, connections: vec![connection], template: None, notes: Vec::new() };
        let text = toml::write(&setup, Allowed::default(), None).text;
        let File { mut peers, routes, .. } = config::parse(&self.file.path, &text).map_err(first_problem)?;
        let peer = peers.pop().ok_or_else(|| Failure::new("no connection"))?;
        Ok((peer, routes))
    }
}

/// A connection's own name, cut to what a peer's may be, or that of its file if another peer is called so.
fn free_name(connection: &Connection, peers: &[Peer]) -> String {
    let own = toml::peer_name(&connection.name);
    match peers.iter().any(|peer| *peer.name == own) {
        true => connection.file.trim_end_matches(".conf").to_owned(),
        false => own,
    }
}

/// The first of several problems; where they come from there is no file to look at.
fn first_problem(problems: Vec<config::Problem>) -> Failure {
    let what = problems.into_iter().next().map_or_else(String::new, |problem| problem.what);
    Failure::new(what)
}

/// What the peer is told of a change, as the original tells it: what this host did or found out, not what it was told, and
/// not that keepalives are heard again, because the peer hears ours.
fn status_to_announce(from: PathState, to: PathState) -> Option<bool> {
    let ours = |state: PathState| matches!(state, PathState::Down(DownCause::Operator | DownCause::Carrier));
    match (from, to) {
        (from, to) if ours(to) => (!ours(from)).then_some(false),
        (PathState::Up, PathState::Down(DownCause::Silent)) => Some(false),
        (from, PathState::Up | PathState::Down(DownCause::Peer)) if ours(from) => Some(true),
        _ => None,
    }
}

fn hint(code: Code) -> &'static str {
    match code {
        Code::TIMEOUT => "is the peer up, its control port reachable, accept_remote = 1, and the key the same?",
        Code::AUTHENTICATION => "the keys of both ends must be the same",
        Code::EXISTS => "the peer has this connection; mpt restart uses it",
        _ => "the peer's log may say more",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_agree_as_far_as_a_peers_name_goes_are_told_apart() {
        let named = |end: &str| format!("the_boat_of_the_harbour_master_{end}");
        let text = format!("[connection]\nip_ver = 4\nname = {}\nip_remote = 10.77.0.3\n", named("second"));
        let second =
            Connection { file: "peer_10_77_0_3.conf".into(), ..Connection::from_message("peer", &text).unwrap() };
        let own = toml::peer_name(&named("second"));
        assert_eq!((own.clone(), own.len()), (toml::peer_name(&named("several")), 32));
        assert_eq!(free_name(&second, &[]), own);

        let file = "mode = 'plain'\naddress = ['10.77.0.1/24']\n[[peer]]\nname = 'NAME'\n[[peer.path]]\nremote = '192.0.2.1'\n";
        let first = config::parse("a.toml".as_ref(), &file.replace("NAME", &own)).unwrap();
        assert_eq!(free_name(&second, &first.peers), "peer_10_77_0_3");
    }

    #[test]
    fn the_peer_is_told_of_what_this_host_does_or_finds() {
        let down = PathState::Down;
        for (from, to, told) in [
            (PathState::Up, down(DownCause::Operator), Some(false)),
            (PathState::Up, down(DownCause::Carrier), Some(false)),
            (PathState::Up, down(DownCause::Silent), Some(false)),
            (down(DownCause::Peer), down(DownCause::Operator), Some(false)),
            (down(DownCause::Operator), PathState::Up, Some(true)),
            (down(DownCause::Carrier), down(DownCause::Peer), Some(true)),
            (PathState::Up, down(DownCause::Peer), None),
            (down(DownCause::Peer), PathState::Up, None),
            (down(DownCause::Silent), PathState::Up, None),
            (down(DownCause::Carrier), down(DownCause::Silent), None),
            (down(DownCause::Operator), down(DownCause::Carrier), None),
        ] {
            assert_eq!(status_to_announce(from, to), told, "{from} -> {to}");
        }
    }
}
