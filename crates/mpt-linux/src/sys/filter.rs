//! Socket filters (`socket(7)`, SO_ATTACH_FILTER): classic BPF programs that select packets for the receive queue.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc::{self, sock_filter, sock_fprog};

use super::check;

/// Attaches a filter to a socket in place of the previous one. Fails with `EINVAL` if the kernel rejects the program.
pub fn attach(fd: BorrowedFd<'_>, program: &mut [sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let fprog = sock_fprog { len, filter: program.as_mut_ptr() };
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the kernel copies one `sock_fprog` and, through it, `len` instructions, which outlive the call.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const fprog).cast(), size_of::<sock_fprog>() as u32)
    })
    .map(drop)
}
