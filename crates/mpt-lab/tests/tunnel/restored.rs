//! Rules and tables of the tunnel that another program deletes: network managers delete rules that they have not made,
//! and firewall scripts begin with an empty ruleset.

use crate::{
    internet::{CLIENT, FAR, SERVER, internet, reaches, start},
    rig::{Rig, sh},
};
use mpt_lab::topology::{Host, Netns};

const LOGGED_RULES: &str = "routing rules or routes were deleted by another program";
const LOGGED_TABLE: &str = "table was deleted or changed by another program";

/// Returns the numbers of the tunnel's rules, of both IP versions.
fn rules(host: &Netns) -> Vec<String> {
    let listed = sh(host, "{ ip rule; ip -6 rule; } | grep fwmark || true");
    listed.lines().filter_map(|line| line.split_once(':')).map(|(number, _)| number.to_owned()).collect()
}

fn table(host: &Netns, name: &str) -> String {
    sh(host, &format!("nft list table inet {name} 2>/dev/null || true"))
}

#[test]
fn deleted_rules_are_restored_and_the_kernel_owns_them() {
    let Some(mut rig) = Rig::build("rules-back", &["delay=1ms"]) else { return };
    let _far = internet(&rig);
    for (kill_switch, numbers) in [(false, ["32000", "32001"]), (true, ["10", "11"])] {
        start(&mut rig, kill_switch);
        rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
        let all = [numbers, numbers].concat();
        assert_eq!(rules(&rig.hosts.a), all);
        // systemd-networkd keeps rules of this protocol.
        let of_the_kernel =
            sh(&rig.hosts.a, "{ ip rule show proto kernel; ip -6 rule show proto kernel; } | grep -c fwmark");
        assert_eq!(of_the_kernel.trim(), "4");
        for (round, version) in ["-4", "-6"].into_iter().enumerate() {
            sh(&rig.hosts.a, &format!("for pref in {}; do ip {version} rule del pref $pref; done", numbers.join(" ")));
            rig.wait_until("the rules are back", |rig| rules(&rig.hosts.a) == all);
            rig.wait_until("that is logged", |rig| rig.logged(Host::A, LOGGED_RULES) > round);
        }
        rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
        let logged = rig.logged(Host::A, LOGGED_RULES);
        assert!((2..=4).contains(&logged), "{logged} lines about 8 rules that were deleted in 4 commands");
        assert!(rig.mpt(Host::A, &["down"]).status.success());
        assert_eq!(rules(&rig.hosts.a), [""; 0]);
    }
}

/// Deletes routes over the TUN device in several ways. The kernel refuses every route from an address of the tunnel
/// while that has no local route.
#[test]
fn deleted_routes_of_the_tunnel_and_of_its_addresses_are_restored() {
    let Some(mut rig) = Rig::build("routes-back", &["delay=1ms"]) else { return };
    let _far = internet(&rig);
    rig.launch_with(Host::B, SERVER);
    let client = CLIENT.replace("KILL", "true").replace("\"::/0\"", "\"::/0\", \"10.99.0.0/16\", \"fd99::/64\"");
    rig.launch_with(Host::A, &client);
    rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    let commands = [
        "ip route flush table local dev mpt0",
        "ip -6 route flush table local dev mpt0",
        "ip route del local 10.77.0.1 dev mpt0 table local; ip route flush table $(ip rule | sed -n 's/^11:.* //p')",
        "ip route flush dev mpt0; ip -6 route flush dev mpt0",
        "ip route del 10.99.0.0/16; ip -6 route del fd99::/64",
        "for version in -4 -6; do ip $version route flush table all dev mpt0; done",
    ];
    // The kernel adds routes for multicast once, and a broadcast address depends on who adds the address.
    let routes = |rig: &Rig| {
        let listed = sh(&rig.hosts.a, "for version in -4 -6; do ip $version route show table all dev mpt0; done");
        let of_the_tunnel =
            |line: &&str| !["multicast", "broadcast", "anycast", "fe80:"].iter().any(|not| line.contains(not));
        let words =
            |line: &str| line.split_whitespace().take_while(|word| *word != "proto").collect::<Vec<_>>().join(" ");
        let mut routes: Vec<_> = listed.lines().filter(of_the_tunnel).map(words).collect();
        routes.sort_unstable();
        routes
    };
    let before = routes(&rig);
    for present in ["local 10.77.0.1", "local fd77::1", "10.77.0.0/24", "fd77::/64", "10.99.0.0/16", "fd99::/64"] {
        assert!(before.iter().any(|route| route.starts_with(present)), "{present}: {before:?}");
    }
    for command in commands {
        sh(&rig.hosts.a, command);
        rig.wait_until(&format!("the routes are back after: {command}"), |rig| routes(rig) == before);
        rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    }
    assert_eq!(rig.logged(Host::A, "cannot set the routes"), 0);
}

#[test]
fn deleted_tables_are_restored() {
    let Some(mut rig) = Rig::build("tables-back", &["delay=1ms"]) else { return };
    let _far = internet(&rig);
    start(&mut rig, true);
    rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    for (host, name) in [(Host::A, "mptkill_mpt0"), (Host::B, "mpt_mpt0")] {
        let before = table(rig.hosts.host(host), name);
        assert!(before.contains("chain"), "{before}");
        let commands = [format!("nft delete table inet {name}"), "nft flush ruleset".to_owned()];
        for (round, command) in commands.iter().enumerate() {
            sh(rig.hosts.host(host), command);
            rig.wait_until("the table is back", |rig| table(rig.hosts.host(host), name) == before);
            rig.wait_until("that is logged", |rig| rig.logged(host, LOGGED_TABLE) == round + 1);
        }
        // Tables of others cause nothing.
        sh(rig.hosts.host(host), "nft 'table inet other { chain mine { counter; }; }'; nft delete table inet other");
        rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
        assert_eq!(rig.logged(host, LOGGED_TABLE), 2);
    }
    assert!(rig.mpt(Host::A, &["down"]).status.success() && rig.mpt(Host::B, &["down"]).status.success());
    assert_eq!([Host::A, Host::B].map(|host| sh(rig.hosts.host(host), "nft list tables")), ["", ""]);
}
