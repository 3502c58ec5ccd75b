//! Arbitrary events at an endpoint; see `harness/endpoint.rs`.
#![no_main]

#[path = "../harness/endpoint.rs"]
mod endpoint;

libfuzzer_sys::fuzz_target!(|input: &[u8]| endpoint::check(input));
