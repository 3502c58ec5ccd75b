//! Properties of the process (`prctl(2)`, `setrlimit(2)`).

use std::io;
use std::ptr;

use nix::libc;

use super::check;

/// Makes the process not dumpable: no core dump, and no access by `ptrace(2)` without CAP_SYS_PTRACE.
pub fn set_not_dumpable() -> io::Result<()> {
    // SAFETY: this operation takes numbers and touches no memory.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }).map(drop)
}

/// Sets the largest size of a core dump to zero, also for programs that this process runs.
pub fn set_no_core() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel reads one limit, which outlives the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) }).map(drop)
}

/// Sets all user and group IDs of the calling thread, and removes its supplementary groups.
///
/// The wrappers of the C library would change all threads.
pub fn set_ids(user: u32, group: u32) -> io::Result<()> {
    let (user, group) = (libc::c_ulong::from(user), libc::c_ulong::from(group));
    // SAFETY: with a length of zero the kernel does not read the list.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0_usize, ptr::null::<libc::gid_t>()) })?;
    // SAFETY: these take numbers and touch no memory.
    check(unsafe { libc::syscall(libc::SYS_setresgid, group, group, group) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }).map(drop)
}
