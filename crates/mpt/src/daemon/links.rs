//! The UDP sockets of a tunnel and their send backlogs.
//!
//! If the send buffer is full, datagrams stay here in order until the socket is writable. Meanwhile the endpoint does
//! not use the link, so a slow interface does not block the others and the backlog stays short. Datagrams that must use
//! this link, such as probes and handshake responses, are queued as well, up to a bound.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use mpt_linux::Error;
use mpt_linux::reactor::Clock;
use mpt_linux::udp::{Datagrams, Group, Receive, SendStatus, Socket, SocketSpec};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use mpt_proto::tx::Transmit;

/// A socket with its backlog.
#[derive(Debug)]
pub struct Link {
    id: LinkId,
    socket: Socket,
    /// The sockets of the other workers for this address, until they take them.
    siblings: Vec<Socket>,
    /// It belongs to a worker that does not open sockets.
    is_sibling: bool,
    spec: SocketSpec,
    /// The index of its interface, if known.
    interface: Option<u32>,
    /// The path manager controls it.
    managed: bool,
    /// The interface did not exist when the link was opened: the socket is bound to loopback until it appears.
    waiting: bool,
    backlog: VecDeque<Unsent>,
}

/// A batch, and how many of its datagrams were sent or dropped.
#[derive(Debug)]
struct Unsent {
    batch: Transmit,
    sent: usize,
}

impl Link {
    /// Opens the socket of a link on `interface`, if that is known. If the device does not exist, the link waits for
    /// it: see [`Self::is_waiting`].
    ///
    /// # Errors
    /// As [`Socket::open`], except for a missing device.
    pub fn open(id: LinkId, spec: SocketSpec, interface: Option<u32>) -> Result<Self, Error> {
        let is_missing = |error: &Error| spec.device.is_some() && error.errno() == Some(nix::libc::ENODEV);
        let (group, waiting) = match Socket::open_group(&spec) {
            Err(error) if is_missing(&error) => (open_placeholder(&spec)?, true),
            opened => (opened?, false),
        };
        let interface = interface.filter(|_| !waiting);
        Ok(Self { waiting, ..Self::with(id, group, spec, interface, false) })
    }

    /// Makes a link of the sockets of one address, of which there is one for each worker.
    fn with(id: LinkId, group: Group, spec: SocketSpec, interface: Option<u32>, managed: bool) -> Self {
        let Group { first: socket, others: siblings } = group;
        let (is_sibling, waiting, backlog) = (false, false, VecDeque::new());
        Self { id, socket, siblings, is_sibling, spec, interface, managed, waiting, backlog }
    }

    fn replace_group(&mut self, Group { first, others }: Group) {
        (self.socket, self.siblings) = (first, others);
    }

    /// Takes the links of the other workers to this address.
    pub fn take_siblings(&mut self) -> Vec<Self> {
        let sibling = |socket| {
            let group = Group { first: socket, others: Vec::new() };
            let link = Self::with(self.id, group, self.spec.clone(), self.interface, self.managed);
            Self { is_sibling: true, waiting: self.waiting, ..link }
        };
        std::mem::take(&mut self.siblings).into_iter().map(sibling).collect()
    }

    /// Returns true if another worker opens its sockets.
    pub fn is_sibling(&self) -> bool {
        self.is_sibling
    }

    /// Continues with the socket of another link. The backlog stays.
    pub fn replace_socket(&mut self, other: Self) {
        *self = Self { backlog: std::mem::take(&mut self.backlog), ..other };
    }

    /// Opens the socket of a link of the path manager. Uses a free port if the wanted one is in use.
    ///
    /// # Errors
    /// As [`Socket::open`].
    pub fn open_managed(id: LinkId, spec: SocketSpec, interface: u32) -> Result<Self, Error> {
        let (group, spec) = open_on_any_port(spec)?;
        Ok(Self::with(id, group, spec, Some(interface), true))
    }

    /// Opens a socket for incoming connections.
    ///
    /// # Errors
    /// As [`Socket::open`].
    pub fn listen(id: LinkId, spec: SocketSpec) -> Result<Self, Error> {
        let group = Socket::open_group(&spec)?;
        Ok(Self::with(id, group, spec, None, true))
    }

    /// Rebinds to another local address, or to an interface that came back under another index.
    ///
    /// # Errors
    /// As [`Socket::open`]; the link keeps its old socket.
    pub fn rebind(&mut self, local: IpAddr, interface: Option<u32>) -> Result<(), Error> {
        let spec = SocketSpec { local: SocketAddr::new(local, self.spec.local.port()), ..self.spec.clone() };
        let (group, spec) = open_on_any_port(spec)?;
        self.replace_group(group);
        self.spec = spec;
        (self.interface, self.waiting) = (interface.or(self.interface), false);
        Ok(())
    }

    /// Returns true if it is bound to this address and the interface with this index.
    pub fn is_bound_to(&self, local: IpAddr, interface: Option<u32>) -> bool {
        !self.waiting && self.spec.local.ip() == local && interface.is_none_or(|index| self.interface == Some(index))
    }

    /// Returns true if its interface has not existed since it was opened.
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Returns the link's number.
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Returns the address and port that it is bound to.
    pub fn local(&self) -> SocketAddr {
        self.socket.local()
    }

    /// Returns the index of its interface, if known.
    pub fn interface(&self) -> Option<u32> {
        self.interface
    }

    /// Returns true if its interface has this index, or this name after it came back under another index.
    pub fn uses_interface(&self, index: u32, name: &str) -> bool {
        !self.managed && self.is_on(index, name)
    }

    fn is_on(&self, index: u32, name: &str) -> bool {
        self.interface == Some(index) || self.spec.device.as_deref() == Some(name)
    }

    /// Returns true if its interface is gone and another one, with this index, has the name.
    pub fn needs_reopen(&self, index: u32, name: &str) -> bool {
        !self.is_sibling && self.spec.device.as_deref() == Some(name) && self.interface != Some(index)
    }

    /// Reopens the socket on an interface that came back: a bound socket stays on the removed one.
    ///
    /// # Errors
    /// As [`Socket::open`]; the link keeps its old socket.
    pub fn reopen(&mut self, interface: u32) -> Result<(), Error> {
        self.replace_group(Socket::open_group(&self.spec)?);
        (self.interface, self.waiting) = (Some(interface), false);
        Ok(())
    }

    /// Updates the interface that has the local address. Returns true if it differs from the previous one. A link that
    /// is bound to an interface keeps it; if that came back without the address, the link could not be reopened until
    /// now.
    pub fn on_address_added(&mut self, address: IpAddr, interface: u32) -> bool {
        if self.managed || self.spec.local.ip() != address {
            return false;
        }
        let is_bound = self.spec.device.is_some();
        let before = if is_bound { self.interface } else { self.interface.replace(interface) };
        before != Some(interface)
    }

    /// Passes one in `2^sampling_shift` handshake messages, and all from `exempt`; every one if `sampling_shift` is
    /// zero.
    ///
    /// # Errors
    /// The kernel rejected the filter.
    pub fn set_handshake_filter(&self, sampling_shift: u32, exempt: &[IpAddr]) -> Result<(), Error> {
        self.socket.set_handshake_filter(sampling_shift, exempt)
    }

    /// Returns true if datagrams wait for the socket.
    pub fn is_blocked(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Receives up to one batch of messages and passes them to the endpoint. Returns true if more may be pending.
    pub fn receive(&mut self, now: Time, clock: Clock, buffers: &mut Receive, endpoint: &mut Endpoint) -> bool {
        match self.socket.recv(buffers) {
            Ok(_) => {
                let read_at = clock.now();
                for message in buffers.iter_mut() {
                    let received = RecvMeta {
                        link: self.id,
                        from: message.from,
                        tos: message.tos,
                        segment: message.segment,
                        arrived_at: message.waited.map(|waited| read_at - waited),
                    };
                    endpoint.handle_datagrams(now, &received, message.bytes);
                }
                buffers.may_have_more()
            }
            Err(error) => {
                tracing::debug!(link = self.id.0, %error, "receive");
                true
            }
        }
    }

    /// Sends a batch, or queues it until the socket is writable. Drops it beyond [`MAX_BACKLOG`].
    pub fn send(&mut self, batch: Transmit, endpoint: &mut Endpoint) {
        if self.backlog.len() == MAX_BACKLOG {
            endpoint.handle_failure(Dropped::SendFailed, batch.count() as u64);
            return endpoint.recycle_transmit(batch);
        }
        self.backlog.push_back(Unsent { batch, sent: 0 });
        if self.backlog.len() == 1 {
            self.flush(endpoint);
        }
    }

    /// Sends from the backlog until the socket is full.
    pub fn flush(&mut self, endpoint: &mut Endpoint) {
        while let Some(mut unsent) = self.backlog.pop_front() {
            if self.send_batch(&mut unsent, endpoint) {
                endpoint.recycle_transmit(unsent.batch);
            } else {
                self.backlog.push_front(unsent);
                return;
            }
        }
    }

    /// Sends one batch; returns false if the socket is full before its end.
    fn send_batch(&mut self, unsent: &mut Unsent, endpoint: &mut Endpoint) -> bool {
        loop {
            let batch = &unsent.batch;
            let bytes = batch.bytes().get(unsent.sent * batch.segment..).unwrap_or_default();
            let sent = self.socket.send(&Datagrams { to: batch.to, tos: batch.tos, segment: batch.segment, bytes });
            unsent.sent += sent.datagrams;
            match sent.status {
                SendStatus::Complete => return true,
                SendStatus::Blocked => return false,
                SendStatus::Failed(error) => {
                    // Drops one datagram, as a network would; the next may pass.
                    tracing::debug!(link = self.id.0, to = %batch.to, %error, "send");
                    endpoint.handle_failure(Dropped::SendFailed, 1);
                    unsent.sent += 1;
                }
            }
        }
    }
}

/// Maximum number of queued batches: each has a buffer of 64 KiB, so 16 MB. A batch that is partly sent has fewer
/// datagrams left.
const MAX_BACKLOG: usize = 256;

/// Opens a socket that reaches nothing outside of this host, for a link whose interface does not exist.
fn open_placeholder(spec: &SocketSpec) -> Result<Group, Error> {
    let loopback = if spec.local.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    Socket::open_group(&SocketSpec {
        local: SocketAddr::new(loopback, 0),
        device: Some("lo".to_owned()),
        ..spec.clone()
    })
}

/// Opens a socket on the requested port, or on a free one if that is in use: in native mode the peer learns the port.
fn open_on_any_port(spec: SocketSpec) -> Result<(Group, SocketSpec), Error> {
    let taken = |error: &Error| error.errno() == Some(nix::libc::EADDRINUSE);
    match Socket::open_group(&spec) {
        Err(error) if taken(&error) => {
            let spec = SocketSpec { local: SocketAddr::new(spec.local.ip(), 0), ..spec };
            Socket::open_group(&spec).map(|group| (group, spec))
        }
        opened => opened.map(|group| (group, spec)),
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
