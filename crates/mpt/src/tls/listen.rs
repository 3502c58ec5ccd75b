//! The server's end of paths over TLS: a process of its own, without capabilities, that the daemon starts and watches.
//!
//! Standard output is the socket that listens, which the daemon has opened. Standard input has a line, [`TlsStart`],
//! and another one for each new certificate; its end is that of the daemon. A connection has a thread, and a UDP socket
//! on loopback with an address that depends on its source, so that the daemon's limits for sources of handshakes hold
//! for each source of connections.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead as _, BufReader, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use mpt_linux::privilege;
use mpt_linux::udp::Receive;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustls::{ServerConfig, ServerConnection};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::certificate::Identity;
use super::channel::Channel;
use super::client::open_loopback;
use super::frame::Side;
use super::limits::{Limits, Permit};
use super::pump::{Counters, End, Pump};
use super::upgrade::{self, Head, MAX_HEAD, NOT_FOUND};
use super::{ALPN, provider};
use crate::Failure;
use crate::connection_limit::ConnectionLimit;
use crate::source::source;

/// The data that the daemon passes, in a line of JSON.
#[derive(Serialize, Deserialize)]
pub struct TlsStart {
    /// The certificates in PEM.
    pub chain: String,
    /// The private key in PEM.
    pub key: Zeroizing<String>,
    /// The path of the upgrade.
    pub path: String,
    /// The daemon's UDP port.
    pub port: u16,
}

/// Accepts connections until standard input ends.
///
/// # Errors
/// Another program than the daemon has started this process.
pub fn run() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(format!("only a tunnel with [tls] starts this command: {error}"));
    privilege::drop_all()?;
    // A buffer of the library would hide from `poll` what it has read ahead.
    let input = nix::unistd::dup(io::stdin().lock()).map_err(|errno| failed(errno.into()))?;
    let mut input = BufReader::new(File::from(input));
    let shared = read_shared(&mut input, &RandomState::new()).map_err(failed)?;
    let shared = shared.ok_or_else(|| failed(ErrorKind::UnexpectedEof.into()))?;
    let output = nix::unistd::dup(io::stdout().lock()).map_err(|errno| failed(errno.into()))?;
    let listener = TcpListener::from(output);
    listener.set_nonblocking(true).map_err(failed)?;
    accept(&listener, input, shared)
}

/// Reads a line of the daemon; returns `None` if there is no more.
fn read_shared(input: &mut BufReader<File>, hasher: &RandomState) -> io::Result<Option<Arc<Shared>>> {
    let mut line = Zeroizing::new(String::new());
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let TlsStart { chain, key, path, port } = serde_json::from_str(&line).map_err(|_| ErrorKind::InvalidData)?;
    let config = config(Identity { chain, key }).map_err(io::Error::other)?;
    let daemon = (Ipv4Addr::LOCALHOST, port).into();
    Ok(Some(Arc::new(Shared { config, path, daemon, hasher: hasher.clone() })))
}

/// The data of connections. Those that are open keep theirs when the daemon passes another certificate.
struct Shared {
    config: Arc<ServerConfig>,
    path: String,
    daemon: SocketAddr,
    hasher: RandomState,
}

fn config(identity: Identity) -> Result<Arc<ServerConfig>, String> {
    let (chain, key) = identity.parse()?;
    let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]);
    let config = config.map_err(|error| error.to_string())?.with_no_client_auth();
    let mut config = config.with_single_cert(chain, key).map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A session that is resumed saves little, and its tickets would be memory for strangers.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Accepts until the input ends. A connection beyond the limits is closed at once.
fn accept(listener: &TcpListener, mut input: BufReader<File>, mut shared: Arc<Shared>) -> Result<(), Failure> {
    let limits = Limits::default();
    let mut rate = ConnectionLimit::new(Instant::now());
    loop {
        let descriptor = input.get_ref().as_fd();
        let mut all = [PollFd::new(descriptor, PollFlags::POLLIN), PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut all, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(Failure::new(format!("cannot wait for connections over TLS: {errno}"))),
        }
        if all[0].revents().is_some_and(|events| !events.is_empty()) {
            match renew(&mut input, shared) {
                Some(renewed) => shared = renewed,
                None => return Ok(()),
            }
            continue;
        }
        match listener.accept() {
            Ok((tcp, from)) => {
                let Some(permit) = admit(&limits, &mut rate, Instant::now(), from.ip()) else { continue };
                let shared = shared.clone();
                let serve = move || serve(tcp, from, &permit, &shared);
                // Without a thread, the connection is closed.
                drop(thread::Builder::new().name("tls".to_owned()).stack_size(STACK).spawn(serve));
            }
            // It has ended by itself.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
            // Too many open files.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Counts a connection, unless its source or all together have too many, or open them too fast. The second limit bounds
/// the handshakes of connections that end at once, which the first one does not count.
fn admit(limits: &Limits, rate: &mut ConnectionLimit, now: Instant, from: IpAddr) -> Option<Permit> {
    limits.admit(from).filter(|_| rate.take(now, source(from)))
}

/// Returns the data of the last line that can be read at once; a line that is not valid changes nothing. Returns `None`
/// at the end of the input.
fn renew(input: &mut BufReader<File>, mut shared: Arc<Shared>) -> Option<Arc<Shared>> {
    loop {
        match read_shared(input, &shared.hasher) {
            Ok(renewed) => shared = renewed?,
            Err(error) => eprintln!("the certificate in use for paths over TLS stays: {error}; hint: mpt reload"),
        }
        if input.buffer().is_empty() {
            return Some(shared);
        }
    }
}

/// Serves a connection to its end. Strangers cause no line of the log.
fn serve(tcp: TcpStream, from: SocketAddr, _permit: &Permit, shared: &Shared) {
    let Ok(Some((channel, first))) = open(tcp, shared) else { return };
    let Ok(udp) = open_loopback(own_address(shared.hasher.hash_one(source(from.ip())))) else { return };
    let (counters, started) = (Counters::default(), Instant::now());
    let mut pump = Pump::new(channel, udp, shared.daemon, Side::Server, &counters);
    let end = pump.run(&first, &mut Receive::new(), None);
    if let (true, End::Lost(why)) = (pump.is_answered(), end) {
        let (seconds, dropped) = (started.elapsed().as_secs(), counters.dropped.load(Ordering::Relaxed));
        eprintln!("TLS connection of {from} ended after {seconds} s: {why}; datagrams dropped: {dropped}");
    }
}

/// Opens the connection. Everything but the right request gets the answer of a server without pages.
fn open(tcp: TcpStream, shared: &Shared) -> io::Result<Option<(Channel, Vec<u8>)>> {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let tls = ServerConnection::new(shared.config.clone()).map_err(io::Error::other)?;
    let mut channel = Channel::new(tcp, tls.into())?;
    let mut input = Vec::new();
    channel.handshake(&mut input, deadline)?;
    loop {
        match upgrade::parse_request(&input, &shared.path) {
            Head::Upgrade(key, length) => {
                channel.send_before(upgrade::response(&key).as_bytes(), deadline)?;
                return Ok(Some((channel, input.split_off(length))));
            }
            Head::Partial if input.len() <= MAX_HEAD => channel.receive_before(&mut input, deadline)?,
            Head::Partial | Head::Other(_) => {
                channel.send_before(NOT_FOUND.as_bytes(), deadline)?;
                channel.close();
                return Ok(None);
            }
        }
    }
}

/// Returns the address on loopback for a source: one of 127.64.0.0/10, which the daemon itself does not use.
fn own_address(hash: u64) -> Ipv4Addr {
    let host = (hash as u32 & 0x003f_ffff).clamp(1, 0x003f_fffe);
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 64, 0, 0)) | host)
}

/// Returns true if a peer has an address of this process, so that its path is over TLS.
pub fn is_relay(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.is_loopback() && ip.octets()[1] & 0xc0 == 64)
}

/// The time for TLS and HTTP of a new connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of stack of a connection. Its buffers are elsewhere.
const STACK: usize = 262_144;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::UdpSocket;
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;

    use super::*;
    use crate::config::tls::{TlsHost, TlsServer};
    use crate::resolver::Lookup;
    use crate::tls::client::{TlsClient, TlsEvent, TlsTarget};
    use crate::tls::limits::MAX_OF_SOURCE;

    /// The server has an address.
    fn no_lookup() -> Lookup {
        let (name, former) = (String::new(), PathBuf::new());
        Lookup { name, interfaces: Vec::new(), inside: Vec::new(), former, before: Vec::new() }
    }

    #[test]
    fn a_new_certificate_holds_for_the_next_connection_and_open_ones_go_on() {
        let line = |identity: &Identity, port| {
            let Identity { chain, key } = identity.clone();
            serde_json::to_string(&TlsStart { chain, key, path: "/".to_owned(), port }).unwrap() + "\n"
        };
        let [first, second] = [Identity::new().unwrap(), Identity::new().unwrap()];
        let daemon = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = daemon.local_addr().unwrap().port();
        daemon.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let (input, mut output) = io::pipe().unwrap();
        let mut input = BufReader::new(File::from(OwnedFd::from(input)));
        output.write_all(line(&first, port).as_bytes()).unwrap();
        let shared = read_shared(&mut input, &RandomState::new()).unwrap().unwrap();
        let accepting = thread::spawn(move || accept(&listener, input, shared));

        // Only the certificate with this fingerprint is accepted.
        let connect = |identity: &Identity| {
            let local = UdpSocket::bind("127.0.0.1:0").unwrap();
            local.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let certificate = identity.fingerprint();
            let server = TlsServer {
                host: TlsHost::Address(at.ip()),
                port: at.port(),
                path: "/".to_owned(),
                certificate,
                proxy: None,
            };
            let target = TlsTarget { server, interface: None, mark: None };
            let client = TlsClient::start(target, local.local_addr().unwrap()).unwrap();
            client.connect(no_lookup());
            let deadline = Instant::now() + Duration::from_secs(60);
            loop {
                match client.take_events().pop() {
                    Some(event) => return (event, client, local),
                    None => thread::sleep(Duration::from_millis(5)),
                }
                assert!(Instant::now() < deadline);
            }
        };
        let carries = |client: &TlsClient, local: &UdpSocket, text: &[u8]| {
            let mut buffer = [0; 64];
            local.send_to(text, client.local()).unwrap();
            let (length, relay) = daemon.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], text);
            daemon.send_to(text, relay).unwrap();
            assert_eq!(local.recv(&mut buffer).unwrap(), text.len());
        };
        let (event, open, local) = connect(&first);
        assert_eq!(event, TlsEvent::Connected(at));
        carries(&open, &local, b"before");
        assert!(matches!(connect(&second).0, TlsEvent::Refused(..)));

        let mut wrong = second.clone();
        wrong.key = first.key.clone();
        output.write_all(line(&wrong, port).as_bytes()).unwrap();
        output.write_all(b"{}\n").unwrap();
        assert_eq!(connect(&first).0, TlsEvent::Connected(at), "the first stays in use");
        // Two lines at once: the last one holds.
        output.write_all((line(&first, port) + &line(&second, port)).as_bytes()).unwrap();
        let (event, renewed, its) = connect(&second);
        assert_eq!(event, TlsEvent::Connected(at));
        assert!(matches!(connect(&first).0, TlsEvent::Refused(..)));
        carries(&open, &local, b"after");
        carries(&renewed, &its, b"renewed");
        assert_eq!(open.take_events(), []);
        drop(output);
        accepting.join().unwrap().unwrap();
    }

    #[test]
    fn connections_that_end_at_once_are_limited_by_their_rate_and_leave_other_sources_their_place() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut rate = ConnectionLimit::new(now);
        let mut admitted = |ms, from: &str| {
            let (now, from) = (now + Duration::from_millis(ms), from.parse().unwrap());
            // The permit is dropped, as that of a connection which has ended.
            (0..1_400).filter(|_| admit(&limits, &mut rate, now, from).is_some()).count()
        };
        assert_eq!(admitted(0, "192.0.2.1"), 20);
        assert_eq!(admitted(1_000, "192.0.2.1"), 5);
        assert_eq!(admitted(1_000, "2001:db8:1:2::1"), 20);
        assert_eq!(admitted(1_000, "2001:db8:1:2:ffff::1"), 0, "the same network");
        assert_eq!(admitted(1_000, "2001:db8:1:3::1"), 20);
    }

    #[test]
    fn connections_that_are_refused_because_their_source_has_too_many_take_no_rate() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut rate = ConnectionLimit::new(now);
        let from = IpAddr::from([192, 0, 2, 1]);
        let open: Vec<_> = (0..1_400).filter_map(|_| admit(&limits, &mut rate, now, from)).collect();
        assert_eq!(open.len(), MAX_OF_SOURCE);
        drop(open);
        assert!(admit(&limits, &mut rate, now, from).is_some());
    }

    #[test]
    fn addresses_of_the_relay_are_known_as_such_and_others_are_not() {
        for hash in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert!(is_relay(own_address(hash).into()), "{}", own_address(hash));
        }
        for other in ["127.0.0.1", "192.64.0.1", "::1", "127.128.0.1"] {
            assert!(!is_relay(other.parse().unwrap()), "{other}");
        }
    }
}
