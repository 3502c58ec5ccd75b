//! State of an endpoint for all its native peers: keys, protection against handshake floods, random numbers and session
//! indexes.

use std::collections::HashMap;

use crate::crypto::handshake::{EphemeralInput, HandshakeGuard, Identity, Incarnation};
use crate::crypto::keys::PublicKey;
use crate::crypto::random::RandomSource;
use crate::time::Time;
use crate::tuning::peer::demotion::MAX_NEW_PATHS;
use crate::wire::native::SessionIndex;

/// The local state of every session.
pub struct SessionTable {
    identity: Identity,
    guard: HandshakeGuard,
    indexes: IndexAllocator,
    peers: HashMap<PublicKey, usize>,
    /// This second, and the new paths that were probed in it.
    new_paths: (u64, u32),
}

/// The session indexes in use, and the random generator for them and for ephemeral keys.
pub struct IndexAllocator {
    random: RandomSource,
    /// The first byte of every index, so that a load balancer finds the server of a session; 0 for a random one.
    server_id: u8,
    /// The number of this worker in the first bits of the second byte, and how many bits it has.
    worker: (u8, u32),
    sessions: HashMap<SessionIndex, usize>,
    /// The indexes of each peer, three at most.
    by_peer: Vec<Vec<SessionIndex>>,
}

impl SessionTable {
    /// Makes a table from an identity and a seed from a cryptographic random source, which must not be used twice.
    pub fn new(identity: Identity, seed: [u8; 32]) -> Self {
        let mut indexes = IndexAllocator::new(RandomSource::new(seed), 0);
        let guard = HandshakeGuard::new(identity.keys.public(), indexes.random.draw());
        Self { identity, guard, indexes, peers: HashMap::new(), new_paths: (0, 0) }
    }

    /// Sets the first byte of every session index that this end allocates from now on, 1 to 255. There are 65,536 such
    /// indexes; a peer uses three at most. Without it all 24 bits are random.
    pub fn set_server_id(&mut self, id: u8) {
        self.indexes.server_id = id;
    }

    /// Puts the number of this worker into every session index that this end allocates from now on: into the first
    /// bits of the second byte, as many as `count` workers need ([`worker_bits`]). So the kernel finds the worker of a
    /// datagram. A server with an id and two workers has 32,768 indexes for each.
    pub fn set_worker(&mut self, number: u8, count: u8) {
        self.indexes.worker = (number, worker_bits(count));
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

    /// Returns true if another new path may be probed in this second, and counts it.
    pub fn may_probe_new_path(&mut self, now: Time) -> bool {
        let second = (now - Time::START).as_secs();
        if second != self.new_paths.0 {
            self.new_paths = (second, 0);
        }
        self.new_paths.1 += 1;
        self.new_paths.1 <= MAX_NEW_PATHS
    }

    /// Adds a peer with its key.
    pub fn register_peer(&mut self, key: PublicKey, peer: usize) {
        self.peers.insert(key, peer);
    }

    /// Removes a peer with its key and its sessions.
    pub fn remove_peer(&mut self, key: Option<&PublicKey>, removed: usize) {
        if let Some(key) = key {
            self.peers.remove(key);
        }
        for index in self.indexes.by_peer.get_mut(removed).map(std::mem::take).unwrap_or_default() {
            self.indexes.sessions.remove(&index);
        }
    }

    /// Gives a peer with its sessions another index, which no peer has.
    pub fn rename_peer(&mut self, key: Option<&PublicKey>, from: usize, to: usize) {
        if let Some(peer) = key.and_then(|key| self.peers.get_mut(key)) {
            *peer = to;
        }
        let IndexAllocator { sessions, by_peer, .. } = &mut self.indexes;
        let own = by_peer.get_mut(from).map(std::mem::take).unwrap_or_default();
        for index in &own {
            sessions.insert(*index, to);
        }
        if !own.is_empty() {
            by_peer[to] = own;
        }
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
        let Some(peer) = self.indexes.sessions.remove(&session) else { return };
        self.indexes.by_peer[peer].retain(|own| *own != session);
    }
}

impl IndexAllocator {
    fn new(random: RandomSource, server_id: u8) -> Self {
        Self { random, server_id, worker: (0, 0), sessions: HashMap::new(), by_peer: Vec::new() }
    }

    /// Returns the random input of a handshake message with `peer`, and allocates an index for its session.
    pub fn ephemeral_input(&mut self, peer: usize) -> EphemeralInput {
        let ephemeral = self.random.draw();
        let jitter = u16::from_be_bytes(self.random.draw());
        let index = self.free_index();
        self.sessions.insert(index, peer);
        if self.by_peer.len() <= peer {
            self.by_peer.resize_with(peer + 1, Vec::new);
        }
        self.by_peer[peer].push(index);
        EphemeralInput { ephemeral, index, jitter }
    }

    /// Returns a random index that is not in use. If nearly all indexes of this server are, one of another server is
    /// used: a session that a load balancer does not find is better than none.
    fn free_index(&mut self) -> SessionIndex {
        for tries in 0.. {
            let [_, first, rest @ ..]: [u8; 4] = self.random.draw();
            let first = if self.server_id == 0 || tries >= MAX_TRIES { first } else { self.server_id };
            let (worker, bits) = self.worker;
            let second = (u32::from(worker) << (8 - bits)) as u8 | rest[0] & (0xFF_u32 >> bits) as u8;
            let index = SessionIndex::new(u32::from_be_bytes([0, first, second, rest[1]]));
            if !self.sessions.contains_key(&index) {
                return index;
            }
        }
        unreachable!("2^24 indexes are more than sessions")
    }
}

/// Returns the bits of a session index that tell `count` workers apart.
pub const fn worker_bits(count: u8) -> u32 {
    u8::BITS - count.saturating_sub(1).leading_zeros()
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
        IndexAllocator::new(RandomSource::new([7; 32]), server_id)
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
    fn the_number_of_the_worker_follows_the_server_id() {
        assert_eq!([1, 2, 3, 4, 5, 16].map(worker_bits), [0, 1, 2, 2, 3, 4]);
        let mut indexes = allocator(7);
        indexes.worker = (2, worker_bits(3));
        let drawn: Vec<_> = (0..1_000).map(|peer| indexes.ephemeral_input(peer).index.to_bytes()).collect();
        assert!(drawn.iter().all(|[server, second, _]| *server == 7 && second >> 6 == 2));
        let others: std::collections::HashSet<_> = drawn.iter().map(|[_, second, _]| second & 0x3F).collect();
        assert_eq!(others.len(), 64, "the other bits are random");
    }

    #[test]
    fn a_server_without_free_indexes_uses_others() {
        let mut indexes = allocator(1);
        indexes.sessions.extend((0..1 << 16).map(|low| (SessionIndex::new(1 << 16 | low), 0)));
        assert_ne!(indexes.free_index().to_bytes()[0], 1);
    }

    #[test]
    fn a_removed_peer_leaves_no_session_and_the_last_one_takes_its_place() {
        let keys = crate::crypto::keys::KeyPair::generate([1; 32]);
        let identity = Identity {
            keys,
            capabilities: crate::crypto::handshake::Capabilities::new(true),
            clock: crate::crypto::handshake::Clock::new(std::time::Duration::from_secs(1_800_000_000)),
        };
        let mut table = SessionTable::new(identity, [7; 32]);
        let key = |peer: usize| PublicKey::from_bytes([peer as u8 + 1; 32]);
        let sessions: Vec<_> = (0..3)
            .map(|peer| {
                table.register_peer(key(peer), peer);
                [0, 1].map(|_| table.indexes.ephemeral_input(peer).index)
            })
            .collect();
        table.remove_peer(Some(&key(0)), 0);
        table.rename_peer(Some(&key(2)), 2, 0);
        assert_eq!([0, 1, 2].map(|peer| table.peer_with_key(&key(peer))), [None, Some(1), Some(0)]);
        assert_eq!(sessions[0].map(|session| table.peer_of_session(session)), [None, None]);
        assert_eq!(sessions[2].map(|session| table.peer_of_session(session)), [Some(0), Some(0)]);
        table.release_index(sessions[2][0]);
        assert_eq!(sessions[2].map(|session| table.peer_of_session(session)), [None, Some(0)]);
    }
}
