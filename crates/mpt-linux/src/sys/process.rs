//! Properties of the process (`prctl(2)`, `setrlimit(2)`).

use std::io;

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
