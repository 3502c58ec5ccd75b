//! The initiator's half of an exchange.
//!
//! Each request is sent up to [`TRIES`] times, [`TRY_INTERVAL`] apart. The exchanges of one connection are queued,
//! because replies to status changes do not identify the path. A reply that fails authentication is ignored and does
//! not end the exchange: the valid one may still arrive. If none arrives, the failure is reported as an authentication
//! error.
//!
//! The original refuses a second CREATE under the authentication of the connection, which may be none. Such a refusal
//! proves nothing either: it only becomes the reason that is reported when no valid reply arrives, unless the policy
//! accepts its authentication. If the peer may use either of two keys, odd and even tries use one each. A CREATE always
//! has both tries: an original that has the connection answers under the public key only.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::{Accept, AddressPair, Code, ControlEvent, ControlTransmit, LegacyConnection, LegacyPath, Refused};
use crate::legacy::wire::{AuthKey, AuthType, ControlMessage, DOWN, Nonce, Opcode, PathEnds, UP};
use crate::time::Time;

/// The exchanges that this host has started or queued.
#[derive(Debug, Default)]
pub(super) struct RequestSender {
    queue: VecDeque<SentRequest>,
}

/// The result of a reply.
#[derive(Debug)]
pub(super) enum ReplyOutcome {
    /// The exchange continues.
    NextRound,
    /// The exchange has ended.
    Finished(ControlEvent),
}

#[derive(Debug)]
struct SentRequest {
    pair: AddressPair,
    to: SocketAddr,
    opcode: Opcode,
    code: u8,
    auth: AuthType,
    key: AuthKey,
    /// The key that the peer may have in place of [`Self::key`].
    other_key: Option<AuthKey>,
    /// True if a reply that is signed with [`Self::other_key`] proves enough.
    accepts_other: bool,
    nonce: Nonce,
    /// The path of a status change.
    path: Option<LegacyPath>,
    data: Vec<u8>,
    /// The round whose reply is expected: 1 or 3.
    round: u8,
    /// The number of times it has been sent; 0 while the exchange is queued.
    tries: u32,
    deadline: Time,
    /// True if a reply failed authentication.
    forged: bool,
    /// The result in a reply of the right host that failed authentication.
    unproven: Option<Code>,
}

impl RequestSender {
    pub(super) fn send_status(
        &mut self,
        accept: &Accept,
        connection: &LegacyConnection,
        to: SocketAddr,
        path: LegacyPath,
        up: bool,
    ) {
        let ends = PathEnds { initiator: path.public, responder: path.remote }.encode();
        let outdated = |e: &SentRequest| e.is_queued() && e.pair == connection.pair && e.data == ends;
        self.queue.retain(|exchange| !outdated(exchange));
        let code = if up { UP } else { DOWN };
        let request = SentRequest::new(accept, connection, to, Opcode::PathStatus, ends.to_vec());
        self.queue.push_back(SentRequest { code, path: Some(path), ..request });
    }

    pub(super) fn is_sending_status(&self, pair: AddressPair, path: LegacyPath) -> bool {
        self.queue.iter().any(|exchange| exchange.pair == pair && exchange.path == Some(path))
    }

    pub(super) fn create(&mut self, accept: &Accept, connection: &LegacyConnection, to: SocketAddr, text: &str) {
        let request = SentRequest::new(accept, connection, to, Opcode::Create, text.as_bytes().to_vec());
        let other_key = (!request.key.is_public()).then_some(AuthKey::PUBLIC);
        self.queue.push_back(SentRequest { auth: AuthType::Sha256, other_key, ..request });
    }

    /// Drops the exchanges of a connection.
    pub(super) fn forget(&mut self, pair: AddressPair) {
        self.queue.retain(|exchange| exchange.pair != pair);
    }

    /// Sends the request of the connection's first exchange, if it has not been sent.
    pub(super) fn drive(&mut self, now: Time, pair: AddressPair) -> Option<ControlTransmit> {
        let first = self.queue.iter_mut().find(|exchange| exchange.pair == pair)?;
        first.is_queued().then(|| first.send(now))
    }

    /// Handles a reply; the connection's exchange ends or continues with round 3.
    pub(super) fn on_reply(
        &mut self,
        accept: &Accept,
        pair: AddressPair,
        from: IpAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
    ) -> Result<ReplyOutcome, Refused> {
        let at = self.queue.iter().position(|exchange| exchange.pair == pair).ok_or(Refused::Unexpected)?;
        let exchange = &mut self.queue[at];
        exchange.check_reply(accept, from, message, bytes)?;
        if message.code == Code::OK.0 && message.round == 2 {
            exchange.begin_round_three(message.auth.nonce(), bytes);
            return Ok(ReplyOutcome::NextRound);
        }
        let event = exchange.result(message);
        self.queue.remove(at);
        Ok(ReplyOutcome::Finished(event))
    }

    /// Sends requests again that have timed out, and returns the exchanges that have failed.
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        transmits: &mut VecDeque<ControlTransmit>,
    ) -> Vec<(AddressPair, ControlEvent)> {
        let mut failed = Vec::new();
        self.queue.retain_mut(|exchange| {
            if exchange.is_queued() || now < exchange.deadline {
                return true;
            }
            if exchange.tries < TRIES {
                transmits.push_back(exchange.send(now));
                return true;
            }
            failed.push((exchange.pair, exchange.failure(exchange.timeout_code())));
            false
        });
        failed
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.queue.iter().filter(|exchange| !exchange.is_queued()).map(|exchange| exchange.deadline).min()
    }
}

impl SentRequest {
    fn new(accept: &Accept, c: &LegacyConnection, to: SocketAddr, opcode: Opcode, data: Vec<u8>) -> Self {
        Self {
            pair: c.pair,
            to,
            opcode,
            code: 0,
            auth: c.auth,
            key: c.key.clone(),
            other_key: accept.other_key(c).cloned(),
            accepts_other: accept.other_key(c).is_some(),
            nonce: [0; 4],
            path: None,
            data,
            round: 1,
            tries: 0,
            deadline: Time::NEVER,
            forged: false,
            unproven: None,
        }
    }

    fn is_queued(&self) -> bool {
        self.tries == 0
    }

    fn send(&mut self, now: Time) -> ControlTransmit {
        self.tries += 1;
        self.deadline = now + TRY_INTERVAL;
        let size = (self.data.len() as u32).to_le_bytes();
        let message = ControlMessage {
            opcode: self.opcode,
            code: self.code,
            auth: self.auth.with(self.nonce),
            round: self.round,
            initiator: self.pair.local,
            responder: self.pair.remote,
            body: if self.round == 1 { &size } else { &self.data },
        };
        let key = self.other_key.as_ref().filter(|_| self.tries.is_multiple_of(2)).unwrap_or(&self.key);
        ControlTransmit { to: self.to, bytes: message.encode(key) }
    }

    /// Checks that a message is the expected reply, from the expected sender.
    fn check_reply(
        &mut self,
        accept: &Accept,
        from: IpAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
    ) -> Result<(), Refused> {
        if self.is_queued() || message.opcode != self.opcode || message.round != self.round + 1 {
            return Err(Refused::Unexpected);
        }
        let Some(refused) = self.authentication_error(accept, from, message, bytes) else { return Ok(()) };
        self.forged = true;
        let code = Code(message.code);
        if REFUSALS.contains(&code) && from == self.to.ip().to_canonical() {
            self.unproven = Some(code);
            if self.exists_already(accept, message, bytes) {
                return Ok(());
            }
        }
        Err(refused)
    }

    /// Returns true for the refusal of a second CREATE under an authentication that the policy accepts.
    fn exists_already(&self, accept: &Accept, message: &ControlMessage<'_>, bytes: &[u8]) -> bool {
        let accepted = match message.auth.kind() {
            AuthType::Sha256 => accept.public_key && AuthKey::PUBLIC.verifies(bytes),
            AuthType::None | AuthType::Nonce => accept.unauthenticated,
        };
        accepted && (self.opcode, Code(message.code)) == (Opcode::Create, Code::EXISTS)
    }

    fn authentication_error(
        &self,
        accept: &Accept,
        from: IpAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
    ) -> Option<Refused> {
        if message.auth.kind() != self.auth {
            return Some(Refused::WrongAuthType);
        }
        let refused = match self.auth {
            AuthType::Sha256 => (!self.is_signed(accept, bytes)).then_some(Refused::WrongDigest),
            // Without a digest, the source address is the only check of the sender.
            AuthType::None | AuthType::Nonce => (from != self.to.ip().to_canonical()).then_some(Refused::UnknownSource),
        };
        let wrong_nonce = self.round == 3 && message.auth.nonce() != self.nonce;
        refused.or(wrong_nonce.then_some(Refused::WrongNonce))
    }

    /// Returns true if a reply was signed with a key that the peer may have: the answer to a CREATE may have the key of
    /// the new connection.
    fn is_signed(&self, accept: &Accept, bytes: &[u8]) -> bool {
        let created = (self.opcode, self.round) == (Opcode::Create, 3) && accept.public_key;
        let public = created.then_some(&AuthKey::PUBLIC);
        let other = self.other_key.as_ref().filter(|_| self.accepts_other);
        [Some(&self.key), other, public].into_iter().flatten().any(|key| key.verifies(bytes))
    }

    /// The peer has answered: it has the key of this reply.
    fn begin_round_three(&mut self, nonce: Nonce, reply: &[u8]) {
        if let Some(other) = self.other_key.take_if(|other| other.verifies(reply)) {
            self.key = other;
        }
        self.other_key = None;
        self.nonce = nonce;
        self.round = 3;
        self.tries = 0;
    }

    /// Returns the result of the final reply.
    fn result(&self, message: &ControlMessage<'_>) -> ControlEvent {
        let connection = self.pair;
        match (Code(message.code), self.path) {
            (Code::OK, Some(path)) => ControlEvent::StatusConfirmed { connection, path },
            (Code::OK, None) => match complete_lines(message.body) {
                Some(text) => ControlEvent::Created { connection, text },
                None => self.failure(Code::NO_CONNECTION),
            },
            (code, _) => self.failure(code),
        }
    }

    fn failure(&self, code: Code) -> ControlEvent {
        ControlEvent::ExchangeFailed { connection: self.pair, opcode: self.opcode, path: self.path, code }
    }

    /// Returns the reason why no valid reply arrived.
    fn timeout_code(&self) -> Code {
        self.unproven.unwrap_or(if self.forged { Code::AUTHENTICATION } else { Code::TIMEOUT })
    }
}

/// Returns the text of a reply up to its last line end. The original omits the authentication from the length of a
/// reply and cuts off the last 36 bytes, so the last line may be incomplete.
fn complete_lines(body: &[u8]) -> Option<String> {
    let end = body.iter().rposition(|byte| *byte == b'\n')?;
    String::from_utf8(body[..=end].to_vec()).ok()
}

/// The results with which the original refuses.
const REFUSALS: [Code; 3] = [Code::NO_CONNECTION, Code::EXISTS, Code::ALL_PATHS_DOWN];
/// The number of times a request is sent before the exchange fails.
pub const TRIES: u32 = 6;
/// The time without a reply after which the request is sent again.
pub const TRY_INTERVAL: Duration = Duration::from_millis(500);
