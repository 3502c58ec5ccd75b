//! Path validation: a path's remote address follows the peer when it moves or a NAT rebinds, by the rules of RFC 9000
//! sections 8.2 and 9.
//!
//! ```text
//!            authentic, newest of its path, from another address        the challenge is echoed from there
//! Validated --------------------------------------------------> Migrating ------------------------------> Validated
//!    ^        data still goes to the old address                    | a newer datagram from the old address
//!    '-------------------------------------------------------------'
//! Unvalidated ------------------------------------------------------------------------------------------> Validated
//! ```
//!
//! The replay window removes replayed datagrams first, and a datagram that was only overtaken is not the newest, so
//! neither moves a path. A host that resends captured datagrams from its own address gets a challenge that only the
//! peer can answer. Before that, an address gets at most three times the bytes that came from it, so nobody can be
//! flooded in another's name.

use std::net::SocketAddr;

use crate::datagram::RecvMeta;
use crate::id::LinkId;
use crate::time::Time;
use crate::tuning::path::validation::{ADVERTISED_INTERVAL, AMPLIFICATION_LIMIT, FIRST_RETRY, MAX_ATTEMPTS};
use crate::wire::frame::{Frame, PathFrame};
use crate::wire::native::OVERHEAD;

/// State of the proof that the peer receives at a path's remote address.
#[derive(Debug)]
pub enum AddressState {
    /// It has, or the configuration states the address.
    Validated,
    /// It has, and it also sent from another address, which is being validated.
    Migrating(PathValidation),
    /// It has not: the path carries nothing but challenges and their responses.
    Unvalidated(PathValidation),
}

impl AddressState {
    /// Returns true if the path's remote address is validated.
    pub fn is_validated(&self) -> bool {
        !matches!(self, Self::Unvalidated(_))
    }

    /// Returns the validation in progress.
    pub fn validation(&self) -> Option<&PathValidation> {
        match self {
            Self::Validated => None,
            Self::Migrating(validation) | Self::Unvalidated(validation) => Some(validation),
        }
    }

    /// Returns the validation in progress.
    pub fn validation_mut(&mut self) -> Option<&mut PathValidation> {
        match self {
            Self::Validated => None,
            Self::Migrating(validation) | Self::Unvalidated(validation) => Some(validation),
        }
    }

    /// Begins to validate the address from which `from` came, in place of the address before it.
    pub fn validate(&mut self, now: Time, from: &RecvMeta) {
        let validation = PathValidation::new(now, from);
        *self = match self {
            Self::Validated | Self::Migrating(_) => Self::Migrating(validation),
            Self::Unvalidated(_) => Self::Unvalidated(validation),
        };
    }

    /// The peer still sends from the validated address: it did not migrate.
    pub fn cancel_migration(&mut self) {
        if matches!(self, Self::Migrating(_)) {
            *self = Self::Validated;
        }
    }

    /// Takes a challenge that the peer echoed, and returns the validation that it completes.
    pub fn on_response(&mut self, echoed: [u8; 8]) -> Option<PathValidation> {
        if self.validation()?.secret != Some(echoed) {
            return None;
        }
        match std::mem::replace(self, Self::Validated) {
            Self::Validated => None,
            Self::Migrating(validation) | Self::Unvalidated(validation) => Some(validation),
        }
    }
}

/// The validation of one address.
#[derive(Debug)]
pub struct PathValidation {
    /// The socket on which the peer's datagrams came in.
    pub link: LinkId,
    /// The address.
    pub remote: SocketAddr,
    /// The peer's challenge, which is to be echoed to the address.
    pub challenged: Option<[u8; 8]>,
    /// Our challenge, from the moment it was first sent.
    secret: Option<[u8; 8]>,
    /// Bytes that may still be sent to the address.
    credit: usize,
    attempts: u32,
    next: Option<Time>,
    /// The peer advertised the address; nothing has come from there.
    advertised: bool,
}

impl PathValidation {
    /// Validates the address from which a datagram came. The first challenge is due at once.
    pub fn new(now: Time, from: &RecvMeta) -> Self {
        let RecvMeta { link, from: remote, .. } = *from;
        let (secret, challenged, credit, attempts) = (None, None, 0, 0);
        Self { link, remote, challenged, secret, credit, attempts, next: Some(now), advertised: false }
    }

    /// Validates an address that the peer advertised. The peer could advertise a third party's address, so it gets one
    /// round of challenges, and another every 30 s.
    pub fn advertised(now: Time, link: LinkId, remote: SocketAddr) -> Self {
        let (secret, challenged, credit) = (None, None, MAX_ATTEMPTS as usize * (OVERHEAD + MAX_FRAMES));
        Self { link, remote, challenged, secret, credit, attempts: 0, next: Some(now), advertised: true }
    }

    /// Returns true if `from` came from the address.
    pub fn is_at(&self, from: &RecvMeta) -> bool {
        (self.link, self.remote) == (from.link, from.from)
    }

    /// Counts a datagram of `len` bytes that came from the address.
    pub fn on_received(&mut self, now: Time, len: usize) {
        self.credit += AMPLIFICATION_LIMIT * len;
        if self.next.is_none() {
            (self.attempts, self.next) = (0, Some(now));
        }
    }

    /// Counts a datagram of `len` bytes that was sent to the address.
    pub fn on_sent(&mut self, len: usize) {
        self.credit -= len;
    }

    /// Returns the time of the next challenge, if the address may get one.
    pub fn next_deadline(&self) -> Option<Time> {
        self.next.filter(|_| self.credit >= OVERHEAD + MAX_FRAMES)
    }

    /// Returns the frames to send to the address: our challenge if it is due, and the response to the peer's unless
    /// `used` is false. `draw` supplies unpredictable bytes for a new challenge.
    pub fn poll(
        &mut self,
        now: Time,
        used: bool,
        draw: impl FnOnce() -> [u8; 8],
    ) -> Option<[Option<Frame<'static>>; 2]> {
        if self.credit < OVERHEAD + MAX_FRAMES {
            return None;
        }
        let due = self.next.is_some_and(|at| at <= now);
        if due {
            self.attempts += 1;
            self.next = (self.attempts < MAX_ATTEMPTS).then(|| now + FIRST_RETRY * 2u32.pow(self.attempts - 1));
            if self.advertised && self.next.is_none() {
                let again = Self::advertised(now, self.link, self.remote);
                *self = Self { secret: self.secret, next: Some(now + ADVERTISED_INTERVAL), ..again };
            }
        }
        let challenge = due.then(|| Frame::Path(PathFrame::Challenge(*self.secret.get_or_insert_with(draw))));
        let response = self.challenged.take().filter(|_| used).map(|bytes| Frame::Path(PathFrame::Response(bytes)));
        (challenge.is_some() || response.is_some()).then_some([challenge, response])
    }
}

/// A challenge and a response, each with type and length.
pub const MAX_FRAMES: usize = 2 * (3 + 9);
