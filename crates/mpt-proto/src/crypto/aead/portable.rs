//! The ciphers of RustCrypto, for targets without a C compiler.

use aes_gcm::Aes256Gcm;
use chacha20poly1305::ChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};

use super::{Cipher, Forged, NONCE, TAG};

// The AES key schedule and hash key take 1 KiB; a key lives for minutes, so the allocation of the box does not matter.
pub enum Key {
    Aes(Box<Aes256Gcm>),
    ChaCha(ChaCha20Poly1305),
}

impl Key {
    pub fn new(cipher: Cipher, secret: &[u8; 32]) -> Self {
        match cipher {
            Cipher::Aes256Gcm => Self::Aes(Box::new(Aes256Gcm::new(secret.into()))),
            Cipher::ChaCha20Poly1305 => Self::ChaCha(ChaCha20Poly1305::new(secret.into())),
        }
    }

    pub fn seal(&self, nonce: [u8; NONCE], associated: &[u8], slot: &mut [u8], tail: &[u8]) {
        let (body, tag) = slot.split_last_chunk_mut::<TAG>().expect("a slot has room for its tag");
        let front = body.len() - tail.len();
        body[front..].copy_from_slice(tail);
        let sealed = match self {
            Self::Aes(key) => key.encrypt_inout_detached(&nonce.into(), associated, body.into()),
            Self::ChaCha(key) => key.encrypt_inout_detached(&nonce.into(), associated, body.into()),
        };
        *tag = sealed.expect("a datagram is far below the limit of 64 GiB").into();
    }

    pub fn open<'a>(
        &self,
        nonce: [u8; NONCE],
        associated: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], Forged> {
        let (body, tag) = sealed.split_last_chunk_mut::<TAG>().ok_or(Forged)?;
        let tag = (&*tag).into();
        let opened = match self {
            Self::Aes(key) => key.decrypt_inout_detached(&nonce.into(), associated, (&mut *body).into(), tag),
            Self::ChaCha(key) => key.decrypt_inout_detached(&nonce.into(), associated, (&mut *body).into(), tag),
        };
        opened.map(|()| body).map_err(|_| Forged)
    }
}
