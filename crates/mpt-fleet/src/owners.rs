//! The server to which a site belongs: `owners/KEY`.
//!
//! Each server has one [`Owners`], a state machine without clock and I/O. Its input is sessions of the server, records
//! of the registry, results of its own requests, and ticks. Its output is writes, reads, and sessions to end.
//!
//! A record carries a [`Token`]. A server replaces the record of another one only by a greater token:
//!
//! - A handshake has the token of its timestamp, since a site's later handshake has a later timestamp.
//! - A site that changes its server without a handshake, to a session that was in reserve or without a path, has chosen
//!   later than every claim that is in the registry. The new token is the record's, with `turn` raised by one.
//!
//! A server whose session is in use while another one holds the record with a token that is not smaller gives up that
//! session, but not at once: the news that the site holds it in reserve may be on its way. It waits [`PATIENCE`] ticks.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::registry::{Key, ServerId};

/// The order of claims: the later claim is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token {
    /// Timestamp of the handshake.
    #[serde(with = "hex")]
    pub timestamp: u128,
    /// Changes of the server since, without a handshake.
    #[serde(default)]
    pub turn: u32,
}

/// The value of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The server.
    pub server: ServerId,
    /// Its claim.
    #[serde(flatten)]
    pub token: Token,
}

/// A record as etcd has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The value; absent if it is no claim.
    pub claim: Option<Claim>,
    /// The revision that wrote it.
    pub written: u64,
    /// Its lease.
    pub lease: u64,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Write this claim, or delete the record, if the record is still that of this revision; 0: absent.
    Write {
        /// The peer.
        key: Key,
        /// The revision.
        expected: u64,
        /// The new value and its lease; absent: delete.
        claim: Option<(Claim, u64)>,
    },
    /// Read the record.
    Read {
        /// The peer.
        key: Key,
    },
    /// End the session of this peer.
    Remove {
        /// The peer.
        key: Key,
        /// The server to which it belongs.
        owner: ServerId,
    },
}

/// The claims of one server.
#[derive(Debug)]
pub struct Owners {
    server: ServerId,
    lease: Option<u64>,
    keys: HashMap<Key, Entry>,
    acts: VecDeque<Act>,
}

#[derive(Debug, Default)]
struct Entry {
    session: Option<Session>,
    /// Timestamp of the session that ended last, and the ticks for which it may return.
    ended: Option<(u128, u16)>,
    /// The state of the record, and the revision at which it was so.
    record: Option<Record>,
    seen_at: u64,
    request: Request,
}

#[derive(Debug)]
struct Session {
    timestamp: u128,
    in_use: bool,
    /// Absent: the site has just chosen this session, which is later than every claim in the registry.
    token: Option<Token>,
    /// Ticks for which another server has had a claim that is not smaller.
    lost_for: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Request {
    #[default]
    None,
    /// A write or a read is on its way.
    Sent,
    /// A request failed: the record is unknown, and is read at the next tick.
    Failed,
}

/// Ticks for which a session without a path may get one again. A tunnel forgets such a peer earlier.
const RETURN: u16 = 480;
/// Ticks until a session that another server's claim contradicts is ended.
pub const PATIENCE: u8 = 3;

impl Owners {
    /// Makes the claims of a server.
    pub fn new(server: ServerId) -> Self {
        Self { server, lease: None, keys: HashMap::new(), acts: VecDeque::new() }
    }

    /// A peer has a session, or makes another use of it.
    pub fn handle_up(&mut self, key: &Key, timestamp: u128, in_use: bool) {
        let entry = self.keys.entry(key.clone()).or_default();
        let fresh = Some(Token { timestamp, turn: 0 });
        let token = match &entry.session {
            Some(before) if !before.in_use => None,
            Some(before) if before.timestamp == timestamp => before.token,
            // The paths of the session failed, and work again.
            None if entry.ended.is_some_and(|(ended, _)| ended == timestamp) => None,
            _ => fresh,
        };
        entry.session = Some(Session { timestamp, in_use, token, lost_for: 0 });
        self.decide(key);
    }

    /// A peer has no session any more.
    pub fn handle_down(&mut self, key: &Key) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        if let Some(session) = &mut entry.session {
            session.in_use = false;
            self.decide(key);
        }
        if let Some(entry) = self.keys.get_mut(key)
            && let Some(session) = entry.session.take()
        {
            entry.ended = Some((session.timestamp, RETURN));
        }
        self.forget_if_empty(key);
    }

    /// The record of a peer was seen at a revision.
    pub fn handle_record(&mut self, key: &Key, revision: u64, record: Option<Record>) {
        let entry = self.keys.entry(key.clone()).or_default();
        if revision >= entry.seen_at {
            (entry.record, entry.seen_at) = (record, revision);
            self.decide(key);
        }
        self.forget_if_empty(key);
    }

    /// All records were read at a revision.
    pub fn handle_all(&mut self, revision: u64, records: &HashMap<Key, Record>) {
        let known: Vec<Key> = self.keys.keys().filter(|key| !records.contains_key(*key)).cloned().collect();
        for key in known {
            self.handle_record(&key, revision, None);
        }
        for (key, record) in records {
            self.handle_record(key, revision, Some(*record));
        }
    }

    /// A request ended: the record at a revision, or nothing if its effect is unknown.
    pub fn handle_result(&mut self, key: &Key, result: Option<(u64, Option<Record>)>) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.request = if result.is_some() { Request::None } else { Request::Failed };
        }
        match result {
            Some((revision, record)) => {
                self.handle_record(key, revision, record);
                self.decide(key);
                self.forget_if_empty(key);
            }
            None => self.forget_if_empty(key),
        }
    }

    /// The server has another lease, or none.
    pub fn handle_lease(&mut self, lease: Option<u64>) {
        self.lease = lease;
        for key in self.keys.keys().cloned().collect::<Vec<_>>() {
            self.decide(&key);
        }
    }

    /// Some time has passed.
    pub fn handle_tick(&mut self) {
        for (key, entry) in &mut self.keys {
            entry.ended = entry.ended.and_then(|(ended, left)| Some((ended, left.checked_sub(1)?)));
            if entry.request == Request::Failed {
                entry.request = Request::Sent;
                self.acts.push_back(Act::Read { key: key.clone() });
            }
            let winner = self.lease.and_then(|_| entry.winner(self.server));
            let Some(session) = &mut entry.session else { continue };
            let Some(owner) = winner else {
                session.lost_for = 0;
                continue;
            };
            session.lost_for = session.lost_for.saturating_add(1);
            if session.lost_for == PATIENCE {
                self.acts.push_back(Act::Remove { key: key.clone(), owner });
            }
        }
        self.keys.retain(|_, entry| !entry.is_empty());
    }

    /// Returns what is to be done next.
    pub fn poll_act(&mut self) -> Option<Act> {
        self.acts.pop_front()
    }

    /// Returns the number of peers that belong to this server.
    pub fn owned(&self) -> usize {
        self.keys.values().filter(|entry| entry.claim().is_some_and(|claim| claim.server == self.server)).count()
    }

    /// Returns the server to which a peer belongs.
    pub fn owner(&self, key: &Key) -> Option<ServerId> {
        self.keys.get(key)?.claim().map(|claim| claim.server)
    }

    /// Requests a write if the record is not as it should be.
    fn decide(&mut self, key: &Key) {
        let (Some(entry), Some(lease)) = (self.keys.get_mut(key), self.lease) else { return };
        if entry.request != Request::None {
            return;
        }
        let Some(claim) = entry.wanted(self.server, lease) else { return };
        entry.request = Request::Sent;
        let expected = entry.record.map_or(0, |record| record.written);
        self.acts.push_back(Act::Write { key: key.clone(), expected, claim: claim.map(|claim| (claim, lease)) });
    }

    fn forget_if_empty(&mut self, key: &Key) {
        if self.keys.get(key).is_some_and(Entry::is_empty) {
            self.keys.remove(key);
        }
    }
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.session.is_none() && self.ended.is_none() && self.record.is_none() && self.request != Request::Sent
    }

    fn claim(&self) -> Option<Claim> {
        self.record.and_then(|record| record.claim)
    }

    /// Returns the claim to write, `Some(None)` to delete the record, or `None` if it may stay.
    fn wanted(&mut self, server: ServerId, lease: u64) -> Option<Option<Claim>> {
        let current = self.claim();
        match self.session.as_mut().filter(|session| session.in_use) {
            Some(session) => {
                let token = session.token_over(current, server);
                let is_mine = current == Some(Claim { server, token });
                let is_held = is_mine && self.record.is_some_and(|record| record.lease == lease);
                let may_take = current.is_none_or(|claim| claim.server == server || token > claim.token);
                (!is_held && may_take).then_some(Some(Claim { server, token }))
            }
            // Without a session, a record with another lease is of an earlier process, and etcd deletes it.
            None if current.is_some_and(|claim| claim.server == server) => {
                let is_ours = self.session.is_some() || self.record.is_some_and(|record| record.lease == lease);
                is_ours.then_some(None)
            }
            None => None,
        }
    }

    /// Returns the server whose claim contradicts the session in use.
    fn winner(&self, server: ServerId) -> Option<ServerId> {
        let claim = self.claim().filter(|claim| claim.server != server)?;
        let token = self.session.as_ref().filter(|session| session.in_use)?.token?;
        (self.request == Request::None && claim.token >= token).then_some(claim.server)
    }
}

impl Session {
    /// Returns the token of this session, where the record has this claim.
    fn token_over(&mut self, current: Option<Claim>, server: ServerId) -> Token {
        let own = self.token.unwrap_or(Token { timestamp: self.timestamp, turn: 0 });
        let token = match current {
            Some(claim) if claim.server == server => own.max(claim.token),
            Some(claim) if self.token.is_none() && claim.token >= own => {
                return Token { turn: claim.token.turn + 1, ..claim.token };
            }
            _ => own,
        };
        if current.is_some_and(|claim| claim.server == server) {
            self.token = Some(token);
        }
        token
    }
}

mod hex {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(timestamp: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{timestamp:024x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::timestamp(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no timestamp of 24 digits")))
    }
}

/// Reads a timestamp: 12 bytes in hexadecimal.
pub fn timestamp(text: &str) -> Option<u128> {
    let is_hex = text.len() == 24 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

#[cfg(test)]
mod cases;
#[cfg(test)]
mod interleavings;
