//! `[[forward]]`: a visitor of host B reaches a host behind host A through the tunnel. That host sees the visitor's
//! address.
//!
//! ```text
//!   inner host --- lan --- host A === tunnel === host B, port 8443 --- wan --- visitor
//! ```

use crate::{
    internet::{FAR, internet},
    native_host::Native,
    rig::{Rig, TIMEOUT, sh, text},
};
use mpt_lab::topology::{Host, Netns};
use nix::sys::signal::Signal;
use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

struct Scene {
    rig: Rig,
    inner: Netns,
    visitor: Netns,
}

const FORWARD: &str = r#"
[[forward]]
port = 8443
protocol = "tcp"
to = "10.99.0.2:443"
peer = "site"
[[forward]]
port = 8443
to = "[fd99::2]:443"
peer = "site"
[[forward]]
port = 8444
to = "10.77.0.1:443"
peer = "site"
"#;

impl Scene {
    fn build(test: &str) -> Option<Self> {
        let rig = Rig::build(test, &["delay=1ms"])?;
        let visitor = internet(&rig);
        let inner = Netns::create(&rig.hosts.a.name().replace("-a", "-d")).expect("a namespace");
        let name = inner.name();
        let router = format!(
            "link add lan type veth peer name eth0 netns {name}\nlink set lan up\naddress add 10.99.0.1/24 dev lan\n\
             address add fd99::1/64 dev lan nodad"
        );
        rig.hosts.a.ip(&router).expect("a network");
        let host = "link set eth0 up\naddress add 10.99.0.2/24 dev eth0\naddress add fd99::2/64 dev eth0 nodad\n\
                    route add default via 10.99.0.1\nroute add default via fd99::1";
        inner.ip(host).expect("a host");
        Some(Self { rig, inner, visitor })
    }

    /// Starts the daemons: host A with these lines at the top, host B with or without `masquerade`.
    fn start(&mut self, site: &str, server: &str) {
        let networks = r#"networks = ["10.77.0.1/32", "fd77::1/128", "10.99.0.2/32", "fd99::2/128"]"#;
        let top = format!("{server}\nroutes = [\"10.99.0.2/32\", \"fd99::2/128\"]\n{FORWARD}");
        let server = Native::responder().on_top(&top).only(&format!("name = \"site\"\n{networks}"));
        self.rig.launch_with(Host::B, &server.text());
        let site = Native::initiator("remote = \"192.168.11.2\"").on_top(site);
        self.rig.launch_with(Host::A, &site.text());
        self.rig.wait_for_answer(&[], mpt_lab::topology::Family::V4, "the tunnel");
    }

    /// Visits a port of the server, and returns the visitor's address as the service behind it sees it; none if there
    /// is no connection.
    fn visit(&self, service: &Netns, at: SocketAddr, to: SocketAddr) -> Option<IpAddr> {
        let listener = service.enter(|| TcpListener::bind(at)).expect("a namespace").expect("a port");
        let visit = || TcpStream::connect_timeout(&to, Duration::from_secs(2));
        let mut stream = self.visitor.enter(visit).expect("a namespace").ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).expect("a limit");
        let served = thread::spawn(move || {
            let (mut stream, from) = listener.accept().expect("a connection");
            stream.write_all(&[7; 100_000]).expect("an answer");
            from.ip()
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        assert_eq!(answer.len(), 100_000);
        Some(served.join().expect("a service"))
    }

    /// Visits the inner host over both IP versions.
    fn visits(&self) -> [Option<IpAddr>; 2] {
        [("10.99.0.2:443", "198.51.100.1:8443"), ("[fd99::2]:443", "[2001:db8:99::1]:8443")]
            .map(|(at, to)| self.visit(&self.inner, at.parse().expect("an address"), to.parse().expect("an address")))
    }

    /// The service runs on host A itself.
    fn visit_site(&self) -> Option<IpAddr> {
        let at = "10.77.0.1:443".parse().expect("an address");
        self.visit(&self.rig.hosts.a, at, "198.51.100.1:8444".parse().expect("an address"))
    }
}

fn visitors() -> [Option<IpAddr>; 2] {
    FAR.map(|far| Some(far.parse().expect("an address")))
}

const REACHABLE: &str = "reachable = [\"10.99.0.2/32\", \"fd99::2/128\"]";

#[test]
fn the_inner_host_sees_the_visitors_address_and_its_answers_return_through_the_tunnel() {
    let Some(mut scene) = Scene::build("visit") else { return };
    let everything = "routes = [\"0.0.0.0/0\", \"::/0\"]";
    // The default route of host A leads beside the tunnel, or into it.
    for site in [REACHABLE.to_owned(), format!("{REACHABLE}\n{everything}\nshare = \"lan\"\nkill_switch = true")] {
        for server in ["", "masquerade = true"] {
            scene.start(&site, server);
            assert_eq!(scene.visits(), visitors(), "{site}, {server}");
            assert_eq!(scene.visit_site(), visitors()[0], "{site}, {server}");
        }
    }
}

#[test]
fn a_site_is_reached_at_the_networks_that_it_lists_and_nowhere_else() {
    let Some(mut scene) = Scene::build("consent") else { return };
    scene.start("reachable = [\"fd99::2/128\"]", "");
    assert_eq!(scene.visits(), [None, visitors()[1]]);
    scene.start("share = \"lan\"", "");
    assert_eq!(scene.visits(), [None, None]);
}

#[test]
fn flushed_forwards_are_restored_and_nothing_is_left_at_the_end() {
    let Some(mut scene) = Scene::build("visit-end") else { return };
    let state = "set +e; cat /proc/sys/net/ipv4/ip_forward; nft list tables; ip rule | grep fwmark; true";
    let state = |scene: &Scene| [&scene.rig.hosts.a, &scene.rig.hosts.b].map(|host| sh(host, state));
    let before = state(&scene);
    scene.start(REACHABLE, "");
    assert_eq!(scene.visits(), visitors());
    for host in [Host::A, Host::B] {
        sh(scene.rig.hosts.host(host), "nft flush ruleset");
        scene
            .rig
            .wait_until("the table is back", |rig| sh(rig.hosts.host(host), "nft list tables").contains("mpt_mpt0"));
    }
    assert_eq!(scene.visits(), visitors());
    // Rules that another program deletes are back, too.
    sh(&scene.rig.hosts.a, "ip rule del priority 31999");
    scene.rig.wait_until("the rule is back", |rig| sh(&rig.hosts.a, "ip rule").contains("31999:"));
    assert!(scene.rig.mpt(Host::A, &["down"]).status.success());
    assert!(!scene.rig.signal(Host::B, Signal::SIGKILL).success());
    let down = scene.rig.mpt(Host::B, &["down"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert_eq!(state(&scene), before);
}
