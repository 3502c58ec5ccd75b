//! Classic BPF programs of sockets (`socket(7)`): filters, which select packets for the receive queue
//! (SO_ATTACH_FILTER), and programs that select the socket of a group with one port (SO_ATTACH_REUSEPORT_CBPF).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc::{self, sock_filter, sock_fprog};

use super::check;

/// Attaches a filter to a socket in place of the previous one. Fails with `EINVAL` if the kernel rejects the program.
pub fn attach(fd: BorrowedFd<'_>, program: &mut [sock_filter]) -> io::Result<()> {
    set(fd, libc::SO_ATTACH_FILTER, program)
}

/// Attaches a program that selects the socket of a group, by any of its sockets. Fails with `EINVAL` if the kernel
/// rejects the program.
pub fn attach_to_group(fd: BorrowedFd<'_>, program: &mut [sock_filter]) -> io::Result<()> {
    set(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

fn set(fd: BorrowedFd<'_>, name: libc::c_int, program: &mut [sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let fprog = sock_fprog { len, filter: program.as_mut_ptr() };
    let level = libc::SOL_SOCKET;
    // SAFETY: the kernel copies one `sock_fprog` and, through it, `len` instructions, which outlive the call.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const fprog).cast(), size_of::<sock_fprog>() as u32)
    })
    .map(drop)
}
