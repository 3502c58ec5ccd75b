//! Any frames of an authenticated peer; see `harness/malicious_peer.rs`.
#![no_main]

#[path = "../harness/attacker.rs"]
mod attacker;
#[path = "../harness/malicious_peer.rs"]
mod malicious_peer;

libfuzzer_sys::fuzz_target!(|input: &[u8]| malicious_peer::check(input));
