//! Descriptors that the program which started this process left open.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc::{self, c_int};

use super::check;

/// Takes the descriptors 3, 4 and so on, `count` of them, once in the life of a process. A program that this process
/// runs does not get them.
pub fn take(count: c_int) -> io::Result<Vec<OwnedFd>> {
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let close_on_exec = |number: c_int| {
        // SAFETY: this operation takes numbers and touches no memory; it fails for a number that is not open.
        check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
        // SAFETY: the descriptor is open. Nothing else owns it: the caller of this process passed it, and this function
        // continues only once.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    };
    (FIRST..FIRST.saturating_add(count)).map(close_on_exec).collect()
}

static TAKEN: AtomicBool = AtomicBool::new(false);
/// `SD_LISTEN_FDS_START`: the numbers before it are the standard streams.
const FIRST: c_int = 3;
