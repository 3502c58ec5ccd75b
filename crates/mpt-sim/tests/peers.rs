//! Many peers at one endpoint: routing of packets, and checks of their sources.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::packet::Offload;
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use mpt_sim::host::numbered;
use mpt_sim::net::address;
use support::native::{endpoint, keys, path_to, peer};

const SERVER: u16 = 60_000;

/// A server with clients that have a session.
struct Star {
    server: Endpoint,
    clients: Vec<Endpoint>,
    now: Time,
    /// The client whose datagrams are all lost.
    unreachable: Option<usize>,
}

fn at(client: usize) -> SocketAddr {
    SocketAddr::from(([10, 9, 0, client as u8], 4754))
}

impl Star {
    /// Creates a client for each of these lists of networks.
    fn new(networks: &[&[&str]]) -> Self {
        let configured = |(i, nets): (usize, &&[&str])| peer(format!("c{i}"), &keys(i as u16), vec![], nets);
        let server = endpoint(keys(SERVER), SERVER, networks.iter().enumerate().map(configured).collect());
        let mut star = Self { server, clients: Vec::new(), now: Time::START, unreachable: None };
        (0..networks.len()).for_each(|_| star.add_client());
        star.settle();
        star
    }

    fn add_client(&mut self) {
        let (server, i) = (peer("server".into(), &keys(SERVER), vec![path_to(1)], &["0.0.0.0/0"]), self.clients.len());
        self.clients.push(endpoint(keys(i as u16), i as u16, vec![server]));
    }

    /// Delivers all datagrams for two seconds.
    fn settle(&mut self) {
        for _ in 0..2_000 {
            self.now += Duration::from_millis(1);
            self.server.handle_deadline(self.now);
            for client in 0..self.clients.len() {
                self.clients[client].handle_deadline(self.now);
                while let Some(batch) = self.clients[client].poll_transmit(self.now) {
                    if self.unreachable == Some(client) {
                        continue;
                    }
                    let received = RecvMeta {
                        link: LinkId(0),
                        from: at(client),
                        tos: 0,
                        segment: batch.segment,
                        arrived_at: None,
                    };
                    self.server.handle_datagrams(self.now, &received, &mut batch.bytes().to_vec());
                }
            }
            while let Some(batch) = self.server.poll_transmit(self.now) {
                let client = (0..self.clients.len()).find(|client| at(*client) == batch.to).unwrap();
                if self.unreachable == Some(client) {
                    continue;
                }
                let received =
                    RecvMeta { link: LinkId(0), from: address(1, 0), tos: 0, segment: batch.segment, arrived_at: None };
                self.clients[client].handle_datagrams(self.now, &received, &mut batch.bytes().to_vec());
            }
        }
    }

    /// Sends a packet from a client; returns the number of packets that the server delivers.
    fn send_from_client(&mut self, client: usize, from: [u8; 4]) -> usize {
        inner(&mut self.clients[client], self.now, from, [10, 77, 0, 1]);
        self.settle();
        deliveries(&mut self.server)
    }

    /// Sends a packet from the server; returns the clients that deliver it.
    fn send_from_server(&mut self, to: [u8; 4]) -> Vec<usize> {
        inner(&mut self.server, self.now, [10, 77, 0, 1], to);
        self.settle();
        (0..self.clients.len()).filter(|client| deliveries(&mut self.clients[*client]) > 0).collect()
    }

    /// Gives the server a packet to send, without advancing the time.
    fn queue_packet(&mut self, to: [u8; 4]) {
        let mut packet = numbered(1, 1_400);
        packet[12..16].copy_from_slice(&[10, 77, 0, 1]);
        packet[16..20].copy_from_slice(&to);
        self.server.handle_inner(self.now, &mut packet, 1_400, Offload::default());
    }

    /// Fills the server's queue to a client.
    fn fill_queue(&mut self, client: usize, to: [u8; 4]) {
        while self.server.peers()[client].has_room() {
            self.queue_packet(to);
        }
    }

    fn dropped(&self, peer: usize, reason: Dropped) -> u64 {
        self.server.status().peers[peer].drops.of(reason)
    }
}

fn inner(endpoint: &mut Endpoint, now: Time, from: [u8; 4], to: [u8; 4]) {
    let (mut buffer, mut packet) = (vec![0; 65_536], numbered(1, 100));
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    buffer[..100].copy_from_slice(&packet);
    endpoint.handle_inner(now, &mut buffer, 100, Offload::default());
}

fn deliveries(endpoint: &mut Endpoint) -> usize {
    std::iter::from_fn(|| endpoint.poll_delivery()).count()
}

#[test]
fn the_longest_prefix_selects_the_peer() {
    let mut star = Star::new(&[&["10.0.0.0/8"], &["10.7.0.0/16", "10.9.1.1/32"], &["10.7.7.0/24"]]);
    assert_eq!(star.send_from_server([10, 1, 2, 3]), [0]);
    assert_eq!(star.send_from_server([10, 7, 2, 3]), [1]);
    assert_eq!(star.send_from_server([10, 7, 7, 3]), [2]);
    assert_eq!(star.send_from_server([10, 9, 1, 1]), [1]);
    assert_eq!(star.send_from_server([192, 0, 2, 1]), [0; 0]);
    assert_eq!(star.server.status().drops.of(Dropped::NoRoute), 1);
}

#[test]
fn a_peer_cannot_use_the_source_address_of_another() {
    let mut star = Star::new(&[&["10.77.1.0/24"], &["10.77.2.0/24"]]);
    assert_eq!(star.send_from_client(0, [10, 77, 1, 9]), 1);
    assert_eq!(star.send_from_client(0, [10, 77, 2, 9]), 0, "the other's address");
    assert_eq!(star.send_from_client(0, [10, 77, 0, 1]), 0, "the server's own");
    assert_eq!((star.dropped(0, Dropped::ForeignSource), star.dropped(1, Dropped::ForeignSource)), (2, 0));
    let arrived: Vec<_> = star.server.status().peers.iter().map(|peer| peer.ledger.delivered).collect();
    assert_eq!(arrived, [1, 0], "each peer has its own counters");
}

/// A host without an address from DHCP has such a source. It is no mistake in `networks`.
#[test]
fn packets_with_the_address_of_a_link_are_counted_apart() {
    let mut star = Star::new(&[&["10.77.1.0/24"], &["10.77.2.0/24"]]);
    for source in [[169, 254, 3, 4], [0, 0, 0, 0]] {
        assert_eq!(star.send_from_client(0, source), 0, "{source:?}");
    }
    assert_eq!((star.dropped(0, Dropped::LocalSource), star.dropped(0, Dropped::ForeignSource)), (2, 0));
}

/// 40 s of 8 Mbit/s to an unreachable peer exceed its queue; all peers share the TUN device.
#[test]
fn an_unreachable_peer_does_not_block_others() {
    let mut star = Star::new(&[&["10.77.1.0/24"], &["10.77.2.0/24"]]);
    star.unreachable = Some(0);
    for _ in 0..20 {
        (0..1_429).for_each(|_| star.queue_packet([10, 77, 1, 1]));
        star.settle();
        assert!(star.server.has_room());
        assert_eq!(star.send_from_server([10, 77, 2, 1]), [1]);
    }
    let status = star.server.status();
    let (dropped, waits) = (status.peers[0].drops.of(Dropped::NoPath), status.peers[0].queued_bytes);
    assert!(dropped > 20_000 && waits < 6_000_000, "{dropped} dropped, {waits} bytes wait");
    star.unreachable = None;
    star.settle();
    assert_eq!(star.send_from_server([10, 77, 1, 1]), [0]);
}

#[test]
fn a_peer_with_a_full_queue_does_not_block_others() {
    let mut star = Star::new(&[&["10.77.1.0/24"], &["10.77.2.0/24"]]);
    star.fill_queue(0, [10, 77, 1, 1]);
    assert!(star.server.has_room());
    (0..100).for_each(|_| star.queue_packet([10, 77, 1, 1]));
    assert!(star.dropped(0, Dropped::QueueFull) > 0);
    assert_eq!(star.send_from_server([10, 77, 2, 1]), [0, 1]);
    star.fill_queue(0, [10, 77, 1, 1]);
    star.fill_queue(1, [10, 77, 2, 1]);
    assert!(!star.server.has_room(), "every queue is full");
}

/// A peer must not use a more specific prefix of another peer.
#[test]
fn the_longest_prefix_also_decides_on_source_addresses() {
    let mut star = Star::new(&[&["10.0.0.0/8"], &["10.7.0.0/16"]]);
    assert_eq!(star.send_from_client(0, [10, 1, 2, 3]), 1);
    assert_eq!(star.send_from_client(0, [10, 7, 2, 3]), 0);
    assert_eq!(star.send_from_client(1, [10, 7, 2, 3]), 1);
    assert_eq!(star.dropped(0, Dropped::ForeignSource), 1);
}

#[test]
fn peers_are_added_and_removed_without_disturbing_others() {
    let mut star = Star::new(&[&["10.77.1.0/24"], &["10.77.2.0/24"]]);
    let now = star.now;
    star.server.add_peer(now, &peer("c2".into(), &keys(2), vec![], &["10.77.3.0/24"]));
    star.add_client();
    star.settle();
    assert_eq!((star.send_from_client(2, [10, 77, 3, 1]), star.send_from_client(0, [10, 77, 1, 1])), (1, 1));

    assert_eq!(star.server.remove_peer("c0"), Ok(()));
    assert_eq!(star.send_from_client(0, [10, 77, 1, 1]), 0, "the peer is unknown now");
    assert_eq!((star.send_from_client(1, [10, 77, 2, 1]), star.send_from_client(2, [10, 77, 3, 1])), (1, 1));
    assert_eq!((star.send_from_server([10, 77, 2, 5]), star.send_from_server([10, 77, 1, 5])), (vec![1], vec![]));
    let dropped = star.server.status().drops;
    assert!(dropped.of(Dropped::UnknownSession) > 0 && dropped.of(Dropped::NoRoute) == 1, "{dropped:?}");
}
