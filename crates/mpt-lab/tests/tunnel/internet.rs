//! All traffic through the tunnel: host A sends everything to host B, which forwards it to a third host, the Internet.
//!
//! Host A also has a default route outside the tunnel, so traffic that bypasses the tunnel would arrive there as well.

use crate::rig::{Rig, output, sh, text};
use mpt_lab::topology::{Host, Netns};
use nix::sys::signal::Signal;
use std::fs;

/// Host A's configuration; a test replaces KILL by `true` or `false`.
pub const CLIENT: &str = r#"private_key = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00="
address = ["10.77.0.1/24", "fd77::1/64"]
routes = ["0.0.0.0/0", "::/0"]
kill_switch = KILL

[[peer]]
public_key = "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg="
[[peer.path]]
remote = "192.168.11.2"
"#;

/// Host B's configuration.
pub const SERVER: &str = r#"private_key = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForB00="
address = ["10.77.0.2/24", "fd77::2/64"]
masquerade = true

[[peer]]
public_key = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ="
networks = ["10.77.0.1/32", "fd77::1/128"]
"#;

/// Addresses on the Internet.
pub const FAR: [&str; 2] = ["198.51.100.2", "2001:db8:99::2"];

/// Creates the Internet behind host B, and routes of host A to it outside the tunnel.
pub fn internet(rig: &Rig) -> Netns {
    let name = rig.hosts.a.name().replace("-a", "-c");
    let far = Netns::create(&name).expect("a namespace");
    let host_b = format!(
        "link add wan type veth peer name eth0 netns {name}\nlink set wan up\naddress add 198.51.100.1/24 dev wan\n\
         address add 2001:db8:99::1/64 dev wan nodad\nroute add default via 198.51.100.2 dev wan\n\
         route add default via 2001:db8:99::2 dev wan"
    );
    rig.hosts.b.ip(&host_b).expect("a network");
    // The host has no route back to the tunnel's addresses, only to host B's own.
    let host_c = "link set eth0 up\naddress add 198.51.100.2/24 dev eth0\naddress add 2001:db8:99::2/64 dev eth0 nodad";
    far.ip(host_c).expect("a host");
    rig.hosts.a.ip("route add default via 192.168.11.2 dev eth1").expect("a route");
    rig.hosts.a.ip6("route add default via fd00:1::2 dev eth1").expect("a route");
    far
}

fn rig(test: &str) -> Option<(Rig, Netns)> {
    let rig = Rig::build(test, &["delay=1ms"])?;
    let far = internet(&rig);
    Some((rig, far))
}

/// Starts both daemons.
pub fn start(rig: &mut Rig, kill_switch: bool) {
    rig.launch_with(Host::B, SERVER);
    rig.launch_with(Host::A, &CLIENT.replace("KILL", if kill_switch { "true" } else { "false" }));
}

/// Returns the interface by which host A's packets to the Internet leave; empty if they are blocked.
fn outgoing_interfaces(rig: &Rig) -> [String; 2] {
    FAR.map(|far| {
        let fields = sh(&rig.hosts.a, &format!("ip route get {far} 2>/dev/null || true"));
        let mut fields = fields.split_whitespace().skip_while(|field| *field != "dev").skip(1);
        fields.next().unwrap_or_default().to_owned()
    })
}

/// Returns true if host A gets an answer.
pub fn reaches(rig: &Rig, far: &str) -> bool {
    rig.ping(Host::A, &[], far.parse().expect("an address"))
}

/// Returns policy routing rules and tables of a host beyond the default ones and those of the laboratory.
fn policy_routing(host: &Netns) -> String {
    let script = "{ ip rule; ip -6 rule; } | grep -vE 'lookup (local|main|default) *$' | grep fwmark; \
                  ip route show table all | grep -E 'mpt|unreachable default'; \
                  ip -6 route show table all | grep -E 'mpt|unreachable default .*4294967295'; \
                  nft list tables; true";
    sh(host, &format!("set +e; {script}"))
}

fn forwarding(host: &Netns) -> String {
    sh(host, "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding")
}

#[test]
fn everything_goes_through_the_tunnel_and_nothing_is_left_behind() {
    let Some((mut rig, _far)) = rig("all") else { return };
    let (rules, before) = (policy_routing(&rig.hosts.a), forwarding(&rig.hosts.b));
    start(&mut rig, false);
    for far in FAR {
        rig.wait_until(&format!("{far} answers through the tunnel"), |rig| reaches(rig, far));
    }
    assert_eq!(outgoing_interfaces(&rig), ["mpt0", "mpt0"]);
    assert_eq!(forwarding(&rig.hosts.b), "1\n1\n");
    let counted = rig.status(Host::B)["peers"][0]["received_packets"].as_u64().expect("a count");
    assert!(counted >= 6, "{counted} packets came through the tunnel");
    assert!(sh(&rig.hosts.b, "nft list table inet mpt_mpt0").contains("masquerade"));

    assert!(rig.mpt(Host::A, &["down"]).status.success());
    assert!(rig.signal(Host::B, Signal::SIGTERM).success());
    assert_eq!((policy_routing(&rig.hosts.a), policy_routing(&rig.hosts.b)), (rules, String::new()));
    assert_eq!(forwarding(&rig.hosts.b), before);
    assert_eq!(outgoing_interfaces(&rig), ["eth1", "eth1"]);
}

/// The kernel removes routes and IPv6 addresses with the interface; then all traffic would leave outside the tunnel.
#[test]
fn everything_goes_through_the_tunnel_again_when_its_interface_has_been_down() {
    let Some((mut rig, _far)) = rig("tun-down") else { return };
    start(&mut rig, false);
    sh(&rig.hosts.a, "ip link set mpt0 down");
    assert_eq!(outgoing_interfaces(&rig), ["eth1", "eth1"]);
    sh(&rig.hosts.a, "ip link set mpt0 up");
    for far in FAR {
        rig.wait_until(&format!("{far} answers through the tunnel"), |rig| reaches(rig, far));
    }
    assert_eq!(outgoing_interfaces(&rig), ["mpt0", "mpt0"]);
}

#[test]
fn the_kill_switch_blocks_everything_until_it_is_removed() {
    let Some((mut rig, _far)) = rig("kill-switch") else { return };
    start(&mut rig, true);
    rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    assert_eq!(outgoing_interfaces(&rig), ["mpt0", "mpt0"]);

    assert!(!rig.signal(Host::A, Signal::SIGKILL).success());
    assert_eq!(outgoing_interfaces(&rig), ["", ""], "the kill switch blocks");
    assert!(reaches(&rig, "192.168.11.2"), "attached networks are no Internet");
    rig.launch_with(Host::A, &CLIENT.replace("KILL", "true"));
    rig.wait_until("the tunnel is back", |rig| FAR.iter().all(|far| reaches(rig, far)));

    rig.signal(Host::A, Signal::SIGKILL);
    let down = rig.mpt(Host::A, &["down"]);
    assert!(down.status.success() && text(&down.stderr).contains("left behind"), "{}", text(&down.stderr));
    assert_eq!(
        (outgoing_interfaces(&rig), policy_routing(&rig.hosts.a)),
        (["eth1".to_owned(), "eth1".to_owned()], String::new())
    );
    assert!(!rig.mpt(Host::A, &["down"]).status.success(), "there is nothing more to remove");

    rig.launch_with(Host::A, &CLIENT.replace("KILL", "true"));
    assert!(rig.mpt(Host::A, &["down"]).status.success());
    assert_eq!(
        (outgoing_interfaces(&rig), policy_routing(&rig.hosts.a)),
        (["eth1".to_owned(), "eth1".to_owned()], String::new())
    );
}

#[test]
fn the_kill_switch_survives_an_unexpected_exit_and_is_removed_with_its_line() {
    let Some((mut rig, _far)) = rig("removed") else { return };
    start(&mut rig, true);
    rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    sh(&rig.hosts.a, "ip link delete mpt0");
    assert!(!rig.wait_for_end(Host::A).success(), "a tunnel without its interface is none");
    assert_eq!(outgoing_interfaces(&rig), ["", ""]);

    rig.launch_with(Host::A, &CLIENT.replace("KILL", "true"));
    rig.wait_until("the tunnel is back", |rig| FAR.iter().all(|far| reaches(rig, far)));
    let without = CLIENT.replace("kill_switch = KILL\n", "").replace("routes = [\"0.0.0.0/0\", \"::/0\"]\n", "");
    fs::write(rig.file(Host::A), without).expect("a file");
    assert!(rig.mpt(Host::A, &["reload"]).status.success());
    assert_eq!(outgoing_interfaces(&rig), ["eth1", "eth1"]);
    assert!(rig.mpt(Host::A, &["down"]).status.success());
    assert_eq!(policy_routing(&rig.hosts.a), "");
}

/// The second case is a tunnel that was killed and cannot start again for another reason.
#[test]
fn after_a_failed_start_the_kill_switch_is_removed_as_hinted() {
    let Some((mut rig, _far)) = rig("failed") else { return };
    let client = CLIENT.replace("KILL", "true");
    let fails_with = |rig: &Rig, config: &str, field: &str| {
        fs::write(rig.file(Host::A), config).expect("a file");
        let refused = rig.mpt(Host::A, &["up", &rig.file(Host::A).display().to_string()]);
        let stderr = text(&refused.stderr);
        assert!(!refused.status.success() && stderr.contains(field), "{stderr}");
        stderr
    };
    let is_taken_away = |rig: &Rig| {
        assert_eq!(outgoing_interfaces(rig), ["", ""]);
        let down = rig.mpt(Host::A, &["down"]);
        assert!(down.status.success() && text(&down.stderr).contains("left behind"), "{}", text(&down.stderr));
        assert_eq!(
            (outgoing_interfaces(rig), policy_routing(&rig.hosts.a)),
            (["eth1".to_owned(), "eth1".to_owned()], String::new())
        );
    };
    rig.launch_with(Host::A, &client);
    sh(&rig.hosts.a, "ip link delete mpt0");
    assert!(!rig.wait_for_end(Host::A).success());
    assert_eq!(rig.logged(Host::A, "`mpt down mpt0`"), 1);
    is_taken_away(&rig);

    rig.launch_with(Host::A, &client.replacen("kill_switch", "masquerade = true\nkill_switch", 1));
    rig.signal(Host::A, Signal::SIGKILL);
    let missing = client.replace("remote", "local = \"192.0.2.77\"\nremote");
    for _ in 0..2 {
        assert!(fails_with(&rig, &missing, "192.0.2.77").contains("`mpt down mpt0`"));
    }
    is_taken_away(&rig);
    assert!(!fails_with(&rig, &missing, "192.0.2.77").contains("kill switch"));
    assert!(!rig.mpt(Host::A, &["down"]).status.success(), "nothing was left behind this time");

    sh(&rig.hosts.a, "nft 'table inet mpt_mpt0 { chain mine { counter; }; }'");
    let gateway = client.replacen("kill_switch", "masquerade = true\nkill_switch", 1);
    assert!(fails_with(&rig, &gateway, "is not ours").contains("`mpt down mpt0`"));
    sh(&rig.hosts.a, "nft delete table inet mpt_mpt0");
    is_taken_away(&rig);
}

/// The kernel removes routes with an interface, including those that keep the tunnel's own datagrams out of it.
#[test]
fn in_plain_mode_the_route_around_the_tunnel_returns_with_its_interface() {
    let Some((mut rig, _far)) = rig("around") else { return };
    let config = |address: &str, routes: &str, remote: &str| {
        format!(
            "mode = \"plain\"\naddress = [\"{address}\"]\n{routes}\n[[peer]]\n[[peer.path]]\nremote = \"{remote}\"\n"
        )
    };
    rig.launch_with(Host::B, &config("10.77.0.2/24", "", "192.168.11.1"));
    rig.launch_with(Host::A, &config("10.77.0.1/24", "routes = [\"0.0.0.0/0\"]", "192.168.11.2"));
    rig.wait_until("the tunnel answers", |rig| reaches(rig, "10.77.0.2"));
    sh(&rig.hosts.a, "ip link set eth1 down");
    rig.wait_until("its route is gone", |rig| !sh(&rig.hosts.a, "ip route get 192.168.11.2").contains("eth1"));
    sh(&rig.hosts.a, "ip link set eth1 up");
    rig.wait_until("the tunnel answers again", |rig| reaches(rig, "10.77.0.2"));
    assert!(sh(&rig.hosts.a, "ip route show 192.168.11.2").contains("eth1"));
    assert_eq!(outgoing_interfaces(&rig)[0], "mpt0");
}

#[test]
fn the_next_tunnel_finds_the_state_of_a_killed_router() {
    let Some((mut rig, _far)) = rig("crash") else { return };
    let before = forwarding(&rig.hosts.b);
    rig.launch_with(Host::B, SERVER);
    rig.signal(Host::B, Signal::SIGKILL);
    assert!(policy_routing(&rig.hosts.b).contains("mpt_mpt0"));
    rig.launch_with(Host::B, &SERVER.replace("masquerade = true", ""));
    assert_eq!((sh(&rig.hosts.b, "nft list tables"), forwarding(&rig.hosts.b)), (String::new(), before.clone()));
    rig.signal(Host::B, Signal::SIGTERM);

    rig.launch_with(Host::B, SERVER);
    rig.signal(Host::B, Signal::SIGKILL);
    assert!(rig.mpt(Host::B, &["down", "mpt0"]).status.success());
    assert_eq!((policy_routing(&rig.hosts.b), forwarding(&rig.hosts.b)), (String::new(), before));
}

#[test]
fn rules_of_others_are_not_touched() {
    let Some((mut rig, _far)) = rig("foreign") else { return };
    let own = "table inet filter { chain forward { type filter hook forward priority 0; policy accept; counter; }; }; \
               table inet mpt_mpt0 { chain mine { counter; }; }";
    sh(&rig.hosts.b, &format!("nft '{own}'"));
    let before = sh(&rig.hosts.b, "nft list ruleset");
    fs::write(rig.file(Host::B), SERVER).expect("a file");
    sh(&rig.hosts.b, &format!("chmod 600 {}", rig.file(Host::B).display()));
    let refused = output(rig.program(Host::B).arg("up").arg(rig.file(Host::B)));
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("is not ours") && said.contains("hint:"), "{said}");
    assert_eq!(sh(&rig.hosts.b, "nft list ruleset"), before);

    sh(&rig.hosts.b, "nft delete table inet mpt_mpt0");
    let before = sh(&rig.hosts.b, "nft list ruleset");
    rig.launch_with(Host::B, SERVER);
    rig.signal(Host::B, Signal::SIGTERM);
    assert_eq!(sh(&rig.hosts.b, "nft list ruleset"), before);
}

#[test]
fn a_bypass_suspends_the_kill_switch_and_ends_by_itself() {
    let Some((mut rig, _far)) = rig("bypass-time") else { return };
    start(&mut rig, true);
    rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    let tables = |rig: &Rig| sh(&rig.hosts.a, "nft list tables");
    assert!(rig.mpt(Host::A, &["bypass", "1h"]).status.success());
    assert_eq!((outgoing_interfaces(&rig), tables(&rig)), (["eth1", "eth1"].map(str::to_owned), String::new()));
    assert!(rig.status(Host::A)["bypass_s"].as_u64() > Some(3_500));
    let shown = text(&rig.mpt(Host::A, &["status"]).stdout);
    assert!(shown.contains("\nbypass: all leaves beside the tunnel for 59 min"), "{shown}");
    // What watches rules and tables does not restore them now, and neither does a reload.
    sh(&rig.hosts.a, "ip rule add pref 31000 lookup main; ip rule del pref 31000; nft add table inet other");
    assert!(rig.mpt(Host::A, &["reload"]).status.success());
    assert_eq!(outgoing_interfaces(&rig), ["eth1", "eth1"]);
    assert!(rig.mpt(Host::A, &["bypass", "off"]).status.success());
    assert_eq!(outgoing_interfaces(&rig), ["mpt0", "mpt0"]);
    assert!(tables(&rig).contains("mptkill_mpt0") && rig.status(Host::A)["bypass_s"].is_null());

    assert!(rig.mpt(Host::A, &["bypass", "1s"]).status.success());
    rig.wait_until("it is over", |rig| rig.logged(Host::A, "the bypass is over") == 2);
    assert_eq!(outgoing_interfaces(&rig), ["mpt0", "mpt0"]);
    rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    for (refused, code) in [("5h", 1), ("0s", 2), ("soon", 2)] {
        assert_eq!(rig.mpt(Host::A, &["bypass", refused]).status.code(), Some(code), "{refused}");
    }
    let refused = rig.mpt(Host::B, &["bypass", "15m"]);
    assert!(text(&refused.stderr).contains("there is nothing to bypass"), "{}", text(&refused.stderr));
    assert_eq!(outgoing_interfaces(&rig), ["mpt0", "mpt0"]);
}
