//! `epoll_pwait2` (Linux 5.11): its timeout has nanoseconds, that of `epoll_wait` milliseconds.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use nix::libc;
use nix::sys::epoll::EpollEvent;

use super::check;

/// The kernel's `struct __kernel_timespec`, the same on 32 and 64 bits.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

/// Waits for events for at most `timeout`, and returns the number of events written to the front of `events`. Returns
/// `ENOSYS` on kernels before 5.11.
pub fn wait(epoll: BorrowedFd<'_>, events: &mut [EpollEvent], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(|t| Timespec {
        seconds: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        nanos: i64::from(t.subsec_nanos()),
    });
    let timeout: *const Timespec = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the kernel writes at most `events.len()` events to `events`; `EpollEvent` is a transparent wrapper of
    // `epoll_event` and every bit pattern of that is valid. `timeout` is null or points to a value that outlives the
    // call. With a null signal mask the kernel ignores its size.
    check(unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as libc::c_int,
            timeout,
            ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    })
}
