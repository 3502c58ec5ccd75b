//! `delegate`: a host behind host A makes an address in the delegated network, and reaches the Internet with it.
//!
//! ```text
//!   guest --- lan --- host A === tunnel over eth1 === host B --- wan --- the Internet
//! ```

use crate::{
    capture::Capture,
    internet::{CLIENT, FAR, SERVER, internet},
    rig::{Rig, output, sh, text},
};
use mpt_lab::topology::{Host, Netns};
use mpt_proto::packet::ip::Ip;
use nix::sys::signal::Signal;
use std::{fs, net::IpAddr, process::Command};

struct Scene {
    rig: Rig,
    guest: Netns,
    far: Netns,
}

impl Scene {
    fn build(test: &str) -> Option<Self> {
        let rig = Rig::build(test, &["delay=1ms"])?;
        let far = internet(&rig);
        far.ip("route add 2001:db8:78::/64 via 2001:db8:99::1").expect("a route of the provider");
        let guest = Netns::create(&rig.hosts.a.name().replace("-a", "-d")).expect("a namespace");
        let name = guest.name();
        let lan = format!("link add lan type veth peer name eth0 netns {name}\nlink set lan up");
        rig.hosts.a.ip(&lan).expect("a network");
        guest.sysctl(&[("net/ipv6/conf/eth0/accept_ra", "1"), ("net/ipv6/conf/eth0/autoconf", "1")]).expect("settings");
        Some(Self { rig, guest, far })
    }

    fn start(&mut self) {
        let server = SERVER.replace("\"fd77::1/128\"", "\"fd77::1/128\", \"2001:db8:78::/64\"");
        self.rig.launch_with(Host::B, &server.replace("masquerade", "routes = [\"2001:db8:78::/64\"]\nmasquerade"));
        self.rig.launch_with(Host::A, &client("share = \"lan\"\ndelegate = \"2001:db8:78::/64\"\nkill_switch = true"));
    }

    /// Returns the guest's usable address in the network.
    fn address(&self) -> Option<String> {
        let listed = sh(&self.guest, "ip -6 -o address show dev eth0 scope global -tentative -deprecated");
        let words = listed.split_whitespace().filter(|word| word.starts_with("2001:db8:78:"));
        words.filter_map(|word| word.split('/').next()).map(str::to_owned).next()
    }

    fn wait_for_guest(&self) -> String {
        self.rig.wait_until("the guest has an address", |_| self.address().is_some());
        self.rig.wait_until("the guest reaches the Internet", |_| pings(&self.guest, FAR[1]));
        self.address().expect("an address")
    }

    fn router_addresses(&self) -> String {
        sh(&self.rig.hosts.a, "ip -6 -o address show dev lan scope global")
    }
}

fn client(top: &str) -> String {
    CLIENT.replace("kill_switch = KILL", top)
}

fn pings(from: &Netns, to: &str) -> bool {
    output(from.command("ping").args(["-n", "-c", "1", "-W", "1", to])).status.success()
}

/// The guest's own address is what the Internet sees, and nothing reaches the guest unasked.
#[test]
fn hosts_make_addresses_in_a_delegated_network_and_keep_them_on_the_way() {
    let Some(mut scene) = Scene::build("delegated-now") else { return };
    scene.guest.ip("link set eth0 up").expect("a host");
    scene.start();
    let address = scene.wait_for_guest();
    let mut at_far = Capture::open(&scene.far, "eth0");
    assert!(pings(&scene.guest, FAR[1]));
    let source: IpAddr = address.parse().expect("an address");
    let sources = at_far.frames().iter().filter_map(|frame| Ip::parse(frame.get(14..)?).ok()).map(|ip| ip.source);
    assert!(sources.into_iter().any(|seen| seen == source), "the source is not translated");
    let mtu = sh(&scene.guest, "cat /proc/sys/net/ipv6/conf/eth0/mtu");
    assert_eq!(mtu, sh(&scene.rig.hosts.a, "cat /sys/class/net/mpt0/mtu"), "hosts know the tunnel's MTU");
    assert!(pings(&scene.rig.hosts.a, &address), "the kill switch lets the router answer its hosts");
    let unasked = pings(&scene.far, &address);
    assert!(!unasked, "the gateway lets in answers alone");

    // A host that joins solicits an advertisement: it does not wait for the next one, in 200 s.
    scene.guest.ip("link set eth0 down\nlink set eth0 up").expect("a cable");
    assert_eq!(scene.wait_for_guest(), address);
    // The router's end goes down, and is replaced by one with another index. The tunnel has no CAP_NET_RAW any more.
    let replaced = format!("link del lan\nlink add lan type veth peer name eth0 netns {}", scene.guest.name());
    for change in ["link set lan down", &replaced] {
        scene.rig.hosts.a.ip(change).expect("a change of the LAN");
        let settings = [("net/ipv6/conf/eth0/accept_ra", "1"), ("net/ipv6/conf/eth0/autoconf", "1")];
        scene.guest.sysctl(&settings).expect("settings");
        scene.rig.hosts.a.ip("link set lan up").expect("a LAN");
        for _ in 0..2 {
            scene.guest.ip("link set eth0 down\nlink set eth0 up").expect("a host that solicits");
            scene.wait_for_guest();
        }
    }
    // Another program removes the router's address.
    sh(&scene.rig.hosts.a, "ip -6 address flush dev lan scope global");
    scene.rig.wait_until("it is back", |_| scene.router_addresses().contains("2001:db8:78::1/64"));

    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    assert_eq!(scene.router_addresses(), "");
    scene.rig.wait_until("the guest has no router", |_| sh(&scene.guest, "ip -6 route show default").is_empty());
    assert_eq!(scene.address(), None, "its address is deprecated");
}

/// The LAN may appear later. After a crash, the address expires by itself.
#[test]
fn a_delegated_network_waits_for_its_interface_and_leaves_nothing_for_ever() {
    let Some(mut scene) = Scene::build("delegated-later") else { return };
    scene.rig.hosts.a.ip("link set lan down").expect("a cable");
    scene.start();
    scene.rig.hosts.a.ip("link set lan up").expect("a cable");
    scene.guest.ip("link set eth0 up").expect("a host");
    scene.wait_for_guest();
    fs::write(scene.rig.file(Host::A), client("share = \"lan\"\nkill_switch = true")).expect("a file");
    let refused = text(&scene.rig.mpt(Host::A, &["reload"]).stderr);
    assert!(refused.contains("delegate cannot change while the tunnel runs"), "{refused}");
    scene.rig.signal(Host::A, Signal::SIGKILL);
    let left = scene.router_addresses();
    let valid = left.split("valid_lft ").nth(1).and_then(|rest| rest.split("sec").next()).expect("a lifetime");
    assert!(valid.parse::<u64>().is_ok_and(|seconds| seconds <= 1_800), "{left}");
    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
}

#[test]
fn a_delegated_network_without_the_right_to_advertise_it_starts_nothing() {
    let Some(scene) = Scene::build("delegated-refused") else { return };
    let file = scene.rig.file(Host::A);
    fs::write(&file, client("share = \"lan\"\ndelegate = \"2001:db8:78::/64\"")).expect("a file");
    sh(&scene.rig.hosts.a, &format!("chmod 600 {}", file.display()));
    let up = scene.rig.program(Host::A);
    let mut limited: Command = scene.rig.hosts.a.command("setpriv");
    limited.args(["--bounding-set", "-net_raw", "--inh-caps", "-net_raw"]).arg(up.get_program());
    let environment = up.get_envs().filter_map(|(key, value)| Some((key, value?)));
    let refused = output(limited.args(up.get_args()).envs(environment).arg("up").arg(&file));
    let message = text(&refused.stderr);
    let is_clear = ["router advertisements", "hint:", "CAP_NET_RAW"].iter().all(|part| message.contains(part));
    assert!(!refused.status.success() && is_clear, "{message}");
}
