//! Plain mode over links of every kind; the five laws are checked after every run.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use mpt_proto::config::{Config, PathConfig, PeerConfig, PlainFraming, Protocol};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::{Merge, Offload};
use mpt_proto::path::{DownCause, LinkId, PathState};
use mpt_proto::time::{Rate, Time};
use mpt_sim::host::{Sink, Source, numbered};
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

fn config(end: usize, weights: &[u32]) -> Config {
    let path = |(i, weight): (usize, &u32)| PathConfig {
        weight: *weight,
        ..PathConfig::new(format!("path{i}"), LinkId(i as u8), address(1 - end, i))
    };
    let plain = Protocol::Plain(PlainFraming { sequence: true, ..PlainFraming::default() });
    let peer = PeerConfig {
        networks: vec!["0.0.0.0/0".parse().unwrap()],
        ..PeerConfig::new("peer", plain, weights.iter().enumerate().map(path).collect())
    };
    Config { identity: None, mtu: 1_464, merge: Merge::default(), peers: vec![peer] }
}

/// Runs a UDP source at `rate` for `length`, and half a second more for packets in flight.
fn run(seed: u64, paths: &[PathSpec], weights: &[u32], rate: Rate, length: Duration) -> Network {
    let hosts = [Box::new(Source::new(rate, 1_400, length)) as _, Box::new(Sink::default()) as _];
    let mut net = Network::new(Seed(seed), [&config(0, weights), &config(1, weights)], paths, hosts);
    net.run(length + ms(1_500));
    net
}

fn assert_lawful(net: &Network) {
    let mut breaches = net.breaches();
    breaches.extend(laws::order(net.endpoint(1), net.host::<Sink>(1)));
    assert!(breaches.is_empty(), "{breaches:#?}");
}

fn plain(rate: u64, delay: u64) -> LinkSpec {
    LinkSpec::new(mbit(rate), ms(delay)).with_queue(Queue::Time(ms(400)))
}

/// Returns links of every kind in the model, two paths each.
fn links_of_every_kind() -> Vec<(&'static str, Vec<PathSpec>)> {
    let both = |link: LinkSpec| PathSpec::symmetric(link);
    let jittery = |order| plain(100, 40).with_jitter(Jitter::Normal(ms(10)), order);
    vec![
        ("equal", vec![both(plain(100, 10)), both(plain(100, 10))]),
        ("unequal delay", vec![both(plain(100, 10)), both(plain(100, 120))]),
        ("jitter in order", vec![both(jittery(Order::Keep)), both(plain(100, 10))]),
        ("jitter that reorders", vec![both(jittery(Order::Free)), both(jittery(Order::Free))]),
        ("random loss", vec![both(plain(100, 10).with_loss(Loss::Random(0.02))), both(plain(100, 30))]),
        (
            "bursty loss",
            vec![
                both(plain(100, 10).with_loss(Loss::Bursts { worsen: 0.004, recover: 0.2, bad: 1.0 })),
                both(plain(100, 30)),
            ],
        ),
        ("small queue", vec![both(plain(20, 10).with_queue(Queue::Bytes(20_000))), both(plain(100, 30))]),
    ]
}

#[test]
fn a_packet_that_fits_no_datagram_is_refused_for_any_mtu() {
    for len in [65_480, 65_500, 65_535] {
        let mut endpoint = Endpoint::new(Time::START, &Config { mtu: 65_535, ..config(0, &[1]) });
        endpoint.handle_inner(Time::START, &mut numbered(0, len), len, Offload::default());
        let largest = std::iter::from_fn(|| endpoint.poll_transmit(Time::START)).map(|run| run.segment).max();
        assert_eq!(endpoint.status().drops.of(Dropped::TooBig), u64::from(len > 65_480));
        assert_eq!(largest.is_some_and(|bytes| bytes > len), len == 65_480, "{largest:?}");
    }
}

#[test]
fn the_laws_hold_on_every_kind_of_link() {
    for (name, paths) in links_of_every_kind() {
        for seed in 1..4 {
            let net = run(seed, &paths, &[1, 1], mbit(60), 2 * SECOND);
            println!("{name}, seed {seed}");
            assert_lawful(&net);
            assert_eq!(net.journal(), run(seed, &paths, &[1, 1], mbit(60), 2 * SECOND).journal(), "{name}: repetition");
        }
    }
}

#[test]
fn two_clean_paths_deliver_everything_in_order_at_the_sum_of_their_rates() {
    let paths = [PathSpec::symmetric(plain(10, 5)), PathSpec::symmetric(plain(100, 20))];
    // 1400 inner bytes are 1450 on the wire.
    let rate = mbit(110).scale(1_400.0 / 1_450.0 * 0.99);
    let net = run(1, &paths, &[10, 100], rate, 3 * SECOND);
    assert_lawful(&net);
    let sink = net.host::<Sink>(1);
    assert!(sink.numbers.is_sorted());
    assert_eq!(sink.numbers.len() as u64, net.host::<Source>(0).sent());
    assert!(sink.goodput() > rate.scale(0.99), "{:?}", sink.goodput());
}

#[test]
fn a_cut_loses_only_packets_in_flight() {
    let paths = [PathSpec::symmetric(plain(100, 50))];
    let hosts = [Box::new(Source::new(mbit(10), 1_400, SECOND)) as _, Box::new(Sink::default()) as _];
    let mut net = Network::new(Seed(1), [&config(0, &[1]), &config(1, &[1])], &paths, hosts);
    net.run(ms(500));
    let arrived = net.host::<Sink>(1).numbers.len();
    net.cut(0, true);
    net.run(SECOND);
    assert!(arrived > 0);
    assert_eq!(net.host::<Sink>(1).numbers.len(), arrived, "frames of 50 ms were in flight");
}

#[test]
fn a_lost_carrier_moves_the_traffic_immediately_and_is_reported_to_the_peer() {
    let paths = [PathSpec::symmetric(plain(100, 10)), PathSpec::symmetric(plain(100, 10))];
    let hosts = [Box::new(Source::new(mbit(50), 1_400, 4 * SECOND)) as _, Box::new(Sink::default()) as _];
    let weights = [1, 1];
    let mut net = Network::new(Seed(1), [&config(0, &weights), &config(1, &weights)], &paths, hosts);
    net.run(SECOND);
    net.cut(0, true);
    net.carrier(0, 0, false);
    net.run(SECOND + ms(30));
    let state = |net: &Network, end: usize| net.endpoint(end).status().peers[0].paths[0].state;
    assert_eq!(state(&net, 0), PathState::Down(DownCause::Carrier));
    assert_eq!(state(&net, 1), PathState::Down(DownCause::Peer), "reported over the other path");
    net.run(3 * SECOND);
    net.cut(0, false);
    net.carrier(0, 0, true);
    net.run(3 * SECOND + ms(60));
    assert_eq!((state(&net, 0), state(&net, 1)), (PathState::Up, PathState::Up), "back after a round trip");
    net.run(5 * SECOND);
    assert_lawful(&net);
    let sink = net.host::<Sink>(1);
    assert!(sink.longest_gap < ms(60), "{:?}", sink.longest_gap);
}

#[test]
fn a_silent_path_is_declared_down_and_up_again() {
    let paths = [PathSpec::symmetric(plain(100, 10)), PathSpec::symmetric(plain(100, 10))];
    let hosts = [Box::new(Source::new(mbit(50), 1_400, 8 * SECOND)) as _, Box::new(Sink::default()) as _];
    let mut net = Network::new(Seed(1), [&config(0, &[1, 1]), &config(1, &[1, 1])], &paths, hosts);
    net.run(SECOND);
    net.cut(1, true);
    net.run(SECOND + ms(650));
    for end in 0..2 {
        assert!(!net.endpoint(end).status().peers[0].paths[1].state.is_up(), "end {end}");
    }
    net.run(4 * SECOND);
    net.cut(1, false);
    net.run(6 * SECOND + ms(100));
    for end in 0..2 {
        assert_eq!(net.endpoint(end).status().peers[0].paths[1].state, PathState::Up, "end {end}");
    }
    net.run(9 * SECOND);
    assert_lawful(&net);
}

#[test]
fn a_path_added_over_a_full_socket_waits_for_it() {
    let mut endpoint = Endpoint::new(Time::START, &Config { peers: Vec::new(), ..config(0, &[]) });
    endpoint.handle_blocked(LinkId(0), true);
    endpoint.add_peer(Time::START, &PeerConfig { probe: None, ..config(0, &[1]).peers[0].clone() });
    endpoint.handle_inner(Time::START, &mut numbered(1, 100), 100, Offload::default());
    assert!(endpoint.poll_transmit(Time::START).is_none());
    endpoint.handle_blocked(LinkId(0), false);
    assert!(endpoint.poll_transmit(Time::START).is_some());
}

#[test]
fn a_peer_that_waits_for_a_full_socket_sends_after_another_one_was_removed() {
    let mut endpoint = Endpoint::new(Time::START, &Config { peers: Vec::new(), ..config(0, &[]) });
    for (name, network) in [("first", "198.18.0.0/15"), ("second", "0.0.0.0/0")] {
        let networks = vec![network.parse().unwrap()];
        let peer = PeerConfig { name: name.into(), networks, probe: None, ..config(0, &[1]).peers[0].clone() };
        endpoint.add_peer(Time::START, &peer);
    }
    endpoint.handle_blocked(LinkId(0), true);
    endpoint.handle_inner(Time::START, &mut numbered(1, 100), 100, Offload::default());
    assert!(endpoint.poll_transmit(Time::START).is_none());
    endpoint.remove_peer("first").unwrap();
    endpoint.handle_blocked(LinkId(0), false);
    assert!(endpoint.poll_transmit(Time::START).is_some());
}
