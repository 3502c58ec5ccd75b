//! The half of an exchange that answers.
//!
//! A round 1 is answered with a fresh nonce, and from then until the data comes it is answered with the same nonce, so a
//! repeated round 1 does not spoil an exchange under way. A round 3 must repeat the nonce; what it asks for is done once,
//! and when it comes again the same reply is given again. A recorded round 3 is worth nothing later: its nonce has been
//! used. (The original never takes a nonce back, and for a connection it does not know it checks none.)
//!
//! State is kept only for requests that have been authenticated as the policy wants it.

use std::net::SocketAddr;
use std::time::Duration;

use super::initiator::{TRIES, TRY_INTERVAL};
use super::nonces::Nonces;
use super::{Code, ControlTransmit, Pair, Refused};
use crate::legacy::wire::{AuthKey, AuthType, ControlMessage, DOWN, MalformedMessage, Nonce, Opcode, PathEnds};
use crate::time::Time;

/// The exchanges that other hosts have begun.
#[derive(Debug)]
pub(super) struct RequestReceiver {
    nonces: Nonces,
    exchanges: Vec<ReceivedRequest>,
}

/// What to do about a request.
#[derive(Debug)]
pub(super) enum NextStep {
    /// Send this.
    Reply(ControlTransmit),
    /// Do what the data says, then [`Responder::confirm`] or [`Responder::answer_create`].
    Act(RequestData),
}

/// What round 3 brings.
#[derive(Debug)]
pub(super) enum RequestData {
    /// A path went up or down.
    Status { ends: PathEnds, up: bool },
    /// A connection's description, unless it cannot be read.
    Text(Option<String>),
}

#[derive(Debug)]
struct ReceivedRequest {
    pair: Pair,
    opcode: Opcode,
    auth: AuthType,
    key: AuthKey,
    from: SocketAddr,
    nonce: Nonce,
    since: Time,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Round 2 has been sent.
    Promised,
    /// Round 3 has come and is being acted upon.
    Acting { request: Vec<u8> },
    /// Round 4 has been sent.
    Answered { request: Vec<u8>, reply: Vec<u8> },
}

impl RequestReceiver {
    pub(super) fn new(nonces: Nonces) -> Self {
        Self { nonces, exchanges: Vec::new() }
    }

    /// Drops what is under way for a connection.
    pub(super) fn forget(&mut self, pair: Pair) {
        self.exchanges.retain(|exchange| exchange.pair != pair);
    }

    /// The key with which the exchange was begun that a round 3 continues.
    pub(super) fn begun_with(&self, now: Time, pair: Pair, message: &ControlMessage<'_>) -> Option<&AuthKey> {
        let continued =
            |e: &&ReceivedRequest| e.pair == pair && e.opcode == message.opcode && now.since(e.since) < LIFETIME;
        self.exchanges.iter().rev().find(continued).filter(|_| message.round == 3).map(|e| &e.key)
    }

    /// Takes an authenticated request.
    pub(super) fn handle(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
        key: AuthKey,
    ) -> Result<NextStep, Refused> {
        self.exchanges.retain(|exchange| now.since(exchange.since) < LIFETIME);
        if message.round == 1 {
            self.promise(now, from, message, key).map(NextStep::Reply)
        } else {
            self.take(from, message, bytes)
        }
    }

    /// Confirms a status change, and keeps the reply for when it is asked for again.
    pub(super) fn confirm(&mut self, pair: Pair, opcode: Opcode) -> Option<ControlTransmit> {
        self.answer(pair, opcode, Code::OK, &[])
    }

    /// Answers a request to create a connection.
    pub(super) fn answer_create(&mut self, pair: Pair, answer: Result<&str, Code>) -> Option<ControlTransmit> {
        match answer {
            Ok(text) => self.answer(pair, Opcode::Create, Code::OK, text.as_bytes()),
            Err(code) => self.answer(pair, Opcode::Create, code, &[1]),
        }
    }

    /// Round 1 to round 2.
    fn promise(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &ControlMessage<'_>,
        key: AuthKey,
    ) -> Result<ControlTransmit, Refused> {
        let pair = Pair { local: message.responder, remote: message.initiator };
        let under_way = |e: &&ReceivedRequest| {
            let same = e.pair == pair && e.opcode == message.opcode && e.key == key;
            same && matches!(e.stage, Stage::Promised) && now.since(e.since) < ROUND_TIME
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
        pair: Pair,
        key: AuthKey,
    ) -> Result<Nonce, Refused> {
        if self.exchanges.len() >= MAX_EXCHANGES {
            return Err(Refused::Busy);
        }
        let auth = message.auth.kind();
        // Type 0 has no room for a nonce: its exchanges are all alike.
        let nonce = auth.with(self.nonces.draw()).nonce();
        let (opcode, since, stage) = (message.opcode, now, Stage::Promised);
        self.exchanges.push(ReceivedRequest { pair, opcode, auth, key, from, nonce, since, stage });
        Ok(nonce)
    }

    /// Round 3: the data of an exchange under way, or the same request as before.
    fn take(&mut self, from: SocketAddr, message: &ControlMessage<'_>, bytes: &[u8]) -> Result<NextStep, Refused> {
        let pair = Pair { local: message.responder, remote: message.initiator };
        let mut ours =
            self.exchanges.iter_mut().rev().filter(|e| e.pair == pair && e.opcode == message.opcode).peekable();
        if ours.peek().is_none() {
            return Err(Refused::Unexpected);
        }
        let exchange = ours.find(|e| e.takes(message.auth.nonce(), bytes)).ok_or(Refused::WrongNonce)?;
        match &exchange.stage {
            Stage::Promised => {
                let data = RequestData::read(message)?;
                exchange.from = from;
                exchange.stage = Stage::Acting { request: bytes.to_vec() };
                Ok(NextStep::Act(data))
            }
            Stage::Acting { .. } => Err(Refused::Unexpected),
            Stage::Answered { reply, .. } => Ok(NextStep::Reply(ControlTransmit { to: from, bytes: reply.clone() })),
        }
    }

    /// Round 4.
    fn answer(&mut self, pair: Pair, opcode: Opcode, code: Code, body: &[u8]) -> Option<ControlTransmit> {
        let acting =
            |e: &&mut ReceivedRequest| e.pair == pair && e.opcode == opcode && matches!(e.stage, Stage::Acting { .. });
        let exchange = self.exchanges.iter_mut().find(acting)?;
        let Stage::Acting { request } = std::mem::replace(&mut exchange.stage, Stage::Promised) else { return None };
        let auth = exchange.auth.with(exchange.nonce);
        let (initiator, responder) = (pair.remote, pair.local);
        let message = ControlMessage { opcode, code: code.0, auth, round: 4, initiator, responder, body };
        let reply = message.encode(&exchange.key);
        exchange.stage = Stage::Answered { request, reply: reply.clone() };
        Some(ControlTransmit { to: exchange.from, bytes: reply })
    }
}

impl ReceivedRequest {
    /// Whether a round 3 belongs here: new data, or a request seen before.
    fn takes(&self, nonce: Nonce, bytes: &[u8]) -> bool {
        match &self.stage {
            Stage::Promised => self.nonce == nonce,
            Stage::Acting { request } | Stage::Answered { request, .. } => request == bytes,
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

/// The text of a connection: up to a zero byte if there is one.
fn text(body: &[u8]) -> Option<String> {
    let body = body.split(|byte| *byte == 0).next()?;
    String::from_utf8(body.to_vec()).ok().filter(|text| text.len() <= MAX_TEXT)
}

/// The longest that a round can take.
const ROUND_TIME: Duration = TRY_INTERVAL.saturating_mul(TRIES);

/// How long a nonce and a reply are remembered: one round for a nonce to be given again, and two for the exchange.
const LIFETIME: Duration = ROUND_TIME.saturating_mul(3);

/// How many exchanges are remembered; each has been authenticated.
const MAX_EXCHANGES: usize = 256;

/// The longest description of a connection, in bytes: 32 paths and 256 networks, more than the original has room for, take
/// less than 40 000. A UDP payload ends at 65 507.
const MAX_TEXT: usize = 48 * 1024;
