//! The responder's half of an exchange.
//!
//! A round 1 is answered with a new nonce, and with the same nonce again until the data arrives, so a repeated round 1
//! does not disturb the exchange. A round 3 must repeat the nonce; its request is executed once, and a repetition gets
//! the same reply again. A replayed round 3 has no effect later, because its nonce has been used. (The original never
//! invalidates a nonce, and checks none for an unknown connection.)
//!
//! The original repeats no nonce in a CREATE for a connection of type 0 or 1. Where unauthenticated messages are
//! accepted, any nonce continues a CREATE that has begun, and the reply carries it: a recorded creation then works once
//! more.
//!
//! State is stored only for requests that have been authenticated according to the policy.

use std::net::SocketAddr;
use std::time::Duration;

use super::initiator::{TRIES, TRY_INTERVAL};
use super::nonces::Nonces;
use super::{AddressPair, Code, ControlTransmit, Refused};
use crate::legacy::wire::{AuthKey, AuthType, ControlMessage, DOWN, MalformedMessage, Nonce, Opcode, PathEnds};
use crate::time::Time;

/// The exchanges that other hosts have started.
#[derive(Debug)]
pub(super) struct RequestReceiver {
    nonces: Nonces,
    exchanges: Vec<ReceivedRequest>,
}

/// The next step for a request.
#[derive(Debug)]
pub(super) enum NextStep {
    /// Send this.
    Reply(ControlTransmit),
    /// Execute the data, then call [`RequestReceiver::confirm`] or [`RequestReceiver::answer_create`].
    Act(RequestData),
}

/// The data of round 3.
#[derive(Debug)]
pub(super) enum RequestData {
    /// A path went up or down.
    Status { ends: PathEnds, up: bool },
    /// The description of a connection, if it can be decoded.
    Text(Option<String>),
}

#[derive(Debug)]
struct ReceivedRequest {
    pair: AddressPair,
    opcode: Opcode,
    auth: AuthType,
    key: AuthKey,
    from: SocketAddr,
    nonce: Nonce,
    started: Time,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Round 2 has been sent.
    NonceSent,
    /// Round 3 has arrived and is being executed.
    Processing { request: Vec<u8> },
    /// Round 4 has been sent.
    ReplySent { request: Vec<u8>, reply: Vec<u8> },
}

impl RequestReceiver {
    pub(super) fn new(nonces: Nonces) -> Self {
        Self { nonces, exchanges: Vec::new() }
    }

    /// Drops the exchanges of a connection.
    pub(super) fn forget(&mut self, pair: AddressPair) {
        self.exchanges.retain(|exchange| exchange.pair != pair);
    }

    /// Returns the keys of the exchanges to which a round 3 may belong.
    pub(super) fn exchange_keys(&self, now: Time, pair: AddressPair, message: &ControlMessage<'_>) -> Vec<&AuthKey> {
        let continued = |e: &&ReceivedRequest| e.is_of(pair, message.opcode) && now.since(e.started) < LIFETIME;
        let mut keys = Vec::new();
        for exchange in self.exchanges.iter().rev().filter(|_| message.round == 3).filter(continued) {
            if !keys.contains(&&exchange.key) {
                keys.push(&exchange.key);
            }
        }
        keys
    }

    /// Handles an authenticated request. With `any_nonce`, its round 3 need not repeat the nonce.
    pub(super) fn handle(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
        key: AuthKey,
        any_nonce: bool,
    ) -> Result<NextStep, Refused> {
        self.exchanges.retain(|exchange| now.since(exchange.started) < LIFETIME);
        if message.round == 1 {
            self.handle_round_one(now, from, message, key).map(NextStep::Reply)
        } else {
            self.handle_round_three(from, message, bytes, &key, any_nonce)
        }
    }

    /// Confirms a status change, and stores the reply for repeated requests.
    pub(super) fn confirm(&mut self, pair: AddressPair, opcode: Opcode) -> Option<ControlTransmit> {
        self.answer(pair, opcode, Code::OK, &[])
    }

    /// Answers a request to create a connection.
    pub(super) fn answer_create(&mut self, pair: AddressPair, answer: Result<&str, Code>) -> Option<ControlTransmit> {
        match answer {
            Ok(text) => self.answer(pair, Opcode::Create, Code::OK, text.as_bytes()),
            Err(code) => self.answer(pair, Opcode::Create, code, &[1]),
        }
    }

    /// Handles round 1; returns round 2.
    fn handle_round_one(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &ControlMessage<'_>,
        key: AuthKey,
    ) -> Result<ControlTransmit, Refused> {
        let pair = AddressPair { local: message.responder, remote: message.initiator };
        let under_way = |e: &&ReceivedRequest| {
            let same = e.is_of(pair, message.opcode) && e.key == key;
            same && matches!(e.stage, Stage::NonceSent) && now.since(e.started) < ROUND_TIME
        };
        let nonce = match self.exchanges.iter().rev().find(under_way) {
            Some(exchange) => exchange.nonce,
            None => self.begin(now, from, message, pair, key.clone())?,
        };
        let auth = message.auth.kind().with(nonce);
        let reply = ControlMessage { code: Code::OK.0, auth, round: 2, ..*message };
        Ok(ControlTransmit { to: from, bytes: reply.encode(&key) })
    }

    fn begin(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &ControlMessage<'_>,
        pair: AddressPair,
        key: AuthKey,
    ) -> Result<Nonce, Refused> {
        if self.exchanges.len() >= MAX_EXCHANGES {
            return Err(Refused::Busy);
        }
        let auth = message.auth.kind();
        // Type 0 has no nonce: all its exchanges have the same.
        let nonce = auth.with(self.nonces.draw()).nonce();
        let (opcode, since, stage) = (message.opcode, now, Stage::NonceSent);
        self.exchanges.push(ReceivedRequest { pair, opcode, auth, key, from, nonce, started: since, stage });
        Ok(nonce)
    }

    /// Handles round 3: the data of an exchange, or a repeated request.
    fn handle_round_three(
        &mut self,
        from: SocketAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
        key: &AuthKey,
        any_nonce: bool,
    ) -> Result<NextStep, Refused> {
        let pair = AddressPair { local: message.responder, remote: message.initiator };
        let nonce = message.auth.nonce();
        let is_candidate = |e: &ReceivedRequest| e.is_of(pair, message.opcode) && e.key == *key;
        if !self.exchanges.iter().any(is_candidate) {
            return Err(Refused::Unexpected);
        }
        let exact = |e: &ReceivedRequest| is_candidate(e) && e.matches_round_three(nonce, bytes);
        let begun = |e: &ReceivedRequest| any_nonce && is_candidate(e) && matches!(e.stage, Stage::NonceSent);
        let at = self.exchanges.iter().rposition(exact).or_else(|| self.exchanges.iter().rposition(begun));
        let exchange = &mut self.exchanges[at.ok_or(Refused::WrongNonce)?];
        match &exchange.stage {
            Stage::NonceSent => {
                let data = RequestData::read(message)?;
                (exchange.from, exchange.nonce) = (from, nonce);
                exchange.stage = Stage::Processing { request: bytes.to_vec() };
                Ok(NextStep::Act(data))
            }
            Stage::Processing { .. } => Err(Refused::Unexpected),
            Stage::ReplySent { reply, .. } => Ok(NextStep::Reply(ControlTransmit { to: from, bytes: reply.clone() })),
        }
    }

    /// Makes round 4.
    fn answer(&mut self, pair: AddressPair, opcode: Opcode, code: Code, body: &[u8]) -> Option<ControlTransmit> {
        let is_processing = |e: &&mut ReceivedRequest| {
            e.pair == pair && e.opcode == opcode && matches!(e.stage, Stage::Processing { .. })
        };
        let exchange = self.exchanges.iter_mut().find(is_processing)?;
        let Stage::Processing { request } = std::mem::replace(&mut exchange.stage, Stage::NonceSent) else {
            return None;
        };
        let auth = exchange.auth.with(exchange.nonce);
        let (initiator, responder) = (pair.remote, pair.local);
        let message = ControlMessage { opcode, code: code.0, auth, round: 4, initiator, responder, body };
        let reply = message.encode(&exchange.key);
        exchange.stage = Stage::ReplySent { request, reply: reply.clone() };
        Some(ControlTransmit { to: exchange.from, bytes: reply })
    }
}

impl ReceivedRequest {
    fn is_of(&self, pair: AddressPair, opcode: Opcode) -> bool {
        (self.pair, self.opcode) == (pair, opcode)
    }

    /// Returns true if a round 3 belongs to this exchange: new data, or a repeated request.
    fn matches_round_three(&self, nonce: Nonce, bytes: &[u8]) -> bool {
        match &self.stage {
            Stage::NonceSent => self.nonce == nonce,
            Stage::Processing { request } | Stage::ReplySent { request, .. } => request == bytes,
        }
    }
}

impl RequestData {
    fn read(message: &ControlMessage<'_>) -> Result<Self, Refused> {
        match message.opcode {
            Opcode::PathStatus => {
                let ends = PathEnds::decode(message.body).ok_or(Refused::Malformed(MalformedMessage::Truncated))?;
                Ok(Self::Status { ends, up: message.code & DOWN == 0 })
            }
            Opcode::Create => Ok(Self::Text(text(message.body))),
            Opcode::Keepalive => Err(Refused::Unexpected),
        }
    }
}

/// Decodes the text of a connection, up to a zero byte if there is one.
fn text(body: &[u8]) -> Option<String> {
    let body = body.split(|byte| *byte == 0).next()?;
    String::from_utf8(body.to_vec()).ok().filter(|text| text.len() <= MAX_TEXT)
}

/// The maximum duration of a round.
const ROUND_TIME: Duration = TRY_INTERVAL.saturating_mul(TRIES);

/// The lifetime of a nonce and a reply: one round in which a nonce is sent again, and two for the exchange.
const LIFETIME: Duration = ROUND_TIME.saturating_mul(3);

/// Maximum number of stored exchanges; each has been authenticated.
const MAX_EXCHANGES: usize = 256;

/// Maximum length of the description of a connection, in bytes: 32 paths and 256 networks, more than the original
/// supports, take less than 40 000. A UDP payload ends at 65 507.
const MAX_TEXT: usize = 48 * 1024;
