//! Socket options without a wrapper in `nix`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc::{self, c_int};

use super::check;

/// Sets an option with an `int` value.
pub fn set(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes at `value`, which is that long and outlives the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
}
