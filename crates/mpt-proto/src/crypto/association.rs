//! What we share with one peer over time: handshakes, the sessions they yield, and when the next one is due.
//!
//! ```text
//!      request, or a session is worn              response                    datagram under it
//! idle ------------------> attempt: initiation ------------> established     established <------- answered an initiation
//!                          | again after 1, 2, 4, 5 s ... + jitter ^                                  |
//!                          | after 90 s: given up                 '---- our own attempt ends here too -'
//! ```
//!
//! It follows the WireGuard whitepaper, sections 6.1 to 6.4: either end may initiate; the initiator of a session replaces it
//! after 120 s when it has something to send, after 165 s when it only receives; after 180 s a session is gone. Not taken
//! over are the passive keepalive and the handshake after 15 s of silence: acknowledgements and the path manager know
//! better than this room when a peer is silent, and call [`Association::request`].
//!
//! **Both ends initiate at once.** Each answers the other, so nothing waits for the loser of a race. The end with the
//! greater public key also yields: it forgets its own initiation (and would begin again a retry later), so in the common
//! case one session comes out of it. Where the yielding end has its answer before it sees the other initiation, two do: both
//! open, and the yielding end goes over to the other's with the first datagram under it.
//!
//! **Paths** are unknown here. [`Transmit`] says which attempt it is; the caller chooses a path, another for the next
//! attempt, or sends one message over several: the responder takes the first copy and refuses the others as stale.
//! An initiator must send a datagram as soon as it is told [`Event::Established`]: it is what lets the responder begin.

use std::collections::VecDeque;
use std::time::Duration;

use crate::crypto::aead::Cipher;
use crate::crypto::handshake::{
    ClaimedInitiation, Cookie, CookieReply, EphemeralInput, HandshakePayload, Identity, Incarnation, MAC, Pending,
    Response, Tai64n, VERSION,
};
use crate::crypto::keys::{PresharedKey, PublicKey};
pub use crate::crypto::session::{Opened, REJECT_AFTER, REKEY_AFTER, REKEY_AFTER_SILENT};
use crate::crypto::session::{Session, Sessions};
use crate::drops::Dropped;
use crate::path::{PathId, PathSeq};
use crate::time::Time;
use crate::wire::native::SessionIndex;

/// The cryptographic side of one peer.
pub struct Association {
    peer: PublicKey,
    psk: PresharedKey,
    run: Incarnation,
    sessions: Sessions,
    attempt: Option<Attempt>,
    initiated: Option<Time>,
    newest: Tai64n,
    answered: Option<(SessionIndex, [u8; MAC])>,
    cookie: Option<Cookie>,
    events: VecDeque<SessionEvent>,
    restarted: bool,
}

/// A handshake of ours that has not come to an end.
struct Attempt {
    begun: Time,
    tries: u32,
    next: Time,
    pending: Option<Pending>,
}

/// A handshake message to be sent.
#[derive(Debug)]
pub struct HandshakeTransmit {
    /// The UDP payload.
    pub message: Vec<u8>,
    /// The name of the session it may lead to, ours until [`Event::Retired`] says otherwise.
    pub index: SessionIndex,
    /// Counts the messages of this attempt from 1; zero for a response, which goes back to where the initiation came from.
    pub attempt: u32,
    /// The message proves our address with a cookie, so it should leave on the path on which the cookie came.
    pub with_cookie: bool,
}

/// What has become of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// There is a session under which datagrams can be sealed.
    Established(Established),
    /// An index names no session any more.
    Retired(SessionIndex),
    /// The peer has not answered for 90 s; nothing more is tried until the next request.
    GaveUp,
}

/// What is known when a session begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Established {
    /// Our name for the session.
    pub index: SessionIndex,
    /// What it is sealed with.
    pub cipher: Cipher,
    /// The version that both ends speak.
    pub version: u8,
    /// What the peer says about itself.
    pub hello: HandshakePayload,
    /// The handshake was ours, and the peer waits for a first datagram.
    pub initiated: bool,
    /// The peer has begun anew since the last session: whatever was known about its order and its paths is void.
    pub restarted: bool,
}

impl Association {
    /// Nothing shared yet but keys. `run` is random, new for every association ever made.
    pub fn new(peer: PublicKey, psk: PresharedKey, run: Incarnation) -> Self {
        Self {
            peer,
            psk,
            run,
            sessions: Sessions::default(),
            attempt: None,
            initiated: None,
            newest: Tai64n::default(),
            answered: None,
            cookie: None,
            events: VecDeque::new(),
            restarted: false,
        }
    }

    /// The peer's static key.
    pub fn peer(&self) -> &PublicKey {
        &self.peer
    }

    /// Whether a datagram can be sealed. Costs nothing, and does not ask for a session.
    pub fn is_established(&self, now: Time) -> bool {
        self.sessions.can_seal(now)
    }

    /// Asks for a new session, unless that is being tried already. At least 5 s lie between the last initiation of one attempt and the first of the next.
    pub fn request(&mut self, now: Time) {
        if self.attempt.is_none() {
            let next = self.initiated.map_or(now, |initiated| now.max(initiated + RETRY_AFTER));
            self.attempt = Some(Attempt { begun: now, tries: 0, next, pending: None });
        }
    }

    /// The initiation that is due, if any. `fresh` is only called when one is.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        us: &Identity,
        fresh: impl FnOnce() -> EphemeralInput,
    ) -> Option<HandshakeTransmit> {
        let attempt = self.attempt.as_mut().filter(|attempt| attempt.next <= now)?;
        if now - attempt.begun >= GIVE_UP_AFTER {
            self.end_attempt();
            self.events.push_back(SessionEvent::GaveUp);
            return None;
        }
        let (fresh, cookie) = (fresh(), self.cookie.take());
        let with_cookie = cookie.is_some();
        let (pending, message) = Pending::write(now, us, self.run, &self.peer, cookie, &fresh);
        attempt.tries += 1;
        attempt.next = now + retry_after(attempt.tries, &fresh);
        let (tries, former) = (attempt.tries, attempt.pending.replace(pending));
        self.events.extend(former.map(|former| SessionEvent::Retired(former.index)));
        self.initiated = Some(now);
        Some(HandshakeTransmit { message, index: fresh.index, attempt: tries, with_cookie })
    }

    /// Answers an initiation of the peer, if it is authentic and newer than every one before. Whatever fails changes
    /// nothing. `fresh` is only called for an initiation that is to be answered.
    pub fn handle_initiation(
        &mut self,
        now: Time,
        us: &Identity,
        knock: ClaimedInitiation<'_>,
        fresh: impl FnOnce() -> EphemeralInput,
    ) -> Result<HandshakeTransmit, Dropped> {
        if *knock.peer() != self.peer {
            return Err(Dropped::UnknownPeer);
        }
        let caller = knock.prove(us)?;
        let (written, offer) = (caller.written, caller.hello.capabilities);
        if written <= self.newest {
            return Err(Dropped::StaleHandshake);
        }
        let cipher = us.capabilities.cipher_with(&offer).ok_or(Dropped::NoCommonCipher)?;
        let (fresh, cookie) = (fresh(), self.cookie.take());
        let with_cookie = cookie.is_some();
        let (agreed, message, mac1) = caller.answer(now, us, self.run, &self.psk, cookie, &fresh)?;
        self.newest = written;
        self.answered = Some((fresh.index, mac1));
        self.sessions.expect(Session::new(now, agreed, cipher, false));
        if us.keys.public() > &self.peer {
            self.yield_to_peer(now, &fresh);
        }
        Ok(HandshakeTransmit { message, index: fresh.index, attempt: 0, with_cookie })
    }

    /// Completes our handshake. A forged response changes nothing.
    pub fn handle_response(&mut self, now: Time, us: &Identity, response: &Response<'_>) -> Result<(), Dropped> {
        let pending = self.attempt.as_ref().and_then(|attempt| attempt.pending.as_ref());
        let pending = pending.filter(|pending| pending.index == response.receiver).ok_or(Dropped::UnknownSession)?;
        let agreed = pending.read(us, &self.psk, response)?;
        let cipher = us.capabilities.cipher_with(&agreed.hello.capabilities).ok_or(Dropped::NoCommonCipher)?;
        // Its index is the session's from here on, so it is not retired with the attempt.
        self.attempt = None;
        let restarted = self.sessions.install(Session::new(now, agreed, cipher, true));
        self.on_established(restarted);
        Ok(())
    }

    /// Keeps the cookie of a busy peer for the next message to it.
    pub fn handle_cookie(&mut self, now: Time, reply: &CookieReply<'_>) -> Result<(), Dropped> {
        let pending = self.attempt.as_ref().and_then(|attempt| attempt.pending.as_ref());
        let sent = [pending.map(|pending| (pending.index, pending.mac1)), self.answered];
        let (_, mac1) =
            sent.into_iter().flatten().find(|(index, _)| *index == reply.receiver).ok_or(Dropped::UnknownSession)?;
        self.cookie = Some(Cookie::open(now, &self.peer, &mac1, reply).ok_or(Dropped::NotAuthentic)?);
        Ok(())
    }

    /// Seals a datagram in place. `slot` has room for the header in front of the frames and for the tag behind them, see
    /// [`crate::wire::native::OVERHEAD`]; panics when it is shorter than both.
    pub fn seal(&mut self, now: Time, path: PathId, slot: &mut [u8]) -> Result<PathSeq, Dropped> {
        let number = self.sessions.seal(now, path, slot)?;
        if self.sessions.is_worn(now) {
            self.request(now);
        }
        Ok(number)
    }

    /// The number that the next datagram on the path in `slot` will have.
    pub fn next_number(&self, slot: u8) -> PathSeq {
        self.sessions.next_number(slot)
    }

    /// Opens a datagram in place, once.
    pub fn open<'a>(&mut self, now: Time, datagram: &'a mut [u8]) -> Result<Opened<'a>, Dropped> {
        let (opened, confirmed) = self.sessions.open(now, datagram)?;
        if let Some(restarted) = confirmed {
            self.end_attempt();
            self.on_established(restarted);
        }
        if self.sessions.is_nearly_expired(now) {
            self.request(now);
        }
        Ok(opened)
    }

    /// Drops, and thereby wipes, the sessions that have expired.
    pub fn handle_timeout(&mut self, now: Time) {
        self.sessions.expire(now);
    }

    /// When to call [`Association::handle_timeout`] and [`Association::poll_transmit`] next; in the past when an initiation
    /// is due. `None` when nothing will happen by itself.
    pub fn next_deadline(&self) -> Option<Time> {
        let attempt = self.attempt.as_ref().map(|attempt| attempt.next);
        [attempt, self.sessions.expires()].into_iter().flatten().min()
    }

    /// What has happened since the last call, in order; sessions that are gone come first.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.sessions.poll_retired().map(SessionEvent::Retired).or_else(|| self.events.pop_front())
    }

    /// Whether the peer has begun anew since this was last asked.
    pub fn take_peer_restarted(&mut self) -> bool {
        std::mem::take(&mut self.restarted)
    }

    fn on_established(&mut self, restarted: bool) {
        self.restarted |= restarted;
        let session = self.sessions.current().expect("a session has just become current");
        self.events.push_back(SessionEvent::Established(Established {
            index: session.index(),
            cipher: session.cipher(),
            version: session.hello().version.min(VERSION),
            hello: *session.hello(),
            initiated: session.initiated(),
            restarted,
        }));
    }

    /// Both ends have initiated, and theirs goes on: forgets our initiation, but not that we want a session.
    fn yield_to_peer(&mut self, now: Time, fresh: &EphemeralInput) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.next = now + retry_after(attempt.tries, fresh);
        let former = attempt.pending.take();
        self.events.extend(former.map(|former| SessionEvent::Retired(former.index)));
    }

    fn end_attempt(&mut self) {
        let pending = self.attempt.take().and_then(|attempt| attempt.pending);
        self.events.extend(pending.map(|pending| SessionEvent::Retired(pending.index)));
    }
}

/// WireGuard's Rekey-Timeout, whitepaper section 6.1; the first retries of an attempt come sooner.
pub const RETRY_AFTER: Duration = Duration::from_secs(5);
/// WireGuard's Rekey-Attempt-Time, whitepaper section 6.1.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(90);
/// The jitter on a retry is below this: a third of a second, as in WireGuard.
const JITTER: Duration = Duration::from_millis(333);

/// The first messages of an attempt follow each other sooner: one in fifty lost on a radio link is no reason to be without a tunnel for
/// five seconds. Doubling from a second is what RFC 6298 has for a first round trip that nobody knows.
fn retry_after(tries: u32, fresh: &EphemeralInput) -> Duration {
    let doubled = Duration::from_secs(1) * 2u32.pow(tries.saturating_sub(1).min(8));
    doubled.min(RETRY_AFTER) + JITTER * u32::from(fresh.jitter) / (1 << 16)
}
