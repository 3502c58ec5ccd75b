//! Paths that are disabled, unplugged and cut during a transfer, which must lose or damage no byte.

use crate::{
    rig::{Plan, Rig, inside, sh},
    transfer::Transfer,
};
use mpt_lab::topology::{Family, Host};

const SPECS: [&str; 2] = ["rate=50mbit,delay=3ms", "rate=50mbit,delay=3ms"];
const MEGABYTE: u64 = 1_000_000;

fn plan() -> Plan {
    Plan::over(&[Family::V4, Family::V6])
}

fn sent(rig: &Rig, path: usize) -> u64 {
    rig.path(Host::A, path)["sent_bytes"].as_u64().expect("a number")
}

/// Waits until the first path is down on both hosts for these reasons.
fn wait_until_down(rig: &Rig, causes: [&[&str]; 2]) {
    for (host, causes) in [Host::A, Host::B].into_iter().zip(causes) {
        rig.wait_until(&format!("path 1 of {host:?} is down: {causes:?}"), |rig| {
            let path = rig.path(host, 0);
            path["up"] == false && causes.iter().any(|cause| path["cause"] == *cause)
        });
    }
}

/// The transfer continues over the second path while the first is down, and uses both when it is back.
fn survives(rig: &Rig, take_down: impl FnOnce(), causes: [&[&str]; 2], bring_back: impl FnOnce()) {
    let transfer = Transfer::start(rig, Family::V4);
    transfer.wait_for(rig, MEGABYTE);
    take_down();
    wait_until_down(rig, causes);
    let before = [sent(rig, 0), sent(rig, 1)];
    transfer.wait_for(rig, 3 * MEGABYTE);
    // Probes of a path that is down are at most some hundred bytes per second.
    assert!(sent(rig, 0) - before[0] < 20_000, "nothing but probes: {} bytes", sent(rig, 0) - before[0]);
    // Data in flight when the first path was found to be down arrives as well.
    assert!(sent(rig, 1) - before[1] > 2 * MEGABYTE);
    bring_back();
    for host in [Host::A, Host::B] {
        rig.wait_until(&format!("path 1 of {host:?} is up"), |rig| rig.path(host, 0)["up"] == true);
    }
    let before = sent(rig, 0);
    rig.wait_until("path 1 carries traffic", |rig| sent(rig, 0) > before + MEGABYTE);
    transfer.finish();
}

#[test]
fn a_path_disabled_by_command_hands_its_traffic_over() {
    let Some(rig) = Rig::up("command", &SPECS, &plan()) else { return };
    let order = |action| assert!(rig.mpt(Host::A, &["path", action, "eth1"]).status.success());
    survives(&rig, || order("down"), [&["operator"], &["peer"]], || order("up"));
    assert_eq!(rig.mpt(Host::A, &["path", "down", "eth9"]).status.code(), Some(1), "there is no such path");
}

#[test]
fn a_transfer_survives_a_pulled_cable_and_its_return() {
    let Some(rig) = Rig::up("cable", &SPECS, &plan()) else { return };
    let pull = || rig.hosts.unplug(0, Host::A).expect("pulled");
    let plug = || rig.hosts.plug(0, Host::A).expect("plugged");
    survives(&rig, pull, [&["carrier"], &["peer", "silent"]], plug);
}

#[test]
fn a_transfer_survives_a_blackhole() {
    let Some(rig) = Rig::up("hole", &SPECS, &plan()) else { return };
    let either: &[&str] = &["silent", "peer"];
    survives(&rig, || rig.hosts.cut(0), [either, either], || rig.hosts.restore(0));
}

#[test]
fn with_every_path_down_packets_are_counted_and_the_first_path_to_return_carries_them() {
    let Some(rig) = Rig::up("all", &SPECS, &plan()) else { return };
    for path in ["eth1", "eth2"] {
        assert!(rig.mpt(Host::A, &["path", "down", path]).status.success());
    }
    assert!(!rig.ping(Host::A, &[], inside(Host::B, Family::V4)));
    assert!(rig.status(Host::A)["peers"][0]["drops"]["no_path"].as_u64() >= Some(3));
    assert!(rig.mpt(Host::A, &["path", "up", "eth2"]).status.success());
    rig.wait_for_answer(&[], Family::V4, "one path is back");
}

/// The kernel queues a limited number of netlink messages per process.
#[test]
fn an_interface_removed_while_netlink_messages_were_lost_is_noticed() {
    let Some(rig) = Rig::up("lost-news", &SPECS, &Plan::over(&[Family::V4; 2]).on(Host::A, "keepalive = \"off\""))
    else {
        return;
    };
    let pid = rig.status(Host::A)["pid"].as_u64().expect("a number");
    let news = "address add 10.9.4.1/24 dev lo\naddress delete 10.9.4.1/24 dev lo\n".repeat(4_000);
    rig.hosts.a.sh(&format!("kill -STOP {pid}")).expect("a daemon that is held up");
    rig.hosts.a.ip(&news).expect("more news than are kept");
    rig.hosts.a.ip("link delete eth2").expect("an interface less");
    rig.hosts.a.sh(&format!("kill -CONT {pid}")).expect("a daemon that goes on");
    rig.wait_until("the path is down", |rig| rig.path(Host::A, 1)["cause"] == "carrier");
    assert_eq!(rig.path(Host::A, 0)["up"], true);
}

/// A recreated interface is up before it has an address.
#[test]
fn a_socket_follows_a_recreated_interface() {
    let Some(mut rig) = Rig::build("address-last", &SPECS[..1]) else { return };
    let made = "link add usb0 type veth peer name usb1\nlink set usb1 up\nlink set usb0 up";
    let address = "address add 10.9.0.1/24 dev usb0";
    let sockets = |rig: &Rig| sh(&rig.hosts.a, "ss -Huan");
    rig.hosts.a.ip(&format!("{made}\n{address}")).expect("an interface");
    let path = "[[peer.path]]\ninterface = \"usb0\"\nlocal = \"10.9.0.1\"\nremote = \"10.9.0.2\"\n";
    rig.launch_with(Host::A, &format!("mode = \"plain\"\naddress = [\"10.77.0.1/24\"]\n[[peer]]\n{path}"));
    assert!(sockets(&rig).contains("10.9.0.1%usb0"));
    rig.hosts.a.ip(&format!("link delete usb0\n{made}")).expect("another interface");
    rig.wait_until("it is heard of", |rig| rig.logged(Host::A, "cannot use the returned interface") > 0);
    assert!(!sockets(&rig).contains("10.9.0.1%usb0"));
    rig.hosts.a.ip(address).expect("its address");
    rig.wait_until("the socket is on it", |rig| sockets(rig).contains("10.9.0.1%usb0"));
}
