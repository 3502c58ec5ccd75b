//! The sessions with one peer: which one seals, which ones open, and how datagrams are numbered across them.
//!
//! ```text
//!  we initiated, the response came ----------------------------> current --> previous --> older --> gone
//!  we responded --> next --- a datagram under it came (confirmed) --^
//! ```
//!
//! The initiator of a session may use it at once, because the response proves that the responder has it; the responder
//! only when the first datagram proves that the initiator has it. Until then it seals under the session before. Every one
//! that is kept still opens, so a rekey loses nothing that is on its way. Two former sessions are kept, not one: when both
//! ends initiate at once, each may see the other's handshake complete around its own.
//!
//! Numbers and windows belong to the pair of runs, not to a session (see [`crate::wire::native`]): they go on across a rekey
//! and begin again when the peer has begun anew, at which moment every session of the old run is dropped.

use std::time::Duration;

use crate::crypto::aead::{AeadKey, Cipher, TAG};
use crate::crypto::handshake::{Agreed, HandshakePayload, Incarnation};
use crate::crypto::replay::{ReplayWindows, expand};
use crate::drops::Dropped;
use crate::path::{MAX_PATHS, PathId, PathSeq};
use crate::time::Time;
use crate::wire::native::{HEADER, Header, PathTag, SessionIndex, nonce};

/// A datagram that proved authentic and new.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The path of the peer on which it came.
    pub path: PathTag,
    /// Its number on that path's slot.
    pub number: PathSeq,
    /// Its frames.
    pub body: &'a mut [u8],
}

/// Keys of one handshake.
pub(super) struct Session {
    local: SessionIndex,
    remote: SessionIndex,
    hello: HandshakePayload,
    initiated: bool,
    born: Time,
    seal: AeadKey,
    open: AeadKey,
    blocks: u64,
}

impl Session {
    /// The session that a handshake has agreed on; `initiated` when it was ours.
    pub(super) fn new(now: Time, agreed: Agreed, cipher: Cipher, initiated: bool) -> Self {
        let Agreed { local, remote, hello, secrets } = agreed;
        let (to_responder, to_initiator) =
            (AeadKey::new(cipher, &secrets.to_responder), AeadKey::new(cipher, &secrets.to_initiator));
        let (seal, open) = if initiated { (to_responder, to_initiator) } else { (to_initiator, to_responder) };
        Self { local, remote, hello, initiated, born: now, seal, open, blocks: 0 }
    }

    pub(super) fn index(&self) -> SessionIndex {
        self.local
    }

    pub(super) fn initiated(&self) -> bool {
        self.initiated
    }

    pub(super) fn hello(&self) -> &HandshakePayload {
        &self.hello
    }

    pub(super) fn cipher(&self) -> Cipher {
        self.seal.cipher()
    }

    fn seal(&mut self, path: PathTag, number: PathSeq, slot: &mut [u8]) {
        let (header, body) = slot.split_at_mut(HEADER);
        header.copy_from_slice(&Header::new(self.remote, path, number).encode());
        self.seal.seal(nonce(path, number), header, body);
        // RFC 9001 appendix B.1 counts blocks of plaintext and of associated data; the header is one.
        self.blocks += 1 + (body.len() - TAG).div_ceil(16) as u64;
    }

    fn open<'a>(&self, path: PathTag, number: PathSeq, datagram: &'a mut [u8]) -> Result<&'a mut [u8], Dropped> {
        let (header, sealed) = datagram.split_at_mut(HEADER);
        self.open.open(nonce(path, number), header, sealed).map_err(|_| Dropped::NotAuthentic)
    }

    fn expires(&self) -> Time {
        self.born + REJECT_AFTER
    }

    fn can_seal(&self, now: Time) -> bool {
        now < self.expires() && self.blocks < self.cipher().reject_after_blocks()
    }

    fn is_older(&self, now: Time, age: Duration) -> bool {
        now - self.born >= age
    }
}

/// Every session with one peer that can still be used.
#[derive(Default)]
pub(super) struct Sessions {
    current: Option<Session>,
    next: Option<Session>,
    previous: Option<Session>,
    older: Option<Session>,
    run: Option<Incarnation>,
    sent: [u64; MAX_PATHS],
    seen: ReplayWindows,
    retired: Vec<SessionIndex>,
}

impl Sessions {
    /// Writes the header of the next datagram on `path` into `slot` and seals what stands between it and the tag.
    pub(super) fn seal(&mut self, now: Time, path: PathId, slot: &mut [u8]) -> Result<PathSeq, Dropped> {
        let session = self.current.as_mut().filter(|session| session.can_seal(now)).ok_or(Dropped::NoSession)?;
        let sent = &mut self.sent[usize::from(path.slot)];
        let number = PathSeq(*sent);
        *sent += 1;
        session.seal(path.into(), number, slot);
        Ok(number)
    }

    /// The number that the next datagram on the path in `slot` will have.
    pub(super) fn next_number(&self, slot: u8) -> PathSeq {
        PathSeq(self.sent[usize::from(slot)])
    }

    /// Opens a datagram in place, once. When it confirmed a session that we had answered, also returns whether the peer has
    /// begun anew.
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
        Ok((Opened { path, number, body }, confirmed))
    }

    /// The full number of a datagram, which must not have been seen. A new run of the peer has not been seen at all.
    fn number(&self, session: &Session, path: PathTag, sequence: u32) -> Result<PathSeq, Dropped> {
        if self.run != Some(session.hello.incarnation) {
            return Ok(PathSeq(expand(0, sequence)));
        }
        let number = self.seen.expand(path, sequence);
        self.seen.check(path, number).map(|()| number)
    }

    /// Takes a session that we initiated, to seal under at once. Returns whether the peer has begun anew. One that waits for
    /// confirmation is passed over, unless it belongs to another run: that may be a newer one than this.
    pub(super) fn install(&mut self, session: Session) -> bool {
        let restarted = self.meet(&session);
        let next = self.next.take_if(|next| next.hello.incarnation == session.hello.incarnation);
        let current = self.current.replace(session);
        [current, next].into_iter().flatten().for_each(|former| self.keep(former));
        restarted
    }

    /// Takes a session that we answered, to open with, and to seal under when it is confirmed.
    pub(super) fn expect(&mut self, session: Session) {
        let forgotten = self.next.replace(session);
        self.retire(forgotten);
    }

    /// Makes the session with this index current if it was waiting for confirmation.
    fn confirm(&mut self, index: SessionIndex) -> Option<bool> {
        let session = self.next.take_if(|next| next.local == index)?;
        let restarted = self.meet(&session);
        if let Some(former) = self.current.replace(session) {
            self.keep(former);
        }
        Some(restarted)
    }

    /// Drops what belongs to another run of the peer than this session. Returns whether there was one.
    fn meet(&mut self, session: &Session) -> bool {
        let known = self.run.replace(session.hello.incarnation);
        if known == self.run {
            return false;
        }
        let gone = [self.current.take(), self.previous.take(), self.older.take()];
        gone.into_iter().for_each(|session| self.retire(session));
        (self.sent, self.seen) = ([0; MAX_PATHS], ReplayWindows::default());
        known.is_some()
    }

    fn keep(&mut self, former: Session) {
        let oldest = std::mem::replace(&mut self.older, self.previous.replace(former));
        self.retire(oldest);
    }

    fn retire(&mut self, session: Option<Session>) {
        self.retired.extend(session.map(|session| session.local));
    }

    /// Drops, and thereby wipes, the sessions that have expired.
    pub(super) fn expire(&mut self, now: Time) {
        for place in [&mut self.current, &mut self.next, &mut self.previous, &mut self.older] {
            let expired = place.take_if(|session| session.expires() <= now);
            self.retired.extend(expired.map(|session| session.local));
        }
    }

    /// When the next session expires.
    pub(super) fn expires(&self) -> Option<Time> {
        self.iter().map(Session::expires).min()
    }

    /// Whether a datagram can be sealed.
    pub(super) fn can_seal(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|session| session.can_seal(now))
    }

    /// The session under which datagrams are sealed.
    pub(super) fn current(&self) -> Option<&Session> {
        self.current.as_ref()
    }

    /// An index that names no session any more.
    pub(super) fn poll_retired(&mut self) -> Option<SessionIndex> {
        self.retired.pop()
    }

    /// Whether, having sent, it is time to look for a new session. Time is the initiator's to watch, so that the two ends
    /// do not both begin; the cipher's limit is anyone's.
    pub(super) fn is_worn(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|session| {
            session.initiated && session.is_older(now, REKEY_AFTER)
                || session.blocks >= session.cipher().rekey_after_blocks()
        })
    }

    /// Whether, having only received, it is time to look for a new session.
    pub(super) fn is_nearly_expired(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|session| session.initiated && session.is_older(now, REKEY_AFTER_SILENT))
    }

    fn find(&self, index: SessionIndex) -> Option<&Session> {
        self.iter().find(|session| session.local == index)
    }

    fn iter(&self) -> impl Iterator<Item = &Session> {
        [&self.current, &self.next, &self.previous, &self.older].into_iter().flatten()
    }
}

/// WireGuard's Rekey-After-Time, whitepaper section 6.1.
pub const REKEY_AFTER: Duration = Duration::from_secs(120);
/// WireGuard's Reject-After-Time, whitepaper section 6.1.
pub const REJECT_AFTER: Duration = Duration::from_secs(180);
/// An initiator that only receives rekeys this late: Reject-After-Time less Keepalive-Timeout (10 s) less Rekey-Timeout
/// (5 s), whitepaper section 6.2.
pub const REKEY_AFTER_SILENT: Duration = Duration::from_secs(165);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::handshake::{Capabilities, Incarnation, Secrets};
    use zeroize::Zeroizing;

    fn session(cipher: Cipher, blocks: u64) -> Sessions {
        let secrets = Secrets { to_responder: Zeroizing::new([1; 32]), to_initiator: Zeroizing::new([2; 32]) };
        let hello =
            HandshakePayload { version: 1, incarnation: Incarnation([0; 8]), capabilities: Capabilities::new(true) };
        let agreed = Agreed { local: SessionIndex::new(1), remote: SessionIndex::new(2), hello, secrets };
        let mut sessions = Sessions::default();
        sessions.install(Session { blocks, ..Session::new(Time::START, agreed, cipher, false) });
        sessions
    }

    #[test]
    fn a_key_is_worn_when_half_of_its_blocks_are_used_and_dead_when_all_are() {
        let (path, now) = (PathId { slot: 0, generation: 0 }, Time::START);
        for (cipher, rekey) in [(Cipher::Aes256Gcm, 1u64 << 34), (Cipher::ChaCha20Poly1305, 1 << 60)] {
            // 12 bytes of header are a block, 17 bytes of body are two.
            let mut slot = [0; HEADER + 17 + TAG];
            let mut sessions = session(cipher, rekey - 3);
            assert!(!sessions.is_worn(now));
            sessions.seal(now, path, &mut slot).unwrap();
            assert!(sessions.is_worn(now));
            assert_eq!(session(cipher, 2 * rekey).seal(now, path, &mut slot), Err(Dropped::NoSession));
        }
    }
}
