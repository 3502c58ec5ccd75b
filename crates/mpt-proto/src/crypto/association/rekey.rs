//! Rekeying inside the session: two messages in CONTROL frames, sealed under the session that they replace.
//!
//! ```text
//! asking end                                       answering end
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
//! gets the same answer. A message of an earlier session or run is never opened under this one.
//!
//! **Both ends ask at once.** The end with the greater public key answers and drops its attempt; the other ignores what
//! it is asked meanwhile. So at most one of the two attempts completes.
//!
//! **A lost peer.** If the peer restarted, nothing opens there, and the caller requests a handshake when all paths are
//! silent. A rekey that stays unanswered for [`FALL_BACK_AFTER`] requests one, too.

use super::*;
use crate::crypto::handshake::Secrets;
use crate::crypto::keys::KeyPair;
use crate::wire::frame::{RekeyMessage, RekeyShare, SHARE};
use crate::wire::native::OVERHEAD;

/// The rekeys of an association.
#[derive(Default)]
pub(super) struct Rekeying {
    attempt: Option<Box<AskedRekey>>,
    answered: Option<AnsweredRekey>,
    /// When this end last derived keys for a rekey of the peer.
    derived: Option<Time>,
    /// The number of the last attempt in this run.
    number: u32,
}

/// A rekey that this end has sent. In a box, so that a change of state leaves no copy of the key behind.
struct AskedRekey {
    started: Time,
    next: Time,
    /// Made when the first message is due.
    own: Option<(KeyPair, RekeyShare)>,
    fell_back: bool,
}

/// A rekey of the peer that this end answered, until the peer uses the session.
struct AnsweredRekey {
    at: Time,
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
        let Rekeying { attempt, answered, .. } = &mut self.rekeying;
        let is_answering = answered.as_ref().is_some_and(|answered| now - answered.at < RETRY_AFTER);
        if attempt.is_none() && !is_answering {
            *attempt = Some(Box::new(AskedRekey { started: now, next: now, own: None, fell_back: false }));
        }
    }

    /// Returns a message of a rekey that is due, to be sent on every path that is up. `ephemeral` is only called for a
    /// new attempt.
    pub fn poll_rekey(&mut self, now: Time, ephemeral: impl FnOnce() -> EphemeralInput) -> Option<RekeyMessage> {
        let Rekeying { attempt, answered, number, .. } = &mut self.rekeying;
        if let Some(answered) = answered.as_mut().filter(|answered| answered.sent.is_none()) {
            answered.sent = Some(now);
            return Some(RekeyMessage::Rekeyed(answered.rekeyed));
        }
        let asked = attempt.as_mut().filter(|attempt| attempt.next <= now)?;
        asked.next = now + ASK_EVERY;
        let (_, share) = asked.own.get_or_insert_with(|| {
            let input = ephemeral();
            *number += 1;
            let own = KeyPair::generate(input.ephemeral);
            let share = RekeyShare { number: *number, index: input.index, ephemeral: *own.public() };
            (own, share)
        });
        let message = RekeyMessage::Rekey(*share);
        if now - asked.started >= FALL_BACK_AFTER && !asked.fell_back {
            asked.fell_back = true;
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
            RekeyMessage::Rekey(share) => self.answer_rekey(now, own_key, share, ephemeral),
            RekeyMessage::Rekeyed(share) => self.complete_rekey(now, share),
        }
    }

    fn answer_rekey(
        &mut self,
        now: Time,
        own_key: &PublicKey,
        rekey: &RekeyShare,
        ephemeral: impl FnOnce() -> EphemeralInput,
    ) -> Result<(), Dropped> {
        if let Some(answered) = &mut self.rekeying.answered {
            if answered.rekey == *rekey {
                answered.sent.take_if(|sent| now - *sent >= ANSWER_EVERY);
                return Ok(());
            }
            if rekey.number <= answered.rekey.number {
                return Ok(());
            }
        }
        // A defective peer costs one key exchange a second.
        if self.rekeying.derived.is_some_and(|at| now - at < ASK_EVERY) {
            return Ok(());
        }
        let is_asking = self.rekeying.attempt.as_ref().is_some_and(|attempt| attempt.own.is_some());
        if is_asking && *own_key < self.peer {
            return Ok(());
        }
        self.rekeying.derived = Some(now);
        let input = ephemeral();
        let own = KeyPair::generate(input.ephemeral);
        let rekeyed = RekeyShare { number: rekey.number, index: input.index, ephemeral: *own.public() };
        let derived = self.derive(now, &own, (rekey, &rekeyed), false);
        let session = derived.inspect_err(|_| self.events.push_back(SessionEvent::Retired(input.index)))?;
        self.end_rekey();
        self.sessions.await_rekeyed(session);
        self.rekeying.answered = Some(AnsweredRekey { at: now, sent: None, rekey: *rekey, rekeyed });
        Ok(())
    }

    fn complete_rekey(&mut self, now: Time, rekeyed: &RekeyShare) -> Result<(), Dropped> {
        let is_answered = |attempt: &mut Box<AskedRekey>| {
            attempt.own.as_ref().is_some_and(|(_, share)| share.number == rekeyed.number)
        };
        let Some((own, rekey)) = self.rekeying.attempt.take_if(is_answered).and_then(|mut asked| asked.own.take())
        else {
            return Ok(());
        };
        let derived = self.derive(now, &own, (&rekey, rekeyed), true);
        let session = derived.inspect_err(|_| self.events.push_back(SessionEvent::Retired(rekey.index)))?;
        self.sessions.install_rekeyed(session);
        self.end_attempt();
        self.on_established(false);
        Ok(())
    }

    /// Derives the session that replaces the current one.
    fn derive(
        &self,
        now: Time,
        own: &KeyPair,
        (rekey, rekeyed): (&RekeyShare, &RekeyShare),
        asked: bool,
    ) -> Result<Session, Dropped> {
        let (mine, theirs) = if asked { (rekey, rekeyed) } else { (rekeyed, rekey) };
        let base = self.sessions.current().expect("a message counts under the current session only");
        let chaining = base.chaining().expect("a session that is rekeyed has a chaining key");
        let messages = [&rekey.to_bytes()[..], &rekeyed.to_bytes()[..]];
        let secrets = Secrets::of_rekey(chaining, own, &theirs.ephemeral, &self.psk, messages);
        let secrets = secrets.map_err(|_| Dropped::NotAuthentic)?;
        let agreed = Agreed { local: mine.index, remote: theirs.index, payload: *base.payload(), secrets };
        Ok(Session::new(now, agreed, base.cipher(), asked).proved(base.proved_at()))
    }

    /// Drops our attempt and forgets what was answered: another session takes the place of the one they belong to.
    pub(super) fn end_rekey(&mut self) {
        self.rekeying.answered = None;
        let own = self.rekeying.attempt.take().and_then(|attempt| attempt.own.map(|(_, share)| share.index));
        self.events.extend(own.map(SessionEvent::Retired));
    }
}

impl Rekeying {
    /// Returns when the next message is due, in the past if an answer is.
    pub fn next_deadline(&self) -> Option<Time> {
        let answer = self.answered.as_ref().filter(|answered| answered.sent.is_none()).map(|answered| answered.at);
        answer.into_iter().chain(self.attempt.as_ref().map(|attempt| attempt.next)).min()
    }
}

/// Bytes of a datagram with one message and nothing else but padding of one byte.
pub const REKEY_DATAGRAM: usize = OVERHEAD + 3 + 3 + SHARE + 1;
/// Between two copies of a rekey on every path: longer than a round trip of most paths. In the 60 s between the time
/// of a rekey and the end of its session, 60 copies go over every path.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Between two answers: copies of one message arrive over several paths, and one answer goes over all of them.
const ANSWER_EVERY: Duration = Duration::from_millis(500);
/// A rekey that is unanswered for half of the time that its session has left is helped by a handshake.
const FALL_BACK_AFTER: Duration = Duration::from_secs(30);
