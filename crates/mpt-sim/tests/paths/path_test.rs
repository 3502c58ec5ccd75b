//! `mpt path test`: what a path carries, measured with traffic of its own.

use std::time::Duration;

use mpt_proto::PeerError;
use mpt_proto::config::{PathConfig, PathRole};
use mpt_proto::drops::Dropped;
use mpt_proto::path::LinkId;
use mpt_proto::stats::{LoadedPath, PathTestOutcome};
use mpt_sim::host::{Sink, Source};
use mpt_sim::laws;
use mpt_sim::link::PathSpec;
use mpt_sim::net::Network;
use mpt_sim::seed::Seed;

use crate::ends::{endpoint, path};

const SECOND: Duration = Duration::from_secs(1);
/// Both directions of a test, and the way of the result.
const TEST: Duration = Duration::from_secs(12);

/// Returns a network of these paths in which end 0 sends at `rate` for `length`.
fn network(specs: &[&str], paths: Vec<PathConfig>, mbit: u64, length: Duration) -> Network {
    let specs: Vec<PathSpec> = specs.iter().map(|spec| spec.parse().unwrap()).collect();
    let source = Source::new(mpt_proto::Rate::from_bits(mbit * 1_000_000), 1_400, length);
    let hosts = [Box::new(source) as _, Box::new(Sink::default()) as _];
    Network::between(Seed(1), [endpoint(0, paths), endpoint(1, vec![])], &specs, hosts)
}

fn idle_network(specs: &[&str], paths: Vec<PathConfig>) -> Network {
    network(specs, paths, 1, Duration::ZERO)
}

/// Tests the first path of end `end` from the first second on.
fn test(net: &mut Network, end: usize) -> PathTestOutcome {
    net.run(SECOND);
    net.act(end, |now, endpoint| assert_eq!(endpoint.start_path_test(now, "peer", &first(endpoint)), Ok(())));
    net.run(SECOND + TEST);
    outcome(net, end).expect("it has ended")
}

/// Returns the name of the path over the first link.
fn first(endpoint: &mpt_proto::Endpoint) -> String {
    let status = endpoint.status();
    status.peers[0].paths.iter().find(|path| path.link == LinkId(0)).unwrap().name.clone()
}

fn outcome(net: &mut Network, end: usize) -> Option<PathTestOutcome> {
    let mut outcome = None;
    net.act(end, |_, endpoint| outcome = endpoint.take_path_test("peer").unwrap());
    outcome
}

/// Asserts that the rate is the link's, less 42 bytes for Ethernet, IP and UDP of 1514, within 10 %.
fn assert_rate(measured: LoadedPath, mbit: f64, what: &str) {
    let rate = measured.rate.bits() as f64 / 1e6 * 1_514.0 / 1_472.0;
    println!("{what}: {rate:.1} of {mbit} Mbit/s, {measured:?}");
    assert!((rate / mbit - 1.0).abs() < 0.1, "{what}: {rate:.1} of {mbit} Mbit/s");
}

#[test]
fn both_directions_are_measured_within_a_tenth_of_the_links_rate() {
    let links = [(50, 10, 20, 0), (50, 10, 20, 1), (5, 1, 40, 0), (100, 100, 5, 1), (80, 20, 100, 0)];
    for (there, back, delay, end) in links {
        let spec = format!("rate={there}mbit,delay={delay}ms|rate={back}mbit,delay={delay}ms");
        let mut net = idle_network(&[&spec, "rate=50mbit,delay=5ms"], vec![path(0), path(1)]);
        let PathTestOutcome { sent, received } = test(&mut net, end);
        let (sent, received) = if end == 0 { (sent, received) } else { (received, sent) };
        for (measured, mbit, way) in [(sent, there, "there"), (received, back, "back")] {
            let measured = measured.unwrap();
            assert_rate(measured, mbit as f64, &format!("{spec} {way} by {end}"));
            // ACKs return on the quicker path, which is 5 ms long.
            let round_trip = Duration::from_millis(delay + 5);
            assert!(measured.idle >= round_trip && measured.idle < round_trip + Duration::from_millis(5));
            assert!(measured.loaded >= measured.idle);
        }
        let other = net.endpoint(0).status().peers[0].paths[1].sent.bytes;
        assert!(other < 500_000, "the other path carries ACKs and probes alone: {other}");
        assert!(net.breaches().is_empty(), "{:?}", net.breaches());
    }
}

#[test]
fn loss_is_that_of_the_link_and_delay_under_load_that_of_its_buffer() {
    let mut net = idle_network(&["rate=20mbit,delay=20ms,loss=2%"], vec![path(0)]);
    let PathTestOutcome { sent, received } = test(&mut net, 0);
    for measured in [sent.unwrap(), received.unwrap()] {
        println!("{measured:?}");
        assert!((0.01..0.03).contains(&measured.loss()), "{measured:?}");
    }
}

#[test]
fn packets_of_users_leave_first_and_a_standby_path_can_be_tested() {
    let standby = PathConfig { role: PathRole::Standby, ..path(0) };
    let specs = ["rate=20mbit,delay=10ms", "rate=20mbit,delay=10ms"];
    let mut net = idle_network(&specs, vec![standby, path(1)]);
    let PathTestOutcome { sent, received } = test(&mut net, 0);
    assert_rate(sent.unwrap(), 20.0, "standby, there");
    assert_rate(received.unwrap(), 20.0, "standby, back");

    let mut net = network(&specs[..1], vec![path(0)], 15, TEST);
    let PathTestOutcome { sent, .. } = test(&mut net, 0);
    assert_rate(sent.unwrap(), 20.0, "beside 15 Mbit/s");
    net.run(SECOND + TEST + SECOND);
    let late = net.host::<Sink>(1).longest_gap;
    assert!(late < Duration::from_millis(100), "{late:?}");
    let lost = net.host::<Source>(0).sent() - net.host::<Sink>(1).numbers.len() as u64;
    assert!(lost * 100 < net.host::<Source>(0).sent(), "{lost}");
    assert!(laws::order(net.endpoint(1), net.host::<Sink>(1)).is_empty());
}

#[test]
fn a_test_ends_with_its_path_and_a_second_one_waits_for_the_first() {
    let mut net = idle_network(&["rate=20mbit,delay=10ms"; 2], vec![path(0), path(1)]);
    net.run(SECOND);
    net.act(0, |now, endpoint| {
        assert_eq!(endpoint.start_path_test(now, "peer", "path9"), Err(PeerError::NoSuchPath));
        assert_eq!(endpoint.start_path_test(now, "peer", "path0"), Ok(()));
        assert_eq!(endpoint.start_path_test(now, "peer", "path1"), Err(PeerError::Busy));
    });
    net.run(2 * SECOND);
    assert_eq!(outcome(&mut net, 0), None);
    net.cut(0, true);
    net.run(5 * SECOND);
    assert_eq!(outcome(&mut net, 0), Some(PathTestOutcome::default()));
    net.act(0, |now, endpoint| {
        assert_eq!(endpoint.start_path_test(now, "peer", "path0"), Err(PeerError::PathDown));
    });
}

/// The size that the only path carries is not known then, and the program ended.
#[test]
fn a_path_that_carries_no_datagram_of_the_least_size_is_not_tested() {
    let mut net = idle_network(&["rate=20mbit,delay=10ms,mtu=900B"], vec![path(0)]);
    net.run(10 * SECOND);
    net.act(0, |now, endpoint| {
        assert_eq!(endpoint.start_path_test(now, "peer", "path0"), Err(PeerError::PathDown));
    });
}

/// The peer's half of a second test begins when that of the first is ten seconds old.
#[test]
fn tests_in_turn_are_all_answered() {
    let mut net = idle_network(&["rate=20mbit,delay=10ms"; 2], vec![path(0), path(1)]);
    net.run(SECOND);
    for number in 0..3 {
        let name = format!("path{}", number % 2);
        net.act(0, |now, endpoint| assert_eq!(endpoint.start_path_test(now, "peer", &name), Ok(())));
        net.run(SECOND + TEST * (number + 1));
        let outcome = outcome(&mut net, 0).expect("it has ended");
        assert!(outcome.sent.is_some() && outcome.received.is_some(), "{number}: {outcome:?}");
    }
    assert_eq!(net.endpoint(1).status().peers[0].drops.of(Dropped::TestRefused), 0);
}
