//! Carries packets between two endpoints in memory, each stage in a function of its own, so that a profiler counts the
//! instructions of each: `make instructions` prints them per packet, and allocations and copied bytes.
//!
//!     packet_cost CASE PACKETS
//!
//! prints the number of packets, and the bytes that this program itself has copied in place of the kernel: each
//! datagram once. After some turns it allocates nothing.
//!
//! A case is a number of paths and a kind of packet: `1-packet`, `2-packet`, `4-packet` have TCP packets of 1400 bytes,
//! `1-super` and `4-super` super-packets of 40 of them, `1-small` UDP packets of 64 bytes. Time is simulated, so each
//! run has the same datagrams.

use std::collections::VecDeque;
use std::env;
use std::net::SocketAddr;
use std::time::Duration;

use mpt_proto::packet::{Checksum, Segmentation, SegmentationKind};
use mpt_proto::{
    Capabilities, Clock, Config, Endpoint, Identity, KeyPair, LinkId, Merge, NativeConfig, Offload, PathConfig,
    PeerConfig, Protocol, RecvMeta, SessionTable, Time,
};

/// Time between two turns, in which an end does what a program does after one wait.
const TURN: Duration = Duration::from_millis(1);
/// Turns that a datagram takes to the other end.
const DELAY: usize = 10;
/// Packets of each turn: with 1400 bytes 90 Mbit/s, the rate of a home.
const PER_TURN: usize = 8;
/// Bytes of a buffer for one read of the TUN device.
const READ_BUFFER: usize = 1 << 16;
/// Turns before the measurement, in which paths are validated and congestion windows grow.
const WARM_UP: usize = 1_000;

fn main() {
    let mut arguments = env::args().skip(1);
    let case = arguments.next().and_then(|name| Case::parse(&name));
    let packets = arguments.next().and_then(|count| count.parse::<usize>().ok());
    let (Some(case), Some(packets)) = (case, packets) else {
        eprintln!("error: packet_cost CASE PACKETS\n  hint: packet_cost 1-packet 10000");
        std::process::exit(2);
    };
    let mut tunnel = Tunnel::new(case);
    (0..WARM_UP).for_each(|_| tunnel.turn());
    let before = tunnel.ends[1].status().peers[0].ledger.delivered;
    let turns = packets / tunnel.case.segments() / PER_TURN.min(packets);
    measured(&mut tunnel, turns);
    let delivered = tunnel.ends[1].status().peers[0].ledger.delivered - before;
    let expected = (turns * PER_TURN * tunnel.case.segments()) as u64;
    assert!(
        delivered.abs_diff(expected) <= (2 * DELAY * PER_TURN * tunnel.case.segments()) as u64,
        "{delivered} of {expected} were delivered"
    );
    println!("{expected} {}", tunnel.copied);
}

/// Everything that is counted.
#[inline(never)]
fn measured(tunnel: &mut Tunnel, turns: usize) {
    (0..turns).for_each(|_| tunnel.turn());
}

#[derive(Clone, Copy)]
struct Case {
    paths: u8,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Packet,
    Super,
    Small,
}

impl Case {
    fn parse(name: &str) -> Option<Self> {
        let (paths, kind) = name.split_once('-')?;
        let kind = match kind {
            "packet" => Kind::Packet,
            "super" => Kind::Super,
            "small" => Kind::Small,
            _ => return None,
        };
        Some(Self { paths: paths.parse().ok().filter(|paths| (1..=8).contains(paths))?, kind })
    }

    fn segments(self) -> usize {
        if self.kind == Kind::Super { 40 } else { 1 }
    }
}

/// A batch of datagrams on its way.
struct Batch {
    meta: RecvMeta,
    bytes: Vec<u8>,
}

/// A buffer of the TUN device, with the packet in it.
struct Read {
    buffer: Vec<u8>,
    len: usize,
    offload: Offload,
}

struct Tunnel {
    case: Case,
    ends: [Endpoint; 2],
    now: Time,
    number: u32,
    /// The batches that each end sent, one entry for each turn.
    in_flight: [VecDeque<Vec<Batch>>; 2],
    reads: Vec<Read>,
    /// Buffers of batches that have arrived.
    spare: Vec<Vec<u8>>,
    delivered: usize,
    copied: usize,
}

impl Tunnel {
    fn new(case: Case) -> Self {
        let in_flight = [(); 2].map(|()| (0..DELAY).map(|_| Vec::new()).collect());
        let ends = [0, 1].map(|end| endpoint(end, case.paths));
        let read = || Read { buffer: vec![0; READ_BUFFER], len: 0, offload: Offload::default() };
        let reads = (0..PER_TURN).map(|_| read()).collect();
        Self { case, ends, now: Time::START, number: 0, in_flight, reads, spare: Vec::new(), delivered: 0, copied: 0 }
    }

    /// One turn of each end: it takes what has arrived, then what its TUN device has, and sends.
    fn turn(&mut self) {
        self.now += TURN;
        let [forth, back] = &mut self.in_flight;
        let arrived = [back.pop_front().unwrap_or_default(), forth.pop_front().unwrap_or_default()];
        let [mut acknowledgements, mut data] = arrived;
        let [sender, receiver] = &mut self.ends;
        receive(sender, self.now, &mut acknowledgements);
        for read in &mut self.reads {
            self.number += 1;
            packet(self.case.kind, self.number, read);
        }
        sender_takes(sender, self.now, &mut self.reads);
        timers(sender, self.now);
        receive(receiver, self.now, &mut data);
        self.delivered += receiver_delivers(receiver);
        timers(receiver, self.now);
        for batches in [&mut acknowledgements, &mut data] {
            self.spare.extend(batches.drain(..).map(|batch| batch.bytes));
        }
        sender_sends(sender, self.now, self.case.paths, &mut self.spare, &mut data);
        receiver_sends(receiver, self.now, self.case.paths, &mut self.spare, &mut acknowledgements);
        sender_delivers(sender);
        self.copied += data.iter().chain(&acknowledgements).map(|batch| batch.bytes.len()).sum::<usize>();
        self.in_flight[0].push_back(data);
        self.in_flight[1].push_back(acknowledgements);
    }
}

#[inline(never)]
fn sender_takes(end: &mut Endpoint, now: Time, reads: &mut [Read]) {
    for Read { buffer, len, offload } in reads {
        end.handle_inner(now, buffer, *len, *offload);
    }
}

#[inline(never)]
fn sender_sends(end: &mut Endpoint, now: Time, paths: u8, spare: &mut Vec<Vec<u8>>, batches: &mut Vec<Batch>) {
    send(end, now, 0, paths, spare, batches);
}

#[inline(never)]
fn receiver_delivers(end: &mut Endpoint) -> usize {
    deliver(end)
}

fn sender_delivers(end: &mut Endpoint) -> usize {
    deliver(end)
}

#[inline(never)]
fn receiver_sends(end: &mut Endpoint, now: Time, paths: u8, spare: &mut Vec<Vec<u8>>, batches: &mut Vec<Batch>) {
    send(end, now, 1, paths, spare, batches);
}

#[inline(never)]
fn timers(end: &mut Endpoint, now: Time) {
    if end.next_deadline().is_some_and(|(at, _)| at <= now) {
        end.handle_deadline(now);
    }
}

#[inline(always)]
fn send(end: &mut Endpoint, now: Time, own: usize, paths: u8, spare: &mut Vec<Vec<u8>>, batches: &mut Vec<Batch>) {
    while let Some(sent) = end.poll_transmit(now) {
        let link = if own == 0 { sent.link } else { link_of(sent.to, paths) };
        let from = address(own, link.0);
        let meta = RecvMeta { link, from, tos: sent.tos, segment: sent.segment, arrived_at: None };
        let mut bytes = spare.pop().unwrap_or_else(|| Vec::with_capacity(READ_BUFFER));
        bytes.clear();
        bytes.extend_from_slice(sent.bytes());
        batches.push(Batch { meta, bytes });
        end.recycle_transmit(sent);
    }
}

#[inline(never)]
fn receive(end: &mut Endpoint, now: Time, batches: &mut [Batch]) {
    for batch in batches {
        end.handle_datagrams(now, &batch.meta, &mut batch.bytes);
    }
}

#[inline(always)]
fn deliver(end: &mut Endpoint) -> usize {
    let mut count = 0;
    while let Some(write) = end.poll_delivery() {
        count += 1;
        end.recycle_delivery(write.bytes);
    }
    count
}

fn link_of(to: SocketAddr, paths: u8) -> LinkId {
    (0..paths).map(LinkId).find(|link| address(0, link.0) == to).expect("an address of the sender")
}

/// Makes an end with one peer. The sender has all paths; the receiver learns them.
fn endpoint(end: usize, paths: u8) -> Endpoint {
    let other = 1 - end;
    let protocol = Protocol::Native(NativeConfig::new(*keys(other).public()));
    let path = |number| PathConfig::new(format!("path{number}"), LinkId(number), address(1, number));
    let paths = if end == 0 { (0..paths).map(path).collect() } else { vec![] };
    let peer = PeerConfig {
        networks: vec!["10.0.0.0/8".parse().expect("a prefix")],
        ..PeerConfig::new("peer", protocol, paths)
    };
    let config = Config { identity: Some(keys(end)), mtu: 1_420, merge: Merge::default(), peers: vec![peer] };
    let clock = Clock::new(Duration::from_secs(1_800_000_000));
    let identity = Identity { keys: keys(end), capabilities: Capabilities::new(true), clock };
    Endpoint::native(Time::START, &config, SessionTable::new(identity, [end as u8 + 7; 32]))
}

fn keys(end: usize) -> KeyPair {
    KeyPair::generate([end as u8 + 1; 32])
}

fn address(end: usize, path: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2 + path, end as u8 + 1], 4_754))
}

/// Makes an IPv4 packet from 10.0.0.1 to 10.0.0.2, with the offload request that a TUN device has beside it.
fn packet(kind: Kind, number: u32, read: &mut Read) {
    let len: usize = match kind {
        Kind::Packet => 1_400,
        Kind::Super => 40 + 40 * 1_360,
        Kind::Small => 64,
    };
    read.buffer.resize(READ_BUFFER, 0);
    let packet = &mut read.buffer[..len];
    packet[..40].fill(0);
    packet[..20].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[4..6].copy_from_slice(&(number as u16).to_be_bytes());
    packet[20..24].copy_from_slice(&[0xc0, 0, 0x14, 0x51]);
    if kind == Kind::Small {
        packet[9] = 17;
        packet[24..26].copy_from_slice(&(len as u16 - 20).to_be_bytes());
    } else {
        let sequence = number.wrapping_mul(len as u32 - 40);
        packet[24..28].copy_from_slice(&sequence.to_be_bytes());
        packet[32..34].copy_from_slice(&[0x50, 0x10]);
        packet[34..36].copy_from_slice(&[0x20, 0]);
    }
    let sum = packet[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    read.len = len;
    read.offload = match kind {
        Kind::Super => Offload {
            checksum: Some(Checksum { start: 20, offset: 16 }),
            segmentation: Some(Segmentation { kind: SegmentationKind::Tcp4 { cwr: false }, size: 1_360, header: 40 }),
        },
        Kind::Packet | Kind::Small => Offload::default(),
    };
}
