//! Two native endpoints over paths with delay, and an attacker on the way who decides the fate of each datagram.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use mpt_proto::config::{PathConfig, PeerConfig};
use mpt_proto::crypto::handshake::{Capabilities, Clock, HandshakeGuard, HandshakeMessage, Rejection};
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::packet::Offload;
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use mpt_sim::host::numbered;
use mpt_sim::laws;
use mpt_sim::net::address;

use super::native::{WALL_CLOCK, endpoint, endpoint_with, keys, peer};

/// A datagram on a path, to the end `to`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Carried {
    pub to: usize,
    pub path: usize,
    pub bytes: Vec<u8>,
}

/// Decides what continues in place of a datagram, in this order.
pub type Attacker = Box<dyn FnMut(Time, Carried) -> Vec<Carried>>;

/// The client is end 0, the server end 1. The client's host sends a packet every 100 ms.
pub struct Wire {
    pub ends: [Endpoint; 2],
    pub now: Time,
    /// The client's host sends.
    pub client_sends: bool,
    /// The server's host does so, too.
    pub server_sends: bool,
    /// Times at which each end delivered a packet.
    pub delivered: [Vec<Time>; 2],
    /// The server knows the addresses of the client, too.
    symmetric: bool,
    delays: Vec<Duration>,
    attacker: Attacker,
    flight: BinaryHeap<Reverse<(Time, u64, Carried)>>,
    carried: u64,
    next_packet: Time,
    packets: u64,
    restarts: u16,
}

/// The peers of an end: the client has `paths` to the server, and if `symmetric`, the server to the client.
fn peers(end: usize, paths: usize, symmetric: bool) -> Vec<PeerConfig> {
    let path = |path: usize| PathConfig::new(format!("path{path}"), LinkId(path as u8), address(1 - end, path));
    let paths = (0..paths).filter(|_| end == 0 || symmetric).map(path).collect();
    let (name, key) = if end == 0 { ("far", keys(2)) } else { ("near", keys(1)) };
    vec![peer(name.into(), &key, paths, &["0.0.0.0/0"])]
}

impl Wire {
    /// Connects a client to a server over paths with these one-way delays.
    pub fn new(delays: &[Duration], attacker: Attacker) -> Self {
        Self::with(delays, attacker, false)
    }

    /// Connects two ends that know each other's addresses.
    pub fn symmetric(delays: &[Duration], attacker: Attacker) -> Self {
        Self::with(delays, attacker, true)
    }

    fn with(delays: &[Duration], attacker: Attacker, symmetric: bool) -> Self {
        let make = |end: usize| endpoint(keys(end as u16 + 1), end as u16 + 1, peers(end, delays.len(), symmetric));
        let ends = [0, 1].map(make);
        Self {
            ends,
            restarts: 0,
            now: Time::START,
            client_sends: true,
            server_sends: false,
            symmetric,
            delivered: [vec![], vec![]],
            delays: delays.to_vec(),
            attacker,
            flight: BinaryHeap::new(),
            carried: 0,
            next_packet: Time::START,
            packets: 0,
        }
    }

    /// Replaces the attacker.
    pub fn set_attacker(&mut self, attacker: Attacker) {
        self.attacker = attacker;
    }

    /// Restarts an end, which forgets everything but its keys and the time.
    pub fn restart(&mut self, end: usize, capabilities: Capabilities) {
        self.restarts += 1;
        let clock = Clock::new(WALL_CLOCK + (self.now - Time::START) + Duration::from_nanos(u64::from(self.restarts)));
        let (keys, seed) = (keys(end as u16 + 1), 100 + self.restarts);
        self.ends[end] =
            endpoint_with(self.now, clock, capabilities, keys, seed, peers(end, self.delays.len(), self.symmetric));
    }

    /// Runs until `until` after the start.
    pub fn run(&mut self, until: Duration) {
        let until = Time::after(until);
        loop {
            (0..2).for_each(|end| self.poll(end));
            let deadlines = self.ends.iter().filter_map(|end| Some(end.next_deadline()?.0));
            let arrival = self.flight.peek().map(|Reverse((at, ..))| *at);
            let next = deadlines.chain(arrival).chain([self.next_packet]).min().unwrap();
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            self.step();
        }
        self.now = until;
        let breaches: Vec<_> = self.ends.iter().flat_map(laws::audit).collect();
        assert!(breaches.is_empty(), "{breaches:?}");
    }

    /// Puts a datagram on the wire, which the attacker does not see.
    pub fn inject(&mut self, datagram: Carried) {
        let at = self.now + self.delays[datagram.path];
        self.flight.push(Reverse((at, self.carried, datagram)));
        self.carried += 1;
    }

    /// Delivers a datagram from any address at once.
    pub fn deliver_from(&mut self, to: usize, received: &RecvMeta, bytes: &mut [u8]) {
        self.ends[to].handle_datagrams(self.now, received, bytes);
    }

    /// Returns the longest time without a delivery at `end` between two times.
    pub fn longest_outage(&self, end: usize, from: Duration, to: Duration) -> Duration {
        let (from, to) = (Time::after(from), Time::after(to));
        let within = self.delivered[end].iter().copied().filter(|at| (from..=to).contains(at));
        let times: Vec<_> = [from].into_iter().chain(within).chain([to]).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    }

    fn step(&mut self) {
        while self.flight.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, Carried { to, path, mut bytes }))) = self.flight.pop() else { return };
            let from = address(1 - to, path);
            let received = RecvMeta { link: LinkId(path as u8), from, tos: 0, segment: bytes.len(), arrived_at: None };
            self.ends[to].handle_datagrams(self.now, &received, &mut bytes);
        }
        if self.next_packet <= self.now {
            self.next_packet = self.now + Duration::from_millis(100);
            self.packets += 1;
            for end in (0..2).filter(|end| [self.client_sends, self.server_sends][*end]) {
                let mut buffer = vec![0; 65_536];
                let packet = numbered(self.packets, 100);
                buffer[..packet.len()].copy_from_slice(&packet);
                self.ends[end].handle_inner(self.now, &mut buffer, packet.len(), Offload::default());
            }
        }
        self.ends.iter_mut().for_each(|end| end.handle_deadline(self.now));
    }

    fn poll(&mut self, end: usize) {
        while let Some(batch) = self.ends[end].poll_transmit(self.now) {
            let path = usize::from(batch.link.0);
            for bytes in batch.bytes().chunks(batch.segment) {
                let sent = Carried { to: 1 - end, path, bytes: bytes.to_vec() };
                (self.attacker)(self.now, sent).into_iter().for_each(|datagram| self.inject(datagram));
            }
            self.ends[end].recycle_transmit(batch);
        }
        while let Some(delivery) = self.ends[end].poll_delivery() {
            self.delivered[end].extend((0..delivery.packets).map(|_| self.now));
            self.ends[end].recycle_delivery(delivery.bytes);
        }
    }
}

/// Lets every datagram pass.
pub fn nobody() -> Attacker {
    Box::new(|_, datagram| vec![datagram])
}

/// Returns the type of a handshake message.
pub fn handshake_type(bytes: &[u8]) -> Option<u8> {
    bytes.strip_prefix(&[0, 0, 0x88, 0xb6])?.first().copied()
}

pub const INITIATION: u8 = 1;
pub const RESPONSE: u8 = 2;
pub const COOKIE_REPLY: u8 = 3;

/// Forges the cookie reply with which the receiver of a handshake message would answer under load. The keys for it are
/// public.
pub fn forged_cookie_reply(now: Time, seen: &Carried) -> Option<Carried> {
    let mut bytes = seen.bytes.clone();
    let mac2 = bytes.len().saturating_sub(16);
    bytes[mac2..].fill(0);
    let message = HandshakeMessage::decode(&bytes)?;
    let signed = match &message {
        HandshakeMessage::Initiation(initiation) => &initiation.signed,
        HandshakeMessage::Response(response) => &response.signed,
        HandshakeMessage::CookieReply(_) => return None,
    };
    let mut guard = HandshakeGuard::new(keys(seen.to as u16 + 1).public(), [66; 32]);
    let mut rejections = (0..200).filter_map(|_| guard.admit(now, address(1 - seen.to, seen.path), signed).err());
    let Some(Rejection::Reply(reply)) = rejections.next() else { return None };
    Some(Carried { to: 1 - seen.to, path: seen.path, bytes: reply.to_vec() })
}
