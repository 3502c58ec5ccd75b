//! Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s (Perrin, "The Noise Protocol Framework", revision 34), both ends.
//!
//! ```text
//! <- s                        the initiator has the responder's static key beforehand
//! ...
//! -> e, es, s, ss             first message: ephemeral, sealed static, sealed payload
//! <- e, ee, se, psk           second message: ephemeral, sealed payload; then both have the keys
//! ```
//!
//! It is built on audited primitives (X25519, `blake2`, `chacha20poly1305`) and not on the `snow` crate,
//! because `snow` leaves chaining keys and ephemeral secrets in freed memory, and because a responder must be able to
//! stop between `s` and `ss`: there it has the claimed static key, and an unknown initiator costs it one Diffie-Hellman
//! only. The tests run a handshake against `snow`, in both roles, and compare every byte and both keys.
//!
//! Every key that HKDF derives seals exactly one text, so the nonce is always zero and there is no counter. A reader
//! works on a copy of its state, so a forged message does not change it. Randomness is passed in. Secrets are wiped on
//! drop.

use blake2::{Blake2s256, Digest};
use chacha20poly1305::ChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use hmac::{Mac, SimpleHmac};
use zeroize::Zeroizing;

use crate::crypto::aead::{Forged, TAG};
use crate::crypto::keys::{KeyPair, PresharedKey, PublicKey};

/// An initiator that has written its message and waits for the response.
pub struct Initiator {
    state: SymmetricState,
    ephemeral: KeyPair,
}

impl Initiator {
    /// Appends the first message to `out`: 32 bytes of ephemeral key, 48 of sealed static key, the sealed payload.
    pub fn write(
        prologue: &[u8],
        own: &KeyPair,
        peer: &PublicKey,
        ephemeral: [u8; 32],
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Self {
        let (mut state, ephemeral) = (SymmetricState::new(prologue, peer), KeyPair::generate(ephemeral));
        state.write_ephemeral(&ephemeral, out);
        state.mix_key(&*ephemeral.diffie_hellman(peer));
        state.seal(own.public().as_bytes(), out);
        state.mix_key(&*own.diffie_hellman(peer));
        state.seal(payload, out);
        Self { state, ephemeral }
    }

    /// Reads the second message; returns its payload and the keys of the session.
    pub fn read(&self, own: &KeyPair, psk: &PresharedKey, message: &[u8]) -> Result<(Vec<u8>, Secrets), Forged> {
        let mut state = self.state.clone();
        let (ephemeral, sealed) = state.read_ephemeral(message)?;
        state.mix_shared(&self.ephemeral, &ephemeral)?;
        state.mix_shared(own, &ephemeral)?;
        state.mix_key_and_hash(psk.as_bytes());
        Ok((state.open(sealed)?, state.split()))
    }
}

/// A responder that has decrypted the static key of the initiator, and perhaps the payload.
pub struct Responder {
    state: SymmetricState,
    ephemeral: PublicKey,
    initiator: PublicKey,
}

impl Responder {
    /// Reads the first message up to the static key of the initiator, which is not verified until the payload is
    /// opened. Returns the payload, still sealed. One Diffie-Hellman.
    pub fn read_static<'a>(prologue: &[u8], own: &KeyPair, message: &'a [u8]) -> Result<(Self, &'a [u8]), Forged> {
        let mut state = SymmetricState::new(prologue, own.public());
        let (ephemeral, rest) = state.read_ephemeral(message)?;
        let (sealed, payload) = rest.split_at_checked(32 + TAG).ok_or(Forged)?;
        state.mix_shared(own, &ephemeral)?;
        let initiator = state.open(sealed)?.try_into().map_err(|_| Forged)?;
        Ok((Self { state, ephemeral, initiator: PublicKey::from_bytes(initiator) }, payload))
    }

    /// Returns the static key that the initiator claims to own.
    pub fn initiator(&self) -> &PublicKey {
        &self.initiator
    }

    /// Opens the payload of the first message, which verifies the claim. One Diffie-Hellman.
    pub fn read_payload(&mut self, own: &KeyPair, sealed: &[u8]) -> Result<Vec<u8>, Forged> {
        self.state.mix_shared(own, &self.initiator)?;
        self.state.open(sealed)
    }

    /// Returns the hash of the first message, once its payload is opened.
    pub fn transcript(&self) -> [u8; 32] {
        self.state.hash
    }

    /// Appends the second message to `out`, 32 bytes of ephemeral key and the sealed payload; returns the keys of the
    /// session. Two Diffie-Hellmans.
    pub fn write(
        mut self,
        psk: &PresharedKey,
        ephemeral: [u8; 32],
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Secrets, Forged> {
        let ephemeral = KeyPair::generate(ephemeral);
        self.state.write_ephemeral(&ephemeral, out);
        self.state.mix_shared(&ephemeral, &self.ephemeral)?;
        self.state.mix_shared(&ephemeral, &self.initiator)?;
        self.state.mix_key_and_hash(psk.as_bytes());
        self.state.seal(payload, out);
        Ok(self.state.split())
    }
}

/// The result of a handshake or a rekey: one secret per direction, and one for the next rekey.
pub struct Secrets {
    /// Seals the datagrams of the initiator.
    pub to_responder: Zeroizing<[u8; 32]>,
    /// Seals the datagrams of the responder.
    pub to_initiator: Zeroizing<[u8; 32]>,
    /// The chaining key of the next rekey. In a box, so that a session that moves leaves no copy behind.
    pub chaining: Option<Box<Zeroizing<[u8; 32]>>>,
}

impl Secrets {
    /// Derives the keys that a rekey agrees on: from the chaining key that the session left, the Diffie-Hellman of the
    /// ephemeral keys, the preshared key, and both messages. An ephemeral key of low order is refused.
    pub fn of_rekey(
        chaining: &[u8; 32],
        own: &KeyPair,
        other: &PublicKey,
        psk: &PresharedKey,
        messages: [&[u8]; 2],
    ) -> Result<Self, Forged> {
        let [rekey, rekeyed] = messages;
        let hash = Blake2s256::new().chain_update(REKEY_LABEL).chain_update(rekey).chain_update(rekeyed).finalize();
        let shared = own.diffie_hellman(other);
        if shared.iter().all(|byte| *byte == 0) {
            return Err(Forged);
        }
        let [chaining] = hkdf(chaining, &*shared);
        let [chaining] = hkdf(&chaining, psk.as_bytes());
        Ok(Self::split(&chaining, &hash))
    }

    /// Derives the secrets from the last chaining key of a handshake or rekey.
    fn split(chaining: &[u8; 32], input: &[u8]) -> Self {
        let [to_responder, to_initiator, next] = hkdf(chaining, input);
        Self { to_responder, to_initiator, chaining: Some(Box::new(next)) }
    }
}

/// The `SymmetricState` of section 5.2, with the `CipherState` of section 5.1 reduced to the key.
#[derive(Clone)]
struct SymmetricState {
    chaining: Zeroizing<[u8; 32]>,
    hash: [u8; 32],
    key: Zeroizing<[u8; 32]>,
}

impl SymmetricState {
    fn new(prologue: &[u8], responder: &PublicKey) -> Self {
        let name: [u8; 32] = Blake2s256::digest(PROTOCOL_NAME).into();
        let mut state = Self { chaining: Zeroizing::new(name), hash: name, key: Zeroizing::default() };
        state.mix_hash(prologue);
        state.mix_hash(responder.as_bytes());
        state
    }

    /// Writes token `e`. In a pattern with a PSK it is mixed into the key as well (section 9.2).
    fn write_ephemeral(&mut self, ephemeral: &KeyPair, out: &mut Vec<u8>) {
        out.extend_from_slice(ephemeral.public().as_bytes());
        self.mix_hash(ephemeral.public().as_bytes());
        self.mix_key(ephemeral.public().as_bytes());
    }

    /// Reads token `e`. Returns it with the rest of the message.
    fn read_ephemeral<'a>(&mut self, message: &'a [u8]) -> Result<(PublicKey, &'a [u8]), Forged> {
        let (ephemeral, rest) = message.split_first_chunk().ok_or(Forged)?;
        self.mix_hash(ephemeral);
        self.mix_key(ephemeral);
        Ok((PublicKey::from_bytes(*ephemeral), rest))
    }

    /// Mixes in token `es`, `ss`, `ee` or `se` with a key from the network: a key is refused if the
    /// shared secret is zero for every key of ours (RFC 7748 section 6.1).
    fn mix_shared(&mut self, own: &KeyPair, other: &PublicKey) -> Result<(), Forged> {
        let secret = own.diffie_hellman(other);
        if secret.iter().all(|byte| *byte == 0) {
            return Err(Forged);
        }
        self.mix_key(&*secret);
        Ok(())
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = Blake2s256::new().chain_update(self.hash).chain_update(data).finalize().into();
    }

    fn mix_key(&mut self, input: &[u8]) {
        [self.chaining, self.key] = hkdf(&self.chaining, input);
    }

    fn mix_key_and_hash(&mut self, input: &[u8]) {
        let [chaining, hash, key] = hkdf(&self.chaining, input);
        (self.chaining, self.key) = (chaining, key);
        self.mix_hash(&*hash);
    }

    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(plain);
        let tag = self.cipher().encrypt_inout_detached(&NONCE, &self.hash, (&mut out[start..]).into());
        out.extend_from_slice(&tag.expect("a handshake message is far below the limit of 256 GiB"));
        self.mix_hash(&out[start..]);
    }

    fn open(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Forged> {
        let (body, tag) = sealed.split_last_chunk::<TAG>().ok_or(Forged)?;
        let mut plain = body.to_vec();
        let opened = self.cipher().decrypt_inout_detached(&NONCE, &self.hash, plain.as_mut_slice().into(), tag.into());
        opened.map_err(|_| Forged)?;
        self.mix_hash(sealed);
        Ok(plain)
    }

    fn split(&self) -> Secrets {
        Secrets::split(&self.chaining, &[])
    }

    fn cipher(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new((&*self.key).into())
    }
}

const PROTOCOL_NAME: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
/// The prologue of a tunnel's handshake. Both ends must use the same: it identifies the protocol and the framing.
pub const SESSION: &[u8] = b"MPT native mode, version 1, GRE 0x88B6";
/// The prologue of an enrolment, so that neither protocol accepts a message of the other.
pub const ENROLMENT: &[u8] = b"MPT enrolment, version 1, TCP";
/// Distinguishes the hash of a rekey from every other.
const REKEY_LABEL: &[u8] = b"MPT native mode, version 1, rekey";
const NONCE: chacha20poly1305::Nonce = chacha20poly1305::aead::array::Array([0; 12]);

/// Derives `N` keys with the HKDF of section 4.3 (RFC 5869 with HMAC-BLAKE2s and no info).
fn hkdf<const N: usize>(chaining: &[u8; 32], input: &[u8]) -> [Zeroizing<[u8; 32]>; N] {
    let extracted = hmac(chaining, &[input]);
    let mut outputs = std::array::from_fn(|_| Zeroizing::default());
    let mut previous: &[u8] = &[];
    for (output, count) in outputs.iter_mut().zip(1u8..) {
        *output = hmac(&extracted, &[previous, &[count]]);
        previous = output.as_slice();
    }
    outputs
}

fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mut mac = <SimpleHmac<Blake2s256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    Zeroizing::new(mac.finalize().into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PSK: [u8; 32] = [9; 32];
    const EPHEMERALS: [[u8; 32]; 2] = [[0x31; 32], [0x42; 32]];

    fn pairs() -> [(KeyPair, [u8; 32]); 2] {
        [[0x51; 32], [0x62; 32]].map(|secret| (KeyPair::generate(secret), secret))
    }

    /// Makes an end of an independent implementation.
    fn snow(own: &[u8; 32], ephemeral: &'static [u8; 32]) -> snow::Builder<'static> {
        let own: &'static [u8; 32] = Box::leak(Box::new(*own));
        snow::Builder::new(str::from_utf8(PROTOCOL_NAME).unwrap().parse().unwrap())
            .prologue(SESSION)
            .and_then(|builder| builder.psk(2, &PSK))
            .and_then(|builder| builder.local_private_key(own))
            .unwrap()
            .fixed_ephemeral_key_for_testing_only(ephemeral)
    }

    #[test]
    fn an_independent_responder_reads_our_initiator_and_derives_the_same_keys() {
        let [(us, _), (them, their_secret)] = pairs();
        let mut responder = snow(&their_secret, &EPHEMERALS[1]).build_responder().unwrap();
        let (mut first, mut second, mut payload) = (Vec::new(), [0; 200], [0; 200]);

        let initiator = Initiator::write(SESSION, &us, them.public(), EPHEMERALS[0], b"hello", &mut first);
        let read = responder.read_message(&first, &mut payload).unwrap();
        assert_eq!(payload[..read], *b"hello");
        assert_eq!(responder.get_remote_static(), Some(&us.public().as_bytes()[..]));
        let written = responder.write_message(b"welcome", &mut second).unwrap();

        let psk = PresharedKey::from_bytes(PSK);
        let (answer, secrets) = initiator.read(&us, &psk, &second[..written]).unwrap();
        assert_eq!(answer, b"welcome");
        let keys = responder.dangerously_get_raw_split();
        assert_eq!((*secrets.to_responder, *secrets.to_initiator), keys);
    }

    #[test]
    fn an_independent_initiator_reads_our_responder_and_both_write_the_same_bytes() {
        let [(us, our_secret), (them, _)] = pairs();
        let remote: &'static [u8; 32] = Box::leak(Box::new(*them.public().as_bytes()));
        let mut initiator =
            snow(&our_secret, &EPHEMERALS[0]).remote_public_key(remote).unwrap().build_initiator().unwrap();
        let (mut first, mut second, mut payload) = ([0; 200], Vec::new(), [0; 200]);

        let written = initiator.write_message(b"hello", &mut first).unwrap();
        let (mut responder, sealed) = Responder::read_static(SESSION, &them, &first[..written]).unwrap();
        assert_eq!(responder.initiator(), us.public());
        assert_eq!(responder.read_payload(&them, sealed).unwrap(), b"hello");
        let secrets = responder.write(&PresharedKey::from_bytes(PSK), EPHEMERALS[1], b"welcome", &mut second).unwrap();
        let read = initiator.read_message(&second, &mut payload).unwrap();
        assert_eq!(payload[..read], *b"welcome");
        assert_eq!((*secrets.to_responder, *secrets.to_initiator), initiator.dangerously_get_raw_split());

        let mut ours = Vec::new();
        Initiator::write(SESSION, &us, them.public(), EPHEMERALS[0], b"hello", &mut ours);
        assert_eq!(ours, first[..written], "the same ephemeral key makes the same message");
    }

    #[test]
    fn a_point_of_low_order_is_forged() {
        let [(_, _), (them, _)] = pairs();
        assert!(Responder::read_static(SESSION, &them, &[0; 32 + 48]).is_err());
    }
}
