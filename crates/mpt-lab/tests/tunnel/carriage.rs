//! Transport through the tunnel: every mix of IP versions, both offload implementations, every GRE header, every packet
//! size, order.

use crate::{
    capture::Capture,
    rig::{Plan, Rig, inside, output, text},
    transfer::Transfer,
};
use mpt_lab::{
    topology::{Family, Host, address},
    traffic::iperf::Iperf,
};
use serde_json::Map;
use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

const FAST: &str = "rate=200mbit,queue=100ms";
const MEGABYTE: u64 = 1_000_000;
const BOTH: [Family; 2] = [Family::V4, Family::V6];

/// Runs ping, two seconds of iperf3 and a checked transfer in both inner IP versions, and checks that every path
/// carried its share.
fn carries_both_ip_versions(test: &str, outer: &[Family]) {
    let Some(rig) = Rig::up(test, &vec![FAST; outer.len()], &Plan::over(outer)) else { return };
    for family in BOTH {
        let to = inside(Host::B, family);
        rig.wait_for_answer(&[], family, &format!("inside {outer:?}"));
        let run = Iperf::tcp(to, Duration::from_secs(2));
        let measured = run.run(&rig.hosts.a, &rig.hosts.b, &mut |_| {}).expect("iperf3 runs");
        assert!(measured.goodput > 0.0, "{family:?} inside {outer:?}: {measured:?}");
        let transfer = Transfer::start(&rig, family);
        transfer.wait_for(&rig, 2 * MEGABYTE);
        transfer.finish();
    }
    for path in 0..outer.len() {
        let (a, b) = (rig.path(Host::A, path), rig.path(Host::B, path));
        assert!(a["sent_bytes"].as_u64() > Some(MEGABYTE), "{a}");
        assert!(b["received_bytes"].as_u64() > Some(MEGABYTE), "{b}");
    }
    assert_eq!(rig.drops(Host::B), Map::new());
}

#[test]
fn ipv4_and_ipv6_travel_over_an_ipv4_path() {
    carries_both_ip_versions("v4", &[Family::V4]);
}

#[test]
fn ipv4_and_ipv6_travel_over_an_ipv6_path() {
    carries_both_ip_versions("v6", &[Family::V6]);
}

#[test]
fn ipv4_and_ipv6_travel_over_both_kinds_of_path_at_the_same_time() {
    carries_both_ip_versions("mixed", &BOTH);
}

#[test]
fn twelve_paths_of_both_kinds_carry_their_shares() {
    // The original MPT was limited to seven paths over IPv6.
    carries_both_ip_versions("twelve", &BOTH.repeat(6));
}

#[test]
fn the_setup_of_the_readme_uses_both_links() {
    let Some(mut rig) = Rig::build("readme", &[FAST, FAST]) else { return };
    let sides = include_str!("../../../../README.md").split("```toml\n").skip(1);
    let sides = sides.filter_map(|rest| rest.split("```").next()).map(|side| {
        // The README's server has one address; here it has one per link.
        let remotes = [0, 1].map(|path| address(Host::B, path, Family::V4).to_string());
        remotes.iter().fold(side.to_owned(), |side, remote| side.replacen("203.0.113.7", remote, 1))
    });
    for (host, side) in [Host::A, Host::B].into_iter().zip(sides) {
        rig.launch_with(host, &side);
    }
    rig.wait_for_answer(&[], Family::V4, "the server");
    let transfer = Transfer::start(&rig, Family::V4);
    transfer.wait_for(&rig, 2 * MEGABYTE);
    transfer.finish();
    for path in [0, 1] {
        assert!(rig.path(Host::A, path)["sent_bytes"].as_u64() > Some(MEGABYTE / 2));
    }
}

#[test]
fn daemons_with_and_without_offload_understand_each_other() {
    let slow = "offload = false";
    let plan = Plan::over(&BOTH);
    let Some(mut rig) = Rig::build("twin", &[FAST, FAST]) else { return };
    for plan in
        [plan.clone().on(Host::A, slow), plan.clone().on(Host::B, slow), plan.on(Host::A, slow).on(Host::B, slow)]
    {
        rig.start(&plan);
        for family in BOTH {
            let transfer = Transfer::start(&rig, family);
            transfer.wait_for(&rig, 3 * MEGABYTE);
            transfer.finish();
        }
    }
}

#[test]
fn every_optional_field_of_gre_can_be_sent_or_left_out() {
    let Some(mut rig) = Rig::build("gre", &[FAST, FAST]) else { return };
    let forms = [
        ("sequence = false", 4),
        ("key = 4294967295", 12),
        ("checksum = true", 12),
        ("sequence = false\nkey = 0\nchecksum = true", 12),
        ("key = 7\nchecksum = true", 16),
    ];
    for (plain, header) in forms {
        rig.start(&Plan::over(&BOTH).plain(plain));
        let mtu = rig.status(Host::A)["mtu_bytes"].as_u64();
        assert_eq!(mtu, Some(1_500 - 40 - 8 - header), "the IPv6 path decides; {plain}");
        let transfer = Transfer::start(&rig, Family::V4);
        transfer.wait_for(&rig, MEGABYTE);
        transfer.finish();
        rig.wait_for_answer(&[], Family::V6, plain);
        assert_eq!(rig.drops(Host::B), Map::new(), "{plain}");
    }
}

#[test]
fn the_largest_packet_fits_the_path_exactly_and_one_byte_more_is_refused() {
    for (outer, mtu) in [(Family::V4, 1_500 - 20 - 8 - 8), (Family::V6, 1_500 - 40 - 8 - 8)] {
        let test = format!("mtu{mtu}");
        let Some(rig) = Rig::up(&test, &["delay=1ms"], &Plan::over(&[outer])) else { return };
        let mut wire = Capture::open(&rig.hosts.b, "eth1");
        for (family, headers) in [(Family::V4, 20 + 8), (Family::V6, 40 + 8)] {
            let to = inside(Host::B, family);
            let size = |bytes: usize| (bytes - headers).to_string();
            rig.wait_for_answer(&["-M", "do", "-s", &size(mtu)], family, "the largest packet");
            let mut ping = rig.hosts.a.command("ping");
            let refused = output(ping.args(["-c", "1", "-W", "1", "-M", "do", "-s", &size(mtu + 1), &to.to_string()]));
            let said = text(&refused.stdout) + &text(&refused.stderr);
            assert!(!refused.status.success() && said.to_lowercase().contains("too long"), "{said}");
        }
        assert_eq!(wire.datagrams().iter().map(|datagram| datagram.outer.total).max(), Some(1_500));
    }
}

#[test]
fn packets_leave_the_tunnel_in_the_order_in_which_they_entered() {
    let specs = ["rate=50mbit,delay=2ms", "rate=50mbit,delay=25ms"];
    let Some(rig) = Rig::up("order", &specs, &Plan::over(&[Family::V4, Family::V4])) else { return };
    let numbers = send_numbered(&rig, 8_000);
    let reorder = rig.status(Host::B)["peers"][0]["reorder"].clone();
    assert!(reorder["buffered"].as_u64() > Some(1_000), "half of them come 23 ms after the others: {reorder}");
    let sink = mpt_sim::host::Sink { numbers, ..Default::default() };
    assert_eq!(sink.duplicates(), []);
    let late = reorder["late"].as_u64().expect("a number");
    assert!(sink.reordered() <= late, "{} out of order, {reorder}", sink.reordered());
    assert!(sink.numbers.len() > 4_000, "{} of 8000 arrived, {reorder}", sink.numbers.len());
}

/// Sends numbered datagrams of 200 bytes from A to B, 4000 per second; returns the numbers in order of arrival.
fn send_numbered(rig: &Rig, count: u64) -> Vec<u64> {
    let bind = |host: Host| move || UdpSocket::bind((inside(host, Family::V4), 0));
    let from = rig.hosts.a.enter(bind(Host::A)).expect("a namespace").expect("a socket");
    let to = rig.hosts.b.enter(bind(Host::B)).expect("a namespace").expect("a socket");
    from.connect(to.local_addr().expect("its address")).expect("a peer");
    to.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    let sender = thread::spawn(move || {
        let start = Instant::now();
        for number in 0..count {
            let mut payload = [0; 200];
            payload[..8].copy_from_slice(&number.to_be_bytes());
            from.send(&payload).expect("sent");
            thread::sleep((start + Duration::from_micros(250 * number)).saturating_duration_since(Instant::now()));
        }
    });
    let mut numbers = Vec::new();
    let mut buffer = [0; 300];
    while numbers.last() != Some(&(count - 1)) {
        let Ok(len) = to.recv(&mut buffer) else { break };
        numbers.extend(buffer[..len].first_chunk().map(|bytes| u64::from_be_bytes(*bytes)));
    }
    sender.join().expect("no panic");
    numbers
}
