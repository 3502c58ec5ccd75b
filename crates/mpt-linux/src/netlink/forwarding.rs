//! Reports changes of forwarding and of other settings of interfaces (`RTM_NEWNETCONF`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

use crate::Error;

/// A netlink socket that is subscribed to changes of settings.
#[derive(Debug)]
pub struct ForwardingMonitor(Socket);

impl ForwardingMonitor {
    /// Opens the socket and subscribes. Later changes are reported.
    pub fn open() -> Result<Self, Error> {
        open_socket().map(Self).map_err(|cause| Error::new("subscribe to changes of forwarding", cause))
    }

    /// Returns true if a setting may have changed since the last call.
    pub fn take_changed(&mut self) -> Result<bool, Error> {
        let mut changed = false;
        loop {
            match self.0.recv_from_full() {
                Ok(_) => changed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changed),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(error) => return Err(Error::new("receive changes of forwarding", error)),
            }
        }
    }
}

impl AsFd for ForwardingMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open_socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.set_non_blocking(true)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    GROUPS.into_iter().try_for_each(|group| socket.add_membership(group))?;
    Ok(socket)
}

/// `RTNLGRP_IPV4_NETCONF` and `RTNLGRP_IPV6_NETCONF`.
const GROUPS: [u32; 2] = [24, 25];
