//! The kill switch against programs, routers and hosts that try to send past the tunnel. What counts is the capture on
//! the uplink: every packet to the Internet there has left outside the tunnel.

use crate::{
    bypass::Way,
    capture::Capture,
    internet::{CLIENT, FAR, SERVER, internet, reaches, start},
    rig::{Rig, TIMEOUT, output, sh, text},
};
use mpt_lab::topology::{Host, Netns};
use mpt_proto::packet::ip::{Ip, UDP};
use nix::sys::{
    signal::Signal,
    socket::{setsockopt, sockopt},
};
use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    time::Instant,
};

/// Host A with its kill switch, a host behind it, and a capture at the other end of the uplink.
struct Scene {
    rig: Rig,
    guest: Netns,
    wire: Capture,
    _far: Netns,
}

impl Scene {
    fn build(test: &str) -> Option<Self> {
        let rig = Rig::build(test, &["delay=1ms"])?;
        let far = internet(&rig);
        let guest = behind_a(&rig);
        // An interface without ARP, such as a modem's, sends to any address; here ARP has an answer for it.
        sh(&rig.hosts.a, &format!("ip neighbour replace {} lladdr 02:00:00:00:01:02 dev eth1 nud permanent", FAR[0]));
        sh(&rig.hosts.a, "echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range");
        let wire = Capture::open(&rig.hosts.b, "eth1");
        Some(Self { rig, guest, wire, _far: far })
    }

    /// Tries every way past the tunnel, and returns those whose packets were on the uplink.
    fn leaks(&mut self) -> BTreeSet<String> {
        let before = self.wire.frames().len();
        for (own, far) in [("192.168.11.1", FAR[0]), ("fd00:1::1", FAR[1])] {
            let (own, far): (IpAddr, IpAddr) = (own.parse().expect("an address"), far.parse().expect("an address"));
            for way in Way::ALL {
                way.send(&self.rig.hosts.a, "eth1", own, far);
            }
            let mut ping = self.rig.hosts.a.command("setpriv");
            ping.args(["--reuid=65534", "--regid=65534", "--clear-groups", "ping", "-n", "-c", "1", "-W", "0.1"]);
            output(ping.args(["-I", "eth1", &far.to_string()]));
            Way::Route.send(&self.guest, "eth0", own, far);
            self.guest.sh(&format!("ping -n -c 1 -W 0.1 -s 17 {far} || true")).expect("a ping");
        }
        // Both links keep the order: when these answers are here, all that was sent before has arrived.
        self.rig.wait_until("the router answers", |_| {
            let router = "ping -n -c 1 -W 1 10.99.0.1 >/dev/null && ping -n -c 1 -W 1 fd99::1 >/dev/null";
            self.guest.sh(router).is_ok()
        });
        self.rig.wait_until("the uplink's other end answers", |rig| reaches(rig, "192.168.11.2"));
        self.wire.frames()[before..].iter().filter_map(|frame| leak(frame)).collect()
    }

    fn wait_for_tunnel(&self) {
        self.rig.wait_until("the tunnel carries everything", |rig| FAR.iter().all(|far| reaches(rig, far)));
    }
}

/// Describes a packet to the Internet; `None` for other frames.
fn leak(frame: &[u8]) -> Option<String> {
    let packet = frame.get(14..)?;
    let ip = Ip::parse(packet).ok().filter(|ip| FAR.contains(&&*ip.destination.to_string()))?;
    let from = if is_behind_a(ip.source) { "forwarded " } else { "" };
    let version = if ip.destination.is_ipv4() { 4 } else { 6 };
    let port = ip.ports(packet).map(|(_, to)| to);
    let way = Way::ALL.into_iter().find(|way| port == Some(way.port()));
    Some(way.map_or_else(|| format!("{from}ping IPv{version}"), |way| format!("{from}{way:?} IPv{version}")))
}

fn is_behind_a(source: IpAddr) -> bool {
    ["10.99.0.", "fd99:"].iter().any(|prefix| source.to_string().starts_with(prefix))
}

/// Creates a host behind host A, which forwards for it.
fn behind_a(rig: &Rig) -> Netns {
    let name = rig.hosts.a.name().replace("-a", "-d");
    let guest = Netns::create(&name).expect("a namespace");
    let router = format!(
        "link add lan type veth peer name eth0 netns {name}\nlink set lan up\naddress add 10.99.0.1/24 dev lan\n\
         address add fd99::1/64 dev lan nodad"
    );
    rig.hosts.a.ip(&router).expect("a network");
    let host = "link set eth0 up\naddress add 10.99.0.2/24 dev eth0\naddress add fd99::2/64 dev eth0 nodad\n\
                route add default via 10.99.0.1\nroute add default via fd99::1";
    guest.ip(host).expect("a host");
    rig.hosts.a.sysctl(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")]).expect("a router");
    guest
}

/// Adds the routes of a hostile DHCP server (option 121) and of a hostile router advertisement (RFC 4191) to the main
/// table.
const HOSTILE_ROUTES: &str = "ip route add 0.0.0.0/1 via 192.168.11.2 dev eth1 proto dhcp
ip route add 128.0.0.0/1 via 192.168.11.2 dev eth1 proto dhcp
ip -6 route add default via fd00:1::2 dev eth1 proto ra metric 10
ip -6 route add ::/1 via fd00:1::2 dev eth1 proto ra
ip -6 route add 8000::/1 via fd00:1::2 dev eth1 proto ra";

/// Deletes the tunnel's rules, as a network manager does with rules that it has not made.
const DELETE_RULES: &str =
    "for v in -4 -6; do for p in 10 11; do ip $v rule del pref $p; done; done 2>/dev/null || true";

#[test]
fn nothing_leaves_past_the_tunnel_whatever_a_program_a_router_or_a_lan_does() {
    let Some(mut scene) = Scene::build("leaks") else { return };
    let nothing = BTreeSet::new();
    start(&mut scene.rig, true);
    scene.wait_for_tunnel();
    assert_eq!(scene.leaks(), nothing, "while the tunnel is up");
    assert!(scene.rig.mpt(Host::A, &["reload"]).status.success());
    assert_eq!(scene.leaks(), nothing, "after a reload");
    sh(&scene.rig.hosts.a, HOSTILE_ROUTES);
    assert_eq!(scene.leaks(), nothing, "with hostile routes");
    assert!(reaches(&scene.rig, "10.77.0.2") && reaches(&scene.rig, "fd77::2"), "the tunnel works");

    assert!(!scene.rig.signal(Host::A, Signal::SIGKILL).success());
    assert_eq!(scene.leaks(), nothing, "after a crash");
    sh(&scene.rig.hosts.a, DELETE_RULES);
    assert_eq!(scene.leaks(), nothing, "after a crash, without the rules");

    scene.rig.launch_with(Host::A, &CLIENT.replace("KILL", "true"));
    assert!(scene.rig.mpt(Host::A, &["reload"]).status.success());
    assert_eq!(scene.leaks(), nothing, "after the next start and a reload");
    scene.rig.wait_until("the tunnel works", |rig| reaches(rig, "10.77.0.2") && reaches(rig, "fd77::2"));
    sh(&scene.rig.hosts.a, DELETE_RULES);
    assert_eq!(scene.leaks(), nothing, "without the rules");

    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    let expected = Way::ALL.iter().flat_map(|way| [4, 6].map(|version| format!("{way:?} IPv{version}")));
    let forwarded =
        [4, 6].into_iter().flat_map(|v| [format!("forwarded ping IPv{v}"), format!("forwarded Route IPv{v}")]);
    let expected: BTreeSet<_> = expected.chain(forwarded).chain([4, 6].map(|v| format!("ping IPv{v}"))).collect();
    let (begun, mut all) = (Instant::now(), scene.leaks());
    while all != expected && begun.elapsed() < TIMEOUT {
        all.extend(scene.leaks());
    }
    assert_eq!(all, expected, "each attempt succeeds without the kill switch");
}

#[test]
fn nothing_leaves_before_the_first_start_if_the_kill_switch_is_on_by_then() {
    let Some(mut scene) = Scene::build("early") else { return };
    let client = CLIENT.replace("KILL", "true");
    let file = scene.rig.file(Host::A).display().to_string();
    write_secret(&scene.rig, &client.replace("kill_switch = true", "kill_switch = false"));
    let refused = scene.rig.mpt(Host::A, &["kill-switch", "on", &file]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("has no kill switch"), "{refused:?}");

    write_secret(&scene.rig, &client);
    for _ in 0..2 {
        let on = scene.rig.mpt(Host::A, &["kill-switch", "on", &file]);
        assert!(on.status.success(), "{}", text(&on.stderr));
        assert_eq!(scene.leaks(), BTreeSet::new(), "before the first start");
    }
    start(&mut scene.rig, true);
    scene.wait_for_tunnel();
    let running = scene.rig.mpt(Host::A, &["kill-switch", "on", &file]);
    assert!(!running.status.success() && text(&running.stderr).contains("is running"), "{running:?}");
    assert_eq!(scene.leaks(), BTreeSet::new(), "while the tunnel is up");
    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    assert_eq!(sh(&scene.rig.hosts.a, "nft list tables"), "");

    assert!(scene.rig.mpt(Host::A, &["kill-switch", "on", &file]).status.success());
    let program = scene.rig.program(Host::A);
    let mut command = scene.rig.hosts.a.command("unshare");
    command.args(["--mount", "sh", "-ec", "mount -t tmpfs tmpfs /dev/net; exec \"$1\" up \"$2\"", "sh"]);
    command.arg(crate::rig::program()).arg(&file);
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let failed = output(&mut command);
    let shown = text(&failed.stderr);
    assert!(!failed.status.success() && shown.contains("/dev/net/tun"), "{shown}");
    assert!(shown.contains("the kill switch stays active"), "{shown}");
    assert_eq!(scene.leaks(), BTreeSet::new(), "after a start without the device");
    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    assert_eq!(sh(&scene.rig.hosts.a, "nft list tables"), "");
}

#[test]
fn what_keeps_a_link_alive_passes_and_of_the_networks_only_those_outside() {
    let Some(mut scene) = Scene::build("alive") else { return };
    let near = |rig: &Rig| ["192.168.11.2", "fd00:1::2"].map(|near| reaches(rig, near));
    let client = |outside: &str| CLIENT.replace("KILL", &format!("true\n{outside}"));
    scene.rig.launch_with(Host::B, SERVER);
    scene.rig.launch_with(Host::A, &client("outside = []"));
    // The neighbours of the laboratory are static.
    sh(&scene.rig.hosts.a, "ip neighbour flush all nud permanent");
    scene.wait_for_tunnel();
    assert_eq!(near(&scene.rig), [false, false]);
    let dhcp = |rig: &Rig| {
        let sent = rig.hosts.a.enter(|| -> std::io::Result<usize> {
            let socket = UdpSocket::bind("0.0.0.0:68")?;
            socket.set_broadcast(true)?;
            setsockopt(&socket, sockopt::BindToDevice, &"eth1".into())?;
            socket.send_to(b"discover", "255.255.255.255:67")
        });
        sent.expect("a namespace").expect("a broadcast");
    };
    dhcp(&scene.rig);
    let has = |scene: &mut Scene, destination: &str, protocol: u8| {
        let parsed = scene.wire.frames().iter().filter_map(|frame| Ip::parse(frame.get(14..)?).ok());
        parsed.filter(|ip| (ip.destination.to_string().as_str(), ip.protocol) == (destination, protocol)).count() > 0
    };
    scene.wait_for_tunnel();
    assert!(has(&mut scene, "255.255.255.255", UDP), "DHCP");
    assert!(!has(&mut scene, "192.168.11.2", 1) && !has(&mut scene, "fd00:1::2", 58), "the echo requests");

    for (outside, expected) in [("", [true, true]), ("outside = [\"192.168.11.0/24\"]", [true, false])] {
        write_secret(&scene.rig, &client(outside));
        assert!(scene.rig.mpt(Host::A, &["reload"]).status.success());
        assert_eq!(near(&scene.rig), expected, "{outside:?}");
    }
}

/// An access point that hands out an address in the network of a public server would have its packets.
#[test]
fn only_a_private_network_is_local_when_an_address_comes() {
    let Some(mut scene) = Scene::build("lease") else { return };
    start(&mut scene.rig, true);
    scene.wait_for_tunnel();
    let table = |rig: &Rig| sh(&rig.hosts.a, "nft list table inet mptkill_mpt0");
    sh(&scene.rig.hosts.a, "ip address add 198.51.100.77/24 dev eth1; ip address add 172.16.5.1/24 dev eth1");
    scene.rig.wait_until("the private network is local", |rig| table(rig).contains("172.16.5.0/24"));
    assert!(!table(&scene.rig).contains("198.51.100"));
    assert_eq!(scene.leaks(), BTreeSet::new());
}

fn write_secret(rig: &Rig, config: &str) {
    fs::write(rig.file(Host::A), config).expect("a file");
    fs::set_permissions(rig.file(Host::A), fs::Permissions::from_mode(0o600)).expect("its mode");
}
