//! Two native endpoints over links in the text form of plan files.

use std::time::Duration;

use mpt_proto::config::{Config, NativeConfig, PathConfig, PeerConfig, Protocol};
use mpt_proto::crypto::handshake::{Capabilities, Clock, Identity};
use mpt_proto::crypto::keys::KeyPair;
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::Merge;
use mpt_proto::path::LinkId;
use mpt_proto::repair::fec;
use mpt_proto::sessions::SessionTable;
use mpt_proto::stats::{PathStatus, PeerStatus};
use mpt_proto::time::{Rate, Time};
use mpt_sim::host::delayed::Delayed;
use mpt_sim::host::tcp::{TcpSink, TcpSource};
use mpt_sim::host::{Sink, Source};
use mpt_sim::link::PathSpec;
use mpt_sim::net::{Network, address};
use mpt_sim::seed::Seed;

pub const SECOND: Duration = Duration::from_secs(1);
/// 1500 bytes minus IPv4, UDP and native mode's own headers.
pub const MTU: usize = 1_437;
/// Start of the flows: sessions are established and paths are up by then.
pub const SETTLED: Duration = SECOND;

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn endpoint(end: usize, paths: usize, fec: fec::FecMode) -> Endpoint {
    endpoint_with(end, paths, fec, true)
}

fn endpoint_with(end: usize, paths: usize, fec: fec::FecMode, carries_ipv6: bool) -> Endpoint {
    let keys = |end: usize| KeyPair::generate([end as u8 + 1; 32]);
    let path = |i: usize| PathConfig::new(format!("path{i}"), LinkId(i as u8), address(1 - end, i));
    let native = NativeConfig { fec, ..NativeConfig::new(*keys(1 - end).public()) };
    let peer = PeerConfig {
        networks: vec!["0.0.0.0/0".parse().unwrap()],
        carries_ipv6,
        ..PeerConfig::new("peer", Protocol::Native(native), (0..paths).map(path).collect())
    };
    let config = Config { identity: None, mtu: MTU, merge: Merge::default(), peers: vec![peer] };
    let identity =
        Identity { keys: keys(end), capabilities: Capabilities::new(true), clock: Clock::new(SECOND * 1_000_000) };
    Endpoint::native(Time::START, &config, SessionTable::new(identity, [end as u8 + 7; 32]))
}

fn links(paths: &[&str]) -> Vec<PathSpec> {
    paths.iter().map(|path| path.parse().unwrap()).collect()
}

/// Runs a greedy TCP flow from the first end to the second, from [`SETTLED`] on.
pub fn tcp(seed: u64, paths: &[&str]) -> Network {
    tcp_of(seed, paths, MTU)
}

/// Does the same with packets of up to `mtu` bytes.
pub fn tcp_of(seed: u64, paths: &[&str], mtu: usize) -> Network {
    let fec = fec::FecMode::Auto;
    let hosts =
        [Box::new(TcpSource::new(mtu).starting_at(Time::after(SETTLED))) as _, Box::new(TcpSink::new(mtu)) as _];
    let ends = [endpoint(0, paths.len(), fec), endpoint(1, paths.len(), fec)];
    Network::between(Seed(seed), ends, &links(paths), hosts)
}

/// Does the same with hosts that are away from the two ends of the tunnel by these delays, after a handshake.
pub fn tcp_from_afar(paths: &[&str], delays: [Duration; 2]) -> Network {
    let source = TcpSource::new(MTU).starting_at(Time::after(SETTLED)).after_handshake();
    let hosts =
        [Box::new(Delayed::new(source, delays[0])) as _, Box::new(Delayed::new(TcpSink::new(MTU), delays[1])) as _];
    let ends = [0, 1].map(|end| endpoint(end, paths.len(), fec::FecMode::Auto));
    Network::between(Seed(1), ends, &links(paths), hosts)
}

/// Does the same in a tunnel that carries no IPv6.
pub fn tcp_without_ipv6(seed: u64, paths: &[&str], mtu: usize) -> Network {
    let hosts =
        [Box::new(TcpSource::new(mtu).starting_at(Time::after(SETTLED))) as _, Box::new(TcpSink::new(mtu)) as _];
    let ends = [0, 1].map(|end| endpoint_with(end, paths.len(), fec::FecMode::Auto, false));
    Network::between(Seed(seed), ends, &links(paths), hosts)
}

/// Sends numbered packets of 1400 bytes at a constant rate for `length`.
pub fn udp(seed: u64, paths: &[&str], rate: Rate, length: Duration, fec: fec::FecMode) -> Network {
    let hosts = [Box::new(Source::new(rate, 1_400, length)) as _, Box::new(Sink::default()) as _];
    let ends = [endpoint(0, paths.len(), fec), endpoint(1, paths.len(), fec)];
    Network::between(Seed(seed), ends, &links(paths), hosts)
}

/// Returns the goodput of the TCP flow in Mbit/s over `length`, from [`SETTLED`] on.
pub fn goodput(paths: &[&str], length: Duration) -> f64 {
    goodput_of(1, paths, length)
}

/// Does the same with another seed.
pub fn goodput_of(seed: u64, paths: &[&str], length: Duration) -> f64 {
    let mut net = tcp(seed, paths);
    net.run(SETTLED + length);
    assert_eq!(net.breaches(), []);
    print_status(&net);
    mbit(&net, length)
}

/// Returns the goodput in Mbit/s between two times.
pub fn mbit_between(net: &mut Network, from: Duration, until: Duration) -> f64 {
    net.run(from);
    let before = net.host::<TcpSink>(1).bytes();
    net.run(until);
    (net.host::<TcpSink>(1).bytes() - before) as f64 * 8e-6 / (until - from).as_secs_f64()
}

pub fn mbit(net: &Network, length: Duration) -> f64 {
    net.host::<TcpSink>(1).bytes() as f64 * 8e-6 / length.as_secs_f64()
}

/// Returns the sender's status of its peer.
pub fn sender(net: &Network) -> PeerStatus {
    net.endpoint(0).status().peers.remove(0)
}

pub fn path(net: &Network, number: usize) -> PathStatus {
    sender(net).paths.swap_remove(number)
}

pub fn print_status(net: &Network) {
    let status = sender(net);
    println!("{:?}", net.endpoint(1).status().peers[0].reorder);
    println!(
        "resent {}, recovered {}, given up {}, {:?}",
        status.resent,
        net.endpoint(1).status().peers[0].recovered,
        status.given_up,
        status.drops.iter().collect::<Vec<_>>()
    );
    for path in &status.paths {
        let rate = path.rate.map(|rate| rate.bits() / 1_000_000);
        println!(
            "  {} {}: {} sent, {rate:?} Mbit/s, {:?}, {:?} lost",
            path.name, path.state, path.sent.packets, path.srtt, path.loss
        );
    }
}

/// Cuts a path in both directions, or restores it.
pub fn cut(net: &mut Network, path: usize, cut: bool) {
    net.cut(path, cut);
}

/// Returns the longest time without progress of the TCP flow, from `since` on.
pub fn longest_gap(net: &Network, since: Duration) -> Duration {
    let series = &net.host::<TcpSink>(1).series;
    let later = series.windows(2).filter(|pair| pair[1].0 > Time::after(since));
    later.map(|pair| pair[1].0 - pair[0].0.max(Time::after(since))).max().unwrap_or(Duration::MAX)
}
