//! The kernel's clock.

use nix::libc;

use crate::Error;
use crate::sys;

/// Returns true if a time service keeps the clock right: without one the kernel marks it as not synchronised.
pub fn is_synchronised() -> Result<bool, Error> {
    let status = sys::clock::status().map_err(|error| Error::new("read the state of the clock", error))?;
    Ok(status & libc::STA_UNSYNC == 0)
}
