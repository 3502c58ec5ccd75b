//! Two native endpoints with one path and no network between them: the test decides the fate of each datagram.

use std::time::Duration;

use mpt_proto::cc;
use mpt_proto::config::{Config, NativeConfig, PathConfig, PeerConfig, ProbeConfig, Protocol};
use mpt_proto::crypto::handshake::{Capabilities, Clock, Identity};
use mpt_proto::crypto::keys::{KeyPair, PresharedKey};
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::packet::{Merge, Offload};
use mpt_proto::path::LinkId;
use mpt_proto::reorder::ReorderLimits;
use mpt_proto::sched::SchedulerKind;
use mpt_proto::sessions::SessionTable;
use mpt_proto::time::Time;
use mpt_sim::host::numbered;
use mpt_sim::net::address;

/// A datagram and its destination end.
#[derive(Clone, Debug)]
pub struct Datagram {
    pub to: usize,
    pub bytes: Vec<u8>,
}

pub struct Pair {
    pub ends: [Endpoint; 2],
    pub now: Time,
}

pub fn keys(end: u16) -> KeyPair {
    let mut secret = [7; 32];
    secret[..2].copy_from_slice(&end.to_be_bytes());
    KeyPair::generate(secret)
}

/// Returns a peer: the remote end is contacted if `paths` is not empty, otherwise it must connect itself.
pub fn peer(name: String, key: &KeyPair, paths: Vec<PathConfig>, networks: &[&str]) -> PeerConfig {
    let native = Protocol::Native(NativeConfig::new(*key.public()));
    let networks = networks.iter().map(|net| net.parse().unwrap()).collect();
    PeerConfig { networks, ..PeerConfig::new(name, native, paths) }
}

pub fn path_to(end: usize) -> PathConfig {
    PathConfig::new("path", LinkId(0), address(end, 0))
}

/// The wall clock at the start of a test, after the start of 1970.
pub const WALL_CLOCK: Duration = Duration::from_secs(1_000_000);

pub fn endpoint(keys: KeyPair, seed: u16, peers: Vec<PeerConfig>) -> Endpoint {
    endpoint_at(Time::START, Clock::new(WALL_CLOCK), keys, seed, peers)
}

pub fn endpoint_at(now: Time, clock: Clock, keys: KeyPair, seed: u16, peers: Vec<PeerConfig>) -> Endpoint {
    endpoint_with(now, clock, Capabilities::new(true), keys, seed, peers)
}

pub fn endpoint_with(
    now: Time,
    clock: Clock,
    capabilities: Capabilities,
    keys: KeyPair,
    seed: u16,
    peers: Vec<PeerConfig>,
) -> Endpoint {
    let config = Config { identity: None, mtu: 1_437, merge: Merge::default(), peers };
    let identity = Identity { keys, capabilities, clock };
    let mut random = [9; 32];
    random[..2].copy_from_slice(&seed.to_be_bytes());
    Endpoint::native(now, &config, SessionTable::new(identity, random))
}

/// Returns the sum of all drops of an endpoint.
pub fn total_drops(endpoint: &Endpoint) -> u64 {
    let status = endpoint.status();
    status.drops.total() + status.peers.iter().map(|peer| peer.drops.total()).sum::<u64>()
}

/// Returns the numbers of delivered packets.
pub fn numbers(packets: &[Vec<u8>]) -> Vec<u64> {
    packets.iter().map(|packet| u64::from_be_bytes(packet[28..36].try_into().unwrap())).collect()
}

impl Pair {
    /// Returns a pair: the first end is the initiator, the second the responder.
    pub fn new() -> Self {
        let near = vec![peer("far".into(), &keys(2), vec![path_to(1)], &["0.0.0.0/0"])];
        let far = vec![peer("near".into(), &keys(1), vec![], &["0.0.0.0/0"])];
        Self { ends: [endpoint(keys(1), 1, near), endpoint(keys(2), 2, far)], now: Time::START }
    }

    /// Returns a pair with a session and nothing left to send.
    pub fn established() -> Self {
        let mut pair = Self::new();
        pair.exchange();
        pair.advance(Duration::from_secs(1));
        pair
    }

    /// Returns the datagrams that an end sends now.
    pub fn poll(&mut self, end: usize) -> Vec<Datagram> {
        let mut datagrams = Vec::new();
        while let Some(batch) = self.ends[end].poll_transmit(self.now) {
            datagrams.extend(
                batch.bytes().chunks(batch.segment).map(|bytes| Datagram { to: 1 - end, bytes: bytes.to_vec() }),
            );
            self.ends[end].recycle_transmit(batch);
        }
        datagrams
    }

    /// Delivers a datagram from the other end's address.
    pub fn deliver(&mut self, to: usize, datagram: &Datagram) {
        let mut bytes = datagram.bytes.clone();
        let received =
            RecvMeta { link: LinkId(0), from: address(1 - to, 0), tos: 0, segment: bytes.len(), arrived_at: None };
        self.ends[to].handle_datagrams(self.now, &received, &mut bytes);
    }

    /// Delivers datagrams in both directions until both ends are quiet.
    pub fn exchange(&mut self) {
        loop {
            let datagrams: Vec<_> = (0..2).flat_map(|end| self.poll(end)).collect();
            if datagrams.is_empty() {
                return;
            }
            datagrams.iter().for_each(|datagram| self.deliver(datagram.to, datagram));
        }
    }

    /// Advances the time for both ends and delivers their datagrams.
    pub fn advance(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.exchange();
            let next = self.ends.iter().filter_map(|end| Some(end.next_deadline()?.0)).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            self.ends.iter_mut().for_each(|end| end.handle_deadline(next));
        }
        self.now = until;
    }

    /// Advances the time for one end and loses its datagrams.
    pub fn advance_without_network(&mut self, end: usize, time: Duration) {
        let until = self.now + time;
        self.poll(end);
        while let Some((next, _)) = self.ends[end].next_deadline().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(next);
            self.ends[end].handle_deadline(self.now);
            self.poll(end);
        }
        self.now = until;
    }

    /// Loses what both ends send now.
    pub fn discard_pending(&mut self) {
        (0..2).for_each(|end| drop(self.poll(end)));
    }

    /// Returns a captured datagram with a numbered packet of `len` bytes from an end.
    pub fn packet(&mut self, from: usize, number: u64, len: usize) -> Datagram {
        self.queue_packet(from, number, len);
        self.poll(from).pop().expect("a datagram with the packet")
    }

    /// Gives an end a numbered packet of `len` bytes to send.
    pub fn queue_packet(&mut self, from: usize, number: u64, len: usize) {
        let mut buffer = vec![0; 65_536];
        let packet = numbered(number, len.max(40));
        buffer[..packet.len()].copy_from_slice(&packet);
        self.ends[from].handle_inner(self.now, &mut buffer, packet.len(), Offload::default());
    }

    /// Returns the packets that an end has delivered.
    pub fn delivered(&mut self, end: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Some(delivery) = self.ends[end].poll_delivery() {
            packets.push(delivery.bytes.clone());
            self.ends[end].recycle_delivery(delivery.bytes);
        }
        packets
    }
}
