//! Native mode over links of every kind; the laws are checked after every run.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use mpt_proto::config::{Config, NativeConfig, PathConfig, PeerConfig, Protocol};
use mpt_proto::crypto::handshake::{Capabilities, Clock, Identity};
use mpt_proto::crypto::keys::KeyPair;
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::Merge;
use mpt_proto::path::LinkId;
use mpt_proto::reorder::ReorderLimits;
use mpt_proto::sessions::SessionTable;
use mpt_proto::time::{Rate, Time};
use mpt_sim::host::{Sink, Source};
use mpt_sim::laws;
use mpt_sim::link::{Jitter, LinkSpec, Loss, Order, PathSpec, Queue};
use mpt_sim::net::{Network, address};
use mpt_sim::seed::Seed;

const SECOND: Duration = Duration::from_secs(1);

fn mbit(n: u64) -> Rate {
    Rate::from_bits(n * 1_000_000)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn endpoint(end: usize, paths: usize) -> Endpoint {
    let keys = |end: usize| KeyPair::generate([end as u8 + 1; 32]);
    let path = |i: usize| PathConfig::new(format!("path{i}"), LinkId(i as u8), address(1 - end, i));
    let native = NativeConfig::new(*keys(1 - end).public());
    let peer = PeerConfig {
        networks: vec!["0.0.0.0/0".parse().unwrap()],
        resequence: Some(ReorderLimits { max_hold: SECOND, window: 32_768, ..ReorderLimits::default() }),
        ..PeerConfig::new("peer", Protocol::Native(native), (0..paths).map(path).collect())
    };
    let config = Config { identity: None, mtu: 1_437, merge: Merge::default(), peers: vec![peer] };
    let identity =
        Identity { keys: keys(end), capabilities: Capabilities::new(true), clock: Clock::new(SECOND * 1_000_000) };
    Endpoint::native(Time::START, &config, SessionTable::new(identity, [end as u8 + 7; 32]))
}

fn network(seed: u64, paths: &[PathSpec], rate: Rate, length: Duration) -> Network {
    let hosts = [Box::new(Source::new(rate, 1_400, length)) as _, Box::new(Sink::default()) as _];
    Network::between(Seed(seed), [endpoint(0, paths.len()), endpoint(1, paths.len())], paths, hosts)
}

fn run(seed: u64, paths: &[PathSpec], rate: Rate, length: Duration) -> Network {
    let mut net = network(seed, paths, rate, length);
    net.run(length + ms(2_500));
    net
}

fn assert_lawful(net: &Network) {
    let mut breaches = net.breaches();
    breaches.extend(laws::order(net.endpoint(1), net.host::<Sink>(1)));
    assert!(breaches.is_empty(), "{} breaches, {:?}", breaches.len(), &breaches[..breaches.len().min(4)]);
}

/// Returns the packets that the sender's queue dropped while the rates of the paths were unknown.
fn queue_drops(net: &Network) -> u64 {
    net.endpoint(0).status().peers[0].drops.of(mpt_proto::drops::Dropped::Aqm)
}

fn link(rate: u64, delay: u64) -> LinkSpec {
    LinkSpec::new(mbit(rate), ms(delay)).with_queue(Queue::Time(ms(200)))
}

fn print_status(name: &str, net: &Network) {
    let (sink, source) = (net.host::<Sink>(1), net.host::<Source>(0));
    let status = net.endpoint(1).status();
    let sender = net.endpoint(0).status();
    println!(
        "{name}: {} of {} in {:.1} Mbit/s, longest gap {:?} until {:?}, {:?} {:?} {:?}",
        sink.numbers.len(),
        source.sent(),
        sink.goodput().bits() as f64 / 1e6,
        sink.longest_gap,
        sink.gap_ended,
        status.peers[0].reorder,
        sender.peers[0].drops.iter().collect::<Vec<_>>(),
        sender.peers[0]
            .paths
            .iter()
            .map(|p| (p.sent.packets, p.rate.map(|r| r.bits() / 1_000_000), p.srtt, p.loss))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn two_clean_paths_deliver_everything_in_order() {
    let paths = [PathSpec::symmetric(link(10, 5)), PathSpec::symmetric(link(100, 20))];
    let net = run(1, &paths, mbit(90), 5 * SECOND);
    print_status("clean", &net);
    assert_lawful(&net);
    let sink = net.host::<Sink>(1);
    assert_eq!(sink.numbers.len() as u64 + queue_drops(&net), net.host::<Source>(0).sent());
    assert!(sink.numbers.is_sorted());
}

#[test]
fn loss_is_repaired_in_order() {
    let lossy = link(50, 20).with_loss(Loss::Random(0.02));
    let paths = [PathSpec::symmetric(lossy.clone()), PathSpec::symmetric(lossy)];
    let net = run(1, &paths, mbit(60), 5 * SECOND);
    print_status("lossy", &net);
    assert_lawful(&net);
    let sink = net.host::<Sink>(1);
    assert_eq!(sink.numbers.len() as u64 + queue_drops(&net), net.host::<Source>(0).sent());
    assert!(sink.reordered() <= 2, "{}", sink.reordered());
}

#[test]
fn acknowledgements_use_a_socket_that_is_not_full() {
    let paths = [PathSpec::symmetric(link(50, 5)), PathSpec::symmetric(link(50, 20))];
    let mut net = network(1, &paths, mbit(40), 3 * SECOND);
    net.run(SECOND);
    let sent =
        |net: &Network| net.endpoint(1).status().peers[0].paths.iter().map(|p| p.sent.packets).collect::<Vec<_>>();
    net.act(1, |_, endpoint| endpoint.handle_blocked(LinkId(0), true));
    let before = sent(&net);
    net.run(2 * SECOND);
    let after = sent(&net);
    // Every second of 40 Mbit/s is acknowledged hundreds of times, and a path is probed a few times.
    let [full, open] = [0, 1].map(|path| after[path] - before[path]);
    assert!(full < 20 && open > 200, "{full} by the full one, {open} by the other");
}

#[test]
fn the_laws_hold_on_every_kind_of_link() {
    let both = |link: LinkSpec| PathSpec::symmetric(link);
    let jittery = link(100, 40).with_jitter(Jitter::Normal(ms(10)), Order::Free);
    let cases = [
        ("unequal delay", [both(link(100, 10)), both(link(100, 120))]),
        ("jitter", [both(jittery.clone()), both(jittery)]),
        ("poison", [both(link(50, 20)), both(link(50, 20).with_loss(Loss::Random(0.5)))]),
        ("small queue", [both(link(20, 10).with_queue(Queue::Bytes(20_000))), both(link(100, 30))]),
    ];
    for (name, paths) in cases {
        for seed in 1..3 {
            let net = run(seed, &paths, mbit(45), 3 * SECOND);
            print_status(name, &net);
            assert_lawful(&net);
            assert_eq!(net.journal(), run(seed, &paths, mbit(45), 3 * SECOND).journal(), "{name}: repetition");
        }
    }
}

#[test]
fn a_silent_path_costs_less_than_a_third_of_a_second_and_no_packet() {
    let paths = [PathSpec::symmetric(link(100, 10)), PathSpec::symmetric(link(100, 10))];
    let mut net = network(1, &paths, mbit(80), 4 * SECOND);
    net.run(2 * SECOND);
    net.cut(1, true);
    net.run(7 * SECOND);
    print_status("blackhole", &net);
    assert_lawful(&net);
    let sink = net.host::<Sink>(1);
    assert_eq!(sink.numbers.len() as u64 + queue_drops(&net), net.host::<Source>(0).sent());
    // Three round trips plus the receiver's maximum ACK delay would be 85 ms; a path with little traffic has a coarser
    // estimate of its RTT.
    assert!(sink.longest_gap < ms(333), "{:?}", sink.longest_gap);
}
