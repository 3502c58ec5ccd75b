//! The test vectors of native mode, `docs/protocol-vectors.txt`.
//!
//! `produced` generates the file with the core and fixed keys. `independent` decodes the committed file without code of
//! the core: with other implementations of the cryptography, and with parsers written from `docs/protocol.md`.
//! `memory` looks for their keys in the process, and `dissector` decodes the messages with Wireshark.
//! A change on the wire fails the first test; `MPT_VECTORS_ACCEPT=1` accepts it.
#![allow(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

mod dissector;
mod independent;
#[cfg(target_os = "linux")]
mod memory;
mod packets;
mod produced;
mod text;

use std::path::PathBuf;
use std::{env, fs};

/// The file in the repository.
fn committed() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol-vectors.txt")
}

#[test]
fn the_committed_vectors_are_those_that_the_core_produces() {
    let (produced, file) = (produced::vectors().to_string(), committed());
    if env::var_os("MPT_VECTORS_ACCEPT").is_some() {
        fs::write(&file, &produced).unwrap();
    }
    let known = fs::read_to_string(&file).unwrap_or_default();
    let differs = produced.lines().zip(known.lines()).position(|(new, old)| new != old);
    let line = differs.map_or(produced.lines().count().min(known.lines().count()), |line| line) + 1;
    assert!(
        produced == known,
        "{} differs from line {line} on; if the wire format is meant to change, accept it with MPT_VECTORS_ACCEPT=1",
        file.display()
    );
}
