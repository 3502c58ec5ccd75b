//! Standby paths, and paths that are added and removed, over links.

use std::time::Duration;

use mpt_proto::config::{PathConfig, PathRole};
use mpt_proto::path::{DownCause, PathState};
use mpt_proto::time::Rate;
use mpt_sim::host::{Sink, Source};
use mpt_sim::laws;
use mpt_sim::link::{LinkSpec, PathSpec, Queue};
use mpt_sim::net::{Network, address};
use mpt_sim::seed::Seed;

use crate::ends::{endpoint, incarnation, path};

const SECOND: Duration = Duration::from_secs(1);

fn mbit(rate: u64) -> Rate {
    Rate::from_bits(rate * 1_000_000)
}

fn link(delay: u64) -> PathSpec {
    let delay = Duration::from_millis(delay);
    PathSpec::symmetric(LinkSpec::new(mbit(50), delay).with_queue(Queue::Time(Duration::from_millis(200))))
}

/// Returns a network in which `sender` sends 20 Mbit/s for `length` over the initiator's configured paths.
fn network(sender: usize, paths: Vec<PathConfig>, length: Duration) -> Network {
    let (source, sink) = (Box::new(Source::new(mbit(20), 1_400, length)) as _, Box::new(Sink::default()) as _);
    let hosts = if sender == 0 { [source, sink] } else { [sink, source] };
    Network::between(Seed(1), [endpoint(0, paths), endpoint(1, vec![])], &[link(10), link(15)], hosts)
}

fn standby(number: usize) -> PathConfig {
    PathConfig { role: PathRole::Standby, ..path(number) }
}

/// Returns the bytes that an end has sent over each of its paths.
fn sent(net: &Network, end: usize) -> Vec<(String, u64)> {
    let status = net.endpoint(end).status();
    status.peers[0].paths.iter().map(|path| (path.name.clone(), path.sent.bytes)).collect()
}

fn assert_whole(net: &Network, sender: usize) {
    let mut breaches = net.breaches();
    breaches.extend(laws::order(net.endpoint(1 - sender), net.host::<Sink>(1 - sender)));
    assert!(breaches.is_empty(), "{} breaches, {:?}", breaches.len(), &breaches[..breaches.len().min(4)]);
    let shed = net.endpoint(sender).status().peers[0].drops.of(mpt_proto::drops::Dropped::Aqm);
    assert_eq!(net.host::<Sink>(1 - sender).numbers.len() as u64 + shed, net.host::<Source>(sender).sent());
}

/// Returns the kilobytes sent over the second path, control frames included.
fn over_second(net: &Network, end: usize) -> u64 {
    sent(net, end)[1].1 / 1_000
}

#[test]
fn a_path_is_checked_when_another_one_is_beside_it() {
    let mut net = network(0, vec![path(0)], Duration::ZERO);
    let sent = |net: &Network| net.endpoint(0).status().peers[0].paths[0].sent.packets;
    net.run(SECOND);
    let alone = sent(&net);
    net.act(0, |now, endpoint| assert_eq!(endpoint.add_path(now, "peer", &path(1)), Ok(())));
    net.run(2 * SECOND);
    let beside = sent(&net) - alone;
    assert!(alone < 16 && beside >= 20, "{alone} packets alone, {beside} beside another path");
}

#[test]
fn both_ends_use_a_standby_path_only_while_no_other_is_up() {
    for sender in [0, 1] {
        let mut net = network(sender, vec![path(0), standby(1)], 6 * SECOND);
        net.run(2 * SECOND);
        assert!(over_second(&net, 0) < 10 && over_second(&net, 1) < 10, "sender {sender}: {:?}", sent(&net, sender));
        assert_eq!(
            net.endpoint(1).status().peers[0].paths[1].roles,
            [PathRole::Available, PathRole::Standby],
            "reported to the other end"
        );
        net.cut(0, true);
        net.run(4 * SECOND);
        // 20 Mbit/s for some 1.7 s are 4 MB.
        assert!(over_second(&net, sender) > 3_500, "sender {sender}: {:?}", sent(&net, sender));
        net.cut(0, false);
        net.run(5 * SECOND + SECOND);
        let before = over_second(&net, sender);
        net.run(9 * SECOND);
        assert!(over_second(&net, sender) - before < 100, "back on the first path");
        assert_whole(&net, sender);
        assert!(net.host::<Sink>(1 - sender).longest_gap < Duration::from_millis(333));
    }
}

#[test]
fn a_path_becomes_standby_in_mid_transfer() {
    for sender in [0, 1] {
        let mut net = network(sender, vec![path(0), path(1)], 4 * SECOND);
        net.run(2 * SECOND);
        net.act(0, |now, endpoint| assert_eq!(endpoint.set_role(now, "peer", "path0", PathRole::Standby), Ok(())));
        net.run(2 * SECOND + Duration::from_millis(200));
        let before = sent(&net, sender)[0].1;
        net.run(7 * SECOND);
        assert!(sent(&net, sender)[0].1 - before < 20_000, "control frames only");
        assert_whole(&net, sender);
    }
}

#[test]
fn paths_are_added_and_removed_in_mid_transfer_without_loss() {
    for sender in [0, 1] {
        let mut net = network(sender, vec![path(0)], 6 * SECOND);
        net.run(2 * SECOND);
        let added = PathConfig { alive: false, ..path(1) };
        net.act(0, |now, endpoint| assert_eq!(endpoint.add_path(now, "peer", &added), Ok(())));
        net.run(2 * SECOND + Duration::from_millis(200));
        let up = |net: &Network, end: usize| {
            let status = net.endpoint(end).status();
            status.peers[0].paths.iter().filter(|path| path.state.is_up()).count()
        };
        assert_eq!([up(&net, 0), up(&net, 1)], [2, 2], "within two round trips");
        net.act(0, |now, endpoint| assert_eq!(endpoint.remove_path(now, "peer", "path0"), Ok(())));
        net.run(2 * SECOND + Duration::from_millis(300));
        let status = net.endpoint(1).status();
        assert_eq!(
            status.peers[0].paths[0].state,
            PathState::Down(DownCause::Peer),
            "reported to the other end immediately"
        );
        net.run(4 * SECOND);
        // The slot is reused.
        net.act(0, |now, endpoint| {
            assert_eq!(endpoint.add_path(now, "peer", &PathConfig { alive: false, ..path(0) }), Ok(()))
        });
        net.run(9 * SECOND);
        assert_eq!([up(&net, 0), up(&net, 1)], [2, 2]);
        assert_whole(&net, sender);
        assert!(net.host::<Sink>(1 - sender).longest_gap < Duration::from_millis(100));
    }
}

#[test]
fn a_path_disabled_by_the_operator_is_used_by_neither_end() {
    let mut net = network(1, vec![path(0), path(1)], 4 * SECOND);
    net.run(2 * SECOND);
    net.act(0, |now, endpoint| assert_eq!(endpoint.enable_path(now, "peer", "path0", false), Ok(())));
    net.run(2 * SECOND + Duration::from_millis(100));
    let before = sent(&net, 1)[0].1;
    net.run(3 * SECOND);
    assert!(sent(&net, 1)[0].1 - before < 2_000, "probes only");
    net.act(0, |now, endpoint| assert_eq!(endpoint.enable_path(now, "peer", "path0", true), Ok(())));
    net.run(3 * SECOND + Duration::from_millis(300));
    assert!(net.endpoint(1).status().peers[0].paths[0].state.is_up());
    net.run(7 * SECOND);
    assert_whole(&net, 1);
}

/// Returns the bytes sent on the first path in one second by the end whose peer disabled it without an immediate
/// report.
fn sent_on_disabled_path(net: &mut Network, at: Duration) -> u64 {
    net.run(at);
    let before = sent(net, 1)[0].1;
    net.run(at + SECOND);
    sent(net, 1)[0].1 - before
}

#[test]
fn a_disabled_path_is_unused_though_its_status_frame_was_lost_or_could_not_be_sent() {
    for absence in [Duration::ZERO, SECOND] {
        let mut net = network(1, vec![path(0), path(1)], 8 * SECOND);
        net.run(2 * SECOND);
        net.cut(1, true);
        net.run(2 * SECOND + absence);
        net.act(0, |now, endpoint| assert_eq!(endpoint.enable_path(now, "peer", "path0", false), Ok(())));
        net.run(2 * SECOND + absence + Duration::from_millis(50));
        net.cut(1, false);
        let bytes = sent_on_disabled_path(&mut net, 5 * SECOND);
        assert!(bytes < 2_000, "{bytes} bytes after {absence:?}");
    }
}

#[test]
fn a_disabled_path_is_unused_by_a_restarted_peer() {
    let back = |number: usize| PathConfig { remote: Some(address(0, number)), ..path(number) };
    let (source, sink) = (Box::new(Source::new(mbit(20), 1_400, 8 * SECOND)) as _, Box::new(Sink::default()) as _);
    let ends = [endpoint(0, vec![path(0), path(1)]), endpoint(1, vec![back(0), back(1)])];
    let mut net = Network::between(Seed(1), ends, &[link(10), link(15)], [sink, source]);
    net.run(2 * SECOND);
    net.act(0, |now, endpoint| assert_eq!(endpoint.enable_path(now, "peer", "path0", false), Ok(())));
    net.run(2 * SECOND + Duration::from_millis(100));
    net.act(1, |_, endpoint| *endpoint = incarnation(1, vec![back(0), back(1)], 1));
    let bytes = sent_on_disabled_path(&mut net, 5 * SECOND);
    assert!(bytes < 2_000, "{bytes} bytes");
    assert!(over_second(&net, 1) > 1_000, "{:?}", sent(&net, 1));
}

#[test]
fn a_handshake_uses_a_path_that_is_added_while_the_others_are_down() {
    let mut net = network(0, vec![PathConfig { alive: false, ..path(0) }], 3 * SECOND);
    net.cut(0, true);
    net.run(SECOND);
    net.act(0, |now, endpoint| {
        assert_eq!(endpoint.add_path(now, "peer", &PathConfig { alive: false, ..path(1) }), Ok(()))
    });
    net.run(SECOND + Duration::from_millis(200));
    assert!(net.host::<Sink>(1).numbers.len() > 10, "no wait for the next try, which is 5 s after the first");
}
