//! Peers that are added and removed with their files while other peers are active.

use crate::rig::Rig;
use mpt_lab::topology::Host;
use mpt_proto::{
    config::{Config, NativeConfig, PathConfig, PeerConfig, Protocol},
    crypto::{
        handshake::{Capabilities, Clock, Identity},
        keys::KeyPair,
    },
    endpoint::{Endpoint, RecvMeta},
    packet::Merge,
    path::LinkId,
    sessions::SessionTable,
    time::Time,
};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, UdpSocket},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const SERVER: &str = r#"private_key = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForB00="
address = ["10.77.0.2/24"]
include = "peers.d"
"#;

const CALLER: &str = r#"private_key = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00="
address = ["10.77.0.1/24"]
[[peer]]
public_key = "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg="
[[peer.path]]
remote = "192.168.11.2"
"#;

const CALLED: &str = r#"[[peer]]
public_key = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ="
networks = ["10.77.0.1/32"]
"#;

/// A peer that never connects; its key is Alice's public key of RFC 7748.
const SILENT: &str = r#"[[peer]]
public_key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
networks = ["10.77.0.9/32"]
"#;

fn names(rig: &Rig) -> Vec<String> {
    let status = rig.status(Host::B);
    let peers = status["peers"].as_array().expect("a list").iter();
    peers.map(|peer| peer["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn peers_are_added_and_removed_with_their_files() {
    let Some(mut rig) = Rig::build("peers", &["delay=1ms"]) else { return };
    let folder = rig.folder.path().join("peers.d");
    fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, text: &str| {
        fs::write(folder.join(name), text).expect("a file");
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o600)).expect("its mode");
    };
    let reaches = |rig: &Rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address"));
    rig.launch_with(Host::B, SERVER);
    rig.launch_with(Host::A, CALLER);
    assert_eq!(names(&rig), [""; 0]);

    write("alice.toml", CALLED);
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    rig.wait_until("the new peer is answered", reaches);
    let arrived = |rig: &Rig| rig.status(Host::B)["peers"][0]["received_packets"].as_u64().expect("a count");
    let before = arrived(&rig);
    assert!(before > 0);

    write("silent.toml", SILENT);
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    assert_eq!(names(&rig), ["alice", "silent"]);
    assert!(arrived(&rig) >= before, "a peer of which the files say the same goes on");
    assert!(reaches(&rig));

    write("silent.toml", "[[peer]]\nnetworks = 7");
    let refused = rig.mpt(Host::B, &["reload"]);
    let stderr = crate::rig::text(&refused.stderr);
    assert!(
        !refused.status.success() && stderr.contains("silent.toml:") && stderr.contains("nothing was changed"),
        "{stderr}"
    );
    assert_eq!(names(&rig), ["alice", "silent"]);

    fs::remove_file(folder.join("silent.toml")).expect("a file less");
    fs::remove_file(folder.join("alice.toml")).expect("a file less");
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    assert_eq!(names(&rig), [""; 0]);
    assert!(!reaches(&rig));
}

#[test]
fn a_reload_changes_all_or_nothing() {
    let Some(mut rig) = Rig::build("reload", &["delay=1ms"]) else { return };
    let caller = CALLER.replace("remote", "interface = \"eth1\"\nremote");
    rig.launch_with(Host::B, &SERVER.replace("include = \"peers.d\"\n", CALLED));
    rig.launch_with(Host::A, &caller);
    let reaches = |rig: &Rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address"));
    rig.wait_until("the tunnel answers", reaches);
    let reload = |rig: &Rig, text: &str| {
        fs::write(rig.file(Host::A), text).expect("a file");
        let done = rig.mpt(Host::A, &["reload"]);
        (done.status.success(), crate::rig::text(&done.stderr))
    };
    let plain = "mode = \"plain\"\naddress = [\"10.77.0.1/24\"]\n[[peer]]\n[[peer.path]]\nremote = \"192.168.11.2\"\n";
    for (text, line, key) in [
        (plain, 1, "mode"),
        (&*caller.replace("[[peer]]", "mtu = 1300\n[[peer]]"), 3, "mtu"),
        (&*caller.replace("10.77.0.1/24", "10.77.0.9/24"), 2, "address"),
        (&*caller.replace("interface = \"eth1\"", "local = \"192.0.2.77\""), 7, "192.0.2.77"),
    ] {
        let (done, stderr) = reload(&rig, text);
        assert!(!done && stderr.contains(key) && stderr.contains("nothing was changed"), "{stderr}");
        assert!(stderr.contains(&format!("A.toml:{line}:")), "{stderr}");
        assert!(reaches(&rig), "after {key}");
    }
    assert_eq!(reload(&rig, &caller.replace("[[peer]]", "scheduler = \"min-rtt\"\n[[peer]]")), (true, String::new()));
    assert_eq!(rig.status(Host::A)["peers"][0]["scheduler"], "min-rtt");
    rig.wait_until("the tunnel answers again", reaches);
}

/// Rewrites host A's file with `peer` in place of `[[peer]]` and reloads it.
fn reload_with(rig: &Rig, peer: &str) -> (bool, String) {
    fs::write(rig.file(Host::A), CALLER.replacen("[[peer]]", peer, 1)).expect("a file");
    let done = rig.mpt(Host::A, &["reload"]);
    (done.status.success(), crate::rig::text(&done.stderr))
}

#[test]
fn a_reload_logs_the_warnings_of_a_start() {
    let Some(mut rig) = Rig::build("reload-warns", &["delay=1ms"]) else { return };
    rig.launch_with(Host::A, CALLER);
    let nobodys = "routes = [\"10.55.0.0/16\"]\n[[peer]]\nnetworks = [\"10.77.0.2/32\"]";
    assert_eq!(reload_with(&rig, nobodys), (true, String::new()));
    assert_eq!(rig.logged(Host::A, "A.toml:3: warning: routes: 10.55.0.0/16"), 1);
}

/// The privilege for low ports is dropped after a start that needs none.
#[test]
fn a_reload_with_a_low_port_is_refused() {
    let Some(mut rig) = Rig::build("reload-port", &["delay=1ms"]) else { return };
    rig.launch_with(Host::A, CALLER);
    let (done, stderr) = reload_with(&rig, "[[peer]]\nlocal_port = 500");
    assert!(!done && stderr.contains("nothing was changed") && stderr.contains("below 1024"), "{stderr}");
}

/// A path to another peer without a local address leaves the port to responder sockets.
#[test]
fn the_first_peer_without_a_remote_can_be_added_by_reload() {
    let Some(mut rig) = Rig::build("first-caller", &["delay=1ms"]) else { return };
    let server = SERVER.replace("include = \"peers.d\"\n", "");
    let silent = |path: &str| format!("{SILENT}[[peer.path]]\nremote = \"192.168.11.9\"\n{path}");
    rig.launch_with(Host::B, &(server.clone() + &silent("local = \"192.168.11.2\"\n")));
    rig.launch_with(Host::A, CALLER);
    fs::write(rig.file(Host::B), server + CALLED + &silent("")).expect("a file");
    let done = rig.mpt(Host::B, &["reload"]);
    assert!(done.status.success(), "{}", crate::rig::text(&done.stderr));
    rig.wait_until("the new peer is answered", |rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("one")));
    let sockets = crate::rig::sh(&rig.hosts.b, "ss -Huln sport = :4754");
    assert!(sockets.contains("127.0.0.1:4754") && !sockets.contains("0.0.0.0:4754"), "{sockets}");
}

/// Plain mode has no responder sockets, so all peers may share one socket for all addresses.
#[test]
fn in_plain_mode_peers_are_added_with_their_files() {
    let Some(mut rig) = Rig::build("plain-peers", &["delay=1ms"]) else { return };
    let folder = rig.folder.path().join("peers.d");
    fs::create_dir_all(&folder).expect("a folder");
    let peer = |far: usize| {
        format!("[[peer]]\nnetworks = [\"10.77.0.{far}/32\"]\n[[peer.path]]\nremote = \"192.168.11.{far}\"\n")
    };
    let top = "mode = \"plain\"\naddress = [\"10.77.0.1/24\"]\ninclude = \"peers.d\"\n";
    rig.launch_with(Host::A, &(top.to_owned() + &peer(2)));
    fs::write(folder.join("third.toml"), peer(3)).expect("a file");
    let done = rig.mpt(Host::A, &["reload"]);
    assert!(done.status.success(), "{}", crate::rig::text(&done.stderr));
    assert_eq!(rig.status(Host::A)["peers"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_reload_of_one_peer_leaves_the_others_unchanged() {
    let Some(mut rig) = Rig::build("one-peer", &["delay=1ms"]) else { return };
    let peer = |name: &str, far: u8, site: u8| {
        format!(
            "[[peer]]\nname = \"{name}\"\nnetworks = [\"10.{site}.0.0/16\"]\n[[peer.path]]\nremote = \"192.168.11.{far}\"\n"
        )
    };
    let file = |second: u8, third: u8| {
        let top = format!("routes = [\"10.{second}.0.0/16\", \"10.{third}.0.0/16\"]\n");
        format!(
            "mode = \"plain\"\naddress = [\"10.77.0.1/24\"]\n{top}{}{}",
            peer("second", 2, second),
            peer("third", 3, third)
        )
    };
    let reload_second = |rig: &Rig, text: &str| {
        fs::write(rig.file(Host::A), text).expect("a file");
        let done = rig.mpt(Host::A, &["reload", "second"]);
        (done.status.success(), crate::rig::text(&done.stderr))
    };
    let routes = |rig: &Rig| crate::rig::sh(&rig.hosts.a, "ip route show dev mpt0 scope link proto 77");
    rig.launch_with(Host::A, &file(82, 83));
    let before = routes(&rig);

    let (done, stderr) = reload_second(&rig, &file(83, 82));
    assert!(
        !done && stderr.contains("10.83.0.0/16 is already in") && stderr.contains("nothing was changed"),
        "{stderr}"
    );
    assert_eq!(routes(&rig), before);

    let (done, stderr) = reload_second(&rig, &file(84, 85));
    assert!(done, "{stderr}");
    let after = routes(&rig);
    assert!(after.contains("10.84.0.0/16") && after.contains("10.83.0.0/16") && !after.contains("10.82"), "{after}");
}

#[test]
fn an_initiator_can_also_be_a_responder() {
    let Some(mut rig) = Rig::build("both", &["delay=1ms"]) else { return };
    rig.launch_with(Host::B, &SERVER.replace("include = \"peers.d\"\n", CALLED));
    let caller = CALLER.replace("remote", "interface = \"eth1\"\nremote");
    rig.launch_with(
        Host::A,
        &(caller.replace("[[peer.path]]", "networks = [\"10.77.0.2/32\"]\n[[peer.path]]") + SILENT),
    );
    rig.wait_until("the tunnel answers", |rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address")));
    let sockets = crate::rig::sh(&rig.hosts.a, "ss -Huln sport = :4754");
    assert!(sockets.contains("192.168.11.1"), "{sockets}");
}

#[test]
fn a_report_has_32_peers_at_most_whatever_the_request_says() {
    let Some(mut rig) = Rig::build("page", &["delay=1ms"]) else { return };
    let folder = rig.folder.path().join("peers.d");
    fs::create_dir_all(&folder).expect("a folder");
    for i in 0..40_u8 {
        let key = KeyPair::generate([100 + i; 32]);
        let text = format!("[[peer]]\npublic_key = \"{}\"\nnetworks = [\"10.77.100.{i}/32\"]\n", key.public());
        fs::write(folder.join(format!("c{i:02}.toml")), text).expect("a file");
    }
    rig.launch_with(Host::B, SERVER);
    let all = rig.status(Host::B)["peers"].as_array().expect("a list").len();
    assert!(all >= 40, "{all}");
    for (socket, request, expected) in [
        ("sock", r#"{"command":"status"}"#, 32),
        ("status", r#"{"command":"status"}"#, 32),
        ("status", r#"{"command":"status","count":18446744073709551615}"#, 32),
        ("status", r#"{"command":"status","first":32,"count":32}"#, all - 32),
        ("status", r#"{"command":"status","first":30,"count":5}"#, 5),
    ] {
        let stream = UnixStream::connect(rig.run_dir(Host::B).join(format!("mpt0.{socket}"))).expect("the socket");
        (&stream).write_all(format!("{request}\n").as_bytes()).expect("a request");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("a response");
        let report: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let peers = report["status"]["peers"].as_array().unwrap_or_else(|| panic!("{line}")).len();
        assert_eq!(peers, expected, "{socket}: {request}");
    }
}

/// Prints the memory and time that a thousand peers with sessions cost a daemon: `--ignored --nocapture`.
#[test]
#[ignore = "takes a minute, and depends on the machine"]
fn a_thousand_idle_peers() {
    const PEERS: usize = 1_000;
    let Some(mut rig) = Rig::build("thousand", &["delay=1ms"]) else { return };
    let folder = rig.folder.path().join("peers.d");
    fs::create_dir_all(&folder).expect("a folder");
    let client = |i: usize| {
        let mut secret = [5; 32];
        secret[..8].copy_from_slice(&(i as u64).to_be_bytes());
        KeyPair::generate(secret)
    };
    rig.launch_with(Host::B, SERVER);
    let memory = |rig: &Rig| {
        let pid = rig.status(Host::B)["pid"].as_u64().expect("a number");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size").to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let ticks = |rig: &Rig| {
        let pid = rig.status(Host::B)["pid"].as_u64().expect("a number");
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        let behind = stat.rsplit(')').next().expect("fields").split_whitespace().skip(11);
        behind.take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum::<u64>()
    };
    let alone = memory(&rig);
    for i in 0..PEERS {
        let (high, low) = (100 + i / 250, 1 + i % 250);
        let text =
            format!("[[peer]]\npublic_key = \"{}\"\nnetworks = [\"10.77.{high}.{low}/32\"]\n", client(i).public());
        fs::write(folder.join(format!("c{i}.toml")), text).expect("a file");
    }
    let begin = Instant::now();
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    println!("reload of {PEERS} peers: {:?}; {} kB a peer", begin.elapsed(), (memory(&rig) - alone) / PEERS as u64);
    let server: KeyPair = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForB00=".parse().expect("a key");
    let mut crowd =
        rig.hosts.a.enter(|| Initiators::new((0..PEERS).map(client).collect(), &server)).expect("a namespace");
    crowd.run(Duration::from_secs(20));
    let up =
        rig.status(Host::B)["peers"].as_array().expect("a list").iter().filter(|p| p["paths"][0]["up"] == true).count();
    let (before, begin) = (ticks(&rig), Instant::now());
    crowd.run(Duration::from_secs(30));
    let busy = (ticks(&rig) - before) as f64 / begin.elapsed().as_secs_f64();
    let each = (memory(&rig) - alone) as f64 / PEERS as f64;
    println!("{up} peers with a path that is up: {each:.1} kB a peer, {busy:.2} % of a processor");
}

/// Many initiators in one thread.
struct Initiators {
    members: Vec<(Endpoint, UdpSocket)>,
    start: Instant,
}

impl Initiators {
    fn new(keys: Vec<KeyPair>, server: &KeyPair) -> Self {
        let remote: SocketAddr = "192.168.11.2:4754".parse().expect("an address");
        let member = |keys: KeyPair| {
            let path = PathConfig::new("path", LinkId(0), remote);
            let native = NativeConfig::new(*server.public());
            let peer = PeerConfig {
                networks: vec!["0.0.0.0/0".parse().expect("a prefix")],
                ..PeerConfig::new("server", Protocol::Native(native), vec![path])
            };
            let seed = *keys.public().as_bytes();
            let today = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            let identity = Identity { keys, capabilities: Capabilities::new(true), clock: Clock::new(today) };
            let config = Config { identity: None, mtu: 1_400, merge: Merge::default(), peers: vec![peer] };
            let socket = UdpSocket::bind("192.168.11.1:0").expect("a socket");
            socket.set_nonblocking(true).expect("a socket");
            (Endpoint::native(Time::START, &config, SessionTable::new(identity, seed)), socket)
        };
        Self { members: keys.into_iter().map(member).collect(), start: Instant::now() }
    }

    /// Runs all endpoints for `time`. They start one after the other.
    fn run(&mut self, time: Duration) {
        let (end, mut buffer) = (self.start.elapsed() + time, [0; 2_048]);
        while self.start.elapsed() < end {
            let now = Time::after(self.start.elapsed());
            let awake = (self.start.elapsed().as_millis() as usize / 10).min(self.members.len());
            for (endpoint, socket) in &mut self.members[..awake] {
                while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                    let received = RecvMeta { link: LinkId(0), from, tos: 0, segment: len, arrived_at: None };
                    endpoint.handle_datagrams(now, &received, &mut buffer[..len]);
                }
                endpoint.handle_deadline(now);
                while let Some(run) = endpoint.poll_transmit(now) {
                    run.bytes().chunks(run.segment).for_each(|bytes| drop(socket.send_to(bytes, run.to)));
                    endpoint.recycle_transmit(run);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
