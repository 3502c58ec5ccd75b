//! Static keys: 32 bytes on Curve25519 (RFC 7748), in base64 as `wg genkey`, `wg pubkey` and `wg genpsk` print them.
//!
//! Secrets are wiped on drop and never appear in `Debug` output. The caller passes in randomness.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

use super::x25519::{LOW_ORDER, SecretKey};

/// The identity of an end: a secret key, and the public key derived from it.
#[derive(Clone)]
pub struct KeyPair {
    secret: SecretKey,
    public: PublicKey,
}

impl KeyPair {
    /// Makes a key pair from 32 bytes of a cryptographic random source.
    pub fn generate(random: [u8; 32]) -> Self {
        // RFC 7748 section 5 clamps on use; clamping here makes the text equal to the output of `wg genkey`.
        let secret = SecretKey::new(&Zeroizing::new(curve_scalar(random)));
        let public = PublicKey(secret.public_key());
        Self { secret, public }
    }

    /// Returns the public key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Returns the secret key in base64, for a file that only its owner may read.
    pub fn secret_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(encode(self.secret.as_bytes()))
    }

    /// Returns the secret key, for the derivation of another one.
    pub(super) fn secret_bytes(&self) -> [u8; 32] {
        *self.secret.as_bytes()
    }

    /// Returns the Diffie-Hellman secret shared with `peer`; all zero for the few public keys of low order.
    pub(super) fn diffie_hellman(&self, peer: &PublicKey) -> Zeroizing<[u8; 32]> {
        self.secret.diffie_hellman(&peer.0)
    }
}

impl FromStr for KeyPair {
    type Err = KeyError;
    fn from_str(secret: &str) -> Result<Self, KeyError> {
        Ok(Self::generate(*decode(secret)?))
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair(public {})", self.public)
    }
}

/// The identity of a peer; not secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Makes a key of these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns true for the few keys with which the shared secret is zero for every other key (RFC 7748 section 6.1):
    /// nobody has a private key to them, and everybody can open what is sealed for them.
    pub fn is_low_order(&self) -> bool {
        let mut key = self.0;
        key[31] &= 0x7f;
        LOW_ORDER.contains(&key)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Ok(Self(*decode(text)?))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A symmetric key that two ends share in addition to their key pairs, so that recorded sessions stay secret if
/// Curve25519 is broken. All zero, the default, means none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PresharedKey(Zeroizing<[u8; 32]>);

impl PresharedKey {
    /// Makes a key of these bytes, which should come from a cryptographic random source.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the key in base64, for a file that only its owner may read.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(encode(&self.0))
    }

    pub(super) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for PresharedKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Ok(Self(decode(text)?))
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

/// The reason why a text is not a key. It never contains the text, which may be a secret with a typing error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The text has this many characters, not 44.
    Length(usize),
    /// The text is not base64 (RFC 4648 section 4).
    NotBase64,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(found) => write!(f, "a key is {TEXT} characters of base64, this text has {found}"),
            Self::NotBase64 => f.write_str("a key is 32 bytes in base64 and ends in \"=\", this text is not base64"),
        }
    }
}

impl std::error::Error for KeyError {}

/// Characters of 32 bytes in base64, with padding.
const TEXT: usize = 44;

fn encode(bytes: &[u8; 32]) -> String {
    let mut text = Zeroizing::new([0; TEXT]);
    Base64::encode(bytes, text.as_mut()).expect("32 bytes are 44 characters").to_owned()
}

fn decode(text: &str) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    if text.len() != TEXT {
        return Err(KeyError::Length(text.chars().count()));
    }
    // 44 characters without padding encode 33 bytes.
    let mut bytes = Zeroizing::new([0; 33]);
    let decoded = Base64::decode(text, bytes.as_mut()).map_err(|_| KeyError::NotBase64)?;
    decoded.try_into().map(Zeroizing::new).map_err(|_| KeyError::NotBase64)
}

fn curve_scalar(mut bytes: [u8; 32]) -> [u8; 32] {
    bytes[0] &= 0b1111_1000;
    bytes[31] = bytes[31] & 0b0111_1111 | 0b0100_0000;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7748 section 6.1: Alice's keys.
    const ALICE: [u8; 32] = [
        0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45, 0xdf, 0x4c,
        0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
    ];
    const ALICE_PUBLIC: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

    #[test]
    fn the_public_key_follows_from_the_secret_as_in_rfc_7748() {
        assert_eq!(KeyPair::generate(ALICE).public().to_string(), ALICE_PUBLIC);
    }

    #[test]
    fn keys_parse_to_what_was_formatted() {
        let pair = KeyPair::generate([0xff; 32]);
        let read: KeyPair = pair.secret_base64().parse().unwrap();
        assert_eq!(read.public(), pair.public());
        assert_eq!(read.secret_base64(), pair.secret_base64());
        assert_eq!(pair.public().to_string().parse(), Ok(*pair.public()));

        let psk = PresharedKey::from_bytes([0xa5; 32]);
        let read: PresharedKey = psk.to_base64().parse().unwrap();
        assert_eq!(read.as_bytes(), psk.as_bytes());
    }

    #[test]
    fn an_invalid_key_reports_the_reason() {
        let read = |text: &str| text.parse::<PublicKey>().unwrap_err();
        assert_eq!(read(&ALICE_PUBLIC[1..]), KeyError::Length(43));
        assert_eq!(read(&format!("{ALICE_PUBLIC}\n")), KeyError::Length(45));
        assert_eq!(read(&ALICE_PUBLIC.replace('h', "!")), KeyError::NotBase64);
        assert_eq!(read(&ALICE_PUBLIC.replace('=', "A")), KeyError::NotBase64, "33 bytes");
        assert_eq!(read(&ALICE_PUBLIC.replace("mo=", "mp=")), KeyError::NotBase64, "bits beyond the last byte");
        assert_eq!(read(&"é".repeat(22)), KeyError::NotBase64);
        assert_eq!(KeyError::Length(43).to_string(), "a key is 44 characters of base64, this text has 43");
    }

    #[test]
    fn keys_of_low_order_are_recognized() {
        for key in LOW_ORDER {
            assert!(PublicKey::from_bytes(key).is_low_order(), "{key:02x?}");
            let mut with_high_bit = key;
            with_high_bit[31] |= 0x80;
            assert!(PublicKey::from_bytes(with_high_bit).is_low_order(), "RFC 7748 section 5 ignores the last bit");
        }
        for seed in 0..20 {
            assert!(!KeyPair::generate([seed; 32]).public().is_low_order());
        }
    }

    #[test]
    fn secrets_are_wiped_on_drop() {
        fn is_wiped<T: zeroize::ZeroizeOnDrop>(_: &T) {}
        let (pair, psk) = (KeyPair::generate(ALICE), PresharedKey::from_bytes([1; 32]));
        is_wiped(&psk.0);
        is_wiped(&pair.secret_base64());
        is_wiped(&pair.diffie_hellman(pair.public()));
    }

    #[test]
    fn debug_output_hides_secrets() {
        let pair = KeyPair::generate(ALICE);
        assert_eq!(format!("{pair:?}"), format!("KeyPair(public {ALICE_PUBLIC})"));
        assert_eq!(format!("{:?}", PresharedKey::from_bytes([1; 32])), "PresharedKey(..)");
    }
}
