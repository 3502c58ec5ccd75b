//! All state of the program, in one task. It gets events, decides, and never waits for another task.

mod claims;
mod gauges;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{error, info, warn};

use crate::cache::{Cache, CacheChange};
use crate::config::Config;
use crate::daemon::{self, Event, Message};
use crate::etcd::EtcdClient;
use crate::etcd::follow::News;
use crate::metrics::Metrics;
use crate::owners::{Owners, Record};
use crate::registry::{Key, Load, Peer, Prefix, Server};
use crate::server_list::{self, SignedList};

/// Everything that the task knows.
pub struct Fleet {
    config: Config,
    etcd: Arc<EtcdClient>,
    prefix: Prefix,
    cache: Cache,
    owners: Owners,
    tunnel: Tunnel,
    /// Questions that wait for the first copy of the registry.
    questions: Vec<(u64, Key)>,
    lease: Option<u64>,
    /// The list of servers that was last written, or refused.
    server_list: Vec<u8>,
    /// The version of the list in the file of the tunnel.
    list_version: Option<u64>,
    metrics: Metrics,
    server: watch::Sender<Server>,
    seen: Arc<AtomicU64>,
    results: mpsc::UnboundedSender<OwnerOutcome>,
}

/// The tunnel and its peers.
#[derive(Default)]
struct Tunnel {
    /// The present connection, and the sender of its lines.
    connection: Option<(u64, mpsc::Sender<String>)>,
    has_greeted: bool,
    sessions: HashMap<Key, ReportedSession>,
    /// Peers that the tunnel may have from this source.
    known: HashSet<Key>,
    /// Removals that wait for a connection.
    owed: HashMap<Key, &'static str>,
    /// Ticks since the connection began or ended.
    ticks: u32,
    nonsense: Option<Instant>,
}

struct ReportedSession {
    in_use: bool,
    /// The connection on which the tunnel reported it.
    connection: u64,
}

/// The end of a request for the record of an owner.
pub struct OwnerOutcome(Key, Option<(u64, Option<Record>)>);

/// The channels of the task.
pub struct Inputs {
    /// Of the tunnel.
    pub tunnel: mpsc::Receiver<Event>,
    /// Of the registry.
    pub news: mpsc::Receiver<News>,
    /// Leases of this server.
    pub leases: mpsc::Receiver<Option<u64>>,
    /// Requests for the metrics.
    pub scrapes: mpsc::Receiver<oneshot::Sender<String>>,
    /// Requests for the records of owners that ended.
    pub results: mpsc::UnboundedReceiver<OwnerOutcome>,
}

impl Fleet {
    /// Makes the state. `server` takes the record of this server, and `seen` the revision of the copy.
    pub fn new(
        config: Config,
        etcd: Arc<EtcdClient>,
        server: watch::Sender<Server>,
        seen: Arc<AtomicU64>,
        results: mpsc::UnboundedSender<OwnerOutcome>,
    ) -> Self {
        let prefix = Prefix::new(&config.cluster);
        Self {
            cache: Cache::new(prefix.clone()),
            owners: Owners::new(config.server_id),
            tunnel: Tunnel::default(),
            questions: Vec::new(),
            lease: None,
            server_list: Vec::new(),
            list_version: None,
            metrics: Metrics::default(),
            config,
            etcd,
            prefix,
            server,
            seen,
            results,
        }
    }

    /// Handles events until `stop` is ready; then gives the lease back.
    pub async fn run(mut self, mut inputs: Inputs, stop: impl Future<Output = ()>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(event) = inputs.tunnel.recv() => self.handle_tunnel(event),
                Some(news) = inputs.news.recv() => self.handle_news(news),
                Some(lease) = inputs.leases.recv() => self.handle_lease(lease),
                Some(OwnerOutcome(key, result)) = inputs.results.recv() => {
                    self.metrics.failed_writes += u64::from(result.is_none());
                    self.owners.handle_result(&key, result);
                }
                Some(reply) = inputs.scrapes.recv() => drop(reply.send(self.metrics())),
                _ = ticks.tick() => self.handle_tick(),
            }
            self.carry_out();
        }
        if let Some(lease) = self.lease {
            let _ = self.etcd.revoke(lease).await;
        }
    }

    fn handle_tunnel(&mut self, event: Event) {
        let is_present =
            |connection| self.tunnel.connection.as_ref().is_some_and(|(present, _)| *present == connection);
        match event {
            Event::Connected(connection, lines) => {
                self.tunnel.connection = Some((connection, lines));
                (self.tunnel.has_greeted, self.tunnel.ticks) = (false, 0);
            }
            Event::Closed(connection) if is_present(connection) => {
                if self.tunnel.has_greeted {
                    warn!("the tunnel has disconnected; waits for it");
                }
                self.disconnect();
            }
            Event::Message(connection, message) if is_present(connection) => self.handle_message(connection, message),
            Event::Nonsense(connection) if is_present(connection) => self.note_nonsense(),
            Event::Closed(_) | Event::Message(..) | Event::Nonsense(_) => {}
        }
    }

    fn handle_message(&mut self, connection: u64, message: Message) {
        match message {
            Message::Hello { version, server_id, public_key, enrolment_key } => {
                self.greet(version, server_id, public_key, enrolment_key);
            }
            _ if !self.tunnel.has_greeted => self.note_nonsense(),
            Message::Up { key, timestamp, in_use } => {
                self.tunnel.sessions.insert(key.clone(), ReportedSession { in_use, connection });
                self.tunnel.known.insert(key.clone());
                self.owners.handle_up(&key, timestamp, in_use);
                self.remove_if_not_admitted(&key);
            }
            Message::Down { key } => {
                self.tunnel.sessions.remove(&key);
                self.owners.handle_down(&key);
            }
            Message::Ask { number, key } if self.cache.is_loaded() => self.answer(number, key),
            Message::Ask { number, key } if self.questions.len() < MAX_QUESTIONS => self.questions.push((number, key)),
            Message::Ask { .. } => self.metrics.unanswered += 1,
        }
    }

    fn greet(&mut self, version: u64, server_id: u64, public_key: Key, enrolment_key: Option<Key>) {
        let expected = self.config.server_id;
        if version != 1 || server_id != u64::from(expected.get()) {
            error!(
                "the tunnel has server_id {server_id} and messages of version {version}, expected {expected} and 1; \
                 hint: server_id must be the same in fleet.toml and in the file of the tunnel"
            );
            self.disconnect();
            return;
        }
        info!("the tunnel is connected, with the public key {public_key}");
        self.tunnel.has_greeted = true;
        self.server.send_modify(|server| {
            (server.public_key, server.enrolment_key) = (Some(public_key), enrolment_key);
        });
        // A drain ends with the connection.
        if self.is_draining() {
            self.send_drain();
        }
        for (key, reason) in std::mem::take(&mut self.tunnel.owed) {
            self.send_removal(&key, reason);
        }
    }

    fn note_nonsense(&mut self) {
        self.metrics.nonsense += 1;
        if self.tunnel.nonsense.is_none_or(|logged| logged.elapsed() > LOG_PAUSE) {
            warn!("the tunnel sends lines that are no messages ({} so far)", self.metrics.nonsense);
            self.tunnel.nonsense = Some(Instant::now());
        }
    }

    fn answer(&mut self, number: u64, key: Key) {
        let admitted = self.admitted(&key).map(|peer| peer.table(&key));
        match &admitted {
            Ok(_) => {
                self.metrics.admitted += 1;
                self.tunnel.known.insert(key);
            }
            Err(_) => self.metrics.refused += 1,
        }
        self.send(daemon::answer(number, admitted.map_err(str::to_owned)));
    }

    fn admitted(&self, key: &Key) -> Result<&Peer, &'static str> {
        match self.cache.peer(key) {
            _ if self.is_draining() => Err("this server is draining"),
            None => Err("unknown key"),
            Some(peer) if peer.revoked => Err("revoked"),
            Some(peer) if !peer.is_admitted_at(self.config.server_id) => Err("not admitted at this server"),
            Some(peer) => Ok(peer),
        }
    }

    fn is_draining(&self) -> bool {
        self.cache.draining().contains(&self.config.server_id)
    }

    fn remove_if_not_admitted(&mut self, key: &Key) {
        if let Some(Err(reason)) = self.cache.is_loaded().then(|| self.admitted(key).map(drop))
            && !self.is_draining()
        {
            self.send_removal(key, reason);
        }
    }

    fn handle_news(&mut self, news: News) {
        let was_draining = self.is_draining();
        match news {
            News::All(revision, items) => {
                let (peers, owners) = self.cache.replace(revision, &items);
                info!("the registry has {} peers, at revision {revision}", self.cache.peers().len());
                self.owners.handle_all(revision, &owners);
                peers.into_iter().for_each(|(key, before)| self.handle_peer(&key, before));
                for (number, key) in std::mem::take(&mut self.questions) {
                    self.answer(number, key);
                }
                // Skips the sessions whose removal was sent just now: a key leaves `known` then.
                let known = self.tunnel.sessions.keys().filter(|key| self.tunnel.known.contains(*key));
                for key in known.cloned().collect::<Vec<_>>() {
                    self.remove_if_not_admitted(&key);
                }
                self.metrics.is_following = true;
            }
            News::Changes(items) => {
                for item in items {
                    match self.cache.apply(&item) {
                        CacheChange::Peer(key, before) => self.handle_peer(&key, before),
                        CacheChange::Owner(key, revision, record) => self.owners.handle_record(&key, revision, record),
                        CacheChange::Other => {}
                    }
                }
                self.metrics.is_following = true;
            }
            News::Ended(reason) => {
                if self.metrics.is_following || self.metrics.watch_ended == 0 {
                    warn!("{reason}; answers come from the copy of revision {}; tries again", self.cache.revision());
                }
                self.metrics.is_following = false;
                self.metrics.watch_ended += 1;
            }
        }
        self.seen.store(self.cache.revision(), Ordering::Relaxed);
        self.write_server_list();
        if self.is_draining() != was_draining {
            self.send_drain();
        }
    }

    /// Writes a new list of servers for the tunnel.
    fn write_server_list(&mut self) {
        let Some(bytes) = self.cache.server_list().filter(|bytes| *bytes != self.server_list) else { return };
        self.server_list = bytes.to_vec();
        let file = self.config.server_list.display();
        match SignedList::read(bytes) {
            Ok(SignedList { version, text, .. }) => match server_list::write(&self.config.server_list, &text) {
                Ok(()) => {
                    self.list_version = Some(version);
                    info!("the list of servers has version {version}, and is in {file}");
                }
                Err(error) => warn!(
                    "cannot write the list of servers to {file}: {error}; sites get the one before; \
                     hint: server_list = ... in fleet.toml chooses another file"
                ),
            },
            Err(failure) => warn!("servers-list of the registry is not used: {failure}"),
        }
    }

    /// Ends the session of a peer whose record has changed.
    fn handle_peer(&mut self, key: &Key, before: Option<Peer>) {
        if !self.tunnel.known.contains(key) {
            return;
        }
        let now = self.cache.peer(key);
        let is_admitted = now.is_some_and(|peer| peer.is_admitted_at(self.config.server_id));
        let reason = match (now, before) {
            (None, _) => "deleted",
            (Some(peer), _) if peer.revoked => "revoked",
            _ if !is_admitted => "not admitted at this server",
            (Some(peer), Some(before)) if peer.table(key) != before.table(key) => "changed",
            _ => return,
        };
        self.send_removal(key, reason);
    }

    fn handle_lease(&mut self, lease: Option<u64>) {
        self.metrics.leases_lost += u64::from(lease.is_none());
        self.lease = lease;
        self.owners.handle_lease(lease);
    }

    fn handle_tick(&mut self) {
        self.owners.handle_tick();
        self.tunnel.ticks = self.tunnel.ticks.saturating_add(1);
        // A tunnel reports its sessions again after it has connected. The others are gone.
        if self.tunnel.ticks == SWEEP {
            let present = self.tunnel.connection.as_ref().map(|(connection, _)| *connection);
            let is_stale = |session: &ReportedSession| Some(session.connection) != present;
            let stale: Vec<_> = self.tunnel.sessions.extract_if(|_, session| is_stale(session)).collect();
            stale.iter().for_each(|(key, _)| self.owners.handle_down(key));
        }
        let in_use = self.tunnel.sessions.values().filter(|session| session.in_use).count();
        let load = Load { sessions: self.tunnel.sessions.len(), in_use };
        self.server.send_if_modified(|server| std::mem::replace(&mut server.load, load) != load);
    }

    fn send_removal(&mut self, key: &Key, reason: &'static str) {
        self.metrics.removed += 1;
        self.tunnel.known.remove(key);
        info!("the session of {key} ends: {reason}");
        if !self.send(daemon::remove(key, reason)) {
            self.tunnel.owed.insert(key.clone(), reason);
        }
    }

    fn send_drain(&mut self) {
        let drains = self.is_draining();
        info!("server {} {}", self.config.server_id, if drains { "drains" } else { "admits sites" });
        self.send(daemon::drain(drains));
    }

    /// Sends a line. Returns false without a tunnel. One that reads no more loses its connection.
    fn send(&mut self, line: String) -> bool {
        let Some((_, lines)) = self.tunnel.connection.as_ref().filter(|_| self.tunnel.has_greeted) else {
            return false;
        };
        let is_sent = lines.try_send(line).is_ok();
        if !is_sent {
            warn!("the tunnel reads no more; its connection ends");
            self.disconnect();
        }
        is_sent
    }

    fn disconnect(&mut self) {
        (self.tunnel.connection, self.tunnel.has_greeted, self.tunnel.ticks) = (None, false, 0);
        self.questions.clear();
        self.server.send_modify(|server| (server.public_key, server.enrolment_key) = (None, None));
    }
}

/// Between ticks.
const TICK: Duration = Duration::from_millis(500);
/// Ticks after which sessions that a tunnel has not reported on its new connection are gone, and all without one.
const SWEEP: u32 = 20;
/// Questions that wait for the first copy of the registry.
const MAX_QUESTIONS: usize = 4096;
/// Between two lines in the log about the same.
const LOG_PAUSE: Duration = Duration::from_secs(60);
