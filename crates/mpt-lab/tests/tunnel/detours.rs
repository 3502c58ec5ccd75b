//! Routes for the tunnel's own datagrams via the gateways that the configuration names.

use crate::rig::{Rig, sh};
use mpt_lab::topology::Host;
use nix::sys::signal::Signal;
use std::fs;

/// Two paths to one address behind two routers; host B is both of them.
const FILE: &str = r#"mode = "plain"
address = ["10.77.0.1/24"]
[[peer]]
[[peer.path]]
interface = "eth1"
gateway = "192.168.11.2"
remote = "203.0.113.7"
[[peer.path]]
interface = "eth2"
gateway = "192.168.12.2"
remote = "203.0.113.7"
"#;

/// Returns the routers of host A's routes to the peer.
fn routers(rig: &Rig) -> Vec<String> {
    let routes = sh(&rig.hosts.a, "ip route show 203.0.113.7");
    let via = |line: &str| line.split_whitespace().skip_while(|word| *word != "via").nth(1).map(str::to_owned);
    let mut routers: Vec<_> = routes.lines().filter_map(via).collect();
    routers.sort();
    routers
}

#[test]
fn each_path_uses_the_gateway_that_the_file_names() {
    let Some(mut rig) = Rig::build("detours", &["delay=1ms", "delay=1ms"]) else { return };
    rig.launch_with(Host::A, FILE);
    assert_eq!(routers(&rig), ["192.168.11.2", "192.168.12.2"]);
    let by = |link: &str| sh(&rig.hosts.a, &format!("ip route get 203.0.113.7 oif {link}"));
    assert!(by("eth1").contains("via 192.168.11.2") && by("eth2").contains("via 192.168.12.2"));

    let other = FILE.replace("192.168.12.2", "192.168.12.9");
    fs::write(rig.file(Host::A), &other).expect("a file");
    assert!(rig.mpt(Host::A, &["reload"]).status.success());
    assert_eq!(routers(&rig), ["192.168.11.2", "192.168.12.9"]);

    rig.signal(Host::A, Signal::SIGKILL);
    assert_eq!(routers(&rig), ["192.168.11.2", "192.168.12.9"]);
    rig.launch_with(Host::A, FILE);
    assert_eq!(routers(&rig), ["192.168.11.2", "192.168.12.2"], "in place of what was left behind");
    assert!(rig.signal(Host::A, Signal::SIGTERM).success());
    assert_eq!(routers(&rig), [""; 0]);
}

#[test]
fn routes_of_a_killed_tunnel_are_removed_when_no_running_tunnel_may_need_them() {
    let Some(mut rig) = Rig::build("detour-left", &["delay=1ms", "delay=1ms"]) else { return };
    let more =
        "[[peer.path]]\nname = \"six\"\ninterface = \"eth1\"\ngateway = \"fd00:1::2\"\nremote = \"2001:db8:7::7\"\n";
    let left = |rig: &Rig| sh(&rig.hosts.a, "ip route show proto 77; ip -6 route show proto 77").lines().count();
    rig.launch_with(Host::A, &(FILE.to_owned() + more));
    rig.signal(Host::A, Signal::SIGKILL);
    sh(&rig.hosts.a, "ip route add 203.0.113.8 via 192.168.11.2");
    assert_eq!(left(&rig), 3);

    let other = FILE.replacen("address", "interface = \"mpt1\"\naddress", 1).replace("192.168.12.2", "192.168.12.9");
    rig.launch_with(Host::A, &other);
    assert!(rig.mpt(Host::A, &["down", "mpt0"]).status.success());
    assert_eq!(left(&rig), 3, "the other one may need them");
    rig.signal(Host::A, Signal::SIGKILL);
    fs::write(rig.file(Host::A), other.replace("interface = \"eth2\"", "local = \"192.0.2.77\"")).expect("a file");
    assert!(!rig.mpt(Host::A, &["up", &rig.file(Host::A).display().to_string()]).status.success());
    assert!(rig.mpt(Host::A, &["down"]).status.success());
    assert_eq!((left(&rig), routers(&rig)), (0, Vec::new()));
    assert!(sh(&rig.hosts.a, "ip route show 203.0.113.8").contains("192.168.11.2"), "the user's route stays");
}

#[test]
fn a_gateway_s_route_comes_back_with_its_interface() {
    let Some(mut rig) = Rig::build("detour-back", &["delay=1ms", "delay=1ms"]) else { return };
    let native = FILE
        .replace("mode = \"plain\"", "private_key = \"ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00=\"")
        .replacen("[[peer]]", "[[peer]]\npublic_key = \"L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=\"", 1);
    for file in [FILE, &native] {
        rig.launch_with(Host::A, file);
        sh(&rig.hosts.a, "ip link set eth2 down");
        assert_eq!(routers(&rig), ["192.168.11.2"], "the kernel takes it away");
        sh(&rig.hosts.a, "ip link set eth2 up");
        rig.wait_until("both are there again", |rig| routers(rig) == ["192.168.11.2", "192.168.12.2"]);
        assert!(rig.signal(Host::A, Signal::SIGTERM).success());
    }
}

/// A route into the tunnel has the tunnel's address as source, and cannot be set while that is missing.
#[test]
fn a_route_that_could_not_be_set_is_set_when_it_can_be() {
    let Some(mut rig) = Rig::build("route-late", &["delay=1ms", "delay=1ms"]) else { return };
    rig.hosts.a.ip("link set eth2 down").expect("no route for the second path");
    rig.launch_with(Host::A, &FILE.replacen("[[peer]]", "routes = [\"10.80.0.0/16\"]\n[[peer]]", 1));
    let is_set = |rig: &Rig| sh(&rig.hosts.a, "ip route show 10.80.0.0/16").contains("dev mpt0");
    assert!(is_set(&rig) && routers(&rig) == ["192.168.11.2"]);
    let address = |rig: &Rig, action: &str| {
        assert!(rig.mpt(Host::A, &["addr", action, "10.77.0.1/24", "dev", "mpt0"]).status.success());
    };
    address(&rig, "del");
    rig.hosts.a.ip("link set eth2 up").expect("a route for the second path");
    rig.wait_until("both paths have a route", |rig| routers(rig) == ["192.168.11.2", "192.168.12.2"]);
    assert!(!is_set(&rig));
    address(&rig, "add");
    rig.wait_until("the route is set", is_set);
    rig.wait_until("that is logged", |rig| rig.logged(Host::A, "resolved: cannot set the routes") == 1);
    assert_eq!(rig.logged(Host::A, "cannot set the routes"), 2, "once when it failed and once when it was over");
}
