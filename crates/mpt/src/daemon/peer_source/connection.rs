//! The connection to the source of peers: lines in both directions, with bounded buffers, and attempts to connect again
//! while there is none. Nothing here waits.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mpt_linux::Reactor;
use mpt_linux::reactor::{Interest, Token};
use mpt_proto::time::Time;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::daemon::rare_log::RareLog;

/// A connection, or the attempts to have one.
#[derive(Debug)]
pub struct SourceConnection {
    path: PathBuf,
    token: Token,
    stream: Option<UnixStream>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The socket is registered for writing.
    awaits_room: bool,
    /// The time since which the source has read nothing of what waits.
    blocked_since: Option<Time>,
    retry: Time,
    interval: Duration,
    found: RareLog,
    lost: RareLog,
    /// Connections that were lost.
    pub losses: u64,
}

impl SourceConnection {
    /// Makes one that connects at once.
    pub fn new(path: PathBuf, token: Token) -> Self {
        Self {
            path,
            token,
            stream: None,
            input: Vec::new(),
            output: Vec::new(),
            awaits_room: false,
            blocked_since: None,
            retry: Time::START,
            interval: FIRST_RETRY,
            found: RareLog::default(),
            lost: RareLog::default(),
            losses: 0,
        }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true while there is a connection.
    pub fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Connects if that is due. Returns true if it did.
    pub fn connect(&mut self, now: Time, reactor: &Reactor) -> bool {
        if self.stream.is_some() || now < self.retry {
            return false;
        }
        match open(&self.path).and_then(|stream| {
            reactor.add(&stream, self.token, Interest::Read).map_err(io::Error::other)?;
            Ok(stream)
        }) {
            Ok(stream) => {
                self.stream = Some(stream);
                (self.input, self.output) = (Vec::new(), Vec::new());
                (self.awaits_room, self.blocked_since) = (false, None);
                if self.found.may_log(now) {
                    tracing::info!(socket = %self.path.display(), "connected to the source of peers");
                }
                true
            }
            Err(error) => {
                self.retry_later(now);
                if self.lost.may_log(now) {
                    let hint = match error.kind() {
                        ErrorKind::PermissionDenied => "the user of this tunnel needs write permission to the socket",
                        _ => "start the program at the other end; established sessions continue",
                    };
                    let socket = self.path.display();
                    tracing::warn!(%socket, %error, "no connection to the source of peers; hint: {hint}");
                }
                false
            }
        }
    }

    /// Returns the time of the next attempt to connect, or of the end of a connection that is not read.
    pub fn next_deadline(&self) -> Option<Time> {
        match &self.stream {
            None => Some(self.retry),
            Some(_) => self.blocked_since.map(|since| since + MAX_BLOCKED),
        }
    }

    /// Reads once.
    pub fn receive(&mut self, now: Time) {
        let Some(stream) = &mut self.stream else { return };
        if self.input.len() > MAX_LINE {
            return;
        }
        let before = self.input.len();
        self.input.resize(before + READ, 0);
        let read = stream.read(&mut self.input[before..]);
        self.input.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => self.close(now, "it has closed the connection"),
            Ok(_) => self.interval = FIRST_RETRY,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.close(now, &error.to_string()),
        }
    }

    /// Returns the next line that has arrived, without its end.
    pub fn next_line(&mut self, now: Time) -> Option<Vec<u8>> {
        match self.input.iter().position(|byte| *byte == b'\n') {
            Some(end) if end < MAX_LINE => {
                let mut line: Vec<_> = self.input.drain(..=end).collect();
                line.pop();
                Some(line)
            }
            None if self.input.len() < MAX_LINE => None,
            _ => {
                self.close(now, "it has sent a line of more than 16 KiB");
                None
            }
        }
    }

    /// Returns true if [`Self::next_line`] has something.
    pub fn has_line(&self) -> bool {
        self.input.contains(&b'\n') || self.input.len() >= MAX_LINE
    }

    /// Returns true if more can be sent without waiting for the source to read.
    pub fn has_room(&self) -> bool {
        self.stream.is_some() && self.output.len() < MAX_OUTPUT
    }

    /// Sends a line, with the next [`Self::flush`].
    pub fn send(&mut self, message: &impl serde::Serialize) {
        if self.has_room() && serde_json::to_writer(&mut self.output, message).is_ok() {
            self.output.push(b'\n');
        }
    }

    /// Writes what waits, as far as there is room.
    pub fn flush(&mut self, now: Time, reactor: &Reactor) {
        let Some(stream) = &mut self.stream else { return };
        let before = self.output.len();
        let mut written = 0;
        let failed = loop {
            if written == before {
                break None;
            }
            match stream.write(&self.output[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Some(error.to_string()),
            }
        };
        self.output.drain(..written);
        let waits = !self.output.is_empty();
        self.blocked_since = match self.blocked_since {
            Some(since) if waits && written == 0 => Some(since),
            _ => waits.then_some(now),
        };
        if waits != self.awaits_room {
            self.awaits_room = waits;
            let interest = if waits { Interest::Both } else { Interest::Read };
            if let Err(error) = reactor.modify(&*stream, self.token, interest) {
                tracing::warn!(%error, "cannot register the source of peers");
            }
        }
        match failed {
            Some(error) => self.close(now, &error),
            None if self.blocked_since.is_some_and(|since| now >= since + MAX_BLOCKED) => {
                self.close(now, "it has read nothing for 10 s");
            }
            None => {}
        }
    }

    /// Ends the connection; the next attempt follows.
    pub fn close(&mut self, now: Time, why: &str) {
        if self.stream.take().is_none() {
            return;
        }
        (self.input, self.output, self.blocked_since) = (Vec::new(), Vec::new(), None);
        self.losses += 1;
        self.retry_later(now);
        if self.lost.may_log(now) {
            let socket = self.path.display();
            tracing::warn!(%socket, "lost the source of peers: {why}; established sessions continue");
        }
    }

    fn retry_later(&mut self, now: Time) {
        self.retry = now + self.interval;
        self.interval = (self.interval * 2).min(LAST_RETRY);
    }
}

/// Connects to the source; the stream does not block.
///
/// # Errors
/// The system's error.
pub fn open(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // A full backlog is an error of a non-blocking socket, not a wait.
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd.into())
}

/// The longest line, with its end.
const MAX_LINE: usize = 16 << 10;
const READ: usize = 16 << 10;
/// Bytes that wait for the source: 256 questions of 150 bytes, and some hundred events.
const MAX_OUTPUT: usize = 128 << 10;
/// A source that reads nothing for this long is stuck. Another connection may reach one that is not.
const MAX_BLOCKED: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use mpt_linux::reactor::Clock;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    fn pair(folder: &Path) -> (UnixListener, Reactor, SourceConnection) {
        let path = folder.join("s");
        let listener = UnixListener::bind(&path).unwrap();
        (listener, Reactor::new(Clock::start()).unwrap(), SourceConnection::new(path, Token(1)))
    }

    fn line(connection: &mut SourceConnection, now: Time) -> Option<String> {
        connection.receive(now);
        connection.next_line(now).map(|line| String::from_utf8(line).unwrap())
    }

    #[test]
    fn it_connects_again_at_growing_intervals() {
        let folder = tempfile::tempdir().unwrap();
        let reactor = Reactor::new(Clock::start()).unwrap();
        let mut connection = SourceConnection::new(folder.path().join("s"), Token(1));
        let mut tries = Vec::new();
        for ms in 0..8_000 {
            if connection.next_deadline().is_some_and(|due| due <= at(ms)) {
                tries.push(ms);
                assert!(!connection.connect(at(ms), &reactor));
            }
        }
        assert_eq!(tries, [0, 100, 300, 700, 1_500, 3_100, 5_100, 7_100]);
        let _listener = UnixListener::bind(folder.path().join("s")).unwrap();
        assert!(connection.connect(at(9_100), &reactor));
        assert_eq!(connection.next_deadline(), None);
    }

    #[test]
    fn lines_are_cut_and_a_long_one_ends_the_connection() {
        let folder = tempfile::tempdir().unwrap();
        let (listener, reactor, mut connection) = pair(folder.path());
        assert!(connection.connect(at(0), &reactor));
        let (mut far, _) = listener.accept().unwrap();
        far.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(line(&mut connection, at(0)).as_deref(), Some("one"));
        assert!(connection.has_line());
        assert_eq!(line(&mut connection, at(0)).as_deref(), Some("two"));
        assert_eq!(line(&mut connection, at(0)), None);
        far.write_all(&[b'x'; 20_000]).unwrap();
        (0..4).for_each(|_| assert_eq!(line(&mut connection, at(0)), None));
        assert_eq!((connection.is_open(), connection.losses), (false, 1));
    }

    #[test]
    fn a_source_that_does_not_read_costs_a_bounded_buffer_and_is_left_after_ten_seconds() {
        let folder = tempfile::tempdir().unwrap();
        let (listener, reactor, mut connection) = pair(folder.path());
        assert!(connection.connect(at(0), &reactor));
        let _far = listener.accept().unwrap();
        while connection.has_room() {
            connection.send(&"x".repeat(1_000));
            connection.flush(at(0), &reactor);
        }
        (0..10_000).for_each(|_| connection.send(&"x".repeat(1_000)));
        assert!(connection.output.len() <= MAX_OUTPUT + 1_003);
        connection.flush(at(9_999), &reactor);
        assert!(connection.is_open());
        connection.flush(at(10_000), &reactor);
        assert!(!connection.is_open());
    }
}
