//! `mpt key`: keys in the format of `wg genkey`, `wg pubkey` and `wg genpsk`.
//!
//! Private and preshared keys are written to stdout only. Our copies are wiped.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;

use mpt_proto::crypto::keys::{KeyPair, PresharedKey};
use zeroize::Zeroizing;

use super::arguments::KeyCommand;
use crate::Failure;
use crate::output::print;
use crate::random;
use crate::secrets::LoosePermissions;

/// Executes the command.
pub fn run(command: KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::New => print_secret(&random::key_pair()?.secret_base64()),
        KeyCommand::Psk => print_secret(&new_psk()?.to_base64()),
        KeyCommand::Public => print(format_args!("{}\n", public_of(&mut io::stdin())?)),
    }
}

/// Generates a preshared key.
pub fn new_psk() -> Result<PresharedKey, Failure> {
    Ok(PresharedKey::from_bytes(*random::bytes()?))
}

/// Returns the public key of the private key in `from`.
fn public_of(from: &mut impl io::Read) -> Result<String, Failure> {
    // If it grew, an unwiped copy would be left behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * INPUT as usize));
    from.take(INPUT).read_to_string(&mut text).map_err(|error| no_key(&error.to_string()))?;
    let pair: KeyPair = text.trim().parse().map_err(|error| no_key(&format!("{error}")))?;
    Ok(pair.public().to_string())
}

fn no_key(why: &str) -> Failure {
    Failure::new(format!("there is no private key on stdin: {why}"))
        .hint("mpt key public < FILE, or mpt key new | mpt key public")
}

fn print_secret(secret: &str) -> Result<(), Failure> {
    if let Some(loose) = loose_stdout() {
        eprintln!("warning: the file {loose}\n  hint: chmod 600 it before use");
    }
    print(format_args!("{secret}\n"))
}

/// Returns the permissions of stdout if it is a file that others may read.
fn loose_stdout() -> Option<LoosePermissions> {
    let file = File::from(io::stdout().as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok()?;
    metadata.is_file().then(|| LoosePermissions::of(metadata.permissions().mode() & 0o7777)).flatten()
}

/// Maximum bytes to read from stdin. A key has 45; this is enough to detect that it is something else.
const INPUT: u64 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_key_follows_from_the_private_one_as_in_rfc_7748() {
        let mut alice = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\n".as_bytes();
        assert_eq!(public_of(&mut alice).unwrap(), "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=");
    }

    #[test]
    fn an_invalid_key_is_not_repeated() {
        let message = |mut text: &[u8]| public_of(&mut text).unwrap_err().what;
        let short = "there is no private key on stdin: a key is 44 characters of base64, this text has 6";
        assert_eq!(message(b"secret"), short);
        assert!(message(b"\xff").contains("UTF-8"));
    }

    #[test]
    fn generated_keys_differ() {
        assert_ne!(random::key_pair().unwrap().public(), random::key_pair().unwrap().public());
        assert_ne!(new_psk().unwrap().to_base64(), new_psk().unwrap().to_base64());
    }
}
