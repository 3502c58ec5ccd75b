//! GRE headers and probes of any datagram; see `harness/gre.rs`.
#![no_main]

#[path = "../harness/gre.rs"]
mod gre;

libfuzzer_sys::fuzz_target!(|input: &[u8]| gre::check(input));
