//! One client's connection: requests and responses as lines, with bounded buffers.
//!
//! The next line is only read when the last one has been answered and the client has read the answer, so a client that
//! sends without reading costs at most [`MAX_LINE`] bytes and one answer. Events for a client that watches are buffered
//! up to [`MAX_BACKLOG`] bytes; beyond that they are counted, and the count follows when the client has read the
//! others.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollFlags;

use super::Response;

/// A client's connection.
#[derive(Debug)]
pub struct ClientConnection {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// A line was returned and has not been answered.
    awaits_answer: bool,
    /// The client has closed its side, or sent an oversized line.
    input_closed: bool,
    /// The client gets events.
    watches: bool,
    /// Number of events that were dropped for lack of room.
    lost: u64,
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// No complete line yet.
    Nothing,
    /// A line, without its line end.
    Line(Vec<u8>),
    /// More than [`MAX_LINE`] bytes without a line end.
    TooLong,
}

impl ClientConnection {
    /// Wraps a stream.
    ///
    /// # Errors
    /// It cannot be made non-blocking.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            awaits_answer: false,
            input_closed: false,
            watches: false,
            lost: 0,
        })
    }

    /// Returns the next line, unless the client has to read an answer first. Reads once.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn poll_line(&mut self) -> io::Result<Input> {
        self.send()?;
        if self.awaits_answer || !self.output.is_empty() {
            return Ok(Input::Nothing);
        }
        if !self.has_line() && !self.input_closed {
            self.fill()?;
        }
        if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let mut line: Vec<_> = self.input.drain(..=end).collect();
            line.pop();
            self.awaits_answer = true;
            return Ok(Input::Line(line));
        }
        if self.input.len() >= MAX_LINE {
            self.input.clear();
            self.input_closed = true;
            return Ok(Input::TooLong);
        }
        Ok(Input::Nothing)
    }

    /// Sends `line` as the answer to the last line.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn answer(&mut self, line: &[u8]) -> io::Result<()> {
        self.awaits_answer = false;
        self.output.extend_from_slice(line);
        self.output.push(b'\n');
        self.flush()
    }

    /// Takes events from now on.
    pub fn watch(&mut self) {
        self.watches = true;
    }

    /// Returns true if the client gets events.
    pub fn watches(&self) -> bool {
        self.watches
    }

    /// Buffers an event. After the first one that has no room, all are counted until the client has read the others.
    pub fn push(&mut self, line: &[u8]) {
        if self.lost > 0 || self.output.len() + line.len() >= MAX_BACKLOG {
            self.lost += 1;
        } else {
            self.output.extend_from_slice(line);
            self.output.push(b'\n');
        }
    }

    /// Sends what is buffered, as far as the client reads, and then the number of lost events.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn send(&mut self) -> io::Result<()> {
        self.flush()?;
        if self.output.is_empty() && self.lost > 0 {
            let lost = Response::Lost { events: std::mem::take(&mut self.lost) };
            self.output = serde_json::to_vec(&lost)?;
            self.output.push(b'\n');
            self.flush()?;
        }
        Ok(())
    }

    /// Returns true if no more input or output will follow.
    pub fn is_finished(&self) -> bool {
        self.input_closed && !self.awaits_answer && self.output.is_empty() && !self.has_line()
    }

    /// Returns true if the client disconnected without waiting for its answer. A hang-up alone would be reported by
    /// epoll endlessly.
    pub fn is_abandoned(&self) -> bool {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        let _ = poll(&mut fds, PollTimeout::ZERO);
        fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }

    /// Returns the events to wait for. A buffered line counts as output: its answer.
    pub fn interest(&self) -> EpollFlags {
        match () {
            () if !self.output.is_empty() || self.has_line() && !self.awaits_answer => EpollFlags::EPOLLOUT,
            () if self.awaits_answer || self.input_closed => EpollFlags::empty(),
            () => EpollFlags::EPOLLIN,
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut bytes = [0; MAX_LINE];
        let room = MAX_LINE - self.input.len();
        match self.stream.read(&mut bytes[..room]) {
            Ok(0) => self.input_closed = true,
            Ok(len) => self.input.extend_from_slice(&bytes[..len]),
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(len) => drop(self.output.drain(..len)),
                Err(error) if is_transient(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn has_line(&self) -> bool {
        self.input.contains(&b'\n')
    }
}

impl AsFd for ClientConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Maximum bytes of a request; a meaningful one has two names and 60 bytes around them.
pub const MAX_LINE: usize = 4096;

/// Maximum bytes of events for a client that does not read: some five hundred.
pub const MAX_BACKLOG: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, ClientConnection) {
        let (client, server) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        (client, ClientConnection::new(server).unwrap())
    }

    #[test]
    fn a_line_may_come_in_pieces() {
        let (mut client, mut connection) = pair();
        client.write_all(b"sta").unwrap();
        assert_eq!(connection.poll_line().unwrap(), Input::Nothing);
        client.write_all(b"tus\n").unwrap();
        assert_eq!(connection.poll_line().unwrap(), Input::Line(b"status".to_vec()));
    }

    #[test]
    fn the_next_line_waits_for_the_answer_to_the_last() {
        let (mut client, mut connection) = pair();
        client.write_all(b"one\ntwo\n").unwrap();
        assert_eq!(connection.poll_line().unwrap(), Input::Line(b"one".to_vec()));
        assert_eq!(connection.poll_line().unwrap(), Input::Nothing);
        connection.answer(b"1").unwrap();
        assert_eq!(connection.interest(), EpollFlags::EPOLLOUT);
        assert_eq!(connection.poll_line().unwrap(), Input::Line(b"two".to_vec()));
    }

    #[test]
    fn a_client_that_disconnects_without_its_answer_is_detected() {
        let (mut client, mut connection) = pair();
        client.write_all(b"create c.conf\nstatus\n").unwrap();
        connection.poll_line().unwrap();
        assert_eq!(connection.interest(), EpollFlags::empty(), "the first has not been answered");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!connection.is_abandoned(), "it still listens");
        drop(client);
        assert!(connection.is_abandoned());
    }

    #[test]
    fn a_line_without_end_is_cut_off() {
        let (mut client, mut connection) = pair();
        client.write_all(&[b'x'; MAX_LINE]).unwrap();
        assert_eq!(connection.poll_line().unwrap(), Input::TooLong);
        assert!(connection.is_finished());
    }

    #[test]
    fn a_client_that_does_not_read_is_not_read_from() {
        let (mut client, mut connection) = pair();
        client.write_all(b"one\ntwo\n").unwrap();
        connection.poll_line().unwrap();
        connection.answer(&vec![b'x'; 4 << 20]).unwrap();
        assert_eq!(connection.poll_line().unwrap(), Input::Nothing);
        assert_eq!(connection.interest(), EpollFlags::EPOLLOUT);
    }

    #[test]
    fn a_client_that_sends_and_closes_its_side_gets_its_answer() {
        let (mut client, mut connection) = pair();
        client.write_all(b"status\n").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(connection.poll_line().unwrap(), Input::Line(b"status".to_vec()));
        assert!(!connection.is_finished());
        connection.answer(b"fine").unwrap();
        assert_eq!(connection.poll_line().unwrap(), Input::Nothing);
        assert!(connection.is_finished());
        let mut answer = Vec::new();
        drop(connection);
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"fine\n");
    }
}
