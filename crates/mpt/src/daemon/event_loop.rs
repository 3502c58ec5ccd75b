//! The data path of the event loop: wait, receive, process in the core, send.
//!
//! One thread does both directions of its peers and runs everything to completion, so there are no locks and nothing is
//! reordered inside this process. The clocks are read once per iteration.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use mpt_linux::processor::runnable_time;
use mpt_linux::reactor::{Interest, Ready, Token};
use mpt_linux::udp::Receive;
use mpt_linux::{Error, Reactor, Tun};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::Endpoint;
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use nix::libc;

use super::handshake_clock::since_1970;
use super::handshake_flood::FloodGuard;
use super::links::Link;
use super::processor::ProcessorLoad;

/// Sockets, queue of the TUN device and endpoint, and the buffers between them.
#[derive(Debug)]
pub struct Worker {
    /// The core.
    pub endpoint: Endpoint,
    /// Waits for all descriptors.
    pub reactor: Reactor,
    tun: Tun,
    /// Indexed by link number; closed links leave a gap.
    links: Vec<Option<Link>>,
    /// Links without a local address. Their interface may still be running.
    without_address: BTreeSet<LinkId>,
    buffer: Vec<u8>,
    receive: Receive,
    /// The TUN device is registered for reading.
    reads_tun: bool,
    /// The TUN device was removed.
    tun_removed: bool,
    /// A descriptor had more than was read in this iteration.
    has_unread: bool,
    flood: FloodGuard,
    /// The load of this thread.
    pub processor: ProcessorLoad,
}

fn token(link: LinkId) -> Token {
    Token(LINKS + u64::from(link.0))
}

impl Worker {
    /// Registers the TUN device.
    pub fn new(endpoint: Endpoint, reactor: Reactor, tun: Tun) -> Result<Self, Error> {
        reactor.add(&tun, TUN, Interest::Read)?;
        let buffer = vec![0; mpt_linux::tun::READ_BUFFER];
        Ok(Self {
            endpoint,
            reactor,
            tun,
            links: Vec::new(),
            without_address: BTreeSet::new(),
            buffer,
            receive: Receive::new(),
            reads_tun: true,
            tun_removed: false,
            has_unread: false,
            flood: FloodGuard::default(),
            processor: ProcessorLoad::default(),
        })
    }

    /// Registers one more socket at the index of its link number.
    pub fn add_link(&mut self, link: Link) -> Result<(), Error> {
        self.reactor.add(&link, token(link.id()), Interest::Read)?;
        self.flood.on_link_opened(&self.endpoint, &link);
        let index = usize::from(link.id().0);
        if self.links.len() <= index {
            self.links.resize_with(index + 1, || None);
        }
        self.links[index] = Some(link);
        Ok(())
    }

    /// Takes the sockets of other workers for the addresses of its links, which were opened since the last call: those
    /// of one address, in the order of the workers.
    pub fn take_siblings(&mut self) -> Vec<Vec<Link>> {
        self.links.iter_mut().flatten().map(Link::take_siblings).filter(|siblings| !siblings.is_empty()).collect()
    }

    /// Adds the socket that the first worker has opened for this one, or replaces the one before of its link. What
    /// waits for that one leaves through the new one.
    pub fn add_sibling(&mut self, sibling: Link) -> Result<(), Error> {
        let index = usize::from(sibling.id().0);
        match self.links.get_mut(index) {
            Some(Some(link)) => {
                link.replace_socket(sibling);
                self.register_reopened(index)
            }
            _ => self.add_link(sibling),
        }
    }

    /// Closes a socket.
    pub fn close_link(&mut self, id: LinkId) {
        self.endpoint.handle_blocked(id, false);
        self.without_address.remove(&id);
        if let Some(link) = self.links.get_mut(usize::from(id.0)) {
            *link = None;
        }
    }

    /// Rebinds a link to another local address, or to an interface that came back, and notifies the peers.
    pub fn rebind_link(&mut self, now: Time, id: LinkId, local: IpAddr, interface: Option<u32>) -> Result<(), Error> {
        let index = usize::from(id.0);
        let Some(Some(link)) = self.links.get_mut(index) else { return Ok(()) };
        if !link.is_sibling() && !link.is_bound_to(local, interface) {
            link.rebind(local, interface)?;
            self.register_reopened(index)?;
        }
        self.without_address.remove(&id);
        self.endpoint.handle_carrier(now, id, true);
        self.endpoint.handle_moved(now, id);
        Ok(())
    }

    /// Returns true if a link is bound to this local address and the interface with this index.
    pub fn is_bound_to(&self, id: LinkId, local: IpAddr, interface: u32) -> bool {
        let link = self.links.get(usize::from(id.0)).and_then(Option::as_ref);
        link.is_some_and(|link| link.is_bound_to(local, Some(interface)))
    }

    /// Takes a link down whose local address is gone, until it is bound to another one.
    pub fn handle_address_gone(&mut self, now: Time, id: LinkId) {
        self.without_address.insert(id);
        self.endpoint.handle_carrier(now, id, false);
    }

    /// Handles the state of an interface: its carrier, or its return under another index.
    pub fn handle_interface_state(&mut self, now: Time, index: u32, name: &str, running: bool) {
        for slot in 0..self.links.len() {
            let Some(link) = self.links[slot].as_mut().filter(|link| link.uses_interface(index, name)) else {
                continue;
            };
            let id = link.id();
            if running && link.needs_reopen(index, name) {
                match link.reopen(index).and_then(|()| self.register_reopened(slot)) {
                    Ok(()) => tracing::info!(interface = name, "interface returned"),
                    Err(error) => tracing::warn!(interface = name, %error, "cannot use the returned interface"),
                }
            }
            let waiting = self.links[slot].as_ref().is_some_and(Link::is_waiting);
            self.endpoint.handle_carrier(now, id, running && !waiting && !self.without_address.contains(&id));
        }
    }

    /// Takes down the links whose interface does not exist yet.
    pub fn take_down_waiting(&mut self, now: Time) {
        for link in self.links.iter().flatten().filter(|link| link.is_waiting()) {
            self.endpoint.handle_carrier(now, link.id(), false);
        }
    }

    /// Updates the interface of the links that are bound to this address. Returns true if any of them was on another
    /// interface.
    pub fn on_address_added(&mut self, index: u32, address: IpAddr) -> bool {
        let links = self.links.iter_mut().flatten();
        links.fold(false, |any, link| any | link.on_address_added(address, index))
    }

    /// Returns the known interfaces of the links.
    pub fn interfaces(&self) -> BTreeSet<u32> {
        self.links.iter().flatten().filter_map(Link::interface).collect()
    }

    /// Serves a ready descriptor.
    pub fn handle(&mut self, now: Time, ready: &Ready) {
        if ready.token == TUN {
            return self.read_tun(now);
        }
        let Some(index) = ready.token.0.checked_sub(LINKS).map(|index| index as usize) else { return };
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        if ready.writable {
            link.flush(&mut self.endpoint);
        }
        if ready.readable {
            self.has_unread |= link.receive(now, self.reactor.clock(), &mut self.receive, &mut self.endpoint);
            self.deliver();
        }
        if ready.writable {
            self.update_link_interest(index);
        }
    }

    /// Ends an iteration: handles deadlines, sends and delivers, and returns the next deadline.
    pub fn finish_iteration(&mut self, now: Time) -> Option<Time> {
        self.endpoint.set_wall_clock(now, since_1970());
        self.endpoint.handle_deadline(now);
        self.transmit(now);
        self.deliver();
        self.update_tun_interest();
        self.flood.poll(now, &self.endpoint, &self.links);
        [self.endpoint.next_deadline().map(|(at, _)| at), self.flood.next_deadline()].into_iter().flatten().min()
    }

    /// Ends an iteration after [`Self::finish_iteration`]: under load, leaves new input waiting for a while, so that
    /// the next iteration processes more at once.
    pub fn moderate(&mut self, now: Time) {
        let has_unread = std::mem::take(&mut self.has_unread);
        if let Some(until) = self.endpoint.end_turn(now).filter(|_| !has_unread) {
            self.reactor.pause(until);
        }
    }

    /// Measures the load of the processor. The core gets a change of whether that limits the tunnel.
    pub fn poll_processor(&mut self, now: Time) {
        if let Some(limited) = self.processor.poll(now, self.reactor.waited(), runnable_time) {
            self.endpoint.set_processor_limited(limited);
        }
    }

    /// Returns true while more handshakes come than at other times.
    pub fn is_flooded(&mut self, now: Time) -> bool {
        self.flood.next_deadline().is_some() || self.endpoint.is_loaded(now)
    }

    /// Takes the addresses of peers of other workers, which a flood of handshakes must not lock out: those that are
    /// configured or were heard, and those that were proved.
    pub fn set_addresses_elsewhere(&mut self, known: Vec<IpAddr>, proved: Vec<SocketAddr>) {
        self.flood.set_elsewhere(known, &self.endpoint, &self.links);
        self.endpoint.set_addresses_elsewhere(proved);
    }

    /// Returns true if the TUN device was removed: its descriptor is then always ready and returns no data.
    pub fn is_tun_removed(&self) -> bool {
        self.tun_removed
    }

    /// Returns the TUN device.
    pub fn tun(&self) -> &Tun {
        &self.tun
    }

    /// Returns the TUN device's interface index.
    pub fn tun_index(&self) -> u32 {
        self.tun.index()
    }

    fn read_tun(&mut self, now: Time) {
        let mut bytes = 0;
        for _ in 0..MAX_TUN_READS {
            if !self.endpoint.has_room() {
                return;
            }
            if bytes >= MAX_TUN_BYTES {
                break;
            }
            match self.tun.read(&mut self.buffer) {
                Ok(Some((offload, len))) => {
                    bytes += len;
                    self.endpoint.handle_inner(now, &mut self.buffer, len, offload);
                }
                Ok(None) => return,
                Err(error) => {
                    self.tun_removed = error.raw_os_error() == Some(libc::EBADFD);
                    tracing::debug!(%error, "read TUN");
                    self.endpoint.handle_failure(Dropped::BadInner, 1);
                    break;
                }
            }
        }
        self.has_unread = true;
    }

    /// Sends what the endpoint has.
    pub fn transmit(&mut self, now: Time) {
        while let Some(batch) = self.endpoint.poll_transmit(now) {
            let index = usize::from(batch.link.0);
            let Some(Some(link)) = self.links.get_mut(index) else {
                self.endpoint.handle_failure(Dropped::SendFailed, batch.count() as u64);
                self.endpoint.recycle_transmit(batch);
                continue;
            };
            let was_blocked = link.is_blocked();
            link.send(batch, &mut self.endpoint);
            if !was_blocked && link.is_blocked() {
                self.update_link_interest(index);
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(delivery) = self.endpoint.poll_delivery() {
            let written = self.tun.write(delivery.offload, &delivery.bytes);
            if !matches!(written, Ok(true)) {
                tracing::debug!(?written, "write TUN");
                self.endpoint.handle_failure(Dropped::DeliveryFailed, u64::from(delivery.packets));
            }
            self.endpoint.recycle_delivery(delivery.bytes);
        }
    }

    /// Registers the new socket of a link, and sends its backlog.
    fn register_reopened(&mut self, index: usize) -> Result<(), Error> {
        let Some(Some(link)) = self.links.get_mut(index) else { return Ok(()) };
        self.reactor.add(&*link, token(link.id()), Interest::Read)?;
        self.flood.on_link_opened(&self.endpoint, link);
        link.flush(&mut self.endpoint);
        self.update_link_interest(index);
        Ok(())
    }

    /// Waits for write readiness if the socket is full, and informs the endpoint.
    fn update_link_interest(&mut self, index: usize) {
        let Some(Some(link)) = self.links.get(index) else { return };
        let blocked = link.is_blocked();
        self.endpoint.handle_blocked(LinkId(index as u8), blocked);
        let interest = if blocked { Interest::Both } else { Interest::Read };
        if let Err(error) = self.reactor.modify(link, token(link.id()), interest) {
            tracing::warn!(%error, link = index, "cannot register a socket");
        }
    }

    /// Stops reading while no queue has room; packets then wait in the TUN device.
    fn update_tun_interest(&mut self) {
        let has_room = self.endpoint.has_room();
        if has_room == self.reads_tun {
            return;
        }
        let interest = if has_room { Interest::Read } else { Interest::Nothing };
        match self.reactor.modify(&self.tun, TUN, interest) {
            Ok(()) => self.reads_tun = has_room,
            Err(error) => tracing::warn!(%error, "cannot register the TUN device"),
        }
    }
}

/// The TUN device's token.
pub const TUN: Token = Token(0);
/// The first socket's token; the others follow.
const LINKS: u64 = 1_000;
/// Packets that are read before they are sent: as many small ones as one send takes.
const MAX_TUN_READS: usize = 64;
/// Bytes that are read before they are sent: enough to fill a batch on each of several paths, few enough for the
/// processor's cache.
const MAX_TUN_BYTES: usize = 4 << 16;
