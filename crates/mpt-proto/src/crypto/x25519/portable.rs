//! The X25519 of `x25519-dalek`, for targets without a C compiler.

use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// A secret key.
#[derive(Clone)]
pub struct SecretKey(StaticSecret);

impl SecretKey {
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(StaticSecret::from(*secret))
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    pub fn public_key(&self) -> [u8; 32] {
        PublicKey::from(&self.0).to_bytes()
    }

    /// Returns the shared secret, which is zero for a public key of low order.
    pub fn diffie_hellman(&self, peer: &[u8; 32]) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.diffie_hellman(&PublicKey::from(*peer)).to_bytes())
    }
}
