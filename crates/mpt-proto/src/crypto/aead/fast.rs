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

    pub fn seal(&self, nonce: [u8; NONCE], associated: &[u8], body: &mut [u8]) -> [u8; TAG] {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(associated), body);
        tag.expect("a datagram is far below the limit of 64 GiB").as_ref().try_into().expect("both tags are 16 bytes")
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
