//! Control messages (`cmsg(3)`): ancillary data of a datagram.

use std::mem;

use nix::libc::{self, c_int};

/// An aligned buffer for the control messages of one `msghdr`, and its used length.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Control {
    align: [libc::cmsghdr; 0],
    bytes: [u8; ROOM],
    len: usize,
}

impl Control {
    /// An empty buffer.
    pub const EMPTY: Self = Self { align: [], bytes: [0; ROOM], len: 0 };

    /// Appends one message. `T` is an integer.
    pub fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        // SAFETY: both only compute.
        let (space, len) = unsafe { (libc::CMSG_SPACE(size_of::<T>() as u32), libc::CMSG_LEN(size_of::<T>() as u32)) };
        assert!(self.len + space as usize <= ROOM, "no room for a control message");
        // SAFETY: all zeroes is a valid `cmsghdr`, which is integers.
        let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
        header.cmsg_len = len as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        // SAFETY: `space` bytes from `self.len` on are inside `bytes`, as asserted; `bytes` is aligned for a `cmsghdr`
        // and every `space` is a multiple of that alignment. The data follow at `CMSG_DATA` and may be unaligned.
        unsafe {
            let at = self.bytes.as_mut_ptr().add(self.len).cast::<libc::cmsghdr>();
            at.write(header);
            libc::CMSG_DATA(at).cast::<T>().write_unaligned(value);
        }
        self.len += space as usize;
    }

    /// Points `message` at the pushed control messages.
    pub fn attach(&self, message: &mut libc::msghdr) {
        if self.len > 0 {
            message.msg_control = self.bytes.as_ptr().cast_mut().cast();
            message.msg_controllen = self.len as _;
        }
    }

    /// Points `message` at the whole buffer, for the kernel to write.
    pub fn room(&mut self, message: &mut libc::msghdr) {
        message.msg_control = self.bytes.as_mut_ptr().cast();
        message.msg_controllen = ROOM as _;
    }
}

/// Calls `each` with level, type and payload of every control message in `message`.
///
/// # Safety
/// The control part of `message` was written by the kernel and is still alive.
pub unsafe fn for_each(message: &libc::msghdr, mut each: impl FnMut(c_int, c_int, &[u8])) {
    // SAFETY: the kernel wrote well-formed messages (precondition), and `CMSG_NXTHDR` stays inside them. The payload
    // ends with the message.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = at.as_ref() {
            #[allow(clippy::unnecessary_cast, reason = "32 bits with musl")]
            let len = (header.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            each(header.cmsg_level, header.cmsg_type, std::slice::from_raw_parts(libc::CMSG_DATA(at), len));
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
}

/// Two messages of an `int` each and a time take 80 bytes on 64-bit systems; the rest is reserve for later kernels.
const ROOM: usize = 96;
