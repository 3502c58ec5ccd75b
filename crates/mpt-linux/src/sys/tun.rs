//! The ioctls of `/dev/net/tun` (`linux/if_tun.h`).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc::{self, c_int, c_short, c_uint, c_ulong};

use super::check;

/// Attaches a freshly opened `/dev/net/tun` to the device `name`, which is created if it does not exist. Returns the
/// name that the kernel assigned (a name with `%d` is a pattern). `name` has at most 15 bytes.
pub fn attach(fd: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<String> {
    // SAFETY: all zeroes is a valid `ifreq`: integers, an array and a union of such.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which `request` is for as long as the call lasts.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    // SAFETY: the kernel returns a name of at most 15 bytes and a terminating zero inside `ifr_name`.
    let name = unsafe { CStr::from_ptr(request.ifr_name.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}

/// Returns the name of the device that a descriptor belongs to, and its flags.
pub fn device_of(fd: BorrowedFd<'_>) -> io::Result<(String, c_int)> {
    // SAFETY: all zeroes is a valid `ifreq`: integers, an array and a union of such.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: TUNGETIFF writes one `ifreq`, which `request` is for as long as the call lasts.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) })?;
    // SAFETY: the kernel returns a name of at most 15 bytes and a terminating zero inside `ifr_name`, and the flags.
    let (name, flags) = unsafe { (CStr::from_ptr(request.ifr_name.as_ptr()), request.ifr_ifru.ifru_flags) };
    Ok((name.to_string_lossy().into_owned(), c_int::from(flags)))
}

/// Sets the offloads that the reader supports: a set of `TUN_F_` bits.
pub fn set_offload(fd: BorrowedFd<'_>, features: c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(features)) }).map(drop)
}

/// Sets the size of the `virtio_net_hdr` before each packet: an earlier owner of a persistent device may have changed
/// it.
pub fn set_header_size(fd: BorrowedFd<'_>, bytes: c_int) -> io::Result<()> {
    // SAFETY: TUNSETVNETHDRSZ reads one `int`, which `bytes` is for as long as the call lasts.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const bytes) }).map(drop)
}
