//! Code shared by several tests.
#![allow(
    dead_code,
    unused_imports,
    unsafe_code,
    clippy::unwrap_used,
    reason = "each test uses a part; an allocator is unsafe"
)]

pub mod heap;
pub mod native;
pub mod wire;
