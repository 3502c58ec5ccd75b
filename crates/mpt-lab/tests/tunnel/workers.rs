//! `workers = 2`: host B serves host A with one worker and a guest with the other one.

use crate::{
    native_host::{B, Native, OTHER, Third},
    rig::{Rig, inside, sh, text},
    transfer::Transfer,
};
use mpt_lab::{
    sites::SitesPlan,
    topology::{Family, Host, Netns},
};
use mpt_proto::crypto::keys::KeyPair;
use serde_json::Value;
use std::{fs, time::Duration};

const GUEST: &str = "10.77.0.3";

struct Scene {
    guest: Third,
    guest_host: Netns,
    rig: Rig,
}

impl Scene {
    fn build(test: &str) -> Option<Self> {
        let mut rig = Rig::build(test, &["delay=1ms"])?;
        let guest_host = Netns::create(&rig.hosts.a.name().replace("-a", "-d")).expect("a namespace");
        let name = guest_host.name();
        let at_server = format!(
            "link add guest type veth peer name eth0 netns {name}\nlink set guest up\naddress add 192.168.99.2/24 dev guest"
        );
        rig.hosts.b.ip(&at_server).expect("a link");
        guest_host.ip("link set lo up\nlink set eth0 up\naddress add 192.168.99.1/24 dev eth0").expect("a link");
        rig.launch_with(Host::B, &server(""));
        rig.launch_with(Host::A, &Native::initiator("remote = \"192.168.11.2\"").text());
        let config = Native::initiator("remote = \"192.168.99.2\"").keys(OTHER, B).inside(GUEST);
        let guest = Third::start(&rig, &guest_host, "mpt0", &config);
        rig.wait_for_answer(&[], Family::V4, "a tunnel of two workers");
        let scene = Self { guest, guest_host, rig };
        scene.rig.wait_until("the guest is answered", |_| scene.guest_is_answered());
        Some(scene)
    }

    fn guest_is_answered(&self) -> bool {
        sh(&self.guest_host, "ping -n -c 1 -W 1 10.77.0.2 >/dev/null && echo yes || echo no").trim() == "yes"
    }

    fn workers(&self) -> Vec<Value> {
        self.rig.status(Host::B)["workers"].as_array().expect("workers").clone()
    }

    /// Returns how many packets the server delivered from a peer.
    fn delivered(&self, peer: usize) -> u64 {
        self.rig.status(Host::B)["peers"][peer]["delivered_packets"].as_u64().expect("a count")
    }
}

/// Returns the file of host B, with more lines at its end.
fn server(more: &str) -> String {
    let key = KeyPair::generate([OTHER; 32]).public().to_string();
    let guest = format!("[[peer]]\nname = \"guest\"\npublic_key = \"{key}\"\nnetworks = [\"{GUEST}/32\"]\n{more}");
    Native::responder().on_top("workers = 2").text() + &guest
}

#[test]
fn each_of_two_workers_serves_a_peer() {
    let Some(scene) = Scene::build("workers") else { return };
    let peers: Vec<_> = scene.workers().iter().map(|worker| worker["peers"].clone()).collect();
    assert_eq!(peers, [1, 1]);
    let (rig, guest, server) = (&scene.rig, &scene.guest_host, &rig_server(&scene));
    let inside_guest = GUEST.parse().expect("an address");
    // All directions at once: each packet comes from the right peer in the right order, or a flow ends with an error.
    let flows = [
        Transfer::start(rig, Family::V4),
        Transfer::between(server, &rig.hosts.a, inside(Host::A, Family::V4)),
        Transfer::between(guest, server, inside(Host::B, Family::V4)),
        Transfer::between(server, guest, inside_guest),
    ];
    flows.iter().for_each(|flow| flow.wait_for(rig, 3_000_000));
    flows.into_iter().for_each(Transfer::finish);
    // A hub's peers reach each other through the kernel, from one worker to the other.
    sh(server, "sysctl -qw net.ipv4.ip_forward=1");
    Transfer::between(&rig.hosts.a, guest, inside_guest).finish();
    let drops = rig.status(Host::B)["drops"].clone();
    assert_eq!(drops["unknown_session"].as_u64().unwrap_or(0), 0, "no datagram came to the wrong worker: {drops}");
}

fn rig_server(scene: &Scene) -> &Netns {
    &scene.rig.hosts.b
}

/// UDP in one direction has no answer by which the TUN device would learn a queue.
#[test]
fn one_way_traffic_to_either_peer_is_handed_over() {
    let Some(scene) = Scene::build("workers-udp") else { return };
    let server = &scene.rig.hosts.b;
    let before = [scene.rig.status(Host::A), scene.guest.status()].map(|status| received(&status));
    // Many flows: the hash of some leads to each queue.
    for to in ["10.77.0.1", GUEST] {
        sh(server, &format!("bash -c 'for port in $(seq 20000 20099); do echo hello > /dev/udp/{to}/$port; done'"));
    }
    scene.rig.wait_until("all of them arrive", |rig| {
        let now = [rig.status(Host::A), scene.guest.status()].map(|status| received(&status));
        now.iter().zip(before).all(|(now, before)| *now >= before + 100)
    });
    assert_eq!(scene.rig.status(Host::B)["drops"]["no_route"].as_u64().unwrap_or(0), 0);
}

fn received(status: &Value) -> u64 {
    status["peers"][0]["received_packets"].as_u64().expect("a count")
}

#[test]
fn workers_follow_a_reload_and_a_lost_interface() {
    let Some(scene) = Scene::build("workers-reload") else { return };
    let rig = &scene.rig;
    let third = KeyPair::generate([9; 32]).public().to_string();
    let more = format!("[[peer]]\nname = \"third\"\npublic_key = \"{third}\"\nnetworks = [\"10.77.0.9/32\"]\n");
    fs::write(rig.file(Host::B), server(&more)).expect("a file");
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    let peers = |scene: &Scene| scene.workers().iter().map(|w| w["peers"].as_u64().expect("a count")).sum::<u64>();
    assert_eq!(peers(&scene), 3);
    fs::write(rig.file(Host::B), server("")).expect("a file");
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    assert_eq!(peers(&scene), 2);

    fs::write(rig.file(Host::B), server("").replace("workers = 2", "workers = 3")).expect("a file");
    let refused = rig.mpt(Host::B, &["reload"]);
    let stderr = text(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("workers cannot change"), "{stderr}");

    // The address is gone, and with it the group of sockets. It comes back.
    let before = scene.delivered(1);
    sh(&rig.hosts.b, "ip address del 192.168.99.2/24 dev guest");
    rig.wait_until("the guest's path is down", |_| scene.guest.status()["peers"][0]["paths"][0]["up"] == false);
    sh(&rig.hosts.b, "ip address add 192.168.99.2/24 dev guest");
    rig.wait_until("the guest is answered again", |_| scene.guest_is_answered());
    assert!(scene.delivered(1) > before);
    rig.wait_for_answer(&[], Family::V4, "host A did not notice");
}

/// A source that knows all sites: each initiation comes to the first worker, and half of the peers go to the other.
#[test]
fn peers_on_demand_are_shared_by_the_workers() {
    let rest = Duration::from_secs(1);
    let plan =
        SitesPlan { count: 100, paths: 1, known: 200, rate: 1_000, limit: Duration::from_secs(60), rest, workers: 2 };
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let outcome = mpt_lab::sites::run(&crate::rig::program(), &plan).expect("sites");
    assert_eq!((outcome.up, outcome.peers), (100, 100), "{outcome}");
}
