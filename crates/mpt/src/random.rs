//! Random bytes of the operating system, from which keys and seeds are made.

use mpt_proto::crypto::keys::KeyPair;
use zeroize::Zeroizing;

use crate::Failure;

/// Returns random bytes. The kernel renews their source after a copy of the virtual machine.
///
/// # Errors
/// The system has none.
pub fn bytes<const N: usize>() -> Result<Zeroizing<[u8; N]>, Failure> {
    let mut bytes = Zeroizing::new([0; N]);
    match getrandom::fill(bytes.as_mut()) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Failure::new(format!("cannot get random bytes from the system: {error}"))),
    }
}

/// Generates a key pair.
///
/// # Errors
/// The system has no random bytes.
pub fn key_pair() -> Result<KeyPair, Failure> {
    Ok(KeyPair::generate(*bytes()?))
}
