use proptest::prelude::*;

use super::*;
use crate::legacy::model::{Prefix, Public};
use crate::legacy::{samples, write};
use mpt_proto::legacy::wire::AuthType;

fn source(file: &str, text: &str) -> SourceFile {
    SourceFile { file: file.into(), text: text.into() }
}

fn sources(connection: &str) -> [SourceFile; 2] {
    [source("conf/interface.conf", samples::INTERFACE), source("conf/connections/c.conf", connection)]
}

fn problems(connection: &str) -> Vec<String> {
    LegacySetup::read(&sources(connection)).unwrap_err().iter().map(ToString::to_string).collect()
}

/// Returns the first line of each problem, without the file.
fn messages(connection: &str) -> Vec<String> {
    let first = |problem: &String| problem.lines().next().unwrap().replace("conf/connections/c.conf:", "");
    problems(connection).iter().map(first).collect()
}

#[test]
fn the_measured_pair_of_hosts_is_read() {
    let setup = LegacySetup::read(&sources(samples::CONNECTION)).unwrap();
    let interface = &setup.interface;
    assert_eq!((interface.accept_remote, interface.cmdport_local, interface.cmd_timeout), (true, 60456, 10));
    let tunnel = &interface.tunnels[0];
    assert_eq!((tunnel.name.as_str(), tunnel.mtu), ("tunh", 1440));
    assert_eq!((tunnel.ipv4, tunnel.ipv6), ("10.77.0.1/24".parse().ok(), "fd78::1/64".parse().ok()));

    let [connection] = setup.connections.as_slice() else { panic!("one connection") };
    assert_eq!((connection.name.as_str(), connection.local_port, connection.remote_port), ("c_A", 4754, 4754));
    assert_eq!((connection.local_cmd_port, connection.remote_cmd_port), (60456, 60456));
    assert_eq!((connection.ip_local, connection.ip_remote), ("10.77.0.1".parse().ok(), "10.77.0.2".parse().ok()));
    assert_eq!((connection.reorder_window, connection.max_buffdelay_msec), (0, 300));
    assert_eq!((connection.auth_type, connection.key().is_public()), (AuthType::None, true));
    let [first, second] = connection.paths.as_slice() else { panic!("two paths") };
    assert_eq!((first.cmd_default, second.cmd_default), (true, false));
    assert_eq!((second.keepalive_time, second.dead_time, second.window_size), (5, 11, 1));
    assert_eq!(second.public_ipaddr, Public::Is("192.168.11.1".parse().unwrap()));
}

#[test]
fn omitted_values_have_the_originals_defaults() {
    let minimal = "[connection]\nip_remote = fd78::2\nlocal_port = 4754\npath_count = 1\nmax_buffdelay_msec = 0\n\
                 [path_0]\nremote_ipaddr = 192.0.2.2\nkeepalive_time = 7";
    let setup = LegacySetup::read(&[
        source("interface.conf", "[general]\ntunnel_num=1\n[tun_0]\nipv6_addr=fd78::1/64"),
        source("c.conf", minimal),
    ]);
    let LegacySetup { interface, connections, .. } = setup.unwrap();
    assert_eq!((interface.cmdport_local, interface.accept_remote, interface.cmd_timeout), (65050, false, 15));
    assert_eq!(
        (interface.tunnels[0].name.as_str(), interface.tunnels[0].mtu, interface.tunnels[0].ipv4),
        ("tun0", 1440, None)
    );
    let connection = &connections[0];
    assert_eq!(
        (connection.name.as_str(), connection.v6, connection.ip_local),
        ("connection", true, "fd78::1".parse().ok())
    );
    assert_eq!((connection.local_port, connection.remote_port, connection.remote_cmd_port), (4754, 65000, 65050));
    assert_eq!((connection.permission, connection.status, connection.max_buffdelay_msec), (0, 128, 100));
    let path = &connection.paths[0];
    assert_eq!((path.interface_name.as_str(), path.v6, path.private_ipaddr), ("unnamed_path", false, None));
    assert_eq!((path.public_ipaddr, path.gw_ipaddr), (Public::Discover, None));
    assert_eq!((path.dead_time, path.weight_out, path.weight_in, path.status), (21, 1, 1, 0));
}

#[test]
fn every_mistake_of_every_file_is_reported_at_once() {
    let wrong = samples::CONNECTION
        .replace("ip_remote = 10.77.0.2", "ip_remote = fd78::2")
        .replace("remote_cmd_port = 60456", "remote_cmd_port = 604560")
        .replace("auth_type = 0", "auth_type = 3")
        .replacen("weight_out = 1", "weight_out = 0", 1);
    assert_eq!(
        messages(&wrong),
        [
            "8: expected an IPv4 address for `ip_remote`, found `fd78::2`",
            "10: expected a number from 1 to 65535 for `remote_cmd_port`, found `604560`",
            "16: expected 0, 1 or 2 for `auth_type`, found `3`",
            "27: expected a number from 1 to 10000 for `weight_out`, found `0`",
            "8: expected `ip_remote` in [connection]: the peer's tunnel address",
        ]
    );
    let interface = source("interface.conf", "[general]\ntunnel_num = 0\n");
    let both = LegacySetup::read(&[interface, source("c.conf", &wrong)]).unwrap_err();
    assert_eq!((both.len(), both[0].line), (6, 2));
}

#[test]
fn a_count_beyond_its_sections_is_an_error_with_a_hint() {
    let wrong = samples::CONNECTION.replace("path_count = 2", "path_count = 3");
    assert_eq!(
        problems(&wrong),
        ["conf/connections/c.conf:11: expected a section [path_2], as `path_count` requires\n  \
          hint: sections are counted from 0: add [path_2] or lower `path_count`"]
    );
    let far_too_many = samples::CONNECTION.replace("path_count = 2", "path_count = 2000000000");
    assert_eq!(messages(&far_too_many)[0], "11: expected a number from 0 to 32 for `path_count`, found `2000000000`");
}

#[test]
fn crashes_of_the_original_are_errors() {
    let crash = |from: &str, to: &str| messages(&samples::CONNECTION.replacen(from, to, 1)).len();
    assert_eq!(crash("weight_out = 1", "weight_out = 0"), 1);
    assert_eq!(crash("name = c_A", &format!("name = {}", "x".repeat(128))), 1);
    assert_eq!(crash("reorder_window = 0", "reorder_window = 10001"), 1);
    assert_eq!(crash("network_count = 0", "network_count = 257"), 1);
}

#[test]
fn an_ipv6_network_in_an_ipv4_connection_is_a_network() {
    let text = samples::CONNECTION.replace("network_count = 0", "network_count = 2");
    let text = format!(
        "{text}[net_0]\nip_ver = 6\nsrc_addr = fd81::/64\ndst_addr = fd82::/64\n\
         [net_1]\nsrc_addr = 10.0.2.0/24\ndst_addr = 0.0.0.0\n"
    );
    let setup = LegacySetup::read(&sources(&text)).unwrap();
    let networks = &setup.connections[0].networks;
    assert_eq!(networks[0].src_addr, "fd81::/64".parse().unwrap());
    assert_eq!(networks[1].src_addr, Prefix { address: "10.0.2.0".parse().unwrap(), len: 24 });
    assert_eq!(networks[1].dst_addr.len, 0);
    let short = messages(&text.replace("10.0.2.0/24", "10.0.2/24"));
    assert_eq!(short.len(), 1);
    assert!(
        short[0].contains("a prefix of four parts like 10.0.2.0/24 for `src_addr`, found `10.0.2/24`"),
        "{short:?}"
    );
}

#[test]
fn settings_without_effect_are_noted_with_the_reason() {
    let text = format!("{}gateway_ipaddr = 192.168.11.9\nwindow_size = 3\n[path_2]\n", samples::CONNECTION);
    let notes: Vec<_> = LegacySetup::read(&sources(&text)).unwrap().notes.iter().map(ToString::to_string).collect();
    for expected in [
        "conf/interface.conf:6: `cmd_timeout` is not carried over: commands are answered at once",
        "conf/connections/c.conf:4: `permission` is not carried over: the original reads and shows it, and enforces nothing",
        "conf/connections/c.conf:44: `gateway_ipaddr` is not read by the original either: it reads `gw_ipaddr`",
        "conf/connections/c.conf:45: `window_size` is not carried over: the original reads it and does not use it",
        "conf/connections/c.conf:46: [path_2] is not carried over: `path_count` is 2",
    ] {
        assert!(notes.iter().any(|note| note == expected), "{expected}\n{notes:#?}");
    }
}

#[test]
fn a_network_without_length_is_noted_as_default() {
    let nets = "\n[net_0]\nsrc_addr = 0.0.0.0/0\ndst_addr = 10.82.0.0\n";
    let text = samples::CONNECTION.replace("network_count = 0", "network_count = 1") + nets;
    let notes = LegacySetup::read(&sources(&text)).unwrap().notes;
    let expected = "`dst_addr = 10.82.0.0` matches everything: the original's default length is 0";
    assert!(notes.iter().any(|note| note.what == expected && note.line > 40), "{notes:#?}");
}

#[test]
fn messages_do_not_repeat_a_key() {
    let text = samples::CONNECTION.replace("auth_type = 0", &format!("auth_key = {}", "5d3c".repeat(32)));
    assert_eq!(messages(&text), ["16: expected at most 127 characters for `auth_key`, found a hidden value"]);
}

#[test]
fn the_tunnel_interface_sets_the_address_of_a_connection() {
    let setup =
        LegacySetup::read(&sources(&samples::CONNECTION.replace("ip_local = 10.77.0.1", "ip_local = 10.99.0.1")))
            .unwrap();
    assert_eq!(setup.connections[0].ip_local, "10.77.0.1".parse().ok());
    assert!(setup.notes.iter().any(|note| note.what.contains("10.99.0.1")));
}

#[test]
fn invalid_tunnels_are_reported_with_file_and_line() {
    let no_port = samples::CONNECTION.replace("local_port = 4754", "local_port = 0");
    assert_eq!(messages(&no_port), ["7: expected `local_port` in [connection]: the peer sends to a fixed port"]);

    let narrow = samples::INTERFACE.replace("mtu = 1440", "mtu = 1200");
    let [_, connection] = sources(samples::CONNECTION);
    let problems = LegacySetup::read(&[source("interface.conf", &narrow), connection]).unwrap_err();
    assert_eq!(
        problems[0].location_and_cause(),
        "interface.conf:10: expected an `mtu` of at least 1280, which IPv6 needs, found 1200"
    );

    let alone = LegacySetup::read(&[source("interface.conf", samples::INTERFACE)]).unwrap_err();
    assert_eq!(alone[0].location_and_cause(), "interface.conf: expected a connection beside it");
}

#[test]
fn a_template_is_read_in_every_generation_and_encoding() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("conf.template");
    let read = |text: &[u8]| {
        fs::write(&file, text).unwrap();
        template(Files::DISK, &file)
    };
    let latin = [b"; caf\xe9\n", samples::CONNECTION.as_bytes()].concat();
    assert_eq!(read(&latin).unwrap().name, "c_A");
    let positional = include_bytes!("../../tests/listings/p2019/connections/IPv4.conf");
    assert_eq!(read(positional).unwrap().name, "MPT Connection");
    assert_eq!(read(b"[connection]\nip_ver = 400\n").unwrap_err().line, 2);
}

#[test]
fn a_mark_of_the_byte_order_is_no_part_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("conf.template");
    let positional = include_str!("../../tests/listings/p2019/connections/IPv4.conf").replace("MPT Connection", "c_A");
    let after_comments = positional.split_once("##\n").unwrap().1;
    for text in [samples::CONNECTION, after_comments] {
        fs::write(&file, format!("\u{feff}{text}")).unwrap();
        assert_eq!(template(Files::DISK, &file).unwrap().name, "c_A");
    }
}

#[test]
fn an_unknown_section_is_noted() {
    let text = format!("{}\n[weird]\nx = 1\n[conection]\nauth_key = 5d3c\n[netw_0]\n[path_]\n", samples::CONNECTION);
    let notes = LegacySetup::read(&sources(&text)).unwrap().notes;
    let unknown: Vec<_> = notes.iter().filter(|note| note.what.contains("is not a section")).collect();
    let names: Vec<_> = unknown.iter().map(|note| note.what.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["[weird]", "[conection]", "[netw_0]", "[path_]"]);
    let line = text.lines().position(|line| line == "[weird]").unwrap() + 1;
    assert_eq!((unknown[0].file.as_str(), unknown[0].line), ("conf/connections/c.conf", line));
}

#[test]
fn no_hint_omits_a_required_key() {
    for (from, to) in [
        ("ip_remote = 10.77.0.2", "ip_remote = fd78::2"),
        ("remote_ipaddr = 192.168.10.2", "remote_ipaddr = 192.168.10"),
        ("local_port = 4754", "local_port = 70000"),
    ] {
        let first = problems(&samples::CONNECTION.replacen(from, to, 1)).remove(0);
        assert!(first.contains(to.split(' ').next_back().unwrap()) && !first.contains("leave the line out"), "{first}");
    }
}

#[test]
fn a_tunnel_interface_has_a_name_that_one_can_have() {
    let [_, connection] = sources(samples::CONNECTION);
    for wrong in ["averyverylongtunnelname", "all", "lo", "default", "tun:0"] {
        let interface =
            source("interface.conf", &samples::INTERFACE.replace("name = tunh", &format!("name = {wrong}")));
        let problems = LegacySetup::read(&[interface, connection.clone()]).unwrap_err();
        assert!(
            problems[0].location_and_cause().starts_with("interface.conf:9: expected the name of an interface"),
            "{problems:?}"
        );
        assert!(problems[0].what.ends_with(&format!("found `{wrong}`")), "{problems:?}");
    }
}

#[test]
fn a_template_need_not_lead_anywhere() {
    let template =
        "[connection]\nip_ver=4\nlocal_port=65020\npath_count=1\nauth_key = secret\n[path_0]\ninterface_name=eth0\n";
    let [interface, connection] = sources(samples::CONNECTION);
    let setup =
        LegacySetup::read(&[interface, connection, source("conf/connections/conf.template", template)]).unwrap();
    let template = setup.template.unwrap();
    assert_eq!((template.local_port, template.ip_remote), (65020, None));
    assert!(!template.key().is_public());
}

#[test]
fn two_connections_between_the_same_addresses_are_an_error() {
    let [interface, connection] = sources(samples::CONNECTION);
    let twin = source("conf/connections/d.conf", samples::CONNECTION);
    let problems = LegacySetup::read(&[interface, connection, twin]).unwrap_err();
    assert_eq!(
        problems[0].to_string().lines().next(),
        Some("conf/connections/d.conf: has the same tunnel addresses as conf/connections/c.conf")
    );
}

#[test]
fn one_interface_conf_is_needed_and_one_only() {
    let [interface, connection] = sources(samples::CONNECTION);
    assert_eq!(LegacySetup::read(std::slice::from_ref(&connection)).unwrap_err().len(), 1);
    assert_eq!(LegacySetup::read(&[interface.clone(), interface, connection]).unwrap_err().len(), 1);
}

#[test]
fn positional_files_are_read_like_any_other() {
    let interface = include_str!("../../tests/listings/p2014/interface.conf");
    let connection = include_str!("../../tests/listings/p2014/connections/IPv4overIPv4.conf");
    let read =
        |connection: &str| LegacySetup::read(&[source("interface.conf", interface), source("c1.conf", connection)]);
    let setup = read(connection).unwrap();
    assert_eq!(setup.connections[0].paths[0].remote_ipaddr, "10.0.0.2".parse().ok());
    assert_eq!(setup.connections[0].ip_local, "192.168.200.1".parse().ok());
    assert!(setup.notes.iter().any(|note| note.line == 12 && note.what.contains("`eth1`")), "{:#?}", setup.notes);

    let problems = read(&connection.replacen("4  ", "four  ", 1)).unwrap_err();
    let expected = "c1.conf:1: expected a number for `ip_ver` of connection, found `four`";
    assert_eq!(problems[0].to_string().lines().next(), Some(expected));
    assert!(problems[0].hint.contains("fixed place"));
}

#[test]
fn a_directory_is_read_as_the_original_reads_it() {
    let dir = std::env::temp_dir().join(format!("mpt-legacy-{}", std::process::id()));
    let connections = dir.join("conf/connections");
    fs::create_dir_all(&connections).unwrap();
    fs::write(dir.join("conf/interface.conf"), samples::INTERFACE).unwrap();
    for file in ["b.conf", "conf.template", "old.conf.disabled"] {
        fs::write(connections.join(file), samples::CONNECTION).unwrap();
    }
    let setup = LegacySetup::load(std::slice::from_ref(&dir));
    fs::remove_dir_all(&dir).unwrap();
    let setup = setup.unwrap();
    assert_eq!((setup.connections.len(), setup.template.is_some()), (1, true));
    assert_eq!(write::interface(&setup.interface).lines().nth(2), Some("tunnel_num = 1"));

    let missing = LegacySetup::load(&[dir]).unwrap_err();
    assert!(missing[0].what.starts_with("cannot be read"));
}

/// A valid line of a file, a damaged one, or a truncated one.
fn any_line() -> impl Strategy<Value = String> {
    let lines: Vec<_> = samples::INTERFACE.lines().chain(samples::CONNECTION.lines()).collect();
    let real = prop::sample::select(lines);
    let labels =
        ["# INT. NAME", "# IP VERSION", "# NUMBER OF PATHS", "# NUMBER OF NETWORKS", "# DEAD TIMER", "; x", ""];
    prop_oneof![
        real.clone().prop_map(str::to_owned),
        (real, any::<prop::sample::Index>()).prop_map(|(line, at)| line[..at.index(line.len() + 1)].to_owned()),
        "[\\[\\]=;#\"'/.:a-c0-9\\\\ ]{0,12}",
        ("[0-9a-f.:/]{1,8}", prop::sample::select(labels.to_vec()))
            .prop_map(|(value, label)| format!("{value} {label}")),
    ]
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(lines in prop::collection::vec(any_line(), 0..80), name in "(interface|c|conf).(conf|template)") {
        let text = lines.join("\n");
        let [interface, _] = sources("");
        let _ = LegacySetup::read(&[interface, source(&name, &text)]);
        let _ = LegacySetup::read(&[source("interface.conf", &text)]);
    }
}
