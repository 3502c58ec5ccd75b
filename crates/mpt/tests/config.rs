//! Configuration files and their messages: `tests/config/NAME.toml` with `NAME.expected`.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use mpt::config::model::{BeyondLimit, DataLimit, File, Mode, Role};
use mpt::config::{self, Problem};
use mpt_proto::classify::{Class, Pattern, Rule};
use mpt_proto::config::{PlainFraming, ProbeConfig, Protocol};
use mpt_proto::path_manager::Pairs;
use mpt_proto::time::Rate;
use mpt_proto::{cc, reorder, sched};
use proptest::{prop_assert, proptest};

const EVERYTHING: &str = include_str!("config/everything.toml");

fn parse(text: &str) -> Result<File, Vec<Problem>> {
    config::parse(Path::new("tunnel.toml"), text)
}

fn framing(file: &File) -> PlainFraming {
    match file.peers[0].protocol.value {
        Protocol::Plain(framing) => framing,
        Protocol::Native(_) => panic!("not plain"),
    }
}

/// Returns all messages about a file.
fn messages(path: &Path) -> String {
    let name = path.file_name().expect("a file has a name");
    let text = fs::read_to_string(path).expect("it was listed a moment ago");
    let problems = config::parse(name.as_ref(), &text).map(|file| file.warnings);
    problems.unwrap_or_else(|errors| errors).iter().map(|problem| format!("{problem}\n")).collect()
}

#[test]
fn every_file_gets_the_expected_messages() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    assert!(files.len() > 10);
    for path in files {
        let expected = fs::read_to_string(path.with_extension("expected")).unwrap();
        let messages = messages(&path);
        assert_eq!(messages, expected, "{}:\n{messages}", path.display());
    }
}

#[test]
fn no_message_repeats_a_key() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let secret = "dwdtCnMY";
    assert!(EVERYTHING.contains(secret));
    for file in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "toml") {
            assert!(!messages(&file).contains(secret), "{}", file.display());
        }
    }
    assert!(!format!("{:?}", parse(EVERYTHING).unwrap()).contains(secret));
}

#[test]
fn a_short_file_is_filled_in_with_defaults() {
    let file =
        parse("mode = 'plain'\naddress = ['10.77.0.1/24']\n[[peer]]\n[[peer.path]]\nremote = '192.0.2.1'").unwrap();
    assert_eq!(file.interface.value, "mpt0");
    assert_eq!((file.port.value, file.mtu, file.offload), (4754, None, true));
    assert_eq!(file.scheduler.value, sched::SchedulerKind::Weighted);
    assert_eq!((file.mode.value, file.identity.is_none()), (Mode::Plain, true));
    assert_eq!((file.resequence, file.probe), (Some(reorder::ReorderLimits::default()), Some(ProbeConfig::default())));
    let [peer] = &file.peers[..] else { panic!("one peer") };
    assert_eq!(peer.name.value, "peer");
    assert_eq!(framing(&file), PlainFraming { sequence: true, key: None, checksum: false });
    assert_eq!(peer.networks.iter().map(|net| net.to_string()).collect::<Vec<_>>(), ["0.0.0.0/0", "::/0"]);
    let [path] = &peer.paths[..] else { panic!("one path") };
    assert_eq!((path.name.as_str(), path.weight), ("path1", 1));
    assert_eq!(path.remote.map(|at| at.value), "192.0.2.1:4754".parse::<SocketAddr>().ok());
}

#[test]
fn a_peer_that_is_added_below_changes_no_name_of_those_above() {
    let names = |peers: &[&str]| {
        let peers = (1..).zip(peers).map(|(number, name)| {
            format!(
                "[[peer]]\n{name}\nnetworks = ['10.82.{number}.0/24']\n[[peer.path]]\nremote = '192.0.2.{number}'\n"
            )
        });
        let text = format!("mode = 'plain'\naddress = []\n{}", peers.collect::<String>());
        parse(&text).unwrap().peers.into_iter().map(|peer| peer.name.value).collect::<Vec<_>>()
    };
    assert_eq!(names(&[""]), ["peer"]);
    assert_eq!(names(&["", ""]), ["peer", "peer2"]);
    assert_eq!(names(&["", "name = 'hub'", "", ""]), ["peer", "hub", "peer2", "peer3"], "names count for nobody");
}

#[test]
fn every_setting_arrives_where_it_belongs() {
    let text = "mode = 'plain'\naddress = []\nscheduler = 'min-rtt'\noffload = false\nmtu = 1280\nport = 1\n\
        reorder = 'fixed'\nreorder_window = 65536\nreorder_delay = '10s'\nkeepalive = '1h'\ndead = '2m'\n\
        [plain]\nsequence = false\nkey = 4294967295\nchecksum = true\n\
        [[peer]]\nname = 'a'\nport = 2\n[[peer.path]]\nlocal = '2001:db8::1'\nremote = '2001:db8::2'\nweight = 10000";
    let file = parse(text).unwrap();
    assert_eq!(framing(&file), PlainFraming { sequence: false, key: Some(u32::MAX), checksum: true });
    let limits = file.resequence.unwrap();
    assert_eq!((limits.window, limits.max_hold, limits.adaptive), (65_536, Duration::from_secs(10), false));
    let probe = file.probe.unwrap();
    assert_eq!((probe.idle, probe.dead), (Duration::from_secs(3_600), Duration::from_secs(120)));
    assert_eq!((file.scheduler.value, file.offload), (sched::SchedulerKind::MinRtt, false));
    assert_eq!(file.mtu.map(|mtu| mtu.value), Some(1280));
    let path = &file.peers[0].paths[0];
    assert_eq!(path.local.map(|ip| ip.value), Some("2001:db8::1".parse::<IpAddr>().unwrap()));
    assert_eq!((path.remote.unwrap().to_string(), path.weight), ("[2001:db8::2]:2".to_owned(), 10_000));
}

#[test]
fn every_setting_of_native_mode_arrives_where_it_belongs() {
    let file = parse(EVERYTHING).unwrap();
    assert_eq!(file.identity.unwrap().public().to_string(), "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=");
    let Protocol::Native(native) = &file.peers[0].protocol.value else { panic!("native") };
    assert_eq!(native.public_key.to_string(), "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=");
    assert_eq!(*native.preshared_key.to_base64(), native.public_key.to_string());
    assert_eq!(native.congestion, cc::ControllerKind::Rate.into());
    let [dsl, wwan, incoming, tls] = &file.peers[0].paths[..] else { panic!("four paths") };
    assert_eq!((dsl.cap, dsl.role), (Some(Rate::from_bits(50_000_000)), Role::Available));
    assert_eq!((wwan.cap, wwan.role), (None, Role::Standby));
    assert_eq!((incoming.remote, incoming.name.as_str()), (None, "eth2"));
    let server = tls.tls.as_ref().unwrap();
    assert_eq!((server.to_string(), server.path.as_str()), ("server.example.org:443".to_owned(), "/path"));
    assert_eq!((tls.name.as_str(), tls.role, server.certificate.map(|own| own[0])), ("tls", Role::Standby, Some(0x9f)));
    let limit = DataLimit { bytes: 20_000_000_000, reset_day: 15, beyond: BeyondLimit::Never };
    assert_eq!([dsl.limit, wwan.limit, incoming.limit], [None, None, Some(limit)]);
    assert!(file.peers[1].connects_to_us());
    let auto = file.peers[2].auto.as_ref().unwrap();
    let remotes: Vec<_> = auto.remotes.iter().map(|remote| remote.to_string()).collect();
    assert_eq!(remotes, ["203.0.113.7:4754", "[2001:db8::7]:4755"]);
    assert_eq!((file.peers[2].pairs, auto.ports), (Pairs::FullMesh, 2));
    assert!(auto.interfaces.matches("eth0") && !auto.interfaces.matches("eth1") && !auto.interfaces.matches("wlan0"));
}

#[test]
fn a_remote_address_is_all_that_a_peer_needs_for_its_paths() {
    let keys = EVERYTHING.lines().filter(|line| line.starts_with("private_key") || line.starts_with("public_key"));
    let [private, public, ..] = keys.collect::<Vec<_>>()[..] else { panic!("keys") };
    let peer = |lines: &str| parse(&format!("{private}\naddress = []\n[[peer]]\n{public}\n{lines}"));
    for lines in ["remote = '203.0.113.7'", "remote = '203.0.113.7'\ninterfaces = 'auto'"] {
        let file = peer(lines).unwrap();
        let auto = file.peers[0].auto.as_ref().unwrap();
        assert_eq!(
            (file.peers[0].pairs, auto.ports, auto.remotes[0].value),
            (Pairs::One, 1, "203.0.113.7:4754".parse().unwrap())
        );
        assert!(auto.interfaces.matches("anything0") && !file.peers[0].connects_to_us());
    }
    assert!(peer("interfaces = 'auto'").is_err(), "an interface leads nowhere by itself");
}

#[test]
fn native_mode_is_the_default_and_predicts_arrivals_where_it_can() {
    let keys = EVERYTHING.lines().filter(|line| line.starts_with("private_key") || line.starts_with("public_key"));
    let [private, public, ..] = keys.collect::<Vec<_>>()[..] else { panic!("three keys") };
    let text = format!("{private}\naddress = []\n[[peer]]\n{public}\nnetworks = ['10.77.0.2/32']");
    let file = parse(&text).unwrap();
    assert_eq!(file.mode.value, Mode::Native);
    let predicts = sched::SchedulerKind::NAMES.iter().any(|(name, _)| *name == "earliest");
    assert_eq!(file.scheduler.name(), if predicts { "earliest" } else { "weighted" });
}

#[test]
fn probes_and_reordering_can_be_turned_off() {
    let text =
        "mode = 'plain'\naddress = []\nreorder = 'off'\nkeepalive = 'off'\n[[peer]]\n[[peer.path]]\nremote = '::1'";
    let file = parse(text).unwrap();
    assert_eq!((file.resequence, file.probe), (None, None));
}

#[test]
fn a_missing_file_is_reported_by_its_name() {
    let problems = config::load(Path::new("/nonexistent/tunnel.toml")).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].to_string().starts_with("/nonexistent/tunnel.toml: cannot be read: No such file"));
}

#[test]
fn an_ipv4_address_in_ipv6_form_is_ipv4() {
    let path = "local = '::ffff:192.0.2.1'\nremote = '[::ffff:192.0.2.2]:7'";
    let file = parse(&format!("mode = 'plain'\naddress = []\n[[peer]]\n[[peer.path]]\n{path}")).unwrap();
    let path = &file.peers[0].paths[0];
    assert_eq!(path.local.map(|ip| ip.to_string()), Some("192.0.2.1".to_owned()));
    assert_eq!(path.remote.unwrap().to_string(), "192.0.2.2:7");
    assert!(parse("mode = 'plain'\naddress = []\n[[peer]]\n[[peer.path]]\nremote = '::ffff:0.0.0.0'").is_err());
}

#[test]
fn numbers_may_be_written_in_every_way_that_toml_has() {
    for number in ["0x2000", "8_192", "0o20000", "+8192"] {
        let text = format!("mode = 'plain'\naddress = []\nmtu = {number}\n[[peer]]\n[[peer.path]]\nremote = '::1'");
        assert_eq!(parse(&text).unwrap().mtu.map(|mtu| mtu.value), Some(8_192), "{number}");
    }
}

proptest! {
    #[test]
    fn damaged_files_are_read_without_a_panic(at in 0..EVERYTHING.len(), cut in 0..80_usize, with in "[\\PC\n]{0,9}") {
        let end = (at + cut).min(EVERYTHING.len());
        if let (Some(before), Some(after)) = (EVERYTHING.get(..at), EVERYTHING.get(end..)) {
            let text = format!("{before}{with}{after}");
            let lines = text.lines().count().max(1);
            for problem in parse(&text).err().into_iter().flatten() {
                prop_assert!(problem.line.is_some_and(|line| (1..=lines + 1).contains(&line)), "{}", problem);
            }
        }
    }
}

#[test]
fn hostile_text_is_refused_without_a_panic() {
    let deep = format!("address = {}", "[".repeat(100_000));
    for text in ["\0", "\u{feff}", "= = =", "[[[[", "peer.path = 1\npeer = 2", "mode = \"\u{1b}[2J\"", deep.as_str()] {
        let problems = parse(text).unwrap_err();
        assert!(!problems.is_empty());
        assert!(problems.iter().all(|problem| !problem.to_string().contains('\u{1b}')));
    }
}

#[test]
fn every_condition_of_a_rule_arrives_where_it_belongs() {
    let file = parse(EVERYTHING).unwrap();
    let [rule] = &file.rules[..] else { panic!("one rule") };
    let pattern = Pattern {
        dscp: Some(46),
        protocol: Some(17),
        port: Some(5_004..=5_060),
        source_port: Some(1..=65_535),
        destination_port: Some(5_060..=5_060),
        source: "10.81.0.0/16".parse().ok(),
        destination: "10.82.0.0/16".parse().ok(),
    };
    let expected = Rule { pattern, class: Some(Class::Realtime), duplicate: 2, path: Some("dsl".to_owned()) };
    assert_eq!(rule.value, expected);
}

/// Returns the messages about a file in plain mode with these lines at its top and in its path.
fn messages_for(top: &str, path: &str) -> Vec<String> {
    let text = format!("mode = 'plain'\n{top}\n[[peer]]\nnetworks = ['10.0.0.0/8']\n[[peer.path]]\n{path}\n");
    let problems = parse(&text).map(|file| file.warnings).unwrap_or_else(|errors| errors);
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_zone_in_an_address_gets_a_hint_to_the_interface() {
    for remote in ["[fe80::1%3]:4754", "fe80::1%eth1", "[fe80::1%eth1]:4754"] {
        let messages = messages_for("address = []", &format!("interface = 'eth1'\nremote = '{remote}'"));
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(
            messages[0].starts_with("tunnel.toml:7: remote: ") && messages[0].contains("hint: without the zone"),
            "{messages:?}"
        );
    }
}

#[test]
fn an_unusable_tunnel_address_is_reported() {
    let messages = |addresses: &str| messages_for(&format!("address = [{addresses}]"), "remote = '192.0.2.1'");
    for right in [
        "'10.77.0.1/24', 'fd77::1/64'",
        "'10.77.0.0/31', '10.77.1.0/32', 'fd77::/128'",
        "'10.77.0.1/24', '10.77.0.2/24'",
    ] {
        assert_eq!(messages(right), [""; 0], "{right}");
    }
    for (odd, text) in [
        ("'10.77.0.0/24'", "warning: address: 10.77.0.0/24 is the network address"),
        ("'fd77::/64'", "warning: address: fd77::/64 is the network address"),
        ("'10.77.0.255/24'", "warning: address: 10.77.0.255/24 is the broadcast address"),
        ("'10.77.0.1/24', '10.77.0.1/24'", "warning: address: 10.77.0.1/24 is a duplicate"),
        ("'127.0.0.1/8'", "address: 127.0.0.1/8 is a loopback address"),
        ("'::1/128'", "address: ::1/128 is a loopback address"),
    ] {
        let messages = messages(odd);
        assert!(
            messages.len() == 1 && messages[0].starts_with(&format!("tunnel.toml:2: {text}")),
            "{odd}: {messages:?}"
        );
        assert!(messages[0].contains("hint: "), "{messages:?}");
    }
}

#[test]
fn a_tunnel_cannot_have_a_reserved_name() {
    for name in ["lo", "all", "default"] {
        let messages = messages_for(&format!("address = []\ninterface = '{name}'"), "remote = '192.0.2.1'");
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(
            messages[0].starts_with(&format!("tunnel.toml:3: interface: {name:?} is a reserved name")),
            "{messages:?}"
        );
    }
}

#[test]
fn a_key_of_low_order_is_invalid() {
    let zeros = "A".repeat(43);
    let one = format!("AQ{}", "A".repeat(41));
    for (key, what) in [(zeros, "all zero"), (one, "of low order")] {
        let text = EVERYTHING.replace("3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08", &key);
        let messages = parse(&text).unwrap_err();
        assert!(messages[0].what.starts_with(&format!("public_key: {what}")), "{messages:?}");
        assert!(messages[0].line.is_some() && messages[0].hint.is_some() && !messages[0].to_string().contains(&key));
    }
}

#[test]
fn a_rule_that_matches_no_packet_is_reported() {
    let messages = |rules: &str| messages_for(&format!("address = []\n{rules}"), "remote = '192.0.2.1'");
    let rule = |lines: &str| format!("[[rule]]\nclass = 'bulk'\n{lines}\n");
    for (wrong, text) in [
        (
            "source = '10.0.0.0/8'\ndestination = 'fd77::/64'",
            "6: destination: fd77::/64 and the source 10.0.0.0/8 are of different",
        ),
        ("protocol = 'icmp'\nport = 7", "5: protocol: only TCP and UDP have ports"),
        ("protocol = 47\nsource_port = 7", "5: protocol: only TCP and UDP have ports"),
    ] {
        let messages = messages(&rule(wrong));
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].contains(text) && messages[0].contains("hint: "), "{messages:?}");
    }
    for right in ["protocol = 'tcp'\nport = 7", "protocol = 'icmp'", "source = 'fd77::/64'\ndestination = 'fd78::/64'"]
    {
        assert_eq!(messages(&rule(right)), [""; 0], "{right}");
    }
    let behind = messages(&(rule("") + &rule("port = 7")));
    assert!(behind.len() == 1 && behind[0].starts_with("tunnel.toml:6: warning: rule: "), "{behind:?}");
}

#[test]
fn what_leaves_beside_the_tunnel_or_leads_nowhere_is_warned_of() {
    let keys = EVERYTHING.lines().filter(|line| line.starts_with("private_key") || line.starts_with("public_key"));
    let [private, public, ..] = keys.collect::<Vec<_>>()[..] else { panic!("keys") };
    let warnings = |address: &str, routes: &str, networks: &str| {
        let text = format!(
            "{private}\naddress = [{address}]\nroutes = [{routes}]\n[[peer]]\n{public}\nremote = '192.0.2.1'\n{networks}"
        );
        parse(&text).unwrap().warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let (v4, both) = ("'10.77.0.1/24'", "'10.77.0.1/24', 'fd77::1/64'");
    assert_eq!(warnings(both, "'0.0.0.0/0', '::/0'", ""), "");
    assert!(warnings(both, "'0.0.0.0/0'", "").contains("leaves IPv6 beside the tunnel"));
    assert!(warnings(v4, "'0.0.0.0/0', '::/0'", "").contains("no address is IPv6"));
    let narrow = warnings(both, "'0.0.0.0/0', '::/0'", "networks = ['10.77.0.2/32']");
    assert!(narrow.contains("0.0.0.0/0 is routed into the tunnel, but is in no peer's networks"), "{narrow}");
    assert_eq!(warnings(both, "'10.0.0.0/8'", "networks = ['10.77.0.2/32']"), "");
}

#[test]
fn frequent_mistakes_get_the_hint_that_solves_them() {
    let keys = EVERYTHING.lines().filter(|line| line.starts_with("private_key") || line.starts_with("public_key"));
    let [private, public, ..] = keys.collect::<Vec<_>>()[..] else { panic!("keys") };
    let problems = |text: &str| {
        let problems = parse(text).map_or_else(|problems| problems, |file| file.warnings);
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let path = |line: &str| {
        problems(&format!("{private}\naddress = []\n[[peer]]\n{public}\n[[peer.path]]\nremote = '192.0.2.1'\n{line}"))
    };
    let remote = |to: &str| problems(&format!("{private}\naddress = []\n[[peer]]\n{public}\nremote = '{to}'"));
    assert_eq!(remote("home.example.org:4755"), "");
    assert!(remote("home.example.org:0").contains("a name has letters, digits, hyphens and dots"));
    assert!(remote("2001:db8::7:4754").contains("if 4754 is the port: \"[2001:db8::7]:4754\""));
    assert_eq!(remote("2001:db8::7"), "");
    assert!(path("role = 'backup'").contains("did you mean \"standby\"?"));
    assert!(problems("port =").contains("port has no value: write one, or remove the line"));
    assert!(problems("port = # the default").contains("port has no value"));
    assert!(problems("interface = \u{201c}mpt0\u{201d}").contains("these are typographic quotes"));
    assert!(problems("address = [\u{201e}10.77.0.1/24\u{201c}]").contains("these are typographic quotes"));
    let wireguard = problems("[Interface]\nPrivateKey = x\nAddress = 10.77.0.2/24\n[Peer]\nAllowedIPs = ::/0\n");
    assert!(wireguard.ends_with(".toml -o tunnel.toml converts it"), "{wireguard}");
    assert_eq!(wireguard.lines().count(), 2, "{wireguard}");
    assert!(problems("scheduler = 'fastest'").contains("\"earliest\" is the default in native mode"));
    assert_eq!(path("role = 'metered'\nlimit = '20 GB'"), "");
    assert!(path("reset_day = 15").contains("reset_day: this path has no limit"));
    assert!(path("role = 'metered'\nlimit = '20GB'\nreset_day = 32").contains("a day of the month from 1 to 31"));
    let order = problems(&format!("{private}\naddress = []\n[[peer.path]]\nremote = '192.0.2.1'\n"));
    assert!(order.contains("a [[peer.path]] belongs below its [[peer]]"), "{order}");
}
