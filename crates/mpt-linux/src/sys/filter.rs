//! Filters of sockets (`socket(7)`, SO_ATTACH_FILTER): programs of classic BPF that say what is put into the receive queue.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc::{self, sock_filter, sock_fprog};

use super::check;

/// Puts a filter on a socket, in place of the one before. Fails with `EINVAL` when the kernel does not take the program.
pub fn attach(fd: BorrowedFd<'_>, program: &mut [sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let fprog = sock_fprog { len, filter: program.as_mut_ptr() };
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the kernel reads one `sock_fprog` and, through it, `len` instructions, which outlive the call; it copies them.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const fprog).cast(), size_of::<sock_fprog>() as u32)
    })
    .map(drop)
}
