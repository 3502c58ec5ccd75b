//! The formats that papers describe for the positional generations, written for these tests.

use super::*;

const INTERFACES_2014: &str = "\
####### Interface information #######
3                  # The number of the interfaces
60456              # The local cmd UDP port
1                  # Accept remote connections

tun0               # INT. NAME
4a:00:00:00:00:01  # MAC ADDRESS
10.0.0.1/24        # IPv4 ADDRESS

eth0               # INT. NAME
08:00:27:aa:bb:01  # MAC ADDRESS
192.168.1.1/24     # IPv4 ADDRESS
192.168.1.254      # GATEWAY

eth1               # INT. NAME
08:00:27:aa:bb:02  # MAC ADDRESS
192.168.2.1/24     # IPv4 ADDRESS
";

const CONNECTION_2014: &str = "\
1            # The number of the connections

conn_1       # CONNECTION NAME
3            # SEND(1)/RECEIVE(2) CONNECTION UPDATE
4            # IP VERSION
10.0.0.1     # LOCAL IP
65020        # LOCAL DATA PORT
10.0.0.2     # REMOTE IP
65020        # REMOTE DATA PORT
60456        # REMOTE CMD PORT
2            # NUMBER OF PATHS
1            # NUMBER OF NETWORKS
5            # KEEP ALIVE TIME
11           # DEAD TIMER
0            # AUTH. TYPE

eth0               # INT. NAME
4                  # IP VERSION
08:00:27:aa:bb:01  # MAC ADDRESS
192.168.1.1        # LOCAL IP
192.168.1.2        # REMOTE IP
10                 # WEIGHT
64                 # WINDOW SIZE

eth1               # INT. NAME
4                  # IP VERSION
192.168.2.1        # LOCAL IP
192.168.2.2        # REMOTE IP
7                  # DEAD TIMER
1                  # WEIGHT

4            # IP VERSION
10.0.2/24    # SOURCE
10.0.3/24    # DESTINATION
";

/// The order of the INI tables, without any label.
const CONNECTION_2019: &str = "\
; a connection
conn_1
3
4
10.0.0.1
65020
10.0.0.2
65020
60456
1        # one path
1        # and one more thing
0
900
300
0
0123456789abcdef
; the path
eth0
4
192.168.1.1
private_ipaddr
192.168.1.254
192.168.1.2
5
11
10
1
1
0
1
; the network
4
10.0.2/24
10.0.3/24
";

fn read_one(text: &str, kind: Kind) -> Ini {
    let mut problems = vec![];
    let mut inis = read("old.conf", text, kind, &mut problems);
    assert_eq!((problems, inis.len()), (vec![], 1));
    inis.remove(0)
}

fn values(ini: &Ini, section: &str, keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| ini.entry(section, key).map_or("-".into(), |entry| entry.value.clone())).collect()
}

#[test]
fn a_file_without_sections_and_keys_is_positional() {
    for text in [INTERFACES_2014, CONNECTION_2014, CONNECTION_2019] {
        assert!(is_positional(text));
    }
    assert!(!is_positional("; nothing\n"));
    assert!(!is_positional(crate::legacy::samples::CONNECTION));
    assert!(!is_positional("[connection]\nno equals sign\n"));
}

#[test]
fn interfaces_that_are_tunnels_become_tunnels() {
    let ini = read_one(INTERFACES_2014, Kind::Interface);
    assert_eq!(values(&ini, "general", &["tunnel_num", "cmdport_local", "accept_remote"]), ["1", "60456", "1"]);
    assert_eq!(values(&ini, "tun_0", &["name", "ipv4_addr"]), ["tun0", "10.0.0.1/24"]);
    assert_eq!(values(&ini, "interface_1", &["name", "mac_addr"]), ["eth0", "08:00:27:aa:bb:01"]);
    assert_eq!(values(&ini, "interface_2", &["name", "gw_ipaddr"]), ["eth1", "-"]);
    assert_eq!(ini.entry("tun_0", "ipv4_addr").unwrap().line, 8);
}

#[test]
fn labels_identify_values() {
    let ini = read_one(CONNECTION_2014, Kind::Connection);
    let connection =
        ["name", "permission", "ip_ver", "ip_local", "local_port", "ip_remote", "remote_port", "path_count"];
    let expected = ["conn_1", "3", "4", "10.0.0.1", "65020", "10.0.0.2", "65020", "2"];
    assert_eq!(values(&ini, "connection", &connection), expected);
    let path = [
        "interface_name",
        "private_ipaddr",
        "remote_ipaddr",
        "weight_out",
        "window_size",
        "keepalive_time",
        "dead_time",
    ];
    assert_eq!(values(&ini, "path_0", &path), ["eth0", "192.168.1.1", "192.168.1.2", "10", "64", "5", "11"]);
    assert_eq!(values(&ini, "path_1", &path), ["eth1", "192.168.2.1", "192.168.2.2", "1", "-", "5", "7"]);
    assert_eq!(values(&ini, "net_0", &["ip_ver", "src_addr", "dst_addr"]), ["4", "10.0.2/24", "10.0.3/24"]);
    assert_eq!(ini.entry("connection", "keepalive_time"), None);
}

#[test]
fn without_labels_the_position_identifies_values() {
    let ini = read_one(CONNECTION_2019, Kind::Connection);
    let connection =
        ["ip_local", "remote_cmd_port", "path_count", "network_count", "reorder_window", "auth_type", "auth_key"];
    let expected = ["10.0.0.1", "60456", "1", "1", "900", "0", "0123456789abcdef"];
    assert_eq!(values(&ini, "connection", &connection), expected);
    let path =
        ["interface_name", "public_ipaddr", "gw_ipaddr", "remote_ipaddr", "dead_time", "weight_out", "window_size"];
    assert_eq!(
        values(&ini, "path_0", &path),
        ["eth0", "private_ipaddr", "192.168.1.254", "192.168.1.2", "11", "10", "1"]
    );
    assert_eq!(values(&ini, "net_0", &["src_addr", "dst_addr"]), ["10.0.2/24", "10.0.3/24"]);
}

#[test]
fn a_file_may_hold_several_connections() {
    let text =
        format!("{CONNECTION_2014}\n{}", CONNECTION_2014.replace("conn_1", "conn_2").split_once('\n').unwrap().1);
    let mut problems = vec![];
    let inis = read("old.conf", &text, Kind::Connection, &mut problems);
    assert_eq!((inis.len(), problems), (2, vec![]));
    for (ini, name) in inis.iter().zip(["conn_1", "conn_2"]) {
        assert_eq!(values(ini, "connection", &["name", "path_count"]), [name, "2"]);
        assert_eq!(values(ini, "path_1", &["interface_name"]), ["eth1"]);
    }
}

#[test]
fn a_file_of_comments_is_an_error() {
    let mut problems = vec![];
    assert_eq!(read("old.conf", "# nothing\n", Kind::Connection, &mut problems), []);
    assert_eq!(problems.len(), 1);
}
