//! Memory of the process.

use crate::sys::process;

/// Unmaps the code and the constants of the program and its libraries: after the start most of it is not used again.
/// The kernel maps what is used from its page cache at the next access, and can take the rest back first.
pub fn unmap_program() {
    process::unmap_program();
}
