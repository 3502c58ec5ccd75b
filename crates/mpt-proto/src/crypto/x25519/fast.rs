//! The X25519 of `aws-lc-rs`, which wipes the secret key and its own copy of the shared secret.

use std::sync::Arc;

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use zeroize::Zeroizing;

/// A secret key. All copies share the memory, which is wiped with the last one.
#[derive(Clone)]
pub struct SecretKey(Arc<(Zeroizing<[u8; 32]>, PrivateKey)>);

impl SecretKey {
    pub fn new(secret: &[u8; 32]) -> Self {
        let key = PrivateKey::from_private_key(&X25519, secret).expect("every 32 bytes are a secret key");
        Self(Arc::new((Zeroizing::new(*secret), key)))
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0.0
    }

    pub fn public_key(&self) -> [u8; 32] {
        let key = self.0.1.compute_public_key().expect("every secret key has a public key");
        key.as_ref().try_into().expect("a public key is 32 bytes")
    }

    /// Returns the shared secret, which is zero for a public key of low order.
    pub fn diffie_hellman(&self, peer: &[u8; 32]) -> Zeroizing<[u8; 32]> {
        let mut shared = Zeroizing::new([0; 32]);
        // The library refuses a shared secret of zero, and nothing else.
        let _ = agree(&self.0.1, UnparsedPublicKey::new(&X25519, peer), (), |secret| {
            shared.copy_from_slice(secret);
            Ok(())
        });
        shared
    }
}
