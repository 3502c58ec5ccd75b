//! Tests of hosts in real namespaces. They need root and are skipped without it.

use mpt_lab::{
    error::LabError,
    topology::{Family, Host, Hosts, Netns, Topology, address, interface},
    traffic::{
        background::Background,
        bulk::{Bulk, Route},
        iperf::{Iperf, IperfLoad},
        mptcp,
        ping::Ping,
    },
};
use mpt_sim::{link::PathSpec, seed::Seed};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

const MS: Duration = Duration::from_millis(1);

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

fn build(test: &str, specs: &[&str]) -> Topology {
    let paths: Vec<PathSpec> = specs.iter().map(|spec| spec.parse().expect("a valid path")).collect();
    Topology::build(&format!("{}-{test}", Topology::unique_name()), &paths, Seed(1)).expect("hosts")
}

fn ping(topology: &Hosts, path: usize, family: Family, count: u32) -> Vec<Duration> {
    let (from, to) = (address(Host::A, path, family), address(Host::B, path, family));
    let ping = Ping { from: Some(from), to, count, interval: MS * 10 };
    ping.run(&topology.a).expect("ping runs")
}

#[test]
fn every_path_has_its_own_delay_in_both_ip_versions() {
    if !is_root() {
        return;
    }
    let topology = build("delay", &["delay=10ms", "delay=30ms | delay=10ms"]);
    for (path, expected) in [(0, MS * 20), (1, MS * 40)] {
        for family in [Family::V4, Family::V6] {
            let best = ping(&topology, path, family, 5).into_iter().min().expect("an answer");
            assert!(best >= expected - MS / 5 && best < expected + MS * 5, "path {path} {family:?}: {best:?}");
        }
    }
}

#[test]
fn direct_paths_answer_at_their_own_addresses_and_keep_the_offloads_of_the_kernel() {
    if !is_root() {
        return;
    }
    let hosts = Hosts::direct(&format!("{}-direct", Topology::unique_name()), 2).expect("hosts");
    for path in 0..hosts.paths() {
        for family in [Family::V4, Family::V6] {
            assert_eq!(ping(&hosts, path, family, 1).len(), 1, "path {path} {family:?}");
        }
        for netns in [&hosts.a, &hosts.b] {
            let features = netns.sh(&format!("ethtool -k {}", interface(path))).expect("ethtool runs");
            assert!(features.contains("tcp-segmentation-offload: on"), "{features}");
            assert!(features.contains("tx-udp-segmentation: on"), "{features}");
        }
        let received = hosts.b.sh(&format!("cat /sys/class/net/{}/statistics/rx_packets", interface(path)));
        assert!(received.expect("a counter").trim().parse::<u64>().expect("a number") >= 2, "path {path}");
    }
}

#[test]
fn a_cut_path_drops_and_a_restored_one_delivers() {
    if !is_root() {
        return;
    }
    let topology = build("cut", &["delay=1ms", "delay=1ms"]);
    topology.cut(1);
    assert!(ping(&topology, 1, Family::V4, 2).is_empty());
    // On a busy machine an answer may come too late.
    assert!(!ping(&topology, 0, Family::V4, 5).is_empty(), "the other path is not touched");
    topology.restore(1);
    assert!(!ping(&topology, 1, Family::V4, 5).is_empty());
}

#[test]
fn a_pulled_cable_takes_the_carrier_with_it() {
    if !is_root() {
        return;
    }
    let topology = build("pull", &["delay=1ms"]);
    let carrier = || topology.a.sh("cat /sys/class/net/eth1/carrier").expect("a carrier").trim().to_string();
    topology.unplug(0, Host::A).expect("unplugged");
    assert_eq!(carrier(), "0");
    topology.plug(0, Host::A).expect("plugged");
    assert_eq!(carrier(), "1");
    assert_eq!(ping(&topology, 0, Family::V4, 2).len(), 2);
}

#[test]
fn a_changed_path_has_its_new_delay() {
    if !is_root() {
        return;
    }
    let topology = build("change", &["delay=1ms"]);
    topology.change(0, "delay=25ms".parse().expect("a valid path"));
    assert!(ping(&topology, 0, Family::V4, 3).into_iter().min() >= Some(MS * 49));
}

#[test]
fn iperf3_reports_the_goodput_of_the_rate() {
    if !is_root() {
        return;
    }
    let topology = build("iperf", &["rate=10mbit,queue=400ms"]);
    let run = Iperf::tcp(address(Host::B, 0, Family::V4), MS * 2_000).from(address(Host::A, 0, Family::V4));
    let measured = run.run(&topology.a, &topology.b, &mut |_| {}).expect("iperf3 runs");
    // 1448 of 1514 bytes are payload: an upper bound, and a busy machine may reach less. The receiver's time includes
    // what is still queued at the end.
    assert!((1.0..9.86).contains(&measured.goodput), "{measured:?}");
    assert!(!measured.series.is_empty());
}

#[test]
fn iperf3_over_udp_and_ipv6_reports_the_loss() {
    if !is_root() {
        return;
    }
    let topology = build("udp", &["rate=100mbit,loss=10%"]);
    let tcp = Iperf::tcp(address(Host::B, 0, Family::V6), MS * 2_000).from(address(Host::A, 0, Family::V6));
    let run = Iperf { load: IperfLoad::Udp { mbit: 8.0, payload: 1_000 }, ..tcp };
    let measured = run.run(&topology.a, &topology.b, &mut |_| {}).expect("iperf3 runs");
    // 2,000 datagrams: four standard deviations of the share lost are 0.027.
    let lost = measured.lost.expect("a share for UDP");
    assert!((lost - 0.1).abs() < 0.03, "{measured:?}");
}

#[test]
fn multipath_tcp_adds_paths_up_and_survives_the_loss_of_one() {
    if !is_root() {
        return;
    }
    let topology = build("mptcp", &["rate=10mbit,delay=5ms", "rate=20mbit,delay=5ms"]);
    mptcp::prepare(&topology).expect("endpoints");
    let route = Route { from: None, to: address(Host::B, 0, Family::V4), mptcp: true };
    let flow = Bulk::start(&topology.a, &topology.b, route).expect("a flow");
    let arrived = || flow.samples().last().map_or(0, |sample| sample.bytes);
    let wait_for = |bytes: u64| {
        let goal = arrived() + bytes;
        while arrived() < goal {
            assert!(flow.elapsed() < MS * 60_000, "{} of {goal} bytes", arrived());
            thread::sleep(MS * 20);
        }
    };
    wait_for(2_000_000);
    let there = |path: usize| topology.report().expect("a wire").lines[2 * path].link.delivered;
    // Two thirds of 1400 frames belong to the second path; a tenth of them would prove that it is used.
    assert!(there(0) > 100 && there(1) > 100, "{} and {} frames", there(0), there(1));
    topology.cut(1);
    let before = there(0);
    wait_for(1_000_000);
    assert!(there(0) - before > 500, "the path that is left carries it: {} frames", there(0) - before);
}

#[test]
fn a_new_lease_keeps_the_neighbour() {
    if !is_root() {
        return;
    }
    let topology = build("lease", &["delay=1ms"]);
    let far = address(Host::B, 0, Family::V4);
    for renew in [true, false] {
        topology.renumber(0, renew).expect("another address");
        let neighbour = topology.a.sh(&format!("ip neighbour show {far}")).expect("ip");
        assert!(neighbour.contains("02:00:00:00:01:02") && neighbour.contains("PERMANENT"), "{neighbour}");
    }
}

#[test]
fn background_traffic_over_multipath_tcp_uses_every_path() {
    if !is_root() {
        return;
    }
    let topology = build("background", &["rate=10mbit,delay=5ms", "rate=10mbit,delay=5ms"]);
    mptcp::prepare(&topology).expect("endpoints");
    let route = Route { from: None, to: address(Host::B, 0, Family::V4), mptcp: true };
    let _background = Background::start(&topology.a, &topology.b, route).expect("background traffic");
    let subflows = || topology.b.sh("ss -Htn state established sport = :5203").expect("ss").lines().count();
    let start = Instant::now();
    while subflows() < 2 {
        assert!(start.elapsed() < MS * 60_000, "no second subflow within a minute");
        thread::sleep(MS * 20);
    }
}

#[test]
fn nothing_is_left_behind_and_existing_namespaces_are_kept() {
    if !is_root() {
        return;
    }
    let name = format!("{}-clash", Topology::unique_name());
    let mine = Netns::create(&format!("{name}-m")).expect("a namespace");
    let taken = Topology::build(&name, &["".parse().expect("a valid path")], Seed(1));
    assert!(matches!(taken, Err(LabError::Clash(_))));
    assert!(!exists(&format!("{name}-a")), "the refused topology made nothing");
    assert!(exists(mine.name()), "what was there stays");
    drop(mine);
    let topology = Topology::build(&name, &["".parse().expect("a valid path")], Seed(1)).expect("hosts");
    let mut child = topology.b.command("sleep").arg("100").spawn().expect("a child");
    // A child that enters the namespace after the end of the topology would not be found in it.
    let inode = |path: &Path| fs::metadata(path).map(|file| file.ino()).ok();
    let inside = inode(&Path::new("/run/netns").join(topology.b.name()));
    let start = Instant::now();
    while inode(Path::new(&format!("/proc/{}/ns/net", child.id()))) != inside {
        assert!(start.elapsed() < MS * 60_000, "the child is not in the namespace within a minute");
        thread::sleep(MS);
    }
    drop(topology);
    assert!(["a", "m", "b"].iter().all(|host| !exists(&format!("{name}-{host}"))));
    assert!(!child.wait().expect("it ended").success(), "what ran inside was killed");
}

fn exists(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}
