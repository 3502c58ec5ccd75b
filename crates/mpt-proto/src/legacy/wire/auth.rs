//! The three authentication types of control messages of the original.
//!
//! Type 0 is none. Type 1 is a nonce that the responder chooses in round 2 and the initiator repeats: it proves only
//! that the initiator receives at its address. Type 2 adds SHA-256 over the whole UDP payload, with the 32 bytes of the
//! digest itself set to zero, followed by the key. Its peculiarities are part of the wire format:
//!
//! - the key is the *text* of `auth_key`: hexadecimal digits are not decoded, and only the first 32 characters are
//!   used, so a key of 64 digits has 128 bits and not 256;
//! - a shorter text is padded with zero bytes;
//! - the key is appended to the message, it is not an HMAC (RFC 2104). SHA-256 of message and key resists extension,
//!   but a collision in SHA-256 would be a forgery;
//! - a connection without a key uses one that is printed in the original's source, [`AuthKey::PUBLIC`].

use std::fmt;

use sha2::{Digest, Sha256};

/// Four bytes that the responder chose in round 2; zero before.
pub type Nonce = [u8; 4];

/// The authentication of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Type 0.
    None,
    /// Type 1.
    Nonce(Nonce),
    /// Type 2.
    Sha256(Nonce),
}

/// The authentication types, numbered as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AuthType {
    /// No authentication.
    #[default]
    None = 0,
    /// A repeated nonce, without a secret.
    Nonce = 1,
    /// A nonce and a digest with a shared key.
    Sha256 = 2,
}

/// The shared key of a connection: the first 32 characters of `auth_key`.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthKey([u8; 32]);

impl AuthType {
    /// Decodes an authentication type.
    pub fn from_wire(number: u8) -> Option<Self> {
        [Self::None, Self::Nonce, Self::Sha256].into_iter().find(|t| *t as u8 == number)
    }

    /// Returns the bytes that it adds to the header: 0, 4 or 36.
    pub const fn overhead(self) -> usize {
        match self {
            Self::None => 0,
            Self::Nonce => 4,
            Self::Sha256 => 36,
        }
    }

    /// Returns the authentication of one message, with this nonce if the type has one.
    pub fn with(self, nonce: Nonce) -> Auth {
        match self {
            Self::None => Auth::None,
            Self::Nonce => Auth::Nonce(nonce),
            Self::Sha256 => Auth::Sha256(nonce),
        }
    }
}

impl Auth {
    /// Returns the authentication type.
    pub fn kind(self) -> AuthType {
        match self {
            Self::None => AuthType::None,
            Self::Nonce(_) => AuthType::Nonce,
            Self::Sha256(_) => AuthType::Sha256,
        }
    }

    /// Returns the nonce; zero for type 0, which has none.
    pub fn nonce(self) -> Nonce {
        match self {
            Self::None => [0; 4],
            Self::Nonce(nonce) | Self::Sha256(nonce) => nonce,
        }
    }

    pub(super) fn read(kind: AuthType, message: &[u8]) -> Option<Self> {
        let nonce = match kind {
            AuthType::None => [0; 4],
            AuthType::Nonce | AuthType::Sha256 => *message.get(4..)?.first_chunk()?,
        };
        Some(kind.with(nonce))
    }

    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Nonce(nonce) => out.extend(nonce),
            Self::Sha256(nonce) => {
                out.extend(nonce);
                out.extend([0; DIGEST.end - DIGEST.start]);
            }
        }
    }
}

impl AuthKey {
    /// The public key of the original: it falls back to the digits A0 A1 .. BF if none is configured.
    pub const PUBLIC: Self = Self(*b"A0A1A2A3A4A5A6A7A8A9AAABACADAEAF");

    /// Makes the key of a line `auth_key = text`.
    pub fn from_text(text: &str) -> Self {
        let mut key = [0; 32];
        for (byte, character) in key.iter_mut().zip(text.bytes()) {
            *byte = character;
        }
        Self(key)
    }

    /// Returns true if the key is public.
    pub fn is_public(&self) -> bool {
        *self == Self::PUBLIC || self.0 == [0; 32]
    }

    /// Returns true if an encoded message of type 2 was signed with this key.
    pub fn verifies(&self, message: &[u8]) -> bool {
        let Some(digest) = message.get(DIGEST) else { return false };
        let expected = self.digest(message);
        // The comparison is constant-time: its duration does not depend on the first different byte.
        digest.iter().zip(expected).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }

    pub(super) fn sign(&self, message: &mut [u8]) {
        let digest = self.digest(message);
        message[DIGEST].copy_from_slice(&digest);
    }

    /// Returns the digest of a message of at least 40 bytes, with its digest field taken as zero.
    fn digest(&self, message: &[u8]) -> [u8; 32] {
        let hash = Sha256::new().chain_update(&message[..DIGEST.start]).chain_update([0; 32]);
        hash.chain_update(&message[DIGEST.end..]).chain_update(self.0).finalize().into()
    }
}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_public() { "Key(public)" } else { "Key(..)" })
    }
}

/// The position of the digest in a message of type 2.
const DIGEST: std::ops::Range<usize> = 8..40;
