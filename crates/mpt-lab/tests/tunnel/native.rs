//! Native mode in hostile networks: the cases of WireGuard's `netns.sh`.

use crate::{
    native_host::{A, B, Native, OTHER, Third},
    rig::{Rig, inside, output, sh, text},
    transfer::Transfer,
};
use mpt_lab::topology::{Family, Host, Netns, address};
use std::{
    net::{IpAddr, UdpSocket},
    thread,
    time::Duration,
};

const ONE: [&str; 1] = ["delay=2ms"];
const TWO: [&str; 2] = ["rate=50mbit,delay=2ms", "rate=50mbit,delay=4ms"];
const MEGABYTE: u64 = 1_000_000;

/// Returns the line `remote` with host B's address on the first path.
fn remote() -> String {
    format!("remote = \"{}\"", address(Host::B, 0, Family::V4))
}

fn count(rig: &Rig, host: Host, reason: &str) -> u64 {
    let status = rig.status(host);
    let of = |drops: &serde_json::Value| drops[reason].as_u64().unwrap_or(0);
    of(&status["drops"]) + of(&status["peers"][0]["drops"])
}

#[test]
fn both_ip_versions_are_carried_over_both() {
    let Some(mut rig) = Rig::build("nfamilies", &ONE) else { return };
    rig.launch_with(Host::B, &Native::responder().text());
    for outer in [Family::V4, Family::V6] {
        rig.launch_with(Host::A, &Native::initiator(&format!("remote = \"{}\"", address(Host::B, 0, outer))).text());
        for family in [Family::V4, Family::V6] {
            rig.wait_for_answer(&[], family, &format!("over {outer:?}"));
            let transfer = Transfer::start(&rig, family);
            transfer.wait_for(&rig, MEGABYTE / 2);
            transfer.finish();
        }
    }
}

#[test]
fn paths_are_added_and_removed_with_their_interfaces() {
    let Some(rig) = Rig::native("nauto", &TWO, &Native::initiator(&remote())) else { return };
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    let transfer = Transfer::start(&rig, Family::V4);
    transfer.wait_for(&rig, MEGABYTE);
    // The whole interface goes away with its address and routes, as when a modem is unplugged.
    rig.hosts.a.ip("link set eth2 down\nlink set eth2 name usb0").expect("gone");
    rig.wait_until_up(Host::A, &["eth1"]);
    let sockets = |rig: &Rig| rig.hosts.a.sh("ss -Huan").expect("sockets").lines().count();
    rig.wait_until("its socket is closed", |rig| sockets(rig) == 1);
    transfer.wait_for(&rig, MEGABYTE);
    let own = address(Host::A, 1, Family::V4);
    let far = address(Host::B, 1, Family::V4);
    let up =
        format!("link set usb0 up\nroute replace default via {far} dev usb0 table 102\nrule add from {own} table 102");
    rig.hosts.a.ip(&up).expect("here");
    rig.wait_until_up(Host::A, &["eth1", "usb0"]);
    transfer.wait_for(&rig, MEGABYTE);
    transfer.finish();
}

/// Three faults that the core does not distinguish: all of them take the link down.
#[test]
fn a_path_without_a_carrier_an_address_or_a_route_is_reported_as_such() {
    let Some(rig) = Rig::native("nfault", &TWO, &Native::initiator(&remote())) else { return };
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    let far = address(Host::B, 1, Family::V4);
    let add = format!("route replace default via {far} dev eth2 table 102");
    let is_down_for = |rig: &Rig, cause: &str| {
        rig.wait_until(cause, |rig| rig.path(Host::A, 1)["cause"] == cause);
        let status = text(&rig.mpt(Host::A, &["status"]).stdout);
        assert!(status.contains(&format!("  eth2: no {cause}: ")), "{status}");
        let doctor = text(&rig.mpt(Host::A, &["doctor"]).stdout);
        assert!(doctor.contains(&format!("eth2: no {cause}: ")), "{doctor}");
    };
    rig.hosts.a.ip("route flush table 102").expect("gone");
    is_down_for(&rig, "route");
    assert_eq!(rig.logged(Host::A, "path suspended: no route to the peer"), 1);
    rig.hosts.a.ip(&add).expect("back");
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    rig.hosts.a.ip("address flush dev eth2").expect("gone");
    is_down_for(&rig, "address");
    assert_eq!(rig.logged(Host::A, "path suspended: no address"), 1);
    rig.hosts.a.ip("link set eth2 down").expect("gone");
    is_down_for(&rig, "carrier");
}

#[test]
fn a_host_without_an_uplink_reports_it_until_there_is_one() {
    let Some(mut rig) = Rig::build("nuplink", &TWO) else { return };
    let no_path = |rig: &Rig| rig.status(Host::A)["peers"][0]["no_path"].clone();
    let is_found = |rig: &Rig, reason: &str| {
        assert_eq!(no_path(rig), reason);
        let status = text(&rig.mpt(Host::A, &["status"]).stdout);
        assert!(status.contains(&format!("  no path: {reason}\n")), "{status}");
        let doctor = rig.mpt(Host::A, &["doctor"]);
        assert_eq!(doctor.status.code(), Some(1));
        let doctor = text(&doctor.stdout);
        assert!(doctor.contains("FAILED   no_path\n") && doctor.contains(reason), "{doctor}");
        assert_eq!(rig.logged(Host::A, &format!("no path to the peer: {reason}")), 1);
    };
    rig.launch_with(Host::A, &Native::initiator(&remote()).line("interfaces = [\"wlan*\"]").text());
    is_found(&rig, "no interface matches interfaces in the file");
    // The hosts of the laboratory have a default route for each address, and none for others.
    sh(&rig.hosts.a, "ip route flush table 101; ip route flush table 102");
    rig.launch_with(Host::A, &Native::initiator("remote = \"203.0.113.7\"").text());
    is_found(&rig, "no interface has a route to 203.0.113.7");
    rig.hosts.a.ip(&format!("route add 203.0.113.0/24 via {}", address(Host::B, 0, Family::V4))).expect("a route");
    rig.wait_until("there is a path", |rig| no_path(rig).is_null());
    assert_eq!(rig.logged(Host::A, "resolved: no path to the peer"), 1);
}

#[test]
fn one_path_is_tested_in_both_directions_without_the_other() {
    let Some(rig) = Rig::native("ntest", &TWO, &Native::initiator(&remote())) else { return };
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    // The peer accepts a test when its link is up there, too.
    rig.wait_until("B has both paths", |rig| rig.paths_up(Host::B).len() == 2);
    let sent = |rig: &Rig, name: &str| {
        let paths = rig.status(Host::A)["peers"][0]["paths"].as_array().expect("paths").clone();
        let path = paths.into_iter().find(|path| path["name"] == name).expect("the path");
        path["sent_bytes"].as_u64().expect("bytes")
    };
    let before = [sent(&rig, "eth1"), sent(&rig, "eth2")];
    let output = rig.mpt(Host::A, &["path", "test", "eth1", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["path"], "eth1");
    let mut bytes = 0;
    for direction in ["sent", "received"] {
        let measured = &report[direction];
        let rate = measured["rate_bits_per_s"].as_u64().expect("a rate");
        // The wire delays each way by 2 ms, less 50 us by which it may release a frame early, and has 50 Mbit/s: a
        // machine can be slower than the wire, not faster.
        assert!((1..60_000_000).contains(&rate), "{report}");
        assert!(measured["idle_rtt_us"].as_u64() >= Some(3_900), "{report}");
        assert!(measured["loss"].as_f64().is_some_and(|loss| (0.0..=1.0).contains(&loss)), "{report}");
        bytes += rate / 8;
    }
    let passed = [sent(&rig, "eth1") - before[0], sent(&rig, "eth2") - before[1]];
    assert!(passed[0] > bytes / 2 && passed[1] < passed[0] / 5, "{passed:?}, {report}");
    let table = rig.mpt(Host::A, &["path", "test", "eth2"]);
    assert!(table.status.success() && text(&table.stdout).contains("from the peer"), "{}", text(&table.stderr));
    let none = rig.mpt(Host::A, &["path", "test", "eth9"]);
    assert!(text(&none.stderr).contains("there is no path eth9"), "{}", text(&none.stderr));
}

#[test]
fn patterns_exclude_interfaces() {
    let caller = Native::initiator(&remote()).line("interfaces = [\"eth*\", \"!eth2\"]");
    let Some(rig) = Rig::native("npatterns", &TWO, &caller) else { return };
    assert_eq!(rig.paths_up(Host::A), ["eth1"]);
}

#[test]
fn addresses_of_both_ends_make_a_full_mesh() {
    let Some(mut rig) = Rig::build("nmesh", &TWO) else { return };
    rig.launch_with(Host::B, &Native::responder().line("pairs = \"fullmesh\"").text());
    rig.launch_with(Host::A, &Native::initiator(&remote()).line("pairs = \"fullmesh\"").text());
    // Two interfaces, and two addresses of each IP version at the other end.
    let all = ["eth1", "eth1-2", "eth1-3", "eth1-4", "eth2", "eth2-2", "eth2-3", "eth2-4"];
    rig.wait_until_up(Host::A, &all);
    let transfer = Transfer::start(&rig, Family::V4);
    transfer.wait_for(&rig, MEGABYTE);
    let gone = address(Host::B, 1, Family::V4);
    rig.hosts.b.ip(&format!("address del {gone}/24 dev eth2")).expect("gone");
    rig.wait_until("nothing leads there any more", |rig| {
        let paths = rig.status(Host::A)["peers"][0]["paths"].as_array().expect("paths").clone();
        paths.len() == 6 && paths.iter().all(|path| path["up"] == true)
    });
    transfer.wait_for(&rig, MEGABYTE);
    transfer.finish();
}

#[test]
fn several_ports_are_several_paths() {
    let Some(rig) = Rig::native("nports", &ONE, &Native::initiator(&remote()).line("ports = 3")) else { return };
    rig.wait_until_up(Host::A, &["eth1", "eth1-2", "eth1-3"]);
    rig.wait_until("B has three paths", |rig| rig.paths_up(Host::B).len() == 3);
}

#[test]
fn a_metered_path_stands_by_when_its_limit_is_used_up_and_remembers_it() {
    let path = |number: usize, role: &str| {
        let far = address(Host::B, number, Family::V4);
        format!("[[peer.path]]\ninterface = \"eth{}\"\nremote = \"{far}\"\nrole = {role}\n", number + 1)
    };
    let caller = Native::initiator(&(path(0, "\"metered\"\nlimit = \"2MB\"") + &path(1, "\"available\"")));
    let Some(mut rig) = Rig::native("nmetered", &TWO, &caller) else { return };
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    let transfer = Transfer::start(&rig, Family::V4);
    rig.wait_until("the limit is used up", |rig| rig.path(Host::A, 0)["standby"] == true);
    let far = |rig: &Rig| rig.status(Host::B)["peers"][0]["paths"].as_array().expect("paths").clone();
    rig.wait_until("B has the path as standby", |rig| {
        far(rig).iter().filter(|path| path["standby"] == true).count() == 1
    });
    transfer.wait_for(&rig, MEGABYTE / 4);
    // If a path is declared dead because a process did not run, the standby path carries its traffic.
    let sent = |rig: &Rig, path| rig.path(Host::A, path)["sent_bytes"].as_u64().expect("bytes");
    let before = [sent(&rig, 0), sent(&rig, 1)];
    transfer.wait_for(&rig, 2 * MEGABYTE);
    let passed = [sent(&rig, 0) - before[0], sent(&rig, 1) - before[1]];
    assert!(passed[0] < passed[1] / 10, "probes only: {passed:?}");
    transfer.finish();
    assert!(rig.signal(Host::A, nix::sys::signal::Signal::SIGTERM).success());
    rig.launch_with(Host::A, &caller.text());
    rig.wait_until("the limit is remembered", |rig| {
        let path = rig.path(Host::A, 0);
        path["role"] == "metered" && path["standby"] == true && path["used_bytes"].as_u64() > Some(2_000_000)
    });
}

/// Usage is counted once a second; the traffic since then is counted when the peer or the tunnel ends.
#[test]
fn the_last_second_of_a_metered_path_counts() {
    let far = address(Host::B, 0, Family::V4);
    let path = format!("[[peer.path]]\ninterface = \"eth1\"\nremote = \"{far}\"\nrole = \"metered\"\nlimit = \"1GB\"");
    let Some(mut rig) = Rig::native("nlast", &["delay=1ms"], &Native::initiator(&path)) else { return };
    let used = |rig: &Rig| rig.path(Host::A, 0)["used_bytes"].as_u64().expect("bytes");
    let sends = |rig: &Rig| {
        let ping = rig.hosts.a.command("ping").args(["-q", "-l", "65", "-c", "65", "-s", "1300", "10.77.0.2"]).output();
        let heard = text(&ping.expect("ping runs").stdout);
        let heard = heard.split(", ").find_map(|part| part.strip_suffix(" received")).expect("a count").to_owned();
        2 * 1_300 * heard.parse::<u64>().expect("a number")
    };
    for end in ["restart", "down"] {
        let before = used(&rig);
        let passed = sends(&rig);
        assert!(passed > 0 && rig.mpt(Host::A, &[end]).status.success(), "{end}");
        if end == "down" {
            assert!(rig.wait_for_end(Host::A).success());
            rig.launch_with(Host::A, &Native::initiator(&path).text());
        }
        assert!(used(&rig) >= before + passed, "{} of {before} and {passed} after {end}", used(&rig));
    }
}

#[test]
fn a_peer_added_on_reload_does_not_reset_the_first_peer() {
    let far = address(Host::B, 0, Family::V4);
    let path =
        format!("[[peer.path]]\ninterface = \"eth1\"\nremote = \"{far}\"\nrole = \"metered\"\nlimit = \"1GB\"\n");
    let caller = Native::initiator("networks = [\"10.77.0.2/32\"]").line(&path).text();
    let Some(mut rig) = Rig::build("nadded", &ONE) else { return };
    rig.launch_with(Host::B, &Native::responder().text());
    rig.launch_with(Host::A, &caller);
    let arrived = |rig: &Rig| rig.status(Host::A)["peers"][0]["received_packets"].as_u64().expect("a count");
    let used = |rig: &Rig| rig.path(Host::A, 0)["used_bytes"].as_u64().expect("a count");
    rig.wait_until("the tunnel answers", |rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address")));
    rig.wait_until("something is counted", |rig| used(rig) > 0);
    let before = (arrived(&rig), used(&rig));
    assert!(before.0 > 0);

    let other = mpt_proto::crypto::keys::KeyPair::generate([9; 32]);
    let added = format!(
        "{caller}[[peer]]\npublic_key = \"{}\"\nnetworks = [\"10.77.0.9/32\"]\nremote = \"192.168.11.9\"\n",
        other.public()
    );
    std::fs::write(rig.file(Host::A), added).expect("a file");
    let done = rig.mpt(Host::A, &["reload"]);

    assert!(done.status.success(), "{}", text(&done.stderr));
    let status = rig.status(Host::A);
    let names = status["peers"].as_array().expect("peers").iter().map(|peer| peer["name"].as_str().expect("a name"));
    assert_eq!(names.collect::<Vec<_>>(), ["peer", "peer2"]);
    assert!(arrived(&rig) >= before.0 && used(&rig) >= before.1, "{before:?}");
}

/// No event is sent when another program releases the port of an address.
#[test]
fn an_address_is_listened_on_after_another_program_releases_its_port() {
    let Some(mut rig) = Rig::build("nheld", &ONE) else { return };
    rig.launch_with(Host::B, &Native::responder().text());
    rig.hosts.b.sysctl(&[("net/ipv4/ip_nonlocal_bind", "1")]).expect("bind before the address is there");
    let other = rig.hosts.b.enter(|| UdpSocket::bind("10.9.0.2:4754")).expect("host B").expect("a socket");
    rig.hosts.b.ip("address add 10.9.0.2/24 dev eth1").expect("another address");
    let words = "cannot listen on 10.9.0.2";
    rig.wait_until("it is missed", |rig| rig.logged(Host::B, words) > 0);
    drop(other);
    rig.wait_until("that is over", |rig| rig.logged(Host::B, &format!("resolved: {words}")) > 0);
    assert_eq!(rig.logged(Host::B, words), 2, "once when it failed and once when it was over");
    assert!(rig.hosts.b.sh("ss -Huan").expect("sockets").contains("10.9.0.2:4754"));
}

/// Host A changes its address in mid-transfer, on the only path; host B follows after path validation.
fn follows_a_new_lease(test: &str, caller: &Native) {
    let Some(rig) = Rig::native(test, &["rate=50mbit,delay=2ms"], caller) else { return };
    assert_eq!(rig.remotes(Host::B), ["192.168.11.1:4754"]);
    let transfer = Transfer::start(&rig, Family::V4);
    transfer.wait_for(&rig, MEGABYTE);
    rig.hosts.renumber(0, true).expect("a new lease");
    transfer.wait_for(&rig, 2 * MEGABYTE);
    rig.wait_until("B follows", |rig| rig.remotes(Host::B) == ["192.168.11.101:4754"]);
    rig.hosts.renumber(0, false).expect("the old lease");
    transfer.wait_for(&rig, 2 * MEGABYTE);
    transfer.finish();
    rig.wait_until("B follows back", |rig| rig.remotes(Host::B) == ["192.168.11.1:4754"]);
    assert_eq!(rig.status(Host::B)["peers"][0]["paths"].as_array().map(Vec::len), Some(1), "the path has moved");
}

#[test]
fn a_path_that_follows_its_interface_survives_a_new_lease() {
    follows_a_new_lease("nlease", &Native::initiator(&remote()));
}

#[test]
fn a_configured_path_survives_a_new_lease() {
    let path = format!("[[peer.path]]\ninterface = \"eth1\"\nlocal = \"192.168.11.1\"\n{}", remote());
    follows_a_new_lease("nlease2", &Native::initiator(&path));
}

/// Builds hosts whose peer has a second address in a network in which the initiator has none yet.
fn with_another_network(name: &str) -> Option<Rig> {
    let caller = Native::initiator("remote = [\"192.168.11.2\", \"10.9.0.2\"]");
    let rig = Rig::native(name, &ONE, &caller)?;
    rig.hosts.b.ip("address add 10.9.0.2/24 dev eth1").expect("another network");
    Some(rig)
}

/// Paths over an interface share a socket, so a new path finds it bound to the address of an older path.
#[test]
fn a_path_to_another_address_of_the_peer_uses_the_remaining_own_address() {
    let Some(rig) = with_another_network("nother") else { return };
    rig.hosts.a.ip("address add 10.9.0.1/24 dev eth1\naddress del 192.168.11.1/24 dev eth1").expect("there, too");
    rig.wait_until("the path leads there", |rig| rig.remotes(Host::A) == ["10.9.0.2:4754"]);
    rig.wait_for_answer(&[], Family::V4, "from another address to another");
}

/// A new path finds its socket bound to an address that still exists. Its later removal is no event of the new path.
#[test]
fn a_path_uses_its_own_address_though_its_socket_was_bound_to_another() {
    let Some(rig) = with_another_network("nway") else { return };
    rig.hosts.a.ip("address add 10.9.0.1/24 dev eth1").expect("there, too");
    let blocked = "rule add from 192.168.11.1 priority 1 prohibit\nroute del 192.168.11.0/24 dev eth1";
    rig.hosts.a.ip(blocked).expect("from the old one");
    rig.wait_until("the path leads there", |rig| rig.remotes(Host::A) == ["10.9.0.2:4754"]);
    rig.hosts.a.ip("address del 192.168.11.1/24 dev eth1").expect("gone");
    rig.wait_for_answer(&[], Family::V4, "from another address to another");
}

/// Events of an interface do not affect paths whose address was removed from it.
#[test]
fn a_path_whose_address_is_gone_stays_down_while_its_interface_runs() {
    let path = |number: usize| {
        let (own, far) = (address(Host::A, number, Family::V4), address(Host::B, number, Family::V4));
        format!("[[peer.path]]\ninterface = \"eth{}\"\nlocal = \"{own}\"\nremote = \"{far}\"\n", number + 1)
    };
    let Some(rig) = Rig::native("ngone", &TWO, &Native::initiator(&(path(0) + &path(1)))) else { return };
    let is_down = |rig: &Rig, path| rig.path(Host::A, path)["cause"] == ["address", "carrier"][path];
    let own = format!("{}/24 dev eth1", address(Host::A, 0, Family::V4));
    rig.hosts.a.ip(&format!("address del {own}")).expect("gone");
    rig.wait_until("the address is missed", |rig| is_down(rig, 0));
    // The event of the second interface comes after that of the first.
    rig.hosts.a.ip("link set eth1 mtu 1400\nlink set eth2 down").expect("news");
    rig.wait_until("the second path is down", |rig| is_down(rig, 1));
    assert!(is_down(&rig, 0), "{:?}", rig.path(Host::A, 0));
    rig.hosts.a.ip(&format!("address add {own}")).expect("back");
    rig.wait_until("the first path is up", |rig| rig.path(Host::A, 0)["up"] == true);
}

/// Creates a host behind a NAT on host A that drops bindings after a second and then uses another port.
fn behind_a_translator(rig: &Rig) -> Netns {
    let name = rig.hosts.a.name().replace("-a", "-c");
    let guest = Netns::create(&name).expect("a namespace");
    let cable = format!(
        "link add lan type veth peer name eth0 netns {name}\nlink set lan up\naddress add 10.99.0.1/24 dev lan"
    );
    rig.hosts.a.ip(&cable).expect("a cable");
    guest.ip("link set eth0 up\naddress add 10.99.0.2/24 dev eth0\nroute add default via 10.99.0.1").expect("a host");
    rig.hosts.a.sysctl(&[("net/ipv4/ip_forward", "1")]).expect("a router");
    let rules = "nft add table ip nat; nft 'add chain ip nat post { type nat hook postrouting priority 100; }'; \
                 nft add rule ip nat post oifname eth1 meta l4proto udp masquerade to :20000-60000 fully-random";
    rig.hosts.a.sh(rules).expect("a translator");
    let forgets =
        [("net/netfilter/nf_conntrack_udp_timeout", "1"), ("net/netfilter/nf_conntrack_udp_timeout_stream", "1")];
    rig.hosts.a.sysctl(&forgets).expect("a forgetful one");
    guest
}

fn pings(netns: &Netns, to: &str) -> bool {
    output(netns.command("ping").args(["-n", "-c", "1", "-W", "1", to])).status.success()
}

#[test]
fn an_expired_nat_binding_is_followed_and_keepalives_preserve_it() {
    let Some(mut rig) = Rig::build("nnat", &ONE) else { return };
    let guest = behind_a_translator(&rig);
    rig.launch_with(Host::B, &Native::responder().text());
    let third = Third::start(&rig, &guest, "mpt0", &Native::initiator(&remote()));
    let (a, b) = (inside(Host::A, Family::V4).to_string(), inside(Host::B, Family::V4).to_string());
    rig.wait_until("B answers", |_| pings(&guest, &b));
    let first = rig.remotes(Host::B);
    assert!(first[0].starts_with("192.168.11.1:") && !first[0].ends_with(":4754"), "translated: {first:?}");
    // Without traffic the binding expires in a second: B's packets are lost until the initiator sends.
    thread::sleep(Duration::from_millis(2_200));
    rig.wait_until("B answers over another binding", |_| pings(&guest, &b));
    rig.wait_until("B has followed", |rig| {
        let now = rig.remotes(Host::B);
        now.len() == 1 && now != first && pings(&rig.hosts.b, &a)
    });
    assert_eq!(third.status()["peers"][0]["paths"][0]["up"], true);
    drop(third);
    // Conntrack restarts its timeout with every packet; a timeout of two seconds needs a keepalive every second.
    rig.hosts.a.sysctl(&[("net/netfilter/nf_conntrack_udp_timeout", "2")]).expect("less forgetful");
    rig.hosts.a.sysctl(&[("net/netfilter/nf_conntrack_udp_timeout_stream", "2")]).expect("less forgetful");
    let _third = Third::start(&rig, &guest, "mpt0", &Native::initiator(&remote()).on_top("keepalive = \"1s\""));
    rig.wait_until("B answers", |_| pings(&guest, &b));
    let first = rig.remotes(Host::B);
    thread::sleep(Duration::from_millis(3_300));
    assert!(pings(&rig.hosts.b, &a), "the binding was held");
    assert_eq!(rig.remotes(Host::B).iter().filter(|remote| first.contains(remote)).count(), 1);
}

#[test]
fn an_unknown_key_is_refused_until_it_is_configured() {
    let Some(mut rig) = Rig::build("nkeys", &ONE) else { return };
    rig.launch_with(Host::B, &Native::responder().text());
    rig.launch_with(Host::A, &Native::initiator(&remote()).keys(OTHER, B).text());
    rig.wait_until("B refuses", |rig| count(rig, Host::B, "unknown_peer") > 0);
    assert!(!rig.ping(Host::A, &[], inside(Host::B, Family::V4)));
    assert_eq!(rig.status(Host::B)["peers"][0]["paths"].as_array().map(Vec::len), Some(0), "nothing is learned");
    rig.launch_with(Host::B, &Native::responder().keys(B, OTHER).text());
    rig.wait_for_answer(&[], Family::V4, "with the right key");
    // The reverse case: an initiator that has a wrong key for us gets no answer at all.
    rig.launch_with(Host::A, &Native::initiator(&remote()).keys(OTHER, A).text());
    rig.wait_until("B refuses", |rig| count(rig, Host::B, "bad_mac") > 0);
}

#[test]
fn a_peer_may_only_use_its_own_prefixes_as_source() {
    let Some(rig) = Rig::native("nprefixes", &ONE, &Native::initiator(&remote())) else { return };
    rig.hosts.a.ip("address add 10.77.0.9/32 dev mpt0").expect("an unassigned address");
    let to = inside(Host::B, Family::V4);
    assert!(!rig.ping(Host::A, &["-I", "10.77.0.9"], to));
    assert_eq!(count(&rig, Host::B, "foreign_source"), 3);
    assert!(!rig.ping(Host::B, &[], "10.77.0.9".parse().expect("an address")));
    assert_eq!(count(&rig, Host::B, "no_route"), 3);
    assert!(rig.ping(Host::A, &[], to));
}

#[test]
fn the_largest_packet_passes_whole_and_a_larger_one_in_fragments_or_not_at_all() {
    let Some(rig) = Rig::native("nmtu", &ONE, &Native::initiator(&remote())) else { return };
    let mtu = rig.status(Host::A)["mtu_bytes"].as_u64().expect("an MTU");
    // IPv4 and UDP 28, GRE with key and sequence 12, tag 16, DATA frame 7.
    assert_eq!(mtu, 1_500 - 28 - 12 - 16 - 7);
    let ping = |size: u64, fragments: &str| {
        let (size, to) = ((size - 28).to_string(), inside(Host::B, Family::V4).to_string());
        let output =
            output(rig.hosts.a.command("ping").args(["-n", "-c", "1", "-W", "2", "-M", fragments, "-s", &size, &to]));
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    assert!(ping(mtu, "do").0);
    let (answered, output) = ping(mtu + 1, "do");
    assert!(!answered && output.contains(&mtu.to_string()), "{output}");
    assert!(ping(mtu + 1, "dont").0 && ping(5_000, "dont").0);
    assert_eq!(count(&rig, Host::A, "send_failed"), 0);
}

#[test]
fn a_tunnel_carries_a_tunnel() {
    let Some(rig) = Rig::native("ninner", &ONE, &Native::initiator(&remote())) else { return };
    let called = Native::responder().only("networks = [\"10.78.0.1/32\"]").inside("10.78.0.2").on_top("port = 4755");
    let _called = Third::start(&rig, &rig.hosts.b, "mpt1", &called);
    let to = format!("remote = \"{}:4755\"\ninterfaces = [\"mpt0\"]", inside(Host::B, Family::V4));
    let _caller =
        Third::start(&rig, &rig.hosts.a, "mpt1", &Native::initiator(&to).inside("10.78.0.1").on_top("port = 4755"));
    rig.wait_until("the inner tunnel answers", |rig| pings(&rig.hosts.a, "10.78.0.2"));
    let transfer = Transfer::between(&rig.hosts.a, &rig.hosts.b, IpAddr::from([10, 78, 0, 2]));
    transfer.wait_for(&rig, MEGABYTE / 2);
    transfer.finish();
}

#[test]
fn a_tunnel_routed_into_itself_drops_its_own_datagrams_and_recovers() {
    let far = address(Host::B, 0, Family::V4);
    let caller = Native::initiator(&format!("[[peer.path]]\n{}", remote()));
    let Some(rig) = Rig::native("nloop", &ONE, &caller) else { return };
    rig.hosts.a.ip(&format!("route add {far}/32 dev mpt0")).expect("a loop");
    assert!(!rig.ping(Host::A, &[], inside(Host::B, Family::V4)));
    rig.wait_until("own datagrams are dropped", |rig| count(rig, Host::A, "loop") > 0);
    let before = count(&rig, Host::A, "loop");
    thread::sleep(Duration::from_millis(500));
    assert!(count(&rig, Host::A, "loop") - before < 500, "each is dropped once, and none begets another");
    rig.hosts.a.ip(&format!("route del {far}/32 dev mpt0")).expect("no loop");
    rig.wait_for_answer(&[], Family::V4, "the loop is gone");
}

#[test]
fn a_peer_with_a_closed_port_is_found_again() {
    let Some(mut rig) = Rig::native("nicmp", &ONE, &Native::initiator(&remote())) else { return };
    assert!(!rig.signal(Host::B, nix::sys::signal::Signal::SIGKILL).success());
    // The port is closed, so every datagram is answered with "port unreachable".
    assert!(!rig.ping(Host::A, &[], inside(Host::B, Family::V4)));
    rig.wait_until("the path is down", |rig| rig.path(Host::A, 0)["up"] == false);
    rig.launch_with(Host::B, &Native::responder().text());
    rig.wait_for_answer(&[], Family::V4, "a restarted peer");
}
