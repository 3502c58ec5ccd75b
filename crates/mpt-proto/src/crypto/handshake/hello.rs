//! What the ends tell each other inside the handshake, sealed and authenticated: the payload of both messages.
//!
//! ```text
//! session index  3   the sender's, as in the clear header, which only MAC1 protects
//! version        1   of this protocol; both speak the lower of the two
//! run            8   random, chosen when the sender began; another run means that nothing of the old one goes on
//! flags          1   bit 0: the CPU has AES instructions; the rest zero, ignored when read
//! ciphers        1   bit 0: ChaCha20-Poly1305, bit 1: AES-256-GCM; the rest zero, ignored when read
//! options            type 1, length 1, value; unknown types are skipped
//!   1 capabilities   up to 8 bytes, big-endian, one bit each; absent means none. Bit 0: reads compressed headers
//! ```
//!
//! There is no order of preference to negotiate: which cipher serves both best follows from the two AES bits, and either end
//! can leave a cipher out of its offer. Both ends compute the same answer from the same two authenticated payloads.

use crate::crypto::aead::Cipher;
use crate::wire::native::SessionIndex;

/// What one end says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakePayload {
    /// The highest version of the protocol that it speaks, at least 1.
    pub version: u8,
    /// Which run of it is speaking.
    pub incarnation: Incarnation,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// A random number that an end chooses when it begins, so that the other notices when it has begun anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation(pub [u8; 8]);

/// What an end can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The CPU has AES instructions.
    pub has_aes: bool,
    /// The ciphers that it is willing to use.
    pub ciphers: Ciphers,
    /// Optional features, one bit each; those that are not known are carried and mean nothing.
    pub features: u64,
}

/// Frames that offer or use a context are understood ([`crate::headers`]).
const COMPRESSES: u64 = 1;

impl Capabilities {
    /// Both ciphers and every feature that there is.
    pub const fn new(has_aes: bool) -> Self {
        Self { has_aes, ciphers: Ciphers::ALL, features: COMPRESSES }
    }

    /// Whether compressed headers are understood.
    pub const fn compresses(&self) -> bool {
        self.features & COMPRESSES != 0
    }

    /// The cipher for a session between these two: of those that both will use, the one that the slower CPU prefers.
    /// `None` when they have none in common. Symmetric.
    pub fn cipher_with(&self, other: &Self) -> Option<Cipher> {
        let both = Ciphers(self.ciphers.0 & other.ciphers.0);
        let preferred = Cipher::preferred(self.has_aes && other.has_aes);
        [preferred, Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm].into_iter().find(|cipher| both.contain(*cipher))
    }
}

/// A set of ciphers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ciphers(u8);

impl Ciphers {
    /// All that there are.
    pub const ALL: Self = Self(Self::bit(Cipher::ChaCha20Poly1305) | Self::bit(Cipher::Aes256Gcm));

    /// Only `cipher`.
    pub const fn only(cipher: Cipher) -> Self {
        Self(Self::bit(cipher))
    }

    /// Whether `cipher` is one of them.
    pub const fn contain(self, cipher: Cipher) -> bool {
        self.0 & Self::bit(cipher) != 0
    }

    const fn bit(cipher: Cipher) -> u8 {
        match cipher {
            Cipher::ChaCha20Poly1305 => 1 << 0,
            Cipher::Aes256Gcm => 1 << 1,
        }
    }
}

impl HandshakePayload {
    /// Appends the payload for a session that the sender calls `index`.
    pub fn encode(&self, index: SessionIndex, out: &mut Vec<u8>) {
        out.extend_from_slice(&index.to_bytes());
        out.push(self.version);
        out.extend_from_slice(&self.incarnation.0);
        out.push(u8::from(self.capabilities.has_aes));
        out.push(self.capabilities.ciphers.0);
        if self.capabilities.features != 0 {
            out.extend_from_slice(&[CAPABILITIES, 8]);
            out.extend_from_slice(&self.capabilities.features.to_be_bytes());
        }
    }

    /// Reads a payload; `None` when it is malformed or of version 0.
    pub fn decode(payload: &[u8]) -> Option<(SessionIndex, Self)> {
        let (fixed, options) = payload.split_first_chunk::<FIXED>()?;
        let [a, b, c, version @ (1..), incarnation @ .., flags, ciphers] = *fixed else { return None };
        let (has_aes, ciphers) = (flags & 1 != 0, Ciphers(ciphers & Ciphers::ALL.0));
        let capabilities = Capabilities { has_aes, ciphers, features: features(options)? };
        Some((
            SessionIndex::from_bytes([a, b, c]),
            Self { version, incarnation: Incarnation(incarnation), capabilities },
        ))
    }
}

/// Bytes of a payload without options.
pub const FIXED: usize = 14;
const CAPABILITIES: u8 = 1;

fn features(mut options: &[u8]) -> Option<u64> {
    let mut found = 0;
    while let [kind, len, rest @ ..] = options {
        let (value, next) = rest.split_at_checked(usize::from(*len))?;
        if *kind == CAPABILITIES {
            found = value.iter().try_fold(0u64, |bits, byte| Some(bits.checked_mul(256)? | u64::from(*byte)))?;
        }
        options = next;
    }
    options.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(capabilities: u64) -> HandshakePayload {
        HandshakePayload {
            version: 1,
            incarnation: Incarnation([3; 8]),
            capabilities: Capabilities { features: capabilities, ..Capabilities::new(true) },
        }
    }

    fn encoded(hello: &HandshakePayload) -> Vec<u8> {
        let mut out = Vec::new();
        hello.encode(SessionIndex::new(5), &mut out);
        out
    }

    proptest! {
        #[test]
        fn a_hello_reads_as_it_was_written(
            index: u32, version in 1u8.., incarnation: [u8; 8], has_aes: bool, ciphers in 0u8..4, features: u64,
        ) {
            let capabilities = Capabilities { has_aes, ciphers: Ciphers(ciphers), features };
            let (hello, index) = (HandshakePayload { version, incarnation: Incarnation(incarnation), capabilities }, SessionIndex::new(index));
            let mut out = Vec::new();
            hello.encode(index, &mut out);
            prop_assert_eq!(HandshakePayload::decode(&out), Some((index, hello)));
        }

        #[test]
        fn nothing_makes_the_reader_panic(payload: Vec<u8>) {
            let _ = HandshakePayload::decode(&payload);
        }
    }

    #[test]
    fn options_from_the_future_are_skipped() {
        let mut payload = encoded(&hello(0));
        payload.extend_from_slice(&[200, 3, 1, 2, 3, CAPABILITIES, 2, 0x12, 0x34, 201, 0]);
        assert_eq!(HandshakePayload::decode(&payload), Some((SessionIndex::new(5), hello(0x1234))));
    }

    #[test]
    fn a_cut_payload_is_malformed_unless_it_ends_between_options() {
        let payload = encoded(&hello(1));
        let readable: Vec<_> =
            (0..payload.len()).filter(|len| HandshakePayload::decode(&payload[..*len]).is_some()).collect();
        assert_eq!(readable, [FIXED]);
    }

    #[test]
    fn aes_is_used_where_both_have_it_in_hardware() {
        let (fast, slow) = (Capabilities::new(true), Capabilities::new(false));
        assert_eq!(fast.cipher_with(&fast), Some(Cipher::Aes256Gcm));
        assert_eq!(fast.cipher_with(&slow), Some(Cipher::ChaCha20Poly1305));
        assert_eq!(slow.cipher_with(&fast), Some(Cipher::ChaCha20Poly1305));
        assert_eq!(slow.cipher_with(&slow), Some(Cipher::ChaCha20Poly1305));
    }

    #[test]
    fn an_end_that_insists_gets_its_cipher_or_none() {
        let only = |cipher| Capabilities { ciphers: Ciphers::only(cipher), ..Capabilities::new(false) };
        let (aes, chacha) = (only(Cipher::Aes256Gcm), only(Cipher::ChaCha20Poly1305));
        assert_eq!(aes.cipher_with(&Capabilities::new(false)), Some(Cipher::Aes256Gcm));
        assert_eq!(chacha.cipher_with(&Capabilities::new(true)), Some(Cipher::ChaCha20Poly1305));
        assert_eq!(aes.cipher_with(&chacha), None);
    }
}
