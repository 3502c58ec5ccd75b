//! Drops privileges after the start: every capability that is not needed, for the process and the programs that it
//! runs. Prevents core dumps.

use std::fs;

use crate::Error;
use crate::sys::capability::{self, Sets};
use crate::sys::process;

/// A Linux capability (`capabilities(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// UDP ports below 1024.
    NetBindService = 10,
    /// Interfaces, addresses, routes, rules, marks.
    NetAdmin = 12,
    /// Sockets bound to an interface, on kernels before 5.7.
    NetRaw = 13,
}

/// Keeps these capabilities, as far as the process has them, and drops all others permanently. Affects the calling
/// thread only, so call it before other threads start.
///
/// # Errors
/// The kernel refused the change.
pub fn keep_only(kept: &[Capability]) -> Result<(), Error> {
    let fail = |cause| Error::new("drop privileges", cause);
    let kept = kept.iter().fold(0, |bits, capability| bits | 1_u64 << (*capability as u32));
    for other in (0..u64::BITS).filter(|bit| kept & 1 << bit == 0) {
        match capability::is_in_bounding_set(other) {
            // Without CAP_SETPCAP this fails, but then programs cannot gain the capability either.
            Ok(true) => drop(capability::drop_from_bounding_set(other)),
            Ok(false) => {}
            Err(_) => break,
        }
    }
    let Sets { permitted, inheritable, .. } = capability::get().map_err(fail)?;
    let sets = Sets { effective: permitted & kept, permitted: permitted & kept, inheritable: inheritable & kept };
    capability::set(sets).and_then(|()| capability::set_no_new_privs()).map_err(fail)
}

/// Prevents core dumps, which would write keys to disk. The limit does not apply to a program that the kernel pipes
/// core dumps to, so the process is made not dumpable as well.
///
/// # Errors
/// The kernel refused the change.
pub fn deny_core_dumps() -> Result<(), Error> {
    let fail = |cause| Error::new("prevent core dumps", cause);
    process::set_no_core().and_then(|()| process::set_not_dumpable()).map_err(fail)
}

/// Returns true if `SO_BINDTODEVICE` needs [`Capability::NetRaw`], as in kernels before 5.7.
pub fn binding_needs_raw() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_none_or(|version| version < (5, 7))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_begins_with_its_version() {
        assert_eq!(version("6.18.44\n"), Some((6, 18)));
        assert_eq!(version("5.4.0-150-generic"), Some((5, 4)));
        assert_eq!(version(""), None);
    }

    #[test]
    fn dropped_capabilities_are_gone_and_the_others_kept() {
        // Capabilities are per thread, so a thread of its own drops them here.
        std::thread::spawn(|| {
            let before = capability::get().unwrap();
            keep_only(&[Capability::NetAdmin]).unwrap();
            let after = capability::get().unwrap();
            assert_eq!(after.permitted, before.permitted & 1 << 12);
            assert_eq!((after.effective, after.inheritable), (after.permitted, before.inheritable & 1 << 12));
            keep_only(&[Capability::NetAdmin, Capability::NetRaw]).unwrap();
            assert_eq!(capability::get().unwrap(), after, "nothing comes back");
        })
        .join()
        .unwrap();
    }
}
