//! Namespaces without root: in a user namespace of its own, this process may create networks as root may.
//!
//! System-wide settings stay unchanged: CUBIC must already be allowed, and receive processing is not bound to a
//! processor. The figures are for private use, not for publication.

use crate::error::{Context, LabError, Result};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};
use std::fs;

/// Moves this process, which must be single-threaded, into user, mount and network namespaces of its own.
///
/// # Errors
/// Returns an error if the kernel or its configuration forbids it.
pub fn enter_own_namespaces() -> Result<()> {
    let (user, group) = (geteuid(), getegid());
    let all = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET;
    unshare(all).map_err(|error| LabError::NoUserNamespace(error.into()))?;
    // An unprivileged process may only map its group after it has disabled setgroups (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny").context("give up groups")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1")).context("become root of a user namespace")?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1")).context("become root of a user namespace")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("keep mounts to itself")?;
    // ip(8) keeps the names of network namespaces there.
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none).context("mount /run")
}
