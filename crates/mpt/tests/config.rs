//! Configuration files and what is said about them: `tests/config/NAME.toml` beside `NAME.expected`.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use mpt::config::model::{File, Mode, Plain};
use mpt::config::{self, Problem};
use mpt_proto::config::PlainFraming;
use mpt_proto::sched;
use proptest::{prop_assert, proptest};

const EVERYTHING: &str = include_str!("config/everything.toml");

fn parse(text: &str) -> Result<File, Vec<Problem>> {
    config::parse(Path::new("tunnel.toml"), text)
}

/// Everything that is said about a file.
fn said(path: &Path) -> String {
    let name = path.file_name().expect("a file has a name");
    let text = fs::read_to_string(path).expect("it was listed a moment ago");
    let problems = config::parse(name.as_ref(), &text).map(|file| file.warnings);
    problems.unwrap_or_else(|errors| errors).iter().map(|problem| format!("{problem}\n")).collect()
}

#[test]
fn every_file_gets_the_messages_it_deserves() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    assert!(files.len() > 10);
    for path in files {
        let expected = fs::read_to_string(path.with_extension("expected")).unwrap();
        let said = said(&path);
        assert_eq!(said, expected, "{}:\n{said}", path.display());
    }
}

#[test]
fn a_short_file_is_filled_in_with_defaults() {
    let file =
        parse("mode = 'plain'\naddress = ['10.77.0.1/24']\n[[peer]]\n[[peer.path]]\nremote = '192.0.2.1'").unwrap();
    assert_eq!(file.interface.value, "mpt0");
    assert_eq!((file.port.value, file.mtu, file.offload), (4754, None, true));
    assert_eq!(file.scheduler, sched::Kind::Weighted);
    assert_eq!(file.mode.value, Mode::Plain(Plain::default()));
    let [peer] = &file.peers[..] else { panic!("one peer") };
    assert_eq!(peer.name.value, "peer");
    assert_eq!(peer.networks.iter().map(|net| net.to_string()).collect::<Vec<_>>(), ["0.0.0.0/0", "::/0"]);
    let [path] = &peer.paths[..] else { panic!("one path") };
    assert_eq!((path.name.as_str(), path.weight), ("path1", 1));
    assert_eq!(path.remote.value, "192.0.2.1:4754".parse::<SocketAddr>().unwrap());
}

#[test]
fn every_setting_arrives_where_it_belongs() {
    let text = "mode = 'plain'\naddress = []\nscheduler = 'min-rtt'\noffload = false\nmtu = 1280\nport = 1\n\
        [plain]\nsequence = false\nkey = 4294967295\nchecksum = true\nreorder = 'fixed'\nreorder_window = 65536\n\
        reorder_delay = '10s'\nkeepalive = '1h'\ndead = '2m'\n\
        [[peer]]\nname = 'a'\nport = 2\n[[peer.path]]\nlocal = '2001:db8::1'\nremote = '2001:db8::2'\nweight = 10000";
    let file = parse(text).unwrap();
    let Mode::Plain(plain) = file.mode.value else { panic!("plain") };
    assert_eq!(plain.framing, PlainFraming { sequence: false, key: Some(u32::MAX), checksum: true });
    let limits = plain.resequence.unwrap();
    assert_eq!((limits.window, limits.max_hold, limits.adaptive), (65_536, Duration::from_secs(10), false));
    let probe = plain.probe.unwrap();
    assert_eq!((probe.idle, probe.dead), (Duration::from_secs(3_600), Duration::from_secs(120)));
    assert_eq!((file.scheduler, file.offload), (sched::Kind::MinRtt, false));
    assert_eq!(file.mtu.map(|mtu| mtu.value), Some(1280));
    let path = &file.peers[0].paths[0];
    assert_eq!(path.local.map(|ip| ip.value), Some("2001:db8::1".parse::<IpAddr>().unwrap()));
    assert_eq!((path.remote.to_string(), path.weight), ("[2001:db8::2]:2".to_owned(), 10_000));
}

#[test]
fn probes_and_reordering_can_be_turned_off() {
    let text = "mode = 'plain'\naddress = []\n[plain]\nreorder = 'off'\nkeepalive = 'off'\n[[peer]]\n[[peer.path]]\nremote = '::1'";
    let Mode::Plain(plain) = parse(text).unwrap().mode.value else { panic!("plain") };
    assert_eq!((plain.resequence, plain.probe), (None, None));
}

#[test]
fn a_file_that_is_not_there_is_told_by_its_name() {
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
    assert_eq!(path.remote.to_string(), "192.0.2.2:7");
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
