//! The client's end of a path over TLS: a thread that connects when the daemon requests it, and then carries datagrams.
//!
//! Its TCP socket has the mark of the tunnel's own datagrams, and is bound to the interface of the path, as a UDP
//! socket of the path would be. So the routes, and the kill switch, treat it as one of them.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mpt_linux::udp::{Receive, Socket, SocketSpec};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, Protocol, Type};

use super::certificate::Verifier;
use super::channel::Channel;
use super::frame::Side;
use super::pump::{Counters, End, Pump};
use super::upgrade::{self, Head, MAX_HEAD};
use super::{ALPN, provider, set_congestion_control};
use crate::config::tls::{TlsHost, TlsServer};
use crate::resolver::{self, Lookup};

/// The server, and the way to it.
#[derive(Clone, Debug)]
pub struct TlsTarget {
    /// The server.
    pub server: TlsServer,
    /// The interface of the path.
    pub interface: Option<String>,
    /// The mark of the tunnel's own datagrams.
    pub mark: Option<u32>,
}

/// A change of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsEvent {
    /// It carries datagrams, to this address.
    Connected(SocketAddr),
    /// It could not be opened: the reason, and a hint.
    Refused(String, &'static str),
    /// It has ended, for this reason.
    Ended(String),
    /// It has ended by request.
    Closed,
}

enum TlsCommand {
    /// Connect. A name is looked up in this way.
    Connect(Lookup),
    /// End the connection.
    Close,
}

/// The thread, which ends with this value. Its descriptor is readable when there is an event.
#[derive(Debug)]
pub struct TlsClient {
    commands: mpsc::Sender<TlsCommand>,
    events: mpsc::Receiver<TlsEvent>,
    wake: UnixStream,
    dropped: Arc<Counters>,
    /// The address of its socket on loopback: the peer's address to the core.
    local: SocketAddr,
}

impl TlsClient {
    /// Starts the thread. `daemon` is the address of the path's socket on loopback.
    ///
    /// # Errors
    /// The system refused a socket or a thread.
    pub fn start(target: TlsTarget, daemon: SocketAddr) -> io::Result<Self> {
        let (wake, far) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let udp = open_loopback(Ipv4Addr::LOCALHOST)?;
        let local = udp.local();
        let dropped = Arc::<Counters>::default();
        let (commands, queue) = mpsc::channel();
        let (results, events) = mpsc::channel();
        let thread = Thread { target, daemon, commands: queue, events: results, wake: far, dropped: dropped.clone() };
        thread::Builder::new().name("tls".to_owned()).spawn(move || thread.run(udp))?;
        Ok(Self { commands, events, wake, dropped, local })
    }

    /// Returns the address to which the core sends.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Connects.
    pub fn connect(&self, lookup: Lookup) {
        self.command(TlsCommand::Connect(lookup));
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.command(TlsCommand::Close);
    }

    fn command(&self, command: TlsCommand) {
        // Both fail only if the thread has ended, which its events show.
        let _ = self.commands.send(command);
        let _ = (&self.wake).write(&[0]);
    }

    /// Returns the events since the last call.
    pub fn take_events(&self) -> Vec<TlsEvent> {
        while matches!((&self.wake).read(&mut [0; 64]), Ok(1..)) {}
        self.events.try_iter().collect()
    }

    /// Returns the number of datagrams for which TCP had no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.dropped.load(Ordering::Relaxed)
    }
}

impl AsFd for TlsClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

struct Thread {
    target: TlsTarget,
    daemon: SocketAddr,
    commands: mpsc::Receiver<TlsCommand>,
    events: mpsc::Sender<TlsEvent>,
    wake: UnixStream,
    dropped: Arc<Counters>,
}

impl Thread {
    /// Serves commands until the daemon drops its end.
    fn run(self, udp: Socket) {
        let (mut udp, mut receive) = (udp, Receive::new());
        while let Ok(command) = self.commands.recv() {
            let TlsCommand::Connect(lookup) = command else { continue };
            let event = match self.connect(&lookup) {
                Err((why, hint)) => TlsEvent::Refused(why, hint),
                Ok((channel, address, first)) => {
                    let mut pump = Pump::new(channel, udp, self.daemon, Side::Client, &self.dropped);
                    if !self.report(TlsEvent::Connected(address)) {
                        return;
                    }
                    let end = self.pump(&mut pump, &first, &mut receive);
                    udp = pump.into_socket();
                    end
                }
            };
            if !self.report(event) {
                return;
            }
        }
    }

    /// Carries datagrams until the connection or a command ends it.
    fn pump(&self, pump: &mut Pump<'_>, first: &[u8], receive: &mut Receive) -> TlsEvent {
        // There is a byte for each command, also for the one to connect.
        let mut first = first;
        loop {
            match pump.run(first, receive, Some(self.wake.as_fd())) {
                End::Lost(why) => return TlsEvent::Ended(why),
                End::Requested => {}
            }
            first = &[];
            match (&self.wake).read(&mut [0; 64]) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return TlsEvent::Closed,
            }
            while let Ok(command) = self.commands.try_recv() {
                if matches!(command, TlsCommand::Close) {
                    pump.close();
                    return TlsEvent::Closed;
                }
            }
        }
    }

    /// Returns false if the daemon has dropped its end.
    fn report(&self, event: TlsEvent) -> bool {
        self.events.send(event).is_ok() && (&self.wake).write_all(&[0]).is_ok()
    }

    /// Opens the connection. Returns it with its address, and with what came behind the server's answer.
    fn connect(&self, lookup: &Lookup) -> Result<(Channel, SocketAddr, Vec<u8>), (String, &'static str)> {
        let (host, port) = self.target.server.next_hop();
        let addresses = match host {
            TlsHost::Address(ip) => vec![*ip],
            TlsHost::Name(name) => resolver::look_up(lookup, self.target.mark)
                .map_err(|why| (format!("cannot look up {name}: {why}"), "is the name right? dig NAME"))?,
        };
        let mut failure = (format!("{host} has no address"), "is the name right? dig NAME");
        for ip in addresses.into_iter().take(MAX_ADDRESSES) {
            let address = SocketAddr::new(ip, port);
            let is_proxied = self.target.server.proxy.is_some();
            match self.open_tcp(address) {
                Ok(tcp) => {
                    if is_proxied {
                        self.pass_proxy(&tcp).map_err(|(why, hint)| (format!("proxy {address}: {why}"), hint))?;
                    }
                    return self.open_tls(tcp).map(|(channel, first)| (channel, address, first));
                }
                Err(error) if is_proxied => failure = (format!("proxy {address}: {error}"), PROXY_HINT),
                Err(error) => failure = (format!("{address}: {error}"), TCP_HINT),
            }
        }
        Err(failure)
    }

    fn open_tcp(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = socket2::Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(mark) = self.target.mark {
            socket.set_mark(mark)?;
        }
        if let Some(interface) = &self.target.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        set_congestion_control(&socket);
        socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
        socket.connect_timeout(&to.into(), CONNECT_TIMEOUT)?;
        Ok(socket.into())
    }

    /// Requests a connection to the server from the proxy. Whatever the proxy sends behind its answer is an error: the
    /// server waits for the first octets of TLS.
    fn pass_proxy(&self, mut tcp: &TcpStream) -> Result<(), (String, &'static str)> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock => (describe(&ErrorKind::TimedOut.into()), PROXY_HINT),
            _ => (error.to_string(), PROXY_HINT),
        };
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        tcp.set_write_timeout(Some(HANDSHAKE_TIMEOUT)).map_err(failed)?;
        tcp.write_all(upgrade::connect_request(&self.target.server.to_string()).as_bytes()).map_err(failed)?;
        let (mut answer, mut length) = ([0; MAX_HEAD], 0);
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            tcp.set_read_timeout(Some(left)).map_err(failed)?;
            match tcp.read(&mut answer[length..]).map_err(failed)? {
                0 => return Err(("it closed the connection".to_owned(), PROXY_HINT)),
                read => length += read,
            }
            match upgrade::parse_proxy_response(&answer[..length]).map_err(|why| (why, PROXY_HINT))? {
                Some((200..=299, head)) if head == length => return Ok(()),
                Some((200..=299, _)) => return Err(("it sent more than its answer".to_owned(), PROXY_HINT)),
                Some((status, _)) => {
                    return Err((format!("it answered with HTTP status {status}"), proxy_hint(status)));
                }
                None => {}
            }
        }
    }

    fn open_tls(&self, tcp: TcpStream) -> Result<(Channel, Vec<u8>), (String, &'static str)> {
        let TlsServer { host, path, certificate, .. } = &self.target.server;
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let failed = |hint: &'static str| move |error: io::Error| (describe(&error), hint);
        let tls = session(host, *certificate).map_err(|why| (why, TLS_HINT))?;
        let mut channel = Channel::new(tcp, tls.into()).map_err(failed(TCP_HINT))?;
        let mut input = Vec::new();
        channel.handshake(&mut input, deadline).map_err(failed(TLS_HINT))?;
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|error| (error.to_string(), "the system has no random bytes"))?;
        let (request, key) = upgrade::request(&self.target.server.authority(), path, nonce);
        channel.send_before(request.as_bytes(), deadline).map_err(failed(HTTP_HINT))?;
        loop {
            match upgrade::parse_response(&input, &key) {
                Head::Upgrade((), length) => return Ok((channel, input.split_off(length))),
                Head::Other(what) => return Err((format!("the server answered with {what}"), HTTP_HINT)),
                Head::Partial if input.len() > MAX_HEAD => {
                    return Err(("the answer is too long".to_owned(), HTTP_HINT));
                }
                Head::Partial => channel.receive_before(&mut input, deadline).map_err(failed(HTTP_HINT))?,
            }
        }
    }
}

/// Begins a TLS connection. A name is sent in the clear, as a browser does (SNI).
fn session(host: &TlsHost, certificate: Option<[u8; 32]>) -> Result<ClientConnection, String> {
    let verifier = Verifier::new(certificate, provider());
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]);
    let config = config.map_err(|error| error.to_string())?.dangerous();
    let mut config = config.with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    let name = match host {
        TlsHost::Address(ip) => ServerName::IpAddress((*ip).into()),
        TlsHost::Name(name) => ServerName::try_from(name.clone()).map_err(|error| error.to_string())?,
    };
    ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())
}

fn proxy_hint(status: u16) -> &'static str {
    match status {
        407 => "it wants a name and a password, which MPT does not send: is there a proxy without?",
        400..=499 => "it permits no connection to this host and port; many permit port 443 alone",
        _ => "it does not reach the server: is the tunnel with [tls] up there, and its TCP port open?",
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => format!("no answer within {} s", HANDSHAKE_TIMEOUT.as_secs()),
        ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

/// Opens a socket that reaches nothing but this host.
pub(super) fn open_loopback(own: Ipv4Addr) -> io::Result<Socket> {
    let spec = SocketSpec { local: (IpAddr::from(own), 0).into(), ..SocketSpec::default() };
    Socket::open(&spec).map_err(|error| io::Error::other(error.to_string()))
}

/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for TLS and HTTP: five round trips of a slow link.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which unacknowledged bytes end a connection.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
const TCP_HINT: &str = "is the tunnel with [tls] up there, and its TCP port open?";
const PROXY_HINT: &str = "is tls_proxy right, and an HTTP proxy running there?";
const TLS_HINT: &str = "does the server run [tls] of MPT, or a web server with TLS 1.3 before it? does its certificate \
     have the fingerprint of tls_certificate?";
const HTTP_HINT: &str = "is the path in tls that of [tls] at the server?";
