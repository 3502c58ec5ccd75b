//! The state of the kernel's clock (`adjtimex(2)`).

use std::io;

use nix::libc;

use super::check;

/// Returns the status bits of the clock.
pub fn status() -> io::Result<i32> {
    // SAFETY: the structure consists of numbers, for which zeros are valid; no mode means that nothing is changed.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes into the structure, which outlives the call.
    check(unsafe { libc::adjtimex(&raw mut state) }).map(|_| state.status)
}
