//! The gateway of `masquerade`: whom it forwards for. Host A and a host on host B's LAN are clients of host B; the
//! Internet has a stranger, who sends to addresses of the tunnel and of the LAN through host B.
//!
//! ```text
//!   client 1 (host A) === tunnel === host B --- wan --- the stranger, who is the Internet as well
//!                                      \\--- lan --- a host, which is client 2 as well
//! ```

use crate::{
    bypass::Way,
    capture::Capture,
    internet::{FAR, internet, reaches},
    native_host::{B, Native, OTHER, Third},
    rig::{Rig, TIMEOUT, sh, text},
};
use mpt_lab::topology::{Host, Netns};
use mpt_proto::{crypto::keys::KeyPair, packet::ip::Ip};
use std::{cell::RefCell, collections::BTreeSet, fmt::Write as _, fs, net::IpAddr, time::Instant};

struct Scene {
    rig: Rig,
    stranger: Netns,
    lan: Netns,
    second: Option<Third>,
}

/// A connection that somebody tries: its name, the destination, and where the destination's packets arrive.
struct Attempt {
    name: &'static str,
    from: From,
    to: [&'static str; 2],
    at: At,
}

#[derive(Clone, Copy)]
enum From {
    Stranger,
    Client,
    Lan,
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    Client,
    Second,
    Lan,
}

const ATTEMPTS: [Attempt; 5] = [
    Attempt { name: "stranger to client", from: From::Stranger, to: ["10.77.0.1", "fd77::1"], at: At::Client },
    Attempt { name: "stranger to LAN", from: From::Stranger, to: ["10.99.0.2", "fd99::2"], at: At::Lan },
    Attempt { name: "client to LAN", from: From::Client, to: ["10.99.0.2", "fd99::2"], at: At::Lan },
    Attempt { name: "client to client", from: From::Client, to: ["10.77.0.3", "fd77::3"], at: At::Second },
    Attempt { name: "LAN to client", from: From::Lan, to: ["10.77.0.1", "fd77::1"], at: At::Client },
];

impl Scene {
    fn build(test: &str) -> Option<Self> {
        let rig = Rig::build(test, &["delay=1ms"])?;
        let stranger = internet(&rig);
        let through_b = "for net in 10.77.0.0/24 10.99.0.0/24; do ip route add $net via 198.51.100.1; done
            for net in fd77::/64 fd99::/64; do ip route add $net via 2001:db8:99::1; done";
        sh(&stranger, through_b);
        let name = rig.hosts.b.name().replace("-b", "-d");
        let lan = Netns::create(&name).expect("a namespace");
        let host_b = format!(
            "link add lan type veth peer name eth0 netns {name}\nlink set lan up\naddress add 10.99.0.1/24 dev lan\n\
             address add fd99::1/64 dev lan nodad"
        );
        rig.hosts.b.ip(&host_b).expect("a network");
        let host = "link set eth0 up\naddress add 10.99.0.2/24 dev eth0\naddress add fd99::2/64 dev eth0 nodad\n\
                    route add default via 10.99.0.1\nroute add default via fd99::1";
        lan.ip(host).expect("a host");
        Some(Self { rig, stranger, lan, second: None })
    }

    /// Starts the daemons, host B's with these lines at the top.
    fn start(&mut self, top: &str) {
        self.second = None;
        self.rig.launch_with(Host::B, &server(top));
        let everything = "routes = [\"0.0.0.0/0\", \"::/0\"]";
        self.rig.launch_with(Host::A, &Native::initiator("remote = \"192.168.11.2\"").on_top(everything).text());
        let second = Native::initiator("remote = \"10.99.0.1\"").keys(OTHER, B).addresses("10.77.0.3/24", "fd77::3/64");
        self.second = Some(Third::start(&self.rig, &self.lan, "mpt1", &second));
        self.rig.wait_until("both clients reach the server", |rig| {
            let second = self.lan.sh("ping -n -c 1 -W 1 10.77.0.2 >/dev/null && ping -n -c 1 -W 1 fd77::2 >/dev/null");
            second.is_ok() && reaches(rig, "10.77.0.2") && reaches(rig, "fd77::2")
        });
    }

    /// Checks that the packets of exactly these attempts arrive.
    fn assert_arrivals(&self, names: &[&str], what: &str) {
        let expected: BTreeSet<_> =
            names.iter().flat_map(|name| [4, 6].map(|version| format!("{name} IPv{version}"))).collect();
        let (begun, mut arrived) = (Instant::now(), self.arrivals());
        while arrived.is_subset(&expected) && arrived != expected && begun.elapsed() < TIMEOUT {
            arrived.extend(self.arrivals());
        }
        assert_eq!(arrived, expected, "{what}");
    }

    /// Returns the names of the attempts whose packets arrive.
    fn arrivals(&self) -> BTreeSet<String> {
        let open = |netns: &Netns, interface: &str| RefCell::new(Capture::open(netns, interface));
        let (client, second) = (open(&self.rig.hosts.a, "mpt0"), open(&self.lan, "mpt1"));
        let lan = open(&self.lan, "eth0");
        for attempt in &ATTEMPTS {
            for to in attempt.to {
                let to: IpAddr = to.parse().expect("an address");
                match attempt.from {
                    From::Stranger => Way::Route.send(&self.stranger, "eth0", to, to),
                    From::Client => Way::Route.send(&self.rig.hosts.a, "eth1", to, to),
                    From::Lan => Way::Device.send(&self.lan, "eth0", to, to),
                }
            }
        }
        // When these answers are here, the server has all packets.
        self.rig.wait_until("the server answers everybody", |rig| {
            let answers = |host: &Netns, [v4, v6]: [&str; 2]| {
                host.sh(&format!("ping -n -c 1 -W 1 {v4} >/dev/null && ping -n -c 1 -W 1 {v6} >/dev/null")).is_ok()
            };
            answers(&self.stranger, ["198.51.100.1", "2001:db8:99::1"])
                && answers(&self.lan, ["10.99.0.1", "fd99::1"])
                && answers(&rig.hosts.a, ["10.77.0.2", "fd77::2"])
        });
        // What the server itself sends afterwards arrives last.
        for (at, to) in [(&client, "10.77.0.1"), (&second, "10.77.0.3"), (&lan, "10.99.0.2")] {
            let to: IpAddr = to.parse().expect("an address");
            self.rig.wait_until("the server's own packets arrive", |rig| {
                Way::Source.send(&rig.hosts.b, "lo", server_address(to), to);
                ports(&mut at.borrow_mut()).contains(&(to, Way::Source.port()))
            });
        }
        let mut arrived = BTreeSet::new();
        for attempt in &ATTEMPTS {
            let at = match attempt.at {
                At::Client => &client,
                At::Second => &second,
                At::Lan => &lan,
            };
            let seen = ports(&mut at.borrow_mut());
            for to in attempt.to.map(|to| to.parse::<IpAddr>().expect("an address")) {
                let port = if matches!(attempt.from, From::Lan) { Way::Device.port() } else { Way::Route.port() };
                // Two attempts go to the same address at the LAN and at the client, from different sides.
                let from_outside = |source: &IpAddr| is_stranger(*source) == matches!(attempt.from, From::Stranger);
                if sources(&mut at.borrow_mut(), to, port).iter().any(from_outside) && seen.contains(&(to, port)) {
                    arrived.insert(format!("{} IPv{}", attempt.name, if to.is_ipv4() { 4 } else { 6 }));
                }
            }
        }
        arrived
    }
}

fn is_stranger(source: IpAddr) -> bool {
    FAR.contains(&&*source.to_string())
}

/// Returns the server's address in the network of a destination.
fn server_address(to: IpAddr) -> IpAddr {
    if to.to_string().starts_with("10.99") { "10.99.0.1" } else { "10.77.0.2" }.parse().expect("an address")
}

fn packets(at: &mut Capture) -> Vec<(Ip, Option<(u16, u16)>)> {
    let parse = |bytes: &[u8]| Ip::parse(bytes).ok().map(|ip| (ip, ip.ports(bytes)));
    // A TUN device has no Ethernet header.
    at.frames().iter().filter_map(|frame| parse(frame).or_else(|| parse(frame.get(14..)?))).collect()
}

/// Returns destinations and destination ports so far.
fn ports(at: &mut Capture) -> BTreeSet<(IpAddr, u16)> {
    packets(at).into_iter().filter_map(|(ip, ports)| Some((ip.destination, ports?.1))).collect()
}

/// Returns the sources of the packets to an address and port so far.
fn sources(at: &mut Capture, to: IpAddr, port: u16) -> Vec<IpAddr> {
    let is_wanted =
        |(ip, ports): &(Ip, Option<(u16, u16)>)| ip.destination == to && ports.map(|(_, to)| to) == Some(port);
    packets(at).into_iter().filter(is_wanted).map(|(ip, _)| ip.source).collect()
}

fn server(top: &str) -> String {
    let mut text = Native::responder().on_top("masquerade = true").on_top(top).text();
    let key = *KeyPair::generate([OTHER; 32]).public();
    write!(text, "[[peer]]\npublic_key = \"{key}\"\nnetworks = [\"10.77.0.3/32\", \"fd77::3/128\"]\n")
        .expect("a string");
    text
}

#[test]
fn clients_reach_the_internet_and_nobody_else_unless_the_configuration_allows_it() {
    let Some(mut scene) = Scene::build("gateway") else { return };
    for (top, allowed) in [
        ("", &[][..]),
        ("client_to_client = true", &["client to client"]),
        ("lan = [\"10.99.0.0/24\", \"fd99::/64\"]", &["client to LAN"]),
    ] {
        scene.start(top);
        scene.rig.wait_until("the Internet answers", |rig| FAR.iter().all(|far| reaches(rig, far)));
        scene.assert_arrivals(allowed, top);
    }
    // A reload changes them.
    fs::write(scene.rig.file(Host::B), server("")).expect("a file");
    let reload = scene.rig.mpt(Host::B, &["reload"]);
    assert!(reload.status.success(), "{}", text(&reload.stderr));
    scene.assert_arrivals(&[], "after a reload");
}

/// A router still forwards the traffic of others; only traffic to and from the clients changes.
#[test]
fn a_host_that_was_a_router_stays_one() {
    let Some(mut scene) = Scene::build("was-router") else { return };
    scene.rig.hosts.b.sysctl(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")]).expect("a router");
    scene.start("");
    scene.assert_arrivals(&["stranger to LAN"], "on a router");
}

#[test]
fn the_interface_of_the_default_route_is_followed() {
    let Some(mut scene) = Scene::build("follow") else { return };
    sh(&scene.rig.hosts.b, "ip route del default; ip -6 route del default");
    scene.start("");
    assert!(!FAR.iter().any(|far| reaches(&scene.rig, far)), "no default route leads there");
    sh(&scene.rig.hosts.b, "ip route add default via 198.51.100.2; ip -6 route add default via 2001:db8:99::2");
    scene.rig.wait_until("the Internet answers", |rig| FAR.iter().all(|far| reaches(rig, far)));
}
