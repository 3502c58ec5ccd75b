//! News of sessions for the source: `up` and `down`. A state that ends before the source reads is not sent,
//! so what waits is bounded by the number of peers.

use std::collections::{HashMap, VecDeque};

use crate::daemon::workers::Workers;
use mpt_proto::crypto::keys::PublicKey;

use super::connection::SourceConnection;
use super::message::{Hex, Text, ToSource};

/// The sessions of all peers, and what the source knows of them.
#[derive(Debug, Default)]
pub struct Announcements {
    sessions: HashMap<PublicKey, Session>,
    /// The peers whose state the source does not know, each once.
    waiting: VecDeque<PublicKey>,
    /// Number of peers that have a session.
    pub count: usize,
}

#[derive(Debug, Default)]
struct Session {
    role: Option<&'static str>,
    sent: Option<&'static str>,
    /// The reason for the end of the session.
    reason: &'static str,
    waits: bool,
}

impl Announcements {
    /// Notes the role of a peer's session; none if there is no session, for this reason.
    pub fn set(&mut self, key: &PublicKey, role: Option<&'static str>, reason: &'static str) {
        if role.is_none() && !self.sessions.contains_key(key) {
            return;
        }
        let session = self.sessions.entry(*key).or_default();
        if session.role == role {
            return;
        }
        self.count = self.count + usize::from(role.is_some()) - usize::from(session.role.is_some());
        (session.role, session.reason) = (role, reason);
        if !std::mem::replace(&mut session.waits, true) {
            self.waiting.push_back(*key);
        }
    }

    /// A source that knows nothing is connected.
    pub fn begin_again(&mut self) {
        self.sessions.retain(|_, session| {
            (session.sent, session.waits) = (None, session.role.is_some());
            session.waits
        });
        self.waiting = self.sessions.keys().copied().collect();
    }

    /// Sends some of what waits. Returns true if there is more.
    pub fn send(&mut self, workers: &Workers, connection: &mut SourceConnection) -> bool {
        for _ in 0..MAX_SENT {
            if !connection.has_room() {
                return true;
            }
            let Some(key) = self.waiting.pop_front() else { return false };
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            session.waits = false;
            if session.role != session.sent {
                announce(workers, connection, &key, session);
                session.sent = session.role;
            }
            if session.role.is_none() {
                self.sessions.remove(&key);
            }
        }
        !self.waiting.is_empty()
    }
}

fn announce(workers: &Workers, connection: &mut SourceConnection, key: &PublicKey, session: &Session) {
    let peer = workers.index_of_key(key).and_then(|index| workers.peer(index));
    match (session.role, peer) {
        (Some(role), Some(peer)) => {
            let (name, timestamp) = (peer.name(), Hex(peer.timestamp()));
            connection.send(&ToSource::Up { event: "up", key: Text(key), name, timestamp, role });
        }
        _ => connection.send(&ToSource::Down { event: "down", key: Text(key), reason: session.reason }),
    }
}

/// Events that are sent in one turn.
const MAX_SENT: usize = 64;
