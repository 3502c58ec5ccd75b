//! A path whose path MTU is smaller than its interface's MTU.

use crate::{
    native_host::{B, Native, OTHER, Third},
    rig::{Rig, inside, output, sh, text},
    transfer::Transfer,
};
use mpt_lab::topology::{Family, Host, address, interface};
use mpt_proto::crypto::keys::KeyPair;
use std::io::Write as _;
use std::process::Stdio;

/// IPv4, UDP and native mode's own headers.
const HEADERS: u64 = 63;
const NARROW: u64 = 1_480;

/// Returns the output of `mpt key`.
fn key(rig: &Rig, what: &str, input: &str) -> String {
    let mut command = rig.program(Host::A);
    let command = command.args(["key", what]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("mpt runs");
    child.stdin.take().expect("its stdin").write_all(input.as_bytes()).expect("it reads");
    text(&child.wait_with_output().expect("it ends").stdout).trim().to_owned()
}

fn config(host: Host, private: &str, public: &str) -> String {
    let far = if host == Host::A { Host::B } else { Host::A };
    let inner = inside(host, Family::V4);
    let path = |path: usize| {
        let (local, remote) = (address(host, path, Family::V4), address(far, path, Family::V4));
        let interface = interface(path);
        format!("[[peer.path]]\ninterface = \"{interface}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n")
    };
    let (first, second) = (path(0), path(1));
    format!(
        "private_key = \"{private}\"\naddress = [\"{inner}/24\"]\n[[peer]]\npublic_key = \"{public}\"\n{first}{second}"
    )
}

#[test]
fn a_path_mtu_below_the_interface_mtu_lowers_the_tunnels_mtu() {
    let narrow = format!("rate=50mbit,delay=3ms,mtu={NARROW}B");
    let Some(mut rig) = Rig::build("sizes", &["rate=50mbit,delay=3ms", &narrow]) else { return };
    let private = [(); 2].map(|()| key(&rig, "new", ""));
    let public = private.each_ref().map(|private| key(&rig, "public", private));
    for (host, own, other) in [(Host::A, 0, 1), (Host::B, 1, 0)] {
        rig.launch_with(host, &config(host, &private[own], &public[other]));
    }
    for host in [Host::A, Host::B] {
        rig.wait_until("the narrow path is found out", |rig| rig.path(host, 1)["mtu_bytes"].is_u64());
        let found = rig.path(host, 1)["mtu_bytes"].as_u64().expect("a number");
        assert!(found <= NARROW - HEADERS && found + 4 >= NARROW - HEADERS, "{found}");
        rig.wait_until("the tunnel follows", |rig| rig.status(host)["mtu_bytes"] == found);
        let device = sh(rig.hosts.host(host), "cat /sys/class/net/mpt0/mtu");
        assert_eq!(device.trim(), found.to_string());
        assert_eq!(rig.path(host, 1)["up"], true);
    }
    let transfer = Transfer::start(&rig, Family::V4);
    transfer.wait_for(&rig, 3_000_000);
    assert!(rig.path(Host::A, 1)["sent_bytes"].as_u64() > Some(300_000), "both paths are used");
    transfer.finish();
}

/// The second client's path carries less. The server's other peers keep their MTU.
#[test]
fn a_peer_that_carries_less_lowers_the_mtu_of_its_own_routes_alone() {
    let Some(mut rig) = Rig::build("narrow-peer", &["delay=1ms", "delay=1ms,mtu=1400B"]) else { return };
    let second = "[[peer]]\npublic_key = \"KEY\"\nnetworks = [\"10.77.0.3/32\", \"fd77::3/128\", \"10.80.0.0/16\"]\n";
    let second = second.replace("KEY", &KeyPair::generate([OTHER; 32]).public().to_string());
    let server = Native::responder().on_top("routes = [\"10.80.0.0/16\"]").text() + &second;
    rig.launch_with(Host::B, &server);
    let path = |path: usize| {
        let (interface, remote) = (interface(path), address(Host::B, path, Family::V4));
        format!("[[peer.path]]\ninterface = \"{interface}\"\nremote = \"{remote}\"\n")
    };
    rig.launch_with(Host::A, &Native::initiator(&path(0)).text());
    let narrow = Native::initiator(&path(1)).keys(OTHER, B).addresses("10.77.0.3/24", "fd77::3/64");
    let _second = Third::start(&rig, &rig.hosts.a, "mpt1", &narrow);
    // 1400 less IPv6, UDP and native mode's own headers; the search ends within four bytes.
    let mtu_to = |rig: &Rig, to: &str| {
        let route = sh(&rig.hosts.b, &format!("ip route get {to}"));
        let mtu = route.split_whitespace().skip_while(|word| *word != "mtu").nth(1);
        mtu.map(|mtu| mtu.parse::<u64>().expect("a number"))
    };
    let is_narrow = |mtu: Option<u64>| mtu.is_some_and(|mtu| (1_400 - HEADERS - 4..=1_400 - HEADERS).contains(&mtu));
    for to in ["10.77.0.3", "fd77::3", "10.80.1.1"] {
        rig.wait_until(&format!("the route to {to} has its MTU"), |rig| is_narrow(mtu_to(rig, to)));
    }
    assert_eq!(["10.77.0.1", "fd77::1", "10.77.0.9"].map(|to| mtu_to(&rig, to)), [None; 3]);
    let device = sh(&rig.hosts.b, "cat /sys/class/net/mpt0/mtu");
    assert_eq!(device.trim(), rig.status(Host::B)["mtu_bytes"].to_string());
    // The whole MTU to one peer, and a report of the MTU to the other.
    let payload = device.trim().parse::<usize>().expect("a number") - 28;
    let ping = |to: &str, pmtu: &str| {
        let size = payload.to_string();
        let arguments = ["-n", "-c", "2", "-i", "0.2", "-W", "2", "-M", pmtu, "-s", &size, to];
        output(rig.hosts.b.command("ping").args(arguments))
    };
    assert!(ping("10.77.0.1", "do").status.success());
    let refused = ping("10.77.0.3", "do");
    assert!(!refused.status.success() && text(&refused.stderr).contains("mtu="), "{refused:?}");
}
