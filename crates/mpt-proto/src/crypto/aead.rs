//! Authenticated encryption of one datagram (RFC 5116), in place and without allocation.
//!
//! There are two ciphers, both with 256-bit keys, 96-bit nonces and 128-bit tags: AES-256-GCM (NIST SP 800-38D) if both
//! ends have AES in hardware, ChaCha20-Poly1305 (RFC 8439) otherwise. Both have two implementations: `aws-lc-rs` on
//! targets with a C compiler, and RustCrypto on wasm, so that the core builds there, and with the feature
//! `crypto-portable`; a test compares their output. On the same processor RustCrypto takes three times as long
//! (`speed_of_the_ciphers` prints the table).
//!
//! `aws-lc-rs` was chosen over `ring` for its speed, per 1400-byte packet with 12 bytes of associated data on an EPYC
//! of 2024 (VAES, AVX-512), best of seven repetitions of 40,000:
//!
//! ```text
//!                      aws-lc-rs 1.19          ring 0.17.14
//! AES-256-GCM          seal 182 ns, open 188   seal 249 ns, open 250
//! ChaCha20-Poly1305    seal 698 ns, open 743   seal 707 ns, open 746
//! AES-256-GCM, 64 B    seal  80 ns, open 105   seal  74 ns, open  83
//! ```
//!
//! It also wipes the expanded key when a key is dropped, which `ring` does not.
//!
//! A nonce must be used once per key. This module does not enforce that; [`crate::wire::native`] proves it.

#[cfg(all(not(target_family = "wasm"), any(not(feature = "crypto-portable"), test)))]
mod fast;
#[cfg(any(target_family = "wasm", feature = "crypto-portable", test))]
mod portable;

use std::fmt;

pub use crate::wire::native::{NONCE, TAG};

#[cfg(not(any(target_family = "wasm", feature = "crypto-portable")))]
use fast as backend;
#[cfg(any(target_family = "wasm", feature = "crypto-portable"))]
use portable as backend;

/// The cipher that seals the datagrams of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES-256 in Galois/counter mode: four times as fast as the other on a CPU with AES, slow and not constant-time
    /// without.
    Aes256Gcm,
    /// ChaCha20 and Poly1305: constant time and fast on every CPU.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Returns the cipher for a CPU with or without AES instructions.
    pub const fn preferred(has_aes: bool) -> Self {
        if has_aes { Self::Aes256Gcm } else { Self::ChaCha20Poly1305 }
    }

    /// Returns the name that `status` and the configuration use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Returns how many 16-byte blocks may be sealed under one key before a rekey. For AES this is half the limit of
    /// RFC 9001 appendix B.1.1 for an advantage of 2^-57: 2^28 packets of 2^11 bytes, so 2^35 blocks (550 GB). For
    /// ChaCha20 it is WireGuard's 2^60 messages (whitepaper section 6.1), counted in blocks, which is stricter.
    pub const fn rekey_after_blocks(self) -> u64 {
        match self {
            Self::Aes256Gcm => 1 << 34,
            Self::ChaCha20Poly1305 => 1 << 60,
        }
    }

    /// Returns how many blocks may be sealed under one key in total: twice [`Cipher::rekey_after_blocks`].
    pub const fn reject_after_blocks(self) -> u64 {
        self.rekey_after_blocks() * 2
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The datagram was not sealed with this key, nonce and associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// The expanded key of one direction of one session. Wiped on drop.
pub struct AeadKey {
    cipher: Cipher,
    inner: backend::Key,
}

impl AeadKey {
    /// Expands a secret; the caller wipes its copy.
    pub fn new(cipher: Cipher, secret: &[u8; 32]) -> Self {
        Self { cipher, inner: backend::Key::new(cipher, secret) }
    }

    /// Returns the cipher of this key.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Seals a text into `slot`, followed by its tag: first what `slot` contains, in place, then `tail`, which AES
    /// reads where it is. Panics if `slot` has no room for `tail` and the tag.
    pub fn seal(&self, nonce: [u8; NONCE], associated: &[u8], slot: &mut [u8], tail: &[u8]) {
        match self.cipher {
            Cipher::Aes256Gcm => self.inner.seal(nonce, associated, slot, tail),
            // aws-lc-rs takes four times as long for a text of ChaCha20-Poly1305 that is elsewhere.
            Cipher::ChaCha20Poly1305 => {
                let end = slot.len() - TAG;
                slot[end - tail.len()..end].copy_from_slice(tail);
                self.inner.seal(nonce, associated, slot, &[]);
            }
        }
    }

    /// Opens `sealed`, a body and its tag, in place and returns the body. After a failure its content is undefined.
    pub fn open<'a>(
        &self,
        nonce: [u8; NONCE],
        associated: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], Forged> {
        self.inner.open(nonce, associated, sealed)
    }
}

impl fmt::Debug for AeadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, ..)", self.cipher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [Cipher; 2] = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    #[test]
    fn chacha20_poly1305_seals_the_example_of_rfc_8439_section_2_8_2() {
        let key: [u8; 32] = std::array::from_fn(|i| 0x80 + i as u8);
        let nonce = hex("070000004041424344454647").try_into().unwrap();
        let text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
                     sunscreen would be it.";
        let mut slot = [text.as_slice(), &[0; TAG]].concat();
        AeadKey::new(Cipher::ChaCha20Poly1305, &key).seal(nonce, &hex("50515253c0c1c2c3c4c5c6c7"), &mut slot, &[]);
        assert_eq!(slot[..16], hex("d31a8d34648e60db7b86afbc53ef7ec2"));
        assert_eq!(slot[text.len()..], hex("1ae10b594f09e26a7e902ecbd0600691"));
    }

    #[test]
    fn aes_256_gcm_seals_the_zero_block_of_the_gcm_specification() {
        // McGrew and Viega, "The Galois/Counter Mode of Operation", test case 14.
        let mut slot = [0; 16 + TAG];
        AeadKey::new(Cipher::Aes256Gcm, &[0; 32]).seal([0; NONCE], &[], &mut slot, &[]);
        assert_eq!(slot[..16], hex("cea7403d4d606b6e074ec5d3baf39d18"));
        assert_eq!(slot[16..], hex("d0d1c8a799996bf0265b98b5d48ab919"));
    }

    proptest! {
        #[test]
        fn both_implementations_give_the_same_bytes(
            secret: [u8; 32], nonce: [u8; NONCE], associated: Vec<u8>, body in prop::collection::vec(any::<u8>(), 0..2000),
            cut: prop::sample::Index,
        ) {
            for cipher in BOTH {
                let mut sealed = [&body[..], &[0; TAG]].concat();
                let (front, tail) = body.split_at(cut.index(body.len() + 1));
                let mut ours = [front, &vec![0; tail.len() + TAG]].concat();
                let mut theirs = ours.clone();
                fast::Key::new(cipher, &secret).seal(nonce, &associated, &mut sealed, &[]);
                fast::Key::new(cipher, &secret).seal(nonce, &associated, &mut ours, tail);
                portable::Key::new(cipher, &secret).seal(nonce, &associated, &mut theirs, tail);
                prop_assert_eq!(&ours, &sealed);
                prop_assert_eq!(&theirs, &sealed);

                let mut copy = sealed.clone();
                prop_assert_eq!(fast::Key::new(cipher, &secret).open(nonce, &associated, &mut copy), Ok(&mut body.clone()[..]));
                let opened = portable::Key::new(cipher, &secret).open(nonce, &associated, &mut sealed);
                prop_assert_eq!(opened, Ok(&mut body.clone()[..]));
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        for cipher in BOTH {
            let key = AeadKey::new(cipher, &[7; 32]);
            let mut slot = *b"a short message and room for tag";
            key.seal([1; NONCE], b"header", &mut slot, &[]);
            for bit in 0..slot.len() * 8 {
                let mut flipped = slot;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(key.open([1; NONCE], b"header", &mut flipped), Err(Forged), "bit {bit}");
            }
            assert_eq!(key.open([1; NONCE], b"Header", &mut slot.clone()), Err(Forged));
            assert_eq!(key.open([2; NONCE], b"header", &mut slot.clone()), Err(Forged));
            assert!(key.open([1; NONCE], b"header", &mut slot).is_ok());
        }
    }

    #[test]
    fn a_datagram_shorter_than_a_tag_is_forged() {
        for cipher in BOTH {
            for len in 0..TAG {
                assert_eq!(AeadKey::new(cipher, &[7; 32]).open([0; NONCE], &[], &mut vec![0; len]), Err(Forged));
                assert_eq!(portable::Key::new(cipher, &[7; 32]).open([0; NONCE], &[], &mut vec![0; len]), Err(Forged));
            }
        }
    }

    /// The best of seven repetitions, as other programs only add to it.
    #[test]
    #[ignore = "prints times: cargo test --release -p mpt-proto --lib -- --ignored --nocapture speed_of_the_ciphers"]
    #[allow(clippy::disallowed_methods, clippy::disallowed_types)]
    fn speed_of_the_ciphers() {
        let time = |run: &mut dyn FnMut()| {
            let repetitions = (0..7).map(|_| {
                let start = std::time::Instant::now();
                (0..40_000).for_each(|_| run());
                start.elapsed().as_nanos() / 40_000
            });
            repetitions.min().unwrap()
        };
        println!("bytes  cipher              aws-lc-rs: seal, open ns   RustCrypto: seal, open ns");
        for (len, cipher) in [1_400, 64].into_iter().flat_map(|len| BOTH.map(|cipher| (len, cipher))) {
            let (nonce, header) = ([1; NONCE], [2; 12]);
            let (ours, theirs) = (fast::Key::new(cipher, &[7; 32]), portable::Key::new(cipher, &[7; 32]));
            let mut slot = vec![0; len + TAG];
            let [seal, seal_portable] = [
                time(&mut || ours.seal(nonce, &header, &mut slot, &[])),
                time(&mut || theirs.seal(nonce, &header, &mut slot, &[])),
            ];
            let sealed = slot.clone();
            // Copies the datagram before each, which takes some ten nanoseconds.
            let mut open = |key: &dyn Fn(&mut [u8]) -> bool| {
                time(&mut || {
                    slot.copy_from_slice(&sealed);
                    assert!(key(&mut slot));
                })
            };
            let opened = open(&|slot| ours.open(nonce, &header, slot).is_ok());
            let opened_portable = open(&|slot| theirs.open(nonce, &header, slot).is_ok());
            let name = cipher.name();
            println!("{len:>5}  {name:<18} {seal:>10} {opened:>8} {seal_portable:>20} {opened_portable:>8}");
        }
    }

    #[test]
    fn debug_output_hides_the_key() {
        assert_eq!(format!("{:?}", AeadKey::new(Cipher::Aes256Gcm, &[7; 32])), "Key(aes-256-gcm, ..)");
    }
}
