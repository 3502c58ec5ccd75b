//! Namespaces for those who are not root: in a user namespace of its own, this process may make networks as root may.
//!
//! What belongs to the whole machine stays as it is: CUBIC has to be allowed already, and receive processing is not bound
//! to a processor. Figures are for oneself, not for publication.

use crate::error::{During, LabError, Result};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};
use std::fs;

/// Moves this process, which must not have a second thread yet, into user, mount and network namespaces of its own.
///
/// # Errors
/// The kernel, or who runs it, does not allow it.
pub fn enter_own_namespaces() -> Result<()> {
    let (user, group) = (geteuid(), getegid());
    let all = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET;
    unshare(all).map_err(|error| LabError::NoUserNamespace(error.into()))?;
    // A group of one's own may only be mapped by one who cannot shed groups (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny").during("give up groups")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1")).during("become root of a user namespace")?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1")).during("become root of a user namespace")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).during("keep mounts to itself")?;
    // ip(8) keeps the names of network namespaces there.
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none).during("mount /run")
}
