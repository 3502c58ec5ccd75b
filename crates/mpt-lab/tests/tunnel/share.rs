//! `share`: a host behind host A reaches the Internet through the tunnel, with host A's address in the tunnel. What
//! counts is the capture on the uplink: a packet of the LAN or to the Internet there has left beside the tunnel.
//!
//! ```text
//!   guest --- lan --- host A === tunnel over eth1 === host B --- wan --- the Internet
//! ```

use crate::{
    bypass::Way,
    capture::Capture,
    internet::{CLIENT, FAR, SERVER, internet, reaches},
    rig::{Rig, output, sh, text},
    transfer::Transfer,
};
use mpt_lab::topology::{Host, Netns};
use mpt_proto::packet::ip::{Ip, TCP};
use nix::{
    net::if_::if_nametoindex,
    sys::{
        signal::Signal,
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, setsockopt, socket, sockopt,
        },
    },
};
use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddrV6},
    os::fd::AsRawFd as _,
    process::Command,
};

struct Scene {
    rig: Rig,
    guest: Netns,
    far: Netns,
    wire: Capture,
}

/// The guest's addresses, and those of host A on the LAN.
const GUEST: [&str; 2] = ["10.99.0.2", "fd99::2"];
const ROUTER: [&str; 2] = ["10.99.0.1", "fd99::1"];

/// The settings that a router needs and a host may lack.
const SETTINGS: &str = "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding \
                        /proc/sys/net/ipv6/conf/eth1/accept_ra /proc/sys/net/ipv6/conf/default/accept_ra";

impl Scene {
    /// Builds the hosts, with or without the interface of the LAN.
    fn build(test: &str, with_lan: bool) -> Option<Self> {
        let rig = Rig::build(test, &["delay=1ms"])?;
        let far = internet(&rig);
        let guest = Netns::create(&rig.hosts.a.name().replace("-a", "-d")).expect("a namespace");
        // What a distribution has, in place of the laboratory.
        rig.hosts.a.sysctl(&[("net/ipv6/conf/eth1/accept_ra", "1")]).expect("a setting");
        let wire = Capture::open(&rig.hosts.b, "eth1");
        let scene = Self { rig, guest, far, wire };
        if with_lan {
            scene.plug_in();
        }
        Some(scene)
    }

    fn plug_in(&self) {
        let name = self.guest.name();
        let router = format!(
            "link add lan type veth peer name eth0 netns {name}\nlink set lan up\naddress add 10.99.0.1/24 dev lan\n\
             address add fd99::1/64 dev lan nodad"
        );
        self.rig.hosts.a.ip(&router).expect("a network");
        let host = "link set eth0 up\naddress add 10.99.0.2/24 dev eth0\naddress add fd99::2/64 dev eth0 nodad\n\
                    route add default via 10.99.0.1\nroute add default via fd99::1";
        self.guest.ip(host).expect("a host");
    }

    fn start(&mut self, top: &str) {
        self.rig.launch_with(Host::B, SERVER);
        self.rig.launch_with(Host::A, &client(top));
    }

    fn wait_for_guest(&self) {
        self.rig.wait_until("the guest reaches the Internet", |_| FAR.iter().all(|far| pings(&self.guest, far)));
    }

    /// Lets the guest and the host send to the Internet and to networks of the uplink, and returns what was on the
    /// uplink outside the tunnel, of all time.
    fn in_the_clear(&mut self) -> BTreeSet<String> {
        for to in [FAR[0], FAR[1], "192.168.11.2", "fd00:1::2"] {
            let to: IpAddr = to.parse().expect("an address");
            Way::Route.send(&self.guest, "eth0", to, to);
            self.guest.sh(&format!("ping -n -c 1 -W 0.1 {to} || true")).expect("a ping");
        }
        // Both links keep the order: when these answers are here, all that was sent before has arrived.
        let [v4, v6] = ROUTER.map(|router| move |guest: &Netns| pings(guest, router));
        self.rig.wait_until("the router answers", |_| v4(&self.guest) && v6(&self.guest));
        self.rig.wait_until("the uplink's other end answers", |rig| reaches(rig, "192.168.11.2"));
        self.wire.frames().iter().filter_map(|frame| leak(frame.get(14..)?)).collect()
    }

    fn settings(&self) -> String {
        sh(&self.rig.hosts.a, SETTINGS)
    }

    fn tables(&self) -> String {
        sh(&self.rig.hosts.a, "nft list tables")
    }
}

fn client(top: &str) -> String {
    CLIENT.replace("kill_switch = KILL", top)
}

/// Describes a packet that belongs to the guest or to the Internet.
fn leak(packet: &[u8]) -> Option<String> {
    let ip = Ip::parse(packet).ok()?;
    let ends = [ip.source.to_string(), ip.destination.to_string()];
    let is_private = |end: &String| GUEST.contains(&&**end) || FAR.contains(&&**end);
    // The guest's probes of the uplink have a port that only they use.
    let is_probe = ip.ports(packet).is_some_and(|(_, to)| to == Way::Route.port());
    (ends.iter().any(is_private) || is_probe).then(|| ends.join(" to "))
}

fn pings(guest: &Netns, to: &str) -> bool {
    output(guest.command("ping").args(["-n", "-c", "1", "-W", "1", to])).status.success()
}

fn offered_mss(ip: &Ip, packet: &[u8]) -> Option<u16> {
    let tcp = packet.get(ip.transport..).filter(|_| ip.protocol == TCP)?;
    let is_syn = tcp.get(13)? & 0x12 == 0x02;
    (is_syn && tcp.get(20..22)? == [2, 4]).then(|| u16::from_be_bytes([tcp[22], tcp[23]]))
}

#[test]
fn a_host_of_a_shared_interface_reaches_the_internet_through_the_tunnel_alone() {
    let Some(mut scene) = Scene::build("share", true) else { return };
    let (settings, nothing) = (scene.settings(), BTreeSet::new());
    assert_eq!(settings, "0\n0\n1\n0\n");
    assert!(!pings(&scene.guest, FAR[0]), "nothing is forwarded without the tunnel");
    for kill_switch in [false, true] {
        scene.start(&format!("share = \"lan\"\nkill_switch = {kill_switch}"));
        scene.wait_for_guest();
        assert_eq!(scene.settings(), "1\n1\n2\n0\n", "router advertisements of the uplink are still accepted");
        let mut inner = Capture::open(&scene.rig.hosts.b, "mpt0");
        for far in FAR {
            let transfer = Transfer::between(&scene.guest, &scene.far, far.parse().expect("an address"));
            transfer.wait_for(&scene.rig, 1_000_000);
            transfer.finish();
        }
        let packets = inner.packets();
        let mss: BTreeSet<_> = packets.iter().filter_map(|(ip, bytes)| offered_mss(ip, bytes)).collect();
        let mtu = scene.rig.status(Host::A)["mtu_bytes"].as_u64().expect("an MTU") as u16;
        assert_eq!(mss, BTreeSet::from([mtu - 40, mtu - 60]), "the SYNs of IPv4 and IPv6 at an MTU of {mtu}");
        let sources: BTreeSet<_> = packets.iter().map(|(ip, _)| ip.source.to_string()).collect();
        let allowed = ["10.77.0.1", "fd77::1", FAR[0], FAR[1], "10.77.0.2", "fd77::2"];
        assert!(sources.iter().all(|ip| allowed.contains(&&**ip) || ip.starts_with("fe80")), "{sources:?}");
        assert_eq!(scene.in_the_clear(), nothing, "while the tunnel is up");

        // The path to the guest beside the tunnel, and through it.
        sh(&scene.rig.hosts.b, "ip route replace 10.99.0.0/24 via 192.168.11.1 dev eth1");
        assert!(!pings(&scene.rig.hosts.b, GUEST[0]), "a neighbour on the uplink reaches no host of the LAN");
        sh(&scene.rig.hosts.b, "ip route del 10.99.0.0/24");
        let _ = scene.wire.frames();
        scene.wire = Capture::open(&scene.rig.hosts.b, "eth1");

        assert!(!scene.rig.signal(Host::A, Signal::SIGKILL).success());
        assert_eq!(scene.in_the_clear(), nothing, "after a crash");
        assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
        assert_eq!((scene.settings(), scene.tables()), (settings.clone(), String::new()), "after `mpt down`");

        scene.start(&format!("share = \"lan\"\nkill_switch = {kill_switch}"));
        scene.wait_for_guest();
        assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
        assert_eq!((scene.settings(), scene.tables()), (settings.clone(), String::new()), "after an orderly end");
        assert_eq!(scene.in_the_clear(), nothing, "nothing is forwarded without the tunnel");
    }
}

/// A host that forwarded before, as a router of the distribution does.
#[test]
fn under_the_kill_switch_a_router_forwards_from_a_shared_interface_into_the_tunnel_alone() {
    let Some(mut scene) = Scene::build("share-router", true) else { return };
    let router = [("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")];
    scene.rig.hosts.a.sysctl(&router).expect("a router");
    let settings = scene.settings();
    let answers = "ip route replace 10.99.0.0/24 via 192.168.11.1 dev eth1; ip route replace fd99::/64 via fd00:1::1";
    sh(&scene.rig.hosts.b, answers);
    let near = |scene: &Scene| ["192.168.11.2", "fd00:1::2"].map(|near| pings(&scene.guest, near));
    scene.start("share = [\"lan\"]");
    scene.wait_for_guest();
    assert_eq!(near(&scene), [true, true], "forwarded as before");
    scene.wire = Capture::open(&scene.rig.hosts.b, "eth1");
    fs::write(scene.rig.file(Host::A), client("share = [\"lan\"]\nkill_switch = true")).expect("a file");
    let reloaded = scene.rig.mpt(Host::A, &["reload"]);
    assert!(reloaded.status.success(), "{}", text(&reloaded.stderr));
    scene.wait_for_guest();
    assert_eq!(near(&scene), [false, false]);
    assert_eq!(scene.in_the_clear(), BTreeSet::new());
    assert!(reaches(&scene.rig, "192.168.11.2"), "the host itself has its attached networks");
    // The table is restored with the rest of what other programs delete, and so is forwarding.
    let table = |rig: &Rig| sh(&rig.hosts.a, "nft list table inet mpt_mpt0 2>/dev/null || true");
    let before = table(&scene.rig);
    sh(&scene.rig.hosts.a, "nft flush ruleset; echo 0 > /proc/sys/net/ipv4/ip_forward");
    scene.rig.wait_until("the table is back", |rig| table(rig) == before);
    scene.wait_for_guest();
    assert_eq!(scene.in_the_clear(), BTreeSet::new());
    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    assert_eq!((scene.settings(), scene.tables()), (settings, String::new()));
}

/// Sends a router advertisement (RFC 4861 section 4.2) from host B to host A's address of the link.
fn advertise(rig: &Rig) {
    let listed = sh(&rig.hosts.a, "ip -6 -o address show dev eth1 scope link");
    let address = listed.split_whitespace().find(|word| word.starts_with("fe80")).expect("an address of the link");
    let address = address.split('/').next().expect("an address").parse().expect("an address");
    let message = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let send = || -> nix::Result<usize> {
        let raw = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::empty(), SockProtocol::IcmpV6)?;
        setsockopt(&raw, sockopt::Ipv6Ttl, &255)?;
        let to = SockaddrIn6::from(SocketAddrV6::new(address, 0, 0, if_nametoindex("eth1")?));
        sendto(raw.as_raw_fd(), &message, &to, MsgFlags::empty())
    };
    rig.hosts.b.enter(send).expect("a namespace").expect("an advertisement");
}

/// Linux ignores router advertisements when it forwards, and removes the routes that it has from them.
#[test]
fn an_uplink_keeps_the_routes_of_router_advertisements() {
    let Some(mut scene) = Scene::build("share-advertised", true) else { return };
    let routes = |rig: &Rig| sh(&rig.hosts.a, "ip -6 route show default proto ra dev eth1");
    let is_advertised = |rig: &Rig| {
        advertise(rig);
        routes(rig).contains("via fe80")
    };
    scene.rig.wait_until("host A has a route", is_advertised);
    scene.start("share = \"lan\"");
    scene.wait_for_guest();
    assert!(routes(&scene.rig).contains("via fe80"), "the route is still there");
    sh(&scene.rig.hosts.a, "ip -6 route del default proto ra dev eth1");
    scene.rig.wait_until("the next advertisement is accepted", is_advertised);
    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    assert!(routes(&scene.rig).contains("via fe80"), "at the end");
}

#[test]
fn an_interface_that_appears_later_is_shared_then_and_the_log_has_it() {
    let Some(mut scene) = Scene::build("share-later", false) else { return };
    let missing = "there is no such interface; it is shared as soon as it appears";
    scene.start("share = [\"lan\", \"lan7\"]\nkill_switch = true");
    assert_eq!(scene.rig.logged(Host::A, missing), 2);
    scene.plug_in();
    scene.rig.wait_until("that is logged", |rig| rig.logged(Host::A, "the interface has appeared, and is shared") == 1);
    scene.wait_for_guest();
    assert_eq!(scene.in_the_clear(), BTreeSet::new());
    // A list that changes takes effect at once; the first and the last interface need a start.
    fs::write(scene.rig.file(Host::A), client("share = \"lan7\"\nkill_switch = true")).expect("a file");
    assert!(scene.rig.mpt(Host::A, &["reload"]).status.success());
    assert!(!pings(&scene.guest, FAR[0]));
    fs::write(scene.rig.file(Host::A), client("kill_switch = true")).expect("a file");
    let refused = scene.rig.mpt(Host::A, &["reload"]);
    let stderr = text(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("share cannot change while the tunnel runs"), "{stderr}");
    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    assert_eq!(scene.tables(), "");
}

#[test]
fn a_wrong_interface_starts_nothing() {
    let Some(scene) = Scene::build("share-wrong", false) else { return };
    let file = scene.rig.file(Host::A);
    fs::write(&file, client("share = \"mpt0\"")).expect("a file");
    sh(&scene.rig.hosts.a, &format!("chmod 600 {}", file.display()));
    let run = |command: &mut Command| output(command.arg(&file));
    for refused in
        [run(scene.rig.program(Host::A).args(["config", "check"])), run(scene.rig.program(Host::A).arg("up"))]
    {
        let (status, message) = (refused.status, text(&refused.stdout) + &text(&refused.stderr));
        let is_clear = ["A.toml:4", "share: \"mpt0\" is the tunnel's own interface", "hint:"];
        assert!(!status.success() && is_clear.iter().all(|part| message.contains(part)), "{message}");
    }
    assert_eq!(scene.tables(), "");
}
