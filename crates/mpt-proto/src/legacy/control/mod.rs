//! The control plane of the original MPT: path status changes and connection creation, in exchanges of four rounds.
//!
//! ```text
//!   initiator                      responder
//!       | 1  size of the data          |     each request is sent up to six times, 500 ms apart;
//!       |----------------------------->|     a lost reply is sent again, but the request
//!       | 2  a nonce                   |     is executed once
//!       |<-----------------------------|
//!       | 3  the data, with the nonce  |
//!       |----------------------------->|     <- the request is executed here
//!       | 4  the result                |
//!       |<-----------------------------|
//! ```
//!
//! Rounds 1 and 3 are requests and 2 and 4 are replies, so two hosts that start at once have two independent exchanges.
//! (The original takes any message as its reply, and both exchanges fail. Such a peer still accepts our request when it
//! is sent again.) An exchange only sets a deadline: data never waits for it.
//!
//! Most of this protocol can be forged, so by default [`Accept`] refuses messages that prove nothing. Keepalives are
//! the exception: they only report that a path from a configured address is alive.
//!
//! The caller interprets the text that describes a connection: a peer's text is returned as
//! [`ControlEvent::CreateRequested`], and the caller passes the result to [`ControlChannel::answer_create`].

mod initiator;
mod nonces;
mod policy;
mod responder;

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::legacy::wire::{AuthKey, AuthType, ControlMessage, MalformedMessage, Opcode};
use crate::time::Time;
use initiator::{ReplyOutcome, RequestSender};
use nonces::Nonces;
use responder::{NextStep, RequestReceiver};

pub use initiator::{TRIES, TRY_INTERVAL};
pub use policy::Accept;

/// One host's half of all exchanges with all peers.
#[derive(Debug)]
pub struct ControlChannel {
    accept: Accept,
    connections: Vec<LegacyConnection>,
    initiator: RequestSender,
    responder: RequestReceiver,
    transmits: VecDeque<ControlTransmit>,
    events: VecDeque<ControlEvent>,
}

/// The parameters of a connection that the control plane uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyConnection {
    /// Its identifier on the wire.
    pub pair: AddressPair,
    /// The authentication of its status changes, in both directions.
    pub auth: AuthType,
    /// The shared key.
    pub key: AuthKey,
    /// One end created it at the other's request. A CREATE carries no key, so an original continues with the public
    /// key: it is used too, if [`Accept::public_key`] permits it.
    pub created: bool,
    /// Its paths.
    pub paths: Vec<LegacyPath>,
}

/// The two tunnel addresses, which identify a connection at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressPair {
    /// This host's tunnel address.
    pub local: IpAddr,
    /// The peer's tunnel address.
    pub remote: IpAddr,
}

/// The two addresses that identify a path at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LegacyPath {
    /// This host's address as the peer sees it.
    pub public: IpAddr,
    /// The peer's address as this host sees it.
    pub remote: IpAddr,
}

/// A datagram for the control port's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlTransmit {
    /// The destination.
    pub to: SocketAddr,
    /// The UDP payload.
    pub bytes: Vec<u8>,
}

/// The result of a datagram or a deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// The peer reports that a path went up or down.
    PathStatus {
        /// The connection the path belongs to.
        connection: AddressPair,
        /// The path.
        path: LegacyPath,
        /// True for up.
        up: bool,
    },
    /// A keepalive arrived on the control port, from the remote address of this path.
    Keepalive {
        /// The connection the path belongs to.
        connection: AddressPair,
        /// The path.
        path: LegacyPath,
    },
    /// A peer requests a connection; the answer is [`ControlChannel::answer_create`].
    CreateRequested {
        /// The connection's tunnel addresses, as this host sees them.
        connection: AddressPair,
        /// The source of the request.
        from: SocketAddr,
        /// The peer's side of the connection, in the original's INI format.
        text: String,
    },
    /// The peer has confirmed a status change.
    StatusConfirmed {
        /// The connection the path belongs to.
        connection: AddressPair,
        /// The path.
        path: LegacyPath,
    },
    /// The peer has created the connection.
    Created {
        /// The connection.
        connection: AddressPair,
        /// The peer's side of it, in the original's INI format; complete lines only.
        text: String,
    },
    /// An exchange that this host started has failed.
    ExchangeFailed {
        /// The connection of the exchange.
        connection: AddressPair,
        /// The operation of the exchange.
        opcode: Opcode,
        /// The path of a status change.
        path: Option<LegacyPath>,
        /// The reason.
        code: Code,
    },
}

/// The reason why a datagram was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Not a control message.
    Malformed(MalformedMessage),
    /// No connection has these tunnel addresses.
    UnknownConnection,
    /// The source address is not that of the expected host.
    UnknownSource,
    /// The authentication type is not that of the connection.
    WrongAuthType,
    /// Authentication types 0 and 1 prove nothing, and [`Accept::unauthenticated`] is off.
    Unauthenticated,
    /// The key is the public one of the original, and [`Accept::public_key`] is off or the connection has another.
    PublicKey,
    /// The digest does not match.
    WrongDigest,
    /// The nonce is not that of this exchange.
    WrongNonce,
    /// No exchange expects this message.
    Unexpected,
    /// Creation by other hosts is disabled: [`Accept::create`] is not set.
    CreateNotAccepted,
    /// There are too many concurrent exchanges.
    Busy,
}

/// The result of an exchange, as in byte 1 of a reply and in the original's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u8);

impl ControlChannel {
    /// Makes a control plane without connections. `seed` generates its nonces: it must be random and secret.
    pub fn new(accept: Accept, seed: [u8; 32]) -> Self {
        Self {
            accept,
            connections: Vec::new(),
            initiator: RequestSender::default(),
            responder: RequestReceiver::new(Nonces::new(seed)),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Adds a connection, or replaces the one with the same tunnel addresses.
    pub fn add_connection(&mut self, connection: LegacyConnection) {
        self.connections.retain(|known| known.pair != connection.pair);
        self.connections.push(connection);
    }

    /// Removes a connection and its exchanges.
    pub fn remove_connection(&mut self, pair: AddressPair) {
        self.connections.retain(|known| known.pair != pair);
        self.initiator.forget(pair);
        self.responder.forget(pair);
    }

    /// Sends the peer, at its control address `to`, the status of a path of the connection. The exchanges of one
    /// connection are sequential; a newer status replaces a queued older one of the same path.
    pub fn send_status(
        &mut self,
        now: Time,
        pair: AddressPair,
        to: SocketAddr,
        path: LegacyPath,
        up: bool,
    ) -> Result<(), Refused> {
        let connection = find(&self.connections, pair).ok_or(Refused::UnknownConnection)?;
        self.initiator.send_status(&self.accept, connection, to, path, up);
        self.drive(now, pair);
        Ok(())
    }

    /// Returns true while a status change of this path is being sent, or queued.
    pub fn is_sending_status(&self, pair: AddressPair, path: LegacyPath) -> bool {
        self.initiator.is_sending_status(pair, path)
    }

    /// Requests that the peer, at its control address `to`, creates its side of the connection from `text`, which is
    /// this host's side in the original's INI format. The original skips the first four bytes: they must be a comment.
    pub fn create(&mut self, now: Time, pair: AddressPair, to: SocketAddr, text: &str) -> Result<(), Refused> {
        let connection = find(&self.connections, pair).ok_or(Refused::UnknownConnection)?;
        self.accept.key_may_be_used(&connection.key)?;
        self.initiator.create(&self.accept, connection, to, text);
        self.drive(now, pair);
        Ok(())
    }

    /// Answers [`ControlEvent::CreateRequested`] with this host's side of the new connection, or with the reason of the
    /// refusal. No answer is sent if the exchange has expired.
    pub fn answer_create(&mut self, pair: AddressPair, answer: Result<&str, Code>) {
        self.transmits.extend(self.responder.answer_create(pair, answer));
    }

    /// Handles a datagram that arrived on the control port from another host.
    pub fn handle_datagram(&mut self, now: Time, from: SocketAddr, bytes: &[u8]) -> Result<(), Refused> {
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let message = ControlMessage::decode(bytes).map_err(Refused::Malformed)?;
        match (message.opcode, message.round) {
            (Opcode::Keepalive, _) => self.on_keepalive(from, &message),
            (_, 1 | 3) => self.on_request(now, from, &message, bytes),
            (_, 2 | 4) => self.on_reply(now, from, &message, bytes),
            _ => Err(Refused::Unexpected),
        }
    }

    /// Sends requests again that have timed out, or ends their exchanges.
    pub fn handle_timeout(&mut self, now: Time) {
        for (pair, failed) in self.initiator.handle_timeout(now, &mut self.transmits) {
            self.events.push_back(failed);
            self.drive(now, pair);
        }
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<ControlTransmit> {
        self.transmits.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ControlEvent> {
        self.events.pop_front()
    }

    /// Returns the time of the next [`ControlChannel::handle_timeout`]; `None` without an exchange.
    pub fn next_deadline(&self) -> Option<Time> {
        self.initiator.next_deadline()
    }

    fn on_keepalive(&mut self, from: SocketAddr, message: &ControlMessage<'_>) -> Result<(), Refused> {
        let pair = AddressPair { local: message.responder, remote: message.initiator };
        let connection = find(&self.connections, pair).ok_or(Refused::UnknownConnection)?;
        let path = connection.paths.iter().find(|path| path.remote == from.ip()).ok_or(Refused::UnknownSource)?;
        self.events.push_back(ControlEvent::Keepalive { connection: pair, path: *path });
        Ok(())
    }

    fn on_request(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
    ) -> Result<(), Refused> {
        let pair = AddressPair { local: message.responder, remote: message.initiator };
        let connection = find(&self.connections, pair);
        let exchange_keys = self.responder.exchange_keys(now, pair, message);
        let key = self.accept.authenticate(connection, exchange_keys, from.ip(), message, bytes)?.clone();
        let any_nonce = self.accept.unauthenticated && message.opcode == Opcode::Create;
        match self.responder.handle(now, from, message, bytes, key, any_nonce)? {
            NextStep::Reply(transmit) => self.transmits.push_back(transmit),
            NextStep::Act(data) => self.act(pair, from, message, data)?,
        }
        Ok(())
    }

    /// Executes the request of a round 3. It has been authenticated, and it is not a repetition.
    fn act(
        &mut self,
        pair: AddressPair,
        from: SocketAddr,
        message: &ControlMessage<'_>,
        data: responder::RequestData,
    ) -> Result<(), Refused> {
        let connection = find(&self.connections, pair);
        match (data, connection) {
            (responder::RequestData::Status { ends, up }, Some(known)) => {
                let paths = known.paths.iter().filter(|p| p.remote == ends.initiator && p.public == ends.responder);
                let changes = paths.map(|path| ControlEvent::PathStatus { connection: pair, path: *path, up });
                self.events.extend(changes);
                self.transmits.extend(self.responder.confirm(pair, message.opcode));
            }
            (responder::RequestData::Status { .. }, None) => return Err(Refused::UnknownConnection),
            (responder::RequestData::Text(_), Some(_)) => self.answer_create(pair, Err(Code::EXISTS)),
            (responder::RequestData::Text(None), None) => self.answer_create(pair, Err(Code::NO_CONNECTION)),
            (responder::RequestData::Text(Some(text)), None) => {
                self.events.push_back(ControlEvent::CreateRequested { connection: pair, from, text });
            }
        }
        Ok(())
    }

    fn on_reply(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &ControlMessage<'_>,
        bytes: &[u8],
    ) -> Result<(), Refused> {
        let pair = AddressPair { local: message.initiator, remote: message.responder };
        match self.initiator.on_reply(&self.accept, pair, from.ip(), message, bytes)? {
            ReplyOutcome::NextRound => {}
            ReplyOutcome::Finished(event) => self.events.push_back(event),
        }
        self.drive(now, pair);
        Ok(())
    }

    /// Sends the next message of the connection's current exchange, if it is ready.
    fn drive(&mut self, now: Time, pair: AddressPair) {
        self.transmits.extend(self.initiator.drive(now, pair));
    }
}

impl Code {
    /// Success.
    pub const OK: Self = Self(0);
    /// No answer.
    pub const TIMEOUT: Self = Self(1);
    /// The answers failed authentication.
    pub const AUTHENTICATION: Self = Self(3);
    /// The peer has no such connection, or could not parse the text.
    pub const NO_CONNECTION: Self = Self(4);
    /// The connection exists already.
    pub const EXISTS: Self = Self(5);
    /// No path is up.
    pub const ALL_PATHS_DOWN: Self = Self(6);
    /// A message of another round arrived. Sent and reported by the original, never by this implementation.
    pub const ROUND: Self = Self(9);
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::OK => "done",
            Self::TIMEOUT => "no answer",
            Self::AUTHENTICATION => "the answer failed authentication",
            Self::NO_CONNECTION => "the peer has no such connection, or could not parse it",
            Self::EXISTS => "the connection exists already",
            Self::ALL_PATHS_DOWN => "all paths are down",
            Self::ROUND => "unexpected round",
            Self(_) => "unknown error",
        };
        write!(f, "{text} (code {})", self.0)
    }
}

fn find(connections: &[LegacyConnection], pair: AddressPair) -> Option<&LegacyConnection> {
    connections.iter().find(|connection| connection.pair == pair)
}
