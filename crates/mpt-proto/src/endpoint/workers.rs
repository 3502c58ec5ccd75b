//! Peers of the same tunnel at other endpoints of this process: at other workers.
//!
//! A peer lives at one worker. The kernel leads most input to it: datagrams by the session index, inner packets by the
//! queue of the TUN device to which the last packet of their flow was written. What comes elsewhere is handed over:
//!
//! | input | where it comes |
//! |---|---|
//! | an initiation, which belongs to no session yet | the first worker, which decrypts and verifies it |
//! | an inner packet of a flow from whose other direction no packet has come | any worker |
//!
//! An endpoint therefore knows the keys and networks of all peers. [`Endpoint::poll_handover`] returns what goes to
//! another worker, [`Endpoint::handle_handover`] takes it there. Nothing is handed over a second time.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{Endpoint, Question};
use crate::config::PeerConfig;
use crate::crypto::keys::PublicKey;
use crate::drops::Dropped;
use crate::packet::SuperPacket;
use crate::time::Time;

/// Input for the endpoint of another worker.
#[derive(Debug)]
pub enum Handover {
    /// An inner packet.
    Packet(SuperPacket),
    /// An authentic initiation.
    Initiation(Box<Question>),
}

impl Handover {
    /// Returns the number of packets, or 1 for an initiation.
    pub fn packets(&self) -> u64 {
        match self {
            Self::Packet(packet) => packet.count() as u64,
            Self::Initiation(_) => 1,
        }
    }

    /// Returns the memory of a packet; none for an initiation.
    pub fn buffer_bytes(&self) -> Option<usize> {
        match self {
            Self::Packet(packet) => Some(packet.buffer_bytes()),
            Self::Initiation(_) => None,
        }
    }
}

/// The peers at other workers, and what goes there.
#[derive(Debug, Default)]
pub(super) struct OtherWorkers {
    /// By slot; removed peers leave a gap, which is used again.
    peers: Vec<Option<OtherPeer>>,
    free: Vec<usize>,
    names: HashMap<String, usize>,
    keys: HashMap<PublicKey, usize>,
    /// Where these peers were heard. Known addresses are served first while handshakes flood this end.
    addresses: Vec<SocketAddr>,
    out: VecDeque<(usize, Handover)>,
}

/// A peer at another worker.
#[derive(Debug)]
pub(super) struct OtherPeer {
    worker: usize,
    key: Option<PublicKey>,
    networks: Vec<IpNet>,
    local_networks: Vec<IpNet>,
}

/// In the table of routes, the index of the first peer at another worker.
const FIRST: usize = usize::MAX / 2;

impl OtherPeer {
    /// Returns true if inner packets from `source` may be sent to it.
    pub(super) fn accepts(&self, source: IpAddr) -> bool {
        self.local_networks.is_empty() || self.local_networks.iter().any(|net| net.contains(&source))
    }
}

impl OtherWorkers {
    /// Returns true if the index of a peer in the table of routes is one of these.
    pub(super) fn takes(&self, peer: usize) -> bool {
        peer >= FIRST
    }

    /// Returns the peer of this index in the table of routes, if it is one of these.
    pub(super) fn peer(&self, peer: usize) -> Option<&OtherPeer> {
        self.peers.get(peer.checked_sub(FIRST)?)?.as_ref()
    }

    /// Returns the index of the peer with this key.
    pub(super) fn peer_with_key(&self, key: &PublicKey) -> Option<usize> {
        self.keys.get(key).map(|slot| FIRST + slot)
    }

    /// Keeps input for the worker of a peer until it is polled.
    pub(super) fn hand_over(&mut self, peer: usize, input: Handover) {
        if let Some(peer) = self.peer(peer) {
            self.out.push_back((peer.worker, input));
        }
    }

    /// Returns true if there is any.
    pub(super) fn has_any(&self) -> bool {
        !self.names.is_empty()
    }

    /// Returns where these peers were heard.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn add(&mut self, name: &str, peer: OtherPeer) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        self.names.insert(name.to_owned(), slot);
        if let Some(key) = peer.key {
            self.keys.insert(key, slot);
        }
        self.peers[slot] = Some(peer);
        FIRST + slot
    }

    fn remove(&mut self, name: &str) -> Option<(usize, OtherPeer)> {
        let slot = self.names.remove(name)?;
        let peer = self.peers[slot].take()?;
        if let Some(key) = peer.key.filter(|key| self.keys.get(key) == Some(&slot)) {
            self.keys.remove(&key);
        }
        self.free.push(slot);
        Some((FIRST + slot, peer))
    }
}

impl Endpoint {
    /// A peer was added at another worker of this process.
    pub fn add_elsewhere(&mut self, worker: usize, config: &PeerConfig) {
        let PeerConfig { name, networks, local_networks, protocol, .. } = config;
        let (networks, local_networks) = (networks.clone(), local_networks.clone());
        let peer = OtherPeer { worker, key: protocol.public_key(), networks: networks.clone(), local_networks };
        let index = self.others.add(name, peer);
        networks.into_iter().for_each(|net| self.routes.add(net, index));
    }

    /// The peer of this name was removed at another worker.
    pub fn remove_elsewhere(&mut self, name: &str) {
        if let Some((index, peer)) = self.others.remove(name) {
            peer.networks.into_iter().for_each(|net| self.routes.remove(net, index));
        }
    }

    /// Takes the addresses at which peers of other workers were heard.
    pub fn set_addresses_elsewhere(&mut self, addresses: Vec<SocketAddr>) {
        self.others.addresses = addresses;
    }

    /// Returns the addresses that the peers have proved to have.
    pub fn validated_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.peers.iter().flat_map(crate::peer::Peer::validated_addresses)
    }

    /// Returns the next input for another worker, with the number of that worker.
    pub fn poll_handover(&mut self) -> Option<(usize, Handover)> {
        self.others.out.pop_front()
    }

    /// Takes input that another worker has handed over.
    pub fn handle_handover(&mut self, now: Time, input: Handover) {
        match input {
            Handover::Initiation(question) => self.answer(now, *question),
            Handover::Packet(packet) => {
                let (source, destination) = (packet.ip().source, packet.ip().destination);
                let accepts = |peer: usize| !self.others.takes(peer) && self.peers[peer].accepts(source);
                let done = match self.routes.lookup(destination, accepts) {
                    Some(peer) => self.enqueue(now, peer, packet),
                    None => Err((Dropped::NoRoute, packet.into_buffer())),
                };
                if let Err((why, bytes)) = done {
                    self.drops.count(why);
                    self.spare.put(bytes);
                }
            }
        }
    }

    /// Returns true if something has happened since the last call that the caller polls for, other than datagrams and
    /// packets: a change of a path, a session or a server, a question.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }
}
