//! The UDP sockets of a tunnel, and what they could not send yet.
//!
//! A socket whose send buffer is full keeps its datagrams here, in order, until it is writable again; meanwhile the
//! endpoint is told not to use it, so that a slow interface never holds the others back and little ever waits here.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use mpt_linux::udp::{Datagrams, Receive, Rest, Socket};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::{Endpoint, Received};
use mpt_proto::outbox::Transmit;
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;

/// One socket and its backlog.
#[derive(Debug)]
pub struct Link {
    id: LinkId,
    socket: Socket,
    device: Option<String>,
    waiting: VecDeque<Unsent>,
}

/// A run, and how many of its datagrams are done with.
#[derive(Debug)]
struct Unsent {
    run: Transmit,
    done: usize,
}

impl Link {
    /// Makes a link of an open socket.
    pub fn new(id: LinkId, socket: Socket, device: Option<String>) -> Self {
        Self { id, socket, device, waiting: VecDeque::new() }
    }

    /// The interface that it is bound to.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether datagrams wait for the socket.
    pub fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Hands everything that has arrived, up to one batch, to the endpoint.
    pub fn receive(&mut self, now: Time, buffers: &mut Receive, endpoint: &mut Endpoint) {
        match self.socket.recv(buffers) {
            Ok(_) => {
                for message in buffers.iter_mut() {
                    let received =
                        Received { link: self.id, from: message.from, tos: message.tos, segment: message.segment };
                    endpoint.handle_datagrams(now, &received, message.bytes);
                }
            }
            Err(error) => tracing::debug!(link = self.id.0, %error, "receive"),
        }
    }

    /// Sends a run, or keeps it until the socket has room.
    pub fn send(&mut self, run: Transmit, endpoint: &mut Endpoint) {
        self.waiting.push_back(Unsent { run, done: 0 });
        if self.waiting.len() == 1 {
            self.send_waiting(endpoint);
        }
    }

    /// Sends what waits, as far as the socket takes it.
    pub fn send_waiting(&mut self, endpoint: &mut Endpoint) {
        while let Some(mut unsent) = self.waiting.pop_front() {
            if self.send_run(&mut unsent, endpoint) {
                endpoint.recycle_transmit(unsent.run);
            } else {
                self.waiting.push_front(unsent);
                return;
            }
        }
    }

    /// Sends one run; false when the socket is full before its end.
    fn send_run(&mut self, unsent: &mut Unsent, endpoint: &mut Endpoint) -> bool {
        loop {
            let run = &unsent.run;
            let bytes = run.bytes().get(unsent.done * run.segment..).unwrap_or_default();
            let sent = self.socket.send(&Datagrams { to: run.to, tos: run.tos, segment: run.segment, bytes });
            unsent.done += sent.datagrams;
            match sent.rest {
                Rest::Nothing => return true,
                Rest::Full => return false,
                Rest::Failed(error) => {
                    // One datagram is given up, as a network would; the next may have better luck.
                    tracing::debug!(link = self.id.0, to = %run.to, %error, "send");
                    endpoint.handle_failure(Dropped::SendFailed, 1);
                    unsent.done += 1;
                }
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
