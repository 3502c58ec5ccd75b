//! The server's end of paths over TLS: a process of its own, without capabilities, that the daemon starts and watches.
//!
//! Standard output is the socket that listens, which the daemon has opened; standard input has one line, [`TlsStart`],
//! and its end is that of the daemon. A connection has a thread, and a UDP socket on loopback with an address that
//! depends on its source, so that the daemon's limits for sources of handshakes hold for each source of connections.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead as _, ErrorKind};
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
    let mut line = Zeroizing::new(String::new());
    io::stdin().lock().read_line(&mut line).map_err(failed)?;
    let start: TlsStart = serde_json::from_str(&line).map_err(|_| failed(ErrorKind::InvalidData.into()))?;
    let output = nix::unistd::dup(io::stdout().lock()).map_err(|errno| failed(errno.into()))?;
    let listener = TcpListener::from(output);
    listener.set_nonblocking(true).map_err(failed)?;
    let config = config(Identity { chain: start.chain, key: start.key }).map_err(Failure::new)?;
    let daemon = (Ipv4Addr::LOCALHOST, start.port).into();
    let shared = Shared { config, path: start.path, daemon, hasher: RandomState::new() };
    accept(&listener, &Arc::new(shared))
}

/// The data of all connections.
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

/// Accepts until standard input ends. A connection beyond the limits is closed at once.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) -> Result<(), Failure> {
    let limits = Limits::default();
    loop {
        let input = io::stdin();
        let mut all = [PollFd::new(input.as_fd(), PollFlags::POLLIN), PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut all, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(Failure::new(format!("cannot wait for connections over TLS: {errno}"))),
        }
        if all[0].revents().is_some_and(|events| !events.is_empty()) {
            return Ok(());
        }
        match listener.accept() {
            Ok((tcp, from)) => {
                let Some(permit) = limits.admit(from.ip()) else { continue };
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
    use super::*;

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
