//! Queries, changes and monitors links, addresses, routes and rules (`rtnetlink(7)`).
//!
//! [`Netlink`] sends one request at a time and returns after its answer; the kernel answers inside the system call, so
//! it does not block. [`Monitor`] reports changes by others, and the loss of a carrier; [`TableMonitor`] reports
//! changes of tables of nftables, [`ForwardingMonitor`] those of forwarding.
//!
//! Every change is idempotent: if the state is already as requested the result is [`Change::Unchanged`], not an error.
//! A start after a crash adopts existing state and a shutdown removes the rest. To miss no change, open the monitor
//! first and list second.
//!
//! Links are identified by their index, which survives renaming and is not reused soon after the link is gone. Nothing
//! here makes routing decisions.

mod address;
mod forwarding;
mod link;
mod monitor;
mod route;
mod rule;
mod socket;
mod tables;

pub use address::Prefix;
pub use forwarding::ForwardingMonitor;
pub use link::Link;
pub use monitor::{Event, Monitor};
pub use route::{Hop, MAIN_TABLE, Route};
pub use rule::Rule;
pub use tables::TableMonitor;

use std::fmt;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::libc;

use crate::Error;
use socket::{Channel, RequestError};

/// A netlink channel, and the firewall mark used for route lookups.
#[derive(Debug)]
pub struct Netlink(Channel, Option<u32>);

/// The effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The change was made.
    Applied,
    /// Nothing changed: the object existed already, or there was none to remove.
    Unchanged,
}

impl Netlink {
    /// Opens a channel. Queries need no privilege, changes need CAP_NET_ADMIN.
    pub fn open() -> Result<Self, Error> {
        Self::open_for(None)
    }

    /// Opens a channel whose route lookups use the mark of the tunnel's sockets.
    pub fn open_for(mark: Option<u32>) -> Result<Self, Error> {
        let channel = Channel::open().map_err(|cause| Error::new("open netlink", cause))?;
        Ok(Self(channel, mark))
    }

    /// Adds an object if it does not exist.
    fn add(&mut self, message: RouteNetlinkMessage, what: &dyn fmt::Display) -> Result<Change, Error> {
        let added = self.0.exchange(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL);
        applied_unless(added, &[libc::EEXIST]).map_err(|refusal| refusal.into_error(format!("add {what}")))
    }

    /// Removes an object if it exists. The kernel's error for a missing object depends on its kind: `ESRCH` for routes,
    /// `ENOENT` for rules, `EADDRNOTAVAIL` for addresses, `ENODEV` if the link is gone.
    fn remove(&mut self, message: RouteNetlinkMessage, what: &dyn fmt::Display) -> Result<Change, Error> {
        let removed = self.0.exchange(message, NLM_F_ACK);
        applied_unless(removed, &[libc::ESRCH, libc::ENOENT, libc::EADDRNOTAVAIL, libc::ENODEV])
            .map_err(|refusal| refusal.into_error(format!("remove {what}")))
    }
}

fn applied_unless<T>(result: Result<T, RequestError>, already: &[i32]) -> Result<Change, RequestError> {
    match result {
        Ok(_) => Ok(Change::Applied),
        Err(refusal) if refusal.is_errno(already) => Ok(Change::Unchanged),
        Err(refusal) => Err(refusal),
    }
}

fn family(ipv6: bool) -> AddressFamily {
    if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet }
}
