//! System calls that have no safe face in `nix`. The only unsafe code of the workspace.
//!
//! Each function takes borrowed descriptors and slices, hands the kernel nothing that outlives the call, and returns
//! `io::Result`. No decision is made here.
#![allow(unsafe_code)]

pub mod capability;
mod control;
pub mod epoll;
pub mod filter;
pub mod message;
pub mod option;
pub mod tun;

use std::io;

/// Turns the `-1` of a system call into the error it stands for.
fn check(result: impl Into<i64>) -> io::Result<usize> {
    usize::try_from(result.into()).map_err(|_| io::Error::last_os_error())
}
