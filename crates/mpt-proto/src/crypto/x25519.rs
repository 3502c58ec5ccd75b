//! X25519 (RFC 7748): the Diffie-Hellman of handshakes and rekeys.
//!
//! There are two implementations: `aws-lc-rs` on targets with a C compiler, and `x25519-dalek` on wasm, so that the
//! core builds there, and with the feature `crypto-portable`; a test compares their output. A server of many sites
//! spends most of a handshake here. Per operation, best of three repetitions of 2,000 on an EPYC of 2024 whose other
//! processor was busy:
//!
//! ```text
//!                        aws-lc-rs 1.19   x25519-dalek 3
//! Diffie-Hellman         49 us            106 us
//! public key             11 us            33 us
//! ```
//!
//! Both wipe the secret key when it is dropped.

#[cfg(all(not(target_family = "wasm"), any(not(feature = "crypto-portable"), test)))]
mod fast;
#[cfg(any(target_family = "wasm", feature = "crypto-portable", test))]
mod portable;

#[cfg(not(any(target_family = "wasm", feature = "crypto-portable")))]
pub use fast::SecretKey;
#[cfg(any(target_family = "wasm", feature = "crypto-portable"))]
pub use portable::SecretKey;

/// The public keys of low order, with the last bit clear, which RFC 7748 section 5 ignores: 0, 1, the two of order 8,
/// p - 1, p and p + 1, for the prime p = 2^255 - 19. With them the shared secret is zero for every secret key, whose
/// scalar is a multiple of the cofactor.
pub const LOW_ORDER: [[u8; 32]; 7] = [
    [0; 32],
    field_element(1, 0, 0),
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09,
        0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef, 0x5b, 0x04, 0x44,
        0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57,
    ],
    field_element(0xec, 0xff, 0x7f),
    field_element(0xed, 0xff, 0x7f),
    field_element(0xee, 0xff, 0x7f),
];

const fn field_element(first: u8, middle: u8, last: u8) -> [u8; 32] {
    let mut bytes = [middle; 32];
    (bytes[0], bytes[31]) = (first, last);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LOW_ORDER, fast, field_element, portable};

    fn hex(text: &str) -> [u8; 32] {
        std::array::from_fn(|i| u8::from_str_radix(&text[i * 2..i * 2 + 2], 16).unwrap())
    }

    #[test]
    fn a_shared_secret_is_that_of_rfc_7748_section_5_2() {
        let scalar = hex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4");
        let point = hex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c");
        let expected = hex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552");
        assert_eq!(*fast::SecretKey::new(&scalar).diffie_hellman(&point), expected);
        assert_eq!(*portable::SecretKey::new(&scalar).diffie_hellman(&point), expected);
    }

    #[test]
    fn with_a_key_of_low_order_the_shared_secret_is_zero() {
        for key in LOW_ORDER {
            assert_eq!(*fast::SecretKey::new(&[7; 32]).diffie_hellman(&key), [0; 32], "{key:02x?}");
            assert_eq!(*portable::SecretKey::new(&[7; 32]).diffie_hellman(&key), [0; 32], "{key:02x?}");
        }
    }

    /// Of the encodings of 0 to 18 above the prime, the only ones that are not canonical, two are in the table.
    #[test]
    fn no_other_encoding_of_a_small_number_has_low_order() {
        for number in 0..=18 {
            let key = field_element(0xed + number, 0xff, 0x7f);
            let is_zero = *portable::SecretKey::new(&[7; 32]).diffie_hellman(&key) == [0; 32];
            assert_eq!(LOW_ORDER.contains(&key), is_zero, "{number}");
        }
    }

    proptest! {
        #[test]
        fn both_implementations_give_the_same_bytes(secret: [u8; 32], peer: [u8; 32]) {
            let (fast, portable) = (fast::SecretKey::new(&secret), portable::SecretKey::new(&secret));
            prop_assert_eq!(fast.as_bytes(), portable.as_bytes());
            prop_assert_eq!(fast.public_key(), portable.public_key());
            prop_assert_eq!(fast.diffie_hellman(&peer), portable.diffie_hellman(&peer));
        }
    }
}
