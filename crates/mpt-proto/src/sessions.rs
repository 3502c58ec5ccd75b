//! State of an endpoint for all its native peers: keys, protection against handshake floods, random numbers and session
//! indexes.

use std::collections::HashMap;

use crate::crypto::handshake::{EphemeralInput, HandshakeGuard, Identity, Incarnation};
use crate::crypto::keys::PublicKey;
use crate::crypto::random::RandomSource;
use crate::wire::native::SessionIndex;

/// The local state of every session.
pub struct SessionTable {
    identity: Identity,
    guard: HandshakeGuard,
    indexes: IndexAllocator,
    peers: HashMap<PublicKey, usize>,
}

/// The session indexes in use, and the random generator for them and for ephemeral keys.
pub struct IndexAllocator {
    random: RandomSource,
    /// The first byte of every index, so that a load balancer finds the server of a session; 0 for a random one.
    server_id: u8,
    sessions: HashMap<SessionIndex, usize>,
}

impl SessionTable {
    /// Makes a table from an identity and a seed from a cryptographic random source, which must not be used twice.
    pub fn new(identity: Identity, seed: [u8; 32]) -> Self {
        let mut indexes = IndexAllocator { random: RandomSource::new(seed), server_id: 0, sessions: HashMap::new() };
        let guard = HandshakeGuard::new(identity.keys.public(), indexes.random.draw());
        Self { identity, guard, indexes, peers: HashMap::new() }
    }

    /// Sets the first byte of every session index that this end allocates from now on, 1 to 255. There are 65,536 such
    /// indexes; a peer uses three at most. Without it all 24 bits are random.
    pub fn set_server_id(&mut self, id: u8) {
        self.indexes.server_id = id;
    }

    /// Continues with another seed and another cookie secret. Nothing is drawn from the earlier state, of which copies
    /// may exist.
    pub fn reseed(&mut self, seed: [u8; 32]) {
        self.indexes.random = RandomSource::new(seed);
        self.guard = HandshakeGuard::new(self.identity.keys.public(), self.indexes.random.draw());
    }

    /// Returns the local identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the handshake guard, which checks messages before any expensive computation.
    pub fn guard(&mut self) -> &mut HandshakeGuard {
        &mut self.guard
    }

    /// Returns the identity and the index allocator, to be borrowed together.
    pub fn parts(&mut self) -> (&mut Identity, &mut IndexAllocator) {
        (&mut self.identity, &mut self.indexes)
    }

    /// Returns a random number that distinguishes this incarnation of a peer from all others.
    pub fn incarnation(&mut self) -> Incarnation {
        Incarnation(self.indexes.random.draw())
    }

    /// Returns random data for a path challenge.
    pub fn challenge(&mut self) -> [u8; 8] {
        self.indexes.random.draw()
    }

    /// Adds a peer with its key.
    pub fn register_peer(&mut self, key: PublicKey, peer: usize) {
        self.peers.insert(key, peer);
    }

    /// Removes a peer with its sessions; the indexes of later peers decrease by one.
    pub fn remove_peer(&mut self, removed: usize) {
        let retain = |peer: &mut usize| {
            let is_other = *peer != removed;
            *peer -= usize::from(*peer > removed);
            is_other
        };
        self.peers.retain(|_, peer| retain(peer));
        self.indexes.sessions.retain(|_, peer| retain(peer));
    }

    /// Returns the peer with this key.
    pub fn peer_with_key(&self, key: &PublicKey) -> Option<usize> {
        self.peers.get(key).copied()
    }

    /// Returns the peer of a session.
    pub fn peer_of_session(&self, session: SessionIndex) -> Option<usize> {
        self.indexes.sessions.get(&session).copied()
    }

    /// Releases the index of a session that ended.
    pub fn release_index(&mut self, session: SessionIndex) {
        self.indexes.sessions.remove(&session);
    }
}

impl IndexAllocator {
    /// Returns the random input of a handshake message with `peer`, and allocates an index for its session.
    pub fn ephemeral_input(&mut self, peer: usize) -> EphemeralInput {
        let ephemeral = self.random.draw();
        let jitter = u16::from_be_bytes(self.random.draw());
        let index = self.free_index();
        self.sessions.insert(index, peer);
        EphemeralInput { ephemeral, index, jitter }
    }

    /// Returns a random index that is not in use. If nearly all indexes of this server are, one of another server is
    /// used: a session that a load balancer does not find is better than none.
    fn free_index(&mut self) -> SessionIndex {
        for tries in 0.. {
            let [_, first, rest @ ..]: [u8; 4] = self.random.draw();
            let first = if self.server_id == 0 || tries >= MAX_TRIES { first } else { self.server_id };
            let index = SessionIndex::new(u32::from_be_bytes([0, first, rest[0], rest[1]]));
            if !self.sessions.contains_key(&index) {
                return index;
            }
        }
        unreachable!("2^24 indexes are more than sessions")
    }
}

/// Draws of an index of this server. With 60,000 of 65,536 in use, one of 256 is free in all but 1 of 3 billion cases.
const MAX_TRIES: u32 = 256;

impl std::fmt::Debug for SessionTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionTable").field("identity", &self.identity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocator(server_id: u8) -> IndexAllocator {
        IndexAllocator { random: RandomSource::new([7; 32]), server_id, sessions: HashMap::new() }
    }

    #[test]
    fn indexes_begin_with_the_server_id_and_are_unique() {
        let mut indexes = allocator(0x2a);
        let drawn: Vec<_> = (0..30_000).map(|peer| indexes.ephemeral_input(peer).index).collect();
        assert!(drawn.iter().all(|index| index.to_bytes()[0] == 0x2a));
        assert_eq!(indexes.sessions.len(), drawn.len());
    }

    #[test]
    fn without_a_server_id_the_first_byte_is_random() {
        let mut indexes = allocator(0);
        let first: std::collections::HashSet<_> = (0..1_000).map(|_| indexes.free_index().to_bytes()[0]).collect();
        assert!(first.len() > 200, "{}", first.len());
    }

    #[test]
    fn a_server_without_free_indexes_uses_others() {
        let mut indexes = allocator(1);
        indexes.sessions.extend((0..1 << 16).map(|low| (SessionIndex::new(1 << 16 | low), 0)));
        assert_ne!(indexes.free_index().to_bytes()[0], 1);
    }
}
