//! BBR inside over unlike delays: delayed ACKs raise its minimum round trip until it uses the far path.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::config::{NativeConfig, PathConfig, Protocol};
use mpt_proto::path::LinkId;
use mpt_proto::tuning::{Heuristic, Tuning};
use mpt_sim::host::Host;
use mpt_sim::host::tcp::{TcpSink, TcpSource};
use mpt_sim::net::{Network, address};
use mpt_sim::seed::Seed;
use support::native::{endpoint, keys, peer};

/// Returns the goodput in Mbit/s of a flow with BBR over both paths: in its first ten seconds, and in five after the
/// thirtieth.
fn goodput(tuning: Tuning) -> [f64; 2] {
    let path = |i: usize| PathConfig::new(format!("path{i}"), LinkId(i as u8), address(1, i));
    let end = |own: u16, other: u16, paths| {
        let mut peer = peer("other".into(), &keys(other), paths, &["0.0.0.0/0"]);
        peer.protocol = Protocol::Native(NativeConfig { tuning, ..NativeConfig::new(*keys(other).public()) });
        endpoint(keys(own), own, vec![peer])
    };
    let ends = [end(1, 2, vec![path(0), path(1)]), end(2, 1, vec![])];
    let links = ["rate=20mbit,delay=10ms,queue=100ms", "rate=50mbit,delay=60ms,queue=100ms"];
    let hosts: [Box<dyn Host>; 2] = [Box::new(TcpSource::new(1_400).with_bbr()), Box::new(TcpSink::new(1_400))];
    let mut net = Network::between(Seed(3), ends, &links.map(|link| link.parse().unwrap()), hosts);
    let mut bytes_at = |second| {
        net.run(Duration::from_secs(second));
        net.host::<TcpSink>(1).bytes() as f64
    };
    let [first, before, after] = [10, 30, 35].map(&mut bytes_at);
    assert_eq!(net.breaches(), []);
    [first * 8e-6 / 10.0, (after - before) * 8e-6 / 5.0]
}

#[test]
fn bbr_uses_a_far_path_within_half_a_minute() {
    let ([first, later], without) =
        (goodput(Tuning::default()), goodput(Tuning::default().without(Heuristic::AckDelay)));
    println!("with: {first:.1}, {later:.1}; without: {without:?}");
    assert!(later > 55.0, "{later} of 65 Mbit/s");
    assert!(without.iter().all(|mbit| *mbit < 20.0), "the near path alone: {without:?}");
    assert!(first > without[0] * 0.98, "{first}: a longer round trip costs no rate");
}
