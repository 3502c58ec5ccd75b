//! Prints what one TCP flow through a native tunnel gets, and what the machine thinks, a line each tenth of a second.
//!
//!     cargo run --release -p mpt-sim --example trace -- SECONDS LINK [LINK ...]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use mpt_proto::cc;
use mpt_proto::config::{Config, NativeConfig, PathConfig, PeerConfig, ProbeConfig, Protocol};
use mpt_proto::crypto::handshake::{Clock, Identity, Offer};
use mpt_proto::crypto::keys::{KeyPair, PresharedKey};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::Endpoint;
use mpt_proto::local::Local;
use mpt_proto::packet::Merge;
use mpt_proto::path::LinkId;
use mpt_proto::reseq::Limits;
use mpt_proto::sched::Kind;
use mpt_proto::time::Time;
use mpt_sim::host::tcp::{TcpSink, TcpSource};
use mpt_sim::link::PathSpec;
use mpt_sim::net::{Network, address};
use mpt_sim::seed::Seed;

const MTU: usize = 1_437;

fn endpoint(end: usize, paths: usize) -> Endpoint {
    let keys = |end: usize| KeyPair::generate([end as u8 + 1; 32]);
    let path = |i: usize| PathConfig {
        name: format!("path{i}"),
        link: LinkId(i as u8),
        remote: Some(address(1 - end, i)),
        weight: 1,
        liveness: None,
        alive: true,
        cap: None,
        standby: false,
    };
    let native = NativeConfig {
        public_key: *keys(1 - end).public(),
        preshared_key: PresharedKey::from_bytes([0; 32]),
        congestion: cc::Kind::Rate,
        fec: mpt_proto::repair::fec::Mode::default(),
    };
    let peer = PeerConfig {
        name: "peer".into(),
        networks: vec!["0.0.0.0/0".parse().unwrap()],
        local_networks: vec![],
        scheduler: Kind::Earliest,
        rules: vec![],
        protocol: Protocol::Native(native),
        resequence: Some(Limits::default()),
        probe: Some(ProbeConfig::default()),
        paths: (0..paths).map(path).collect(),
    };
    let config = Config { identity: None, mtu: MTU, merge: Merge::default(), peers: vec![peer] };
    let identity =
        Identity { keys: keys(end), offer: Offer::new(true), clock: Clock::new(Duration::from_secs(1_000_000)) };
    Endpoint::native(Time::START, &config, Local::new(identity, [end as u8 + 7; 32]))
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().unwrap().parse().unwrap();
    let step: f64 = std::env::var("STEP").map_or(0.1, |step| step.parse().unwrap());
    let seed: u64 = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let paths: Vec<PathSpec> = args.map(|text| text.parse().unwrap()).collect();
    let hosts = [
        Box::new(TcpSource::new(MTU).starting(Time::after(Duration::from_secs(2)))) as _,
        Box::new(TcpSink::new(MTU)) as _,
    ];
    let ends = [endpoint(0, paths.len()), endpoint(1, paths.len())];
    let mut net = Network::between(Seed(seed), ends, &paths, hosts);
    net.run(Duration::from_secs(2));
    let (mut before, mut sent, mut at) = (0, vec![0; paths.len()], 0.0);
    let mut resent = 0;
    while at < seconds {
        at += step;
        net.run(Duration::from_secs_f64(2.0 + at));
        let bytes = net.host::<TcpSink>(1).bytes();
        let tcp = net.host::<TcpSource>(0);
        let status = net.endpoint(0).status();
        let peer = &status.peers[0];
        let far = net.endpoint(1).status();
        let order = far.peers[0].resequencer.unwrap_or_default();
        print!(
            "{at:6.2} {:6.1} | cwnd {:5.0} rtt {:4.0} cut {:?} | q {:4} kB aqm {:3} re {:3} gu {:3} | held {:4} late {} exp {} ovr {} |",
            (bytes - before) as f64 * 8e-6 / step,
            tcp.window(),
            tcp.round_trip().unwrap_or_default().as_secs_f64() * 1e3,
            tcp.reductions(),
            peer.queued_bytes / 1_000,
            peer.drops.of(Dropped::Aqm),
            peer.resent - resent,
            peer.given_up,
            far.peers[0].ledger.held,
            order.late,
            order.expired,
            order.overrun,
        );
        resent = peer.resent;
        for (path, sent) in peer.paths.iter().zip(&mut sent) {
            print!(
                " {:5.1} est {:5.1} fl {:4} q {:3} srtt {:3} l {:.2} {}|",
                (path.sent.bytes - *sent) as f64 * 8e-6 / step,
                path.rate.map_or(0.0, |rate| rate.bits() as f64 * 1e-6),
                path.in_flight.unwrap_or(0) / 1_000,
                path.queue.unwrap_or_default().as_millis(),
                path.srtt.unwrap_or_default().as_millis(),
                path.loss.unwrap_or_default() * 100.0,
                if path.state.is_up() { "" } else { "DOWN" },
            );
            *sent = path.sent.bytes;
        }
        if std::env::var("BACK").is_ok() {
            let near = net.endpoint(0).status().peers[0].clone();
            print!(
                "\n  back: q {} B re {} held {} exp {}",
                far.peers[0].queued_bytes,
                far.peers[0].resent,
                near.ledger.held,
                near.resequencer.unwrap_or_default().expired
            );
            for path in &far.peers[0].paths {
                print!(
                    " | sent {} est {:.2} fl {} q {} srtt {} l {:.2}",
                    path.sent.packets,
                    path.rate.map_or(0.0, |rate| rate.bits() as f64 * 1e-6),
                    path.in_flight.unwrap_or(0),
                    path.queue.unwrap_or_default().as_millis(),
                    path.srtt.unwrap_or_default().as_millis(),
                    path.loss.unwrap_or_default() * 100.0
                );
            }
        }
        println!();
        before = bytes;
    }
    let bytes = net.host::<TcpSink>(1).bytes();
    println!("mean {:.1} Mbit/s", bytes as f64 * 8e-6 / seconds);
}
