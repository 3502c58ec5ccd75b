//! Drops privileges: the rights of root to files, and every capability that is not needed, for the process and the
//! programs that it runs. Prevents core dumps.

use nix::sys::utsname::uname;

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
    drop_from_bounding_set(kept);
    let kept = bits(kept);
    let now = capability::get().map_err(fail)?;
    let kept_now = now.permitted & kept;
    let sets = Sets { effective: kept_now, permitted: kept_now, inheritable: now.inheritable & kept };
    // A service manager's filter of system calls may forbid the change, but then there is none to make.
    let changed = if sets == now { Ok(()) } else { capability::set(sets) };
    changed.and_then(|()| capability::set_no_new_privs()).map_err(fail)
}

/// Drops all capabilities, for the process and the programs that it runs. Affects the calling thread only, so call it
/// before other threads start.
///
/// # Errors
/// The kernel refused the change, and there are capabilities.
pub fn drop_all() -> Result<(), Error> {
    // A service manager's filter of system calls may forbid what is left to do then: the inheritable set.
    keep_only(&[]).or_else(|error| match capability::get() {
        Ok(sets) if sets.permitted == 0 => Ok(()),
        _ => Err(error),
    })
}

/// Makes programs that the calling thread runs from now on begin without capabilities, unless it is root's.
///
/// # Errors
/// The kernel refused the change.
pub fn run_programs_without_capabilities() -> Result<(), Error> {
    capability::clear_ambient().map_err(|cause| Error::new("clear the ambient capabilities", cause))
}

fn drop_from_bounding_set(kept: &[Capability]) {
    let kept = bits(kept);
    for other in (0..u64::BITS).filter(|bit| kept & 1 << bit == 0) {
        match capability::is_in_bounding_set(other) {
            // Without CAP_SETPCAP this fails, but then programs cannot gain the capability either.
            Ok(true) => drop(capability::drop_from_bounding_set(other)),
            Ok(false) => {}
            Err(_) => break,
        }
    }
}

fn bits(capabilities: &[Capability]) -> u64 {
    capabilities.iter().fold(0, |bits, capability| bits | 1_u64 << (*capability as u32))
}

/// Changes all user and group IDs of a process of root, and keeps these capabilities, as far as the process has them.
/// Drops all others permanently. Passes CAP_NET_ADMIN on to the programs that it runs. Affects the calling thread only,
/// so call it before other threads start.
///
/// # Errors
/// The kernel refused the change: CAP_SETUID or CAP_SETGID is missing, or the user namespace lacks the user. The IDs
/// may have changed in part then.
pub fn become_user(user: u32, group: u32, kept: &[Capability]) -> Result<(), Error> {
    let fail = |cause| Error::new(format!("become user {user}"), cause);
    capability::keep_over_user_change().map_err(fail)?;
    drop_from_bounding_set(kept);
    process::set_ids(user, group).map_err(fail)?;
    keep_only(kept)?;
    let admin = Capability::NetAdmin as u32;
    let Sets { effective, permitted, inheritable } = capability::get().map_err(fail)?;
    if permitted & 1 << admin != 0 {
        let inheritable = inheritable | 1 << admin;
        capability::set(Sets { effective, permitted, inheritable }).map_err(fail)?;
        capability::raise_ambient(admin).map_err(fail)?;
    }
    // A change of the effective user ID makes the process dumpable again if the host permits that.
    deny_core_dumps()
}

/// Returns true if the process has the capabilities for [`become_user`].
pub fn may_change_user() -> bool {
    capability::get().is_ok_and(|sets| sets.effective & CHANGE_USER == CHANGE_USER)
}

/// CAP_SETGID and CAP_SETUID.
const CHANGE_USER: u64 = 1 << 6 | 1 << 7;

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
    let release = uname().map(|system| system.release().to_string_lossy().into_owned()).unwrap_or_default();
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
    fn another_user_keeps_the_capabilities_and_gets_nothing_back() {
        // IDs and capabilities are per thread, so a thread of its own changes them here.
        std::thread::spawn(|| {
            if !std::fs::metadata("/proc/thread-self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
                return eprintln!("skipped: needs root");
            }
            let before = capability::get().unwrap();
            become_user(65_520, 65_520, &[Capability::NetAdmin]).unwrap();
            let net_admin = before.permitted & 1 << 12;
            let after = capability::get().unwrap();
            assert_eq!((after.permitted, after.effective, after.inheritable), (net_admin, net_admin, net_admin));
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            for ids in ["Uid:\t65520\t65520\t65520\t65520", "Gid:\t65520\t65520\t65520\t65520", "Groups:\t \n"] {
                assert!(status.contains(ids), "{status}");
            }
            assert!(process::set_ids(0, 0).is_err());
        })
        .join()
        .unwrap();
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
