//! This program at one end and an earlier one at the other: `scripts/check-versions` builds that and runs these tests.

use crate::{
    native_host::Native,
    rig::{Rig, inside, text},
};
use mpt_lab::topology::{Family, Host, address, interface};
use std::{env, process::Command, process::Stdio};

#[test]
#[ignore = "needs an earlier program: scripts/check-versions"]
fn a_predecessor_that_initiates_carries_traffic_both_ways() {
    carries_traffic("old-first", Host::A);
}

#[test]
#[ignore = "needs an earlier program: scripts/check-versions"]
fn a_predecessor_that_responds_carries_traffic_both_ways() {
    carries_traffic("old-second", Host::B);
}

/// Runs a tunnel over two paths with the earlier program at the host `old`: ping and TCP in both directions and IP
/// versions, the failure of a path, and a restart of each end.
fn carries_traffic(test: &str, old: Host) {
    let Some(mut rig) = Rig::build(test, &["rate=50mbit,delay=5ms", "rate=20mbit,delay=10ms"]) else { return };
    let path = |path: usize| {
        let (interface, remote) = (interface(path), address(Host::B, path, Family::V4));
        format!("[[peer.path]]\ninterface = \"{interface}\"\nremote = \"{remote}\"\n")
    };
    launch(&mut rig, Host::B, old, &Native::responder());
    launch(&mut rig, Host::A, old, &Native::initiator(&(path(0) + &path(1))));
    check(&rig, "at the start");
    rig.hosts.a.ip("link set eth1 down").expect("an interface");
    check(&rig, "after a failure");
    rig.hosts.a.ip("link set eth1 up").expect("an interface");
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    launch(&mut rig, Host::B, old, &Native::responder());
    check(&rig, "after a restart of the responder");
    launch(&mut rig, Host::A, old, &Native::initiator(&(path(0) + &path(1))));
    check(&rig, "after a restart of the initiator");
    for host in [Host::A, Host::B] {
        // Neither end misunderstands the other.
        let wrong =
            ["truncated", "malformed", "unknown_protocol", "bad_gre", "bad_inner", "unknown_context", "bad_mac"];
        let drops = rig.drops(host);
        let other: Vec<_> = drops.iter().filter(|(reason, _)| wrong.contains(&reason.as_str())).collect();
        assert!(other.is_empty(), "{host:?}: {other:?}");
    }
}

fn launch(rig: &mut Rig, host: Host, old: Host, config: &Native) {
    let program = if host == old { predecessor(rig, host) } else { rig.program(host) };
    rig.launch_by(host, program, &config.text());
}

fn predecessor(rig: &Rig, host: Host) -> Command {
    let program = env::var("MPT_PREDECESSOR").expect("scripts/check-versions sets MPT_PREDECESSOR");
    let mut command = rig.hosts.host(host).command(&program);
    command.env("MPT_RUN_DIR", rig.run_dir(host)).env("MPT_STATE_DIR", rig.state_dir(host));
    command
}

fn check(rig: &Rig, when: &str) {
    for family in [Family::V4, Family::V6] {
        rig.wait_for_answer(&[], family, when);
        rig.wait_until(when, |rig| rig.ping(Host::B, &[], inside(Host::A, family)));
    }
    for direction in [&["-t", "1"][..], &["-t", "1", "-R"]] {
        let mut server = rig.hosts.b.command("iperf3");
        let mut server = server.args(["-s", "-1"]).stdout(Stdio::null()).spawn().expect("iperf3");
        rig.wait_until("iperf3 listens", |rig| !rig.hosts.b.sh("ss -Hltn sport = :5201").expect("ss").is_empty());
        let client = rig.hosts.a.command("iperf3").args(["-c", "10.77.0.2"]).args(direction).output().expect("iperf3");
        assert!(client.status.success(), "{when}: {}", text(&client.stdout));
        assert!(server.wait().expect("iperf3 ends").success());
    }
}
