//! The cryptographic state shared with one peer: handshakes, their sessions, and the time of the next rekey.
//!
//! ```text
//!      request, or a rekey is due                 response                  datagram under it
//! idle ------------------> attempt: initiation ------------> established   established <------- answered an initiation
//!                          | again after 1, 2, 4, 5 s ... or the ^                                  |
//!                          | retry limit, + jitter               |                                  |
//!                          | after 90 s: given up                 '-- our own attempt ends here too -'
//! ```
//!
//! It follows the WireGuard whitepaper, sections 6.1 to 6.4: either end may initiate; the initiator of a session
//! replaces it after 120 s if it has something to send, and after 165 s if it only receives; a session expires after
//! 180 s. It is replaced by a [`rekey`] if both ends can, and by a handshake otherwise. The passive keepalive and the
//! handshake after 15 s of silence are not implemented: acknowledgements and the path manager detect a silent peer
//! sooner and call [`Association::request`].
//!
//! **Both ends initiate at once.** Each answers the other, so no handshake is delayed. The end with the greater public
//! key also yields: it drops its own initiation (and would retry later), so in the common case one session results. If
//! the yielding end has its response before it receives the other initiation, two sessions result: both open, and the
//! yielding end switches to the other's session with the first datagram under it.
//!
//! **Paths** are not handled here. [`HandshakeTransmit`] has the number of the attempt; the caller chooses a path,
//! another one for the next attempt, or sends one message over several paths: the responder accepts the first copy, and
//! answers the others with the same response, because the path of the first may carry nothing back. An initiator must
//! send a datagram immediately after [`SessionEvent::Established`], because the responder must not send before it
//! receives one.

pub mod rekey;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use crate::crypto::aead::Cipher;
use crate::crypto::handshake::{
    Agreed, Cookie, CookieReply, EphemeralInput, HandshakePayload, Identity, Incarnation, Pending, Response, Tai64n,
    VERSION, VerifiedInitiation,
};
use crate::crypto::keys::{PresharedKey, PublicKey};
pub use crate::crypto::session::{Opened, REJECT_AFTER, REKEY_AFTER, REKEY_AFTER_SILENT};
use crate::crypto::session::{Session, Sessions};
use crate::datagram::RemoteAddress;
use crate::drops::Dropped;
use crate::id::{MAX_PATHS, PathId, PathSeq};
use crate::time::Time;
use crate::tuning::peer::native::SPREAD_AFTER;
use crate::wire::native::SessionIndex;
use rekey::Rekeying;

/// The cryptographic state of one peer.
pub struct Association {
    peer: PublicKey,
    is_low_order: bool,
    psk: PresharedKey,
    incarnation: Incarnation,
    sessions: Sessions,
    attempt: Option<Attempt>,
    retry_limit: Option<Duration>,
    rekeying: Rekeying,
    last_initiation: Option<Time>,
    latest_timestamp: Tai64n,
    answered: Option<Answered>,
    cookies: Vec<(RemoteAddress, Cookie)>,
    events: VecDeque<SessionEvent>,
    restarted: bool,
    /// Sender of the last initiation that was answered, and its source.
    initiator: Option<(Incarnation, SocketAddr)>,
    shared_key: Option<Box<SharedKey>>,
}

/// Two hosts that use the key of the peer in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKey {
    /// Number of times that a host returned which the other had replaced.
    pub returns: u64,
    /// Address of the host that took over last, and of the one before.
    pub hosts: [SocketAddr; 2],
}

/// A handshake that this end initiated and that is not complete.
struct Attempt {
    started: Time,
    tries: u32,
    /// The time of the next initiation, unless the retry limit is sooner.
    next: Time,
    /// The time from which the retry limit counts: that of the last initiation, with its jitter.
    last: Time,
    /// Initiations of the peer that have replaced ours.
    yields: u32,
    pending: Option<Pending>,
}

/// An initiation of the peer that this end has answered. It is kept until the peer uses the session.
struct Answered {
    at: Time,
    transcript: [u8; 32],
    index: SessionIndex,
    response: Vec<u8>,
    /// The sources of its copies.
    sources: Vec<RemoteAddress>,
    /// The response has been sent to the other addresses of the peer, too.
    spread: bool,
}

/// A handshake message to be sent.
#[derive(Debug)]
pub struct HandshakeTransmit {
    /// The UDP payload.
    pub message: Vec<u8>,
    /// The index of the session that it may establish, reserved until [`SessionEvent::Retired`].
    pub index: SessionIndex,
    /// Counts the messages of this attempt from 1; 0 for a response, which is sent to the source of the initiation.
    pub attempt: u32,
}

/// The result of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session is available for sealing datagrams.
    Established(Established),
    /// The index no longer belongs to a session.
    Retired(SessionIndex),
    /// The peer has not answered for 90 s; there is no retry until the next request.
    GaveUp,
}

/// The properties of a new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Established {
    /// Our index of the session.
    pub index: SessionIndex,
    /// The cipher that seals its datagrams.
    pub cipher: Cipher,
    /// The protocol version that both ends use.
    pub version: u8,
    /// The handshake payload of the peer.
    pub payload: HandshakePayload,
    /// True if this end initiated the handshake; the peer then waits for a first datagram.
    pub initiated: bool,
    /// True if the peer has restarted since the last session: all state about its packet order and its paths is void.
    pub restarted: bool,
}

impl Association {
    /// Creates an association without sessions. `incarnation` is random and new for every association.
    pub fn new(peer: PublicKey, psk: PresharedKey, incarnation: Incarnation) -> Self {
        Self {
            peer,
            is_low_order: peer.is_low_order(),
            psk,
            incarnation,
            sessions: Sessions::default(),
            attempt: None,
            retry_limit: None,
            rekeying: Rekeying::default(),
            last_initiation: None,
            latest_timestamp: Tai64n::default(),
            answered: None,
            cookies: Vec::new(),
            events: VecDeque::new(),
            restarted: false,
            initiator: None,
            shared_key: None,
        }
    }

    /// Returns the static key of the peer.
    pub fn peer(&self) -> &PublicKey {
        &self.peer
    }

    /// Returns the timestamp of the newest initiation of the peer that this end has answered.
    pub fn latest_timestamp(&self) -> Tai64n {
        self.latest_timestamp
    }

    /// Returns the hosts that use the key of the peer in turn, if there are two.
    pub fn shared_key(&self) -> Option<SharedKey> {
        self.shared_key.as_deref().copied()
    }

    /// Drops all sessions and handshakes, and begins again as another incarnation: the peer treats this end as
    /// restarted. Requests a session at once if there was one, or an attempt.
    pub fn begin_again(&mut self, now: Time, incarnation: Incarnation) {
        let was_in_use = self.attempt.is_some() || self.sessions.expires().is_some();
        self.end(incarnation);
        if was_in_use {
            self.request(now);
        }
    }

    /// Drops all sessions and handshakes. The next session is that of another incarnation.
    pub fn end(&mut self, incarnation: Incarnation) {
        self.end_attempt();
        self.end_rekey();
        self.sessions.drop_all();
        self.incarnation = incarnation;
        (self.answered, self.last_initiation, self.restarted) = (None, None, false);
        self.cookies.clear();
        self.events.retain(|event| matches!(event, SessionEvent::Retired(_)));
    }

    /// As [`Self::end`], when the peer has ended the session. The next initiation is at least 5 s after the last one.
    pub fn end_by_peer(&mut self, incarnation: Incarnation) {
        let last = self.last_initiation;
        self.end(incarnation);
        self.last_initiation = last;
    }

    /// Returns true if datagrams are sealed under the session with this index of ours.
    pub fn is_current(&self, session: SessionIndex) -> bool {
        self.sessions.current().is_some_and(|current| current.index() == session)
    }

    /// Returns true if another incarnation of the peer than that of the current session waits for its session to be
    /// confirmed.
    pub fn awaits_restarted_peer(&self) -> bool {
        self.sessions.awaits_restarted_peer()
    }

    /// Returns true if a datagram can be sealed. Does not request a session.
    pub fn is_established(&self, now: Time) -> bool {
        self.sessions.can_seal(now)
    }

    /// Requests a new session, unless an attempt is in progress. Nothing is sent under a static key of low order,
    /// because everybody could read it. The first initiation of an attempt is sent at least 5
    /// s after the last initiation of the previous attempt.
    pub fn request(&mut self, now: Time) {
        if self.attempt.is_none() && !self.is_low_order {
            let next = self.last_initiation.map_or(now, |initiated| now.max(initiated + RETRY_AFTER));
            self.attempt = Some(Attempt::starting(now, next));
        }
    }

    /// Limits the interval between the first initiations of an attempt. It should be longer than a round trip, because
    /// the response to an earlier initiation is discarded.
    pub fn set_retry_limit(&mut self, limit: Option<Duration>) {
        self.retry_limit = limit;
    }

    /// Returns the initiation that is due, if any. `ephemeral` is only called if one is due. Each copy of it passes
    /// [`Association::prove_address`] before it is sent.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        identity: &mut Identity,
        ephemeral: impl FnOnce() -> EphemeralInput,
    ) -> Option<HandshakeTransmit> {
        let limit = self.retry_limit;
        let attempt = self.attempt.as_mut().filter(|attempt| attempt.next(limit) <= now)?;
        if now - attempt.started >= GIVE_UP_AFTER {
            self.end_attempt();
            // The initiation that is due belongs to the next attempt.
            self.last_initiation = None;
            self.events.push_back(SessionEvent::GaveUp);
            return None;
        }
        let ephemeral = ephemeral();
        let (pending, message) = Pending::write(now, identity, self.incarnation, &self.peer, &ephemeral);
        attempt.tries += 1;
        attempt.next = now + retry_after(attempt.tries, &ephemeral);
        attempt.last = now + jitter(&ephemeral);
        let (tries, previous) = (attempt.tries, attempt.pending.replace(pending));
        self.events.extend(previous.map(|previous| SessionEvent::Retired(previous.index)));
        self.last_initiation = Some(now);
        Some(HandshakeTransmit { message, index: ephemeral.index, attempt: tries })
    }

    /// Completes the copy of the initiation that is sent from and to `destination`: if the peer has sent a cookie from
    /// there, the copy proves with it that we receive there. A cookie is used once.
    pub fn prove_address(&mut self, now: Time, destination: RemoteAddress, copy: &mut [u8]) {
        let Some(pending) = self.attempt.as_mut().and_then(|attempt| attempt.pending.as_mut()) else { return };
        if !pending.sent_to.iter().any(|(sent_to, _)| *sent_to == destination) {
            pending.sent_to.push((destination, false));
        }
        if let Some(at) = self.cookies.iter().position(|(source, _)| *source == destination) {
            self.cookies.swap_remove(at).1.prove(now, copy);
        }
    }

    /// Answers an authentic initiation of the peer if it is newer than all before. A copy of the last one that
    /// comes from another source gets the same response. A failure changes nothing. `ephemeral` is only called if the
    /// initiation is answered for the first time.
    pub fn handle_initiation(
        &mut self,
        now: Time,
        identity: &Identity,
        verified: VerifiedInitiation,
        source: RemoteAddress,
        ephemeral: impl FnOnce() -> EphemeralInput,
    ) -> Result<HandshakeTransmit, Dropped> {
        if *verified.peer() != self.peer {
            return Err(Dropped::UnknownPeer);
        }
        let (timestamp, offer) = (verified.timestamp, verified.payload.capabilities);
        let (transcript, peer) = (verified.transcript(), verified.payload.incarnation);
        if let Some(repeated) = self.answered.as_mut().and_then(|last| last.repeat(now, transcript, source)) {
            return Ok(repeated);
        }
        if timestamp <= self.latest_timestamp {
            return Err(Dropped::StaleHandshake);
        }
        let cipher = identity.capabilities.cipher_with(&offer).ok_or(Dropped::NoCommonCipher)?;
        let (own, ephemeral) = (self.incarnation_for(peer), ephemeral());
        let returned = self.sessions.was_replaced(peer);
        let (agreed, message) = verified.respond(identity, own, &self.psk, &ephemeral)?;
        self.latest_timestamp = timestamp;
        let before = self.initiator.replace((peer, source.1));
        if let Some((_, before)) = before.filter(|(before, _)| returned && *before != peer) {
            let returns = self.shared_key().map_or(0, |shared| shared.returns) + 1;
            self.shared_key = Some(Box::new(SharedKey { returns, hosts: [source.1, before] }));
        }
        let (index, response) = (ephemeral.index, message.clone());
        self.answered = Some(Answered { at: now, transcript, index, response, sources: vec![source], spread: false });
        self.sessions.await_confirmation(Session::new(now, agreed, cipher, own, false));
        if identity.keys.public() > &self.peer {
            self.yield_to_peer(now, &ephemeral);
        }
        Ok(HandshakeTransmit { message, index: ephemeral.index, attempt: 0 })
    }

    /// Returns the time at which a response without an effect is to be sent on every path: the one on which the
    /// initiation came may carry nothing back.
    pub fn spread_deadline(&self) -> Option<Time> {
        self.answered.as_ref().filter(|answered| !answered.spread).map(|answered| answered.at + SPREAD_AFTER)
    }

    /// Returns the response that is to be sent on every path, once.
    pub fn poll_spread(&mut self, now: Time) -> Option<&[u8]> {
        self.spread_deadline().filter(|at| *at <= now)?;
        let answered = self.answered.as_mut()?;
        answered.spread = true;
        Some(&answered.response)
    }

    /// Returns true if an initiation of ours with this index waits for its response.
    pub fn awaits_response(&self, index: SessionIndex) -> bool {
        self.pending(index).is_some()
    }

    /// Completes our handshake. A forged response changes nothing.
    pub fn handle_response(&mut self, now: Time, identity: &Identity, response: &Response<'_>) -> Result<(), Dropped> {
        let pending = self.pending(response.receiver).ok_or(Dropped::UnknownSession)?;
        let agreed = pending.read(identity, &self.psk, response)?;
        let cipher = identity.capabilities.cipher_with(&agreed.payload.capabilities).ok_or(Dropped::NoCommonCipher)?;
        let own = pending.own;
        if own != self.incarnation || self.sessions.is_used_up(own, agreed.payload.incarnation) {
            self.initiate_as_successor(now);
            return Ok(());
        }
        // The session keeps the index, so it is not retired with the attempt.
        self.attempt = None;
        let restarted = self.sessions.install(Session::new(now, agreed, cipher, own, true));
        // Both ends initiated, and the session of this end is in use: a response of ours is not missing.
        self.answered.iter_mut().for_each(|answered| answered.spread = true);
        self.on_established(restarted);
        Ok(())
    }

    /// Stores the cookie of a peer under load for the next copy of an initiation to the `source` of the reply. Returns
    /// true if that copy is due at once: the same initiation, for the first reply to it from this source. A retry
    /// would come a second later, and a thousand sites that begin at once would each lose that second.
    ///
    /// An observer of an initiation can forge a reply to it, because the key of a reply is public. So it must name an
    /// initiation that waits for its response, and come from where that was sent. Responses get no cookies: they name
    /// an index that only those on the way have seen.
    pub fn handle_cookie(
        &mut self,
        now: Time,
        source: RemoteAddress,
        reply: &CookieReply<'_>,
    ) -> Result<bool, Dropped> {
        let pending = self.attempt.as_mut().and_then(|attempt| attempt.pending.as_mut());
        let pending = pending.filter(|pending| pending.index == reply.receiver).ok_or(Dropped::UnknownSession)?;
        let sent = pending.sent_to.iter_mut().find(|(destination, _)| *destination == source);
        let (_, is_repeated) = sent.ok_or(Dropped::UnknownSession)?;
        let cookie = Cookie::open(now, &self.peer, &pending.mac1, reply).ok_or(Dropped::NotAuthentic)?;
        let is_first = !std::mem::replace(is_repeated, true);
        self.cookies.retain(|(other, cookie)| *other != source && cookie.is_fresh(now));
        if self.cookies.len() < MAX_PATHS {
            self.cookies.push((source, cookie));
        }
        Ok(is_first)
    }

    fn pending(&self, index: SessionIndex) -> Option<&Pending> {
        let pending = self.attempt.as_ref().and_then(|attempt| attempt.pending.as_ref());
        pending.filter(|pending| pending.index == index)
    }

    /// Seals a datagram in place. `slot` has room for the header before the frames and for the tag after them, see
    /// [`crate::wire::native::OVERHEAD`]; panics if it is shorter than both.
    pub fn seal(&mut self, now: Time, path: PathId, slot: &mut [u8]) -> Result<PathSeq, Dropped> {
        self.seal_with(now, path, slot, &[])
    }

    /// Seals a datagram that ends with `tail`, which is still elsewhere: `slot` has room for it before the tag.
    pub fn seal_with(&mut self, now: Time, path: PathId, slot: &mut [u8], tail: &[u8]) -> Result<PathSeq, Dropped> {
        let number = self.sessions.seal(now, path, slot, tail)?;
        if self.sessions.needs_rekey_on_send(now) {
            self.replace_session(now);
        }
        if self.sessions.needs_handshake(now) {
            self.request(now);
        }
        Ok(number)
    }

    /// Returns the number that the next datagram on the path in `slot` will have.
    pub fn next_number(&self, slot: u8) -> PathSeq {
        self.sessions.next_number(slot)
    }

    /// Opens a datagram in place; a replay is refused.
    pub fn open<'a>(&mut self, now: Time, datagram: &'a mut [u8]) -> Result<Opened<'a>, Dropped> {
        let (opened, confirmed) = self.sessions.open(now, datagram)?;
        if let Some(restarted) = confirmed {
            self.answered.take_if(|answered| answered.index == opened.session);
            self.end_replaced_attempt(now);
            self.on_established(restarted);
        }
        if self.sessions.needs_rekey_on_receive(now) {
            self.replace_session(now);
        }
        Ok(opened)
    }

    /// Ends the attempt of a handshake after a session was established, unless the static keys are to be proved again.
    fn end_replaced_attempt(&mut self, now: Time) {
        if !self.sessions.needs_handshake(now) {
            self.end_attempt();
        }
    }

    /// Drops expired sessions, which wipes their keys.
    pub fn handle_timeout(&mut self, now: Time) {
        self.sessions.expire(now);
        if self.sessions.current().is_none() {
            self.end_rekey();
        }
    }

    /// Returns the time of the next [`Association::handle_timeout`] and [`Association::poll_transmit`], in the past if
    /// an initiation is due; `None` if no timer is set.
    pub fn next_deadline(&self) -> Option<Time> {
        let attempt = self.attempt.as_ref().map(|attempt| attempt.next(self.retry_limit));
        [attempt, self.rekeying.next_deadline(), self.sessions.expires()].into_iter().flatten().min()
    }

    /// Returns the next event in order; retired sessions come first.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.sessions.poll_retired().map(SessionEvent::Retired).or_else(|| self.events.pop_front())
    }

    /// Returns true if the peer has restarted since the last call.
    pub fn take_peer_restarted(&mut self) -> bool {
        std::mem::take(&mut self.restarted)
    }

    /// Returns our incarnation for this one of the peer.
    fn incarnation_for(&self, peer: Incarnation) -> Incarnation {
        match self.sessions.is_used_up(self.incarnation, peer) {
            true => self.incarnation.successor(),
            false => self.incarnation,
        }
    }

    /// Discards a response, because our incarnation in the initiation cannot be used with the incarnation of the peer
    /// that has answered, and initiates at once as another one.
    fn initiate_as_successor(&mut self, now: Time) {
        self.end_attempt();
        self.incarnation = self.incarnation.successor();
        self.attempt = Some(Attempt::starting(now, now));
    }

    fn on_established(&mut self, restarted: bool) {
        self.restarted |= restarted;
        self.end_rekey();
        let session = self.sessions.current().expect("a session has just become current");
        if restarted {
            self.incarnation = session.own();
        }
        self.events.push_back(SessionEvent::Established(Established {
            index: session.index(),
            cipher: session.cipher(),
            version: session.payload().version.min(VERSION),
            payload: *session.payload(),
            initiated: session.initiated(),
            restarted,
        }));
    }

    /// Drops our initiation because the peer's continues; the attempt stays, and retries later if it is still needed.
    /// It yields [`MAX_YIELDS`] times: after a restart this end accepts initiations that an attacker recorded, and each
    /// would replace ours.
    fn yield_to_peer(&mut self, now: Time, ephemeral: &EphemeralInput) {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.yields < MAX_YIELDS) else { return };
        attempt.yields += 1;
        attempt.next = now + retry_after(1, ephemeral);
        attempt.last = attempt.next;
        let previous = attempt.pending.take();
        self.events.extend(previous.map(|previous| SessionEvent::Retired(previous.index)));
    }

    fn end_attempt(&mut self) {
        let pending = self.attempt.take().and_then(|attempt| attempt.pending);
        self.events.extend(pending.map(|pending| SessionEvent::Retired(pending.index)));
    }
}

impl Attempt {
    /// Starts an attempt whose first initiation is due at `next`.
    fn starting(now: Time, next: Time) -> Self {
        Self { started: now, tries: 0, next, last: next, yields: 0, pending: None }
    }

    /// Returns the time of the next initiation. A limit counts for [`LIMITED_TRIES`] only: if a round trip has become
    /// longer than it, all these responses are discarded.
    fn next(&self, limit: Option<Duration>) -> Time {
        let limit = limit.filter(|_| self.tries < LIMITED_TRIES);
        limit.map_or(self.next, |limit| self.next.min(self.last + limit))
    }
}

impl Answered {
    /// Returns the response again for a copy of the very same initiation, once for each of at most [`MAX_PATHS`]
    /// sources, and as long as the initiator may wait for it: a path that is added later carries a copy later.
    fn repeat(&mut self, now: Time, transcript: [u8; 32], source: RemoteAddress) -> Option<HandshakeTransmit> {
        let is_copy = transcript == self.transcript && now - self.at < REPEAT_FOR;
        if !is_copy || self.sources.contains(&source) || self.sources.len() >= MAX_PATHS {
            return None;
        }
        self.sources.push(source);
        let Self { response, index, .. } = self;
        Some(HandshakeTransmit { message: response.clone(), index: *index, attempt: 0 })
    }
}

/// The time for which a response is repeated: twice [`RETRY_AFTER`], after which an initiator has replaced its
/// initiation.
const REPEAT_FOR: Duration = Duration::from_secs(10);
/// WireGuard's Rekey-Timeout, whitepaper section 6.1; the first retries of an attempt are sent earlier.
pub const RETRY_AFTER: Duration = Duration::from_secs(5);
/// WireGuard's Rekey-Attempt-Time, whitepaper section 6.1.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(90);
/// Tries of an attempt to which the retry limit applies: 7 s at half a second and the mean jitter.
const LIMITED_TRIES: u32 = 10;
/// Initiations of the peer that may replace ours in one attempt. Two ends that initiate at once need two at a round
/// trip of 2 s. With one, a rekey at 1.8 s lost 11 of 19,968 datagrams; the test is
/// `without_network_loss_a_rekey_loses_no_datagram`.
const MAX_YIELDS: u32 = 3;
/// The jitter of a retry is below this: a third of a second, as in WireGuard.
const JITTER: Duration = Duration::from_millis(333);

/// Returns the timeout of a message; it doubles from 1 s, the initial RTO of RFC 6298 for an unknown round-trip time.
/// The first retries are early, because a radio link may lose one message in fifty: a tunnel must not be down for 5 s.
fn retry_after(tries: u32, ephemeral: &EphemeralInput) -> Duration {
    let doubled = Duration::from_secs(1) * 2u32.pow(tries.saturating_sub(1).min(8));
    doubled.min(RETRY_AFTER) + jitter(ephemeral)
}

fn jitter(ephemeral: &EphemeralInput) -> Duration {
    JITTER * u32::from(ephemeral.jitter) / (1 << 16)
}
