//! Initiations of keys that no peer has. Each becomes a question to the caller, who may add the peer.
//!
//! An authentic initiation of an unknown key is kept, and [`Endpoint::poll_unknown_key`] returns the question. Then:
//!
//! | the caller calls | effect |
//! |---|---|
//! | [`Endpoint::add_peer`] | The kept initiation is answered. |
//! | [`Endpoint::refuse_unknown_key`] | It is dropped. Questions about the key may come again after [`REFUSED_TIME`]. |
//! | neither | It is dropped after [`QUESTION_TIME`]. |
//!
//! The state has a fixed bound, whatever the network sends: [`MAX_QUESTIONS`] questions, each with one initiation, and
//! [`MAX_REFUSED_KEYS`] refused keys of 32 bytes. Before a question, an initiation has passed the handshake guard, and
//! its sender has proved the key; the answer continues from there, and repeats no Diffie-Hellman. A flood of random
//! keys costs two Diffie-Hellmans for each initiation while there is room for a question, and one otherwise. It keeps
//! other unknown keys out meanwhile; peers are not affected.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use super::Endpoint;
use crate::crypto::handshake::{ClaimedInitiation, Tai64n, VerifiedInitiation};
use crate::crypto::keys::PublicKey;
use crate::datagram::RecvMeta;
use crate::drops::Dropped;
use crate::time::Time;
pub use crate::tuning::unknown_keys::{MAX_QUESTIONS, MAX_REFUSED_KEYS, QUESTION_TIME, REFUSED_TIME};

/// An initiation whose sender has proved a key that no peer has. It may be a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// The static key.
    pub key: PublicKey,
    /// The timestamp of the initiation.
    pub timestamp: Tai64n,
    /// The source of the initiation.
    pub source: SocketAddr,
}

/// The open questions and the refused keys.
#[derive(Debug, Default)]
pub(super) struct UnknownKeys {
    asks: bool,
    open: HashMap<PublicKey, Question>,
    /// The open questions by age, and some that have been answered.
    by_age: VecDeque<(Time, PublicKey)>,
    unpolled: VecDeque<PublicKey>,
    refused: HashMap<PublicKey, Time>,
    /// The refused keys by age, and some that were refused again.
    refused_by_age: VecDeque<(Time, PublicKey)>,
}

/// An authentic initiation that waits for the decision about its key, or for the worker that has the peer.
#[derive(Debug)]
pub struct Question {
    opened: Time,
    pub(super) received: RecvMeta,
    pub(super) initiation: VerifiedInitiation,
}

impl Endpoint {
    /// Makes authentic initiations of unknown keys questions for [`Self::poll_unknown_key`], in place of drops.
    pub fn ask_for_unknown_keys(&mut self) {
        self.unknown_keys.asks = true;
    }

    /// Returns the next new question. [`Self::add_peer`] answers it, and the initiation that caused it is handled then;
    /// or [`Self::refuse_unknown_key`] does. Otherwise it ends after [`QUESTION_TIME`].
    pub fn poll_unknown_key(&mut self) -> Option<UnknownKey> {
        let Self { unknown_keys, .. } = self;
        while let Some(key) = unknown_keys.unpolled.pop_front() {
            if let Some(question) = unknown_keys.open.get(&key) {
                return Some(question.about(key));
            }
        }
        None
    }

    /// Returns all open questions, for another one who may answer them.
    pub fn unknown_keys(&mut self, now: Time) -> Vec<UnknownKey> {
        self.end_old_questions(now);
        self.unknown_keys.open.iter().map(|(key, question)| question.about(*key)).collect()
    }

    /// Drops the initiation of this key, and every one for [`REFUSED_TIME`].
    pub fn refuse_unknown_key(&mut self, now: Time, key: &PublicKey) {
        let Self { unknown_keys, drops, .. } = self;
        if unknown_keys.open.remove(key).is_some() {
            drops.count(Dropped::UnknownPeer);
        }
        unknown_keys.refused.insert(*key, now);
        unknown_keys.refused_by_age.push_back((now, *key));
        unknown_keys.forget_refused(now);
    }

    /// Handles the initiation that an added peer has sent before.
    pub(super) fn replay_initiation(&mut self, now: Time, key: &PublicKey) {
        self.unknown_keys.refused.remove(key);
        self.end_old_questions(now);
        if let Some(question) = self.unknown_keys.open.remove(key) {
            self.answer(now, question);
        }
    }

    /// Answers an initiation whose sender is a peer now.
    pub(super) fn answer(&mut self, now: Time, Question { received, initiation, .. }: Question) {
        let peer = self.index_of_key(initiation.peer()).ok_or(Dropped::UnknownPeer);
        if let Err(why) = peer.and_then(|peer| self.answer_initiation(now, &received, peer, initiation)) {
            self.drops.count(why);
        }
    }

    /// Takes the question about this key, which a peer at another worker has now.
    pub fn take_question(&mut self, key: &PublicKey) -> Option<Question> {
        self.unknown_keys.refused.remove(key);
        self.unknown_keys.open.remove(key)
    }

    /// Opens a question about an initiation that has passed the guard, or returns the reason why it is dropped.
    pub(super) fn ask(
        &mut self,
        now: Time,
        received: &RecvMeta,
        claimed: ClaimedInitiation<'_>,
    ) -> Result<(), Dropped> {
        let key = *claimed.peer();
        self.end_old_questions(now);
        let Self { sessions: Some(sessions), unknown_keys, .. } = self else { return Err(Dropped::UnknownPeer) };
        unknown_keys.forget_refused(now);
        let is_open = unknown_keys.open.contains_key(&key);
        let has_room = is_open || unknown_keys.open.len() < MAX_QUESTIONS;
        if !unknown_keys.asks || unknown_keys.refused.contains_key(&key) || !has_room {
            return Err(Dropped::UnknownPeer);
        }
        let question = Question::new(now, received, claimed.verify(sessions.identity())?);
        match unknown_keys.open.get_mut(&key) {
            // A copy over another path, or a replay: the sender waits for the response to its newest initiation.
            Some(open) if question.initiation.timestamp <= open.initiation.timestamp => {
                return Err(Dropped::StaleHandshake);
            }
            Some(open) => *open = Question { opened: open.opened, ..question },
            None => {
                unknown_keys.open.insert(key, question);
                unknown_keys.by_age.push_back((now, key));
                unknown_keys.unpolled.push_back(key);
                self.has_news = true;
            }
        }
        Ok(())
    }

    fn end_old_questions(&mut self, now: Time) {
        let Self { unknown_keys: UnknownKeys { open, by_age, unpolled, .. }, drops, .. } = self;
        while let Some((opened, key)) = by_age.front().copied() {
            let is_open = open.get(&key).is_some_and(|question| question.opened == opened);
            if is_open && now.since(opened) < QUESTION_TIME {
                break;
            }
            by_age.pop_front();
            if is_open {
                open.remove(&key);
                drops.count(Dropped::UnknownPeer);
            }
        }
        if open.is_empty() {
            unpolled.clear();
        }
    }
}

impl UnknownKeys {
    fn forget_refused(&mut self, now: Time) {
        let Self { refused, refused_by_age, .. } = self;
        while let Some((at, key)) = refused_by_age.front().copied() {
            let is_old = now.since(at) >= REFUSED_TIME || refused_by_age.len() > MAX_REFUSED_KEYS;
            let is_replaced = refused.get(&key) != Some(&at);
            if !is_old && !is_replaced {
                break;
            }
            refused_by_age.pop_front();
            if !is_replaced {
                refused.remove(&key);
            }
        }
    }
}

impl Question {
    pub(super) fn new(opened: Time, received: &RecvMeta, initiation: VerifiedInitiation) -> Self {
        Self { opened, received: *received, initiation }
    }

    fn about(&self, key: PublicKey) -> UnknownKey {
        UnknownKey { key, timestamp: self.initiation.timestamp, source: self.received.from }
    }
}
