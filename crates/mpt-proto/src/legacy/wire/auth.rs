//! The three ways in which the original authenticates control messages.
//!
//! Type 0 is nothing. Type 1 is a nonce that the responder makes up in round 2 and the initiator repeats: it proves that
//! the initiator can receive at its address, and no more. Type 2 adds SHA-256 over the whole UDP payload, with the 32
//! bytes of the digest itself set to zero, followed by the key. Its quirks are part of the wire:
//!
//! - the key is the *text* of `auth_key`: hexadecimal digits are not decoded, and only the first 32 characters count, so
//!   a key of 64 digits has 128 bits and not 256;
//! - a shorter text is filled up with zero bytes;
//! - the key is appended to the message, it is not an HMAC (RFC 2104). SHA-256 of message and key resists extension, but
//!   a collision in SHA-256 would be a forgery;
//! - a connection without a key uses one that is printed in the original's source, [`Key::PUBLIC`].

use std::fmt;

use sha2::{Digest, Sha256};

/// Four bytes the responder made up in round 2; zero before.
pub type Nonce = [u8; 4];

/// How one message is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Type 0.
    None,
    /// Type 1.
    Nonce(Nonce),
    /// Type 2.
    Sha256(Nonce),
}

/// The kinds of authentication, numbered as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AuthType {
    /// No authentication.
    #[default]
    None = 0,
    /// A nonce that is repeated, no secret.
    Nonce = 1,
    /// A nonce and a digest with a shared key.
    Sha256 = 2,
}

/// What both ends of a connection know: the first 32 characters of `auth_key`.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthKey([u8; 32]);

impl AuthType {
    /// The type with this number.
    pub fn from_wire(number: u8) -> Option<Self> {
        [Self::None, Self::Nonce, Self::Sha256].into_iter().find(|t| *t as u8 == number)
    }

    /// How many bytes it adds to the header: 0, 4 or 36.
    pub const fn overhead(self) -> usize {
        match self {
            Self::None => 0,
            Self::Nonce => 4,
            Self::Sha256 => 36,
        }
    }

    /// The authentication of one message, with this nonce if the type has one.
    pub fn with(self, nonce: Nonce) -> Auth {
        match self {
            Self::None => Auth::None,
            Self::Nonce => Auth::Nonce(nonce),
            Self::Sha256 => Auth::Sha256(nonce),
        }
    }
}

impl Auth {
    /// Which of the three it is.
    pub fn kind(self) -> AuthType {
        match self {
            Self::None => AuthType::None,
            Self::Nonce(_) => AuthType::Nonce,
            Self::Sha256(_) => AuthType::Sha256,
        }
    }

    /// The nonce; zero for type 0, which has none.
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
    /// The key that everybody knows: the original falls back to the digits A0 A1 .. BF when none is configured.
    pub const PUBLIC: Self = Self(*b"A0A1A2A3A4A5A6A7A8A9AAABACADAEAF");

    /// The key that a line `auth_key = text` means.
    pub fn from_text(text: &str) -> Self {
        let mut key = [0; 32];
        for (byte, character) in key.iter_mut().zip(text.bytes()) {
            *byte = character;
        }
        Self(key)
    }

    /// Whether everybody knows it.
    pub fn is_public(&self) -> bool {
        *self == Self::PUBLIC || self.0 == [0; 32]
    }

    /// Whether an encoded message of type 2 was signed with this key.
    pub fn verifies(&self, message: &[u8]) -> bool {
        let Some(digest) = message.get(DIGEST) else { return false };
        let expected = self.digest(message);
        // Every byte is compared, so the time taken says nothing about where the first difference is.
        digest.iter().zip(expected).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }

    pub(super) fn sign(&self, message: &mut [u8]) {
        let digest = self.digest(message);
        message[DIGEST].copy_from_slice(&digest);
    }

    /// Over a message of at least 40 bytes, as if its digest were zero.
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

/// Where the digest stands in a message of type 2.
const DIGEST: std::ops::Range<usize> = 8..40;
