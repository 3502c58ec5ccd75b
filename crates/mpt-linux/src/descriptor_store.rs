//! The descriptor store of a service manager. It keeps descriptors of a service while the service restarts, and passes
//! them to the next process: `FileDescriptorStoreMax=` in `systemd.service(5)`, `sd_pid_notify_with_fds(3)`,
//! `sd_listen_fds(3)`.

use std::env;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::Error;
use crate::sys::inherited;

/// Takes the descriptors that the manager has passed, with the names under which they were stored. Returns them once in
/// the life of a process. Call it before other descriptors are opened.
///
/// # Errors
/// A descriptor that the manager announced is not open.
pub fn take() -> Result<Vec<(String, OwnedFd)>, Error> {
    let number = |name| env::var(name).ok().and_then(|value| value.parse().ok());
    // A program that this process runs has the variables, too, and no descriptors.
    let is_ours = number("LISTEN_PID").is_some_and(|pid: u32| pid == std::process::id());
    let Some(count) = number("LISTEN_FDS").filter(|_| is_ours) else { return Ok(Vec::new()) };
    let taken = inherited::take(i32::try_from(count).unwrap_or_default());
    let taken = taken.map_err(|cause| Error::new("take the descriptors of the service manager", cause))?;
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    Ok(names.zip(taken).collect())
}

/// Stores a copy of a descriptor. A manager that has no room for it, or does not know the message, ignores it.
///
/// # Errors
/// The message was not sent.
pub fn store(manager: &UnixDatagram, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let message = format!("FDSTORE=1\nFDNAME={name}");
    let descriptors = [descriptor.as_raw_fd()];
    let attached = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(manager.as_raw_fd(), &[IoSlice::new(message.as_bytes())], &attached, MsgFlags::empty(), None)?;
    Ok(())
}

/// Removes the descriptors with this name.
///
/// # Errors
/// The message was not sent.
pub fn remove(manager: &UnixDatagram, name: &str) -> io::Result<()> {
    manager.send(format!("FDSTOREREMOVE=1\nFDNAME={name}").as_bytes()).map(drop)
}
