//! Changes around a running tunnel: interfaces that are missing, addresses and forwarding that another program takes
//! away, and paths that leave the configuration.

use crate::{
    internet::{FAR, internet, reaches, start},
    native_host::{B, Native, OTHER, Third},
    rig::{Rig, sh},
};
use mpt_lab::topology::{Family, Host, address};
use std::fs;

const TWO: [&str; 2] = ["delay=2ms", "delay=4ms"];

/// Returns the configuration of a path over host A's interface with this number.
fn path(number: usize) -> String {
    let far = address(Host::B, number, Family::V4);
    format!("[[peer.path]]\ninterface = \"eth{}\"\nremote = \"{far}\"\n", number + 1)
}

fn path_names(rig: &Rig, host: Host) -> Vec<String> {
    let status = rig.status(host);
    let paths = status["peers"][0]["paths"].as_array().expect("paths");
    paths.iter().map(|path| path["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_listed_interface_that_is_missing_is_used_when_it_appears() {
    let Some(mut rig) = Rig::build("missing", &TWO) else { return };
    rig.hosts.a.ip("link set eth2 down\nlink set eth2 name usb0").expect("gone");
    rig.launch_with(Host::B, &Native::responder().text());
    rig.launch_with(Host::A, &Native::initiator(&(path(0) + &path(1))).text());
    rig.wait_for_answer(&[], Family::V4, "over the interface that is there");
    assert_eq!(rig.path(Host::A, 1)["cause"], "carrier");
    assert_eq!(rig.logged(Host::A, "there is no such interface; the path waits for it"), 1);
    rig.hosts.a.ip("link set usb0 name eth2\nlink set eth2 up").expect("here");
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
}

#[test]
fn a_path_that_leaves_the_file_does_not_come_back() {
    let caller = Native::initiator(&(path(0) + &path(1)));
    let Some(rig) = Rig::native("removed", &TWO, &caller) else { return };
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    rig.wait_until("B has both paths", |rig| rig.paths_up(Host::B).len() == 2);
    fs::write(rig.file(Host::A), Native::initiator(&path(0)).text()).expect("a file");
    assert!(rig.mpt(Host::A, &["reload"]).status.success());
    rig.wait_until_up(Host::A, &["eth1"]);
    // B goes on sending to the address of the removed path until it is silent. Nothing listens there any more.
    rig.wait_until("B gives the path up", |rig| rig.paths_up(Host::B).len() == 1);
    assert_eq!(sh(&rig.hosts.a, "ss -Huan").lines().count(), 1);
    assert_eq!(path_names(&rig, Host::A), ["eth1"]);
    rig.wait_for_answer(&[], Family::V4, "over the remaining path");
}

#[test]
fn addresses_that_another_program_removes_are_restored() {
    let caller = Native::initiator(&path(0)).on_top("routes = [\"10.99.0.0/16\"]");
    let Some(rig) = Rig::native("addresses-back", &TWO[..1], &caller) else { return };
    let has = |rig: &Rig, own: &str| sh(&rig.hosts.a, "ip -o address show dev mpt0").contains(own);
    for round in 1..=2 {
        sh(&rig.hosts.a, "ip address flush dev mpt0");
        rig.wait_until("both are back", |rig| has(rig, "10.77.0.1/24") && has(rig, "fd77::1/64"));
        rig.wait_until("so is the route", |rig| sh(&rig.hosts.a, "ip route").contains("10.99.0.0/16 dev mpt0"));
        rig.wait_for_answer(&[], Family::V4, "after the return of the addresses");
        assert!(rig.logged(Host::A, "addresses of the tunnel or their routes were removed") >= round);
    }
    // What a command removed is not restored.
    let removed = rig.mpt(Host::A, &["addr", "del", "10.77.0.1/24", "dev", "mpt0"]);
    assert!(removed.status.success(), "{removed:?}");
    sh(&rig.hosts.a, "ip address del fd77::1/64 dev mpt0");
    rig.wait_until("the other address is back", |rig| has(rig, "fd77::1/64"));
    assert!(!has(&rig, "10.77.0.1/24"));
}

#[test]
fn forwarding_that_another_program_switches_off_is_on_again() {
    let Some(mut rig) = Rig::build("forwarding-back", &["delay=1ms"]) else { return };
    let _far = internet(&rig);
    start(&mut rig, false);
    rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    for (round, file) in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"].into_iter().enumerate() {
        let file = format!("/proc/sys/net/{file}");
        sh(&rig.hosts.b, &format!("echo 0 > {file}"));
        rig.wait_until("forwarding is on", |rig| sh(&rig.hosts.b, &format!("cat {file}")).trim() == "1");
        let logged = "forwarding was switched off by another program";
        rig.wait_until("that is logged", |rig| rig.logged(Host::B, logged) > round);
    }
    rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
}

#[test]
fn an_interface_without_a_route_to_the_peer_is_no_path() {
    let Some(mut rig) = Rig::build("no-route", &TWO[..1]) else { return };
    let lan = "link add lan0 type veth peer name lan1\nlink set lan0 up\nlink set lan1 up\n\
               address add 10.50.0.1/24 dev lan0\naddress add fd50::1/64 dev lan0 nodad";
    rig.hosts.a.ip(lan).expect("a network");
    sh(&rig.hosts.a, "ip route add default via 192.168.11.2; ip -6 route add default via fd00:1::2");
    sh(&rig.hosts.b, "ip address add 2001:db8::7/128 dev lo; ip address add 198.51.100.7/32 dev lo");
    rig.launch_with(Host::B, &Native::responder().text());
    for remote in ["2001:db8::7", "198.51.100.7"] {
        rig.launch_with(Host::A, &Native::initiator(&format!("remote = \"{remote}\"")).text());
        rig.wait_until_up(Host::A, &["eth1"]);
        assert_eq!(path_names(&rig, Host::A), ["eth1"], "{remote}");
    }
}

#[test]
fn both_ends_log_why_they_do_not_connect() {
    let Some(mut rig) = Rig::build("reasons", &TWO[..1]) else { return };
    rig.launch_with(Host::B, &Native::responder().text());
    rig.launch_with(Host::A, &Native::initiator(&path(0)).keys(OTHER, B).text());
    let silent = format!("no answer from {}:4754 on eth1", address(Host::B, 0, Family::V4));
    let refused = "a host whose key is in no [[peer]] tries to connect";
    rig.wait_until("B logs the refused key", |rig| rig.logged(Host::B, refused) > 0);
    rig.wait_until("A logs that nobody answers", |rig| rig.logged(Host::A, &silent) > 0);
    let more = |rig: &Rig| rig.status(Host::B)["drops"]["unknown_peer"].as_u64().unwrap_or(0) > 4;
    rig.wait_until("B refuses more of them", more);
    assert_eq!((rig.logged(Host::B, refused), rig.logged(Host::A, &silent)), (1, 1));
}

#[test]
fn a_strict_reverse_path_filter_is_warned_of() {
    let Some(mut rig) = Rig::build("rp-filter", &TWO[..1]) else { return };
    sh(&rig.hosts.a, "echo 1 > /proc/sys/net/ipv4/conf/eth1/rp_filter");
    let caller = Native::initiator(&path(0)).on_top("routes = [\"0.0.0.0/0\", \"::/0\"]");
    rig.launch_with(Host::A, &caller.text());
    rig.wait_until("it is logged", |rig| rig.logged(Host::A, "rp_filter is 1, so the kernel drops") == 1);
}

#[test]
fn a_second_host_with_the_same_key_does_not_leave_the_tunnel_dead() {
    let Some(rig) = Rig::native("one-key", &TWO[..1], &Native::initiator(&path(0))) else { return };
    sh(&rig.hosts.a, "ping -q -i 0.01 -c 300 10.77.0.2");
    for round in 1..=2 {
        let copy = Native::initiator(&path(0)).inside("10.78.0.1").on_top("port = 4755");
        let third = Third::start(&rig, &rig.hosts.a, "copy", &copy);
        rig.wait_until("the copy is connected", |_| third.status()["peers"][0]["paths"][0]["up"] == true);
        drop(third);
        let start = std::time::Instant::now();
        rig.wait_for_answer(&[], Family::V4, "after the end of the copy");
        eprintln!("round {round}: answered {:.2?} after the end of the copy", start.elapsed());
    }
    rig.wait_until("B logs it", |rig| rig.logged(Host::B, "two hosts use the key of peer ") == 1);
}
