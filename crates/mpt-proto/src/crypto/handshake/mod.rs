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
//!  88  n  sealed TAI64N 12, hello 14 + m    12 32  ephemeral key                      64
//!     16  MAC1                              44  n  sealed hello 14 + m
//!     16  MAC2 or zero                         16  MAC1
//! 162 + m                                      16  MAC2 or zero
//!                                          106 + m
//! ```
//!
//! Our own are the framing, the prologue and labels, the hello ([`hello`]) and one rule on cookies ([`cookie`]); so the
//! messages of WireGuard and of this tunnel are never mistaken for each other. The hello repeats the sender's index: the
//! clear one is needed to answer under load, but whoever knows the public key can forge its MAC.
//!
//! In the order of what they cost us, an initiation from the network passes: [`Message::decode`], the lengths;
//! [`Gate::admit`], MAC1 and under load MAC2; [`Knock::open`], one Diffie-Hellman, which tells who claims to be calling; the
//! look-up of that peer; `Association::handle_initiation`, the proof of the claim and the answer. Whatever fails on the way
//! changes nothing and gets no answer, but for a cookie reply under load.

pub mod cookie;
pub mod hello;
mod message;
mod noise;
pub mod tai64n;

pub use cookie::{HandshakeGuard, Rejection};
pub use hello::{Capabilities, Ciphers, HandshakePayload, Incarnation};
pub use message::{COOKIE_REPLY_LEN, CookieReply, HandshakeMessage, Initiation, MAX_LEN, Response, Signed};
pub use tai64n::{Clock, Tai64n};

pub(super) use cookie::{Cookie, sign};
pub(super) use message::MAC;
pub(super) use noise::Secrets;

use zeroize::Zeroize;

use super::keys::{KeyPair, PresharedKey, PublicKey};
use crate::drops::Dropped;
use crate::time::Time;
use crate::wire::native::SessionIndex;

/// The version of the protocol that this code speaks.
pub const VERSION: u8 = 1;

/// Who we are, to every peer.
#[derive(Debug)]
pub struct Identity {
    /// Our static keys.
    pub keys: KeyPair,
    /// What we can do.
    pub capabilities: Capabilities,
    /// What our timestamps are made of.
    pub clock: Clock,
}

impl Identity {
    fn hello(&self, run: Incarnation) -> HandshakePayload {
        HandshakePayload { version: VERSION, incarnation: run, capabilities: self.capabilities }
    }
}

/// What every handshake message needs new, handed in by the caller.
pub struct EphemeralInput {
    /// From a cryptographic random source; never used twice.
    pub ephemeral: [u8; 32],
    /// A name for the session that no other session of the endpoint has.
    pub index: SessionIndex,
    /// Random: spreads the retries of ends that began at once.
    pub jitter: u16,
}

impl Drop for EphemeralInput {
    fn drop(&mut self) {
        self.ephemeral.zeroize();
    }
}

/// An initiation of ours that waits for its answer.
pub(super) struct Pending {
    pub(super) index: SessionIndex,
    pub(super) mac1: [u8; MAC],
    noise: noise::Initiator,
}

/// What a completed handshake agrees on.
pub(super) struct Agreed {
    pub(super) local: SessionIndex,
    pub(super) remote: SessionIndex,
    pub(super) hello: HandshakePayload,
    pub(super) secrets: Secrets,
}

impl Pending {
    /// Writes an initiation.
    pub(super) fn write(
        now: Time,
        us: &Identity,
        run: Incarnation,
        peer: &PublicKey,
        cookie: Option<Cookie>,
        fresh: &EphemeralInput,
    ) -> (Self, Vec<u8>) {
        let mut payload = us.clock.at(now).to_bytes().to_vec();
        us.hello(run).encode(fresh.index, &mut payload);
        let mut message = message::begin_initiation(fresh.index);
        let noise = noise::Initiator::write(&us.keys, peer, fresh.ephemeral, &payload, &mut message);
        let mac1 = sign(now, peer, cookie, &mut message);
        (Self { index: fresh.index, mac1, noise }, message)
    }

    /// Reads the response to it. A forged one changes nothing.
    pub(super) fn read(&self, us: &Identity, psk: &PresharedKey, response: &Response<'_>) -> Result<Agreed, Dropped> {
        let read = self.noise.read(&us.keys, psk, response.noise);
        let (payload, secrets) = read.map_err(|_| Dropped::NotAuthentic)?;
        let hello = hello_of(&payload, response.sender)?;
        Ok(Agreed { local: self.index, remote: response.sender, hello, secrets })
    }
}

/// An initiation read as far as the key of whoever claims to be calling.
pub struct ClaimedInitiation<'a> {
    noise: noise::Responder,
    sealed: &'a [u8],
    sender: SessionIndex,
}

impl<'a> ClaimedInitiation<'a> {
    /// Reads the claim. One Diffie-Hellman, 38 us.
    pub fn open(us: &Identity, initiation: &Initiation<'a>) -> Result<Self, Dropped> {
        let read = noise::Responder::read_static(&us.keys, initiation.noise);
        let (noise, sealed) = read.map_err(|_| Dropped::NotAuthentic)?;
        Ok(Self { noise, sealed, sender: initiation.sender })
    }

    /// Who claims to be calling; anyone may claim to be anyone.
    pub fn peer(&self) -> &PublicKey {
        self.noise.initiator()
    }

    /// Proves the claim: reads when the initiation was written, and what the initiator says about itself.
    pub(super) fn prove(mut self, us: &Identity) -> Result<Caller, Dropped> {
        let payload = self.noise.read_payload(&us.keys, self.sealed).map_err(|_| Dropped::NotAuthentic)?;
        let (written, hello) = payload.split_first_chunk().ok_or(Dropped::NotAuthentic)?;
        let hello = hello_of(hello, self.sender)?;
        Ok(Caller { noise: self.noise, written: Tai64n::from_bytes(*written), remote: self.sender, hello })
    }
}

/// An initiation that was authentic when it was written.
pub(super) struct Caller {
    pub(super) written: Tai64n,
    pub(super) hello: HandshakePayload,
    noise: noise::Responder,
    remote: SessionIndex,
}

impl Caller {
    /// Writes the response; returns it with its MAC1.
    pub(super) fn answer(
        self,
        now: Time,
        us: &Identity,
        run: Incarnation,
        psk: &PresharedKey,
        cookie: Option<Cookie>,
        fresh: &EphemeralInput,
    ) -> Result<(Agreed, Vec<u8>, [u8; MAC]), Dropped> {
        let (peer, mut payload) = (*self.noise.initiator(), Vec::new());
        us.hello(run).encode(fresh.index, &mut payload);
        let mut message = message::begin_response(fresh.index, self.remote);
        let written = self.noise.write(psk, fresh.ephemeral, &payload, &mut message);
        let secrets = written.map_err(|_| Dropped::NotAuthentic)?;
        let mac1 = sign(now, &peer, cookie, &mut message);
        Ok((Agreed { local: fresh.index, remote: self.remote, hello: self.hello, secrets }, message, mac1))
    }
}

/// The hello in a payload, if it speaks of the same session as the clear header.
fn hello_of(payload: &[u8], sender: SessionIndex) -> Result<HandshakePayload, Dropped> {
    let (index, hello) = HandshakePayload::decode(payload).ok_or(Dropped::NotAuthentic)?;
    if index == sender { Ok(hello) } else { Err(Dropped::NotAuthentic) }
}
