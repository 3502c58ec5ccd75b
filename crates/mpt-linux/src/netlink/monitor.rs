//! Reports changes of links, carriers, addresses, routes and rules.
//!
//! The kernel reports the loss of a carrier at once, unless the link changed its state within the last second: then it
//! may take until that second is over (`net/core/link_watch.c`). Missing acknowledgements reveal the loss earlier.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

use super::route::{is_default, links_of};
use super::socket::{Frame, frames};
use super::{Link, Prefix, address};
use crate::Error;

/// A change of the network configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link was added or changed.
    Link(Link),
    /// The link with this index was removed.
    LinkGone(u32),
    /// An address became usable on the link with this index.
    AddressAdded(u32, Prefix),
    /// An address was removed from the link with this index.
    AddressRemoved(u32, Prefix),
    /// A route over the link with this index was removed, also one of the kernel's own for an address. Consecutive
    /// events are merged, here and below.
    RouteGone(u32),
    /// Some other route has changed.
    Routes,
    /// A default route, or a half of one, has changed.
    DefaultRoutes,
    /// A rule was removed.
    RuleGone,
    /// Events were lost or could not be parsed: the state must be listed again.
    Resync,
}

/// A netlink socket that is subscribed to changes.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    events: VecDeque<Event>,
}

impl Monitor {
    /// Opens the socket and subscribes. Later changes are reported.
    pub fn open() -> Result<Self, Error> {
        open_socket()
            .map(|socket| Self { socket, events: VecDeque::new() })
            .map_err(|cause| Error::new("subscribe to network events", cause))
    }

    /// Returns the next event, if there is one. Lost events are the only error that the kernel reports on this socket
    /// (`netlink_overrun` in `net/netlink/af_netlink.c`): they yield [`Event::Resync`].
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        while self.events.is_empty() {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => self.queue_events(&datagram),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Some(Event::Resync)),
                Err(error) => return Err(Error::new("receive network events", error)),
            }
        }
        Ok(self.events.pop_front())
    }

    fn queue_events(&mut self, datagram: &[u8]) {
        for frame in frames(datagram) {
            let event = frame.map_or(Some(Event::Resync), event);
            self.events.extend(event.filter(|event| self.events.back() != Some(event)));
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn open_socket() -> io::Result<Socket> {
    let groups = libc::RTMGRP_LINK
        | libc::RTMGRP_IPV4_IFADDR
        | libc::RTMGRP_IPV6_IFADDR
        | libc::RTMGRP_IPV4_ROUTE
        | libc::RTMGRP_IPV6_ROUTE
        | libc::RTMGRP_IPV4_RULE
        | IPV6_RULES;
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.set_non_blocking(true)?;
    socket.set_rx_buf_sz(RECEIVE_BUFFER as libc::c_int)?;
    socket.bind(&SocketAddr::new(0, groups as u32))?;
    Ok(socket)
}

fn event(frame: Frame) -> Option<Event> {
    let NetlinkPayload::InnerMessage(message) = frame.payload else { return None };
    match message {
        RouteNetlinkMessage::NewLink(link) => Link::from_message(&link).map(Event::Link),
        RouteNetlinkMessage::DelLink(link) => Link::from_message(&link).map(|link| Event::LinkGone(link.index)),
        RouteNetlinkMessage::NewAddress(address) => {
            address::usable(&address).map(|prefix| Event::AddressAdded(address.header.index, prefix))
        }
        RouteNetlinkMessage::DelAddress(address) => {
            address::prefix(&address).map(|prefix| Event::AddressRemoved(address.header.index, prefix))
        }
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) if is_default(&route) => {
            Some(Event::DefaultRoutes)
        }
        RouteNetlinkMessage::NewRoute(_) => Some(Event::Routes),
        RouteNetlinkMessage::DelRoute(route) => {
            Some(links_of(&route).first().map_or(Event::Routes, |link| Event::RouteGone(*link)))
        }
        RouteNetlinkMessage::DelRule(_) => Some(Event::RuleGone),
        _ => None,
    }
}

/// `RTNLGRP_IPV6_RULE` as a bit.
const IPV6_RULES: libc::c_int = 1 << 18;
/// Room for several hundred events, as many as a host with a few links generates while the event loop is busy.
const RECEIVE_BUFFER: usize = 256 << 10;
