//! The peers of the source, and when each is forgotten: one without a session costs memory, and the source knows it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use mpt_proto::crypto::keys::PublicKey;
use mpt_proto::time::Time;

/// The peers that the source has answered with.
#[derive(Debug, Default)]
pub struct SourcePeers {
    peers: HashMap<PublicKey, SourcePeer>,
    /// The peers without a session, by the time at which they are forgotten and a number.
    idle: BTreeMap<(Time, u64), PublicKey>,
    numbers: u64,
}

#[derive(Debug)]
struct SourcePeer {
    name: String,
    /// It has had a session.
    confirmed: bool,
    /// Its place in `idle`.
    idle: Option<(Time, u64)>,
}

impl SourcePeers {
    /// Returns the number of peers.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns true if the source has answered with this peer.
    pub fn contains(&self, key: &PublicKey) -> bool {
        self.peers.contains_key(key)
    }

    /// Returns any peer.
    pub fn any(&self) -> Option<PublicKey> {
        self.peers.keys().next().copied()
    }

    /// Adds a peer that has no session yet.
    pub fn add(&mut self, now: Time, key: PublicKey, name: String) {
        self.peers.insert(key, SourcePeer { name, confirmed: false, idle: None });
        self.note(now, &key, false);
    }

    /// Removes a peer, and returns its name.
    pub fn remove(&mut self, key: &PublicKey) -> Option<String> {
        let SourcePeer { name, idle, .. } = self.peers.remove(key)?;
        idle.and_then(|idle| self.idle.remove(&idle));
        Some(name)
    }

    /// Notes whether a peer has a session.
    pub fn note(&mut self, now: Time, key: &PublicKey, has_session: bool) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.confirmed |= has_session;
        match (has_session, peer.idle) {
            (true, Some(idle)) => {
                self.idle.remove(&idle);
                peer.idle = None;
            }
            (false, None) => {
                let keep = if peer.confirmed { KEEP } else { KEEP_UNCONFIRMED };
                self.numbers += 1;
                let idle = (now + keep, self.numbers);
                self.idle.insert(idle, *key);
                peer.idle = Some(idle);
            }
            (true, None) | (false, Some(_)) => {}
        }
    }

    /// Returns a peer that is to be forgotten.
    pub fn due(&self, now: Time) -> Option<PublicKey> {
        self.idle.first_key_value().filter(|((at, _), _)| *at <= now).map(|(_, key)| *key)
    }

    /// Returns the peer that is the first to be forgotten.
    pub fn first_idle(&self) -> Option<PublicKey> {
        self.idle.first_key_value().map(|(_, key)| *key)
    }

    /// Returns the time at which the next peer is forgotten.
    pub fn next_deadline(&self) -> Option<Time> {
        self.idle.first_key_value().map(|((at, _), _)| *at)
    }
}

/// Longer than a site needs to begin again after an outage of its links, so that most need no question.
const KEEP: Duration = Duration::from_secs(60);
/// Longer than a handshake with two retries. An initiation may be a replay, to which no session follows.
const KEEP_UNCONFIRMED: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_peer_without_a_session_is_forgotten_and_one_that_never_had_any_sooner() {
        let key = |number| PublicKey::from_bytes([number; 32]);
        let mut peers = SourcePeers::default();
        (1..=3).for_each(|number| peers.add(at(0), key(number), format!("site-{number}")));
        peers.note(at(1), &key(1), true);
        peers.note(at(1), &key(2), true);
        peers.note(at(2), &key(2), false);
        peers.note(at(5), &key(2), false);
        assert_eq!((peers.due(at(9)), peers.due(at(10))), (None, Some(key(3))));
        assert_eq!(peers.remove(&key(3)).as_deref(), Some("site-3"));
        assert_eq!((peers.due(at(61)), peers.due(at(62))), (None, Some(key(2))));
        peers.note(at(61), &key(2), true);
        assert_eq!((peers.next_deadline(), peers.first_idle(), peers.len()), (None, None, 2));
        peers.note(at(70), &key(2), false);
        assert_eq!((peers.next_deadline(), peers.remove(&key(2)).is_some()), (Some(at(130)), true));
        assert_eq!((peers.next_deadline(), peers.any()), (None, Some(key(1))));
    }
}
