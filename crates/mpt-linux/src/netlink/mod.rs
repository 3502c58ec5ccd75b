//! Links, addresses, routes and rules: asked for, changed, and watched (`rtnetlink(7)`).
//!
//! [`Netlink`] asks and changes, one request after the other, each answered before it returns; the kernel answers inside
//! the system call, so this never waits for anybody. [`Monitor`] tells what others change, and when a cable is pulled.
//!
//! Every change can be made twice and undone twice: what is so already is [`Change::AlreadySo`], not an error, so a start
//! after a crash takes over what it finds and an end removes what is left. To miss nothing, open the monitor first and list
//! second.
//!
//! Links are named by their index, which stays when a link is renamed, and is not soon used again when it is gone.
//! Nothing here decides what to route where.

mod address;
mod link;
mod monitor;
mod route;
mod rule;
mod socket;

pub use address::Prefix;
pub use link::Link;
pub use monitor::{Event, Monitor};
pub use route::{Hop, MAIN_TABLE, Route};
pub use rule::Rule;

use std::fmt;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::libc;

use crate::Error;
use socket::{Channel, RequestError};

/// A conversation with the kernel about its network configuration, and the mark of the packets whose routes it asks for.
#[derive(Debug)]
pub struct Netlink(Channel, Option<u32>);

/// What a request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// What was asked for.
    Applied,
    /// Nothing: there was one already, or there was none to remove.
    Unchanged,
}

impl Netlink {
    /// Opens the conversation, which asking for needs no privilege and changing CAP_NET_ADMIN.
    pub fn open() -> Result<Self, Error> {
        Self::open_for(None)
    }

    /// The same, for asking how packets of sockets with this mark are routed.
    pub fn open_for(mark: Option<u32>) -> Result<Self, Error> {
        let channel = Channel::open().map_err(|cause| Error::new("open netlink", cause))?;
        Ok(Self(channel, mark))
    }

    /// Adds something that is not there yet.
    fn add(&mut self, message: RouteNetlinkMessage, what: &dyn fmt::Display) -> Result<Change, Error> {
        let added = self.0.exchange(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL);
        applied_unless(added, &[libc::EEXIST]).map_err(|refusal| refusal.into_error(format!("add {what}")))
    }

    /// Removes something if it is there. The kernel has a word for absence per kind of thing: `ESRCH` for routes,
    /// `ENOENT` for rules, `EADDRNOTAVAIL` for addresses, and `ENODEV` when the link went with it.
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
