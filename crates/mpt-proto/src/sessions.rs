//! What an endpoint is to all its native peers: its keys, its gate against floods, its source of randomness and the names
//! of its sessions.

use std::collections::HashMap;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use crate::crypto::handshake::{EphemeralInput, HandshakeGuard, Identity, Incarnation};
use crate::crypto::keys::PublicKey;
use crate::wire::native::SessionIndex;

/// This end of every session.
pub struct SessionTable {
    identity: Identity,
    gate: HandshakeGuard,
    names: IndexAllocator,
    peers: HashMap<PublicKey, usize>,
}

/// The names of sessions, and the randomness that they and every ephemeral key are made of.
pub struct IndexAllocator {
    random: ChaCha20Rng,
    sessions: HashMap<SessionIndex, usize>,
}

impl SessionTable {
    /// Makes it from an identity and a seed from a cryptographic random source, which is never used twice.
    pub fn new(identity: Identity, seed: [u8; 32]) -> Self {
        let mut names = IndexAllocator { random: ChaCha20Rng::from_seed(seed), sessions: HashMap::new() };
        let gate = HandshakeGuard::new(identity.keys.public(), names.draw());
        Self { identity, gate, names, peers: HashMap::new() }
    }

    /// Who we are.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Stands before everything that costs something.
    pub fn guard(&mut self) -> &mut HandshakeGuard {
        &mut self.gate
    }

    /// The identity and the names, to be used together.
    pub fn parts(&mut self) -> (&Identity, &mut IndexAllocator) {
        (&self.identity, &mut self.names)
    }

    /// A number that tells this run of a peer from every other.
    pub fn incarnation(&mut self) -> Incarnation {
        Incarnation(self.names.draw())
    }

    /// What nobody can guess, to be asked back from an address.
    pub fn challenge(&mut self) -> [u8; 8] {
        self.names.draw()
    }

    /// Knows the peer with this key by its index from here on.
    pub fn register_peer(&mut self, key: PublicKey, peer: usize) {
        self.peers.insert(key, peer);
    }

    /// A peer is gone with its sessions, and those behind it move up.
    pub fn remove_peer(&mut self, gone: usize) {
        let stays = |peer: &mut usize| {
            let stays = *peer != gone;
            *peer -= usize::from(*peer > gone);
            stays
        };
        self.peers.retain(|_, peer| stays(peer));
        self.names.sessions.retain(|_, peer| stays(peer));
    }

    /// The peer with this key.
    pub fn peer_with_key(&self, key: &PublicKey) -> Option<usize> {
        self.peers.get(key).copied()
    }

    /// The peer that a session belongs to.
    pub fn peer_of_session(&self, session: SessionIndex) -> Option<usize> {
        self.names.sessions.get(&session).copied()
    }

    /// A session is gone, and its name is free.
    pub fn release_index(&mut self, session: SessionIndex) {
        self.names.sessions.remove(&session);
    }
}

impl IndexAllocator {
    /// What a handshake message with `peer` needs new. The session's name is taken from here on.
    pub fn ephemeral_input(&mut self, peer: usize) -> EphemeralInput {
        let ephemeral = self.draw();
        let jitter = u16::from_be_bytes(self.draw());
        let index = loop {
            let index = SessionIndex::new(u32::from_be_bytes(self.draw()));
            if !self.sessions.contains_key(&index) {
                break index;
            }
        };
        self.sessions.insert(index, peer);
        EphemeralInput { ephemeral, index, jitter }
    }

    fn draw<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill_bytes(&mut bytes);
        bytes
    }
}

impl std::fmt::Debug for SessionTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("identity", &self.identity).finish_non_exhaustive()
    }
}
