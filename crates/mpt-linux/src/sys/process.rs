//! Properties of the process (`prctl(2)`, `setrlimit(2)`), and its memory (`madvise(2)`).

use std::ffi::{c_int, c_void};
use std::{io, ptr, slice};

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

/// Unmaps the pages of the program and of its libraries that nothing writes to: code and constants.
pub fn unmap_program() {
    // SAFETY: the function has the signature that the C library calls, and does not use the pointer.
    unsafe { libc::dl_iterate_phdr(Some(unmap_segments), ptr::null_mut()) };
}

/// # Safety
/// `info` describes a loaded object, as that of `dl_iterate_phdr(3)` does.
unsafe extern "C" fn unmap_segments(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees that it is valid.
    let info = unsafe { &*info };
    // SAFETY: the object has this number of headers there, and remains loaded during the call.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    // SAFETY: this takes a number and touches no memory.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4_096);
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0) {
        let from = info.dlpi_addr as usize + header.p_vaddr as usize;
        let (first, end) = (from.next_multiple_of(page), (from + header.p_memsz as usize) / page * page);
        // SAFETY: the pages were mapped from a file and never written to, so the next access reads them from the file
        // again. Those of the kernel's own object are not from a file: the kernel refuses, or maps them again.
        unsafe { libc::madvise(first as *mut c_void, end.saturating_sub(first), libc::MADV_DONTNEED) };
    }
    0
}
