//! Answers with a peer: the checks of a file, the comparison with the other peers, and the place of each.

use mpt_proto::crypto::keys::PublicKey;
use mpt_proto::time::Time;

use crate::Failure;
use crate::config::model::Peer;
use crate::config::peer_source;
use crate::daemon::{Daemon, setup};

impl Daemon {
    /// Adds the peer of an answer.
    pub(super) fn add_source_peer(&mut self, now: Time, key: PublicKey, body: &str) -> Result<(), Failure> {
        let Some(source) = self.peer_source.as_mut().filter(|source| !source.drained) else {
            self.workers.refuse_unknown_key(now, &key);
            return Ok(());
        };
        let peer = peer_source::peer(&source.template, &source.config, body).map_err(first)?;
        if self.workers.index_of_key(&key).is_some() {
            return Ok(());
        }
        self.check_source_peer(&peer, &key)?;
        if !self.make_room_for_peer() {
            let Some(source) = &mut self.peer_source else { return Ok(()) };
            self.workers.refuse_unknown_key(now, &key);
            if source.full.may_log(now) {
                tracing::warn!(
                    peers = source.peers.len(),
                    "no room for another peer of the source; hint: add a server"
                );
            }
            return Ok(());
        }
        tracing::debug!(peer = %peer.name, "peer of the source added");
        let name = peer.name.value.clone();
        self.workers.add_peer(now, &setup::core_config(&self.file, &peer, Vec::new()));
        if let Some(source) = &mut self.peer_source {
            source.peers.add(now, key, name);
            source.counts.added += 1;
        }
        Ok(())
    }

    /// Compares a peer with the others, as the checks of a file do.
    fn check_source_peer(&self, peer: &Peer, key: &PublicKey) -> Result<(), Failure> {
        let workers = &self.workers;
        let name_of = |index: usize| workers.peer(index).map_or_else(String::new, |peer| peer.name().to_owned());
        if peer.protocol.public_key().as_ref() != Some(key) {
            let failure = Failure::new("public_key: not the key of the question");
            return Err(failure.hint("the answer to a question has the key that was asked about"));
        }
        if workers.has_peer(&peer.name) {
            let failure = Failure::new(format!("name: another peer has the name {:?}", peer.name.value));
            return Err(failure.hint("give each peer a unique name; remove the other one first if it is the same site"));
        }
        for net in &peer.networks {
            if let Some(other) = workers.peers_with_network(net.value).next() {
                let failure = Failure::new(format!("networks: {} is a network of {}", net.value, name_of(other)));
                return Err(failure.hint("give each peer its own; remove the other one first if it is the same site"));
            }
        }
        Ok(())
    }

    pub(super) fn refuse_bad_peer(&mut self, now: Time, key: &PublicKey, failure: &Failure) {
        self.workers.refuse_unknown_key(now, key);
        let Some(source) = &mut self.peer_source else { return };
        source.counts.bad_peers += 1;
        if source.bad_peer.may_log(now) {
            tracing::warn!(%key, bad = source.counts.bad_peers, "a peer of the source is refused: {failure}");
        }
    }

    /// Removes the peers of the source that have the name, the key or a network of one of these: those of files have
    /// precedence.
    pub(in crate::daemon) fn yield_to_files(&mut self, peers: &[Peer]) {
        let Some(source) = &self.peer_source else { return };
        let workers = &self.workers;
        let same = |peer: &Peer| {
            let networks = peer.networks.iter().flat_map(|net| workers.peers_with_network(net.value));
            let key = peer.protocol.public_key().and_then(|key| workers.index_of_key(&key));
            networks.chain(workers.index_of(&peer.name)).chain(key).collect::<Vec<_>>()
        };
        let keys = peers.iter().flat_map(same).filter_map(|index| workers.peer(index)?.public_key().copied());
        let keys: Vec<_> = keys.filter(|key| source.peers.contains(key)).collect();
        for key in keys {
            if let Some(name) = self.remove_source_peer(&key, "removed") {
                tracing::info!(peer = name, "peer of the source removed: a peer of the configuration is in its place");
            }
        }
    }

    /// Returns true if there is room for one more, after the peer that has been without a session for the longest time
    /// was forgotten if needed.
    fn make_room_for_peer(&mut self) -> bool {
        let Some(source) = &self.peer_source else { return false };
        if source.peers.len() < MAX_PEERS {
            return true;
        }
        let Some(key) = source.peers.first_idle() else { return false };
        self.evict(&key);
        true
    }
}

/// Returns the first of several problems with an answer.
fn first(problems: Vec<crate::config::Problem>) -> Failure {
    problems.into_iter().next().map_or_else(|| Failure::new("no peer"), Failure::from)
}

/// Peers of the source that are kept, with or without a session.
const MAX_PEERS: usize = 20_000;
