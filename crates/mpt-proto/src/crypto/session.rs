//! The sessions with one peer: which session seals, which sessions open, and how datagrams are numbered across them.
//!
//! ```text
//!  we initiated, the response came ----------------------------> current --> previous --> older --> gone
//!  handshake of the peer --> next --- a datagram under it came (confirmed) --^
//!  rekey of the peer ------> next_by_rekey --- the same -----^
//! ```
//!
//! The initiator may use a session at once, because the response proves that the responder has it; the responder may
//! use it only after the first datagram proves that the initiator has it. Until then it seals under the session before.
//! All stored sessions still open, so a rekey loses no datagram in flight. Two previous sessions are stored, not one:
//! if both ends initiate at once, each may see the other's handshake complete before and after its own.
//!
//! Packet numbers and replay windows belong to the pair of incarnations, not to a session (see
//! [`crate::wire::native`]): they continue across a rekey and start again after a restart of the peer, which drops
//! every session of the old incarnation. A pair whose numbers were dropped must not return, because the peer still has
//! its half of them and would refuse everything as a repetition. It would return when two hosts use one key in turn:
//! each is a restart of the other for us, and we are the same for both. [`Sessions::is_used_up`] detects that, and this
//! end continues as another incarnation.

use std::time::Duration;

use zeroize::Zeroizing;

use crate::crypto::aead::{AeadKey, Cipher, TAG};
use crate::crypto::handshake::{Agreed, HandshakePayload, Incarnation};
use crate::crypto::replay::{ReplayWindows, expand};
use crate::drops::Dropped;
use crate::id::{MAX_PATHS, PathId, PathSeq};
use crate::time::Time;
use crate::wire::native::{HEADER, Header, PathTag, SessionIndex, nonce};

/// A datagram that is authentic and not a replay.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The peer's path on which it was sent.
    pub path: PathTag,
    /// Its number in the slot of that path.
    pub number: PathSeq,
    /// Our index of the session under which it was sealed.
    pub session: SessionIndex,
    /// Its frames.
    pub body: &'a mut [u8],
}

/// The keys of one handshake or rekey.
pub(super) struct Session {
    local: SessionIndex,
    remote: SessionIndex,
    payload: HandshakePayload,
    /// Our incarnation in the handshake.
    own: Incarnation,
    initiated: bool,
    created: Time,
    /// Time at which a handshake last proved the static keys.
    handshake_at: Time,
    seal: AeadKey,
    open: AeadKey,
    /// An input of the keys that replace these.
    chaining: Option<Box<Zeroizing<[u8; 32]>>>,
    blocks: u64,
}

impl Session {
    /// Makes the session that a handshake agreed on, in which this end was the incarnation `own`; `initiated` is true
    /// if the handshake was ours.
    pub(super) fn new(now: Time, agreed: Agreed, cipher: Cipher, own: Incarnation, initiated: bool) -> Self {
        let Agreed { local, remote, payload, secrets } = agreed;
        let (to_responder, to_initiator) =
            (AeadKey::new(cipher, &secrets.to_responder), AeadKey::new(cipher, &secrets.to_initiator));
        let (seal, open) = if initiated { (to_responder, to_initiator) } else { (to_initiator, to_responder) };
        let chaining = secrets.chaining;
        let (created, handshake_at, blocks) = (now, now, 0);
        Self { local, remote, payload, own, initiated, created, handshake_at, seal, open, chaining, blocks }
    }

    /// Sets the time at which a handshake last proved the static keys.
    pub(super) fn with_handshake_at(self, at: Time) -> Self {
        Self { handshake_at: at, ..self }
    }

    pub(super) fn handshake_at(&self) -> Time {
        self.handshake_at
    }

    pub(super) fn chaining(&self) -> Option<&[u8; 32]> {
        self.chaining.as_deref().map(|chaining| &**chaining)
    }

    pub(super) fn index(&self) -> SessionIndex {
        self.local
    }

    pub(super) fn initiated(&self) -> bool {
        self.initiated
    }

    pub(super) fn own(&self) -> Incarnation {
        self.own
    }

    /// Returns the incarnations of both ends.
    fn pair(&self) -> IncarnationPair {
        IncarnationPair { own: self.own, peer: self.payload.incarnation }
    }

    pub(super) fn payload(&self) -> &HandshakePayload {
        &self.payload
    }

    pub(super) fn cipher(&self) -> Cipher {
        self.seal.cipher()
    }

    fn seal(&mut self, path: PathTag, number: PathSeq, slot: &mut [u8], tail: &[u8]) {
        let (header, body) = slot.split_at_mut(HEADER);
        header.copy_from_slice(&Header::new(self.remote, path, number).encode());
        self.seal.seal(nonce(path, number), header, body, tail);
        // RFC 9001 appendix B.1 counts blocks of plaintext and of associated data; the header is one block.
        self.blocks += 1 + (body.len() - TAG).div_ceil(16) as u64;
    }

    fn open<'a>(&self, path: PathTag, number: PathSeq, datagram: &'a mut [u8]) -> Result<&'a mut [u8], Dropped> {
        let (header, sealed) = datagram.split_at_mut(HEADER);
        self.open.open(nonce(path, number), header, sealed).map_err(|_| Dropped::NotAuthentic)
    }

    pub(super) fn expires(&self) -> Time {
        self.created + REJECT_AFTER
    }

    fn can_seal(&self, now: Time) -> bool {
        now < self.expires() && self.blocks < self.cipher().reject_after_blocks()
    }

    fn is_older(&self, now: Time, age: Duration) -> bool {
        now - self.created >= age
    }
}

/// The incarnations of both ends.
#[derive(Clone, Copy, PartialEq, Eq)]
struct IncarnationPair {
    own: Incarnation,
    peer: Incarnation,
}

/// All usable sessions with one peer.
#[derive(Default)]
pub(super) struct Sessions {
    current: Option<Session>,
    next: Option<Session>,
    next_by_rekey: Option<Session>,
    previous: Option<Session>,
    older: Option<Session>,
    pair: Option<IncarnationPair>,
    /// Incarnations of the peer that had a session with our current incarnation, at most [`MAX_INCARNATIONS`].
    peer_incarnations: Vec<Incarnation>,
    sent: [u64; MAX_PATHS],
    seen: ReplayWindows,
    retired: Vec<SessionIndex>,
}

impl Sessions {
    /// Writes the header of the next datagram on `path` into `slot`, and seals the bytes behind it, then `tail`. `slot`
    /// has room for `tail` and for the tag.
    pub(super) fn seal(&mut self, now: Time, path: PathId, slot: &mut [u8], tail: &[u8]) -> Result<PathSeq, Dropped> {
        let session = self.current.as_mut().filter(|session| session.can_seal(now)).ok_or(Dropped::NoSession)?;
        let sent = &mut self.sent[usize::from(path.slot)];
        let number = PathSeq(*sent);
        *sent += 1;
        session.seal(path.into(), number, slot, tail);
        Ok(number)
    }

    /// Returns the number that the next datagram on the path in `slot` will have.
    pub(super) fn next_number(&self, slot: u8) -> PathSeq {
        PathSeq(self.sent[usize::from(slot)])
    }

    /// Opens a datagram in place; a replay is refused. If it confirmed a session that we had answered, also returns
    /// true or false: the peer has restarted or not.
    pub(super) fn open<'a>(
        &mut self,
        now: Time,
        datagram: &'a mut [u8],
    ) -> Result<(Opened<'a>, Option<bool>), Dropped> {
        let Header { session: index, path, sequence } = Header::decode(datagram).ok_or(Dropped::Truncated)?;
        let session = self.find(index).filter(|session| now < session.expires()).ok_or(Dropped::UnknownSession)?;
        let number = self.number(session, path, sequence)?;
        let body = session.open(path, number, datagram)?;
        let confirmed = self.confirm(index);
        self.seen.accept(path, number)?;
        Ok((Opened { path, number, session: index, body }, confirmed))
    }

    /// Returns the full number of a datagram, which must be new. For a new pair of incarnations every number is new.
    fn number(&self, session: &Session, path: PathTag, sequence: u32) -> Result<PathSeq, Dropped> {
        if self.pair != Some(session.pair()) {
            return Ok(PathSeq(expand(0, sequence)));
        }
        let number = self.seen.expand(path, sequence);
        self.seen.check(path, number).map(|()| number)
    }

    /// Installs a session that we initiated, to seal under at once. Returns true if the peer has restarted. A session
    /// that waits for confirmation is dropped only if it belongs to the same incarnation; otherwise it may be newer
    /// than this one.
    pub(super) fn install(&mut self, session: Session) -> bool {
        let restarted = self.adopt_pair(&session);
        let next = self.next.take_if(|next| next.pair() == session.pair());
        let current = self.current.replace(session);
        [current, next, self.next_by_rekey.take()].into_iter().flatten().for_each(|previous| self.keep(previous));
        restarted
    }

    /// Installs the session of a rekey that we initiated, to seal under at once. A session of a handshake that waits
    /// for its confirmation is kept, because the peer may use it already.
    pub(super) fn install_after_rekey(&mut self, session: Session) {
        let replaced = self.next_by_rekey.take();
        self.retire(replaced);
        if let Some(previous) = self.current.replace(session) {
            self.keep(previous);
        }
    }

    /// Stores the session of a rekey to which we responded, to open with, and to seal under after its confirmation. The
    /// session of a handshake that waits stays in a field of its own, so a delayed initiation cannot replace this one.
    pub(super) fn await_confirmation_of_rekey(&mut self, session: Session) {
        let replaced = self.next_by_rekey.replace(session);
        self.retire(replaced);
    }

    /// Stores a session that we answered, to open with, and to seal under after its confirmation.
    pub(super) fn await_confirmation(&mut self, session: Session) {
        let replaced = self.next.replace(session);
        self.retire(replaced);
    }

    /// Makes the session with this index current if it was waiting for confirmation.
    fn confirm(&mut self, index: SessionIndex) -> Option<bool> {
        let is_confirmed = |waiting: &mut Session| waiting.local == index;
        let session = self.next_by_rekey.take_if(is_confirmed).or_else(|| self.next.take_if(is_confirmed))?;
        let restarted = self.adopt_pair(&session);
        let current = self.current.replace(session);
        // The peer may have used the session of a rekey before this one.
        [current, self.next_by_rekey.take()].into_iter().flatten().for_each(|previous| self.keep(previous));
        Some(restarted)
    }

    /// Returns true if this end cannot have a session with this incarnation of the peer as `own`: it had one and has
    /// dropped the numbers since, or cannot know, because it had sessions with too many.
    pub(super) fn is_used_up(&self, own: Incarnation, peer: Incarnation) -> bool {
        let is_current = self.pair == Some(IncarnationPair { own, peer });
        let is_known = self.pair.is_some_and(|pair| pair.own == own);
        is_known
            && !is_current
            && (self.peer_incarnations.contains(&peer) || self.peer_incarnations.len() >= MAX_INCARNATIONS)
    }

    /// Returns true if this incarnation of the peer was replaced by another one. Only a second host with the same key,
    /// or a copy of the first, can use it again.
    pub(super) fn was_replaced(&self, peer: Incarnation) -> bool {
        self.pair.is_some_and(|pair| pair.peer != peer) && self.peer_incarnations.contains(&peer)
    }

    /// Drops the state of any other pair of incarnations. Returns true if there was one.
    fn adopt_pair(&mut self, session: &Session) -> bool {
        let pair = session.pair();
        let before = self.pair.replace(pair);
        if before == self.pair {
            return false;
        }
        if before.is_some_and(|before| before.own != pair.own) {
            self.peer_incarnations.clear();
        }
        self.peer_incarnations.push(pair.peer);
        let gone = [self.current.take(), self.next_by_rekey.take(), self.previous.take(), self.older.take()];
        gone.into_iter().for_each(|session| self.retire(session));
        (self.sent, self.seen) = ([0; MAX_PATHS], ReplayWindows::default());
        before.is_some()
    }

    /// Keeps a session that no longer seals. Only the session that seals is rekeyed.
    fn keep(&mut self, mut previous: Session) {
        previous.chaining = None;
        let oldest = std::mem::replace(&mut self.older, self.previous.replace(previous));
        self.retire(oldest);
    }

    fn retire(&mut self, session: Option<Session>) {
        self.retired.extend(session.map(|session| session.local));
    }

    /// Drops all sessions, which wipes their keys, with the packet numbers and replay windows.
    pub(super) fn drop_all(&mut self) {
        let used = [self.current.take(), self.previous.take(), self.older.take()];
        let waiting = [self.next.take(), self.next_by_rekey.take()];
        used.into_iter().chain(waiting).for_each(|session| self.retire(session));
        *self = Self { retired: std::mem::take(&mut self.retired), ..Self::default() };
    }

    /// Drops expired sessions, which wipes their keys.
    pub(super) fn expire(&mut self, now: Time) {
        let Self { current, next, next_by_rekey, previous, older, .. } = self;
        for session in [current, next, next_by_rekey, previous, older] {
            let expired = session.take_if(|session| session.expires() <= now);
            self.retired.extend(expired.map(|session| session.local));
        }
    }

    /// Returns the time at which the next session expires.
    pub(super) fn expires(&self) -> Option<Time> {
        self.iter().map(Session::expires).min()
    }

    /// Returns true if a datagram can be sealed.
    pub(super) fn can_seal(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|session| session.can_seal(now))
    }

    /// Returns the session that seals datagrams.
    pub(super) fn current(&self) -> Option<&Session> {
        self.current.as_ref()
    }

    /// Returns true if the session that waits for confirmation is that of another incarnation of the peer.
    pub(super) fn awaits_restarted_peer(&self) -> bool {
        let pairs = self.current.as_ref().zip(self.next.as_ref());
        pairs.is_some_and(|(current, next)| current.pair().peer != next.pair().peer)
    }

    /// Returns the next index that no longer belongs to a session.
    pub(super) fn poll_retired(&mut self) -> Option<SessionIndex> {
        self.retired.pop()
    }

    /// Returns true if a rekey is due after sending. Only the initiator checks the age, so that the two ends do not
    /// both initiate; both ends check the limit of the cipher.
    pub(super) fn needs_rekey_on_send(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|session| {
            session.initiated && session.is_older(now, REKEY_AFTER)
                || session.blocks >= session.cipher().rekey_after_blocks()
        })
    }

    /// Returns true if a rekey is due after receiving only.
    pub(super) fn needs_rekey_on_receive(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|session| session.initiated && session.is_older(now, REKEY_AFTER_SILENT))
    }

    /// Returns the index of the current session if its keys can be replaced without a handshake.
    pub(super) fn rekeyable(&self, now: Time) -> Option<SessionIndex> {
        let session = self.current.as_ref().filter(|session| session.chaining.is_some())?;
        (session.can_seal(now) && now - session.handshake_at < REJECT_REKEYS_AFTER).then_some(session.local)
    }

    /// Returns true if the static keys are to be proved again by a handshake, although rekeys replace the keys.
    pub(super) fn needs_handshake(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|session| session.initiated && now - session.handshake_at >= HANDSHAKE_AFTER)
    }

    fn find(&self, index: SessionIndex) -> Option<&Session> {
        self.iter().find(|session| session.local == index)
    }

    fn iter(&self) -> impl Iterator<Item = &Session> {
        [&self.current, &self.next, &self.next_by_rekey, &self.previous, &self.older].into_iter().flatten()
    }
}

/// Incarnations of a peer that are remembered: each restart of the peer is one. 64 bytes.
const MAX_INCARNATIONS: usize = 8;
/// WireGuard's Rekey-After-Time, whitepaper section 6.1.
pub const REKEY_AFTER: Duration = Duration::from_secs(120);
/// A handshake is due this long after the last one. It proves the static keys again, so an attacker who has read the
/// keys of a session from memory cannot follow the next one. Chosen, not measured.
pub const HANDSHAKE_AFTER: Duration = Duration::from_secs(3_600);
/// Rekeys end this long after the last handshake: to end a session, an attacker must stop handshakes for an hour.
pub const REJECT_REKEYS_AFTER: Duration = Duration::from_secs(7_200);
/// WireGuard's Reject-After-Time, whitepaper section 6.1.
pub const REJECT_AFTER: Duration = Duration::from_secs(180);
/// The age at which an initiator that only receives rekeys: Reject-After-Time less Keepalive-Timeout (10 s) less
/// Rekey-Timeout (5 s), whitepaper section 6.2.
pub const REKEY_AFTER_SILENT: Duration = Duration::from_secs(165);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::handshake::{Capabilities, Incarnation, Secrets};

    fn session(cipher: Cipher, blocks: u64) -> Sessions {
        let secrets =
            Secrets { to_responder: Zeroizing::new([1; 32]), to_initiator: Zeroizing::new([2; 32]), chaining: None };
        let payload =
            HandshakePayload { version: 1, incarnation: Incarnation([0; 8]), capabilities: Capabilities::new(true) };
        let agreed = Agreed { local: SessionIndex::new(1), remote: SessionIndex::new(2), payload, secrets };
        let mut sessions = Sessions::default();
        sessions.install(Session { blocks, ..Session::new(Time::START, agreed, cipher, Incarnation([1; 8]), false) });
        sessions
    }

    #[test]
    fn a_key_needs_a_rekey_at_half_of_its_blocks_and_is_refused_at_the_limit() {
        let (path, now) = (PathId { slot: 0, generation: 0 }, Time::START);
        for (cipher, rekey) in [(Cipher::Aes256Gcm, 1u64 << 34), (Cipher::ChaCha20Poly1305, 1 << 60)] {
            // The header of 12 bytes counts as one block, the body of 17 bytes as two.
            let mut slot = [0; HEADER + 17 + TAG];
            let mut sessions = session(cipher, rekey - 3);
            assert!(!sessions.needs_rekey_on_send(now));
            sessions.seal(now, path, &mut slot, &[]).unwrap();
            assert!(sessions.needs_rekey_on_send(now));
            assert_eq!(session(cipher, 2 * rekey).seal(now, path, &mut slot, &[]), Err(Dropped::NoSession));
        }
    }
}
