//! Handshake messages, which belong to no session yet.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Endpoint, Handover, Question};
use crate::crypto::handshake::{
    ClaimedInitiation, HandshakeMessage, Initiation, Rejection, Tai64n, VerifiedInitiation,
};
use crate::datagram::RecvMeta;
use crate::drops::Dropped;
use crate::peer::Peer;
use crate::sessions::SessionTable;
use crate::time::Time;
use crate::tx::TxQueue;

impl Endpoint {
    /// Handles a handshake message. Under load, an initiation without a valid cookie gets a cookie reply in place of a
    /// response.
    pub(super) fn handle_handshake(&mut self, now: Time, received: &RecvMeta, datagram: &[u8]) -> Result<(), Dropped> {
        let Self { sessions: Some(sessions), peers, tx, others, .. } = self else {
            return Err(Dropped::UnknownProtocol);
        };
        let message = HandshakeMessage::decode(datagram).ok_or(Dropped::Malformed)?;
        if let Err(rejection) = admit(sessions, peers, others.addresses(), now, received, &message) {
            let Rejection::Reply(cookie) = rejection else { return Err(rejection.reason()) };
            answer(tx, received, &cookie);
            return Ok(());
        }
        let source = (received.link, received.from);
        let peer = match message {
            HandshakeMessage::Initiation(initiation) => {
                if self.initiations.begins(now) {
                    return self.handle_initiation(now, received, &initiation);
                }
                return self.initiations.push(*received, datagram);
            }
            HandshakeMessage::Response(response) => {
                let peer = sessions.peer_of_session(response.receiver).ok_or(Dropped::UnknownSession)?;
                let association = peers[peer].association().ok_or(Dropped::UnknownPeer)?;
                association.handle_response(now, sessions.identity(), &response)?;
                peer
            }
            HandshakeMessage::CookieReply(reply) => {
                let peer = sessions.peer_of_session(reply.receiver).ok_or(Dropped::UnknownSession)?;
                peers[peer].handle_cookie(now, source, &reply)?;
                peer
            }
        };
        self.ready.mark(peer);
        Ok(())
    }

    /// Handles initiations that have waited for this turn.
    pub(super) fn handle_waiting_initiations(&mut self, now: Time) {
        while let Some((received, datagram)) = self.initiations.pop(now) {
            let Some(HandshakeMessage::Initiation(initiation)) = HandshakeMessage::decode(&datagram) else { continue };
            if let Err(why) = self.handle_initiation(now, &received, &initiation) {
                self.drops.count(why);
            }
        }
    }

    /// Answers an initiation that has passed the guard. That of an unknown key becomes a question.
    fn handle_initiation(
        &mut self,
        now: Time,
        received: &RecvMeta,
        initiation: &Initiation<'_>,
    ) -> Result<(), Dropped> {
        let sessions = self.sessions.as_ref().ok_or(Dropped::UnknownProtocol)?;
        let claimed = ClaimedInitiation::open(sessions.identity(), initiation)?;
        if let Some(peer) = sessions.peer_with_key(claimed.peer()) {
            return self.answer_initiation(now, received, peer, claimed.verify(sessions.identity())?);
        }
        match self.others.peer_with_key(claimed.peer()) {
            Some(peer) => {
                let question = Question::new(now, received, claimed.verify(sessions.identity())?);
                self.others.hand_over(peer, Handover::Initiation(Box::new(question)));
                Ok(())
            }
            None => self.ask(now, received, claimed),
        }
    }

    /// Answers an authentic initiation of a peer.
    pub(super) fn answer_initiation(
        &mut self,
        now: Time,
        received: &RecvMeta,
        peer: usize,
        verified: VerifiedInitiation,
    ) -> Result<(), Dropped> {
        let Self { sessions: Some(sessions), peers, tx, key_takeovers, .. } = self else {
            return Err(Dropped::UnknownProtocol);
        };
        let association = peers[peer].association().ok_or(Dropped::UnknownPeer)?;
        let (identity, indexes) = sessions.parts();
        let ephemeral = || indexes.ephemeral_input(peer);
        let shared = association.shared_key();
        let source = (received.link, received.from);
        let response = association.handle_initiation(now, identity, verified, source, ephemeral)?;
        let is_takeover = association.shared_key() != shared;
        *key_takeovers += u64::from(is_takeover);
        self.has_news |= is_takeover;
        answer(tx, received, &response.message);
        self.ready.mark(peer);
        Ok(())
    }

    /// The host was suspended, or the memory of this end may exist twice: a virtual machine was copied, or set back to
    /// an earlier state. Drops all sessions, whose keys may be older than their limit and whose packet numbers may
    /// repeat, and begins new handshakes at once. All randomness comes from `seed` from then on, which is new and from
    /// a cryptographic random source. Datagrams that were sealed before and wait for the socket still leave.
    pub fn handle_suspend(&mut self, now: Time, seed: [u8; 32]) {
        let Some(sessions) = &mut self.sessions else { return };
        sessions.reseed(seed);
        for index in 0..self.peers.len() {
            let (peers, mut turn) = self.split(now);
            peers[index].drop_sessions(&mut turn);
            self.ready.mark(index);
        }
    }

    /// Takes the wall clock of the host, which shows `since_1970` at `now`. It is passed in again before each
    /// [`Self::handle_deadline`], because a clock that was wrong at the start may be set right at any time.
    pub fn set_wall_clock(&mut self, now: Time, since_1970: Duration) {
        if let Some(sessions) = &mut self.sessions {
            sessions.parts().0.clock.set(now, since_1970);
        }
    }

    /// Returns the timestamp of the last initiation, after which the next run of this end must continue:
    /// [`crate::crypto::handshake::Clock::resume_after`].
    pub fn last_timestamp(&self) -> Option<Tai64n> {
        self.sessions.as_ref()?.identity().clock.last()
    }

    /// Returns how often a host took over a peer's key from another one, see [`crate::stats::PeerStatus::shared_key`].
    pub fn key_takeovers(&self) -> u64 {
        self.key_takeovers
    }

    /// Returns true while so many handshake messages come that initiators must prove their address.
    pub fn is_loaded(&mut self, now: Time) -> bool {
        self.sessions.as_mut().is_some_and(|sessions| sessions.guard().is_loaded(now))
    }

    /// Returns the number of handshake messages that were refused so far.
    pub fn refused_handshakes(&self) -> u64 {
        [Dropped::BadMac, Dropped::HandshakeFlood, Dropped::StaleHandshake, Dropped::UnknownPeer]
            .into_iter()
            .map(|why| self.drops.of(why))
            .sum()
    }
}

/// Checks the MACs of a message, before any public-key operation.
fn admit(
    sessions: &mut SessionTable,
    peers: &mut [Peer],
    elsewhere: &[SocketAddr],
    now: Time,
    received: &RecvMeta,
    message: &HandshakeMessage<'_>,
) -> Result<(), Rejection> {
    match message {
        HandshakeMessage::Initiation(initiation) => {
            let others = elsewhere.chunks(ADDRESSES_OF_A_PEER);
            let addresses_of = |index: usize| {
                let peer = peers.get(index).into_iter().flat_map(Peer::validated_addresses);
                let other = index.checked_sub(peers.len()).and_then(|index| others.clone().nth(index));
                peer.chain(other.into_iter().flatten().copied())
            };
            sessions.guard().learn_addresses(now, peers.len() + others.len(), addresses_of);
            sessions.guard().admit(now, received.from, &initiation.signed)
        }
        HandshakeMessage::Response(response) => {
            let peer = sessions.peer_of_session(response.receiver);
            let association = peer.and_then(|peer| peers[peer].association());
            let is_awaited = association.is_some_and(|own| own.awaits_response(response.receiver));
            sessions.guard().admit_response(now, received.from, &response.signed, is_awaited)
        }
        HandshakeMessage::CookieReply(_) => Ok(()),
    }
}

/// Addresses of peers at other workers that are learned at once.
const ADDRESSES_OF_A_PEER: usize = 8;

/// Sends a handshake message to the address from which `received` came.
fn answer(tx: &mut TxQueue, received: &RecvMeta, message: &[u8]) {
    let mut slot = tx.reserve(received.link, received.from, 0, message.len());
    slot.bytes().copy_from_slice(message);
    slot.commit();
}
