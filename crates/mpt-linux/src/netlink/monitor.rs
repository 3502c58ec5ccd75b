//! What others change: links that come, go and lose their carrier, addresses, routes.
//!
//! The kernel tells of a lost carrier at once, unless the link changed its state within the last second: then it may take
//! until that second is over (`net/core/link_watch.c`). Whoever watches acknowledgements knows earlier.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

use super::socket::{Frame, frames};
use super::{Link, Prefix, address};
use crate::Error;

/// A change of the network configuration, whoever made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link is new, or something about it has changed.
    Link(Link),
    /// The link of this index exists no more.
    LinkGone(u32),
    /// An address of the link of this index can be used.
    AddressAdded(u32, Prefix),
    /// An address of the link of this index is gone.
    AddressRemoved(u32, Prefix),
    /// Some route has changed; others that followed at once are not told separately.
    Routes,
    /// Events were lost or not understood: whatever is of interest must be asked for again.
    Resync,
}

/// A socket that hears of changes.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    events: VecDeque<Event>,
}

/// Several hundred changes, as many as a host with a few links makes while the event loop is away.
const RECEIVE_BUFFER: usize = 256 << 10;

impl Monitor {
    /// Opens the socket. Everything that changes after this is heard.
    pub fn open() -> Result<Self, Error> {
        open_socket()
            .map(|socket| Self { socket, events: VecDeque::new() })
            .map_err(|cause| Error::new("watch links", cause))
    }

    /// The next change, if there is one.
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        while self.events.is_empty() {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => self.queue_events(&datagram),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Some(Event::Resync)),
                Err(error) => return Err(Error::new("hear of network changes", error)),
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
        | libc::RTMGRP_IPV6_ROUTE;
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
        RouteNetlinkMessage::NewRoute(_) | RouteNetlinkMessage::DelRoute(_) => Some(Event::Routes),
        _ => None,
    }
}
