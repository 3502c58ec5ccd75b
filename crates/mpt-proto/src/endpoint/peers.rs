//! Peers and paths that are added, removed and switched while the tunnel runs.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Endpoint;
use crate::config::{PathConfig, PathRole, PeerConfig};
use crate::crypto::keys::PublicKey;
use crate::error::PeerError;
use crate::id::LinkId;
use crate::peer::Peer;
use crate::ready::ReadyQueue;
use crate::routes::Routes;
use crate::sessions::SessionTable;
use crate::stats::PathTestOutcome;
use crate::time::Time;

impl Endpoint {
    /// Adds a peer while the tunnel runs, and returns its index.
    pub fn add_peer(&mut self, now: Time, config: &PeerConfig) -> usize {
        self.add_peers(now, [config]);
        self.peers.len() - 1
    }

    /// Adds several peers. The tables of all peers are rebuilt once, not for each.
    pub fn add_peers<'a>(&mut self, now: Time, configs: impl IntoIterator<Item = &'a PeerConfig>) {
        for config in configs {
            let mut peer = Self::make_peer(now, self.peers.len(), self.mtu, config, self.sessions.as_mut());
            peer.set_trace(now, self.traced);
            self.peers.push(peer);
        }
        self.number_peers();
    }

    /// Removes the peer of this name, with the packets that wait for it. The indexes of later peers decrease by one.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`].
    pub fn remove_peer(&mut self, name: &str) -> Result<(), PeerError> {
        let index = self.peer_named(name)?;
        self.peers.remove(index);
        if let Some(sessions) = &mut self.sessions {
            sessions.remove_peer(index);
        }
        self.number_peers();
        Ok(())
    }

    /// Adds a path to a native peer.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`], [`PeerError::NotNative`], [`PeerError::NoAddress`] and [`PeerError::NoSlot`].
    pub fn add_path(&mut self, now: Time, peer: &str, config: &PathConfig) -> Result<(), PeerError> {
        self.with_peer(peer, |peer| peer.add_path(now, config))
    }

    /// Adds a path to an address that the peer advertised; see [`Self::remote_addresses`].
    ///
    /// # Errors
    /// As [`Self::add_path`].
    pub fn add_remote_path(&mut self, now: Time, peer: &str, config: &PathConfig) -> Result<(), PeerError> {
        self.with_peer(peer, |peer| peer.add_advertised_path(now, config))
    }

    /// Adds a path to an address that the peer with this key had in the last run of this end, and initiates there. A
    /// path to it that exists already stays.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`] and [`PeerError::NoSlot`].
    pub fn recall_path(
        &mut self,
        now: Time,
        peer: &PublicKey,
        link: LinkId,
        remote: SocketAddr,
    ) -> Result<(), PeerError> {
        let index = self.sessions.as_ref().and_then(|sessions| sessions.peer_with_key(peer));
        let index = index.ok_or(PeerError::NoSuchPeer)?;
        self.ready.mark(index);
        self.peers[index].recall_path(now, link, remote)
    }

    /// Returns the paths that peers opened and that are alive, with their keys: what [`Self::recall_path`] of the next
    /// run takes.
    pub fn learned_paths(&self) -> impl Iterator<Item = (&PublicKey, LinkId, SocketAddr)> {
        self.peers.iter().flat_map(Peer::learned_paths)
    }

    /// Advertises to a native peer the addresses at which it can reach this end.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`] and [`PeerError::NotNative`].
    pub fn advertise_addresses(&mut self, now: Time, peer: &str, all: &[SocketAddr]) -> Result<(), PeerError> {
        self.with_peer(peer, |peer| peer.advertise_addresses(now, all))
    }

    /// Returns the addresses that a peer advertised.
    pub fn remote_addresses(&self, peer: &str) -> Vec<SocketAddr> {
        self.peers.iter().find(|p| p.name() == peer).map(Peer::remote_addresses).unwrap_or_default()
    }

    /// Returns true if the advertised addresses of any peer changed since the last call.
    pub fn take_remote_addresses_changed(&mut self) -> bool {
        std::mem::take(&mut self.remote_addresses_changed)
    }

    /// Removes a path of a native peer. The packets in flight on it are retransmitted on the others.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`], [`PeerError::NotNative`] and [`PeerError::NoSuchPath`].
    pub fn remove_path(&mut self, now: Time, peer: &str, path: &str) -> Result<(), PeerError> {
        let index = self.peer_named(peer)?;
        self.ready.mark(index);
        let (peers, mut turn) = self.split(now);
        peers[index].remove_path(&mut turn, path)
    }

    /// Sets the role that this end wants for a path of a native peer.
    ///
    /// # Errors
    /// As [`Self::remove_path`].
    pub fn set_role(&mut self, now: Time, peer: &str, path: &str, role: PathRole) -> Result<(), PeerError> {
        self.with_peer(peer, |peer| peer.set_role(now, path, role))
    }

    /// Takes a path of a peer up or down by command of the operator.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`] and [`PeerError::NoSuchPath`].
    pub fn enable_path(&mut self, now: Time, peer: &str, path: &str, enabled: bool) -> Result<(), PeerError> {
        self.with_peer(peer, |peer| peer.enable_path(now, path, enabled))
    }

    /// Begins a test of a path of a native peer: both ends send on it as fast as congestion control permits, 5 s each.
    /// [`Self::take_path_test`] returns the outcome.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`], [`PeerError::NotNative`], [`PeerError::NoSuchPath`], [`PeerError::PathDown`] and
    /// [`PeerError::Busy`].
    pub fn start_path_test(&mut self, now: Time, peer: &str, path: &str) -> Result<(), PeerError> {
        self.with_peer(peer, |peer| peer.start_path_test(now, path))
    }

    /// Returns the outcome of the last test of a path of a peer, once; none while it is going on.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`].
    pub fn take_path_test(&mut self, peer: &str) -> Result<Option<PathTestOutcome>, PeerError> {
        let index = self.peer_named(peer)?;
        Ok(self.peers[index].take_path_test())
    }

    /// Handles the report of a peer, through another channel than the paths, that a path went up or down.
    ///
    /// # Errors
    /// As [`Self::enable_path`].
    pub fn handle_report(&mut self, now: Time, peer: &str, path: &str, up: bool) -> Result<(), PeerError> {
        self.with_peer(peer, |peer| peer.handle_report(now, path, up))
    }

    /// Handles a keepalive of a peer for a path that came through another channel than the paths.
    ///
    /// # Errors
    /// As [`Self::enable_path`].
    pub fn handle_keepalive(&mut self, now: Time, peer: &str, path: &str) -> Result<(), PeerError> {
        self.with_peer(peer, |peer| peer.handle_keepalive(now, path))
    }

    pub(super) fn make_peer(
        now: Time,
        index: usize,
        mtu: usize,
        config: &PeerConfig,
        mut local: Option<&mut SessionTable>,
    ) -> Peer {
        if let Some((local, key)) = local.as_deref_mut().zip(config.protocol.public_key()) {
            local.register_peer(key, index);
        }
        Peer::new(now, mtu, config, local)
    }

    /// Rebuilds every table that contains indexes of peers.
    pub(super) fn number_peers(&mut self) {
        let numbered = || self.peers.iter().enumerate();
        let networks = |(i, peer)| Peer::networks(peer).iter().map(move |net| (*net, i));
        self.routes = Arc::new(Routes::new(numbered().flat_map(networks)));
        self.groups.clear();
        for (index, group) in numbered().filter_map(|(index, peer)| Some((index, peer.server_group()?))) {
            self.groups.entry(group.clone()).or_default().push(index);
        }
        let sources = |(i, peer): (usize, &Peer)| {
            peer.sources().map(|(link, ip, slot)| ((link, ip), (i, slot))).collect::<Vec<_>>()
        };
        self.sources = numbered().flat_map(sources).collect();
        for (i, peer) in self.peers.iter_mut().enumerate() {
            peer.set_index(i, self.routes.clone());
        }
        self.ready = ReadyQueue::new(self.peers.len());
        self.crowded.clear();
        self.eventful.clear();
        // The indexes may belong to other peers now.
        self.available = (0..self.peers.len()).collect();
        for index in 0..self.peers.len() {
            self.note(index);
            self.ready.set_deadline(index, self.peers[index].next_deadline());
        }
    }

    /// Returns the index of the peer of this name.
    fn peer_named(&self, name: &str) -> Result<usize, PeerError> {
        self.peers.iter().position(|peer| peer.name() == name).ok_or(PeerError::NoSuchPeer)
    }

    fn with_peer(&mut self, name: &str, act: impl FnOnce(&mut Peer) -> Result<(), PeerError>) -> Result<(), PeerError> {
        let index = self.peer_named(name)?;
        self.ready.mark(index);
        act(&mut self.peers[index])
    }
}
