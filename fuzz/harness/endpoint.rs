//! Feeds arbitrary events to an endpoint: it must not panic, its packet counters must balance, it must send nothing
//! that it should not, and its memory must stay bounded.
//!
//! An input is a configuration (one byte) and a script. A step is one byte, with the event in the low three bits and
//! the path in the others, and the parameters of the event.

use mpt_proto::config::{Config, PathConfig, PeerConfig, PlainFraming, ProbeConfig, Protocol};
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::packet::ip::Ip;
use mpt_proto::packet::{Merge, Offload, Segmentation, SegmentationKind};
use mpt_proto::path::LinkId;
use mpt_proto::reorder::ReorderLimits;
use mpt_proto::sched::SchedulerKind;
use mpt_proto::time::Time;
use mpt_proto::wire::gre::Gre;
use mpt_proto::wire::plain::{PROBE_LEN, Probe};
use mpt_sim::laws;
use std::net::SocketAddr;
use std::time::Duration;

/// Number of paths of the endpoint.
pub const PATHS: u8 = 3;
const MTU: usize = 1_464;
const WINDOW: usize = 64;

/// Executes the script in `input`.
pub fn check(input: &[u8]) {
    let Some((config, script)) = input.split_first() else { return };
    let mut harness = Harness::new(*config);
    let mut script = Script(script);
    while let Some(step) = script.byte() {
        harness.step(step, &mut script);
    }
}

/// An endpoint with its current time.
pub struct Harness {
    /// The endpoint.
    pub endpoint: Endpoint,
    now: Time,
    probes: bool,
    buffer: Vec<u8>,
}

/// Returns the peer's address on a path.
pub fn remote(path: u8) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, path + 1], 4754))
}

impl Harness {
    /// Makes an endpoint configured by the bits of a byte: sequence, key, checksum, reordering, probes, merging,
    /// scheduler.
    pub fn new(bits: u8) -> Self {
        let bit = |n: u8| bits & 1 << n != 0;
        let path = |i: u8| PathConfig {
            weight: 1 + 7 * u32::from(i),
            ..PathConfig::new(format!("path{i}"), LinkId(i), remote(i))
        };
        let limits = ReorderLimits { window: WINDOW, max_hold: Duration::from_millis(200), adaptive: true };
        let plain = PlainFraming { sequence: bit(0), key: bit(1).then_some(4_711), checksum: bit(2) };
        let scheduler = match (bit(7), bit(6)) {
            (true, _) => SchedulerKind::MinRtt,
            (false, true) => SchedulerKind::RoundRobin,
            (false, false) => SchedulerKind::Weighted,
        };
        let peer = PeerConfig {
            networks: vec!["10.77.0.0/16".parse().expect("a prefix"), "fd77::/16".parse().expect("a prefix")],
            scheduler: scheduler.into(),
            resequence: bit(3).then_some(limits),
            probe: bit(4).then(ProbeConfig::default),
            ..PeerConfig::new("peer", Protocol::Plain(plain), (0..PATHS).map(path).collect())
        };
        let config = Config { identity: None, mtu: MTU, merge: Merge { tcp: bit(5), udp: bit(5) }, peers: vec![peer] };
        let endpoint = Endpoint::new(Time::START, &config);
        let mut harness = Self { endpoint, now: Time::START, probes: bit(4), buffer: vec![0; 65_536] };
        harness.drain();
        harness
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        let (path, more) = (step >> 3 & 3, step & 0x80 != 0);
        match step & 7 {
            0 | 1 => self.datagram(path, script.byte().unwrap_or(0), &mut script.bytes().to_vec()),
            2 => self.batch_of_datagrams(path, script),
            3 | 4 => self.inner(script),
            5 => self.advance(Duration::from_millis(script.byte().unwrap_or(0).into()) * if more { 20 } else { 1 }),
            6 => self.endpoint.handle_carrier(self.now, LinkId(path), more),
            _ if path == 0 => self.endpoint.enable_path(self.now, "peer", "path1", more).expect("a path of this name"),
            _ => self.endpoint.handle_blocked(LinkId(path - 1), more),
        }
        self.drain();
        self.check_state();
    }

    /// Handles one datagram from the peer's address on `path`, or from an unknown address if there is no such path. The
    /// endpoint may only send the reply to a probe.
    pub fn datagram(&mut self, path: u8, tos: u8, bytes: &mut [u8]) {
        let expects_reply = is_probe_request(bytes) && path < PATHS;
        // A probe may report that a path is up again, which releases queued packets.
        let waiting = self.endpoint.peers()[0].ledger().queued > 0;
        let received = RecvMeta { link: LinkId(path), from: remote(path), tos, segment: bytes.len(), arrived_at: None };
        self.endpoint.handle_datagrams(self.now, &received, bytes);
        let sent = self.drain();
        assert!(self.probes || waiting || sent == usize::from(expects_reply), "{sent} datagrams in reply");
    }

    fn batch_of_datagrams(&mut self, path: u8, script: &mut Script<'_>) {
        let segment = script.byte().unwrap_or(0).into();
        let received = RecvMeta { link: LinkId(path), from: remote(path), tos: 0, segment, arrived_at: None };
        self.endpoint.handle_datagrams(self.now, &received, &mut script.bytes().to_vec());
    }

    fn inner(&mut self, script: &mut Script<'_>) {
        let size = script.byte().unwrap_or(0);
        let kind = [SegmentationKind::Tcp4 { cwr: true }, SegmentationKind::Tcp6 { cwr: false }, SegmentationKind::Udp];
        let request =
            |size: u8| Segmentation { kind: kind[usize::from(size % 3)], size: u16::from(size) * 5, header: 40 };
        let bytes = script.bytes();
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        let offload = Offload { checksum: None, segmentation: (size > 0).then(|| request(size)) };
        self.endpoint.handle_inner(self.now, &mut self.buffer, bytes.len(), offload);
        self.buffer.resize(65_536, 0);
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        self.endpoint.handle_deadline(self.now);
        self.drain();
        let next = self.endpoint.next_deadline();
        assert!(next.is_none_or(|(at, _)| at > self.now), "a deadline in the past: {next:?} at {:?}", self.now);
    }

    /// Drains the output of the endpoint, and returns the number of datagrams sent.
    fn drain(&mut self) -> usize {
        let mut sent = 0;
        while let Some(batch) = self.endpoint.poll_transmit(self.now) {
            assert_eq!(batch.to, remote(batch.link.0), "datagrams are sent to the peer only");
            assert_eq!(laws::restraint(&self.endpoint, &batch, self.now), None);
            let is_valid = |datagram| Gre::decode(datagram).is_ok();
            assert!(batch.bytes().chunks(batch.segment).all(is_valid), "an invalid datagram was sent");
            sent += batch.count();
            self.endpoint.recycle_transmit(batch);
        }
        while let Some(delivery) = self.endpoint.poll_delivery() {
            let ip = Ip::parse(&delivery.bytes).expect("a delivered packet is an IP packet");
            assert_eq!(ip.total, delivery.bytes.len());
            self.endpoint.recycle_delivery(delivery.bytes);
        }
        while self.endpoint.poll_event().is_some() {}
        sent
    }

    fn check_state(&self) {
        assert_eq!(laws::audit(&self.endpoint), []);
        let ledger = self.endpoint.peers()[0].ledger();
        assert!(ledger.held <= WINDOW as u64, "{ledger:?}");
        let status = self.endpoint.status();
        assert!(status.peers[0].queued_bytes <= 256 * 1_024 + 65_536 || !self.endpoint.has_room(), "{status:?}");
    }
}

fn is_probe_request(datagram: &[u8]) -> bool {
    let Ok((header, body)) = Gre::decode(datagram) else { return false };
    let is_probe = header.protocol == 0x88b5 && header.key.is_none() && header.sequence.is_none();
    is_probe && body.len() >= PROBE_LEN - 4 && Probe::decode(body).is_ok_and(|probe| !probe.reply)
}

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Reads a length of two bytes and the bytes that follow, or those that are left.
    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(u16::from_be_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)]));
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
