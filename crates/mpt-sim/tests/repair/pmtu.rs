//! Paths whose MTU is smaller than the tunnel's datagrams.

use super::world::*;
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::Endpoint;
use mpt_proto::path::{Demotion, PathState};
use mpt_sim::link::PathSpec;
use mpt_sim::net::Network;

const WIDE: &str = "rate=50mbit,delay=20ms";
/// Overhead in bytes of an inner packet: IPv4, UDP and native mode's own headers.
const HEADERS: usize = 63;

/// Returns the number of state changes of the second path, and its last state.
fn changes(net: &mut Network, from: u64, until: u64) -> (usize, PathState) {
    let mut states = vec![];
    for tick in from / 5..until / 5 {
        net.run(ms(5 * tick));
        states.push(path(net, 1).state);
    }
    states.dedup();
    (states.len() - 1, path(net, 1).state)
}

/// Returns the largest inner packet that all paths of all peers carry.
fn carried(endpoint: &Endpoint) -> usize {
    endpoint.narrow_peers().map(|(_, carried)| carried).fold(endpoint.mtu(), usize::min)
}

const NARROW: PathState = PathState::Demoted(Demotion::Narrow);

#[test]
fn a_small_path_mtu_is_detected_and_lowers_the_tunnels_mtu() {
    for mtu in [1_497, 1_492, 1_400] {
        let paths = [WIDE, &format!("{WIDE},mtu={mtu}B")];
        // The simulated TCP does not negotiate its MSS.
        let mut net = tcp_of(1, &paths, mtu - HEADERS - 4);
        let both = mbit_between(&mut net, 6 * SECOND, 10 * SECOND);
        let found = carried(net.endpoint(0));
        assert!(found <= mtu - HEADERS && found + 4 >= mtu - HEADERS, "{found} over {mtu}");
        print_status(&net);
        assert_eq!(path(&net, 1).state, PathState::Up);
        assert!(both > 75.0, "{both} over {mtu}");
        assert_eq!(net.breaches(), []);
    }
}

#[test]
fn a_path_whose_mtu_shrinks_in_mid_transfer_is_unused_until_its_mtu_is_known() {
    let mut net = tcp(1, &[WIDE, WIDE]);
    net.run(3 * SECOND);
    let narrow: PathSpec = format!("{WIDE},mtu=1497B").parse().unwrap();
    net.link(1, 0).change(mpt_proto::time::Time::after(3 * SECOND), &narrow.there);
    let (count, state) = changes(&mut net, 3_000, 10_000);
    print_status(&net);
    assert_eq!(state, PathState::Up, "the path is up for small packets");
    assert!(count <= 6, "{count} changes of state, where there were forty a second");
    // The simulated host does not learn the new MTU; its large packets use the wide path.
    assert!(longest_gap(&net, 3 * SECOND) < ms(500), "{:?}", longest_gap(&net, 3 * SECOND));
    assert_eq!(sender(&net).drops.of(Dropped::TooBig), 0);
    assert_eq!(net.breaches(), []);
}

#[test]
fn a_path_with_an_mtu_below_the_ipv6_minimum_is_unused() {
    let mut net = tcp(1, &[WIDE, &format!("{WIDE},mtu=1300B")]);
    net.run(6 * SECOND);
    print_status(&net);
    assert_eq!(carried(net.endpoint(0)), MTU);
    // The result holds until the next search, 30 s later.
    assert_eq!((changes(&mut net, 6_000, 26_000), net.breaches()), ((0, NARROW), vec![]));
    assert!(path(&net, 1).sent.bytes < 200_000);
}

#[test]
fn a_tunnel_without_ipv6_uses_a_path_below_the_ipv6_minimum() {
    let mut net = tcp_without_ipv6(1, &[WIDE, WIDE], 1_200);
    net.run(3 * SECOND);
    let narrow: PathSpec = format!("{WIDE},mtu=1280B").parse().unwrap();
    for direction in 0..2 {
        net.link(1, direction).change(mpt_proto::time::Time::after(3 * SECOND), &narrow.there);
    }
    // Packets of 1200 bytes fit it, so only another probe of full size shows the change.
    net.cut(1, true);
    net.run(5 * SECOND);
    net.cut(1, false);
    net.run(9 * SECOND);
    print_status(&net);
    assert_eq!(path(&net, 1).state, PathState::Up);
    // The search ends four bytes below the size at most.
    let found = carried(net.endpoint(0));
    assert!((1_280 - HEADERS - 4..=1_280 - HEADERS).contains(&found), "{found}");
    let before = path(&net, 1).sent.bytes;
    net.run(11 * SECOND);
    assert!(path(&net, 1).sent.bytes - before > 1_000_000);
}

#[test]
fn a_path_that_was_too_narrow_for_three_seconds_is_used_again_within_forty() {
    let mut net = tcp(1, &[WIDE, WIDE]);
    for (at, mtu) in [(3, 1_300), (6, 1_600)] {
        net.run(at * SECOND);
        let spec: PathSpec = format!("{WIDE},mtu={mtu}B").parse().unwrap();
        net.link(1, 0).change(mpt_proto::time::Time::after(at * SECOND), &spec.there);
        net.run((at + 2) * SECOND);
        assert_eq!(path(&net, 1).state, NARROW, "2 s after {at} s");
    }
    // The next search begins 30 s after the last one.
    net.run(46 * SECOND);
    print_status(&net);
    assert_eq!((path(&net, 1).state, net.breaches()), (PathState::Up, vec![]));
}

#[test]
fn packets_too_large_for_every_path_are_counted() {
    let mut net = udp(
        1,
        &[&format!("{WIDE},mtu=1440B")],
        mpt_proto::time::Rate::from_bits(4_000_000),
        3 * SECOND,
        Default::default(),
    );
    net.run(5 * SECOND);
    print_status(&net);
    assert!(sender(&net).drops.of(Dropped::TooBig) > 500);
    assert_eq!((path(&net, 0).state, net.breaches()), (PathState::Up, vec![]));
}

#[test]
fn a_sole_path_with_a_small_mtu_keeps_the_tunnels_mtu_while_it_is_probed_again() {
    let rate = mpt_proto::time::Rate::from_bits(500_000);
    let mut net = udp(1, &[&format!("{WIDE},mtu=1440B")], rate, 640 * SECOND, Default::default());
    net.run(5 * SECOND);
    let found = carried(net.endpoint(0));
    assert!(found < MTU);
    net.cut(0, true);
    net.run(10 * SECOND);
    net.cut(0, false);
    for second in 10..640 {
        net.run(second * SECOND);
        assert_eq!(carried(net.endpoint(0)), found, "after {second} s");
    }
}
