//! Peers and paths that are added, removed and switched while the tunnel runs.

use std::net::SocketAddr;

use ipnet::IpNet;

use super::Endpoint;
use crate::config::{PathConfig, PathRole, PeerConfig};
use crate::crypto::keys::PublicKey;
use crate::error::PeerError;
use crate::id::LinkId;
use crate::peer::{Closed, Peer};
use crate::sessions::SessionTable;
use crate::stats::PathTestOutcome;
use crate::time::Time;

impl Endpoint {
    /// Adds a peer while the tunnel runs, and returns its index.
    pub fn add_peer(&mut self, now: Time, config: &PeerConfig) -> usize {
        self.add_peers(now, [config]);
        self.peers.len() - 1
    }

    /// Adds several peers. If the key of one was unknown and has initiated, that initiation is answered.
    pub fn add_peers<'a>(&mut self, now: Time, configs: impl IntoIterator<Item = &'a PeerConfig>) {
        for config in configs {
            let mut peer = Self::make_peer(now, self.peers.len(), self.mtu, config, self.sessions.as_mut());
            peer.set_trace(now, self.traced);
            peer.set_processor_limited(self.processor_limited);
            self.push_peer(now, peer);
            if let Some(key) = config.protocol.public_key() {
                self.replay_initiation(now, &key);
            }
        }
    }

    /// Sends to the peer at `index` that this end ends the session, for this reason: a code of
    /// [`crate::wire::frame::CloseFrame`], and a text. The caller then removes the peer, or ends.
    pub fn close(&mut self, now: Time, index: usize, code: u16, text: &str) {
        let (peers, mut turn) = self.split(now);
        peers[index].close(&mut turn, code, text);
    }

    /// Returns the next peer that has ended its session, by name, and its announcement.
    pub fn poll_closed(&mut self) -> Option<(String, Closed)> {
        self.closed.pop_front()
    }

    /// Removes the peer of this name, with the packets that wait for it. The last peer takes its index.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`].
    pub fn remove_peer(&mut self, name: &str) -> Result<(), PeerError> {
        let index = self.peer_named(name)?;
        self.forget_indexes(index);
        let last = self.peers.len() - 1;
        if index != last {
            self.rename_indexes(last, index);
        }
        self.peers.swap_remove(index);
        self.ready.swap_remove(index);
        Ok(())
    }

    /// Returns true if a peer has this name.
    pub fn has_peer(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Returns the index of the peer of this name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Returns the index of the native peer with this key.
    pub fn index_of_key(&self, key: &PublicKey) -> Option<usize> {
        self.sessions.as_ref()?.peer_with_key(key)
    }

    /// Returns the indexes of the peers with exactly this network.
    pub fn peers_with_network(&self, net: IpNet) -> impl Iterator<Item = usize> {
        self.routes.peers_of(net).iter().copied().filter(|peer| !self.others.takes(*peer))
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
        self.index_of(peer).map(|index| self.peers[index].remote_addresses()).unwrap_or_default()
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

    fn push_peer(&mut self, now: Time, mut peer: Peer) {
        let index = self.peers.len();
        peer.set_index(index);
        peer.offer_server_list(now, self.server_list.as_ref());
        self.names.insert(peer.name().to_owned(), index);
        peer.networks().iter().for_each(|net| self.routes.add(*net, index));
        if let Some(group) = peer.server_group() {
            self.groups.entry(group.clone()).or_default().push(index);
        }
        self.sources.extend(peer.sources().map(|(link, ip, slot)| ((link, ip), (index, slot))));
        self.ready.push();
        self.ready.set_deadline(index, peer.next_deadline());
        self.peers.push(peer);
        self.available.insert(index);
        self.note(index);
    }

    /// Removes a peer from every table that contains indexes of peers.
    fn forget_indexes(&mut self, index: usize) {
        let Self { peers, sessions, routes, groups, ready, .. } = self;
        let peer = &peers[index];
        self.names.remove(peer.name());
        peer.networks().iter().for_each(|net| routes.remove(*net, index));
        if let Some(members) = peer.server_group().and_then(|group| groups.get_mut(group)) {
            members.retain(|member| *member != index);
            // Another one may carry the traffic now.
            members.iter().for_each(|member| ready.mark(*member));
        }
        if let Some(sessions) = sessions {
            sessions.remove_peer(peer.public_key(), index);
        }
        if peer.sources().next().is_some() {
            self.sources.retain(|_, (peer, _)| *peer != index);
        }
        self.crowded.remove(&index);
        self.narrow.remove(&index);
        self.available.remove(&index);
        self.stalled.remove(&index);
        self.eventful.retain(|peer| *peer != index);
    }

    /// Gives a peer another index in every table.
    fn rename_indexes(&mut self, from: usize, to: usize) {
        let Self { peers, sessions, routes, groups, .. } = self;
        let peer = &mut peers[from];
        peer.set_index(to);
        if let Some(index) = self.names.get_mut(peer.name()) {
            *index = to;
        }
        peer.networks().iter().for_each(|net| routes.rename(*net, from, to));
        let members = peer.server_group().and_then(|group| groups.get_mut(group));
        members.into_iter().flatten().filter(|member| **member == from).for_each(|member| *member = to);
        if let Some(sessions) = sessions {
            sessions.rename_peer(peer.public_key(), from, to);
        }
        if peer.sources().next().is_some() {
            self.sources.values_mut().filter(|(peer, _)| *peer == from).for_each(|(peer, _)| *peer = to);
        }
        for set in [&mut self.crowded, &mut self.available, &mut self.stalled] {
            if set.remove(&from) {
                set.insert(to);
            }
        }
        if let Some(carried) = self.narrow.remove(&from) {
            self.narrow.insert(to, carried);
        }
        self.eventful.iter_mut().filter(|peer| **peer == from).for_each(|peer| *peer = to);
    }

    /// Returns the index of the peer of this name.
    fn peer_named(&self, name: &str) -> Result<usize, PeerError> {
        self.index_of(name).ok_or(PeerError::NoSuchPeer)
    }

    pub(super) fn with_peer(
        &mut self,
        name: &str,
        act: impl FnOnce(&mut Peer) -> Result<(), PeerError>,
    ) -> Result<(), PeerError> {
        let index = self.peer_named(name)?;
        self.ready.mark(index);
        act(&mut self.peers[index])
    }
}
