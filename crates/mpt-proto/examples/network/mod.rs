//! Two endpoints and two links of unlimited rate between them, in virtual time. `mpt-sim` has links with rates, queues,
//! jitter and loss.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use mpt_proto::{
    Capabilities, Clock, Config, Endpoint, Identity, KeyPair, LinkId, Merge, NativeConfig, Offload, PathConfig,
    PeerConfig, Protocol, RecvMeta, SessionTable, Time,
};

/// One-way delays of the two links.
pub const DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(20)];
/// The largest inner packet in bytes.
const MTU: usize = 1_400;

/// Two ends, the datagrams between them, and the time.
pub struct Network {
    pub ends: [Endpoint; 2],
    pub now: Time,
    /// Inner packets that the second end delivered.
    pub delivered: u64,
    /// The datagrams in flight by arrival and number: the receiving end, and the datagram.
    in_flight: BTreeMap<(Time, u64), (usize, RecvMeta, Vec<u8>)>,
    sent: u64,
    /// One of so many datagrams is lost.
    loss: u64,
}

impl Network {
    /// Makes a network in which `adapt` changes the configuration of the peer at both ends, and one of `loss` datagrams
    /// is lost.
    pub fn new(loss: u64, adapt: impl Fn(PeerConfig) -> PeerConfig) -> Self {
        let ends = [0, 1].map(|end| endpoint(end, &adapt));
        Self { ends, now: Time::START, delivered: 0, in_flight: BTreeMap::new(), sent: 0, loss }
    }

    /// Runs for `time`. The first end takes `packets` full packets from its TUN device in each millisecond.
    pub fn run(&mut self, time: Duration, packets: u64) {
        let end = self.now + time;
        while self.now < end {
            let tick = self.now + Duration::from_millis(1);
            for _ in 0..packets {
                let mut packet = packet();
                let len = packet.len();
                self.ends[0].handle_inner(self.now, &mut packet, len, Offload::default());
            }
            self.exchange();
            while let Some(next) = self.next_event().filter(|next| *next <= tick) {
                self.now = next.max(self.now);
                self.handle_event();
                self.exchange();
            }
            self.now = tick;
        }
    }

    /// Returns the time of the next arrival or deadline.
    fn next_event(&self) -> Option<Time> {
        let deadlines = self.ends.iter().filter_map(|end| end.next_deadline().map(|(at, _)| at));
        self.in_flight.keys().map(|(arrival, _)| *arrival).chain(deadlines).min()
    }

    fn handle_event(&mut self) {
        while let Some(first) = self.in_flight.first_entry().filter(|first| first.key().0 <= self.now) {
            let (end, meta, mut bytes) = first.remove();
            self.ends[end].handle_datagrams(self.now, &meta, &mut bytes);
        }
        for end in &mut self.ends {
            if end.next_deadline().is_some_and(|(at, _)| at <= self.now) {
                end.handle_deadline(self.now);
            }
        }
    }

    /// Takes everything that the ends have to send and to deliver.
    fn exchange(&mut self) {
        for from in [0, 1] {
            while let Some(batch) = self.ends[from].poll_transmit(self.now) {
                let meta = RecvMeta {
                    link: batch.link,
                    from: address(from, batch.link),
                    tos: batch.tos,
                    segment: batch.segment,
                    arrived_at: None,
                };
                for datagram in batch.bytes().chunks(batch.segment) {
                    self.sent += 1;
                    if !self.sent.is_multiple_of(self.loss) {
                        let arrival = self.now + DELAYS[usize::from(batch.link.0)];
                        self.in_flight.insert((arrival, self.sent), (1 - from, meta, datagram.to_vec()));
                    }
                }
                self.ends[from].recycle_transmit(batch);
            }
            while let Some(write) = self.ends[from].poll_delivery() {
                self.delivered += u64::from(write.packets);
                self.ends[from].recycle_delivery(write.bytes);
            }
        }
    }
}

fn endpoint(end: usize, adapt: impl Fn(PeerConfig) -> PeerConfig) -> Endpoint {
    let keys = |end: usize| KeyPair::generate([end as u8 + 1; 32]);
    let paths = [0, 1].map(LinkId).map(|link| PathConfig::new(format!("path{}", link.0), link, address(1 - end, link)));
    let protocol = Protocol::Native(NativeConfig::new(*keys(1 - end).public()));
    let peer = PeerConfig {
        networks: vec!["10.0.0.0/8".parse().expect("a prefix")],
        ..PeerConfig::new("peer", protocol, paths.into())
    };
    let config = Config { identity: Some(keys(end)), mtu: MTU, merge: Merge::default(), peers: vec![adapt(peer)] };
    let clock = Clock::new(Duration::from_secs(1_800_000_000));
    let identity = Identity { keys: keys(end), capabilities: Capabilities::new(true), clock };
    Endpoint::native(Time::START, &config, SessionTable::new(identity, [end as u8 + 7; 32]))
}

fn address(end: usize, link: LinkId) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 10 * (end as u8 + 1) + link.0], 4_754))
}

/// Makes an IPv4 packet of 1400 bytes with UDP from 10.0.0.1 to 10.0.0.2.
fn packet() -> Vec<u8> {
    let mut packet = vec![0; MTU];
    packet[..20].copy_from_slice(&[0x45, 0, 5, 120, 0, 0, 0x40, 0, 64, 17, 0x21, 0x73, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet[20..28].copy_from_slice(&[0x30, 0x39, 0x30, 0x39, 5, 100, 0, 0]);
    packet
}
