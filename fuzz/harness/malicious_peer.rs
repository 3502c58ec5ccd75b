//! A peer with valid keys that sends any frames, with any fields, in any order and at any time, beside an honest peer.
//!
//! An input is a configuration (one byte) and a script. A step is one byte and the parameters of the step. Most fields
//! are near the values at which something happens: the next number of a bucket, the edge of a page or of the window.
//! The laws hold after each step: what the peer costs in memory and steps is bounded, the ledger balances, a deadline
//! lies in the future, and the honest peer's packets are delivered at once.

use std::net::SocketAddr;
use std::time::Duration;

use mpt_proto::config::{Config, NativeConfig, PathConfig, PeerConfig, Protocol};
use mpt_proto::crypto::handshake::{Capabilities, Clock, Identity};
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::packet::ip::Ip;
use mpt_proto::packet::{Merge, Offload};
use mpt_proto::path::LinkId;
use mpt_proto::peer::{MAX_HELD_BYTES, MAX_SENT_BYTES, MAX_STEPS};
use mpt_proto::reorder::ReorderLimits;
use mpt_proto::sessions::SessionTable;
use mpt_proto::time::Time;
use mpt_proto::wire::frame::{Frame, Frames, PathFrame};
use mpt_sim::laws;

use crate::attacker::{Attacker, WALL_CLOCK, inner_packet, keys, push_data, push_frame, push_skip};

/// Executes the script in `input`.
pub fn check(input: &[u8]) {
    let Some((config, script)) = input.split_first() else { return };
    Harness::new(*config, || 0).run(script);
}

/// The memory in bytes that a peer may cost, with everything that has a bound of its own.
const MEMORY: i64 = 32_000_000;
/// Memory with bounds of its own: reorder buffers, replay windows, header contexts, ranges to
/// acknowledge, datagrams in flight.
const TABLES: i64 = 5_000_000 + MAX_SENT_BYTES as i64;
/// Buffers of the endpoint that all peers share: 64 for datagrams of 65,507 bytes, and those of the TUN device.
const SHARED_BUFFERS: i64 = 5_000_000;
/// Memory that one step may add beyond the budget before the budget stops it: a datagram, a page and a list of pages.
const ONE_STEP: usize = 128 << 10;
/// Keys of the three ends.
const SERVER: u8 = 1;
const ATTACKER: u8 = 2;
const HONEST: u8 = 3;
const BUCKETS: usize = 1_536;

/// A server, the malicious peer, and the honest one.
pub struct Harness {
    server: Endpoint,
    attacker: Attacker,
    honest: Endpoint,
    now: Time,
    heap: fn() -> i64,
    /// Repair symbols are sent: decoders reserve memory that packets then cannot take.
    repairs: bool,
    /// Long times pass, in which everything that is held is released.
    pauses: bool,
    /// Bytes that the server has allocated since the attack began.
    used: i64,
    /// The next number of each bucket, as the attacker counts.
    next: Vec<u32>,
    /// The slots, numbers and challenges of the server's datagrams.
    heard: Vec<(u8, u64)>,
    challenges: Vec<[u8; 8]>,
    body: Vec<u8>,
    /// The honest peer's packets: sent, and delivered.
    honest_packets: [u64; 2],
    /// The most that the server held for the attacker, by its own count and by that of the allocator.
    pub most: (usize, i64),
}

impl Harness {
    /// Makes the ends. The bits of a byte configure the hold, merging, repair symbols and pauses. `heap` returns the
    /// bytes in use, or zero if nobody counts them.
    pub fn new(bits: u8, heap: fn() -> i64) -> Self {
        let max_hold = Duration::from_millis([500, 10_000][usize::from(bits & 1)]);
        let peer = |name: &str, end, network: &str, paths| PeerConfig {
            networks: vec![network.parse().expect("a prefix")],
            resequence: Some(ReorderLimits { max_hold, ..ReorderLimits::default() }),
            ..PeerConfig::new(name, Protocol::Native(NativeConfig::new(*keys(end).public())), paths)
        };
        let endpoint = |end, peers| {
            let config =
                Config { identity: None, mtu: 1_437, merge: Merge { tcp: bits & 2 != 0, udp: bits & 2 != 0 }, peers };
            let clock = Clock::new(WALL_CLOCK);
            let identity = Identity { keys: keys(end), capabilities: Capabilities::new(true), clock };
            Endpoint::native(Time::START, &config, SessionTable::new(identity, [end; 32]))
        };
        let peers =
            vec![peer("attacker", ATTACKER, "10.66.0.0/16", vec![]), peer("honest", HONEST, "10.77.0.0/16", vec![])];
        let path = PathConfig::new("path", LinkId(0), server_address());
        let honest = endpoint(HONEST, vec![peer("server", SERVER, "0.0.0.0/0", vec![path])]);
        let mut harness = Self {
            server: endpoint(SERVER, peers),
            attacker: Attacker::new(ATTACKER, SERVER),
            honest,
            now: Time::after(Duration::from_secs(1)),
            heap,
            repairs: bits & 4 != 0,
            pauses: bits & 8 != 0,
            used: 0,
            next: vec![0; BUCKETS],
            heard: vec![(0, 0)],
            challenges: vec![[0; 8]],
            body: Vec::new(),
            honest_packets: [0; 2],
            most: (0, 0),
        };
        harness.honest.handle_deadline(harness.now);
        harness.exchange();
        harness.attacker.connect(harness.now, &mut harness.server);
        harness.exchange();
        harness.used = 0;
        harness
    }

    /// Executes a script. Returns the number of its steps.
    pub fn run(&mut self, script: &[u8]) -> u64 {
        let (mut script, mut steps) = (Script(script), 0);
        while let Some(step) = script.byte() {
            self.step(step, &mut script);
            self.check_state();
            steps += 1;
        }
        steps
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step {
            0..=159 => self.frames(step, script),
            160..=169 => self.jump(script),
            170..=184 => self.honest_packet(),
            185..=199 => self.packet_to_the_attacker(script),
            200..=209 => self.answer_challenge(script),
            210..=214 => self.attacker.address.set_port(4_754 + u16::from(script.byte().unwrap_or(0) % 40)),
            215..=219 => {
                let body = script.bytes().to_vec();
                self.send(script.byte().unwrap_or(0) % 32, &body);
            }
            220 => {
                // Rare, because everything that is held is discarded.
                if let Some(incarnation @ 0..8) = script.byte() {
                    self.attacker.restart(SERVER, incarnation);
                }
            }
            221..=254 => self.advance(pick(script, &TIMES)),
            255 if self.pauses => self.advance(pick(script, &PAUSES)),
            255 => {}
        }
        self.connect();
    }

    /// Sends a datagram of some frames.
    fn frames(&mut self, count: u8, script: &mut Script<'_>) {
        self.body.clear();
        for _ in 0..=pick(script, &COUNTS).min(usize::from(count)) {
            self.push_any_frame(script);
        }
        let body = std::mem::take(&mut self.body);
        let slot = script.byte().unwrap_or(0);
        self.send(if slot < 192 { slot % 2 } else { slot % 32 }, &body[..body.len().min(65_000)]);
        self.body = body;
    }

    fn push_any_frame(&mut self, script: &mut Script<'_>) {
        let kind = script.byte().unwrap_or(0);
        match kind % 16 {
            0..=4 => {
                let (bucket, number) = self.place(script);
                let packet = inner_packet(pick(script, &[6, 17, 17, 253]), pick(script, &LENGTHS));
                push_data(&mut self.body, bucket, number, &packet);
                let at = self.body.len() - packet.len() - 9;
                match kind >> 6 {
                    // It offers its headers as a context, or claims that its checksum is partial.
                    2 => self.body[at] |= 0x40,
                    3 => self.body[at] = 12,
                    _ => {}
                }
            }
            5 | 6 => {
                let (bucket, from) = self.place(script);
                push_skip(&mut self.body, bucket, from, from.wrapping_add(pick(script, &[0, 0, 1, 63, 255, 256])));
            }
            7 => {
                let (slot, number) = self.heard[usize::from(script.byte().unwrap_or(0)) % self.heard.len()];
                let mut ack = vec![slot];
                ack.extend(
                    number.wrapping_add(u64::from(script.byte().unwrap_or(0) % 4)).wrapping_sub(1).to_be_bytes(),
                );
                ack.extend(script.array::<12>());
                ack.extend(script.bytes());
                push_frame(&mut self.body, 2, &ack);
            }
            8 if self.repairs => {
                let span = u16::from(script.byte().unwrap_or(0)) + u16::from(kind & 0x10 != 0);
                let head = (span << 6 | u16::from(script.byte().unwrap_or(0) % 64)).to_be_bytes();
                let symbol = vec![script.byte().unwrap_or(0); pick(script, &LENGTHS)];
                push_frame(&mut self.body, 4, &[&head[..], &symbol].concat());
            }
            8 => self.push_any_frame(script),
            9 => {
                let content = [&[script.byte().unwrap_or(0) % 2][..], &script.array::<8>()].concat();
                push_frame(&mut self.body, 5, &content);
            }
            10 => push_frame(&mut self.body, 5, &[&[2][..], &script.array::<6>()].concat()),
            11 => push_frame(&mut self.body, 6, &[&[0][..], &script.array::<7>()].concat()),
            12 => push_frame(&mut self.body, 11, &[&[0][..], &script.array::<6>()].concat()),
            13 => {
                let (bucket, number) = self.place(script);
                let content = [&bucket.to_be_bytes()[..], &number.to_be_bytes(), &script.array::<24>()].concat();
                push_frame(&mut self.body, 10, &content);
            }
            14 if kind & 0x10 != 0 => {
                // A key of zeros has low order.
                let key = [script.byte().unwrap_or(0) % 4; 32];
                let number = u32::from(script.byte().unwrap_or(0) % 8).to_be_bytes();
                let value = [&number[..], &script.array::<3>(), &key].concat();
                push_frame(&mut self.body, 8, &[&[1 + (kind >> 7), 0, value.len() as u8][..], &value].concat());
            }
            14 => push_frame(&mut self.body, 7, &[]),
            _ => {
                let content = script.bytes().to_vec();
                push_frame(&mut self.body, script.byte().unwrap_or(0) & 0x7f, &content);
            }
        }
    }

    /// Returns a bucket, and a number near its next one.
    fn place(&mut self, script: &mut Script<'_>) -> (u16, u32) {
        let bucket = u16::from_be_bytes(script.array()) % (BUCKETS as u16 + 16);
        let bucket = if bucket.is_multiple_of(4) { bucket % 8 } else { bucket };
        let next = self.next.get(usize::from(bucket)).copied().unwrap_or(0);
        let number =
            next.wrapping_add(if script.byte() > Some(252) { pick(script, &FAR) } else { pick(script, &NEAR) });
        if let Some(next) = self.next.get_mut(usize::from(bucket)) {
            *next = number;
        }
        (bucket, number)
    }

    /// Leaves out numbers of datagrams.
    fn jump(&mut self, script: &mut Script<'_>) {
        let (slot, count) = (script.byte().unwrap_or(0) % 32, pick(script, &[1, 2, 60, 300, 1_100]));
        (0..count).for_each(|_| drop(self.attacker.seal(self.now, slot, &[])));
    }

    fn honest_packet(&mut self) {
        let mut packet = inner_packet(253, 200);
        packet[12..16].copy_from_slice(&[10, 77, 0, 1]);
        let (len, mut buffer) = (packet.len(), packet);
        buffer.resize(2_000, 0);
        self.honest.handle_inner(self.now, &mut buffer, len, Offload::default());
        self.honest_packets[0] += 1;
        self.exchange();
    }

    fn packet_to_the_attacker(&mut self, script: &mut Script<'_>) {
        let mut packet = inner_packet(pick(script, &[6, 17]), 400);
        packet[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 66, 0, script.byte().unwrap_or(0) % 4]);
        let (len, mut buffer) = (packet.len(), packet);
        buffer.resize(2_000, 0);
        self.serve(|server, now| server.handle_inner(now, &mut buffer, len, Offload::default()));
        self.exchange();
    }

    fn answer_challenge(&mut self, script: &mut Script<'_>) {
        let challenge = self.challenges[usize::from(script.byte().unwrap_or(0)) % self.challenges.len()];
        let mut body = Vec::new();
        push_frame(&mut body, 5, &[&[1][..], &challenge].concat());
        self.send(script.byte().unwrap_or(0) % 32, &body);
    }

    /// Sends a datagram to the server. Its frames cost a bounded number of steps.
    fn send(&mut self, slot: u8, body: &[u8]) {
        let Some(mut datagram) = self.attacker.seal(self.now, slot, body) else { return };
        let (meta, before) = (self.attacker.meta(datagram.len()), self.server.peers()[0].steps());
        self.serve(|server, now| server.handle_datagrams(now, &meta, &mut datagram));
        let steps = self.server.peers()[0].steps() - before;
        assert!(steps <= u64::from(MAX_STEPS), "{steps} steps");
        self.exchange();
    }

    /// Makes a session if there is none.
    fn connect(&mut self) {
        if let Some(mut initiation) = self.attacker.initiate(self.now) {
            let meta = self.attacker.meta(initiation.len());
            self.serve(|server, now| server.handle_datagrams(now, &meta, &mut initiation));
            self.exchange();
        }
    }

    /// Advances the time, in steps for which the honest peer counts as awake.
    fn advance(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = until.min(self.now + Duration::from_millis(100));
            self.honest.handle_deadline(self.now);
            // A handshake that a turn requests leaves with the next one.
            for _ in 0..3 {
                self.serve(|server, now| server.handle_deadline(now));
                self.exchange();
            }
            let next = self.server.next_deadline();
            assert!(next.is_none_or(|(at, _)| at > self.now), "a busy loop: {next:?} at {:?}", self.now);
        }
    }

    /// Carries datagrams between the server and both peers until all are quiet.
    fn exchange(&mut self) {
        loop {
            let mut quiet = true;
            while let Some(batch) = self.honest.poll_transmit(self.now) {
                quiet = false;
                let meta = RecvMeta {
                    link: LinkId(0),
                    from: honest_address(),
                    tos: batch.tos,
                    segment: batch.segment,
                    arrived_at: None,
                };
                let mut bytes = batch.bytes().to_vec();
                self.honest.recycle_transmit(batch);
                self.serve(|server, now| server.handle_datagrams(now, &meta, &mut bytes));
            }
            while let Some(batch) = self.serve(|server, now| server.poll_transmit(now)) {
                quiet = false;
                if batch.to == honest_address() {
                    let meta = RecvMeta {
                        link: LinkId(0),
                        from: server_address(),
                        tos: batch.tos,
                        segment: batch.segment,
                        arrived_at: None,
                    };
                    self.honest.handle_datagrams(self.now, &meta, &mut batch.bytes().to_vec());
                } else {
                    batch.bytes().chunks(batch.segment).for_each(|datagram| self.hear(&mut datagram.to_vec()));
                }
                self.serve(|server, _| server.recycle_transmit(batch));
            }
            if quiet {
                break;
            }
        }
        while let Some(delivery) = self.serve(|server, _| server.poll_delivery()) {
            let ip = Ip::parse(&delivery.bytes).expect("a delivered packet is an IP packet");
            self.honest_packets[1] += u64::from(delivery.bytes[..ip.total][12..14] == [10, 77]);
            self.serve(|server, _| server.recycle_delivery(delivery.bytes));
        }
        self.serve(|server, _| while server.poll_event().is_some() {});
    }

    /// The attacker notes what it may refer to.
    fn hear(&mut self, datagram: &mut [u8]) {
        let Some((slot, number, frames)) = self.attacker.receive(self.now, datagram) else { return };
        if self.heard.len() == 64 {
            self.heard.remove(0);
        }
        self.heard.push((slot, number));
        for frame in Frames::new(&frames).flatten() {
            if let Frame::Path(PathFrame::Challenge(challenge)) = frame {
                self.challenges.truncate(15);
                self.challenges.insert(0, challenge);
            }
        }
    }

    /// Calls the server, and counts what it allocates.
    fn serve<T>(&mut self, act: impl FnOnce(&mut Endpoint, Time) -> T) -> T {
        let before = (self.heap)();
        let result = act(&mut self.server, self.now);
        self.used += (self.heap)() - before;
        result
    }

    fn check_state(&mut self) {
        let held = self.server.peers()[0].held_bytes();
        assert!(held <= MAX_HELD_BYTES + ONE_STEP, "{held} bytes held");
        let most = (held as i64 + TABLES).min(MEMORY) + SHARED_BUFFERS;
        assert!(self.used <= most, "{} bytes allocated, {held} held", self.used);
        assert_eq!(laws::audit(&self.server), []);
        let [sent, delivered] = self.honest_packets;
        assert_eq!(sent, delivered, "a packet of the honest peer was not delivered at once");
        self.most = (self.most.0.max(held), self.most.1.max(self.used));
    }
}

fn server_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4754))
}

fn honest_address() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 1], 4754))
}

const COUNTS: [usize; 8] = [0, 0, 0, 1, 2, 8, 30, 100];
const LENGTHS: [usize; 16] = [28, 28, 28, 28, 28, 40, 40, 60, 120, 120, 300, 600, 1_400, 1_437, 1_441, 9_000];
/// Most packets stay within the window of their bucket, so that they are held.
const NEAR: [u32; 8] = [1, 1, 2, 63, 64, 65, 130, 400];
const FAR: [u32; 8] = [1_000, 16_383, 16_384, 1 << 20, 1 << 31, u32::MAX, u32::MAX - 300, u32::MAX - 20_000];
const TIMES: [Duration; 4] =
    [Duration::from_micros(1), Duration::from_micros(50), Duration::from_millis(1), Duration::from_millis(10)];
const PAUSES: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_millis(600), Duration::from_secs(11), Duration::from_secs(35)];

/// Returns one of the values.
fn pick<T: Copy>(script: &mut Script<'_>, values: &[T]) -> T {
    values[usize::from(script.byte().unwrap_or(0)) % values.len()]
}

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte().unwrap_or(0))
    }

    /// Reads a length of one byte and the bytes that follow, or those that are left.
    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }
}
