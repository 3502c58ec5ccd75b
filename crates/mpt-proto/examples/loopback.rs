//! Two endpoints in memory: a handshake, then a packet in each direction. No socket, no TUN device, no root.
//!
//!     cargo run -p mpt-proto --example loopback

use std::net::SocketAddr;
use std::time::Duration;

use mpt_proto::{
    Capabilities, Clock, Config, Endpoint, Identity, KeyPair, LinkId, Merge, NativeConfig, Offload, PathConfig,
    PeerConfig, Protocol, RecvMeta, SessionTable, Time,
};

/// The time that each datagram takes to the other end.
const DELAY: Duration = Duration::from_millis(10);
/// The only socket of each end.
const LINK: LinkId = LinkId(0);
/// The largest inner packet in bytes.
const MTU: usize = 1_400;

fn main() {
    let mut ends = [endpoint(0), endpoint(1)];
    let mut now = Time::START;

    // The first end takes a packet from its TUN device. It has no session yet, so the packet waits for the handshake.
    ends[0].handle_inner(now, &mut packet(1), 60, Offload::default());
    let (mut delivered, mut in_flight, mut datagrams) = (Vec::new(), Vec::<(usize, Batch)>::new(), 0);
    for turn in 0..10 {
        // Everything that one end sent in the last turn, `DELAY` ago, arrives at the other one.
        for (to, mut batch) in in_flight.drain(..) {
            ends[to].handle_datagrams(now, &batch.meta, &mut batch.bytes);
        }
        if turn == 5 {
            ends[1].handle_inner(now, &mut packet(2), 60, Offload::default());
        }
        for from in [0, 1] {
            while let Some(batch) = poll_transmit(&mut ends[from], now, address(from)) {
                datagrams += batch.bytes.len().div_ceil(batch.meta.segment);
                println!("{:?}: end {from} sends {} bytes", now - Time::START, batch.bytes.len());
                in_flight.push((1 - from, batch));
            }
            while let Some(write) = ends[from].poll_delivery() {
                println!("{:?}: end {from} delivers {} bytes to its TUN device", now - Time::START, write.bytes.len());
                delivered.push((from, write.bytes.clone()));
                ends[from].recycle_delivery(write.bytes);
            }
        }
        now += DELAY;
        for end in &mut ends {
            if end.next_deadline().is_some_and(|(at, _)| at <= now) {
                end.handle_deadline(now);
            }
        }
    }

    assert_eq!(delivered, [(1, packet(1)), (0, packet(2))]);
    for (end, endpoint) in ends.iter().enumerate() {
        let status = endpoint.status();
        let (ledger, path) = (status.peers[0].ledger, &status.peers[0].paths[0]);
        println!("end {end}: {} packet sent, {} delivered, path {:?}", ledger.sent, ledger.delivered, path.state);
        assert_eq!((ledger.sent, ledger.delivered, status.drops.total()), (1, 1, 0));
        assert!(path.state.is_up());
    }
    println!("both packets arrived unchanged, in {datagrams} datagrams");
}

/// A batch of datagrams on its way.
struct Batch {
    meta: RecvMeta,
    bytes: Vec<u8>,
}

/// Takes the next batch from an endpoint, and gives its buffer back, as a program does after the system call.
fn poll_transmit(endpoint: &mut Endpoint, now: Time, from: SocketAddr) -> Option<Batch> {
    let sent = endpoint.poll_transmit(now)?;
    let meta = RecvMeta { link: LINK, from, tos: sent.tos, segment: sent.segment, arrived_at: None };
    let batch = Batch { meta, bytes: sent.bytes().to_vec() };
    endpoint.recycle_transmit(sent);
    Some(batch)
}

/// Makes an end with one peer. The first end has a path to the second one, which waits for the handshake and learns the
/// path from it.
fn endpoint(end: usize) -> Endpoint {
    let other = 1 - end;
    let protocol = Protocol::Native(NativeConfig::new(*keys(other).public()));
    let paths = if end == 0 { vec![PathConfig::new("path", LINK, address(other))] } else { vec![] };
    let peer = PeerConfig {
        networks: vec!["10.0.0.0/8".parse().expect("a prefix")],
        ..PeerConfig::new("peer", protocol, paths)
    };
    let config = Config { identity: Some(keys(end)), mtu: MTU, merge: Merge::default(), peers: vec![peer] };
    let clock = Clock::new(Duration::from_secs(1_800_000_000));
    let identity = Identity { keys: keys(end), capabilities: Capabilities::new(true), clock };
    // A program takes this seed from the system's random source, each time that it starts.
    Endpoint::native(Time::START, &config, SessionTable::new(identity, [end as u8 + 7; 32]))
}

fn keys(end: usize) -> KeyPair {
    KeyPair::generate([end as u8 + 1; 32])
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, end as u8 + 1], 4_754))
}

/// Makes an IPv4 packet of 60 bytes with UDP from 10.0.0.1 to 10.0.0.2.
fn packet(number: u8) -> Vec<u8> {
    let mut packet = vec![number; 60];
    packet[..20].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x26, 0xaf, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet[20..28].copy_from_slice(&[0x30, 0x39, 0x30, 0x39, 0, 40, 0, 0]);
    packet
}
