//! The server side: one file descriptor to wait for, from which requests are read, and responses to them.
//!
//! Nothing here blocks. [`ControlServer`] can be registered with epoll: it becomes readable when a client has sent
//! something. [`ControlServer::handle_ready`] then returns at most one request per client, so that a client that sends
//! without pause does not starve packet processing. There are at most [`MAX_CLIENTS`] connections; a new one replaces
//! the oldest.
//!
//! A tunnel has two servers. The second one, [`ControlServer::bind_status`], takes requests that change nothing, from
//! fewer privileges: `mpt web` uses it. Its clients cannot displace those of the first one.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mpt_proto::time::Time;
use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::{Uid, geteuid};

use super::connection::{ClientConnection, Input, MAX_LINE};
use super::lock::Lock;
use super::{Request, Response, RunDir};
use crate::Failure;

/// Identifies the client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientToken(u64);

/// A tunnel's control socket, or its status socket. Dropping it removes the file.
#[derive(Debug)]
pub struct ControlServer {
    epoll: Epoll,
    listener: UnixListener,
    /// A descriptor in reserve, to accept and close a connection when the process has no other left.
    reserve: Option<UnixListener>,
    /// A client could not be accepted since the last [`Self::poll`], for lack of a descriptor or memory.
    is_short: bool,
    /// The time when clients are accepted again; `None` while they are.
    resume: Option<Time>,
    warned: Option<Time>,
    next: u64,
    socket: PathBuf,
    /// The socket file stays after the end.
    leaves_file: bool,
    /// Events were buffered since the last [`Self::poll`].
    has_pushed: bool,
    /// A user that may not connect was refused since the last [`Self::poll`].
    has_refused: bool,
    /// The users that may connect to a status socket; `None` for a control socket, which its mode protects.
    readers: Option<Vec<Uid>>,
    /// Dropped before the connections, so that a client that waits for the tunnel's end can start it again at once.
    _lock: Option<Lock>,
    connections: BTreeMap<ClientToken, ClientConnection>,
}

impl ControlServer {
    /// Creates the socket of the tunnel `name` in `directory`, which is created if needed.
    ///
    /// # Errors
    /// The tunnel is running already, or the directory is not writable.
    pub fn bind(directory: &RunDir, name: &str) -> Result<Self, Failure> {
        let lock = directory.lock(name);
        make_directory(&directory.0).map_err(|error| cannot_use(&directory.0, &error))?;
        let taken = Lock::take(&lock).map_err(|error| cannot_use(&lock, &error))?.ok_or_else(|| is_running(name))?;
        Self::listen(directory.socket(name), SOCKET_MODE, None, Some(taken))
    }

    /// Creates the status socket of a tunnel whose control socket this process has bound. Root, the user of this
    /// process and `reader` may connect.
    ///
    /// # Errors
    /// The directory is not writable.
    pub fn bind_status(directory: &RunDir, name: &str, reader: Uid) -> Result<Self, Failure> {
        let readers = vec![Uid::from_raw(0), geteuid(), reader];
        Self::listen(directory.status_socket(name), STATUS_SOCKET_MODE, Some(readers), None)
    }

    fn listen(socket: PathBuf, mode: u32, readers: Option<Vec<Uid>>, lock: Option<Lock>) -> Result<Self, Failure> {
        let failed = |error: io::Error| cannot_use(&socket, &error);
        let listener = listen(&socket, mode).map_err(failed)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|errno| failed(errno.into()))?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            reserve: listener.try_clone().ok(),
            epoll,
            listener,
            is_short: false,
            resume: None,
            warned: None,
            next: 0,
            socket,
            leaves_file: false,
            has_pushed: false,
            has_refused: false,
            readers,
            _lock: lock,
            connections: BTreeMap::new(),
        })
    }

    /// Leaves the socket file, so that `mpt down` finds the tunnel's rules and tables if no process takes them over.
    pub fn leave_file(&mut self) {
        self.leaves_file = true;
    }

    /// Reads the requests of all clients. Call it when the server is readable, and answer every request with
    /// [`Self::respond`].
    pub fn handle_ready(&mut self) -> Vec<(ClientToken, Request)> {
        self.accept();
        let tokens: Vec<_> = self.connections.keys().copied().collect();
        tokens.into_iter().filter_map(|token| self.read(token)).collect()
    }

    /// Answers a request. Does nothing if the client has disconnected.
    pub fn respond(&mut self, token: ClientToken, response: &Response) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let line = serde_json::to_vec(response).expect("names and numbers can be written as JSON");
        let result = connection.answer(&line);
        self.update_interest(token, result);
    }

    /// Sends events to a client from now on.
    pub fn watch(&mut self, token: ClientToken) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.watch();
        }
    }

    /// Returns true if a client gets events.
    pub fn is_watched(&self) -> bool {
        self.connections.values().any(ClientConnection::watches)
    }

    /// Buffers an event for the clients that watch. The next [`Self::poll`] sends it.
    pub fn publish(&mut self, event: &Response) {
        let line = serde_json::to_vec(event).expect("names and numbers can be written as JSON");
        self.connections.values_mut().filter(|connection| connection.watches()).for_each(|each| each.push(&line));
        self.has_pushed = true;
    }

    fn send_events(&mut self) {
        let watching = self.connections.iter_mut().filter(|(_, connection)| connection.watches());
        let sent: Vec<_> = watching.map(|(token, connection)| (*token, connection.send())).collect();
        for (token, result) in sent {
            self.update_interest(token, result);
        }
    }

    /// Sends the events that were published. When clients cannot be accepted, it stops accepting for a second, because
    /// the listener stays readable and would keep the event loop busy; and for [`REFUSED_PAUSE`] after a user was
    /// refused. Call it in each iteration; returns the time of the next call.
    pub fn poll(&mut self, now: Time) -> Option<Time> {
        if mem::take(&mut self.has_pushed) {
            self.send_events();
        }
        if mem::take(&mut self.is_short) {
            if self.warned.is_none_or(|at| now >= at + WARN_INTERVAL) {
                tracing::warn!("no descriptor for a client of the control socket: raise the limit (LimitNOFILE=)");
                self.warned = Some(now);
            }
            if self.reserve.is_none() {
                self.pause(now + PAUSE);
            }
        }
        if mem::take(&mut self.has_refused) {
            self.pause(now + REFUSED_PAUSE);
        }
        if self.resume.is_some_and(|at| at <= now) {
            let added = self.epoll.add(&self.listener, EpollEvent::new(EpollFlags::EPOLLIN, 0));
            self.resume = added.is_err().then_some(now + PAUSE);
        }
        self.resume
    }

    fn pause(&mut self, until: Time) {
        if self.resume.is_none() && self.epoll.delete(&self.listener).is_ok() {
            self.resume = Some(until);
        }
    }

    fn accept(&mut self) {
        if self.resume.is_some() {
            return;
        }
        for _ in 0..MAX_CLIENTS {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return,
                    Some(libc::EINTR | libc::ECONNABORTED) => continue,
                    _ => return self.refuse(),
                },
            };
            let Ok(mut connection) = ClientConnection::new(stream) else { continue };
            if let Some(refused) = self.refusal(&connection) {
                self.has_refused = true;
                // Its socket is empty and takes a line; the connection ends with the client unanswered otherwise.
                let _ = connection.answer(&serde_json::to_vec(&Response::from(refused)).unwrap_or_default());
                continue;
            }
            if self.connections.len() >= MAX_CLIENTS {
                self.connections.pop_first();
            }
            if self.epoll.add(&connection, EpollEvent::new(connection.interest(), 0)).is_ok() {
                self.connections.insert(ClientToken(self.next), connection);
                self.next += 1;
            }
        }
    }

    /// Returns the reason why a client may not use the status socket.
    fn refusal(&self, client: &ClientConnection) -> Option<Failure> {
        let readers = self.readers.as_ref()?;
        let user = getsockopt(client, PeerCredentials).map(|credentials| Uid::from_raw(credentials.uid()));
        match user {
            Ok(user) if readers.contains(&user) => None,
            Ok(user) => {
                Some(Failure::new(format!("user {user} may not read the status of this tunnel")).hint("run as root"))
            }
            Err(errno) => Some(Failure::new(format!("cannot identify the user of the client: {errno}"))),
        }
    }

    /// Closes a connection that there is no descriptor for. It would keep the listener readable, and the event loop
    /// busy, until there is one.
    fn refuse(&mut self) {
        if self.reserve.take().is_none() {
            self.connections.pop_first();
        }
        let refused = self.listener.accept().is_ok();
        self.reserve = self.listener.try_clone().ok().filter(|_| refused);
        self.is_short = true;
    }

    fn read(&mut self, token: ClientToken) -> Option<(ClientToken, Request)> {
        let refused = match self.connections.get_mut(&token)?.poll_line() {
            Ok(Input::Line(line)) => match serde_json::from_slice(&line) {
                Ok(request) if self.readers.is_some() && !Request::is_read_only(&request) => {
                    let failure = Failure::new("the status socket takes only the commands status and watch");
                    self.respond(token, &failure.hint("others belong to the control socket, INTERFACE.sock").into());
                    return None;
                }
                Ok(request) => {
                    tracing::debug!(?request, "request");
                    return Some((token, request));
                }
                Err(error) => format!("not a request: {error}"),
            },
            Ok(Input::TooLong) => format!("not a request: longer than {MAX_LINE} bytes"),
            Ok(Input::Nothing) => {
                self.update_interest(token, Ok(()));
                return None;
            }
            Err(error) => {
                self.update_interest(token, Err(error));
                return None;
            }
        };
        self.respond(token, &Failure::new(refused).hint(r#"for example {"command":"status"}"#).into());
        None
    }

    /// Updates the events to wait for, or drops the connection.
    fn update_interest(&mut self, token: ClientToken, result: io::Result<()>) {
        let Some(connection) = self.connections.get(&token) else { return };
        let mut event = EpollEvent::new(connection.interest(), 0);
        let over = connection.is_finished() || connection.is_abandoned();
        let lost = result.is_err() || over || self.epoll.modify(connection, &mut event).is_err();
        if lost {
            self.connections.remove(&token);
        }
    }
}

impl AsFd for ControlServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if !self.leaves_file {
            // Clients detect a stale socket file when they connect.
            let _ = fs::remove_file(&self.socket);
        }
    }
}

pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Listens at `path`. An existing file is left from a crash, because this process holds the lock.
fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn is_running(name: &str) -> Failure {
    Failure::new(format!("the tunnel {name} is running already"))
        .hint(format!("mpt status {name} shows it, mpt down {name} ends it"))
}

fn cannot_use(path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot use {}: {error}", path.display()));
    match error.kind() {
        io::ErrorKind::PermissionDenied => failure.hint(
            "needs CAP_NET_ADMIN: run as root; or give the program that capability, and MPT_RUN_DIR a directory of your own",
        ),
        io::ErrorKind::InvalidInput => {
            failure.hint("the path of a socket has at most 107 bytes; set MPT_RUN_DIR to a shorter one")
        }
        _ => failure,
    }
}

/// Maximum number of connections.
pub const MAX_CLIENTS: usize = 16;
const PAUSE: Duration = Duration::from_secs(1);
/// Pause after a user was refused: a program that connects again and again causes at most 160 refusals a second.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// Only root and its group may control a tunnel.
const SOCKET_MODE: u32 = 0o660;
/// Everybody may connect to a status socket, which then checks the user.
const STATUS_SOCKET_MODE: u32 = 0o666;
/// Everybody may list the running tunnels.
const DIRECTORY_MODE: u32 = 0o755;

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use nix::sys::epoll::EpollTimeout;

    use super::*;

    #[test]
    fn a_client_that_cannot_be_accepted_does_not_keep_the_event_loop_busy() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = ControlServer::bind(&RunDir::at(folder.path()), "mpt0").unwrap();
        let _client = UnixStream::connect(folder.path().join("mpt0.sock")).unwrap();
        let is_ready =
            |server: &ControlServer| server.epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO) == Ok(1);
        let start = Time::from_nanos(0);
        assert_eq!((server.poll(start), is_ready(&server)), (None, true));
        // As after a failure to accept it, even with the reserve.
        (server.is_short, server.reserve) = (true, None);
        assert_eq!((server.poll(start), is_ready(&server)), (Some(start + PAUSE), false));
        assert!(server.handle_ready().is_empty() && server.connections.is_empty());
        assert_eq!((server.poll(start + PAUSE), is_ready(&server)), (None, true));
        assert!(server.handle_ready().is_empty() && server.connections.len() == 1);
    }

    #[test]
    fn users_that_are_refused_again_and_again_do_not_keep_the_event_loop_busy() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::at(folder.path());
        let mut server = ControlServer::bind_status(&run, "mpt0", Uid::from_raw(0)).unwrap();
        server.readers = Some(Vec::new());
        let mut clients: Vec<_> =
            (0..40).map(|_| UnixStream::connect(folder.path().join("mpt0.status")).unwrap()).collect();
        let is_ready =
            |server: &ControlServer| server.epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO) == Ok(1);
        let (mut now, mut iterations) = (Time::START, 0);
        while is_ready(&server) {
            assert!(server.handle_ready().is_empty() && server.connections.is_empty());
            assert_eq!((server.poll(now), is_ready(&server)), (Some(now + REFUSED_PAUSE), false));
            now += REFUSED_PAUSE;
            assert_eq!(server.poll(now), None);
            iterations += 1;
        }
        assert_eq!(iterations, 40_usize.div_ceil(MAX_CLIENTS));
        let mut answer = String::new();
        clients[39].read_to_string(&mut answer).unwrap();
        assert!(answer.contains("may not read the status of this tunnel"), "{answer}");
    }
}
