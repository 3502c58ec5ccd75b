//! Enrolment: a site proves that it has a one-time token, sends its public key, and gets its configuration.
//!
//! ```text
//! site                                                  server
//!   32  ephemeral key                                     32  ephemeral key
//!   48  sealed static key of the site                      n  sealed answer
//!   32  sealed token                                      16  tag
//!   16  tag
//! 128 octets, no more and no fewer                        48 + n octets
//! ```
//!
//! It is the handshake of a tunnel with another prologue and without a preshared key. The server has a key pair for
//! this alone, whose public key the site gets together with the token. So a request of anybody who lacks that key fails
//! at the first tag, after one Diffie-Hellman, and gets no answer. A request that is repeated by an observer has the
//! same token and the same key, and its answer opens for the ephemeral key of the site only.

use blake2::{Blake2s256, Digest};
use zeroize::Zeroizing;

use super::noise::{ENROLMENT, Initiator, Responder};
use crate::crypto::aead::{Forged, TAG};
use crate::crypto::keys::{KeyPair, PresharedKey, PublicKey};

/// A secret that admits one site. Wiped on drop.
pub struct Token(Zeroizing<[u8; TOKEN_LEN]>);

impl Token {
    /// Makes a token of these bytes, which should come from a cryptographic random source.
    pub fn from_bytes(bytes: [u8; TOKEN_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the bytes, which are secret.
    pub fn as_bytes(&self) -> &[u8; TOKEN_LEN] {
        &self.0
    }

    /// Returns a hash by which the server finds the token. It is not secret: nobody can compute the token from it.
    pub fn hash(&self) -> [u8; 32] {
        Blake2s256::new().chain_update(b"mpt-token").chain_update(*self.0).finalize().into()
    }
}

/// A request of ours that waits for its answer.
pub struct PendingRequest(Initiator);

impl PendingRequest {
    /// Writes a request to the server with this enrolment key; `ephemeral` is from a cryptographic random source.
    pub fn write(own: &KeyPair, server: &PublicKey, ephemeral: [u8; 32], token: &Token) -> (Self, Vec<u8>) {
        let mut message = Vec::with_capacity(REQUEST_LEN);
        let noise = Initiator::write(ENROLMENT, own, server, ephemeral, token.as_bytes(), &mut message);
        (Self(noise), message)
    }

    /// Opens the answer.
    ///
    /// # Errors
    /// It is forged, damaged or cut.
    pub fn open(&self, own: &KeyPair, answer: &[u8]) -> Result<Vec<u8>, Forged> {
        self.0.read(own, &PresharedKey::default(), answer).map(|(answer, _keys)| answer)
    }
}

/// An authentic request. Its token may be invalid.
pub struct Request {
    noise: Responder,
    token: Token,
}

impl Request {
    /// Opens a request to the server with this enrolment key. Two Diffie-Hellmans, or one if the sender does not know
    /// the key.
    ///
    /// # Errors
    /// It is forged, damaged or cut.
    pub fn open(server: &KeyPair, message: &[u8]) -> Result<Self, Forged> {
        let (mut noise, sealed) = Responder::read_static(ENROLMENT, server, message)?;
        let token = Zeroizing::new(noise.read_payload(server, sealed)?);
        let token = Zeroizing::new(<[u8; TOKEN_LEN]>::try_from(token.as_slice()).map_err(|_| Forged)?);
        Ok(Self { noise, token: Token(token) })
    }

    /// Returns the token that the site presents.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Returns the public key of the site.
    pub fn site(&self) -> PublicKey {
        *self.noise.initiator()
    }

    /// Seals the answer; `ephemeral` is from a cryptographic random source.
    ///
    /// # Errors
    /// A key of the site is of low order.
    pub fn answer(self, ephemeral: [u8; 32], answer: &[u8]) -> Result<Vec<u8>, Forged> {
        let mut message = Vec::with_capacity(ANSWER_OVERHEAD + answer.len());
        self.noise.write(&PresharedKey::default(), ephemeral, answer, &mut message)?;
        Ok(message)
    }
}

/// Returns the enrolment key of a server that keeps none beside its tunnel's key. Who takes it cannot compute that one.
pub fn key_of_tunnel(tunnel: &KeyPair) -> KeyPair {
    let secret = Zeroizing::new(tunnel.secret_bytes());
    KeyPair::generate(Blake2s256::new().chain_update(b"mpt-enrolment-key").chain_update(*secret).finalize().into())
}

/// Bytes of a token.
pub const TOKEN_LEN: usize = 32;
/// Bytes of a request.
pub const REQUEST_LEN: usize = 32 + 32 + TAG + TOKEN_LEN + TAG;
/// Bytes that sealing adds to an answer.
pub const ANSWER_OVERHEAD: usize = 32 + TAG;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs() -> [KeyPair; 2] {
        [[0x51; 32], [0x62; 32]].map(KeyPair::generate)
    }

    #[test]
    fn a_server_reads_token_and_key_and_only_the_site_reads_the_answer() {
        let ([site, server], token) = (pairs(), Token::from_bytes([7; 32]));
        let (pending, message) = PendingRequest::write(&site, server.public(), [1; 32], &token);
        assert_eq!(message.len(), 128);
        let request = Request::open(&server, &message).unwrap();
        assert_eq!((request.token().as_bytes(), request.site()), (&[7; 32], *site.public()));
        let answer = request.answer([2; 32], b"welcome").unwrap();
        assert_eq!(answer.len(), ANSWER_OVERHEAD + 7);
        assert_eq!(pending.open(&site, &answer).unwrap(), b"welcome");
        assert!(pending.open(&server, &answer).is_err());
        assert!(pending.open(&site, &answer[..answer.len() - 1]).is_err());
        let (other, _) = PendingRequest::write(&site, server.public(), [3; 32], &token);
        assert!(other.open(&site, &answer).is_err(), "an answer belongs to its request");
    }

    #[test]
    fn neither_a_handshake_nor_a_request_to_another_key_is_a_request() {
        let ([site, server], mut handshake) = (pairs(), Vec::new());
        Initiator::write(super::super::noise::SESSION, &site, server.public(), [1; 32], &[7; 32], &mut handshake);
        assert!(Request::open(&server, &handshake).is_err());
        let (_, message) = PendingRequest::write(&site, site.public(), [1; 32], &Token::from_bytes([7; 32]));
        assert!(Request::open(&server, &message).is_err());
    }

    #[test]
    fn the_hash_of_a_token_is_not_the_token() {
        let [a, b] = [[1; 32], [2; 32]].map(|bytes| Token::from_bytes(bytes).hash());
        assert!(a != b && a != [1; 32]);
        // mpt-fleet computes it as well, and has the same test.
        assert_eq!(a[..8], [0xab, 0xa5, 0x87, 0x4b, 0xb4, 0xba, 0x3f, 0xe8]);
    }

    #[test]
    fn the_enrolment_key_of_a_tunnel_is_another_key_and_always_the_same() {
        let [a, b] = pairs();
        let of = |pair: &KeyPair| *key_of_tunnel(pair).public();
        assert!(of(&a) == of(&a) && of(&a) != of(&b) && of(&a) != *a.public());
    }

    proptest! {
        #[test]
        fn a_request_with_any_changed_bit_is_forged(at in 0..REQUEST_LEN, bit in 0..8u32) {
            let [site, server] = pairs();
            let (_, mut message) = PendingRequest::write(&site, server.public(), [1; 32], &Token::from_bytes([7; 32]));
            message[at] ^= 1u8 << bit;
            // X25519 ignores the highest bit of a public key, but the hash covers it.
            prop_assert!(Request::open(&server, &message).is_err());
        }

        #[test]
        fn opening_any_bytes_never_panics(message: Vec<u8>) {
            let [site, server] = pairs();
            let _ = Request::open(&server, &message);
            let (pending, _) = PendingRequest::write(&site, server.public(), [1; 32], &Token::from_bytes([7; 32]));
            let _ = pending.open(&site, &message);
        }
    }
}
