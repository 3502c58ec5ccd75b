//! Unpredictable nonces, from one secret seed.
//!
//! The original uses `rand()` seeded with the time of day, so its next nonce can be predicted. Here a nonce is the
//! first four bytes of SHA-256 over a secret seed and a counter: unpredictable without the seed, and reproducible with
//! it. The wire format allows 32 bits.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::legacy::wire::Nonce;

/// A source of nonces.
pub struct Nonces {
    seed: [u8; 32],
    drawn: u64,
}

impl Nonces {
    /// Makes the source for a secret seed.
    pub fn new(seed: [u8; 32]) -> Self {
        Self { seed, drawn: 0 }
    }

    /// Returns the next nonce; never zero, which means none.
    pub fn draw(&mut self) -> Nonce {
        loop {
            self.drawn += 1;
            let hash = Sha256::new().chain_update(self.seed).chain_update(self.drawn.to_le_bytes()).finalize();
            let nonce = [hash[0], hash[1], hash[2], hash[3]];
            if nonce != [0; 4] {
                return nonce;
            }
        }
    }
}

impl fmt::Debug for Nonces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonces({} drawn)", self.drawn)
    }
}
