//! A host behind the tunnel: its packets have the size of its own network, which the tunnel must adapt.

use crate::{
    capture::Capture,
    rig::{Plan, Rig, inside, output, sh, text},
    transfer::Transfer,
};
use mpt_lab::topology::{Family, Host, Netns};
use mpt_proto::packet::ip::{Ip, TCP};

/// Creates a host behind host A, on an own network that host B has a route to.
fn behind_a(rig: &Rig) -> Netns {
    let name = rig.hosts.a.name().replace("-a", "-c");
    let guest = Netns::create(&name).expect("a namespace");
    rig.hosts
        .a
        .ip(&format!(
            "link add lan type veth peer name eth0 netns {name}\nlink set lan up\naddress add 10.99.0.1/24 dev lan"
        ))
        .expect("a network");
    guest.ip("link set eth0 up\naddress add 10.99.0.2/24 dev eth0\nroute add default via 10.99.0.1").expect("a host");
    rig.hosts.a.sysctl(&[("net/ipv4/ip_forward", "1")]).expect("a router");
    guest
}

#[test]
fn the_mss_of_a_forwarded_host_is_clamped() {
    let plan = Plan::over(&[Family::V4]).on(Host::B, "routes = [\"10.99.0.0/24\"]");
    let Some(rig) = Rig::up("clamp", &["rate=200mbit,queue=100ms"], &plan) else { return };
    let guest = behind_a(&rig);
    // With offloads the guest leaves segmentation and checksums to the tunnel; without them it does both itself.
    for offloads in ["on", "off"] {
        sh(&guest, &format!("ethtool -K eth0 tx {offloads} >/dev/null; ethtool -K eth0 tso {offloads} >/dev/null"));
        let mut inner = Capture::open(&rig.hosts.b, "mpt0");
        let transfer = Transfer::between(&guest, &rig.hosts.b, inside(Host::B, Family::V4));
        transfer.wait_for(&rig, 2_000_000);
        transfer.finish();
        let offered: Vec<u16> = inner.packets().iter().filter_map(|(ip, bytes)| offered_mss(ip, bytes)).collect();
        // MTU 1464 minus IPv4 and TCP headers; the guest's own link of 1500 bytes would give 1460.
        assert_eq!(offered, [1_464 - 40], "offloads {offloads}");
    }
}

#[test]
fn a_forwarded_packet_that_is_too_large_is_answered_with_the_size_that_fits() {
    let plan = Plan::over(&[Family::V4]).on(Host::B, "routes = [\"10.99.0.0/24\"]");
    let Some(rig) = Rig::up("toobig", &["delay=1ms"], &plan) else { return };
    let guest = behind_a(&rig);
    let ping = |bytes: usize| {
        let size = (bytes - 28).to_string();
        let to = inside(Host::B, Family::V4).to_string();
        let told = output(guest.command("ping").args(["-n", "-c", "1", "-W", "2", "-M", "do", "-s", &size, &to]));
        (told.status.success(), text(&told.stdout) + &text(&told.stderr))
    };
    assert!(ping(1_464).0);
    let (answered, said) = ping(1_465);
    assert!(!answered && said.contains("mtu") && said.contains("1464"), "{said}");
}

/// Returns the MSS option of a SYN, which Linux puts first.
fn offered_mss(ip: &Ip, packet: &[u8]) -> Option<u16> {
    let tcp = packet.get(ip.transport..).filter(|_| ip.protocol == TCP)?;
    let is_syn = tcp.get(13)? & 0x12 == 0x02;
    (is_syn && tcp.get(20..22)? == [2, 4]).then(|| u16::from_be_bytes([tcp[22], tcp[23]]))
}
