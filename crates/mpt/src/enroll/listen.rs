//! The process that listens for sites, without any rights: user 65519, no capability, no file.
//!
//! A source that does not know the enrolment key gets no answer: its connection is closed. The limits of all sources
//! together and of each are small, because a site connects once in its life. A connection beyond those of its source is
//! closed at once, and takes nothing from the others. What they cost the server at most is in `docs/guide/security.md`.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mpt_linux::privilege;
use mpt_proto::crypto::handshake::enrolment::{ANSWER_OVERHEAD, REQUEST_LEN, Request};
use mpt_proto::crypto::keys::KeyPair;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::answer::MAX_LEN;
use crate::Failure;
use crate::connection_limit::ConnectionLimit;
use crate::random;
use crate::source::source;

/// The first message to this process, in a line of JSON.
#[derive(Serialize, Deserialize)]
pub struct EnrolmentStart {
    /// The private enrolment key.
    pub key: Zeroizing<String>,
    /// The TCP port.
    pub port: u16,
}

/// The first message of this process, in a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// It listens.
    Listening,
    /// It cannot.
    Failed {
        /// The reason.
        what: String,
        /// Remedy.
        hint: Option<String>,
    },
}

/// Bytes of what the parent gets of an authentic request: the token, and the public key of the site. The parent returns
/// the answer in a line of JSON.
pub const TOKEN_AND_KEY_LEN: usize = 64;

/// Listens until the parent on standard input ends.
///
/// # Errors
/// Standard input is no socket of the parent.
pub fn run() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(format!("only mpt enroll starts this command: {error}"));
    let input = nix::unistd::dup(io::stdin().lock()).map_err(|errno| failed(errno.into()))?;
    let mut parent = BufReader::new(UnixStream::from(input));
    let mut text = Zeroizing::new(String::with_capacity(MAX_LEN));
    parent.read_line(&mut text).map_err(failed)?;
    let start: EnrolmentStart = serde_json::from_str(&text).map_err(|_| failed(ErrorKind::InvalidData.into()))?;
    let opened = open(&start);
    let ready = match &opened {
        Ok(_) => Ready::Listening,
        Err(failure) => Ready::Failed { what: failure.what.clone(), hint: failure.hint.clone() },
    };
    let mut text = serde_json::to_vec(&ready).expect("names can be written as JSON");
    text.push(b'\n');
    parent.get_mut().write_all(&text).map_err(failed)?;
    match opened {
        Ok((listener, key)) => EnrolmentServer::new(listener, parent, key, Instant::now()).run(),
        // The parent prints it.
        Err(_) => Ok(()),
    }
}

fn open(start: &EnrolmentStart) -> Result<(TcpListener, KeyPair), Failure> {
    let port = start.port;
    let bound = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|error| match error.kind() {
            ErrorKind::AddrInUse => Err(error),
            _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        })
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    let listener = bound.map_err(|error| {
        let failure = Failure::new(format!("cannot listen on TCP port {port}: {error}"));
        failure.hint(format!("`ss -lntp sport = {port}` shows the program that uses it"))
    })?;
    privilege::become_user(USER, USER, &[])?;
    let key = start.key.parse().map_err(|error| Failure::new(format!("the enrolment key: {error}")))?;
    Ok((listener, key))
}

struct EnrolmentServer {
    listener: TcpListener,
    parent: BufReader<UnixStream>,
    key: KeyPair,
    open: Vec<EnrolmentConnection>,
    limit: ConnectionLimit,
    /// No connection is accepted before this time.
    paused_until: Instant,
}

struct EnrolmentConnection {
    stream: TcpStream,
    source: IpAddr,
    deadline: Instant,
    message: Zeroizing<Vec<u8>>,
}

/// The next step for a connection.
enum ConnectionProgress {
    Wait,
    Close,
    Complete,
}

impl EnrolmentServer {
    fn new(listener: TcpListener, parent: BufReader<UnixStream>, key: KeyPair, now: Instant) -> Self {
        Self { listener, parent, key, open: Vec::new(), limit: ConnectionLimit::new(now), paused_until: now }
    }

    fn run(mut self) -> Result<(), Failure> {
        loop {
            let (parent_sent, can_accept) = self.wait();
            if parent_sent {
                // Between requests it sends nothing, so this is its end.
                return Ok(());
            }
            let now = Instant::now();
            let mut complete = Vec::new();
            let mut waiting = Vec::new();
            for mut connection in self.open.drain(..) {
                match connection.read() {
                    ConnectionProgress::Complete => complete.push(connection),
                    ConnectionProgress::Wait if now < connection.deadline => waiting.push(connection),
                    ConnectionProgress::Wait | ConnectionProgress::Close => {}
                }
            }
            self.open = waiting;
            for connection in complete {
                if self.answer(connection).is_err() {
                    return Ok(());
                }
            }
            if can_accept {
                // The answers may have taken seconds.
                self.accept(Instant::now());
            }
        }
    }

    /// Waits for an event. Returns whether the parent has sent something, and whether a connection may be accepted.
    fn wait(&mut self) -> (bool, bool) {
        let now = Instant::now();
        let has_room = self.has_room(now);
        let resumes = Some(self.resumes()).filter(|at| *at > now);
        let next = self.open.iter().map(|connection| connection.deadline).chain(resumes).min();
        let timeout = next.map_or(PollTimeout::NONE, |at| {
            let left = at.saturating_duration_since(now).as_millis() as i32 + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let accepts = if has_room { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut files = vec![
            PollFd::new(self.parent.get_ref().as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), accepts),
        ];
        files.extend(self.open.iter().map(|connection| PollFd::new(connection.stream.as_fd(), PollFlags::POLLIN)));
        // An interrupted wait is repeated.
        let _ = poll(&mut files, timeout);
        let is_ready = |file: &PollFd<'_>| file.any().unwrap_or(false);
        (is_ready(&files[0]), has_room && is_ready(&files[1]))
    }

    /// Returns true if a connection may be accepted. Others wait in the kernel.
    fn has_room(&self, now: Instant) -> bool {
        self.open.len() < MAX_OPEN && self.resumes() <= now
    }

    /// Returns the time from which on the rate permits another connection.
    fn resumes(&self) -> Instant {
        self.paused_until.max(self.limit.next())
    }

    /// Accepts a connection. One of a source that is beyond its own limits is closed, and does not count.
    fn accept(&mut self, now: Instant) {
        match self.listener.accept() {
            Ok((stream, from)) => {
                let source = source(from.ip());
                let of_source = self.open.iter().filter(|connection| connection.source == source).count();
                let may_open = of_source < MAX_PER_SOURCE && self.limit.take(now, source);
                if may_open && stream.set_nonblocking(true).is_ok() {
                    let message = Zeroizing::new(Vec::with_capacity(REQUEST_LEN));
                    self.open.push(EnrolmentConnection { stream, source, deadline: now + LIMIT, message });
                }
            }
            // The connection ended by itself.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
            // Too many open files.
            Err(_) => self.paused_until = now + PAUSE,
        }
    }

    /// Answers an authentic request; closes the connection of another one.
    ///
    /// # Errors
    /// The parent has ended.
    fn answer(&mut self, mut connection: EnrolmentConnection) -> io::Result<()> {
        let Ok(request) = Request::open(&self.key, &connection.message) else { return Ok(()) };
        let mut answer = Vec::new();
        let parent = self.parent.get_mut();
        parent.write_all(request.token().as_bytes()).and_then(|()| parent.write_all(request.site().as_bytes()))?;
        self.parent.read_until(b'\n', &mut answer)?;
        if answer.pop() != Some(b'\n') {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let ephemeral = random::bytes::<32>().map_err(|failure| io::Error::other(failure.what))?;
        if answer.len() + ANSWER_OVERHEAD <= MAX_LEN
            && let Ok(sealed) = request.answer(*ephemeral, &answer)
        {
            // The whole answer fits into an empty send buffer. A site that has gone repeats its request.
            let _ = connection.stream.write_all(&sealed).and_then(|()| connection.stream.shutdown(Shutdown::Write));
        }
        Ok(())
    }
}

impl EnrolmentConnection {
    fn read(&mut self) -> ConnectionProgress {
        let mut buffer = Zeroizing::new([0; REQUEST_LEN]);
        let missing = REQUEST_LEN - self.message.len();
        match self.stream.read(&mut buffer[..missing]) {
            Ok(0) => ConnectionProgress::Close,
            Ok(length) => {
                self.message.extend_from_slice(&buffer[..length]);
                if length == missing { ConnectionProgress::Complete } else { ConnectionProgress::Wait }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                ConnectionProgress::Wait
            }
            Err(_) => ConnectionProgress::Close,
        }
    }
}

/// No distribution assigns this number, and no other process has it.
const USER: u32 = 65_519;
const MAX_OPEN: usize = 64;
const MAX_PER_SOURCE: usize = 4;
/// A request is one packet, so it is complete one round trip after its connection.
const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// Connects from an address and lets the server accept at a time. Returns the client's end.
    fn connect(server: &mut EnrolmentServer, now: Instant, from: [u8; 4]) -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&server.listener.local_addr().unwrap().into()).unwrap();
        let mut files = [PollFd::new(server.listener.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut files, 60_000_u16), Ok(1));
        server.accept(now);
        socket
    }

    fn server(now: Instant) -> EnrolmentServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (parent, _) = UnixStream::pair().unwrap();
        EnrolmentServer::new(listener, BufReader::new(parent), KeyPair::generate([1; 32]), now)
    }

    #[test]
    fn a_source_that_is_full_and_connects_again_and_again_leaves_the_others_their_place() {
        let now = Instant::now();
        let mut server = server(now);
        let clients: Vec<_> = (0..200).map(|_| connect(&mut server, now, [127, 0, 0, 1])).collect();
        assert_eq!(server.open.len(), MAX_PER_SOURCE);
        let mut buffer = [0];
        assert_eq!((&clients[MAX_PER_SOURCE]).read(&mut buffer).unwrap(), 0, "closed at once");
        assert!(server.has_room(now));
        let _other = connect(&mut server, now, [127, 0, 0, 2]);
        assert_eq!(server.open.len(), MAX_PER_SOURCE + 1);
    }

    #[test]
    fn a_source_whose_connections_end_at_once_leaves_the_others_their_place() {
        let now = Instant::now();
        let mut server = server(now);
        let mut admitted = |now, from| {
            let mut connect = |_: &i32| {
                connect(&mut server, now, from);
                // It ends.
                server.open.pop().is_some()
            };
            (0..200).filter(&mut connect).count()
        };
        assert_eq!(admitted(now, [127, 0, 0, 1]), 20);
        assert_eq!(admitted(now + Duration::from_secs(1), [127, 0, 0, 1]), 5);
        assert_eq!(admitted(now + Duration::from_secs(1), [127, 0, 0, 2]), 20);
        assert!(server.has_room(now + Duration::from_secs(1)));
    }

    #[test]
    fn connections_beyond_those_of_all_sources_wait_in_the_kernel() {
        let now = Instant::now();
        let mut server = server(now);
        for last in 1..=100 {
            assert!(server.has_room(now));
            connect(&mut server, now, [127, 0, 0, last]);
            server.open.clear();
        }
        assert!(!server.has_room(now + Duration::from_millis(9)));
        assert!(server.has_room(now + Duration::from_millis(10)));
    }
}
