//! The ciphers of `aws-lc-rs`, which also wipes the key schedule when it is freed.

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use super::{Cipher, Forged, NONCE, TAG};

pub struct Key(LessSafeKey);

impl Key {
    pub fn new(cipher: Cipher, secret: &[u8; 32]) -> Self {
        let algorithm = match cipher {
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        Self(LessSafeKey::new(UnboundKey::new(algorithm, secret).expect("both ciphers take 32 bytes")))
    }

    pub fn seal(&self, nonce: [u8; NONCE], associated: &[u8], slot: &mut [u8], tail: &[u8]) {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let (front, rest) = slot.split_at_mut(slot.len() - tail.len() - TAG);
        let sealed = self.0.seal_in_place_scatter(nonce, Aad::from(associated), front, tail, rest);
        sealed.expect("a datagram is far below the limit of 64 GiB");
    }

    pub fn open<'a>(
        &self,
        nonce: [u8; NONCE],
        associated: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], Forged> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0.open_in_place(nonce, Aad::from(associated), sealed).map_err(|_| Forged)
    }
}
