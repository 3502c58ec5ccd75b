//! The endpoints of all workers as one.
//!
//! A function about a peer is passed to the endpoint that has it, others to all of them. The index of a peer counts
//! over the endpoints, one after the other. A new peer goes to the worker with the fewest, but peers with the same
//! network live at one.

use std::net::SocketAddr;

use ipnet::IpNet;
use mpt_proto::config::{PathConfig, PathRole, PeerConfig};
use mpt_proto::crypto::handshake::Tai64n;
use mpt_proto::crypto::keys::PublicKey;
use mpt_proto::endpoint::{Endpoint, Handover, UnknownKey};
use mpt_proto::peer::{Closed, PathEvent, Peer};
use mpt_proto::stats::{EndpointStatus, PathTestOutcome};
use mpt_proto::time::Time;
use mpt_proto::trace::TraceRecord;
use mpt_proto::{Availability, LinkId, PeerError, ServerEvent, ServerList, ServerListEvent};

use super::Workers;
use crate::Failure;
use crate::control::report::WorkerReport;
use crate::daemon::event_loop::Worker;

/// Peers.
impl Workers {
    /// Returns all peers, in the order of their indexes.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.endpoints().flat_map(|endpoint| endpoint.peers())
    }

    /// Returns the number of peers.
    pub fn peer_count(&self) -> usize {
        self.endpoints().map(|endpoint| endpoint.peers().len()).sum()
    }

    /// Returns the peer of an index.
    pub fn peer(&self, index: usize) -> Option<&Peer> {
        let (worker, local) = self.locate(index)?;
        self.all[worker].endpoint.peers().get(local)
    }

    /// Returns true if a peer has this name.
    pub fn has_peer(&self, name: &str) -> bool {
        self.endpoints().any(|endpoint| endpoint.has_peer(name))
    }

    /// Returns the index of the peer of this name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.first_index(|endpoint| endpoint.index_of(name))
    }

    /// Returns the index of the peer with this key.
    pub fn index_of_key(&self, key: &PublicKey) -> Option<usize> {
        self.first_index(|endpoint| endpoint.index_of_key(key))
    }

    /// Returns the indexes of the peers with exactly this network. They live at one worker.
    pub fn peers_with_network(&self, net: IpNet) -> impl Iterator<Item = usize> {
        let of = move |(first, endpoint): (usize, &'_ Endpoint)| {
            endpoint.peers_with_network(net).map(|index| first + index).collect::<Vec<_>>()
        };
        self.with_first_index().flat_map(of)
    }

    /// As [`Endpoint::add_peer`].
    pub fn add_peer(&mut self, now: Time, config: &PeerConfig) {
        let worker = self.worker_for(config);
        for (number, other) in self.all.iter_mut().enumerate() {
            if number != worker {
                other.endpoint.add_elsewhere(worker, config);
            }
        }
        self.all[worker].endpoint.add_peer(now, config);
        // Its initiation may be at the first worker, where all of them come.
        let key = config.protocol.public_key().filter(|_| worker > 0);
        if let Some(question) = key.and_then(|key| self.all[0].endpoint.take_question(&key)) {
            self.all[worker].endpoint.handle_handover(now, Handover::Initiation(Box::new(question)));
        }
    }

    /// As [`Endpoint::add_peers`].
    pub fn add_peers<'a>(&mut self, now: Time, configs: impl IntoIterator<Item = &'a PeerConfig>) {
        configs.into_iter().for_each(|config| self.add_peer(now, config));
    }

    /// As [`Endpoint::remove_peer`].
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`].
    pub fn remove_peer(&mut self, name: &str) -> Result<(), PeerError> {
        self.named(name)?.remove_peer(name)?;
        self.each(|endpoint| endpoint.remove_elsewhere(name));
        Ok(())
    }

    /// As [`Endpoint::close`].
    pub fn close(&mut self, now: Time, index: usize, code: u16, text: &str) {
        if let Some((worker, local)) = self.locate(index) {
            self.all[worker].endpoint.close(now, local, code, text);
        }
    }

    fn worker_for(&self, config: &PeerConfig) -> usize {
        let numbered = || self.endpoints().enumerate();
        let has_network =
            |endpoint: &Endpoint| config.networks.iter().any(|net| endpoint.peers_with_network(*net).next().is_some());
        match numbered().find(|(_, endpoint)| has_network(endpoint)) {
            Some((worker, _)) => worker,
            None => numbered().min_by_key(|(_, endpoint)| endpoint.peers().len()).map_or(0, |(worker, _)| worker),
        }
    }
}

/// Paths of a peer.
impl Workers {
    /// As [`Endpoint::add_path`].
    ///
    /// # Errors
    /// As [`Endpoint::add_path`].
    pub fn add_path(&mut self, now: Time, peer: &str, config: &PathConfig) -> Result<(), PeerError> {
        self.named(peer)?.add_path(now, peer, config)
    }

    /// As [`Endpoint::add_remote_path`].
    ///
    /// # Errors
    /// As [`Endpoint::add_remote_path`].
    pub fn add_remote_path(&mut self, now: Time, peer: &str, config: &PathConfig) -> Result<(), PeerError> {
        self.named(peer)?.add_remote_path(now, peer, config)
    }

    /// As [`Endpoint::recall_path`].
    ///
    /// # Errors
    /// As [`Endpoint::recall_path`].
    pub fn recall_path(
        &mut self,
        now: Time,
        peer: &PublicKey,
        link: LinkId,
        remote: SocketAddr,
    ) -> Result<(), PeerError> {
        let has_it = |endpoint: &&mut Endpoint| endpoint.index_of_key(peer).is_some();
        let endpoint = self.all.iter_mut().map(|worker| &mut worker.endpoint).find(has_it);
        endpoint.ok_or(PeerError::NoSuchPeer)?.recall_path(now, peer, link, remote)
    }

    /// As [`Endpoint::advertise_addresses`].
    ///
    /// # Errors
    /// As [`Endpoint::advertise_addresses`].
    pub fn advertise_addresses(&mut self, now: Time, peer: &str, all: &[SocketAddr]) -> Result<(), PeerError> {
        self.named(peer)?.advertise_addresses(now, peer, all)
    }

    /// As [`Endpoint::remote_addresses`].
    pub fn remote_addresses(&self, peer: &str) -> Vec<SocketAddr> {
        self.endpoints().flat_map(|endpoint| endpoint.remote_addresses(peer)).collect()
    }

    /// As [`Endpoint::take_remote_addresses_changed`].
    pub fn take_remote_addresses_changed(&mut self) -> bool {
        self.all.iter_mut().fold(false, |any, worker| any | worker.endpoint.take_remote_addresses_changed())
    }

    /// As [`Endpoint::remove_path`].
    ///
    /// # Errors
    /// As [`Endpoint::remove_path`].
    pub fn remove_path(&mut self, now: Time, peer: &str, path: &str) -> Result<(), PeerError> {
        self.named(peer)?.remove_path(now, peer, path)
    }

    /// As [`Endpoint::set_role`].
    ///
    /// # Errors
    /// As [`Endpoint::set_role`].
    pub fn set_role(&mut self, now: Time, peer: &str, path: &str, role: PathRole) -> Result<(), PeerError> {
        self.named(peer)?.set_role(now, peer, path, role)
    }

    /// As [`Endpoint::enable_path`].
    ///
    /// # Errors
    /// As [`Endpoint::enable_path`].
    pub fn enable_path(&mut self, now: Time, peer: &str, path: &str, enabled: bool) -> Result<(), PeerError> {
        self.named(peer)?.enable_path(now, peer, path, enabled)
    }

    /// As [`Endpoint::start_path_test`].
    ///
    /// # Errors
    /// As [`Endpoint::start_path_test`].
    pub fn start_path_test(&mut self, now: Time, peer: &str, path: &str) -> Result<(), PeerError> {
        self.named(peer)?.start_path_test(now, peer, path)
    }

    /// As [`Endpoint::take_path_test`].
    ///
    /// # Errors
    /// As [`Endpoint::take_path_test`].
    pub fn take_path_test(&mut self, peer: &str) -> Result<Option<PathTestOutcome>, PeerError> {
        self.named(peer)?.take_path_test(peer)
    }

    /// As [`Endpoint::handle_report`].
    ///
    /// # Errors
    /// As [`Endpoint::handle_report`].
    pub fn handle_report(&mut self, now: Time, peer: &str, path: &str, up: bool) -> Result<(), PeerError> {
        self.named(peer)?.handle_report(now, peer, path, up)
    }

    /// As [`Endpoint::handle_keepalive`].
    ///
    /// # Errors
    /// As [`Endpoint::handle_keepalive`].
    pub fn handle_keepalive(&mut self, now: Time, peer: &str, path: &str) -> Result<(), PeerError> {
        self.named(peer)?.handle_keepalive(now, peer, path)
    }

    /// As [`Endpoint::remove_link`].
    pub fn remove_paths_over(&mut self, now: Time, link: LinkId) {
        self.each(|endpoint| endpoint.remove_link(now, link));
    }

    /// As [`Endpoint::handle_carrier`].
    pub fn handle_carrier(&mut self, now: Time, link: LinkId, carrier: bool) {
        self.each(|endpoint| endpoint.handle_carrier(now, link, carrier));
    }

    /// As [`Endpoint::narrow_peers`].
    pub fn narrow_peers(&self) -> impl Iterator<Item = (usize, usize)> {
        let of = |(first, endpoint)| Endpoint::narrow_peers(endpoint).map(move |(index, mtu)| (first + index, mtu));
        self.with_first_index().flat_map(of)
    }
}

/// Handshakes, and initiations of unknown keys, which come to the first worker.
impl Workers {
    /// As [`Endpoint::handle_suspend`], with new seeds.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn handle_suspend(&mut self, now: Time) -> Result<(), Failure> {
        self.all.iter_mut().try_for_each(|worker| {
            worker.endpoint.handle_suspend(now, *crate::random::bytes()?);
            Ok(())
        })
    }

    /// As [`Endpoint::last_timestamp`].
    pub fn last_timestamp(&self) -> Option<Tai64n> {
        self.endpoints().filter_map(Endpoint::last_timestamp).max()
    }

    /// As [`Endpoint::key_takeovers`].
    pub fn key_takeovers(&self) -> u64 {
        self.endpoints().map(Endpoint::key_takeovers).sum()
    }

    /// As [`Endpoint::refused_handshakes`].
    pub fn refused_handshakes(&self) -> u64 {
        self.endpoints().map(Endpoint::refused_handshakes).sum()
    }

    /// As [`Endpoint::ask_for_unknown_keys`].
    pub fn ask_for_unknown_keys(&mut self) {
        self.first().ask_for_unknown_keys();
    }

    /// As [`Endpoint::poll_unknown_key`].
    pub fn poll_unknown_key(&mut self) -> Option<UnknownKey> {
        self.first().poll_unknown_key()
    }

    /// As [`Endpoint::unknown_keys`].
    pub fn unknown_keys(&mut self, now: Time) -> Vec<UnknownKey> {
        self.first().unknown_keys(now)
    }

    /// As [`Endpoint::refuse_unknown_key`].
    pub fn refuse_unknown_key(&mut self, now: Time, key: &PublicKey) {
        self.first().refuse_unknown_key(now, key);
    }
}

/// Servers.
impl Workers {
    /// As [`Endpoint::poll_server_event`].
    pub fn poll_server_event(&mut self) -> Option<ServerEvent> {
        self.all.iter_mut().find_map(|worker| worker.endpoint.poll_server_event())
    }

    /// As [`Endpoint::poll_availability`].
    pub fn poll_availability(&mut self) -> Option<(usize, Availability)> {
        let mut first = 0;
        for worker in &mut self.all {
            if let Some((index, availability)) = worker.endpoint.poll_availability() {
                return Some((first + index, availability));
            }
            first += worker.endpoint.peers().len();
        }
        None
    }

    /// As [`Endpoint::order_servers`].
    pub fn order_servers(&mut self, now: Time, group: &str, names: &[&str]) {
        self.each(|endpoint| endpoint.order_servers(now, group, names));
    }

    /// As [`Endpoint::set_server_list`].
    pub fn set_server_list(&mut self, now: Time, list: Option<&ServerList>) {
        self.each(|endpoint| endpoint.set_server_list(now, list.cloned()));
    }

    /// As [`Endpoint::take_server_lists`].
    ///
    /// # Errors
    /// As [`Endpoint::take_server_lists`].
    pub fn take_server_lists(&mut self, peer: &str, newer_than: Option<u64>) -> Result<(), PeerError> {
        self.named(peer)?.take_server_lists(peer, newer_than)
    }

    /// As [`Endpoint::poll_server_list`].
    pub fn poll_server_list(&mut self) -> Option<ServerListEvent> {
        self.all.iter_mut().find_map(|worker| worker.endpoint.poll_server_list())
    }
}

/// State and events.
impl Workers {
    /// Returns the largest inner packet in bytes of the configuration.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// As [`Endpoint::status`].
    pub fn status(&self) -> EndpointStatus {
        self.status_of(0, usize::MAX)
    }

    /// As [`Endpoint::status_of`].
    pub fn status_of(&self, first: usize, count: usize) -> EndpointStatus {
        let mut all = EndpointStatus { peers: Vec::new(), ..EndpointStatus::default() };
        for (begin, endpoint) in self.with_first_index() {
            let part = endpoint.status_of(first.saturating_sub(begin), count - all.peers.len());
            all.drops += &part.drops;
            all.peers.extend(part.peers);
        }
        all
    }

    /// Returns how busy each worker is.
    pub fn worker_reports(&self) -> Vec<WorkerReport> {
        let report = |worker: &Worker| WorkerReport {
            peers: worker.endpoint.peers().len(),
            busy_percent: worker.processor.percent(),
            longest_turn_us: worker.processor.longest_turn().as_micros() as u64,
        };
        self.all.iter().map(report).collect()
    }

    /// As [`Endpoint::poll_closed`].
    pub fn poll_closed(&mut self) -> Option<(String, Closed)> {
        self.all.iter_mut().find_map(|worker| worker.endpoint.poll_closed())
    }

    /// As [`Endpoint::poll_event`].
    pub fn poll_event(&mut self) -> Option<(String, PathEvent)> {
        let poll = |worker: &mut Worker| worker.endpoint.poll_event().map(|(peer, event)| (peer.to_owned(), event));
        self.all.iter_mut().find_map(poll)
    }

    /// As [`Endpoint::set_trace`].
    pub fn set_trace(&mut self, now: Time, on: bool) {
        self.each(|endpoint| endpoint.set_trace(now, on));
    }

    /// As [`Endpoint::poll_trace`].
    pub fn poll_trace(&mut self) -> Option<TraceRecord> {
        let mut first = 0;
        for worker in &mut self.all {
            if let Some(record) = worker.endpoint.poll_trace() {
                return Some(TraceRecord { peer: first + record.peer, ..record });
            }
            first += worker.endpoint.peers().len();
        }
        None
    }

    fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.all.iter().map(|worker| &worker.endpoint)
    }

    fn each(&mut self, act: impl FnMut(&mut Endpoint)) {
        self.all.iter_mut().map(|worker| &mut worker.endpoint).for_each(act);
    }

    fn first(&mut self) -> &mut Endpoint {
        &mut self.all[0].endpoint
    }

    /// Returns the endpoint that has the peer of this name.
    fn named(&mut self, name: &str) -> Result<&mut Endpoint, PeerError> {
        let mut endpoints = self.all.iter_mut().map(|worker| &mut worker.endpoint);
        endpoints.find(|endpoint| endpoint.has_peer(name)).ok_or(PeerError::NoSuchPeer)
    }

    /// Returns the endpoints, each with the index of its first peer.
    fn with_first_index(&self) -> impl Iterator<Item = (usize, &Endpoint)> {
        self.endpoints().scan(0, |next, endpoint| {
            let first = *next;
            *next += endpoint.peers().len();
            Some((first, endpoint))
        })
    }

    fn first_index(&self, find: impl Fn(&Endpoint) -> Option<usize>) -> Option<usize> {
        self.with_first_index().find_map(|(first, endpoint)| Some(first + find(endpoint)?))
    }

    /// Returns the worker of a peer, and its index there.
    fn locate(&self, index: usize) -> Option<(usize, usize)> {
        let mut numbered = self.with_first_index().enumerate();
        let found = numbered.find(|(_, (first, endpoint))| index < first + endpoint.peers().len());
        found.map(|(worker, (first, _))| (worker, index - first))
    }
}
