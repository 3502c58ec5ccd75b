//! The payload of both handshake messages, sealed and authenticated: version, incarnation and capabilities of the
//! sender.
//!
//! ```text
//! session index  3   the sender's, as in the clear header, which only MAC1 protects
//! version        1   of this protocol; both ends use the lower of the two
//! incarnation    8   random, chosen when the sender starts; another incarnation voids all state of the old one
//! flags          1   bit 0: the CPU has AES instructions; the rest zero, ignored when read
//! ciphers        1   bit 0: ChaCha20-Poly1305, bit 1: AES-256-GCM; the rest zero, ignored when read
//! options            type 1, length 1, value; unknown types are skipped
//!   1 capabilities   up to 8 bytes, big-endian, one bit each; absent means none. Bit 0: reads compressed headers,
//!                    bit 1: rekeys inside the session, bit 2: reads packets with partial checksums
//! ```
//!
//! No order of preference is negotiated: the two AES bits determine the best cipher for both ends, and either end can
//! omit a cipher from its offer. Both ends compute the same result from the same two authenticated payloads.

use crate::crypto::aead::Cipher;
use crate::wire::native::SessionIndex;

/// The handshake payload of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakePayload {
    /// The highest protocol version of the sender, at least 1.
    pub version: u8,
    /// The incarnation of the sender.
    pub incarnation: Incarnation,
    /// The capabilities of the sender.
    pub capabilities: Capabilities,
}

/// A random number that an end chooses when it starts, so that the other end detects a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation(pub [u8; 8]);

impl Incarnation {
    /// Returns another incarnation of the same end.
    pub(in crate::crypto) fn successor(self) -> Self {
        Self(u64::from_be_bytes(self.0).wrapping_add(1).to_be_bytes())
    }
}

/// The capabilities of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// True if the CPU has AES instructions.
    pub has_aes: bool,
    /// The ciphers that it accepts.
    pub ciphers: Ciphers,
    /// Optional features, one bit each; unknown bits are stored and ignored.
    pub features: u64,
}

impl Capabilities {
    /// Returns both ciphers and all features of this version.
    pub const fn new(has_aes: bool) -> Self {
        Self { has_aes, ciphers: Ciphers::ALL, features: COMPRESSES | REKEYS | PARTIAL_CHECKSUMS }
    }

    /// Returns true if the end reads compressed headers.
    pub const fn compresses(&self) -> bool {
        self.features & COMPRESSES != 0
    }

    /// Returns true if the end reads packets with partial checksums.
    pub const fn reads_partial_checksums(&self) -> bool {
        self.features & PARTIAL_CHECKSUMS != 0
    }

    /// Returns true if both ends rekey inside the session.
    pub const fn rekeys_with(&self, other: &Self) -> bool {
        self.features & other.features & REKEYS != 0
    }

    /// Returns the capabilities of a version that does not rekey inside the session.
    pub const fn without_rekeys(self) -> Self {
        Self { features: self.features & !REKEYS, ..self }
    }

    /// Returns the cipher for a session of these two ends: of those that both accept, the one that the slower CPU
    /// prefers. `None` if they have none in common. Symmetric.
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
    /// All ciphers.
    pub const ALL: Self = Self(Self::bit(Cipher::ChaCha20Poly1305) | Self::bit(Cipher::Aes256Gcm));

    /// Returns the set with `cipher` only.
    pub const fn only(cipher: Cipher) -> Self {
        Self(Self::bit(cipher))
    }

    /// Returns true if the set contains `cipher`.
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
    /// Appends the payload for a session that has `index` at the sender.
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

    /// Decodes a payload; `None` if it is malformed or has version 0.
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

/// The end reads frames that offer or use a context ([`crate::header_compression`]).
const COMPRESSES: u64 = 1;
/// The end answers a rekey inside the session ([`crate::crypto::association::rekey`]).
const REKEYS: u64 = 2;
/// The end reads packets with partial checksums ([`crate::wire::frame::DataForm::PartialChecksum`]).
const PARTIAL_CHECKSUMS: u64 = 4;

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

    fn payload_with(capabilities: u64) -> HandshakePayload {
        HandshakePayload {
            version: 1,
            incarnation: Incarnation([3; 8]),
            capabilities: Capabilities { features: capabilities, ..Capabilities::new(true) },
        }
    }

    fn encoded(payload: &HandshakePayload) -> Vec<u8> {
        let mut out = Vec::new();
        payload.encode(SessionIndex::new(5), &mut out);
        out
    }

    proptest! {
        #[test]
        fn a_payload_decodes_to_what_was_encoded(
            index: u32, version in 1u8.., incarnation: [u8; 8], has_aes: bool, ciphers in 0u8..4, features: u64,
        ) {
            let capabilities = Capabilities { has_aes, ciphers: Ciphers(ciphers), features };
            let (payload, index) = (HandshakePayload { version, incarnation: Incarnation(incarnation), capabilities }, SessionIndex::new(index));
            let mut out = Vec::new();
            payload.encode(index, &mut out);
            prop_assert_eq!(HandshakePayload::decode(&out), Some((index, payload)));
        }

        #[test]
        fn decoding_any_bytes_never_panics(payload: Vec<u8>) {
            let _ = HandshakePayload::decode(&payload);
        }
    }

    #[test]
    fn unknown_options_are_skipped() {
        let mut payload = encoded(&payload_with(0));
        payload.extend_from_slice(&[200, 3, 1, 2, 3, CAPABILITIES, 2, 0x12, 0x34, 201, 0]);
        assert_eq!(HandshakePayload::decode(&payload), Some((SessionIndex::new(5), payload_with(0x1234))));
    }

    #[test]
    fn a_cut_payload_is_malformed_unless_it_ends_between_options() {
        let payload = encoded(&payload_with(1));
        let readable: Vec<_> =
            (0..payload.len()).filter(|len| HandshakePayload::decode(&payload[..*len]).is_some()).collect();
        assert_eq!(readable, [FIXED]);
    }

    #[test]
    fn aes_is_chosen_if_both_ends_have_it_in_hardware() {
        let (fast, slow) = (Capabilities::new(true), Capabilities::new(false));
        assert_eq!(fast.cipher_with(&fast), Some(Cipher::Aes256Gcm));
        assert_eq!(fast.cipher_with(&slow), Some(Cipher::ChaCha20Poly1305));
        assert_eq!(slow.cipher_with(&fast), Some(Cipher::ChaCha20Poly1305));
        assert_eq!(slow.cipher_with(&slow), Some(Cipher::ChaCha20Poly1305));
    }

    #[test]
    fn the_cipher_is_one_that_both_ends_offer_or_none() {
        let only = |cipher| Capabilities { ciphers: Ciphers::only(cipher), ..Capabilities::new(false) };
        let (aes, chacha) = (only(Cipher::Aes256Gcm), only(Cipher::ChaCha20Poly1305));
        assert_eq!(aes.cipher_with(&Capabilities::new(false)), Some(Cipher::Aes256Gcm));
        assert_eq!(chacha.cipher_with(&Capabilities::new(true)), Some(Cipher::ChaCha20Poly1305));
        assert_eq!(aes.cipher_with(&chacha), None);
    }
}
