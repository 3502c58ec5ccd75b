//! Receives up to sixteen messages per call, each of up to 64 KiB that GRO merged from equal datagrams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use super::Socket;
use crate::sys::message::{self, Arrival, RECEIVE_BATCH};

/// Reusable buffers for [`Socket::recv`]. 1 MiB, of which only touched pages use memory.
#[derive(Debug)]
pub struct Receive {
    buffers: Vec<u8>,
    arrivals: [Arrival; RECEIVE_BATCH],
    count: usize,
    /// Messages that the next call takes.
    limit: usize,
    /// The last call took as many messages as it could.
    full: bool,
    /// The time of the last call.
    read_at: SystemTime,
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
    /// For how long the message waited in the socket's buffer, if the kernel reports it.
    pub waited: Option<Duration>,
    /// The datagrams, one after the other, for decryption in place. Empty for a datagram without payload.
    pub bytes: &'a mut [u8],
}

impl Receive {
    /// Allocates the buffers.
    pub fn new() -> Self {
        Self {
            buffers: vec![0; RECEIVE_BATCH * BUFFER_LEN],
            arrivals: [Arrival::NONE; RECEIVE_BATCH],
            count: 0,
            limit: RECEIVE_BATCH,
            full: false,
            read_at: SystemTime::UNIX_EPOCH,
        }
    }

    /// Returns true if more messages may be pending than the last [`Socket::recv`] took.
    pub fn may_have_more(&self) -> bool {
        self.full
    }

    /// Notes the result of a call, and limits the next one to about [`BATCH_BYTES`] of messages as long as these: more
    /// would leave the processor's cache before they are processed, and arrive out of turn with those of other sockets.
    fn on_received(&mut self, count: usize) {
        (self.count, self.full) = (count, count == self.limit);
        let bytes: usize = self.arrivals[..count].iter().map(|arrival| arrival.len).sum();
        let mean = bytes.checked_div(count).unwrap_or(0).max(1);
        self.limit = (BATCH_BYTES / mean).clamp(MIN_BATCH, RECEIVE_BATCH);
    }

    /// Returns the messages of the last [`Socket::recv`], in order of arrival.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = Received<'_>> {
        let arrivals = &self.arrivals[..self.count];
        self.buffers.chunks_exact_mut(BUFFER_LEN).zip(arrivals).map(|(buffer, arrival)| Received {
            from: arrival.from,
            tos: arrival.tos,
            segment: arrival.segment.unwrap_or(arrival.len).max(1),
            waited: arrival
                .time
                .and_then(|time| self.read_at.duration_since(time).ok())
                .filter(|time| *time < MAX_WAIT),
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
    /// Receives pending messages into `into`, replacing its contents, and returns their number: zero if there are none.
    ///
    /// An error is that of an earlier send or of the interface; it is reported once, and the next call may succeed.
    pub fn recv(&mut self, into: &mut Receive) -> io::Result<usize> {
        (into.count, into.full) = (0, false);
        let buffers = into.buffers.chunks_exact_mut(BUFFER_LEN).take(into.limit);
        match message::receive(self.as_fd(), buffers, &mut into.arrivals) {
            Ok(count) => {
                into.read_at = SystemTime::now();
                into.on_received(count);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(into.count)
    }
}

/// Bytes that one call is to take: four messages that GRO filled.
const BATCH_BYTES: usize = 4 << 16;
/// Messages that one call takes at least.
const MIN_BATCH: usize = 4;
/// A longer wait is a step of the clock.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// Larger than any UDP payload.
const BUFFER_LEN: usize = 65_536;
