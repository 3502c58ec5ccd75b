//! Directories of the original MPT on two hosts in network namespaces: data, keepalives, commands, failures, creation,
//! sites. These tests need root and are skipped without it.
#![allow(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

mod hosts;
mod kernel;
mod listings;
mod scripted;
mod with_original;

use std::fs;
use std::process::Command;

use hosts::{Hosts, bytes, directory, succeeds, wait_for};

/// Starts two hosts whose directories have been changed at both ends.
fn running(change: impl Fn(&str) -> String, allowed: &[&str]) -> Option<Hosts> {
    let mut hosts = Hosts::make()?;
    (0..2).for_each(|host| directory(&hosts.folder(host), host, &change));
    hosts.up_legacy(allowed);
    Some(hosts)
}

fn unchanged(text: &str) -> String {
    text.to_owned()
}

/// Adds a key, so that control messages are authenticated.
fn keyed(text: &str) -> String {
    text.replace("auth_type = 0", "auth_type = 2\nauth_key = 5d3c8f1a90b24e67a1c3d5e7f9012345")
}

#[test]
fn both_hosts_reach_each_other_and_tcp_flows() {
    let Some(hosts) = running(unchanged, &[]) else { return };
    hosts.reaches(0, None, "10.77.0.2");
    hosts.reaches(1, None, "10.77.0.1");
    if !succeeds(Command::new("iperf3").arg("--version")) {
        return eprintln!("skipped: needs iperf3");
    }
    hosts.sh(1, "iperf3 -s -1 -D --logfile /dev/null");
    let ran = wait_for("iperf3", || {
        Some(hosts.sh(0, "iperf3 -c 10.77.0.2 -n 5M >/dev/null && echo done || true"))
            .filter(|said| said.contains("done"))
    });
    assert!(ran.is_some());
}

#[test]
fn a_keepalive_has_the_bytes_of_the_originals() {
    let Some(hosts) = running(unchanged, &[]) else { return };
    let filter = "udp and src 192.168.10.1 and udp[12] = 0xa1";
    let Some(seen) = hosts.capture("v0", filter, 1, || {}) else { return };
    let expected = bytes(
        "0000 0800  a100 0000 00 04 0000
         0000 0000 0000 0000 0000 ffff 0a4d 0001
         0000 0000 0000 0000 0000 ffff 0a4d 0002",
    );
    assert_eq!(seen, [expected]);
}

#[test]
fn data_carries_a_number_of_the_connection_when_there_is_a_window() {
    for (window, headers) in [(0, ["0000 0800", "0000 0800"]), (900, ["1000 0800 0000 0000", "1000 0800 0000 0001"])] {
        let numbered = |text: &str| text.replace("reorder_window = 0", &format!("reorder_window = {window}"));
        let Some(hosts) = running(numbered, &[]) else { return };
        let at = if window == 0 { 12 } else { 16 };
        // Selects inner IPv4 packets: the byte after the GRE header is their version and header length.
        let filter = format!("udp and (src 192.168.10.1 or src 192.168.11.1) and udp[{at}] = 0x45");
        let Some(mut seen) = hosts.capture("any", &filter, 2, || assert_eq!(hosts.ping(0, None, "10.77.0.2"), 10))
        else {
            return;
        };
        // The two paths are two interfaces, so the order of their packets varies.
        seen.sort_by_key(|payload| payload[4..8].to_vec());
        for (payload, header) in seen.iter().zip(headers) {
            let header = bytes(header);
            assert_eq!(payload[..header.len()], header, "window {window}: {payload:02x?}");
            assert_eq!(payload[header.len()], 0x45);
        }
        assert_eq!(seen.len(), 2);
    }
}

#[test]
fn a_path_taken_down_by_command_is_down_at_both_ends_and_comes_back() {
    let Some(hosts) = running(keyed, &[]) else { return };
    hosts.reaches(0, None, "10.77.0.2");
    hosts.succeed(0, &["path", "down", "192.168.11.1", "192.168.11.2"]);
    hosts.expect(0, "v1", "operator");
    hosts.expect(1, "v1", "peer");
    assert_eq!(hosts.ping(0, None, "10.77.0.2"), 10);
    hosts.succeed(0, &["path", "up", "192.168.11.1", "192.168.11.2"]);
    hosts.expect(0, "v1", "up");
    hosts.expect(1, "v1", "up");
    let unknown = hosts.mpt(0, &["path", "down", "192.168.11.1", "192.168.99.2"]);
    assert_eq!(unknown.status.code(), Some(1));
    hosts.succeed(0, &["int", "v1", "down"]);
    assert_eq!(hosts.state(0, "v1"), "operator");
    hosts.succeed(0, &["int", "v1", "up"]);
    hosts.expect(0, "v1", "up");
    hosts.expect(1, "v1", "up");
}

#[test]
fn a_peer_is_notified_over_a_link_local_path() {
    let Some(mut hosts) = Hosts::make() else { return };
    let narrow = |text: &str| {
        let text = keyed(text).replace("192.168.11.", "fe80::");
        text.replace("interface_name = v1\nip_ver = 4", "interface_name = v1\nip_ver = 6")
    };
    for host in 0..2 {
        hosts.sh(host, &format!("ip addr add fe80::{}/64 dev v1 nodad", host + 1));
        directory(&hosts.folder(host), host, narrow);
    }
    hosts.up_legacy(&[]);
    hosts.expect(1, "v1", "up");
    hosts.succeed(0, &["path", "down", "v0"]);
    hosts.expect(1, "v0", "peer");
}

#[test]
fn a_silent_path_is_left_after_the_dead_time_and_revived_by_a_keepalive() {
    let Some(hosts) = running(unchanged, &[]) else { return };
    hosts.reaches(0, None, "10.77.0.2");
    hosts.sh(1, "nft add table inet cut; nft add chain inet cut in \"{ type filter hook input priority 0; }\"; nft add rule inet cut in iifname v1 drop; nft add chain inet cut out \"{ type filter hook output priority 0; }\"; nft add rule inet cut out oifname v1 drop");
    hosts.expect(0, "v1", "silent");
    hosts.expect(1, "v1", "silent");
    assert_eq!(hosts.ping(0, None, "10.77.0.2"), 10, "over the other path");
    hosts.sh(1, "nft delete table inet cut");
    hosts.expect(0, "v1", "up");
    hosts.expect(1, "v1", "up");
}

#[test]
fn unauthenticated_messages_are_rejected_unless_allowed() {
    let Some(hosts) = running(unchanged, &[]) else { return };
    hosts.reaches(0, None, "10.77.0.2");
    let refused = hosts.mpt(0, &["path", "down", "v1"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("did not confirm it: no answer (code 1)"), "{said}");
    assert!(said.contains("hint: "), "{said}");
    assert_eq!(hosts.state(0, "v1"), "operator");
    assert!(hosts.log(1).contains("Unauthenticated"));
    assert_ne!(hosts.state(1, "v1"), "peer");
    drop(hosts);

    let Some(hosts) = running(unchanged, &["--unauthenticated"]) else { return };
    hosts.succeed(0, &["path", "down", "v1"]);
    hosts.expect(1, "v1", "peer");
}

#[test]
fn a_connection_is_created_at_a_host_that_has_none_and_saved_with_its_key() {
    let Some(mut hosts) = Hosts::make() else { return };
    (0..2).for_each(|host| directory(&hosts.folder(host), host, keyed));
    let connections = hosts.folder(1).join("conf/connections");
    fs::remove_file(connections.join("c.conf")).unwrap();
    hosts.up_legacy(&[]);
    assert_eq!(hosts.ping(0, None, "10.77.0.2"), 0);

    hosts.succeed(0, &["create", "c.conf"]);
    hosts.reaches(0, None, "10.77.0.2");
    let again = hosts.mpt(0, &["create", "c.conf"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"), "{again:?}");

    hosts.succeed(1, &["delete", "peer_10_77_0_1.conf"]);
    hosts.succeed(0, &["create", "c.conf"]);
    hosts.reaches(0, None, "10.77.0.2");
    hosts.succeed(1, &["save"]);
    let saved = fs::read_to_string(connections.join("peer_10_77_0_1.conf")).unwrap();
    assert!(saved.contains("auth_key = 5d3c8f1a90b24e67a1c3d5e7f9012345"), "{saved}");
    assert!(saved.contains("local_port = 4754"), "the port of the connection that is gone is free again: {saved}");
    hosts.down(1);
    let folder = hosts.folder(1);
    hosts.up(1, &["--legacy", folder.to_str().unwrap()]);
    hosts.reaches(0, None, "10.77.0.2");
    hosts.succeed(0, &["path", "down", "v1"]);
    hosts.expect(1, "v1", "peer");
}

#[test]
fn a_created_connection_carries_requested_networks_and_others_lose_their_routes() {
    let Some(mut hosts) = Hosts::make() else { return };
    let networks = "\n[net_0]\nsrc_addr = 10.81.0.0/24\ndst_addr = 0.0.0.0/0\n\
                    [net_1]\nsrc_addr = 10.81.0.0/24\ndst_addr = 10.84.0.0/24\n";
    let asking = |text: &str| keyed(text).replace("network_count = 0", "network_count = 2") + networks;
    directory(&hosts.folder(0), 0, asking);
    directory(&hosts.folder(1), 1, keyed);
    let connections = hosts.folder(1).join("conf/connections");
    let other = fs::read_to_string(connections.join("c.conf")).unwrap().replace(".1\n", ".3\n").replace("c_A", "other");
    fs::remove_file(connections.join("c.conf")).unwrap();
    fs::write(connections.join("other.conf"), other).unwrap();
    hosts.up_legacy(&[]);
    hosts.sh(1, "ip addr add 198.51.100.7/32 dev lo");
    assert!(hosts.sh(0, "ip route").contains("10.84.0.0/24 dev tunh"));

    hosts.succeed(1, &["int", "tunh", "down"]);
    assert_eq!(hosts.mpt(0, &["create", "c.conf"]).status.code(), Some(1), "its route cannot be set");
    hosts.succeed(1, &["int", "tunh", "up"]);
    hosts.succeed(0, &["create", "c.conf"]);
    hosts.reaches(0, Some("10.77.0.1"), "198.51.100.7");
    let routes = hosts.sh(0, "ip route");
    assert!(routes.contains("0.0.0.0/1 dev tunh") && !routes.contains("10.84"), "{routes}");

    hosts.succeed(1, &["reload", "other.conf"]);
    assert!(hosts.sh(1, "ip route").contains("10.81.0.0/24 dev tunh"), "a reload of another takes nothing away");
}

#[test]
fn keys_fixed_at_the_start_are_rejected_at_a_reload() {
    let Some(hosts) = running(unchanged, &[]) else { return };
    let file = hosts.folder(0).join("conf/interface.conf");
    let text = fs::read_to_string(&file).unwrap();
    for other in ["cmdport_local = 60457", "cmdport_local = 60456\naccept_remote = 0"] {
        fs::write(&file, text.replace("cmdport_local = 60456", other)).unwrap();
        let refused = hosts.mpt(0, &["reload"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("[original] cannot change"), "{said}");
    }
}

#[test]
fn saving_and_loading_changes_nothing() {
    let Some(hosts) = running(keyed, &[]) else { return };
    let file = hosts.folder(0).join("conf/connections/c.conf");
    let keys = |text: &str| {
        let lines = text.lines().filter(|line| line.contains(" = ")).map(str::to_owned);
        lines.collect::<std::collections::BTreeSet<_>>()
    };
    let before = keys(&fs::read_to_string(&file).unwrap());
    hosts.succeed(0, &["save", "c.conf"]);
    let after = keys(&fs::read_to_string(&file).unwrap());
    assert_eq!(before.difference(&after).collect::<Vec<_>>(), Vec::<&String>::new());
    hosts.succeed(0, &["reload", "c.conf"]);
    hosts.succeed(1, &["restart"]);
    hosts.reaches(0, None, "10.77.0.2");
}

/// Positional files may hold several connections.
const TWO_IN_ONE: &str = "\
2            # Connections Num.

two          # Connection Name
3            # Permission Send (1)/Receive (2)
4            # The Version of IP
10.77.0.1    # Local IP
4754         # Local Port
10.77.0.2    # Remote IP
4754         # RDP (Remote Data Port)
60456        # UDP Port Number Remote
1            # Paths Num.
0            # Networks Num
5            # Time of Keepalive Message
11           # Dead Timer (sec)
0            # Status of Connection
0            # Auth Type
0            # Auth Key

v0                 # Interface Name
4                  # The Version of IP
192.168.10.1       # Public IP
0.0.0.0            # Gateway_IP
192.168.10.2       # Remote IP
5                  # Keepalive Time
11                 # Dead Time
1                  # Weight out
1                  # Weight in
1                  # CMD default
0                  # Path status
";

#[test]
fn a_file_of_several_connections_is_neither_saved_nor_taken_out_of_use() {
    let Some(mut hosts) = Hosts::make() else { return };
    directory(&hosts.folder(0), 0, unchanged);
    let connections = hosts.folder(0).join("conf/connections");
    fs::remove_file(connections.join("c.conf")).unwrap();
    let three = TWO_IN_ONE.replace("two ", "three ").replace("10.2 ", "10.3 ").replace("0.2 ", "0.3 ");
    let text = TWO_IN_ONE.to_owned() + three.split_once('\n').unwrap().1;
    fs::write(connections.join("all.conf"), &text).unwrap();
    let folder = hosts.folder(0);
    hosts.up(0, &["--legacy", folder.to_str().unwrap()]);
    for words in [&["save"][..], &["save", "two"], &["delete", "all.conf"], &["delete", "three"]] {
        let refused = hosts.mpt(0, words);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("all.conf holds several connections, two, three"), "{said}");
    }
    assert_eq!(fs::read_to_string(connections.join("all.conf")).unwrap(), text);
    assert_ne!(hosts.state(0, "v0"), "none");
}

#[test]
fn a_deleted_connection_is_gone_and_its_file_disabled() {
    let Some(hosts) = running(unchanged, &[]) else { return };
    hosts.succeed(0, &["delete", "c.conf"]);
    assert_eq!(hosts.state(0, "v0"), "none");
    let connections = hosts.folder(0).join("conf/connections");
    assert!(connections.join("c.conf.disabled").exists() && !connections.join("c.conf").exists());
    assert_eq!(hosts.mpt(0, &["reload", "c.conf"]).status.code(), Some(1));
    fs::rename(connections.join("c.conf.disabled"), connections.join("c.conf")).unwrap();
    hosts.succeed(0, &["reload"]);
    hosts.reaches(0, None, "10.77.0.2");
}

#[test]
fn sites_reach_each_other_and_routes_go_with_the_tunnel() {
    let site = |text: &str| {
        let mirrored = text.contains("ip_local = 10.77.0.2");
        let (near, far) = if mirrored { (82, 81) } else { (81, 82) };
        text.replace("network_count = 0", "network_count = 1")
            + &format!("\n[net_0]\nsrc_addr = 10.{near}.0.0/24\ndst_addr = 10.{far}.0.0/24\n")
    };
    let Some(mut hosts) = running(site, &[]) else { return };
    hosts.attach_site(0, "10.81.0");
    hosts.attach_site(1, "10.82.0");
    hosts.reaches(0, Some("10.81.0.1"), "10.82.0.1");
    hosts.reaches(1, None, "10.81.0.1");
    assert_eq!(hosts.ping_from_site(0, "10.82.0.9"), 10, "from site to site");
    assert_eq!(hosts.ping_from_site(1, "10.77.0.1"), 10, "from site to tunnel");
    hosts.sh(0, "ip addr add 10.99.0.1/32 dev lo");
    assert_eq!(hosts.ping(0, Some("10.99.0.1"), "10.82.0.1"), 0, "from a network that is none of the connection's");
    hosts.down(0);
    assert!(!hosts.sh(0, "ip route").contains("10.82"));
}

#[test]
fn the_whole_internet_is_led_into_the_tunnel_but_not_the_tunnel_itself() {
    let everything = |text: &str| {
        let mirrored = text.contains("ip_local = 10.77.0.2");
        let (near, far) = if mirrored { ("0.0.0.0/0", "10.77.0.1/32") } else { ("10.77.0.1/32", "0.0.0.0/0") };
        text.replace("network_count = 0", "network_count = 1")
            + &format!("\n[net_0]\nsrc_addr = {near}\ndst_addr = {far}\n")
    };
    let Some(hosts) = running(everything, &[]) else { return };
    hosts.sh(1, "ip addr add 198.51.100.7/32 dev lo");
    hosts.reaches(0, Some("10.77.0.1"), "198.51.100.7");
    let routes = hosts.sh(0, "ip route");
    assert!(routes.contains("0.0.0.0/1 dev tunh") && routes.contains("128.0.0.0/1 dev tunh"), "{routes}");
    hosts.down(0);
    assert!(!hosts.sh(0, "ip route").contains("/1 "));
}

#[test]
fn a_path_that_follows_the_default_route_keeps_it_when_the_tunnel_takes_the_rest() {
    let Some(mut hosts) = Hosts::make() else { return };
    hosts.sh(0, "ip route add default via 192.168.10.2 dev v0");
    hosts.sh(1, "ip addr add 203.0.113.2/32 dev lo; ip addr add 198.51.100.7/32 dev lo");
    let ends = [("192.168.10.1", "203.0.113.2", 1, "routes = [\"0.0.0.0/0\"]"), ("203.0.113.2", "192.168.10.1", 2, "")];
    for (host, (local, remote, number, routes)) in ends.into_iter().enumerate() {
        let file = hosts.folder.path().join(format!("{host}.toml"));
        let text = format!(
            "mode = \"plain\"\naddress = [\"10.77.0.{number}/24\"]\n{routes}\n[[peer]]\n[[peer.path]]\n\
             local = \"{local}\"\nremote = \"{remote}\"\n"
        );
        fs::write(&file, text).unwrap();
        hosts.up(host, &[file.to_str().unwrap()]);
    }
    hosts.reaches(0, None, "198.51.100.7");
    assert!(hosts.sh(0, "ip route get 198.51.100.7").contains("dev mpt0"));
    assert!(hosts.sh(0, "ip route get 203.0.113.2").contains("via 192.168.10.2 dev v0"));
    hosts.down(0);
    let routes = hosts.sh(0, "ip route");
    assert!(!routes.contains("203.0.113.2") && routes.contains("default via 192.168.10.2"), "{routes}");
}

#[test]
fn addresses_are_given_and_taken_away() {
    let Some(hosts) = running(unchanged, &[]) else { return };
    hosts.succeed(0, &["addr", "add", "10.99.0.1", "dev", "tunh"]);
    assert!(hosts.sh(0, "ip addr show dev tunh").contains("10.99.0.1/24"));
    assert_eq!(hosts.mpt(0, &["addr", "add", "10.99.0.1/24", "dev", "tunh"]).status.code(), Some(1));
    hosts.succeed(0, &["address", "del", "10.99.0.1/24", "dev", "tunh"]);
    assert!(!hosts.sh(0, "ip addr show dev tunh").contains("10.99.0.1"));
    assert_eq!(hosts.mpt(0, &["addr", "add", "10.99.0.1", "on", "tunh"]).status.code(), Some(2));
}
