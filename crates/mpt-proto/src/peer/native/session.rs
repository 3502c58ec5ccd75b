//! Handshakes with the peer, and what follows when a session begins, ends or cannot be established.

use std::time::Duration;

use super::Native;
use super::path::NativePath;
use crate::crypto::association::SessionEvent;
use crate::crypto::handshake::CookieReply;
use crate::datagram::RemoteAddress;
use crate::drops::Dropped;
use crate::id::PathSet;
use crate::peer::{CONTROL_TOS, Common, Turn};
use crate::time::Time;
use crate::trace::{HandshakeEvent, TraceEvent};
use crate::tuning::Heuristic;
use crate::tuning::peer::native::{MIN_RETRY, UNRESPONSIVE_AFTER};

/// An initiation that waits for its response.
#[derive(Debug)]
pub(super) struct SentInitiation {
    message: Vec<u8>,
    /// Paths on which it has not been sent yet.
    pub(super) pending: PathSet,
}

impl Native {
    /// Handles the events of sessions. Returns true if a session was just established.
    pub(super) fn handle_session_events(&mut self, common: &mut Common, turn: &mut Turn<'_>) -> bool {
        let mut established = false;
        while let Some(event) = self.association.poll_event() {
            match event {
                SessionEvent::Retired(index) => {
                    let sessions = turn.sessions.as_mut().expect("an endpoint with native peers has sessions");
                    sessions.release_index(index);
                }
                SessionEvent::GaveUp => {
                    self.trace.record(turn.now, || TraceEvent::Handshake(HandshakeEvent::GaveUp));
                    self.drop_recalled_paths(common, turn);
                    if self.paths.iter().any(|path| !path.base.is_vacant()) {
                        self.request_session(turn.now);
                    }
                }
                SessionEvent::Established(session) => {
                    if self.association.take_peer_restarted() {
                        self.on_peer_restart(common, turn.now);
                    }
                    let capabilities = session.payload.capabilities;
                    let compresses = capabilities.compresses();
                    self.header_compression.set_allowed(compresses && self.tuning.has(Heuristic::HeaderCompression));
                    self.header_compression.set_reads_partial(capabilities.reads_partial_checksums());
                    (self.initiation, self.closed) = (None, None);
                    // The responder may use the session after the first datagram under it.
                    self.paths.iter_mut().for_each(|path| path.base.probe_now(turn.now));
                    self.established_at = turn.now;
                    self.trace.record(turn.now, || TraceEvent::Handshake(HandshakeEvent::Established));
                    established = true;
                }
            }
        }
        established
    }

    /// Sends an initiation that is due on every path that may carry it. The peer answers the first one that arrives. A
    /// path that is added before the response carries it, too.
    pub(super) fn send_handshake(&mut self, common: &Common, turn: &mut Turn<'_>) {
        let sessions = turn.sessions.as_mut().expect("an endpoint with native peers has sessions");
        let (identity, indexes) = sessions.parts();
        self.association.set_retry_limit(self.retry_limit(common));
        let initiation = self.association.poll_transmit(turn.now, identity, || indexes.ephemeral_input(common.index));
        if let Some(initiation) = initiation {
            self.trace.record(turn.now, || TraceEvent::Handshake(HandshakeEvent::Initiated));
            self.initiation = Some(SentInitiation { message: initiation.message, pending: PathSet::ALL });
        }
        self.spread_response(turn);
        let Some(SentInitiation { message, pending }) = &mut self.initiation else { return };
        let pending = std::mem::replace(pending, PathSet::NONE);
        for path in self.paths.iter().filter(|path| path.may_send_handshake() && pending.contains(path.id())) {
            let mut slot = turn.tx.reserve(path.base.link, path.base.remote, CONTROL_TOS, message.len());
            slot.bytes().copy_from_slice(message);
            self.association.prove_address(turn.now, (path.base.link, path.base.remote), slot.bytes());
            slot.commit();
        }
    }

    /// Takes the cookie of a peer under load. The initiation leaves at once again on the path of the first reply to it.
    pub(in crate::peer) fn handle_cookie(
        &mut self,
        now: Time,
        source: RemoteAddress,
        reply: &CookieReply<'_>,
    ) -> Result<(), Dropped> {
        let repeats = self.association.handle_cookie(now, source, reply)?;
        if let Some(initiation) = self.initiation.as_mut().filter(|_| repeats) {
            let paths = self.paths.iter().filter(|path| (path.base.link, path.base.remote) == source);
            paths.for_each(|path| initiation.pending.insert(path.id()));
        }
        Ok(())
    }

    /// Returns the limit for the interval between initiations while packets wait: the peer may just have started again.
    /// None while no packet waits, or the round trip of a path is unknown.
    fn retry_limit(&self, common: &Common) -> Option<Duration> {
        let carries = self.paths.iter().filter(|path| path.may_send_handshake());
        let longest = carries
            .map(|path| path.base.liveness.srtt())
            .try_fold(Duration::ZERO, |longest, rtt| Some(longest.max(rtt?)))?;
        (!common.queue.is_empty()).then(|| MIN_RETRY.max(longest * 2))
    }

    /// Returns the time at which a response that has had no effect is due on every path.
    pub(super) fn spread_deadline(&self) -> Option<Time> {
        let deadline = self.association.spread_deadline().filter(|_| self.tuning.has(Heuristic::Spread));
        deadline.filter(|_| self.paths.iter().any(NativePath::may_send_handshake))
    }

    /// Sends a response that has had no effect on every path to a validated address.
    fn spread_response(&mut self, turn: &mut Turn<'_>) {
        if self.spread_deadline().is_none() {
            return;
        }
        let Some(response) = self.association.poll_spread(turn.now) else { return };
        for path in self.paths.iter_mut().filter(|path| path.may_send_handshake()) {
            let mut slot = turn.tx.reserve(path.base.link, path.base.remote, CONTROL_TOS, response.len());
            slot.bytes().copy_from_slice(response);
            slot.commit();
            path.base.sent.count(response.len());
        }
    }

    /// Returns true if nothing has come from the peer for a second on any path that this end opened and uses: the peer
    /// may have restarted and lost the session.
    pub(super) fn is_unresponsive(&self, now: Time) -> bool {
        let is_probed = |path: &NativePath| !path.learned && path.may_send();
        let is_silent =
            |path: &NativePath| !path.base.health.answers && now.since(path.last_received) >= UNRESPONSIVE_AFTER;
        let mut in_use = self.paths.iter().filter(|path| path.may_send());
        now.since(self.established_at) >= UNRESPONSIVE_AFTER
            && self.paths.iter().any(is_probed)
            && in_use.all(is_silent)
    }

    /// Returns true if there is no session, and the peer used no path when its last datagram came. It may have
    /// restarted since.
    pub(super) fn is_unreachable(&self) -> bool {
        let may_open = |path: &NativePath| !path.learned && path.may_send_handshake();
        !self.has_session && !self.paths.iter().any(NativePath::may_send) && self.paths.iter().any(may_open)
    }
}
