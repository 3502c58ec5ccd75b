//! A path whose path MTU is smaller than its interface's MTU.

use crate::{
    rig::{Rig, inside, text},
    transfer::Transfer,
};
use mpt_lab::topology::{Family, Host, address, interface};
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
        let device = crate::rig::sh(rig.hosts.host(host), "cat /sys/class/net/mpt0/mtu");
        assert_eq!(device.trim(), found.to_string());
        assert_eq!(rig.path(host, 1)["up"], true);
    }
    let transfer = Transfer::start(&rig, Family::V4);
    transfer.wait_for(&rig, 3_000_000);
    assert!(rig.path(Host::A, 1)["sent_bytes"].as_u64() > Some(300_000), "both paths are used");
    transfer.finish();
}
