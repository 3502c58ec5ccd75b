//! Memory of an idle peer; a server may have a thousand of them.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::packet::Offload;
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use mpt_sim::host::numbered;
use support::heap::Counting;
use support::native::{endpoint, keys, path_to, peer};

#[global_allocator]
static HEAP: Counting = Counting;

const SERVER: u16 = 60_000;

/// A server and its clients, each with an own address.
struct Star {
    server: Endpoint,
    clients: Vec<Endpoint>,
    now: Time,
    /// Bytes that the server has allocated and not freed.
    used: i64,
}

fn client_address(client: usize) -> SocketAddr {
    SocketAddr::from(([10, 9, (client >> 8) as u8, client as u8], 4754))
}

fn inside(client: usize) -> [u8; 4] {
    [10, 77, (client >> 8) as u8, client as u8]
}

impl Star {
    fn new(count: usize) -> Self {
        let before = HEAP.bytes();
        let network = |client: usize| std::net::Ipv4Addr::from(inside(client)).to_string() + "/32";
        let configured = |client: usize| peer(format!("c{client}"), &keys(client as u16), vec![], &[&network(client)]);
        let server = endpoint(keys(SERVER), SERVER, (0..count).map(configured).collect());
        let used = HEAP.bytes() - before;
        let call = || vec![peer("server".into(), &keys(SERVER), vec![path_to(1)], &["0.0.0.0/0"])];
        let clients = (0..count).map(|client| endpoint(keys(client as u16), client as u16, call())).collect();
        Self { server, clients, now: Time::START, used }
    }

    fn serve<T>(&mut self, act: impl FnOnce(&mut Endpoint, Time) -> T) -> T {
        let before = HEAP.bytes();
        let result = act(&mut self.server, self.now);
        self.used += HEAP.bytes() - before;
        result
    }

    /// Delivers the datagrams of a client, and the server's answers.
    fn exchange(&mut self, client: usize) {
        while let Some(batch) = self.clients[client].poll_transmit(self.now) {
            let mut bytes = batch.bytes().to_vec();
            let received = RecvMeta {
                link: LinkId(0),
                from: client_address(client),
                tos: 0,
                segment: batch.segment,
                arrived_at: None,
            };
            self.clients[client].recycle_transmit(batch);
            self.serve(|server, now| server.handle_datagrams(now, &received, &mut bytes));
            self.answer();
        }
    }

    fn answer(&mut self) {
        while let Some(batch) = self.serve(|server, now| server.poll_transmit(now)) {
            let SocketAddr::V4(to) = batch.to else { panic!("IPv4") };
            let [_, _, high, low] = to.ip().octets();
            let from = mpt_sim::net::address(1, 0);
            let received = RecvMeta { link: LinkId(0), from, tos: 0, segment: batch.segment, arrived_at: None };
            let client = usize::from(high) << 8 | usize::from(low);
            self.clients[client].handle_datagrams(self.now, &received, &mut batch.bytes().to_vec());
            self.serve(|server, _| server.recycle_transmit(batch));
        }
        while let Some(delivery) = self.serve(|server, _| server.poll_delivery()) {
            self.serve(|server, _| server.recycle_delivery(delivery.bytes));
        }
    }

    /// Makes the sessions, in turns so short that each handles few initiations: the buffers of the answers of a turn
    /// are kept, and they are no part of a peer.
    fn connect(&mut self) {
        self.run(100, Duration::from_millis(1));
    }

    /// Steps of 250 ms are short enough for keepalives.
    fn advance(&mut self, seconds: u64) {
        self.run(seconds * 4, Duration::from_millis(250));
    }

    fn run(&mut self, steps: u64, step: Duration) {
        for _ in 0..steps {
            self.now += step;
            self.serve(|server, now| server.handle_deadline(now));
            self.answer();
            for client in 0..self.clients.len() {
                let now = self.now;
                self.clients[client].handle_deadline(now);
                self.exchange(client);
            }
        }
    }
}

/// Returns the memory of one more peer: the difference between few and many, without the server's fixed part.
fn bytes_per_peer(prepare: impl Fn(&mut Star)) -> i64 {
    let [few, many] = [6, 18].map(|count| {
        let mut star = Star::new(count);
        star.connect();
        prepare(&mut star);
        let up = |peer: &mpt_proto::stats::PeerStatus| peer.paths.iter().any(|path| path.state.is_up());
        assert!(star.server.status().peers.iter().all(up), "every peer has a session and a path");
        star.used
    });
    (many - few) / 12
}

/// Sends packets of many flows in both directions.
fn carry_traffic(star: &mut Star) {
    for flow in 0..1_000u64 {
        for client in 0..star.clients.len() {
            let mut there = numbered(flow, 1_000);
            there[12..16].copy_from_slice(&inside(client));
            there[20..22].copy_from_slice(&(flow as u16).to_be_bytes());
            let mut back = there.clone();
            back[16..20].copy_from_slice(&inside(client));
            let (now, mut buffer) = (star.now, vec![0; 65_536]);
            buffer[..1_000].copy_from_slice(&there);
            star.clients[client].handle_inner(now, &mut buffer, 1_000, Offload::default());
            buffer[..1_000].copy_from_slice(&back);
            star.serve(|server, now| server.handle_inner(now, &mut buffer.clone(), 1_000, Offload::default()));
            star.exchange(client);
        }
        star.answer();
        star.now += Duration::from_millis(1);
    }
}

#[test]
fn a_peer_that_never_carried_anything_takes_less_than_64_kib() {
    let idle = bytes_per_peer(|star| star.advance(30));
    println!("{idle} bytes a peer");
    assert!(idle < 64 << 10, "{idle} bytes");
}

#[test]
fn a_peer_frees_its_memory_when_idle() {
    let busy = bytes_per_peer(|star| {
        star.advance(2);
        carry_traffic(star);
    });
    let idle = bytes_per_peer(|star| {
        star.advance(2);
        carry_traffic(star);
        let delivered: u64 = star.server.status().peers.iter().map(|peer| peer.ledger.delivered).sum();
        assert!(delivered > 500 * star.clients.len() as u64, "{delivered}");
        star.advance(60);
    });
    println!("busy {busy}, at rest {idle} bytes a peer");
    assert!(busy > 64 << 10 && idle < 64 << 10, "busy {busy}, at rest {idle} bytes");
}
