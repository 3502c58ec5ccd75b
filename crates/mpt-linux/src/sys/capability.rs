//! Capabilities of the calling thread (`capabilities(7)`).

use std::io;

use nix::libc;

use super::check;

/// Capability sets, one bit for each capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sets {
    /// Capabilities in effect.
    pub effective: u64,
    /// Capabilities that the thread may make effective.
    pub permitted: u64,
    /// Capabilities that executed programs may inherit.
    pub inheritable: u64,
}

/// `_LINUX_CAPABILITY_VERSION_3`: 64 bits in two halves.
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Returns the sets of the calling thread.
pub fn get() -> io::Result<Sets> {
    let (mut header, mut halves) = (Header { version: VERSION_3, pid: 0 }, [Half::default(); 2]);
    // SAFETY: the kernel reads and writes one header and, for this version, writes two halves, which outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) })?;
    let join = |of: fn(&Half) -> u32| u64::from(of(&halves[1])) << 32 | u64::from(of(&halves[0]));
    Ok(Sets {
        effective: join(|h| h.effective),
        permitted: join(|h| h.permitted),
        inheritable: join(|h| h.inheritable),
    })
}

/// Sets the sets of the calling thread, which can only shrink.
pub fn set(sets: Sets) -> io::Result<()> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let half = |shift: u32| Half {
        effective: (sets.effective >> shift) as u32,
        permitted: (sets.permitted >> shift) as u32,
        inheritable: (sets.inheritable >> shift) as u32,
    };
    let halves = [half(0), half(32)];
    // SAFETY: the kernel reads and writes one header and, for this version, reads two halves, which outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) }).map(drop)
}

/// Returns true if the capability is in the bounding set; an error beyond the kernel's last capability.
pub fn is_in_bounding_set(capability: u32) -> io::Result<bool> {
    // SAFETY: this operation takes a number and touches no memory.
    check(unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(capability), 0, 0, 0) }).map(|has| has == 1)
}

/// Removes the capability from the bounding set, so that no executed program can gain it. Needs CAP_SETPCAP.
pub fn drop_from_bounding_set(capability: u32) -> io::Result<()> {
    // SAFETY: this operation takes a number and touches no memory.
    check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) }).map(drop)
}

/// Sets `no_new_privs`: executed programs gain no privileges.
pub fn set_no_new_privs() -> io::Result<()> {
    // SAFETY: this operation takes numbers and touches no memory.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}

/// Keeps the permitted capabilities of the calling thread when its user IDs change from root to others.
pub fn keep_over_user_change() -> io::Result<()> {
    // SAFETY: this operation takes numbers and touches no memory.
    check(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) }).map(drop)
}

/// Passes the capability on to programs that the calling thread executes. It must be permitted and inheritable.
pub fn raise_ambient(capability: u32) -> io::Result<()> {
    let raise = libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong;
    // SAFETY: this operation takes numbers and touches no memory.
    check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, libc::c_ulong::from(capability), 0, 0) }).map(drop)
}

/// Passes no capability on to programs that the calling thread executes.
pub fn clear_ambient() -> io::Result<()> {
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong;
    // SAFETY: this operation takes numbers and touches no memory.
    check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, clear, 0, 0, 0) }).map(drop)
}
