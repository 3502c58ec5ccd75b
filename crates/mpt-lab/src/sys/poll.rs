//! epoll with a timeout in nanoseconds; nix's `Epoll` has milliseconds.

use nix::{
    errno::Errno,
    libc,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
};
use std::{os::fd::AsFd, ptr, time::Duration};

/// The kernel's `struct __kernel_timespec`, the same on 32 and 64 bits.
#[repr(C)]
struct KernelTimespec {
    seconds: i64,
    nanoseconds: i64,
}

/// Waits until one of several file descriptors is readable.
pub struct Poller {
    epoll: Epoll,
    events: Vec<libc::epoll_event>,
}

impl Poller {
    /// Creates a poller without file descriptors.
    pub fn new() -> nix::Result<Self> {
        Ok(Self { epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?, events: Vec::new() })
    }

    /// Watches `fd`; [`Poller::wait`] reports it as `key`.
    pub fn add(&mut self, fd: impl AsFd, key: usize) -> nix::Result<()> {
        self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, key as u64))?;
        self.events.push(libc::epoll_event { events: 0, u64: 0 });
        Ok(())
    }

    /// Waits until a file descriptor is readable or `timeout` expires, and lists the keys of the readable ones.
    pub fn wait(&mut self, timeout: Duration, ready: &mut Vec<usize>) -> nix::Result<()> {
        ready.clear();
        let timeout = KernelTimespec { seconds: timeout.as_secs() as i64, nanoseconds: timeout.subsec_nanos().into() };
        // SAFETY: `events` has space for the number of entries given, `timeout` outlives the call, a null mask of
        // length 0 means none. This is the raw system call because glibc has a function for it only since 2.35.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                std::os::fd::AsRawFd::as_raw_fd(&self.epoll.0),
                self.events.as_mut_ptr(),
                self.events.len() as libc::c_int,
                &raw const timeout,
                ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        };
        match Errno::result(count) {
            Ok(count) => ready.extend(self.events[..count as usize].iter().map(|event| event.u64 as usize)),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
