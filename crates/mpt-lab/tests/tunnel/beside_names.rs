//! `[[bypass]]` by name: dnsmasq on host A adds the addresses of names that it looks up, with the line of the guide.
//!
//! ```text
//!   guest --- lan --- host A, dnsmasq === tunnel === host B --- wan --- the Internet, a dnsmasq with the names
//! ```

use crate::{
    beside::Scene,
    internet::{FAR, SERVER, reaches},
    rig::{Rig, sh},
};
use mpt_lab::topology::{Host, Netns};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::{Ipv4Addr, UdpSocket},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// The name servers on the Internet, at host A itself, and at host A for the guest.
const UPSTREAM: &str = "198.51.100.53";
const OWN: &str = "127.0.0.1";
const ON_LAN: &str = "10.99.0.1";

/// Addresses of a name that the guide's line does not list.
const OTHER: [&str; 2] = ["198.51.100.3", "2001:db8:99::3"];

/// Types of records: A and AAAA.
const TYPES: [u16; 2] = [1, 28];

/// A running dnsmasq; dropping this ends it.
struct Dnsmasq {
    child: Child,
    log: PathBuf,
}

impl Dnsmasq {
    fn start(rig: &Rig, host: &Netns, name: &str, config: &str) -> Self {
        let [file, log, pid] = ["conf", "log", "pid"].map(|kind| rig.folder.path().join(format!("{name}.{kind}")));
        let common = "no-resolv\nno-hosts\nbind-interfaces\nlog-queries\nlog-facility=-\n";
        fs::write(&file, format!("{common}pid-file={}\n{config}", pid.display())).expect("a file");
        let output = File::create(&log).expect("a log");
        let mut command = host.command("dnsmasq");
        command.arg("--keep-in-foreground").arg(format!("--conf-file={}", file.display()));
        let child = command.stdout(Stdio::null()).stderr(output).spawn().expect("dnsmasq");
        Self { child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns true if a dnsmasq with nftset is installed. Otherwise it reports the lack.
fn is_usable(test: &str) -> bool {
    let version = Command::new("dnsmasq").arg("--version").output();
    let shown = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let is_usable = shown.split_whitespace().any(|word| word == "nftset");
    if !is_usable {
        // Written directly, because the test harness captures the output of passing tests.
        writeln!(io::stderr(), "skipped: needs dnsmasq with nftset: {test}").expect("stderr takes a line");
    }
    is_usable
}

/// Returns the line of the guide.
fn line_of_the_guide() -> &'static str {
    let guide = include_str!("../../../../docs/guide/config.md");
    guide.lines().find(|line| line.starts_with("nftset=")).expect("the guide's line")
}

/// The server on the Internet. Without a lifetime, its answers would not be cached.
fn upstream() -> String {
    let [v4, v6] = FAR;
    let [other4, other6] = OTHER;
    format!(
        "listen-address={UPSTREAM}\nlocal-ttl=3600\naddress=/www.example.net/{v4}\naddress=/www.example.net/{v6}\n\
         address=/www.example.org/{other4}\naddress=/www.example.org/{other6}\n"
    )
}

/// The server of host A.
fn own() -> String {
    format!("listen-address={OWN}\nlisten-address={ON_LAN}\nserver={UPSTREAM}\n{}\n", line_of_the_guide())
}

/// Returns true if a server answers a query with one record.
fn is_answered(host: &Netns, server: &str, name: &str, kind: u16) -> bool {
    // RFC 1035 section 4.1: one question, recursion desired.
    let mut query = vec![0x4d, 0x50, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend([kind.to_be_bytes(), [0, 1]].concat());
    let exchange = || -> io::Result<Vec<u8>> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.send_to(&query, (server, 53))?;
        let mut answer = vec![0; 1_500];
        let (len, _) = socket.recv_from(&mut answer)?;
        answer.truncate(len);
        Ok(answer)
    };
    let answer = host.enter(exchange).expect("a namespace");
    // The same number, no error, one answer.
    answer.is_ok_and(|answer| answer.len() > 12 && answer[..2] == query[..2] && answer[3] & 15 == 0 && answer[7] == 1)
}

/// Looks up both addresses of a name, from host A or from the guest.
fn look_up(scene: &Scene, from_guest: bool, name: &str) {
    let (host, server) = if from_guest { (&scene.guest, ON_LAN) } else { (&scene.rig.hosts.a, OWN) };
    for kind in TYPES {
        scene.rig.wait_until(name, |_| is_answered(host, server, name, kind));
    }
}

fn elements(scene: &Scene) -> usize {
    let sets = sh(
        &scene.rig.hosts.a,
        "nft list set inet mptbypass_mpt0 streaming4; nft list set inet mptbypass_mpt0 streaming6",
    );
    FAR.iter().chain(&OTHER).filter(|far| sets.split([' ', ',']).any(|word| word == **far)).count()
}

/// The names of the guide's line leave beside the tunnel, under the kill switch too, and other names do not. The sets
/// exist from the start of the tunnel on; dnsmasq adds nothing for what it has in its cache.
#[test]
fn the_addresses_of_names_that_dnsmasq_looks_up_leave_beside_the_tunnel() {
    let test = "beside-names";
    if !is_usable(test) {
        return;
    }
    let Some(mut scene) = Scene::build(test) else { return };
    let addresses = format!(
        "address add {UPSTREAM}/24 dev eth0\naddress add {}/24 dev eth0\naddress add {}/64 dev eth0 nodad",
        OTHER[0], OTHER[1]
    );
    scene.far.ip(&addresses).expect("addresses");
    let _upstream = Dnsmasq::start(&scene.rig, &scene.far, "upstream", &upstream());
    // Host B forwards what host A sends before it has a tunnel.
    scene.rig.launch_with(Host::B, SERVER);
    let early = Dnsmasq::start(&scene.rig, &scene.rig.hosts.a, "own", &own());
    look_up(&scene, false, "www.example.net");
    assert!(early.log().contains("streaming4 Error"), "there is no set yet: {}", early.log());

    scene.start(true);
    look_up(&scene, false, "www.example.net");
    assert_eq!(elements(&scene), 0, "from the cache: {}", early.log());
    assert!(FAR.iter().all(|far| !scene.pings_beside(&[], far) && reaches(&scene.rig, far)));
    drop(early);

    let own = |scene: &Scene, more: &str| Dnsmasq::start(&scene.rig, &scene.rig.hosts.a, "own", &(own() + more));
    let restarted = own(&scene, "");
    for name in ["www.example.net", "www.example.org"] {
        look_up(&scene, true, name);
    }
    assert_eq!(elements(&scene), 2, "{}", restarted.log());
    for (far, other) in FAR.iter().zip(OTHER) {
        assert!(scene.pings_beside(&[], far), "{far} is an address of the name");
        assert!(!scene.pings_beside(&[], other) && reaches(&scene.rig, other), "{other} is not");
    }
    assert_eq!(scene.beside(true).len(), 6, "the guest's datagrams to three ports of both addresses");
    drop(restarted);

    // Without a cache, each lookup adds, so that a new table fills itself.
    let uncached = own(&scene, "cache-size=0\n");
    look_up(&scene, true, "www.example.net");
    sh(&scene.rig.hosts.a, "nft delete table inet mptbypass_mpt0");
    scene.rig.wait_until("the table is back", |rig| sh(&rig.hosts.a, "nft list tables").contains("mptbypass_mpt0"));
    assert_eq!(elements(&scene), 0);
    look_up(&scene, true, "www.example.net");
    assert_eq!(elements(&scene), 2, "{}", uncached.log());
    assert!(FAR.iter().all(|far| scene.pings_beside(&[], far)));
}
