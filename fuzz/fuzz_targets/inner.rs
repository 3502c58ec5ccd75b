//! Segmentation and merging of inner packets; see `harness/inner.rs`.
#![no_main]

#[path = "../harness/inner.rs"]
mod inner;

libfuzzer_sys::fuzz_target!(|input: &[u8]| inner::check(input));
