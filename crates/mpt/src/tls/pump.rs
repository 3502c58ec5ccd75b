//! Carries datagrams between the daemon, over UDP on loopback, and the other end, as WebSocket messages over TLS.
//!
//! Nothing waits for a slow end. While the TCP socket takes nothing, datagrams wait up to [`MAX_WAITING`], and further
//! ones are dropped and counted: to the tunnel that is a full link, and its congestion control has seen the delay.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mpt_linux::udp::{Datagrams, Receive, Socket};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};

use super::channel::{Channel, ReadProgress, timeout};
use super::frame::{self, Decoder, FrameKind, Side};

/// Counts what a connection has lost.
#[derive(Debug, Default)]
pub struct Counters {
    /// Datagrams of the daemon for which TCP had no room.
    pub dropped: AtomicU64,
}

/// A connection that carries datagrams.
pub struct Pump<'c> {
    channel: Channel,
    /// The socket on loopback.
    udp: Socket,
    /// The address of the daemon there. Datagrams of others are ignored.
    daemon: SocketAddr,
    side: Side,
    decoder: Decoder,
    /// Frames that wait for the channel.
    waiting: Vec<u8>,
    /// Datagrams of one length for the daemon.
    batch: Batch,
    masks: Masks,
    counters: &'c Counters,
    /// The last time at which something came from the other end.
    heard: Instant,
    /// The time of the next ping.
    ping: Instant,
    /// The daemon has sent something: who connects without the key of a peer gets no answer from it.
    is_answered: bool,
    started: Instant,
}

/// The reason why a connection has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The control descriptor is readable. The connection is still open.
    Requested,
    /// The other end or the network; with a description.
    Lost(String),
}

impl<'c> Pump<'c> {
    /// Makes one.
    pub fn new(channel: Channel, udp: Socket, daemon: SocketAddr, side: Side, counters: &'c Counters) -> Self {
        let now = Instant::now();
        Self {
            channel,
            udp,
            daemon,
            side,
            decoder: Decoder::new(side),
            waiting: Vec::new(),
            batch: Batch::default(),
            masks: Masks::default(),
            counters,
            heard: now,
            ping: now + PING,
            is_answered: false,
            started: now,
        }
    }

    /// Carries datagrams until `control` is readable, or the connection fails. `first` is what came before, behind the
    /// head of the upgrade.
    pub fn run(&mut self, first: &[u8], receive: &mut Receive, control: Option<BorrowedFd<'_>>) -> End {
        self.decoder.input().extend_from_slice(first);
        match self.run_to_end(receive, control) {
            Ok(end) => end,
            Err(error) => End::Lost(error.to_string()),
        }
    }

    fn run_to_end(&mut self, receive: &mut Receive, control: Option<BorrowedFd<'_>>) -> io::Result<End> {
        if let Some(end) = self.deliver() {
            return Ok(end);
        }
        loop {
            let (udp, tcp, requested) = self.wait(control)?;
            if requested {
                return Ok(End::Requested);
            }
            if udp {
                self.take_datagrams(receive)?;
            }
            if tcp {
                match self.channel.receive(self.decoder.input())? {
                    ReadProgress::Closed => return Ok(End::Lost("the other end closed the connection".to_owned())),
                    ReadProgress::More | ReadProgress::Waits => {}
                }
                self.heard = Instant::now();
                if let Some(end) = self.deliver() {
                    return Ok(end);
                }
            }
            if let Some(end) = self.check_times() {
                self.close();
                return Ok(end);
            }
            self.send_waiting()?;
        }
    }

    /// Waits, and returns whether the daemon, the other end, and the control descriptor are ready.
    fn wait(&self, control: Option<BorrowedFd<'_>>) -> io::Result<(bool, bool, bool)> {
        let left = self.deadline().saturating_duration_since(Instant::now());
        let mut all = vec![
            PollFd::new(self.udp.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.channel.as_fd(), self.channel.interest()),
        ];
        all.extend(control.map(|control| PollFd::new(control, PollFlags::POLLIN)));
        match poll(&mut all, timeout(left)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok((false, false, false)),
            Err(errno) => return Err(errno.into()),
        }
        let ready = |at: usize, flags: PollFlags| {
            all.get(at).and_then(|fd| fd.revents()).is_some_and(|events| events.intersects(flags))
        };
        let failed = PollFlags::POLLHUP | PollFlags::POLLERR;
        let input = PollFlags::POLLIN | failed;
        Ok((ready(0, input), ready(1, input), ready(2, input)))
    }

    /// Takes the datagrams of the daemon.
    fn take_datagrams(&mut self, receive: &mut Receive) -> io::Result<()> {
        if let Err(error) = self.udp.recv(receive) {
            // That of an earlier datagram.
            tracing::debug!(%error, "receive on loopback");
        }
        for message in receive.iter_mut().filter(|message| message.from == self.daemon) {
            self.is_answered = true;
            let segment = message.segment.max(1);
            for datagram in message.bytes.chunks(segment) {
                if self.waiting.len() >= MAX_WAITING {
                    self.counters.dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let mask = (self.side == Side::Client).then(|| self.masks.next()).transpose()?;
                frame::encode(&mut self.waiting, FrameKind::Datagram, mask, datagram);
            }
        }
        Ok(())
    }

    /// Passes received frames on. Returns the end of the connection if they contain it.
    fn deliver(&mut self) -> Option<End> {
        let Self { decoder, batch, udp, daemon, waiting, side, masks, .. } = self;
        loop {
            match decoder.poll() {
                Ok(Some((FrameKind::Datagram, datagram))) => batch.push(datagram, udp, *daemon),
                Ok(Some((FrameKind::Ping, payload))) if waiting.len() < MAX_WAITING => {
                    let mask = (*side == Side::Client).then(|| masks.next().unwrap_or_default());
                    frame::encode(waiting, FrameKind::Pong, mask, payload);
                }
                Ok(Some((FrameKind::Ping | FrameKind::Pong, _))) => {}
                Ok(Some((FrameKind::Close, _))) => {
                    break Some(End::Lost("the other end closed the connection".to_owned()));
                }
                Ok(None) => {
                    batch.send(udp, *daemon);
                    break None;
                }
                Err(malformed) => break Some(End::Lost(malformed.text().to_owned())),
            }
        }
    }

    /// Hands frames to TLS when all before them have left.
    fn send_waiting(&mut self) -> io::Result<()> {
        self.channel.flush()?;
        while !self.channel.is_blocked() && !self.waiting.is_empty() {
            self.channel.send(&self.waiting)?;
            self.waiting.clear();
        }
        Ok(())
    }

    /// Sends what is due, and returns the end of a connection that is silent.
    fn check_times(&mut self) -> Option<End> {
        let now = Instant::now();
        if self.side == Side::Client && now >= self.ping {
            self.ping = now + PING;
            let mask = self.masks.next().unwrap_or_default();
            frame::encode(&mut self.waiting, FrameKind::Ping, Some(mask), &[]);
        }
        if now >= self.heard + SILENCE {
            return Some(End::Lost(format!("nothing came for {} s", SILENCE.as_secs())));
        }
        let is_stranger = self.side == Side::Server && !self.is_answered;
        (is_stranger && now >= self.started + STRANGER).then(|| End::Lost("the tunnel does not answer it".to_owned()))
    }

    fn deadline(&self) -> Instant {
        let mut deadline = self.heard + SILENCE;
        if self.side == Side::Client {
            deadline = deadline.min(self.ping);
        } else if !self.is_answered {
            deadline = deadline.min(self.started + STRANGER);
        }
        deadline
    }

    /// Announces the end of the connection.
    pub fn close(&mut self) {
        let mut last = Vec::new();
        let mask = (self.side == Side::Client).then(|| self.masks.next().unwrap_or_default());
        frame::encode(&mut last, FrameKind::Close, mask, &1000_u16.to_be_bytes());
        let _ = self.channel.send(&last);
        self.channel.close();
    }

    /// Returns true if the daemon has ever sent something.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Returns the socket on loopback, and closes the connection.
    pub fn into_socket(self) -> Socket {
        self.udp
    }
}

/// Datagrams of one length, of which the last may be shorter: they take one system call together.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    segment: usize,
    count: usize,
}

impl Batch {
    fn push(&mut self, datagram: &[u8], udp: &mut Socket, daemon: SocketAddr) {
        if datagram.is_empty() {
            return;
        }
        let is_full = self.count == MAX_BATCH || self.bytes.len() + datagram.len() > frame::MAX_PAYLOAD - HEADERS;
        let is_ended = self.bytes.len() < self.count * self.segment || datagram.len() > self.segment;
        if self.count > 0 && (is_full || is_ended) {
            self.send(udp, daemon);
        }
        if self.count == 0 {
            self.segment = datagram.len();
        }
        self.bytes.extend_from_slice(datagram);
        self.count += 1;
    }

    /// Sends them. The daemon's socket has a buffer of megabytes; what does not fit there is lost.
    fn send(&mut self, udp: &mut Socket, daemon: SocketAddr) {
        if self.count > 0 {
            let sent = udp.send(&Datagrams { to: daemon, tos: 0, segment: self.segment, bytes: &self.bytes });
            if sent.datagrams < self.count {
                tracing::debug!(status = ?sent.status, "send on loopback");
            }
        }
        self.bytes.clear();
        self.count = 0;
    }
}

/// Masking keys, which must be random (RFC 6455 section 5.3): many from one system call.
#[derive(Debug, Default)]
struct Masks(Vec<u8>);

impl Masks {
    fn next(&mut self) -> io::Result<[u8; 4]> {
        if self.0.len() < 4 {
            self.0.resize(4_096, 0);
            getrandom::fill(&mut self.0).map_err(|error| io::Error::other(error.to_string()))?;
        }
        let rest = self.0.len() - 4;
        let mask = self.0[rest..].try_into().unwrap_or_default();
        self.0.truncate(rest);
        Ok(mask)
    }
}

/// Bytes that wait while the TCP socket is full: 10 ms at 50 Mbit/s.
const MAX_WAITING: usize = 65_536;
/// Datagrams of one system call: the limit of kernels before 6.9.
const MAX_BATCH: usize = 64;
/// Bytes of IP and UDP in the largest packet.
const HEADERS: usize = 28;
/// Interval of the client's pings. They keep the bindings of address translators, and show that the server is there.
const PING: Duration = Duration::from_secs(20);
/// A connection on which nothing came for so long is dead.
const SILENCE: Duration = Duration::from_secs(50);
/// The time in which the daemon must have answered, or the connection is not that of a peer.
const STRANGER: Duration = Duration::from_secs(15);
