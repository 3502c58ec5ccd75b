//! Receiving: up to sixteen messages a call, each of up to 64 KiB that GRO joined from equal datagrams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use super::Socket;
use crate::sys::message::{self, Arrival, RECEIVE_BATCH};

/// Buffers for one [`Socket::recv`], to be made once and used again. 1 MiB, of which only what is used is backed by
/// memory.
#[derive(Debug)]
pub struct Receive {
    buffers: Vec<u8>,
    arrivals: [Arrival; RECEIVE_BATCH],
    count: usize,
}

/// One received message: datagrams of one sender and one TOS.
#[derive(Debug)]
pub struct Received<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The outer TOS or traffic class: DSCP and ECN.
    pub tos: u8,
    /// Bytes of every datagram but the last, which may be shorter. At least 1, so that `chunks_mut` takes it.
    pub segment: usize,
    /// The datagrams, one after the other, to be opened in place. Empty for a datagram without payload.
    pub bytes: &'a mut [u8],
}

/// No UDP payload is longer.
const BUFFER_LEN: usize = 65_536;

impl Receive {
    /// Makes the buffers.
    pub fn new() -> Self {
        Self { buffers: vec![0; RECEIVE_BATCH * BUFFER_LEN], arrivals: [Arrival::NONE; RECEIVE_BATCH], count: 0 }
    }

    /// What the last [`Socket::recv`] brought, in the order of arrival.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = Received<'_>> {
        let arrivals = &self.arrivals[..self.count];
        self.buffers.chunks_exact_mut(BUFFER_LEN).zip(arrivals).map(|(buffer, arrival)| Received {
            from: arrival.from,
            tos: arrival.tos,
            segment: arrival.segment.unwrap_or(arrival.len).max(1),
            bytes: &mut buffer[..arrival.len],
        })
    }
}

impl Default for Receive {
    fn default() -> Self {
        Self::new()
    }
}

impl Socket {
    /// Receives what is there into `into`, whose former contents are lost, and returns how many messages that is: zero
    /// when there is nothing. Fewer than sixteen mean that there is no more.
    ///
    /// An error is that of an earlier send or of the interface; it is reported once, and the next call may succeed.
    pub fn recv(&mut self, into: &mut Receive) -> io::Result<usize> {
        into.count = 0;
        let buffers = into.buffers.chunks_exact_mut(BUFFER_LEN);
        match message::receive(self.as_fd(), buffers, &mut into.arrivals) {
            Ok(count) => into.count = count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(into.count)
    }
}
