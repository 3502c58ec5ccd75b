//! System calls without a safe wrapper in `nix`. The only unsafe code of the workspace.
//!
//! Each function takes borrowed descriptors and slices, passes the kernel no pointer that outlives the call, and
//! returns `io::Result`. It makes no decisions.
#![allow(unsafe_code)]

pub mod capability;
pub mod clock;
mod control;
pub mod epoll;
pub mod filter;
pub mod inherited;
pub mod message;
pub mod option;
pub mod process;
pub mod tun;

use std::io;

/// Converts the `-1` of a system call to the last OS error.
fn check(result: impl Into<i64>) -> io::Result<usize> {
    usize::try_from(result.into()).map_err(|_| io::Error::last_os_error())
}
