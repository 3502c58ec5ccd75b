//! `[[bypass]]`: selected traffic leaves beside the tunnel, also under the kill switch. What counts is the capture on
//! the uplink: a packet to the Internet there has left beside the tunnel.
//!
//! ```text
//!   guest --- lan --- host A === tunnel over eth1 === host B --- wan --- the Internet
//!                            --- eth1 --------------- host B, as the router of the uplink
//! ```

use crate::{
    capture::Capture,
    internet::{CLIENT, FAR, SERVER, internet, reaches},
    rig::{Rig, sh, text},
};
use mpt_lab::topology::{Host, Netns};
use mpt_proto::packet::ip::Ip;
use std::{
    collections::BTreeSet,
    net::{IpAddr, UdpSocket},
};

const RULES: &str = r#"
[[bypass]]
destination = "198.51.100.0/24"
protocol = "udp"
port = "9400-9401"

[[bypass]]
destination = "2001:db8:99::/64"
port = 9401

[[bypass]]
dscp = "cs1"

[[bypass]]
mark = 16

[[bypass]]
set = "streaming"
"#;

pub struct Scene {
    pub rig: Rig,
    pub guest: Netns,
    pub far: Netns,
    wire: Capture,
}

impl Scene {
    pub fn build(test: &str) -> Option<Self> {
        let rig = Rig::build(test, &["delay=1ms"])?;
        let far = internet(&rig);
        // The Internet answers host A's uplink, too, and host B forwards for it.
        sh(&far, "ip route add 192.168.11.0/24 via 198.51.100.1; ip route add fd00:1::/64 via 2001:db8:99::1");
        let guest = Netns::create(&rig.hosts.a.name().replace("-a", "-d")).expect("a namespace");
        let name = guest.name();
        let router = format!(
            "link add lan type veth peer name eth0 netns {name}\nlink set lan up\naddress add 10.99.0.1/24 dev lan\n\
             address add fd99::1/64 dev lan nodad"
        );
        rig.hosts.a.ip(&router).expect("a network");
        let host = "link set eth0 up\naddress add 10.99.0.2/24 dev eth0\naddress add fd99::2/64 dev eth0 nodad\n\
                    route add default via 10.99.0.1\nroute add default via fd99::1";
        guest.ip(host).expect("a host");
        let wire = Capture::open(&rig.hosts.b, "eth1");
        Some(Self { rig, guest, far, wire })
    }

    pub fn start(&mut self, kill_switch: bool) {
        self.rig.launch_with(Host::B, SERVER);
        self.rig.launch_with(Host::A, &client(kill_switch, RULES));
        self.rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    }

    /// Sends a datagram to each port of both addresses from a host. Returns those that were on the uplink: destination,
    /// port, source.
    pub fn beside(&mut self, from_guest: bool) -> BTreeSet<(String, u16, String)> {
        let before = self.wire.frames().len();
        let host = if from_guest { &self.guest } else { &self.rig.hosts.a };
        for far in FAR {
            let far: IpAddr = far.parse().expect("an address");
            let any = if far.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let send = || PORTS.map(|port| UdpSocket::bind(any).and_then(|socket| socket.send_to(b"x", (far, port))));
            // A datagram that is refused is not on the uplink either.
            let _ = host.enter(send).expect("a namespace");
        }
        // Both links keep the order: when these answers are here, all that was sent before has arrived.
        let router = "ping -n -c 1 -W 1 10.99.0.1 >/dev/null && ping -n -c 1 -W 1 fd99::1 >/dev/null";
        self.rig.wait_until("the router answers", |_| self.guest.sh(router).is_ok());
        self.rig.wait_until("the uplink's other end answers", |rig| reaches(rig, "192.168.11.2"));
        let seen = self.wire.frames()[before..].iter().filter_map(|frame| {
            let packet = frame.get(14..)?;
            let ip = Ip::parse(packet).ok().filter(|ip| FAR.contains(&&*ip.destination.to_string()))?;
            let (_, port) = ip.ports(packet)?;
            Some((ip.destination.to_string(), port, ip.source.to_string()))
        });
        seen.collect()
    }

    /// Returns true if a ping of host A with these options is answered beside the tunnel.
    pub fn pings_beside(&mut self, options: &[&str], far: &str) -> bool {
        let before = self.wire.frames().len();
        let answered = self.rig.ping(Host::A, options, far.parse().expect("an address"));
        let is_to_far = |frame: &Vec<u8>| {
            Ip::parse(frame.get(14..).unwrap_or_default()).is_ok_and(|ip| ip.destination.to_string() == far)
        };
        answered && self.wire.frames()[before..].iter().any(is_to_far)
    }
}

/// The ports of rules, and one that no rule has.
const PORTS: [u16; 3] = [9_400, 9_401, 9_402];

fn client(kill_switch: bool, rules: &str) -> String {
    let top = format!("kill_switch = {kill_switch}\nshare = \"lan\"");
    CLIENT.replace("kill_switch = KILL", &top).replace("[[peer]]", &format!("{rules}\n[[peer]]"))
}

#[test]
fn selected_traffic_leaves_beside_the_tunnel_and_nothing_else_does() {
    let Some(mut scene) = Scene::build("beside-rules") else { return };
    for kill_switch in [true, false] {
        scene.start(kill_switch);
        let expected = |v4: u16| (FAR[0].to_owned(), v4, "192.168.11.1".to_owned());
        let expected =
            BTreeSet::from([expected(9_400), expected(9_401), (FAR[1].to_owned(), 9_401, "fd00:1::1".to_owned())]);
        for from_guest in [false, true] {
            assert_eq!(scene.beside(from_guest), expected, "kill switch {kill_switch}, guest {from_guest}");
        }
        for far in FAR {
            assert!(!scene.pings_beside(&[], far), "{far} is reached through the tunnel");
            for options in [["-Q", "32"], ["-m", "16"]] {
                assert!(scene.pings_beside(&options, far), "{options:?} {far}");
            }
        }
        assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
        assert!(!sh(&scene.rig.hosts.a, "nft list tables").contains("mptbypass"));
    }
}

/// dnsmasq adds addresses while the tunnel runs, and the tunnel's own check of the table leaves them there.
#[test]
fn a_set_that_another_program_fills_selects_traffic_and_a_deleted_table_is_restored() {
    let Some(mut scene) = Scene::build("beside-set") else { return };
    scene.start(true);
    let add = "nft add element inet mptbypass_mpt0 streaming4 { 198.51.100.2 }
               nft add element inet mptbypass_mpt0 streaming6 { 2001:db8:99::2 }";
    sh(&scene.rig.hosts.a, add);
    for far in FAR {
        assert!(scene.pings_beside(&[], far), "{far} is in the set");
    }
    assert_eq!(scene.rig.logged(Host::A, "deleted or changed by another program"), 0);
    sh(&scene.rig.hosts.a, "nft delete table inet mptbypass_mpt0");
    scene.rig.wait_until("the table is back", |rig| {
        sh(&rig.hosts.a, "nft list tables").contains("mptbypass_mpt0") && rig.logged(Host::A, "bypass") > 0
    });
    assert!(!scene.pings_beside(&[], FAR[0]), "the set is empty again");
    assert!(scene.pings_beside(&["-m", "16"], FAR[0]));
    // A reload removes the rules, and the next one adds them.
    for (rules, is_beside) in [("", false), (RULES, true)] {
        std::fs::write(scene.rig.file(Host::A), client(true, rules)).expect("a file");
        let reload = scene.rig.mpt(Host::A, &["reload"]);
        assert!(reload.status.success(), "{}", text(&reload.stderr));
        assert_eq!(scene.pings_beside(&["-m", "16"], FAR[0]), is_beside);
    }
}

#[test]
fn the_rules_of_a_killed_tunnel_are_removed() {
    let Some(mut scene) = Scene::build("beside-end") else { return };
    scene.start(false);
    assert!(!scene.rig.signal(Host::A, nix::sys::signal::Signal::SIGKILL).success());
    assert!(sh(&scene.rig.hosts.a, "nft list tables").contains("mptbypass_mpt0"));
    let down = scene.rig.mpt(Host::A, &["down"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert!(!sh(&scene.rig.hosts.a, "nft list tables").contains("mptbypass_mpt0"));
}
