//! Rekeying inside the session: two messages in CONTROL frames, sealed under the session that they replace.
//!
//! ```text
//! initiator of the rekey                           responder
//! attempt --- rekey (number, index, key) --------> derives the new session, which awaits its first datagram
//! new session is current <-- rekeyed (the same) ---
//!             --- a datagram under it -----------> new session is current
//! ```
//!
//! **Identity** follows from the session: only the two ends can seal under it, and only they have its chaining key,
//! which is an input of the new keys. **Forward secrecy** follows from the ephemeral keys, which are erased with the
//! attempt. The chaining key of a session is erased when another session takes its place.
//!
//! **Replay.** A message counts only under the current session. Within it, the numbers of attempts increase, and a copy
//! gets the same response. A message of an earlier session or run is never opened under this one.
//!
//! **Both ends initiate at once.** The end with the greater public key responds and drops its attempt; the other
//! ignores *rekey* during its own attempt. So at most one of the two attempts completes.
//!
//! **A lost peer.** If the peer restarted, nothing opens there, and the caller requests a handshake when all paths are
//! silent. So does a rekey without a response for [`FALL_BACK_AFTER`].

use super::*;
use crate::crypto::handshake::Secrets;
use crate::crypto::keys::KeyPair;
use crate::wire::frame::{RekeyMessage, RekeyShare, SHARE};
use crate::wire::native::OVERHEAD;

/// The rekeys of an association.
#[derive(Default)]
pub(super) struct Rekeying {
    attempt: Option<Box<RekeyAttempt>>,
    response: Option<RekeyResponse>,
    /// Time at which this end last derived keys for a rekey of the peer.
    derived: Option<Time>,
    /// The number of the last attempt in this run.
    number: u32,
}

/// A rekey that this end initiated. In a box, so that a change of state leaves no copy of the key behind.
struct RekeyAttempt {
    next: Time,
    /// Time at which a handshake is requested as well; `None` afterwards.
    fall_back: Option<Time>,
    /// Made when the first message is due.
    own: Option<(KeyPair, RekeyShare)>,
}

/// Our response to a rekey of the peer, until the peer uses the session.
struct RekeyResponse {
    derived: Time,
    /// Time of its last transmission; `None` if it is due.
    sent: Option<Time>,
    rekey: RekeyShare,
    rekeyed: RekeyShare,
}

impl Association {
    /// Replaces the keys of the current session: inside it, if both ends can, or by a handshake.
    pub fn replace_session(&mut self, now: Time) {
        if self.sessions.rekeyable(now).is_none() {
            return self.request(now);
        }
        let Some(lifetime) = self.sessions.current().map(|session| session.expires() - now) else { return };
        let Rekeying { attempt, response, .. } = &mut self.rekeying;
        let is_responding = response.as_ref().is_some_and(|response| now - response.derived < RETRY_AFTER);
        if attempt.is_none() && !is_responding {
            let fall_back = Some(now + FALL_BACK_AFTER.min(lifetime / 2));
            *attempt = Some(Box::new(RekeyAttempt { next: now, fall_back, own: None }));
        }
    }

    /// Returns a message of a rekey that is due, to be sent on every path that is up. `ephemeral` is only called for a
    /// new attempt.
    pub fn poll_rekey(&mut self, now: Time, ephemeral: impl FnOnce() -> EphemeralInput) -> Option<RekeyMessage> {
        if self.sessions.rekeyable(now).is_none() {
            self.end_rekey();
            return None;
        }
        let Rekeying { attempt, response, number, .. } = &mut self.rekeying;
        if let Some(response) = response.as_mut().filter(|response| response.sent.is_none()) {
            response.sent = Some(now);
            return Some(RekeyMessage::Rekeyed(response.rekeyed));
        }
        let attempt = attempt.as_mut().filter(|attempt| attempt.next <= now)?;
        attempt.next = now + RETRANSMIT_INTERVAL;
        let (_, share) = attempt.own.get_or_insert_with(|| {
            let input = ephemeral();
            *number += 1;
            let own = KeyPair::generate(input.ephemeral);
            let share = RekeyShare { number: *number, index: input.index, ephemeral: *own.public().as_bytes() };
            (own, share)
        });
        let message = RekeyMessage::Rekey(*share);
        if attempt.fall_back.take_if(|at| *at <= now).is_some() {
            self.request(now);
        }
        Some(message)
    }

    /// Handles a message of a rekey that was opened under the session `base`. A message that is late or repeated has no
    /// effect. `ephemeral` is only called if a new session results.
    pub fn handle_rekey(
        &mut self,
        now: Time,
        own_key: &PublicKey,
        base: SessionIndex,
        message: &RekeyMessage,
        ephemeral: impl FnOnce() -> EphemeralInput,
    ) -> Result<(), Dropped> {
        if self.sessions.rekeyable(now) != Some(base) {
            return Ok(());
        }
        match message {
            RekeyMessage::Rekey(share) => self.respond_to_rekey(now, own_key, share, ephemeral),
            RekeyMessage::Rekeyed(share) => self.complete_rekey(now, share),
        }
    }

    fn respond_to_rekey(
        &mut self,
        now: Time,
        own_key: &PublicKey,
        rekey: &RekeyShare,
        ephemeral: impl FnOnce() -> EphemeralInput,
    ) -> Result<(), Dropped> {
        if let Some(response) = &mut self.rekeying.response {
            if response.rekey == *rekey {
                response.sent.take_if(|sent| now - *sent >= RESPONSE_INTERVAL);
                return Ok(());
            }
            if rekey.number <= response.rekey.number {
                return Ok(());
            }
        }
        // A defective peer costs one key exchange a second.
        if self.rekeying.derived.is_some_and(|at| now - at < RETRANSMIT_INTERVAL) {
            return Ok(());
        }
        let is_initiator = self.rekeying.attempt.as_ref().is_some_and(|attempt| attempt.own.is_some());
        if is_initiator && *own_key < self.peer {
            return Ok(());
        }
        self.rekeying.derived = Some(now);
        let input = ephemeral();
        let own = KeyPair::generate(input.ephemeral);
        let rekeyed = RekeyShare { number: rekey.number, index: input.index, ephemeral: *own.public().as_bytes() };
        let derived = self.derive(now, &own, (rekey, &rekeyed), false);
        let session = derived.inspect_err(|_| self.events.push_back(SessionEvent::Retired(input.index)))?;
        self.end_rekey();
        self.sessions.await_confirmation_of_rekey(session);
        self.rekeying.response = Some(RekeyResponse { derived: now, sent: None, rekey: *rekey, rekeyed });
        Ok(())
    }

    fn complete_rekey(&mut self, now: Time, rekeyed: &RekeyShare) -> Result<(), Dropped> {
        // The key stays in the box, which wipes it: a key that is moved out leaves a copy in freed memory.
        let own = self.rekeying.attempt.as_ref().and_then(|attempt| attempt.own.as_ref());
        let Some((own, rekey)) = own.filter(|(_, share)| share.number == rekeyed.number) else { return Ok(()) };
        let (derived, index) = (self.derive(now, own, (rekey, rekeyed), true), rekey.index);
        let attempt = &mut self.rekeying.attempt;
        let session = derived.inspect_err(|_| {
            // A defective peer costs one key exchange a second: the next message, with another key, is not due before.
            attempt.iter_mut().for_each(|attempt| attempt.own = None);
            self.events.push_back(SessionEvent::Retired(index));
        })?;
        *attempt = None;
        self.sessions.install_after_rekey(session);
        self.end_replaced_attempt(now);
        self.on_established(false);
        Ok(())
    }

    /// Derives the session that replaces the current one.
    fn derive(
        &self,
        now: Time,
        own: &KeyPair,
        (rekey, rekeyed): (&RekeyShare, &RekeyShare),
        initiated: bool,
    ) -> Result<Session, Dropped> {
        let (local, remote) = if initiated { (rekey, rekeyed) } else { (rekeyed, rekey) };
        let base = self.sessions.current().expect("a message counts under the current session only");
        let chaining = base.chaining().expect("a session that is rekeyed has a chaining key");
        let messages = [&rekey.to_bytes()[..], &rekeyed.to_bytes()[..]];
        let secrets = Secrets::of_rekey(chaining, own, &PublicKey::from_bytes(remote.ephemeral), &self.psk, messages);
        let secrets = secrets.map_err(|_| Dropped::NotAuthentic)?;
        let agreed = Agreed { local: local.index, remote: remote.index, payload: *base.payload(), secrets };
        Ok(Session::new(now, agreed, base.cipher(), base.own(), initiated).with_handshake_at(base.handshake_at()))
    }

    /// Drops our attempt and our response: another session takes the place of the one to which they belong.
    pub(super) fn end_rekey(&mut self) {
        self.rekeying.response = None;
        let attempt = self.rekeying.attempt.take();
        let own = attempt.as_ref().and_then(|attempt| attempt.own.as_ref()).map(|(_, share)| share.index);
        self.events.extend(own.map(SessionEvent::Retired));
    }
}

impl Rekeying {
    /// Returns when the next message is due; a time in the past if a response is due.
    pub fn next_deadline(&self) -> Option<Time> {
        let response = self.response.as_ref().filter(|response| response.sent.is_none());
        response
            .map(|response| response.derived)
            .into_iter()
            .chain(self.attempt.as_ref().map(|attempt| attempt.next))
            .min()
    }
}

/// Bytes of a datagram with one message and nothing else but padding of one byte.
pub const REKEY_DATAGRAM: usize = OVERHEAD + 3 + 3 + SHARE + 1;
/// Between two copies of *rekey*, which leave on every path: longer than a round trip of most paths. A session ends
/// 60 s after its rekey is due, so up to 60 copies leave on a path. Chosen, not measured.
const RETRANSMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Between two copies of *rekeyed*: copies of one *rekey* arrive over several paths, and one response leaves on all of
/// them. Half of [`RETRANSMIT_INTERVAL`], so every retransmission gets a response.
const RESPONSE_INTERVAL: Duration = Duration::from_millis(500);
/// A handshake is requested as well if there is no response for this long, which is half of the rest of the session if
/// the rekey begins when it is due. A later rekey waits for half of the rest.
const FALL_BACK_AFTER: Duration = Duration::from_secs(30);
