//! A TLS connection over a TCP socket that does not block.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustls::Connection;
use socket2::SockRef;

/// The connection.
#[derive(Debug)]
pub struct Channel {
    tcp: TcpStream,
    tls: Connection,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProgress {
    /// More may be pending.
    More,
    /// Nothing is pending.
    Waits,
    /// The other end has closed the connection.
    Closed,
}

impl Channel {
    /// Takes a connected socket and the state of a new TLS connection.
    ///
    /// # Errors
    /// The system refuses an option.
    pub fn new(tcp: TcpStream, mut tls: Connection) -> io::Result<Self> {
        // The limit would cut what is sent. The callers bound it: no one sends before everything earlier has left.
        tls.set_buffer_limit(None);
        tcp.set_nonblocking(true)?;
        tcp.set_nodelay(true)?;
        SockRef::from(&tcp).set_tcp_notsent_lowat(NOT_SENT)?;
        Ok(Self { tcp, tls })
    }

    /// Returns true if bytes wait for the socket.
    pub fn is_blocked(&self) -> bool {
        self.tls.wants_write()
    }

    /// Returns the events to wait for.
    pub fn interest(&self) -> PollFlags {
        if self.is_blocked() { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Seals `bytes`, and sends what the socket takes at once.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.writer().write_all(bytes)?;
        self.flush()
    }

    /// Sends what waits, as far as the socket takes it.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.tcp) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends what has arrived to `into`: up to [`READ`] bytes.
    ///
    /// # Errors
    /// The connection has failed, or what arrived is no TLS.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<ReadProgress> {
        let start = into.len();
        while into.len() - start < READ {
            match self.tls.read_tls(&mut self.tcp) {
                Ok(0) => return Ok(ReadProgress::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(ReadProgress::Waits),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let state = self.tls.process_new_packets();
            if state.is_err() {
                // Sends the alert, as far as possible.
                let _ = self.flush();
            }
            let state = state.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            let before = into.len();
            into.resize(before + state.plaintext_bytes_to_read(), 0);
            self.tls.reader().read_exact(&mut into[before..])?;
            if state.peer_has_closed() {
                return Ok(ReadProgress::Closed);
            }
        }
        Ok(ReadProgress::More)
    }

    /// Sends `bytes` and everything before them, and waits for that until the deadline.
    ///
    /// # Errors
    /// The connection has failed, or the time is over.
    pub fn send_before(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        self.send(bytes)?;
        while self.is_blocked() {
            self.wait(PollFlags::POLLOUT, deadline)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Completes the handshake of TLS before the deadline. What has arrived behind it is appended to `into`.
    ///
    /// # Errors
    /// The connection has failed, or the time is over.
    pub fn handshake(&mut self, into: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        self.flush()?;
        while self.tls.is_handshaking() {
            self.receive_before(into, deadline)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Waits until something has arrived, and appends it to `into`.
    ///
    /// # Errors
    /// The connection has failed or ended, or the time is over.
    pub fn receive_before(&mut self, into: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        self.wait(self.interest(), deadline)?;
        self.flush()?;
        match self.receive(into)? {
            ReadProgress::Closed => Err(ErrorKind::UnexpectedEof.into()),
            ReadProgress::More | ReadProgress::Waits => Ok(()),
        }
    }

    /// Announces the end of the connection.
    pub fn close(&mut self) {
        self.tls.send_close_notify();
        let _ = self.flush();
    }

    fn wait(&self, events: PollFlags, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        match poll(&mut [PollFd::new(self.as_fd(), events)], timeout(left)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

/// Converts a time to that of `poll`, rounded up.
pub fn timeout(time: Duration) -> PollTimeout {
    let millis = time.as_millis().saturating_add(1).min(60_000);
    PollTimeout::try_from(millis as i32).unwrap_or(PollTimeout::MAX)
}

/// Bytes that TCP takes before they can leave. Congestion control of the tunnel measures what waits there as delay.
const NOT_SENT: u32 = 32_768;
/// Bytes that are read before the other direction gets its turn.
const READ: usize = 131_072;
