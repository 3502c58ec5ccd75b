//! Where the peer is. A path's remote address follows the peer when it roams or a translator on the way forgets it, by the
//! rules of RFC 9000 sections 8.2 and 9.
//!
//! ```text
//!  authentic, newest of its path, from elsewhere      the challenge comes back from there
//! remote ------------------------------------> moving ------------------------------------> remote is there
//!    ^   data goes on to the address before      | a newer datagram from the address before
//!    '-------------------------------------------'
//! ```
//!
//! A replayed datagram never gets here, and one that was only overtaken is not the newest, so neither moves anything. Whoever
//! sends on what it has seen from an address of its own gets a challenge that only the peer can answer. Until then an
//! address is sent at most three times what came from it, so that nobody is flooded in somebody's name.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::{PROBE_TOS, Peer};
use super::Native;
use crate::config::PathConfig;
use crate::endpoint::RecvMeta as From;
use crate::path::{LinkId, MAX_PATHS, Path, PathId};
use crate::sessions::SessionTable;
use crate::time::Time;
use crate::tx::TxQueue;
use crate::wire::frame::{self, Frame, Writer};
use crate::wire::native::{HEADER, OVERHEAD, PathTag};

/// An address that the peer has called from and is not known to be at.
#[derive(Debug)]
pub(super) struct PathValidation {
    link: LinkId,
    remote: SocketAddr,
    /// What must come back from there, once it has been sent.
    secret: Option<[u8; 8]>,
    /// What the peer wants back from there.
    challenged: Option<[u8; 8]>,
    /// Bytes that may still be sent there.
    credit: usize,
    tries: u32,
    next: Option<Time>,
    /// The peer told us that it can be reached there.
    advertised: bool,
}

/// RFC 9000 section 8.1: what an address that is not proven may get for each byte that came from it.
const AMPLIFICATION: usize = 3;
/// Before the second challenge; each later one waits twice as long.
const RETRY: Duration = Duration::from_millis(100);
/// Challenges in a row that may stay unanswered. Whoever goes on calling is asked again.
const TRIES: u32 = 5;
/// Between rounds of challenges to an address that the peer told and is not heard from.
const PAUSE: Duration = Duration::from_secs(30);
/// A challenge and a response, each with kind and length.
const WORDS: usize = 2 * (3 + 9);

impl PathValidation {
    fn new(now: Time, from: &From) -> Self {
        Self {
            link: from.link,
            remote: from.from,
            secret: None,
            challenged: None,
            credit: 0,
            tries: 0,
            next: Some(now),
            advertised: false,
        }
    }

    /// One that the peer has told. A peer could tell somebody else's, so it is asked first, and seldom when it is silent.
    pub(super) fn advertised(now: Time, link: LinkId, remote: SocketAddr) -> Self {
        let credit = TRIES as usize * (OVERHEAD + WORDS);
        Self { link, remote, secret: None, challenged: None, credit, tries: 0, next: Some(now), advertised: true }
    }

    fn is_at(&self, from: &From) -> bool {
        (self.link, self.remote) == (from.link, from.from)
    }

    fn on_received(&mut self, now: Time, len: usize) {
        self.credit += AMPLIFICATION * len;
        if self.next.is_none() {
            (self.tries, self.next) = (0, Some(now));
        }
    }

    /// The peer wants its challenge back from there.
    pub(super) fn on_challenge(&mut self, bytes: [u8; 8]) {
        self.challenged = Some(bytes);
    }

    /// When the next challenge is due.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.next.filter(|_| self.credit >= OVERHEAD + WORDS)
    }

    /// What is to be said there now: our challenge, and the answer to the peer's, unless this end does not use the path.
    fn poll(&mut self, now: Time, used: bool, draw: impl FnOnce() -> [u8; 8]) -> Option<[Option<Frame<'static>>; 2]> {
        if self.credit < OVERHEAD + WORDS {
            return None;
        }
        let due = self.next.is_some_and(|at| at <= now);
        if due {
            self.tries += 1;
            self.next = (self.tries < TRIES).then(|| now + RETRY * 2u32.pow(self.tries - 1));
            if self.advertised && self.next.is_none() {
                *self = Self {
                    secret: self.secret,
                    next: Some(now + PAUSE),
                    ..Self::advertised(now, self.link, self.remote)
                };
            }
        }
        let challenge = due.then(|| Frame::Path(frame::PathFrame::Challenge(*self.secret.get_or_insert_with(draw))));
        let response =
            self.challenged.take().filter(|_| used).map(|bytes| Frame::Path(frame::PathFrame::Response(bytes)));
        (challenge.is_some() || response.is_some()).then_some([challenge, response])
    }
}

impl Peer {
    /// Which of our paths leads back to where a datagram came from, and whether that is where the peer is not known to be.
    /// `newest` says that none that was sent later on the peer's path has come before.
    pub(super) fn resolve_path(
        &mut self,
        now: Time,
        from: &From,
        tag: PathTag,
        newest: bool,
        len: usize,
        native: &mut Native,
    ) -> (Option<u8>, bool) {
        let theirs = usize::from(tag.slot());
        let mirror = native.reverse_path[theirs].map(|(own, _)| own);
        let here = |path: &&Path| path.link == from.link && path.remote == from.from;
        if let Some(slot) = self.paths.iter().find(here).map(|path| path.id.slot) {
            if newest || mirror.is_none() {
                native.reverse_path[theirs] = Some((slot, tag.generation()));
                native.closed[theirs] = None;
            }
            let unproven = !self.paths[usize::from(slot)].validated;
            let carrier = &mut native.carriers[usize::from(slot)];
            match &mut carrier.validation {
                Some(there) if unproven => {
                    if newest && !there.is_at(from) {
                        *there = PathValidation::new(now, from);
                    }
                    if !there.is_at(from) {
                        return (None, false);
                    }
                    there.on_received(now, len);
                }
                // It is where it was.
                _ if newest => carrier.validation = None,
                _ => {}
            }
            return (Some(slot), unproven);
        }
        if mirror.is_none() && native.closed[theirs] == Some(tag.generation()) {
            return (None, false);
        }
        let Some(slot) = mirror.or_else(|| self.add_remote_path(now, from, native)) else { return (None, false) };
        let moving = &mut native.carriers[usize::from(slot)].validation;
        if newest && moving.as_ref().is_none_or(|there| !there.is_at(from)) {
            *moving = Some(PathValidation::new(now, from));
        }
        let Some(there) = moving.as_mut().filter(|there| there.is_at(from)) else { return (None, false) };
        there.on_received(now, len);
        native.reverse_path[theirs] = Some((slot, tag.generation()));
        (Some(slot), true)
    }

    /// The peer calls from a path that we did not know. It carries nothing but challenges until it answers one.
    fn add_remote_path(&mut self, now: Time, from: &From, native: &mut Native) -> Option<u8> {
        let slot = self.free_slot().or_else(|| self.evict_path(now, native))?;
        let config = PathConfig { remote: Some(from.from), alive: false, ..self.expected_path(slot, from) };
        let path = Path { learned: true, validated: false, ..Path::new(now, slot, &config, Some(self.probe)) };
        let id = self.put_path(path, native, config.cap);
        native.carriers[usize::from(id.slot)].validation = Some(PathValidation::new(now, from));
        Some(id.slot)
    }

    /// What a path is to be that the peer calls from: what is configured for one over this link, until there is one, or one as good as any other.
    fn expected_path(&self, slot: u8, from: &From) -> PathConfig {
        let is_free = |name: &str| self.paths.iter().all(|path| path.name != name);
        let mut awaited = self.expected.iter().filter(|config| config.link == from.link);
        if let Some(config) = awaited.find(|config| is_free(&config.name)) {
            return config.clone();
        }
        let is_unused = |name: &String| is_free(name) && self.expected.iter().all(|config| config.name != *name);
        let mut names = (u32::from(slot) + 1..).map(|number| format!("path{number}"));
        PathConfig::new(names.find(is_unused).expect("there are more numbers than paths"), from.link, from.from)
    }

    /// The peer has answered from where it was not known to be.
    pub(super) fn on_path_response(&mut self, now: Time, own: Option<u8>, proof: [u8; 8], native: &mut Native) {
        let Some(slot) = own.map(usize::from) else { return };
        let Some(there) = native.carriers[slot].validation.take_if(|there| there.secret == Some(proof)) else { return };
        let path = &mut self.paths[slot];
        let is_far = path.validated && path.remote.ip() != there.remote.ip();
        (path.link, path.remote, path.validated) = (there.link, there.remote, true);
        native.fail_path(now, self.paths[slot].id);
        if is_far {
            // RFC 9000 section 9.4: what was known of the way is not known of another one.
            native.reset_estimates(self.paths[slot].id);
        }
        native.carriers[slot].challenged = there.challenged;
        if let Some(prober) = self.paths[slot].liveness.prober() {
            prober.on_validated(now);
        }
        self.change(now, slot, |health| (health.answers, health.peer_agrees) = (true, true));
    }

    /// Challenges addresses that the peer is not known to be at, as far as they may be sent anything.
    pub(super) fn send_challenges(
        &mut self,
        now: Time,
        native: &mut Native,
        local: &mut SessionTable,
        tx: &mut TxQueue,
    ) {
        for path in &mut self.paths {
            let Native { carriers, association, .. } = native;
            let Some(there) = &mut carriers[usize::from(path.id.slot)].validation else { continue };
            let used = path.health.may_send();
            let Some(frames) = there.poll(now, used, || local.challenge()) else { continue };
            let mut body = [0; WORDS];
            let mut writer = Writer::new(&mut body);
            for frame in frames.iter().flatten() {
                writer.push(frame).expect("there is room for both");
            }
            let len = writer.len();
            let mut datagram = tx.reserve(there.link, there.remote, PROBE_TOS, OVERHEAD + len);
            datagram.bytes()[HEADER..HEADER + len].copy_from_slice(&body[..len]);
            if association.seal(now, path.id, datagram.bytes()).is_err() {
                continue;
            }
            datagram.commit();
            there.credit -= OVERHEAD + len;
            path.sent.count(OVERHEAD + len);
        }
    }

    /// Makes room in the place of the path that has been silent for longest, among those that only the peer named.
    fn evict_path(&mut self, now: Time, native: &mut Native) -> Option<u8> {
        let silent = self.paths.iter().filter(|path| path.learned && !path.health.state().is_up());
        let slot = silent.min_by_key(|path| path.last_received)?.id.slot;
        self.drop_path(now, usize::from(slot), native);
        Some(slot)
    }

    /// Forgets a path. To the peer it may be one that is out of reach for a while, so it is not told to leave it alone, and may call from
    /// there again.
    pub(super) fn drop_path(&mut self, now: Time, slot: usize, native: &mut Native) {
        let severed = native.closed;
        self.clear_slot(now, slot, native);
        native.closed = severed;
        self.draining &= !(1 << slot);
    }

    /// Forgets the paths that only the peer named and that have been silent since the session before, unless no other is
    /// left.
    pub(super) fn drop_silent_paths(&mut self, now: Time, native: &mut Native) {
        let is_up = |path: &Path| path.health.state().is_up();
        for slot in 0..self.paths.len().min(MAX_PATHS) {
            let path = &self.paths[slot];
            let silent = path.learned && !is_up(path) && now.since(path.last_received) > SILENT;
            if silent && self.paths.iter().any(is_up) {
                self.drop_path(now, slot, native);
            }
        }
    }
}

/// Half of the time between two sessions.
const SILENT: Duration = Duration::from_secs(60);

impl Native {
    /// Forgets what was measured on a path.
    fn reset_estimates(&mut self, id: PathId) {
        let cap = self.carriers[usize::from(id.slot)].cap;
        self.add_path(id, cap);
    }
}
