//! Cost of one authenticated peer: the attacks of a review, with their price in memory and steps.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/harness/attacker.rs"]
#[allow(dead_code, reason = "the malicious peer uses the rest")]
mod attacker;
mod support;

use std::time::{Duration, Instant};

use attacker::{Attacker, WALL_CLOCK, inner_packet, keys, push_data, push_frame, push_skip};
use mpt_proto::Dropped;
use mpt_proto::config::{Config, NativeConfig, PeerConfig, Protocol};
use mpt_proto::crypto::handshake::{Capabilities, Clock, Identity};
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::Merge;
use mpt_proto::reorder::ReorderLimits;
use mpt_proto::sessions::SessionTable;
use mpt_proto::time::Time;
use mpt_proto::wire::frame::{Frame, Frames, PathFrame, PathTestMessage};
use support::heap::Counting;

#[global_allocator]
static HEAP: Counting = Counting;

/// The memory that a peer may cost.
const LIMIT: i64 = 32_000_000;

struct Attack {
    endpoint: Endpoint,
    attacker: Attacker,
    now: Time,
    before: i64,
    /// Bytes that the endpoint has allocated since.
    used: i64,
    most: i64,
    sent: usize,
    /// The endpoint's challenges that are not answered yet, and the ports to which they were sent.
    challenges: Vec<(u16, [u8; 8])>,
    /// Number of datagrams from the endpoint.
    datagrams: usize,
    /// Datagrams and bytes from the endpoint.
    received: (u64, usize),
}

impl Attack {
    fn new() -> Self {
        let peer = PeerConfig {
            networks: vec!["10.66.0.0/16".parse().unwrap()],
            resequence: Some(ReorderLimits { max_hold: Duration::from_secs(10), ..ReorderLimits::default() }),
            ..PeerConfig::new("attacker", Protocol::Native(NativeConfig::new(*keys(2).public())), vec![])
        };
        let config = Config { identity: None, mtu: 1_437, merge: Merge::default(), peers: vec![peer] };
        let identity = Identity { keys: keys(1), capabilities: Capabilities::new(true), clock: Clock::new(WALL_CLOCK) };
        let mut endpoint = Endpoint::native(Time::START, &config, SessionTable::new(identity, [9; 32]));
        let mut attacker = Attacker::new(2, 1);
        let now = Time::after(Duration::from_secs(1));
        attacker.connect(now, &mut endpoint);
        Self {
            endpoint,
            attacker,
            now,
            before: 0,
            used: 0,
            most: 0,
            sent: 0,
            challenges: Vec::new(),
            datagrams: 0,
            received: (0, 0),
        }
    }

    /// Sends a datagram, and lets the endpoint do a turn.
    fn send(&mut self, slot: u8, body: &[u8]) -> Duration {
        self.send_from(0, slot, body)
    }

    /// The same, from the attacker's port plus `offset`.
    fn send_from(&mut self, offset: u16, slot: u8, body: &[u8]) -> Duration {
        let mut datagram = self.attacker.seal(self.now, slot, body).unwrap();
        self.sent += datagram.len();
        let (mut meta, start) = (self.attacker.meta(datagram.len()), Instant::now());
        meta.from.set_port(meta.from.port() + offset);
        self.before = HEAP.bytes();
        self.endpoint.handle_datagrams(self.now, &meta, &mut datagram);
        self.turn();
        start.elapsed()
    }

    fn turn(&mut self) {
        self.endpoint.handle_deadline(self.now);
        while let Some(batch) = self.endpoint.poll_transmit(self.now) {
            let used = HEAP.bytes();
            for datagram in batch.bytes().chunks(batch.segment) {
                self.datagrams += 1;
                let frames = self.attacker.receive(self.now, &mut datagram.to_vec());
                self.received = (
                    frames.as_ref().map_or(self.received.0, |(_, number, _)| self.received.0.max(*number)),
                    self.received.1 + datagram.len(),
                );
                let frames = frames.map(|(_, _, frames)| frames).unwrap_or_default();
                self.challenges.extend(Frames::new(&frames).flatten().filter_map(|frame| match frame {
                    Frame::Path(PathFrame::Challenge(challenge)) => Some((batch.to.port(), challenge)),
                    _ => None,
                }));
            }
            self.before += HEAP.bytes() - used;
            self.endpoint.recycle_transmit(batch);
        }
        while let Some(delivery) = self.endpoint.poll_delivery() {
            self.endpoint.recycle_delivery(delivery.bytes);
        }
        std::hint::black_box(self.endpoint.next_deadline());
        self.used += HEAP.bytes() - self.before;
        self.most = self.most.max(self.used);
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        self.before = HEAP.bytes();
        self.turn();
    }

    fn report(&self, what: &str) {
        println!("{what}: {:.1} MB at most from {:.1} MB sent", self.most as f64 / 1e6, self.sent as f64 / 1e6);
    }

    /// Returns the mean time of many datagrams, without the slowest, during which another process ran.
    fn time_of(&mut self, body: impl FnMut(u32) -> (u8, Vec<u8>)) -> Duration {
        let mut times: Vec<_> = (0..2_000).map(body).map(|(slot, body)| self.send(slot, &body)).collect();
        times.sort_unstable();
        times[..1_950].iter().sum::<Duration>() / 1_950
    }
}

/// 688 MB from 9.5 MB sent before there was a limit: each packet opens a page of 64 places.
#[test]
fn jumps_in_every_bucket_cost_no_more_than_the_limit() {
    let mut attack = Attack::new();
    for page in 1..256 {
        for first in (0..1_280).step_by(32) {
            let mut body = Vec::new();
            (first..first + 32).for_each(|bucket| push_skip(&mut body, bucket, page * 64, page * 64));
            attack.send(0, &body);
        }
    }
    attack.report("jumps");
    assert!(attack.most < LIMIT, "{} bytes", attack.most);
}

/// Packets of the greatest size, in order: the queue for UDP takes what a filled hole releases.
#[test]
fn packets_behind_holes_cost_no_more_than_the_limit() {
    let mut attack = Attack::new();
    let packet = inner_packet(17, 60_000);
    for number in 1..1_000 {
        for bucket in 0..3 {
            let mut body = Vec::new();
            push_data(&mut body, bucket, number, &packet);
            attack.send(0, &body);
        }
    }
    for bucket in 0..3 {
        let mut body = Vec::new();
        push_data(&mut body, bucket, 0, &packet);
        attack.send(0, &body);
    }
    attack.report("packets");
    assert!(attack.most < LIMIT, "{} bytes", attack.most);
    let peer = &attack.endpoint.status().peers[0];
    assert_eq!(peer.drops.of(Dropped::OverBudget), 0, "holes are given up, packets are not dropped");
}

/// 61.5 MB for each of 32 slots before there was a limit, for as long as the slot was silent.
#[test]
fn symbols_of_every_slot_cost_no_more_than_the_limit_and_nothing_at_rest() {
    let mut attack = Attack::new();
    let packet = inner_packet(253, 60_000);
    for slot in 0..32 {
        let mut repair = Vec::new();
        push_frame(&mut repair, 4, &[&[0, 0x40][..], &[1; 1_400]].concat());
        attack.send(slot, &repair);
        for number in 0..1_100 {
            let mut body = Vec::new();
            push_data(&mut body, u16::from(slot), number, &packet[..if number % 2 == 0 { 60_000 } else { 1_400 }]);
            attack.send(slot, &body);
        }
    }
    attack.report("symbols");
    assert!(attack.most < LIMIT, "{} bytes", attack.most);
    attack.advance(Duration::from_secs(60));
    attack.send(0, &[]);
    println!("at rest: {:.1} MB", attack.used as f64 / 1e6);
    assert!(attack.used < 1_000_000, "{} bytes", attack.used);
}

/// The endpoint remembers the datagrams that it sends until they are acknowledged, and a number for each ACK between
/// them: 10 MB in 50 s, and rising, before there was a limit. The peer answers challenges, so its path stays up, and
/// acknowledges nothing.
#[test]
fn a_peer_that_acknowledges_nothing_costs_no_more_than_the_limit() {
    let mut attack = Attack::new();
    for _ in 0..50_000 {
        attack.advance(Duration::from_millis(1));
        for slot in 0..32 {
            let mut body = Vec::new();
            for (_, challenge) in std::mem::take(&mut attack.challenges) {
                push_frame(&mut body, 5, &[&[1][..], &challenge].concat());
            }
            push_frame(&mut body, 7, &[]);
            attack.send(slot, &body);
        }
    }
    attack.report("nothing acknowledged");
    assert!(attack.most < 8_000_000, "{} bytes", attack.most);
}

/// While no path is known to carry datagrams to the peer, an ACK leaves on several. Each of 1,280 ACKs a second left on
/// all 32 paths.
#[test]
fn an_ack_leaves_on_five_paths_at_most_for_a_peer_that_acknowledges_nothing() {
    let mut attack = Attack::new();
    let port = attack.attacker.meta(0).from.port();
    let mut counted = 0;
    for step in 0..2_000 {
        counted = if step == 1_000 { attack.datagrams } else { counted };
        attack.advance(Duration::from_millis(1));
        for slot in 0..32 {
            let mut body = Vec::new();
            let own = |challenge: &mut (u16, [u8; 8])| challenge.0 == port + slot;
            for (_, challenge) in attack.challenges.extract_if(.., own) {
                push_frame(&mut body, 5, &[&[1][..], &challenge].concat());
            }
            push_frame(&mut body, 7, &[]);
            attack.send_from(slot, slot as u8, &body);
        }
    }
    let a_second = attack.datagrams - counted;
    println!("{a_second} datagrams in a second");
    assert_eq!(attack.endpoint.status().peers[0].paths.len(), 32);
    assert!(a_second < 1_280 * 6, "{a_second}");
}

/// Prints the price of datagrams in terms of a full one, for docs/guide/security.md.
#[test]
#[ignore = "prints times, which depend on the machine"]
fn the_price_of_a_datagram() {
    let mut attack = Attack::new();
    let full_packet = inner_packet(253, 1_397);
    let mut full = |number| {
        let mut body = Vec::new();
        push_data(&mut body, 1, number, &full_packet);
        (0, body)
    };
    attack.time_of(&mut full);
    let price = attack.time_of(|number| full(2_000 + number));
    let print = |what: &str, time: Duration| {
        println!(
            "{what}: {:.1} us, {:.0} times a full packet",
            time.as_secs_f64() * 1e6,
            time.as_secs_f64() / price.as_secs_f64()
        );
    };
    print("one packet of 1397 bytes", price);
    let skips = Attack::new().time_of(|datagram| {
        let mut body = Vec::new();
        (0..100).for_each(|frame| {
            let first = (datagram * 100 + frame) * 256;
            push_skip(&mut body, 2, first, first + 255);
        });
        (0, body)
    });
    print("100 SKIPs of 256 numbers", skips);
    let mut attack = Attack::new();
    for page in 1..40_000 {
        let mut body = Vec::new();
        push_skip(&mut body, (page % 1_280) as u16, page / 1_280 * 64 + 64, page / 1_280 * 64 + 64);
        attack.send(0, &body);
    }
    let far = attack.time_of(|datagram| {
        let mut body = Vec::new();
        (0..100).for_each(|frame| {
            let number = (datagram / 10 + 1) * 16_299;
            push_skip(&mut body, (datagram % 10 * 100 + frame) as u16, number, number);
        });
        (0, body)
    });
    print("100 far SKIPs while the memory is full", far);
    let tiny = inner_packet(253, 28);
    let mut attack = Attack::new();
    let packets = attack.time_of(|datagram| {
        let mut body = Vec::new();
        (0..36).for_each(|bucket| push_data(&mut body, bucket, datagram, &tiny));
        (0, body)
    });
    print("36 packets of 28 bytes", packets);
    let mut attack = Attack::new();
    for bucket in 0..1_100 {
        let mut body = Vec::new();
        push_data(&mut body, bucket, 5, &tiny);
        attack.send(0, &body);
    }
    let held = attack.time_of(|_| (0, vec![0x87]));
    print("one byte while 1100 buckets hold packets", held);
    let repairs = Attack::new().time_of(|datagram| {
        let mut body = Vec::new();
        if datagram % 2 == 0 {
            push_data(&mut body, 1, datagram, &full_packet);
        } else {
            let head = (255u16 << 6 | (datagram % 64) as u16).to_be_bytes();
            push_frame(&mut body, 4, &[&head[..], &[1; 1_401]].concat());
        }
        (0, body)
    });
    print("packets and repair symbols in turn", repairs);
}

/// A test of 65 s is requested each 100 ms for 30 s, with another number each time, by a peer that acknowledges all.
#[test]
fn requests_for_test_traffic_cause_one_test_of_ten_seconds_at_a_time() {
    let mut attack = Attack::new();
    let (mut busy, mut quiet) = (0, 0);
    for step in 0..3_000_u32 {
        let before = attack.received.1;
        let mut body = Vec::new();
        if step % 10 == 0 {
            let request = PathTestMessage::Test { number: step, time: Duration::from_secs(65) };
            push_frame(&mut body, 8, &request.to_body());
        }
        for (_, challenge) in std::mem::take(&mut attack.challenges) {
            push_frame(&mut body, 5, &[&[1], &challenge[..]].concat());
        }
        // All numbers up to the largest, as a single range.
        let largest = attack.received.0;
        let mut range = [0; 8];
        range[..].copy_from_slice(&(largest | 0xc000_0000_0000_0000).to_be_bytes());
        let micros = (attack.now.as_nanos() / 1_000) as u32;
        let ack =
            [&[0][..], &largest.to_be_bytes(), &0_u32.to_be_bytes(), &micros.to_be_bytes(), &[0; 4], &range].concat();
        push_frame(&mut body, 2, &ack);
        attack.send(0, &body);
        attack.advance(Duration::from_millis(10));
        if attack.received.1 - before >= 1_000 { busy += 1 } else { quiet += 1 }
    }
    attack.report("requests for tests");
    let refused = attack.endpoint.status().peers[0].drops.of(Dropped::TestRefused);
    println!("{busy} busy, {quiet} quiet, {refused} refused, {} MB received", attack.received.1 / 1_000_000);
    assert!(attack.most < LIMIT);
    // 30 s have three tests, and 300 requests.
    assert!((290..=297).contains(&refused), "{refused}");
    // Each test has 0.5 s before its load.
    assert!((100..=400).contains(&quiet), "{busy} busy, {quiet} quiet");
}
