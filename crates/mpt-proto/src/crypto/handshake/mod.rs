//! The handshake: Noise_IKpsk2 as WireGuard uses it (Donenfeld, "WireGuard: Next Generation Kernel Network Tunnel"), in
//! GRE-in-UDP with protocol type 0x88B6, no key and no sequence number.
//!
//! ```text
//! initiation                               response                                  cookie reply
//!   0  4  GRE 00 00 88 B6                    0  4  GRE 00 00 88 B6                     0  4  GRE 00 00 88 B6
//!   4  1  type 1                             4  1  type 2                              4  1  type 3
//!   5  3  sender's session index             5  3  sender's session index              5  3  receiver's index
//!   8 32  ephemeral key                      8  1  zero                                8 24  nonce
//!  40 48  sealed static key                  9  3  receiver's session index           32 32  sealed cookie
//!  88  n  sealed TAI64N 12, payload 14 + m  12 32  ephemeral key                      64
//!     16  MAC1                              44  n  sealed payload 14 + m
//!     16  MAC2 or zero                         16  MAC1
//! 162 + m                                      16  MAC2 or zero
//!                                          106 + m
//! ```
//!
//! Different from WireGuard are the framing, the prologue and labels, the payload ([`payload`]) and that responses get
//! no cookies ([`cookie`]), so neither protocol accepts a message of the other. The payload repeats the sender's index:
//! the clear one is needed for a cookie reply, but anyone with the public key can forge its MAC.
//!
//! An initiation from the network passes these checks, the cheapest first: [`HandshakeMessage::decode`], the lengths;
//! [`HandshakeGuard::admit`], MAC1 and under load MAC2; [`ClaimedInitiation::open`], one Diffie-Hellman, which yields
//! the claimed static key; the look-up of that peer; [`ClaimedInitiation::verify`], another one, which proves the
//! claim; `Association::handle_initiation`, which answers. A failure at any step changes nothing and gets no answer,
//! except for a cookie reply under load.

pub mod cookie;
pub mod enrolment;
mod message;
mod noise;
pub mod payload;
pub mod tai64n;

pub use cookie::{HandshakeGuard, Rejection};
pub use message::{COOKIE_REPLY_LEN, CookieReply, HandshakeMessage, Initiation, MAX_LEN, Response, Signed};
pub use payload::{Capabilities, Ciphers, HandshakePayload, Incarnation};
pub use tai64n::{Clock, Tai64n};

pub(super) use cookie::{Cookie, sign};
pub(super) use message::MAC;
pub(super) use noise::Secrets;

use std::fmt;

use zeroize::Zeroize;

use super::keys::{KeyPair, PresharedKey, PublicKey};
use crate::datagram::RemoteAddress;
use crate::drops::Dropped;
use crate::time::Time;
use crate::wire::native::SessionIndex;

/// The protocol version of this implementation.
pub const VERSION: u8 = 1;

/// The identity of this end, the same to every peer.
#[derive(Debug)]
pub struct Identity {
    /// Our static keys.
    pub keys: KeyPair,
    /// Our capabilities.
    pub capabilities: Capabilities,
    /// The clock of our timestamps.
    pub clock: Clock,
}

impl Identity {
    fn payload(&self, incarnation: Incarnation) -> HandshakePayload {
        HandshakePayload { version: VERSION, incarnation, capabilities: self.capabilities }
    }
}

/// Fresh random input for one handshake message, passed in by the caller.
pub struct EphemeralInput {
    /// Bytes of a cryptographic random source; used once.
    pub ephemeral: [u8; 32],
    /// A session index that no other session of the endpoint has.
    pub index: SessionIndex,
    /// A random number that spreads the retries of ends that started at the same time.
    pub jitter: u16,
}

impl Drop for EphemeralInput {
    fn drop(&mut self) {
        self.ephemeral.zeroize();
    }
}

/// An initiation of ours that waits for its response.
pub(super) struct Pending {
    pub(super) index: SessionIndex,
    /// Our incarnation in it.
    pub(super) own: Incarnation,
    pub(super) mac1: [u8; MAC],
    /// Destinations of its copies, at most one for each path, and true after the first cookie from there.
    pub(super) sent_to: Vec<(RemoteAddress, bool)>,
    noise: noise::Initiator,
}

/// The result of a completed handshake. `secrets` has a chaining key if both ends rekey inside the session.
pub(super) struct Agreed {
    pub(super) local: SessionIndex,
    pub(super) remote: SessionIndex,
    pub(super) payload: HandshakePayload,
    pub(super) secrets: Secrets,
}

impl Pending {
    /// Writes an initiation.
    pub(super) fn write(
        now: Time,
        identity: &mut Identity,
        incarnation: Incarnation,
        peer: &PublicKey,
        ephemeral: &EphemeralInput,
    ) -> (Self, Vec<u8>) {
        let mut plain = identity.clock.next(now).to_bytes().to_vec();
        identity.payload(incarnation).encode(ephemeral.index, &mut plain);
        let mut message = message::begin_initiation(ephemeral.index);
        let noise =
            noise::Initiator::write(noise::SESSION, &identity.keys, peer, ephemeral.ephemeral, &plain, &mut message);
        let mac1 = sign(peer, &mut message);
        (Self { index: ephemeral.index, own: incarnation, mac1, sent_to: Vec::new(), noise }, message)
    }

    /// Reads the response to it. A forged response changes nothing.
    pub(super) fn read(
        &self,
        identity: &Identity,
        psk: &PresharedKey,
        response: &Response<'_>,
    ) -> Result<Agreed, Dropped> {
        let read = self.noise.read(&identity.keys, psk, response.noise);
        let (plain, mut secrets) = read.map_err(|_| Dropped::NotAuthentic)?;
        let payload = decode_payload(&plain, response.sender)?;
        secrets.chaining.take_if(|_| !identity.capabilities.rekeys_with(&payload.capabilities));
        Ok(Agreed { local: self.index, remote: response.sender, payload, secrets })
    }
}

/// An initiation, decrypted up to the claimed static key of the initiator.
pub struct ClaimedInitiation<'a> {
    noise: noise::Responder,
    sealed: &'a [u8],
    sender: SessionIndex,
}

impl<'a> ClaimedInitiation<'a> {
    /// Decrypts the claimed static key. One Diffie-Hellman, 38 us.
    pub fn open(identity: &Identity, initiation: &Initiation<'a>) -> Result<Self, Dropped> {
        let read = noise::Responder::read_static(noise::SESSION, &identity.keys, initiation.noise);
        let (noise, sealed) = read.map_err(|_| Dropped::NotAuthentic)?;
        Ok(Self { noise, sealed, sender: initiation.sender })
    }

    /// Returns the claimed static key; it is not verified.
    pub fn peer(&self) -> &PublicKey {
        self.noise.initiator()
    }

    /// Verifies the claim: decrypts the timestamp and the payload of the initiator. One Diffie-Hellman.
    pub fn verify(mut self, identity: &Identity) -> Result<VerifiedInitiation, Dropped> {
        let plain = self.noise.read_payload(&identity.keys, self.sealed).map_err(|_| Dropped::NotAuthentic)?;
        let (timestamp, payload) = plain.split_first_chunk().ok_or(Dropped::NotAuthentic)?;
        let payload = decode_payload(payload, self.sender)?;
        Ok(VerifiedInitiation {
            noise: self.noise,
            timestamp: Tai64n::from_bytes(*timestamp),
            remote: self.sender,
            payload,
        })
    }
}

/// An authentic initiation; it may be a replay.
pub struct VerifiedInitiation {
    pub(crate) timestamp: Tai64n,
    pub(super) payload: HandshakePayload,
    noise: noise::Responder,
    remote: SessionIndex,
}

impl VerifiedInitiation {
    /// Returns the static key of the initiator.
    pub fn peer(&self) -> &PublicKey {
        self.noise.initiator()
    }

    /// Returns a hash of the whole initiation but its MACs, which no other initiation has.
    pub(super) fn transcript(&self) -> [u8; 32] {
        self.noise.transcript()
    }

    /// Writes the response.
    pub(super) fn respond(
        self,
        identity: &Identity,
        incarnation: Incarnation,
        psk: &PresharedKey,
        ephemeral: &EphemeralInput,
    ) -> Result<(Agreed, Vec<u8>), Dropped> {
        let (peer, mut plain) = (*self.noise.initiator(), Vec::new());
        identity.payload(incarnation).encode(ephemeral.index, &mut plain);
        let mut message = message::begin_response(ephemeral.index, self.remote);
        let written = self.noise.write(psk, ephemeral.ephemeral, &plain, &mut message);
        let mut secrets = written.map_err(|_| Dropped::NotAuthentic)?;
        sign(&peer, &mut message);
        let payload = self.payload;
        secrets.chaining.take_if(|_| !identity.capabilities.rekeys_with(&payload.capabilities));
        Ok((Agreed { local: ephemeral.index, remote: self.remote, payload, secrets }, message))
    }
}

impl fmt::Debug for VerifiedInitiation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifiedInitiation").field("peer", self.peer()).finish_non_exhaustive()
    }
}

/// Decodes a payload; its session index must be that of the clear header.
fn decode_payload(plain: &[u8], sender: SessionIndex) -> Result<HandshakePayload, Dropped> {
    let (index, payload) = HandshakePayload::decode(plain).ok_or(Dropped::NotAuthentic)?;
    if index == sender { Ok(payload) } else { Err(Dropped::NotAuthentic) }
}
