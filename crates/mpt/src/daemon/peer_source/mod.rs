//! Peers on demand: an unknown key that initiates is a question to the source of peers, whose answer is a peer like one
//! of a file. `docs/peer-source.md` has the messages.
//!
//! ```text
//! core: unknown key --> ask --> source --> answer --> parse, check, compare with the others --> core: add peer
//!                                      --> remove, drain --> core: remove peer
//! core: session of a peer --> up, down --> source
//! ```
//!
//! Peers of the source are in the core and in [`SourcePeers`], not in the configuration: a reload does not touch them,
//! and nothing here can remove a peer of a file. Established sessions do not need the source.

mod admit;
mod announce;
pub mod connection;
mod message;
mod peers;

use std::collections::BTreeMap;

use mpt_linux::reactor::Ready;
use mpt_proto::Availability;
use mpt_proto::crypto::handshake::enrolment::key_of_tunnel;
use mpt_proto::crypto::keys::PublicKey;
use mpt_proto::endpoint::{QUESTION_TIME, UnknownKey};
use mpt_proto::peer::Peer;
use mpt_proto::time::Time;
use mpt_proto::wire::frame::CloseFrame;

use super::rare_log::RareLog;
use super::{Daemon, PEER_SOURCE};
use crate::config::{File, peer_source};
use crate::control::feature_reports::PeerSourceReport;
use announce::Announcements;
use connection::SourceConnection;
use message::{FromSource, Hex, Text, ToSource};
use peers::SourcePeers;

/// The source of peers, what it has answered, and what it knows.
#[derive(Debug)]
pub struct PeerSourceClient {
    config: peer_source::PeerSource,
    /// The configuration without peers, in which each answer is checked.
    template: File,
    connection: SourceConnection,
    peers: SourcePeers,
    announcements: Announcements,
    next_question: u64,
    /// The questions of this connection that are not answered.
    asked: BTreeMap<u64, (Time, PublicKey)>,
    /// No peer of the source is served, until the source ends this or the connection.
    drained: bool,
    counts: Counts,
    bad_line: RareLog,
    bad_peer: RareLog,
    full: RareLog,
}

#[derive(Debug, Default)]
struct Counts {
    asked: u64,
    added: u64,
    refused: u64,
    bad_lines: u64,
    bad_peers: u64,
    removed: u64,
    evicted: u64,
}

impl PeerSourceClient {
    /// Makes the source of a configuration, if it has one.
    pub fn of(file: &File) -> Option<Self> {
        let config = file.peer_source.clone()?;
        let connection = SourceConnection::new(config.socket.value.clone(), PEER_SOURCE);
        Some(Self {
            config,
            template: template(file),
            connection,
            peers: SourcePeers::default(),
            announcements: Announcements::default(),
            next_question: 1,
            asked: BTreeMap::new(),
            drained: false,
            counts: Counts::default(),
            bad_line: RareLog::default(),
            bad_peer: RareLog::default(),
            full: RareLog::default(),
        })
    }

    /// Takes a configuration that was read again. Peers that are known keep the earlier one.
    pub fn on_reload(&mut self, file: &File) {
        self.template = template(file);
        if let Some(config) = &file.peer_source {
            self.config = config.clone();
        }
    }

    /// A peer of a file is gone, and its session with it.
    pub fn on_peer_removed(&mut self, key: &PublicKey) {
        self.announcements.set(key, None, "removed");
    }

    /// Returns the state for `mpt status`.
    pub fn report(&self) -> PeerSourceReport {
        let Counts { asked, added, refused, bad_lines, bad_peers, removed, evicted } = self.counts;
        PeerSourceReport {
            socket: self.connection.path().display().to_string(),
            connected: self.connection.is_open(),
            drained: self.drained,
            peers: self.peers.len(),
            sessions: self.announcements.count,
            asked,
            added,
            refused,
            bad_lines,
            bad_peers,
            removed,
            evicted,
            lost_connections: self.connection.losses,
        }
    }

    fn ask(&mut self, now: Time, about: &UnknownKey) {
        while let Some(first) = self.asked.first_entry().filter(|first| now.since(first.get().0) >= QUESTION_TIME) {
            first.remove();
        }
        let number = self.next_question;
        self.next_question += 1;
        self.asked.insert(number, (now, about.key));
        self.counts.asked += 1;
        self.connection.send(&ToSource::Ask { ask: number, key: Text(&about.key), timestamp: Hex(about.timestamp) });
    }
}

fn template(file: &File) -> File {
    File { peers: Vec::new(), warnings: Vec::new(), ..file.clone() }
}

impl Daemon {
    /// Reads from the source.
    pub(super) fn handle_peer_source(&mut self, now: Time, ready: &Ready) {
        if let Some(source) = self.peer_source.as_mut().filter(|_| ready.readable) {
            source.connection.receive(now);
        }
    }

    /// Takes the messages of the source, and sends questions about unknown keys.
    pub(super) fn poll_peer_source(&mut self, now: Time) {
        let Some(source) = &mut self.peer_source else { return };
        let was_open = source.connection.is_open();
        if source.connection.connect(now, self.workers.reactor()) {
            self.greet_source(now);
        } else if !was_open {
            self.end_drain();
        }
        for _ in 0..MAX_LINES {
            let line = self.peer_source.as_mut().and_then(|source| source.connection.next_line(now));
            let Some(line) = line else { break };
            self.handle_line(now, &line);
        }
        self.ask_source(now);
        self.drain_some(now);
        self.evict_peers(now);
    }

    /// Sends to the source what has changed in this turn. Returns the next deadline of [`Self::poll_peer_source`].
    pub(super) fn flush_peer_source(&mut self, now: Time) -> Option<Time> {
        let source = self.peer_source.as_mut()?;
        let endpoint = &self.workers;
        let announces = source.announcements.send(endpoint, &mut source.connection);
        source.connection.flush(now, self.workers.reactor());
        if !source.connection.is_open() {
            source.asked.clear();
        }
        let drains = source.drained && source.peers.len() > 0;
        let again = source.connection.has_line() || drains || announces && source.connection.has_room();
        let peers = source.peers.next_deadline();
        [source.connection.next_deadline(), again.then_some(now), peers].into_iter().flatten().min()
    }

    fn greet_source(&mut self, now: Time) {
        let Some(source) = &mut self.peer_source else { return };
        let Some(identity) = &self.file.identity else { return };
        let (public_key, enrolment_key) = (Text(identity.public()), Text(*key_of_tunnel(identity).public()));
        let server_id = self.file.server_id;
        source.connection.send(&ToSource::Hello { hello: 1, server_id, public_key, enrolment_key });
        source.announcements.begin_again();
        source.asked.clear();
        source.drained = false;
        // The questions of the last connection are open, and so are those that came while there was none.
        while self.workers.poll_unknown_key().is_some() {}
        for about in self.workers.unknown_keys(now) {
            source.ask(now, &about);
        }
    }

    fn end_drain(&mut self) {
        if let Some(source) = self.peer_source.as_mut().filter(|source| source.drained) {
            source.drained = false;
            tracing::info!("the source of peers is gone, which ends the drain");
        }
    }

    fn ask_source(&mut self, now: Time) {
        let Some(source) = &mut self.peer_source else { return };
        while source.drained || source.connection.has_room() {
            let Some(about) = self.workers.poll_unknown_key() else { return };
            match source.drained {
                true => self.workers.refuse_unknown_key(now, &about.key),
                false => source.ask(now, &about),
            }
        }
    }

    fn handle_line(&mut self, now: Time, line: &[u8]) {
        let Some(source) = &mut self.peer_source else { return };
        match FromSource::decode(line) {
            Ok(FromSource::Peer { answer, body }) => {
                let Some((_, key)) = source.asked.remove(&answer) else {
                    return tracing::debug!(answer, "an answer to no open question");
                };
                if let Err(failure) = self.add_source_peer(now, key, &body) {
                    self.refuse_bad_peer(now, &key, &failure);
                }
            }
            Ok(FromSource::No { answer, why }) => {
                let Some((_, key)) = source.asked.remove(&answer) else { return };
                source.counts.refused += 1;
                tracing::debug!(%key, why, "refused by the source of peers");
                self.workers.refuse_unknown_key(now, &key);
            }
            Ok(FromSource::Remove { key, reason }) => {
                self.close_source_peer(now, &key, CloseFrame::REMOVED, &reason);
                let Some(name) = self.remove_source_peer(&key, "removed") else {
                    return tracing::debug!(%key, "not a peer of the source, and not removed");
                };
                self.count(|counts| counts.removed += 1);
                tracing::info!(peer = name, reason, "removed by the source of peers");
            }
            Ok(FromSource::Drain(on)) => self.set_drained(on),
            Err(error) => {
                source.counts.bad_lines += 1;
                if source.bad_line.may_log(now) {
                    let bad = source.counts.bad_lines;
                    tracing::warn!(
                        error,
                        bad,
                        "a line of the source of peers is no message; hint: docs/peer-source.md"
                    );
                }
            }
        }
    }

    fn set_drained(&mut self, on: bool) {
        let Some(source) = &mut self.peer_source else { return };
        if std::mem::replace(&mut source.drained, on) != on {
            let peers = source.peers.len();
            match on {
                true => tracing::info!(peers, "drained by the source of peers: its sessions end"),
                false => tracing::info!("the source of peers has ended the drain"),
            }
        }
    }

    /// Sends the end of its session to a peer of the source, which is removed then.
    fn close_source_peer(&mut self, now: Time, key: &PublicKey, code: u16, reason: &str) {
        let has = self.peer_source.as_ref().is_some_and(|source| source.peers.contains(key));
        if let Some(index) = self.workers.index_of_key(key).filter(|_| has) {
            self.workers.close(now, index, code, reason);
        }
    }

    /// Removes some peers while the source drains this server.
    fn drain_some(&mut self, now: Time) {
        for _ in 0..MAX_REMOVALS {
            let source = self.peer_source.as_ref().filter(|source| source.drained);
            let Some(key) = source.and_then(|source| source.peers.any()) else { return };
            self.close_source_peer(now, &key, CloseFrame::STOPPING, "drained");
            self.remove_source_peer(&key, "drained");
            self.count(|counts| counts.removed += 1);
        }
    }

    /// Removes a peer of the source with its session and its routes; `reason` is for the source. Returns its name; none
    /// if the source has no such peer.
    pub(super) fn remove_source_peer(&mut self, key: &PublicKey, reason: &'static str) -> Option<String> {
        let source = self.peer_source.as_mut()?;
        let name = source.peers.remove(key)?;
        source.announcements.set(key, None, reason);
        if let Err(error) = self.workers.remove_peer(&name) {
            tracing::warn!(peer = name, %error, "peer not removed");
        }
        self.forget_session_routes(&name);
        Some(name)
    }

    /// Notes the state of a peer's session, for the source and for the time for which its peer is kept.
    pub(super) fn note_session(&mut self, now: Time, index: usize, availability: Availability) {
        let Some(source) = &mut self.peer_source else { return };
        let Some(key) = self.workers.peer(index).and_then(Peer::public_key) else { return };
        source.announcements.set(key, message::role(availability), "expired");
        source.peers.note(now, key, availability != Availability::Unreachable);
    }

    fn evict_peers(&mut self, now: Time) {
        for _ in 0..MAX_REMOVALS {
            let due = self.peer_source.as_ref().and_then(|source| source.peers.due(now));
            let Some(key) = due else { return };
            self.evict(&key);
        }
    }

    fn evict(&mut self, key: &PublicKey) {
        if let Some(name) = self.remove_source_peer(key, "expired") {
            tracing::debug!(peer = name, "peer of the source forgotten: it has no session");
            self.count(|counts| counts.evicted += 1);
        }
    }

    fn count(&mut self, count: impl FnOnce(&mut Counts)) {
        if let Some(source) = &mut self.peer_source {
            count(&mut source.counts);
        }
    }
}

/// Lines of the source that are handled in one turn: as many as the core handles initiations. An answer with the end of
/// its handshake takes 0.15 ms.
const MAX_LINES: usize = 4;
/// Peers that are removed in one turn.
const MAX_REMOVALS: usize = 16;
