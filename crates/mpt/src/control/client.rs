//! The client side: finds a running tunnel and sends it requests, with a timeout.

use std::fs;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use nix::unistd::geteuid;
use serde_json::Value;

use super::report::{PathTestReport, Report};
use super::{Request, Response, RunDir};
use crate::Failure;

/// A connection to a running tunnel.
#[derive(Debug)]
pub struct ControlClient {
    name: String,
    stream: BufReader<UnixStream>,
}

impl ControlClient {
    /// Connects to the tunnel `name`, or to the only running one.
    ///
    /// # Errors
    /// There is none or more than one, or this user has no access.
    pub fn connect(directory: &RunDir, name: Option<&str>) -> Result<Self, Failure> {
        let name = find(directory, name)?;
        Self::open(&directory.socket(&name), &name)
    }

    /// Requests the status report, with some peers at a time, so that packets do not wait.
    ///
    /// # Errors
    /// The daemon does not respond, or not with a report.
    pub fn status(&mut self) -> Result<Report, Failure> {
        let mut report = self.status_page(0)?;
        let mut received = report.peers.len();
        while received == PAGE {
            let page = self.status_page(report.peers.len())?;
            received = page.peers.len();
            self.extend(&mut report, page)?;
        }
        Ok(report)
    }

    /// Adds a page to a report. A process of another user sends them, and must not make this one's memory grow without
    /// end.
    pub(super) fn extend(&self, report: &mut Report, page: Report) -> Result<(), Failure> {
        report.peers.extend(page.peers);
        if report.peers.len() > MAX_PEERS { Err(self.malformed("too many peers")) } else { Ok(()) }
    }

    fn status_page(&mut self, first: usize) -> Result<Report, Failure> {
        match self.exchange_checked(&Request::Status { first, count: Some(PAGE) })? {
            Response::Status(report) => Ok(report),
            _ => Err(self.malformed("no status report")),
        }
    }

    /// Requests the status report with one peer.
    ///
    /// # Errors
    /// The daemon does not respond, or has no such peer.
    pub fn status_of(&mut self, peer: &str) -> Result<Report, Failure> {
        match self.exchange_checked(&Request::PeerStatus { peer: peer.to_owned() })? {
            Response::Status(report) => Ok(report),
            _ => Err(self.malformed("no status report")),
        }
    }

    /// Requests two reports, of all peers or of one, and returns the second one with the rates between them.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub fn status_with_rates(&mut self, peer: Option<&str>) -> Result<Report, Failure> {
        let mut request = || match peer {
            Some(peer) => self.status_of(peer),
            None => self.status(),
        };
        let before = request()?;
        thread::sleep(RATE_INTERVAL);
        let mut report = request()?;
        report.fill_rates(&before);
        Ok(report)
    }

    /// Sends a command and waits for its completion.
    ///
    /// # Errors
    /// The daemon does not respond, or the command failed.
    pub fn request(&mut self, request: &Request) -> Result<(), Failure> {
        let waits_for_peer = matches!(request, Request::Create { .. } | Request::Path { .. } | Request::Ends { .. });
        let timeout = if waits_for_peer { PEER_TIMEOUT } else { TIMEOUT };
        self.stream.get_ref().set_read_timeout(Some(timeout)).map_err(|error| self.lost(&error))?;
        self.exchange_checked(request).map(|_| ())
    }

    /// Tests a path, and waits for the result.
    ///
    /// # Errors
    /// The daemon does not respond, there is no such path, or it went down.
    pub fn test_path(&mut self, peer: String, path: String) -> Result<PathTestReport, Failure> {
        self.stream.get_ref().set_read_timeout(Some(TEST_TIMEOUT)).map_err(|error| self.lost(&error))?;
        match self.exchange_checked(&Request::Test { peer, path })? {
            Response::Tested(report) => Ok(report),
            other => Err(self.malformed(&format!("{other:?}"))),
        }
    }

    /// Ends the tunnel, and waits until it has cleaned up.
    ///
    /// # Errors
    /// The daemon does not respond, or takes too long.
    pub fn down(&mut self) -> Result<(), Failure> {
        self.request(&Request::Down {})?;
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).map(|_| ()).map_err(|error| self.lost(&error))
    }

    /// Connects to the status socket of the tunnel `name`, or of the only running one; to the control socket if this
    /// user may use that one alone.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub fn connect_status(directory: &RunDir, name: Option<&str>) -> Result<Self, Failure> {
        let name = find(directory, name)?;
        let socket = directory.status_socket(&name);
        let owner = fs::metadata(&socket).map(|socket| socket.uid()).ok();
        // A member of the tunnel's group may use the control socket, and only that.
        if !geteuid().is_root()
            && owner != Some(geteuid().as_raw())
            && let Ok(client) = Self::open(&directory.socket(&name), &name)
        {
            return Ok(client);
        }
        Self::open(&socket, &name)
    }

    fn open(socket: &Path, name: &str) -> Result<Self, Failure> {
        let stream = connect(socket).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                not_running(&format!("the tunnel {name} is not running; it seems to have crashed"), &[])
            }
            ErrorKind::PermissionDenied => {
                Failure::new(format!("not allowed to control the tunnel {name}")).hint("run as root")
            }
            ErrorKind::WouldBlock => {
                Failure::new(format!("the tunnel {name} accepts no connections")).hint("its process hangs: see its log")
            }
            _ => Failure::new(format!("cannot reach the tunnel {name}: {error}")),
        })?;
        let limited = stream.set_read_timeout(Some(TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(TIMEOUT)));
        limited.map_err(|error| Failure::new(format!("cannot reach the tunnel {name}: {error}")))?;
        Ok(Self { name: name.to_owned(), stream: BufReader::new(stream) })
    }

    fn exchange_checked(&mut self, request: &Request) -> Result<Response, Failure> {
        let line = self.exchange(request).map_err(|error| self.lost(&error))?;
        match response(&line) {
            Ok(Response::Error { what, hint }) => Err(Failure { what, hint }),
            Ok(response) => Ok(response),
            Err(error) => Err(self.malformed(&error.to_string())),
        }
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Vec<u8>> {
        // A daemon that refuses this user has written the reason before it closed the connection.
        let sent = self.send(request);
        let mut answer = Vec::new();
        self.stream.by_ref().take(MAX_RESPONSE).read_until(b'\n', &mut answer)?;
        if answer.is_empty() { Err(sent.err().unwrap_or(ErrorKind::UnexpectedEof.into())) } else { Ok(answer) }
    }

    /// Sends a request without waiting for the response.
    pub(super) fn send(&mut self, request: &Request) -> io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)
    }

    /// Returns the stream of responses.
    pub(super) fn stream(&mut self) -> &mut BufReader<UnixStream> {
        &mut self.stream
    }

    pub(super) fn lost(&self, error: &io::Error) -> Failure {
        let name = &self.name;
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                Failure::new(format!("the tunnel {name} did not answer in time")).hint("see its log")
            }
            _ => Failure::new(format!("the tunnel {name} closed the connection: {error}")),
        }
    }

    pub(super) fn malformed(&self, what: &str) -> Failure {
        Failure::new(format!("the tunnel {} sent an invalid response: {what}", self.name))
            .hint("it may be of another version than this command")
    }
}

impl RunDir {
    /// Returns the interfaces of the running tunnels, sorted.
    pub fn running(&self) -> Vec<String> {
        let mut names = self.names();
        names.retain(|name| is_listening(&self.socket(name)));
        names
    }
}

/// Returns the tunnel `name` if it is known, or the only running one.
fn find(directory: &RunDir, name: Option<&str>) -> Result<String, Failure> {
    match name {
        Some(name) if directory.names().iter().any(|known| known == name) => Ok(name.to_owned()),
        Some(name) => Err(not_running(&format!("the tunnel {name} is not running"), &directory.running())),
        None => find_only(directory),
    }
}

fn find_only(directory: &RunDir) -> Result<String, Failure> {
    match &directory.running()[..] {
        [name] => Ok(name.clone()),
        [] => match &directory.names()[..] {
            [] => Err(not_running("no tunnel is running", &[])),
            left => Err(Failure::new(format!(
                "no tunnel is running; {} has a kill switch without a tunnel, or ended without cleaning up",
                left.join(", ")
            ))
            .hint(format!("mpt up FILE starts it; mpt down {} removes what is left of it", left[0]))),
        },
        names => Err(Failure::new(format!("{} tunnels are running", names.len()))
            .hint(format!("name one of them: {}", names.join(", ")))),
    }
}

/// Parses a response, with U+FFFD for control characters: root prints what another user's process sends, and a terminal
/// would execute them.
pub(super) fn response(line: &[u8]) -> serde_json::Result<Response> {
    let mut value = serde_json::from_slice(line)?;
    replace_control_characters(&mut value);
    serde_json::from_value(value)
}

fn replace_control_characters(value: &mut Value) {
    let is_control = |c: char| c.is_control() && c != '\n';
    match value {
        Value::String(text) if text.contains(is_control) => *text = text.replace(is_control, "\u{fffd}"),
        Value::Array(values) => values.iter_mut().for_each(replace_control_characters),
        Value::Object(fields) => fields.values_mut().for_each(replace_control_characters),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns true if a process listens at `socket`. Assumes so without permission to connect.
fn is_listening(socket: &Path) -> bool {
    match connect(socket) {
        Ok(_) => true,
        Err(error) => matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::WouldBlock),
    }
}

/// Connects to a socket. Does not wait for a process that hangs, whose queue of connections is full: then the error is
/// [`ErrorKind::WouldBlock`].
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn not_running(what: &str, running: &[String]) -> Failure {
    match running {
        [] => Failure::new(what).hint("mpt up FILE starts one"),
        names => Failure::new(what).hint(format!("running: {}", names.join(", "))),
    }
}

/// A daemon responds within one iteration of its event loop; a longer delay means that it hangs.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// `create` and `path` wait for a peer that runs the original: two rounds of six attempts, 500 ms apart, and as long
/// for an earlier exchange with the peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(14);
/// Longer than both directions of a test and all copies of its request: 5 s and 15 s.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Long enough for some packets of a call, short enough to wait for.
const RATE_INTERVAL: Duration = Duration::from_millis(500);
/// Peers in a report at most: the daemon makes one of as many in less than a millisecond.
pub(crate) const PAGE: usize = 32;
/// More than a host can serve.
const MAX_PEERS: usize = 1 << 16;
/// More than a thousand peers with 32 paths need.
pub(super) const MAX_RESPONSE: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_hangs_keeps_no_client_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mpt0.sock");
        let fd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        socket::bind(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        socket::listen(&fd, socket::Backlog::new(1).unwrap()).unwrap();
        let waiting: Vec<_> = (0..3).map(|_| connect(&path)).collect();
        let refused = waiting.last().unwrap().as_ref().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        assert!(is_listening(&path));
        let failure = ControlClient::open(&path, "mpt0").unwrap_err();
        assert_eq!(failure.what, "the tunnel mpt0 accepts no connections");
    }

    #[test]
    fn control_characters_of_a_tunnel_do_not_reach_the_terminal() {
        let line = br#"{"error":{"what":"\u001b]0;x\u0007 \u009b2J \u007f","hint":"a\nb \u00e9"}}"#;
        let Response::Error { what, hint } = response(line).unwrap() else { panic!("another response") };
        assert_eq!(what, "\u{fffd}]0;x\u{fffd} \u{fffd}2J \u{fffd}");
        assert_eq!(hint.as_deref(), Some("a\nb \u{e9}"));
    }
}
