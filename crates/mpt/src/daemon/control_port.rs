//! The control port of the original MPT in the daemon's event loop: passes datagrams and deadlines to
//! [`ControlChannel`] and returns its events. Exchanges never block.
//!
//! The original also takes its own commands on this port, from any process of the host. Here commands use the control
//! socket (`crate::control`), and such datagrams are rejected.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use mpt_linux::udp::DualStackSocket;
use mpt_proto::legacy::control::{
    Accept, AddressPair, ControlChannel, ControlEvent, LegacyConnection, LegacyPath, Refused,
};
use mpt_proto::legacy::wire::AuthKey;
use mpt_proto::time::Time;
use nix::net::if_::if_nametoindex;

use crate::Failure;
use crate::config::model::{self, Original, OriginalPeer, Peer};
use crate::random;

/// The control plane with its socket.
#[derive(Debug)]
pub struct ControlPort {
    control: ControlChannel,
    socket: DualStackSocket,
    buffer: Vec<u8>,
    /// The interfaces of the peers' link-local addresses, which are ambiguous without.
    link_local: Vec<(IpAddr, String)>,
    /// Reasons that occurred so far: each is logged once, so that outsiders cannot fill the log.
    refused: Vec<Refused>,
}

impl ControlPort {
    /// Opens the port for these peers.
    ///
    /// # Errors
    /// The port is in use, or the system has no random numbers.
    pub fn open(original: &Original, peers: &[Peer]) -> Result<Self, Failure> {
        let accept = Accept {
            unauthenticated: original.unauthenticated,
            public_key: original.public_key,
            create: original.template.as_ref().map(|template| template.key()),
        };
        let mut port = Self {
            // Nonces must be unpredictable.
            control: ControlChannel::new(accept, *random::bytes()?),
            socket: DualStackSocket::open(original.control_port)?,
            buffer: vec![0; MAX_DATAGRAM],
            link_local: Vec::new(),
            refused: Vec::new(),
        };
        peers.iter().for_each(|peer| port.add(peer));
        Ok(port)
    }

    /// Adds a peer, if it runs the original.
    pub fn add(&mut self, peer: &Peer) {
        let Some(original) = &peer.original else { return };
        let key = key(original);
        self.link_local.extend(link_local_remotes(peer));
        let paths = peer.paths.iter().filter_map(wire_name).collect();
        let OriginalPeer { auth, created, .. } = *original;
        self.control.add_connection(LegacyConnection { pair: pair(original), auth, key, created, paths });
    }

    /// Removes a peer and its pending exchanges.
    pub fn remove(&mut self, peer: &Peer) {
        if let Some(original) = &peer.original {
            let gone: Vec<_> = link_local_remotes(peer).collect();
            self.link_local.retain(|known| !gone.contains(known));
            self.control.remove_connection(pair(original));
        }
    }

    /// Receives at most [`MAX_DATAGRAMS`], so that data packets are not delayed.
    pub fn handle_ready(&mut self, now: Time) {
        for _ in 0..MAX_DATAGRAMS {
            match self.socket.recv(&mut self.buffer) {
                Ok(Some((len, from))) => self.handle_datagram(now, from, len),
                Ok(None) => return,
                Err(error) => return tracing::debug!(%error, "control port"),
            }
        }
    }

    fn handle_datagram(&mut self, now: Time, from: SocketAddr, len: usize) {
        let Err(why) = self.control.handle_datagram(now, from, &self.buffer[..len]) else { return };
        if self.refused.contains(&why) {
            return tracing::debug!(%from, ?why, "control message rejected");
        }
        tracing::warn!(%from, ?why, "control message rejected; further ones for this reason are not logged");
        self.refused.push(why);
    }

    /// Notifies a peer that one of its paths went up or down, over another path that is up.
    pub fn notify(&mut self, now: Time, peer: &Peer, path: &model::Path, up: bool, is_up: impl Fn(&str) -> bool) {
        let Some((original, wire)) = peer.original.as_ref().zip(wire_name(path)) else { return };
        let others = peer.paths.iter().filter(|other| *other.name != *path.name);
        let Some(over) = others.chain(up.then_some(path)).find(|other| is_up(&other.name)) else {
            return tracing::info!(peer = %peer.name, path = %path.name, "cannot notify the peer: no path is up");
        };
        let Some(to) = over.remote_ip().map(|ip| SocketAddr::new(ip, original.control_port)) else { return };
        if let Err(why) = self.control.send_status(now, pair(original), to, wire, up) {
            tracing::warn!(peer = %peer.name, ?why, "cannot notify the peer");
        }
    }

    /// Requests that a peer creates its side of a connection.
    ///
    /// # Errors
    /// The key is the public one, and that is not allowed.
    pub fn create(&mut self, now: Time, pair: AddressPair, to: SocketAddr, text: &str) -> Result<(), Refused> {
        self.control.create(now, pair, to, text)
    }

    /// Returns the control channel.
    pub fn control(&mut self) -> &mut ControlChannel {
        &mut self.control
    }

    /// Handles expired deadlines and returns the next event.
    pub fn poll_event(&mut self, now: Time) -> Option<ControlEvent> {
        if self.control.next_deadline().is_some_and(|at| at <= now) {
            self.control.handle_timeout(now);
        }
        self.control.poll_event()
    }

    /// Sends pending datagrams and returns the next deadline.
    pub fn flush(&mut self) -> Option<Time> {
        while let Some(transmit) = self.control.poll_transmit() {
            if let Err(error) = self.socket.send(self.with_scope(transmit.to), &transmit.bytes) {
                tracing::debug!(%error, "control port");
            }
        }
        self.control.next_deadline()
    }

    fn with_scope(&self, to: SocketAddr) -> SocketAddr {
        let interface = self.link_local.iter().find(|(remote, _)| *remote == to.ip()).map(|(_, interface)| interface);
        match (to, interface.and_then(|name| if_nametoindex(name.as_str()).ok())) {
            (SocketAddr::V6(to), Some(index)) => SocketAddrV6::new(*to.ip(), to.port(), 0, index).into(),
            _ => to,
        }
    }
}

impl AsFd for ControlPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns a connection's identifiers on the wire.
pub fn pair(original: &OriginalPeer) -> AddressPair {
    AddressPair { local: original.local, remote: original.remote }
}

/// Returns a path's identifiers on the wire; `None` without a public address.
pub fn wire_name(path: &model::Path) -> Option<LegacyPath> {
    Some(LegacyPath { public: path.public()?, remote: path.remote_ip()? })
}

/// Returns the link-local addresses of a peer.
fn link_local_remotes(peer: &Peer) -> impl Iterator<Item = (IpAddr, String)> {
    let is_narrow = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    peer.paths.iter().filter_map(move |path| {
        let interface = path.interface.as_deref().cloned();
        path.remote_ip().filter(is_narrow).zip(interface)
    })
}

fn key(original: &OriginalPeer) -> AuthKey {
    original.key.as_ref().map_or(AuthKey::PUBLIC, |key| AuthKey::from_text(&key.0))
}

/// Larger than any UDP payload.
const MAX_DATAGRAM: usize = 1 << 16;
/// Maximum number of datagrams per iteration; the exchanges of a peer need a few.
const MAX_DATAGRAMS: usize = 32;
