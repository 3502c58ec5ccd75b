//! The data plane of the original MPT: an endpoint with a peer that uses keepalives, tested byte by byte.
#![allow(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

use std::net::SocketAddr;
use std::time::Duration;

use mpt_proto::PeerError;
use mpt_proto::config::{Config, KeepaliveConfig, LivenessConfig, PathConfig, PeerConfig, PlainFraming, Protocol};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::legacy::wire;
use mpt_proto::packet::{Merge, Offload};
use mpt_proto::path::{DownCause, LinkId, PathState};
use mpt_proto::time::Time;
use mpt_proto::wire::plain::{PROBE_LEN, Probe};

const SECOND: Duration = Duration::from_secs(1);

fn at(ms: u64) -> Time {
    Time::after(Duration::from_millis(ms))
}

fn remote(path: u8) -> SocketAddr {
    SocketAddr::from(([192, 168, 10 + path, 2], 4754))
}

/// Makes a connection of two paths with keepalives every second and a dead time of three seconds.
fn connection(name: &str, sequence: bool, alive: bool) -> PeerConfig {
    let (local, far) = ("10.77.0.1".parse().unwrap(), "10.77.0.2".parse().unwrap());
    let keepalives =
        KeepaliveConfig { every: Some(SECOND), dead: Some(3 * SECOND), local, remote: far, revives: false };
    let path = |number: u8| PathConfig {
        liveness: Some(LivenessConfig::Keepalives(keepalives)),
        alive,
        ..PathConfig::new(format!("v{number}"), LinkId(number), remote(number))
    };
    let plain = Protocol::Plain(PlainFraming { sequence, ..PlainFraming::default() });
    PeerConfig {
        networks: vec!["10.77.0.2/32".parse().unwrap(), "10.82.0.0/24".parse().unwrap()],
        local_networks: vec!["10.77.0.1/32".parse().unwrap(), "10.81.0.0/24".parse().unwrap()],
        resequence: None,
        probe: None,
        ..PeerConfig::new(name, plain, vec![path(0), path(1)])
    }
}

/// Makes a connection without keepalives and dead time, the default of the original.
fn silent(alive: bool) -> PeerConfig {
    let mut silent = connection("c", false, alive);
    for path in &mut silent.paths {
        let Some(LivenessConfig::Keepalives(keepalives)) = &mut path.liveness else { unreachable!() };
        (keepalives.every, keepalives.dead) = (None, None);
    }
    silent
}

fn endpoint(peers: Vec<PeerConfig>) -> Endpoint {
    Endpoint::new(at(0), &Config { identity: None, mtu: 1_440, merge: Merge::default(), peers })
}

/// Returns all datagrams that are sent at `now`, with their links.
fn sent(endpoint: &mut Endpoint, now: Time) -> Vec<(u8, Vec<u8>)> {
    endpoint.handle_deadline(now);
    let mut all = Vec::new();
    while let Some(batch) = endpoint.poll_transmit(now) {
        all.extend(batch.bytes().chunks(batch.segment).map(|datagram| (batch.link.0, datagram.to_vec())));
    }
    all
}

fn receive(endpoint: &mut Endpoint, now: Time, path: u8, datagram: &[u8]) {
    let received =
        RecvMeta { link: LinkId(path), from: remote(path), tos: 0, segment: datagram.len(), arrived_at: None };
    endpoint.handle_datagrams(now, &received, &mut datagram.to_vec());
}

fn keepalive() -> Vec<u8> {
    wire::keepalive("10.77.0.2".parse().unwrap(), "10.77.0.1".parse().unwrap())
}

/// Makes an empty UDP packet.
fn inner(source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend(source.into_iter().chain(destination));
    packet.extend([0, 1, 0, 2, 0, 8, 0, 0]);
    let sum = mpt_proto::packet::checksum::checksum(0, &packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn push(endpoint: &mut Endpoint, now: Time, mut packet: Vec<u8>) {
    let len = packet.len();
    endpoint.handle_inner(now, &mut packet, len, Offload::default());
}

fn events(endpoint: &mut Endpoint) -> Vec<(String, PathState)> {
    std::iter::from_fn(|| endpoint.poll_event().map(|(_, event)| (event.path, event.to))).collect()
}

#[test]
fn keepalives_leave_on_every_path_every_second_in_the_short_form() {
    let mut endpoint = endpoint(vec![connection("c", true, true)]);
    let expected = wire::keepalive("10.77.0.1".parse().unwrap(), "10.77.0.2".parse().unwrap());
    for second in 0..3 {
        let now = at(second * 1_000);
        (0..2).for_each(|path| receive(&mut endpoint, now, path, &keepalive()));
        assert_eq!(sent(&mut endpoint, now), [(0, expected.clone()), (1, expected.clone())], "second {second}");
    }
    assert_eq!(sent(&mut endpoint, at(2_500)), []);
}

#[test]
fn a_path_without_keepalives_is_dead_after_the_dead_time_and_revived_by_one() {
    let mut endpoint = endpoint(vec![connection("c", false, true)]);
    receive(&mut endpoint, at(1_000), 0, &keepalive());
    sent(&mut endpoint, at(2_999));
    assert_eq!(events(&mut endpoint), []);
    sent(&mut endpoint, at(3_000));
    assert_eq!(events(&mut endpoint), [("v1".into(), PathState::Down(DownCause::Silent))]);
    receive(&mut endpoint, at(3_500), 1, &keepalive());
    assert_eq!(events(&mut endpoint), [("v1".into(), PathState::Up)]);
}

#[test]
fn a_path_disabled_by_the_operator_sends_nothing_but_a_dead_path_sends_keepalives() {
    let mut endpoint = endpoint(vec![connection("c", false, true)]);
    sent(&mut endpoint, at(0));
    assert_eq!(endpoint.enable_path(at(1), "c", "v0", false), Ok(()));
    let links = |sent: Vec<(u8, Vec<u8>)>| sent.into_iter().map(|(link, _)| link).collect::<Vec<_>>();
    assert_eq!(links(sent(&mut endpoint, at(4_000))), [1], "v1 has been dead for a second");
    assert_eq!(endpoint.enable_path(at(4_001), "c", "v0", true), Ok(()));
    assert_eq!(links(sent(&mut endpoint, at(5_000))), [0, 1]);
}

#[test]
fn a_path_that_starts_down_waits_for_a_keepalive() {
    let mut endpoint = endpoint(vec![connection("c", false, false)]);
    assert!(!endpoint.status().peers[0].paths[0].state.is_up());
    receive(&mut endpoint, at(10), 0, &keepalive());
    assert!(endpoint.status().peers[0].paths[0].state.is_up());
}

#[test]
fn a_path_that_starts_down_waits_for_a_keepalive_without_a_dead_time_too() {
    let mut endpoint = endpoint(vec![silent(false)]);
    assert_eq!(endpoint.status().peers[0].paths[0].state, PathState::Down(DownCause::Silent));
    receive(&mut endpoint, at(10), 0, &keepalive());
    assert!(endpoint.status().peers[0].paths[0].state.is_up());
}

#[test]
fn the_operator_enables_a_path_that_the_peer_took_down() {
    let mut endpoint = endpoint(vec![silent(true)]);
    assert_eq!(endpoint.handle_report(at(1), "c", "v0", false), Ok(()));
    assert_eq!(endpoint.enable_path(at(2), "c", "v0", true), Ok(()));
    let [down, up] = [PathState::Down(DownCause::Peer), PathState::Up].map(|state| ("v0".into(), state));
    assert_eq!(events(&mut endpoint), [down, up]);
}

#[test]
fn a_probe_does_not_change_a_path_that_uses_keepalives() {
    let mut endpoint = endpoint(vec![silent(true)]);
    let mut datagram = vec![0; PROBE_LEN];
    Probe { reply: false, path: 0, version: 1, dead: 1, stamp: 0 }.encode(&mut datagram);
    receive(&mut endpoint, at(1), 0, &datagram);
    assert_eq!(events(&mut endpoint), []);
    assert_eq!(endpoint.status().peers[0].drops.of(Dropped::UnknownControl), 1);
}

/// A packet of the peer in a datagram.
fn data() -> Vec<u8> {
    [&[0, 0, 8, 0], inner([10, 77, 0, 2], [10, 77, 0, 1]).as_slice()].concat()
}

#[test]
fn a_path_that_the_peer_reported_down_stays_down_until_the_peer_reports_it_up_or_uses_it() {
    let mut endpoint = endpoint(vec![connection("c", false, true)]);
    let [down, up] = [PathState::Down(DownCause::Peer), PathState::Up].map(|state| ("v0".to_owned(), state));
    assert_eq!(endpoint.handle_report(at(1), "c", "v0", false), Ok(()));
    assert_eq!(events(&mut endpoint), std::slice::from_ref(&down));
    for second in 0..4 {
        let now = at(second * 1_000 + 500);
        (0..2).for_each(|path| receive(&mut endpoint, now, path, &keepalive()));
        assert_eq!(endpoint.handle_keepalive(now, "c", "v0"), Ok(()));
        let links = sent(&mut endpoint, now).into_iter().map(|(link, _)| link).collect::<Vec<_>>();
        assert!(links.contains(&0), "our keepalives prove our direction to the peer");
    }
    push(&mut endpoint, at(3_600), inner([10, 77, 0, 1], [10, 77, 0, 2]));
    assert_eq!(sent(&mut endpoint, at(3_600)).len(), 1);
    assert_eq!(events(&mut endpoint), []);
    assert_eq!(endpoint.handle_report(at(3_700), "c", "v0", true), Ok(()));
    assert_eq!(events(&mut endpoint), std::slice::from_ref(&up));

    assert_eq!(endpoint.handle_report(at(4_000), "c", "v0", false), Ok(()));
    receive(&mut endpoint, at(5_999), 0, &data());
    assert_eq!(events(&mut endpoint), [down], "this packet may have left before the report");
    receive(&mut endpoint, at(6_001), 0, &data());
    assert_eq!(events(&mut endpoint), [up]);
}

/// Returns what is to be announced of the first path.
fn announced(endpoint: &mut Endpoint) -> Vec<Option<bool>> {
    let events = std::iter::from_fn(|| endpoint.poll_event().map(|(_, event)| event));
    events.filter(|event| event.path == "v0").map(|event| event.own_view).collect()
}

#[test]
fn what_this_end_detects_is_announced_while_the_peer_has_the_path_down_too() {
    let mut endpoint = endpoint(vec![connection("c", false, true)]);
    assert_eq!(endpoint.handle_report(at(1), "c", "v0", false), Ok(()));
    assert_eq!(announced(&mut endpoint), [None]);
    sent(&mut endpoint, at(3_000));
    assert_eq!(announced(&mut endpoint), [Some(false)], "silent");
    receive(&mut endpoint, at(3_500), 0, &keepalive());
    assert_eq!(announced(&mut endpoint), [Some(true)], "the peer waits for this report");
    assert!(!endpoint.status().peers[0].paths[0].state.is_up());
    assert_eq!(endpoint.handle_report(at(4_000), "c", "v0", true), Ok(()));
    assert_eq!(announced(&mut endpoint), [None]);
    assert!(endpoint.status().peers[0].paths[0].state.is_up());
}

#[test]
fn a_keepalive_revives_a_path_that_the_peer_reported_down_if_configured_so() {
    let mut config = connection("c", false, true);
    for path in &mut config.paths {
        let Some(LivenessConfig::Keepalives(keepalives)) = &mut path.liveness else { unreachable!() };
        keepalives.revives = true;
    }
    let mut endpoint = endpoint(vec![config]);
    assert_eq!(endpoint.handle_report(at(1), "c", "v0", false), Ok(()));
    assert_eq!(events(&mut endpoint), [("v0".into(), PathState::Down(DownCause::Peer))]);
    receive(&mut endpoint, at(2), 0, &keepalive());
    assert_eq!(events(&mut endpoint), [("v0".into(), PathState::Up)]);
    assert_eq!(endpoint.handle_report(at(3), "c", "v7", false), Err(PeerError::NoSuchPath));
    assert_eq!(endpoint.handle_report(at(3), "x", "v0", false), Err(PeerError::NoSuchPeer));
}

#[test]
fn other_control_messages_on_the_data_port_are_counted_and_change_nothing() {
    let mut endpoint = endpoint(vec![connection("c", false, false)]);
    for opcode in (0xa0..=0xff).filter(|opcode| *opcode != 0xa1) {
        let mut datagram = keepalive();
        datagram[4] = opcode;
        receive(&mut endpoint, at(1), 0, &datagram);
    }
    let status = endpoint.status();
    assert_eq!(status.peers[0].drops.of(Dropped::UnknownControl), 95);
    assert!(!status.peers[0].paths[0].state.is_up());
}

#[test]
fn both_source_and_destination_must_belong_to_the_connection() {
    let mut endpoint = endpoint(vec![connection("c", true, true)]);
    sent(&mut endpoint, at(0));
    let (host, site, unknown) = ([10, 77, 0, 1], [10, 81, 0, 9], [10, 99, 0, 1]);
    let (far_host, far_site) = ([10, 77, 0, 2], [10, 82, 0, 9]);
    for (source, destination) in [(host, far_host), (host, far_site), (site, far_host), (site, far_site)] {
        push(&mut endpoint, at(1), inner(source, destination));
    }
    push(&mut endpoint, at(1), inner(unknown, far_host));
    push(&mut endpoint, at(1), inner(host, unknown));
    let numbers: Vec<_> = sent(&mut endpoint, at(1)).iter().map(|(_, d)| (d[0], d[7])).collect();
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [(0x10, 0), (0x10, 1), (0x10, 2), (0x10, 3)], "one counter for both paths");
    assert_eq!(endpoint.status().drops.of(Dropped::NoRoute), 2);
}

#[test]
fn ecn_is_not_set_on_packets_to_an_end_that_ignores_it() {
    let mut endpoint = endpoint(vec![connection("c", false, true)]);
    sent(&mut endpoint, at(0));
    let mut packet = inner([10, 77, 0, 1], [10, 77, 0, 2]);
    packet[1] = 0xb8 | 0b10;
    packet[10..12].copy_from_slice(&[0, 0]);
    let sum = mpt_proto::packet::checksum::checksum(0, &packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    push(&mut endpoint, at(1), packet.clone());
    let batch = endpoint.poll_transmit(at(1)).unwrap();
    assert_eq!(batch.tos, 0xb8, "DSCP is carried, ECN is not");
    assert_eq!(batch.bytes()[4..], packet, "the packet is unchanged");
}

#[test]
fn a_packet_with_the_protocol_type_of_its_connection_is_accepted() {
    let mut endpoint = endpoint(vec![connection("c", false, true)]);
    let packet = inner([10, 82, 0, 9], [10, 81, 0, 9]);
    receive(&mut endpoint, at(1), 0, &[&[0, 0, 0x86, 0xdd], packet.as_slice()].concat());
    assert_eq!(endpoint.poll_delivery().unwrap().bytes, packet);
}

#[test]
fn peers_are_added_and_removed_without_affecting_others() {
    let mut endpoint = endpoint(vec![connection("first", false, true)]);
    let mut second = connection("second", true, true);
    second.networks = vec!["10.77.0.3/32".parse().unwrap()];
    second.paths.iter_mut().for_each(|path| path.link = LinkId(path.link.0 + 2));
    assert_eq!(endpoint.add_peer(at(0), &second), 1);
    sent(&mut endpoint, at(0));

    assert_eq!(endpoint.remove_peer("first"), Ok(()));
    assert_eq!(endpoint.remove_peer("first"), Err(PeerError::NoSuchPeer));
    push(&mut endpoint, at(1), inner([10, 77, 0, 1], [10, 77, 0, 3]));
    push(&mut endpoint, at(1), inner([10, 77, 0, 1], [10, 77, 0, 2]));

    let sent = sent(&mut endpoint, at(1));
    assert_eq!(sent.iter().map(|(link, _)| *link).collect::<Vec<_>>(), [2]);
    assert_eq!(endpoint.status().drops.of(Dropped::NoRoute), 1);
    receive(&mut endpoint, at(2), 0, &keepalive());
    assert_eq!(endpoint.status().drops.of(Dropped::UnknownSource), 1);
    assert!(endpoint.next_deadline().is_some_and(|(at_, _)| at_ <= at(1_000)));
}
