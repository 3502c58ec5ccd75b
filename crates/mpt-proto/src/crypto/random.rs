//! A random generator with key erasure: its state does not reveal what it has returned.

use chacha20poly1305::ChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use zeroize::Zeroizing;

/// Expands a seed with ChaCha20 (RFC 8439). Each draw replaces the key by the first half of a block of key stream and
/// returns bytes of the other half (Bernstein, "Fast-key-erasure random-number generators", 2017). So the memory of
/// this end, if it is read later, yields no ephemeral key of a completed handshake.
pub struct RandomSource {
    key: Zeroizing<[u8; KEY]>,
}

impl RandomSource {
    /// Makes a generator from a seed of a cryptographic random source, which must not be used twice.
    pub fn new(seed: [u8; KEY]) -> Self {
        Self { key: Zeroizing::new(seed) }
    }

    /// Returns at most 32 new bytes, and erases the key that they come from.
    pub fn draw<const N: usize>(&mut self) -> [u8; N] {
        const { assert!(N <= MAX_DRAW) };
        let mut stream = Zeroizing::new([0; KEY + MAX_DRAW]);
        // Each key is used for one stream, so the nonce is always zero. The cipher wipes its own copy of the key.
        let cipher = ChaCha20Poly1305::new((&*self.key).into());
        let tag = cipher.encrypt_inout_detached(&NONCE, &[], stream.as_mut_slice().into());
        tag.expect("a block is far below the limit of 256 GiB");
        self.key.copy_from_slice(&stream[..KEY]);
        let mut drawn = [0; N];
        drawn.copy_from_slice(&stream[KEY..KEY + N]);
        drawn
    }
}

const KEY: usize = 32;
/// The longest draw: the rest of a block of ChaCha20.
const MAX_DRAW: usize = 32;
const NONCE: chacha20poly1305::Nonce = chacha20poly1305::aead::array::Array([0; 12]);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// RFC 8439, appendix A.1, test vector 2: the block with counter 1 under a key of zeros.
    #[test]
    fn a_draw_is_the_second_half_of_the_first_block() {
        let mut source = RandomSource::new([0; 32]);
        let drawn: [u8; 32] = source.draw();
        assert_eq!(source.key[..4], [0x9f, 0x07, 0xe7, 0xbe]);
        assert_eq!(drawn[..4], [0x29, 0xb7, 0x21, 0x76]);
    }

    proptest! {
        /// The state after any draws repeats nothing: it is neither an earlier key nor a drawn value, and the draws
        /// that follow from it return no earlier one.
        #[test]
        fn a_later_state_does_not_lead_back(seed in any::<[u8; 32]>(), draws in 1..50usize) {
            let (mut source, mut spent) = (RandomSource::new(seed), HashSet::from([seed]));
            for _ in 0..draws {
                spent.insert(source.draw());
                prop_assert!(spent.insert(*source.key));
            }
            let last = *source.key;
            let mut captured = RandomSource::new(last);
            spent.remove(&last);
            for _ in 0..draws {
                prop_assert!(!spent.contains(&captured.draw::<32>()));
                prop_assert!(!spent.contains(&*captured.key));
            }
        }
    }

    #[test]
    fn the_key_is_wiped_on_drop() {
        fn is_wiped<T: zeroize::ZeroizeOnDrop>(_: &T) {}
        is_wiped(&RandomSource::new([1; 32]).key);
    }
}
