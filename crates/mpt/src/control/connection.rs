//! One client's connection: lines in, lines out, neither without bound.
//!
//! The next line is only read when the last one has been answered and the answer has been taken, so a client that sends
//! without reading is left waiting and costs [`LINE_LIMIT`] bytes and one answer.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollFlags;

/// The longest request in bytes; the longest that makes sense has two names and 60 bytes around them.
pub const MAX_LINE: usize = 4096;

/// A client's connection.
#[derive(Debug)]
pub struct ClientConnection {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// A line was handed out and has not been answered.
    awaits_answer: bool,
    /// The client has said all that it will, or all that is listened to.
    input_closed: bool,
}

/// What came in.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// No whole line yet.
    Nothing,
    /// A line, without its end.
    Line(Vec<u8>),
    /// More than [`LINE_LIMIT`] bytes without an end.
    TooLong,
}

impl ClientConnection {
    /// Takes over a stream.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, input: Vec::new(), output: Vec::new(), awaits_answer: false, input_closed: false })
    }

    /// The next line, unless the client first has to take an answer. Reads once.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn poll_line(&mut self) -> io::Result<Input> {
        self.flush()?;
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

    /// Answers the last line with `line`.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn answer(&mut self, line: &[u8]) -> io::Result<()> {
        self.awaits_answer = false;
        self.output.extend_from_slice(line);
        self.output.push(b'\n');
        self.flush()
    }

    /// Whether nothing more will come of it.
    pub fn is_finished(&self) -> bool {
        self.input_closed && !self.awaits_answer && self.output.is_empty() && !self.has_line()
    }

    /// Whether the client went away without waiting for its answer. That alone would wake whoever waits again and again.
    pub fn is_abandoned(&self) -> bool {
        let mut asked = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        let _ = poll(&mut asked, PollTimeout::ZERO);
        asked[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }

    /// What to wait for. A whole line that waits in memory counts as something to write: the answer.
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
    fn a_client_that_goes_away_without_its_answer_is_noticed() {
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
    fn a_client_that_does_not_read_is_not_listened_to() {
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
