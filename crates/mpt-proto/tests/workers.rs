//! Two endpoints of one tunnel, as workers of a process: one of them has the peer, and the other hands over its input.

mod datagrams;

use std::net::SocketAddr;
use std::time::Duration;

use datagrams::{LINK, receive, sent};
use mpt_proto::endpoint::Handover;
use mpt_proto::{
    Capabilities, Clock, Config, Dropped, Endpoint, Identity, KeyPair, Merge, NativeConfig, Offload, PathConfig,
    PeerConfig, Protocol, SessionTable, Time,
};

const NOW: Time = Time::after(Duration::from_secs(10));
const SERVER: u8 = 1;
const SITE: u8 = 2;

fn keys(number: u8) -> KeyPair {
    KeyPair::generate([number; 32])
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number], 4_754))
}

fn endpoint(own: u8, worker: u8, peers: Vec<PeerConfig>) -> Endpoint {
    let config = Config { identity: Some(keys(own)), mtu: 1_400, merge: Merge::default(), peers };
    let clock = Clock::new(Duration::from_secs(1_800_000_000));
    let identity = Identity { keys: keys(own), capabilities: Capabilities::new(true), clock };
    let mut sessions = SessionTable::new(identity, [own + 10 * worker; 32]);
    sessions.set_worker(worker, 2);
    Endpoint::native(NOW, &config, sessions)
}

fn peer(name: &str, other: u8, networks: &str, paths: Vec<PathConfig>) -> PeerConfig {
    let protocol = Protocol::Native(NativeConfig::new(*keys(other).public()));
    let networks = vec![networks.parse().expect("a network")];
    PeerConfig { networks, ..PeerConfig::new(name, protocol, paths) }
}

/// A server of two workers, of which the second one has the site, and the site with a first packet in its queue.
struct Scene {
    workers: [Endpoint; 2],
    site: Endpoint,
}

impl Scene {
    fn new() -> Self {
        let config = peer("site", SITE, "10.2.0.0/16", vec![]);
        let mut workers = [endpoint(SERVER, 0, vec![]), endpoint(SERVER, 1, vec![])];
        workers[0].add_elsewhere(1, &config);
        workers[1].add_peer(NOW, &config);
        let path = PathConfig::new("path", LINK, address(SERVER));
        let mut site = endpoint(SITE, 0, vec![peer("server", SERVER, "10.1.0.0/16", vec![path])]);
        site.handle_inner(NOW, &mut packet([10, 2, 0, 1], [10, 1, 0, 1]), 60, Offload::default());
        Self { workers, site }
    }

    /// Exchanges datagrams until neither end sends. Sealed ones and responses come to the worker that the session index
    /// names, everything else to the first one. Returns how many were handed over.
    fn run(&mut self) -> usize {
        let mut handed = 0;
        loop {
            let there = sent(&mut self.site, NOW);
            for datagram in &there {
                let worker = if datagram.starts_with(&[0x30, 0, 0x88, 0xb5]) { datagram[5] >> 7 } else { 0 };
                receive(&mut self.workers[usize::from(worker)], NOW, address(SITE), datagram.clone());
            }
            handed += self.hand_over();
            let back: Vec<_> = self.workers.iter_mut().flat_map(|worker| sent(worker, NOW)).collect();
            if there.is_empty() && back.is_empty() {
                return handed;
            }
            back.into_iter().for_each(|datagram| receive(&mut self.site, NOW, address(SERVER), datagram));
        }
    }

    fn hand_over(&mut self) -> usize {
        let mut handed = 0;
        for from in 0..2 {
            while let Some((to, input)) = self.workers[from].poll_handover() {
                assert_ne!(to, from);
                self.workers[to].handle_handover(NOW, input);
                handed += 1;
            }
        }
        handed
    }

    fn delivered(end: &mut Endpoint) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| end.poll_delivery()).map(|write| write.bytes).collect()
    }
}

/// Returns an IPv4 packet of 60 bytes with UDP.
fn packet(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![7; 60];
    packet[..12].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    let sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..28].copy_from_slice(&[0x30, 0x39, 0x30, 0x39, 0, 40, 0, 0]);
    packet
}

#[test]
fn an_initiation_and_packets_reach_the_worker_that_has_the_peer() {
    let mut scene = Scene::new();
    assert_eq!(scene.run(), 1, "the initiation");
    assert_eq!(Scene::delivered(&mut scene.workers[1]), [packet([10, 2, 0, 1], [10, 1, 0, 1])]);
    assert!(scene.workers[1].take_news() && !scene.workers[1].take_news());

    let back = packet([10, 1, 0, 1], [10, 2, 0, 1]);
    for from in [0, 1] {
        scene.workers[from].handle_inner(NOW, &mut back.clone(), 60, Offload::default());
        assert_eq!(scene.hand_over(), 1 - from, "from worker {from}");
        scene.run();
        assert_eq!(Scene::delivered(&mut scene.site), std::slice::from_ref(&back), "from worker {from}");
    }
    let status = scene.workers.iter().map(|worker| worker.status().drops.total()).sum::<u64>();
    assert_eq!(status, 0);
}

#[test]
fn a_source_of_a_peer_at_another_worker_is_foreign() {
    let mut scene = Scene::new();
    scene.workers[1].add_elsewhere(0, &peer("other", 9, "10.2.3.0/24", vec![]));
    scene.site.handle_inner(NOW, &mut packet([10, 2, 3, 1], [10, 1, 0, 1]), 60, Offload::default());
    scene.run();
    assert_eq!(Scene::delivered(&mut scene.workers[1]).len(), 1, "only the packet of the site itself");
    assert_eq!(scene.workers[1].status().peers[0].drops.of(Dropped::ForeignSource), 1);

    scene.workers[1].remove_elsewhere("other");
    scene.site.handle_inner(NOW, &mut packet([10, 2, 3, 1], [10, 1, 0, 1]), 60, Offload::default());
    scene.run();
    assert_eq!(Scene::delivered(&mut scene.workers[1]).len(), 1);
}

#[test]
fn what_was_handed_over_is_not_handed_over_again() {
    let mut scene = Scene::new();
    // Each worker believes that the other one has the network.
    scene.workers[1].add_elsewhere(0, &peer("moved", 9, "10.9.0.0/16", vec![]));
    scene.workers[0].add_elsewhere(1, &peer("moved", 9, "10.9.0.0/16", vec![]));
    scene.workers[0].handle_inner(NOW, &mut packet([10, 1, 0, 1], [10, 9, 0, 1]), 60, Offload::default());
    assert_eq!(scene.hand_over(), 1);
    assert_eq!(scene.workers[1].status().drops.of(Dropped::NoRoute), 1);
}

#[test]
fn the_initiation_of_a_peer_that_is_added_at_another_worker_is_answered_there() {
    let mut scene = Scene::new();
    let config = peer("site", SITE, "10.2.0.0/16", vec![]);
    scene.workers = [endpoint(SERVER, 0, vec![]), endpoint(SERVER, 1, vec![])];
    scene.workers[0].ask_for_unknown_keys();
    let first = sent(&mut scene.site, NOW).remove(0);
    receive(&mut scene.workers[0], NOW, address(SITE), first);
    let key = scene.workers[0].poll_unknown_key().expect("a question").key;
    scene.workers[0].add_elsewhere(1, &config);
    scene.workers[1].add_peer(NOW, &config);
    let question = scene.workers[0].take_question(&key).expect("the question");
    scene.workers[1].handle_handover(NOW, Handover::Initiation(Box::new(question)));
    scene.run();
    assert_eq!(Scene::delivered(&mut scene.workers[1]).len(), 1);
    assert_eq!(scene.workers[0].unknown_keys(NOW), []);
}
