//! Invalid datagrams are dropped, counted by reason, and never answered.

use crate::{
    capture::Capture,
    rig::{Plan, Rig},
    stranger::RawSender,
};
use mpt_lab::topology::{Family, Host, address};
use mpt_proto::packet::ip::{Ip, Version, set_tos};
use mpt_proto::wire::gre::{self, Gre};
use mpt_sim::host::numbered;
use serde_json::{Map, Value, json};

/// Returns a valid IPv4 packet from host A to host B inside the tunnel.
fn packet(tos: u8) -> Vec<u8> {
    let mut packet = numbered(0, 100);
    set_tos(&mut packet, Version::V4, tos);
    packet
}

/// Returns a packet after a GRE header.
fn after_gre(header: Gre, inner: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; header.len()];
    datagram.extend_from_slice(inner);
    header.encode(&mut datagram);
    datagram
}

const BARE: Gre = Gre { protocol: gre::IPV4, checksum: false, key: None, sequence: None };

/// Returns `bytes` with the byte at `at` replaced.
fn with(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

fn foreign() -> Vec<u8> {
    with(packet(0), 12, 11)
}

/// Returns invalid datagrams with their outer type of service and the expected drop reason.
fn bad() -> Vec<(&'static str, u8, Vec<u8>)> {
    let good = || after_gre(BARE, &packet(0));
    vec![
        ("truncated", 0, vec![]),
        ("truncated", 0, vec![0]),
        ("truncated", 0, good()[..3].to_vec()),
        ("truncated", 0, after_gre(Gre { sequence: Some(1), ..BARE }, &[])[..6].to_vec()),
        ("truncated", 0, vec![0x00, 0x00, 0x88, 0xb5, 1]),
        ("bad_gre", 0, with(good(), 1, 0x01)),
        ("bad_gre", 0, with(good(), 0, 0x40)),
        ("bad_gre", 0, vec![0xff; 65_000]),
        ("unknown_protocol", 0, after_gre(Gre { protocol: 0x6558, ..BARE }, &packet(0))),
        ("unknown_protocol", 0, [&[0x00, 0x00, 0x88, 0xb5, 9][..], &[0; 15]].concat()),
        ("bad_checksum", 0, with(after_gre(Gre { checksum: true, ..BARE }, &packet(0)), 20, 0xaa)),
        ("wrong_key", 0, after_gre(Gre { key: Some(1), ..BARE }, &packet(0))),
        ("bad_inner", 0, after_gre(BARE, &[])),
        // A keepalive of the original MPT.
        ("unknown_control", 0, after_gre(BARE, &[&[0xa1, 0, 0, 0, 0, 4, 0, 0][..], &[0; 32]].concat())),
        ("bad_inner", 0, with(good(), 4 + 2, 0xff)),
        ("bad_inner", 0, after_gre(BARE, &[0; 60_000])),
        ("foreign_source", 0, after_gre(BARE, &foreign())),
        ("ce_on_not_ect", 3, good()),
    ]
}

/// Returns a plan without probes and with only its own networks, so that anything that host B sends is an answer.
fn plan_without_probes(outer: Family) -> Plan {
    Plan::over(&[outer]).on(Host::B, "keepalive = \"off\"").peer("networks = [\"10.77.0.0/24\", \"fd77::/64\"]")
}

#[test]
fn bad_datagrams_are_counted_by_reason_and_never_answered() {
    for outer in [Family::V4, Family::V6] {
        let Some(mut rig) = Rig::build(&format!("bad{outer:?}"), &["delay=1ms"]) else { return };
        rig.launch(Host::B, &plan_without_probes(outer));
        let mut replies = Capture::open(&rig.hosts.a, "eth1");
        let stranger = RawSender::at(&rig.hosts.a, address(Host::A, 0, outer), address(Host::B, 0, outer));
        let mut expected = Map::new();
        for (name, tos, datagram) in bad() {
            stranger.send(tos, &datagram);
            let count = expected.get(name).and_then(Value::as_u64).unwrap_or(0) + 1;
            expected.insert(name.into(), json!(count));
        }
        let sum = |drops: &Map<String, Value>| drops.values().filter_map(Value::as_u64).sum::<u64>();
        rig.wait_until("all are counted", |rig| sum(&rig.drops(Host::B)) >= sum(&expected));
        assert_eq!(rig.drops(Host::B), expected, "over {outer:?}");
        assert_eq!(rig.path(Host::B, 0)["sent_packets"], 0);
        assert_eq!(rig.status(Host::B)["peers"][0]["delivered_packets"], 0);
        assert_eq!(answers(&mut replies, outer), 0, "over {outer:?}");
    }
}

#[test]
fn datagrams_from_an_unexpected_address_are_counted_and_never_answered() {
    let Some(mut rig) = Rig::build("stranger", &["delay=1ms"]) else { return };
    rig.launch(Host::B, &plan_without_probes(Family::V4));
    rig.hosts.a.ip("address add 192.168.11.77/24 dev eth1").expect("an address");
    let mut replies = Capture::open(&rig.hosts.a, "eth1");
    let stranger = RawSender::at(&rig.hosts.a, "192.168.11.77".parse().expect("it"), address(Host::B, 0, Family::V4));
    let probe = [&[0x00, 0x00, 0x88, 0xb5, 1][..], &[0; 15]].concat();
    for datagram in [after_gre(BARE, &packet(0)), probe, vec![0xff; 1_000], vec![]] {
        stranger.send(0, &datagram);
    }
    rig.wait_until("all are counted", |rig| rig.status(Host::B)["drops"] == json!({"unknown_source": 4}));
    assert_eq!(answers(&mut replies, Family::V4), 0);
    assert_eq!(rig.path(Host::B, 0)["received_packets"], 0);
}

/// Counts UDP and ICMP packets that host B sent over the path; neighbour discovery does not count.
fn answers(replies: &mut Capture, outer: Family) -> usize {
    let from_b = address(Host::B, 0, outer);
    let packets = replies.frames().iter().filter_map(|frame| Some((Ip::parse(&frame[14..]).ok()?, &frame[14..])));
    let is_answer = |(ip, bytes): &(Ip, &[u8])| {
        let kind = bytes.get(ip.transport).copied().unwrap_or(0);
        ip.source == from_b && !(ip.protocol == 58 && (130..=143).contains(&kind))
    };
    packets.filter(is_answer).count()
}
