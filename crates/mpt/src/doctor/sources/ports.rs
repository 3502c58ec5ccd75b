//! A datagram to each address of a path that is not up. A host without a program at that port answers with an ICMP
//! error, which the kernel reports to a connected socket. MPT drops the datagram and does not answer.

use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::sys::socket::{setsockopt, sockopt};

use crate::config::model::Peer;
use crate::control::report::{PathReport, PeerReport};
use crate::daemon::policy_routing;
use crate::doctor::facts::{Facts, Port};

/// A path whose address is probed.
#[derive(Debug)]
pub struct Silent {
    peer: String,
    path: String,
    remote: SocketAddr,
    interface: Option<String>,
    mark: Option<u32>,
}

/// Returns the paths with a configured address that are silent; without a report, all with an address.
pub fn silent(facts: &Facts) -> Vec<Silent> {
    let Some(file) = facts.file() else { return Vec::new() };
    let mark = policy_routing::mark(file);
    let mut silent: Vec<_> = match facts.report() {
        Some(_) => facts.paths().filter_map(|(peer, path)| reported(facts, peer, path, mark)).collect(),
        None => file.peers.iter().flat_map(|peer| configured(peer, mark)).collect(),
    };
    silent.truncate(MOST);
    silent
}

fn reported(facts: &Facts, peer: &PeerReport, path: &PathReport, mark: Option<u32>) -> Option<Silent> {
    let is_called = facts.peer(&peer.name).is_some_and(|peer| !peer.connects_to_us());
    if path.cause.as_deref() != Some("silent") || !is_called || path.tls.is_some() {
        return None;
    }
    // An automatic path has the name of its interface.
    let listed = facts.path(peer, path).map(|own| own.interface.as_deref().cloned());
    let interface = listed.unwrap_or_else(|| Some(path.name.clone()));
    let (peer, remote) = (peer.name.clone(), path.remote.parse().ok()?);
    Some(Silent { peer, path: path.name.clone(), remote, interface, mark })
}

fn configured(peer: &Peer, mark: Option<u32>) -> Vec<Silent> {
    let name = || peer.name.to_string();
    let listed = peer.paths.iter().filter_map(|path| {
        let (interface, remote) = (path.interface.as_deref().cloned(), **path.remote.as_ref()?);
        Some(Silent { peer: name(), path: path.name.to_string(), remote, interface, mark })
    });
    let remotes = peer.auto.iter().flat_map(|auto| &auto.remotes).map(|remote| **remote);
    let automatic =
        remotes.map(|remote| Silent { peer: name(), path: remote.to_string(), remote, interface: None, mark });
    listed.chain(automatic).collect()
}

/// Sends to all, and waits for errors.
pub fn probe(silent: Vec<Silent>) -> Vec<Port> {
    let start = Instant::now();
    let mut sockets: Vec<_> = silent.into_iter().map(|silent| (send(&silent), silent)).collect();
    let mut ports = Vec::new();
    while !sockets.is_empty() {
        let is_late = start.elapsed() >= PATIENCE;
        sockets.retain(|(socket, silent)| {
            let refusal = refusal(socket.as_ref());
            let is_done = refusal.is_some() || is_late;
            if is_done {
                let (peer, path) = (silent.peer.clone(), silent.path.clone());
                ports.push(Port { peer, path, remote: silent.remote, refusal });
            }
            !is_done
        });
        thread::sleep(INTERVAL);
    }
    ports
}

/// Sends an octet, which is no datagram of the tunnel.
fn send(to: &Silent) -> io::Result<UdpSocket> {
    let any = if to.remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    if let Some(interface) = to.interface.as_ref().filter(|name| nix::net::if_::if_nametoindex(name.as_str()).is_ok()) {
        setsockopt(&socket, sockopt::BindToDevice, &OsString::from(interface))?;
    }
    if let Some(mark) = to.mark {
        // Without CAP_NET_ADMIN the datagram may go into the tunnel, where no error comes back.
        setsockopt(&socket, sockopt::Mark, &mark).ok();
    }
    socket.connect(to.remote)?;
    socket.set_nonblocking(true)?;
    socket.send(&[0])?;
    Ok(socket)
}

fn refusal(socket: Result<&UdpSocket, &io::Error>) -> Option<String> {
    match socket {
        Ok(socket) => socket.take_error().ok().flatten().map(|error| describe(&error)),
        Err(error) => Some(describe(error)),
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "the port is closed".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "there is no way to this host".to_owned(),
        io::ErrorKind::PermissionDenied => "a firewall forbids it".to_owned(),
        _ => error.to_string(),
    }
}

/// Longer than the round trip over two satellites.
const PATIENCE: Duration = Duration::from_millis(1_500);
const INTERVAL: Duration = Duration::from_millis(10);
/// Addresses that are probed.
const MOST: usize = 32;
