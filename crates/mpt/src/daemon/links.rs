//! The UDP sockets of a tunnel, and what they could not send yet.
//!
//! A socket whose send buffer is full keeps its datagrams here, in order, until it is writable again; meanwhile the
//! endpoint is told not to use it, so that a slow interface never holds the others back and little ever waits here. What has to leave
//! by this very socket all the same, as probes and answers to handshakes have, waits as well, up to a bound.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use mpt_linux::Error;
use mpt_linux::udp::{Datagrams, Receive, SendStatus, Socket, SocketSpec};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use mpt_proto::tx::Transmit;

/// One socket and its backlog.
#[derive(Debug)]
pub struct Link {
    id: LinkId,
    socket: Socket,
    spec: SocketSpec,
    /// The interface that it leaves by, as far as is known.
    interface: Option<u32>,
    /// The path manager looks after it.
    managed: bool,
    backlog: VecDeque<Unsent>,
}

/// A run, and how many of its datagrams are done with.
#[derive(Debug)]
struct Unsent {
    batch: Transmit,
    sent: usize,
}

impl Link {
    /// Opens the socket of a link that leaves by `interface`, as far as that is known.
    ///
    /// # Errors
    /// As [`Socket::open`].
    pub fn open(id: LinkId, spec: SocketSpec, interface: Option<u32>) -> Result<Self, Error> {
        let socket = Socket::open(&spec)?;
        Ok(Self { id, socket, spec, interface, managed: false, backlog: VecDeque::new() })
    }

    /// Opens the socket of a link that the path manager looks after. Where another socket has the port, any other does.
    ///
    /// # Errors
    /// As [`Socket::open`].
    pub fn open_managed(id: LinkId, spec: SocketSpec, interface: u32) -> Result<Self, Error> {
        let (socket, spec) = open_on_any_port(spec)?;
        Ok(Self { id, socket, spec, interface: Some(interface), managed: true, backlog: VecDeque::new() })
    }

    /// Opens a socket on which peers call.
    ///
    /// # Errors
    /// As [`Socket::open`].
    pub fn listen(id: LinkId, spec: SocketSpec) -> Result<Self, Error> {
        let socket = Socket::open(&spec)?;
        Ok(Self { id, socket, spec, interface: None, managed: true, backlog: VecDeque::new() })
    }

    /// Leaves from another local address, or by an interface that came back under another index.
    ///
    /// # Errors
    /// As [`Socket::open`]; the link keeps its old socket.
    pub fn rebind(&mut self, local: IpAddr, interface: Option<u32>) -> Result<(), Error> {
        let spec = SocketSpec { local: SocketAddr::new(local, self.spec.local.port()), ..self.spec.clone() };
        (self.socket, self.spec) = open_on_any_port(spec)?;
        self.interface = interface.or(self.interface);
        Ok(())
    }

    /// Whether it leaves from this address already, by the interface of this index.
    pub fn is_bound_to(&self, local: IpAddr, interface: Option<u32>) -> bool {
        self.spec.local.ip() == local && interface.is_none_or(|index| self.interface == Some(index))
    }

    /// Which link it is.
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// The index of the interface that it leaves by, as far as is known.
    pub fn interface(&self) -> Option<u32> {
        self.interface
    }

    /// Whether it leaves by the interface of this index, or by one of this name that came back under another index.
    pub fn uses_interface(&self, index: u32, name: &str) -> bool {
        !self.managed && self.is_on(index, name)
    }

    fn is_on(&self, index: u32, name: &str) -> bool {
        self.interface == Some(index) || self.spec.device.as_deref() == Some(name)
    }

    /// Whether its interface is gone and the one of this index has taken the name.
    pub fn needs_reopen(&self, index: u32, name: &str) -> bool {
        self.spec.device.as_deref() == Some(name) && self.interface != Some(index)
    }

    /// Opens the socket anew on an interface that came back, which a bound socket does not follow by itself.
    ///
    /// # Errors
    /// As [`Socket::open`]; the link keeps its old socket.
    pub fn reopen(&mut self, interface: u32) -> Result<(), Error> {
        self.socket = Socket::open(&self.spec)?;
        self.interface = Some(interface);
        Ok(())
    }

    /// Takes note of which interface has the address that it leaves from, and says whether that is another one than before. A link that
    /// is bound to an interface stays there; where that came back without the address, the link could not follow until now.
    pub fn on_address_added(&mut self, address: IpAddr, interface: u32) -> bool {
        if self.managed || self.spec.local.ip() != address {
            return false;
        }
        let is_bound = self.spec.device.is_some();
        let before = if is_bound { self.interface } else { self.interface.replace(interface) };
        before != Some(interface)
    }

    /// Lets one in `2^thinning` handshake messages pass, and all from `known`; every one without thinning.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn set_handshake_filter(&self, thinning: u32, known: &[IpAddr]) -> Result<(), Error> {
        self.socket.set_handshake_filter(thinning, known)
    }

    /// Whether datagrams wait for the socket.
    pub fn is_blocked(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Hands everything that has arrived, up to one batch, to the endpoint.
    pub fn receive(&mut self, now: Time, buffers: &mut Receive, endpoint: &mut Endpoint) {
        match self.socket.recv(buffers) {
            Ok(_) => {
                for message in buffers.iter_mut() {
                    let received =
                        RecvMeta { link: self.id, from: message.from, tos: message.tos, segment: message.segment };
                    endpoint.handle_datagrams(now, &received, message.bytes);
                }
            }
            Err(error) => tracing::debug!(link = self.id.0, %error, "receive"),
        }
    }

    /// Sends a run, or keeps it until the socket has room. Beyond [`MAX_WAITING`] it is dropped.
    pub fn send(&mut self, run: Transmit, endpoint: &mut Endpoint) {
        if self.backlog.len() == MAX_BACKLOG {
            endpoint.handle_failure(Dropped::SendFailed, run.count() as u64);
            return endpoint.recycle_transmit(run);
        }
        self.backlog.push_back(Unsent { batch: run, sent: 0 });
        if self.backlog.len() == 1 {
            self.flush(endpoint);
        }
    }

    /// Sends what waits, as far as the socket takes it.
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

    /// Sends one run; false when the socket is full before its end.
    fn send_batch(&mut self, unsent: &mut Unsent, endpoint: &mut Endpoint) -> bool {
        loop {
            let run = &unsent.batch;
            let bytes = run.bytes().get(unsent.sent * run.segment..).unwrap_or_default();
            let sent = self.socket.send(&Datagrams { to: run.to, tos: run.tos, segment: run.segment, bytes });
            unsent.sent += sent.datagrams;
            match sent.status {
                SendStatus::Complete => return true,
                SendStatus::Blocked => return false,
                SendStatus::Failed(error) => {
                    // One datagram is given up, as a network would; the next may have better luck.
                    tracing::debug!(link = self.id.0, to = %run.to, %error, "send");
                    endpoint.handle_failure(Dropped::SendFailed, 1);
                    unsent.sent += 1;
                }
            }
        }
    }
}

/// Runs that wait for a full socket: each has a buffer of 64 KiB, so 16 MB at most. A turn that finds the socket full half way brings fewer.
const MAX_BACKLOG: usize = 256;

/// Opens a socket on the port that is wanted, or on any when that is taken: in native mode the peer finds out.
fn open_on_any_port(spec: SocketSpec) -> Result<(Socket, SocketSpec), Error> {
    let taken = |error: &Error| error.errno() == Some(nix::libc::EADDRINUSE);
    match Socket::open(&spec) {
        Err(error) if taken(&error) => {
            let spec = SocketSpec { local: SocketAddr::new(spec.local.ip(), 0), ..spec };
            Socket::open(&spec).map(|socket| (socket, spec))
        }
        opened => opened.map(|socket| (socket, spec)),
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
