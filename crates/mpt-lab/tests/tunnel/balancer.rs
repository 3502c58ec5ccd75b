//! A balancer leads the datagrams of a site to one of three servers with one address. The rules are those of the guide.

use crate::rig::{Daemon, TIMEOUT, output, program, text};
use mpt_lab::topology::{Netns, Topology};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};
use tempfile::TempDir;

const GUIDE: &str = include_str!("../../../../docs/guide/fleet.md");
const SERVERS: [usize; 3] = [1, 2, 3];
const PATHS: usize = 3;
/// Addresses of one version of IP; those without an end are continued by the number of a host.
struct Family {
    /// The name in nftables.
    name: &'static str,
    /// The address of all servers.
    common: &'static str,
    uplinks: [&'static str; PATHS],
    /// Between `internet` and the balancer.
    middle: &'static str,
    lan: &'static str,
    prefix: &'static str,
}

const V4: Family = Family {
    name: "ip",
    common: "198.51.100.1",
    uplinks: ["192.168.0.", "192.168.1.", "192.168.2."],
    middle: "203.0.113.",
    lan: "10.88.0.",
    prefix: "/24",
};
const V6: Family = Family {
    name: "ip6",
    common: "2001:db8:100::1",
    uplinks: ["fd00::", "fd00:1::", "fd00:2::"],
    middle: "2001:db8:113::",
    lan: "2001:db8:88::",
    prefix: "/64",
};

/// The site has uplinks of its own networks to `internet`, which leads to the balancer.
struct World {
    site: Netns,
    internet: Netns,
    balancer: Netns,
    servers: Vec<Netns>,
    folder: TempDir,
    /// With the name of the host.
    daemons: Vec<(String, Daemon)>,
}

impl World {
    /// `families` are those of the paths.
    fn build(test: &str, families: [&Family; PATHS]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || Command::new("nft").arg("--version").output().is_err() {
            writeln!(io::stderr(), "skipped: needs root and nft: {test}; hint: apt-get install nftables")
                .expect("stderr takes a line");
            return None;
        }
        let name = format!("{}-{test}", Topology::unique_name());
        let host = |host: &str| Netns::create(&format!("{name}-{host}")).expect("a namespace");
        let folder = TempDir::with_prefix(&name).expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).expect("its mode");
        let servers = SERVERS.map(|number| host(&format!("s{number}"))).into_iter().collect();
        let (site, internet, balancer) = (host("site"), host("net"), host("lb"));
        let mut world = Self { site, internet, balancer, servers, folder, daemons: Vec::new() };
        world.connect();
        let [site, servers] = ["site", "servers"].map(|name| world.make_key(name));
        for number in SERVERS {
            let config = format!(
                "address = [\"10.77.0.1{number}/24\", \"10.77.0.10/32\"]\nserver_id = {number}\n[[peer]]\n\
                 name = \"site\"\npublic_key = \"{site}\"\nnetworks = [\"10.77.0.1/32\"]\n"
            );
            world.start(&format!("s{number}"), "servers", &config);
        }
        let mut config = format!(
            "address = [\"10.77.0.1/24\"]\n[[peer]]\nname = \"centre\"\npublic_key = \"{servers}\"\n\
             networks = [\"10.77.0.0/24\"]\n"
        );
        for (path, family) in families.iter().enumerate() {
            let common = family.common;
            write!(config, "[[peer.path]]\ninterface = \"eth{path}\"\nremote = \"{common}\"\n").expect("a string");
        }
        world.balance(&rules());
        world.start("site", "site", &config);
        Some(world)
    }

    fn connect(&self) {
        let wire = |a: (&Netns, &str), b: (&Netns, &str)| {
            a.0.ip(&format!("link add {} type veth peer name {} netns {}", a.1, b.1, b.0.name())).expect("a pair");
            for (host, interface) in [a, b] {
                host.ip(&format!("link set {interface} up")).expect("an interface");
            }
        };
        for path in 0..PATHS {
            wire((&self.site, &format!("eth{path}")), (&self.internet, &format!("up{path}")));
        }
        wire((&self.balancer, "eth0"), (&self.internet, "lb"));
        self.balancer.ip("link add lan0 type bridge\nlink set lan0 up").expect("a bridge");
        for (number, server) in SERVERS.iter().zip(&self.servers) {
            wire((server, "lan0"), (&self.balancer, &format!("s{number}")));
            self.balancer.ip(&format!("link set s{number} master lan0")).expect("a port");
        }
        for host in [&self.internet, &self.balancer] {
            host.sysctl(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")]).expect("forwarding");
        }
        [V4, V6].iter().for_each(|family| self.number(family));
    }

    /// Gives the hosts their addresses and routes.
    fn number(&self, family: &Family) {
        let Family { common, middle, lan, prefix, .. } = family;
        let end = if family.name == "ip6" { "nodad" } else { "" };
        let number = |host: &Netns, interface: &str, address: String| {
            host.ip(&format!("address add {address}{prefix} dev {interface} {end}")).expect("an address");
        };
        for (path, uplink) in family.uplinks.iter().enumerate() {
            number(&self.site, &format!("eth{path}"), format!("{uplink}2"));
            number(&self.internet, &format!("up{path}"), format!("{uplink}1"));
            self.site.ip(&format!("route add default via {uplink}1 metric 10{path}")).expect("a route");
        }
        number(&self.balancer, "eth0", format!("{middle}2"));
        number(&self.internet, "lb", format!("{middle}1"));
        self.internet.ip(&format!("route add {common} via {middle}2")).expect("a route");
        number(&self.balancer, "lan0", format!("{lan}1"));
        self.balancer.ip(&format!("route add default via {middle}1\nroute add {common} via {lan}11")).expect("routes");
        for (id, server) in SERVERS.iter().zip(&self.servers) {
            number(server, "lan0", format!("{lan}1{id}"));
            server.ip(&format!("address add {common} dev lo {end}\nroute add default via {lan}1")).expect("the rest");
        }
    }

    /// Makes a private key and returns the public one.
    fn make_key(&self, name: &str) -> String {
        let file = self.folder.path().join(format!("{name}.key"));
        fs::write(&file, output(Command::new(program()).args(["key", "new"])).stdout).expect("a key");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
        let mut public = Command::new(program());
        public.args(["key", "public"]).stdin(fs::File::open(&file).expect("the key"));
        text(&public.output().expect("mpt runs").stdout).trim().to_owned()
    }

    fn mpt(&self, host: &str) -> Command {
        let netns = match host.strip_prefix('s').and_then(|number| number.parse::<usize>().ok()) {
            Some(number) => &self.servers[number - 1],
            None => &self.site,
        };
        let mut command = netns.command(&program().to_string_lossy());
        command.env("MPT_RUN_DIR", self.folder.path().join(format!("run-{host}")));
        command.env("MPT_STATE_DIR", self.folder.path().join(format!("state-{host}")));
        command
    }

    fn start(&mut self, host: &str, key: &str, config: &str) {
        let path = |end: &str| self.folder.path().join(format!("{host}.{end}"));
        let key = self.folder.path().join(format!("{key}.key"));
        let config = format!("private_key_file = {key:?}\n{config}");
        let daemon = Daemon::start(self.mpt(host), &config, &path("toml"), &path("log"));
        self.daemons.push((host.to_owned(), daemon));
        self.wait_until("the daemon answers", |world| world.status(host)["port"] == 4754);
    }

    /// Replaces the rules of the balancer.
    fn balance(&self, rules: &str) {
        let file = self.folder.path().join("rules.nft");
        fs::write(&file, rules).expect("a file");
        self.balancer.sh(&format!("nft -f {}", file.display())).expect("rules");
    }

    fn status(&self, host: &str) -> Value {
        let output = output(self.mpt(host).args(["status", "--json"]));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Returns how many datagrams have come to a server that has no session with their index, at all servers.
    fn misled(&self) -> u64 {
        let count = |number| self.status(&format!("s{number}"))["drops"]["unknown_session"].as_u64().unwrap_or(0);
        SERVERS.into_iter().map(count).sum()
    }

    /// Returns the addresses of paths of the site that are up, at this server.
    fn addresses_at(&self, number: usize) -> Vec<String> {
        let status = self.status(&format!("s{number}"));
        let paths = status["peers"][0]["paths"].as_array().cloned().unwrap_or_default();
        let up = paths.iter().filter(|path| path["up"] == true);
        up.filter_map(|path| Some(path["remote"].as_str()?.strip_suffix(":4754")?.replace(['[', ']'], ""))).collect()
    }

    /// Returns the server at which all paths of the site are up.
    fn server_in_use(&self) -> Option<usize> {
        SERVERS.into_iter().find(|number| self.addresses_at(*number).len() >= PATHS)
    }

    /// Sends packets through the tunnel until one is answered by the server in use, whichever it is.
    fn wait_for_answer(&self) {
        self.wait_until("the server in use answers", |world| {
            world.site.sh("ping -n -q -c 20 -i 0.02 -W 1 10.77.0.10").is_ok()
        });
    }

    fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < 2 * TIMEOUT, "not within {:?}: {what}\n{}", 2 * TIMEOUT, self.diagnostics());
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn diagnostics(&self) -> String {
        let mut all = self.balancer.sh("nft list ruleset").unwrap_or_default();
        for (host, _) in &self.daemons {
            let log = fs::read_to_string(self.folder.path().join(format!("{host}.log"))).unwrap_or_default();
            write!(all, "{host}:\n{log}{:#}\n", self.status(host)).expect("a string takes everything");
        }
        all
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.daemons.clear();
    }
}

/// Returns the rules of the guide, those for each version of IP.
fn rule_sets() -> impl Iterator<Item = String> {
    let blocks = GUIDE.split("```nft\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.starts_with("table netdev mpt_balancer")).map(str::to_owned)
}

fn rules() -> String {
    let sets: Vec<_> = rule_sets().collect();
    assert_eq!(sets.len(), 2, "one for each version of IP");
    sets.concat()
}

/// Returns the same rules, by which data goes where initiations from its address go.
fn rules_without_index() -> String {
    let without_index = |rules: String| {
        let by_source = rules.split(" to ").find(|part| part.starts_with("jhash")).expect("a rule");
        let by_source = by_source.split(" device").next().expect("a target");
        let replaced = rules.replace("@th,96,8 map @servers", by_source);
        assert_ne!(replaced, rules);
        replaced
    };
    rule_sets().map(without_index).collect()
}

/// Returns rules of `internet` that replace the address of the first path, and that address.
fn translation(Family { name, uplinks, .. }: &Family) -> (String, String) {
    let (own, other) = (format!("{}2", uplinks[0]), format!("{}77", uplinks[0]));
    let chain = format!(
        "type filter hook prerouting priority raw; {name} saddr {own} {name} saddr set {other}; \
         {name} daddr {other} {name} daddr set {own};"
    );
    (format!("table {name} translator {{ chain arriving {{ {chain} }}; }}"), other)
}

#[test]
fn a_balancer_leads_by_the_index_to_the_server_of_the_session_and_by_the_source_to_others() {
    is_led_to_the_server_of_the_session("balance", [&V4; PATHS]);
}

#[test]
fn a_balancer_over_ipv6_leads_by_the_index_to_the_server_of_the_session_and_by_the_source_to_others() {
    is_led_to_the_server_of_the_session("balance6", [&V6; PATHS]);
}

#[test]
fn a_balancer_leads_paths_over_both_versions_of_ip_to_the_server_of_their_session() {
    is_led_to_the_server_of_the_session("balance46", [&V6, &V4, &V6]);
}

/// The site's addresses hash to two servers or three, and its session is at one. Then the address of the first path
/// changes, and hashes to another server.
fn is_led_to_the_server_of_the_session(test: &str, families: [&Family; PATHS]) {
    let Some(mut world) = World::build(test, families) else { return };
    world.wait_until("all paths are up at one server", |world| world.server_in_use().is_some());
    world.wait_for_answer();
    let server = world.server_in_use().expect("a server");
    // An address translator gets another address: the site does not notice.
    let (translation, other) = translation(families[0]);
    world.internet.sh(&format!("nft '{translation}'")).expect("another address");
    world.wait_until("the path goes on from the other address", |world| world.addresses_at(server).contains(&other));
    world.wait_for_answer();
    assert_eq!(world.misled(), 0, "{}", world.diagnostics());

    world.balance(&rules_without_index());
    world.wait_until("datagrams go to servers without the session", |world| world.misled() > 10);

    world.balance(&rules());
    world.wait_until("the paths are up", |world| world.server_in_use().is_some());
    let dead = format!("s{}", world.server_in_use().expect("a server"));
    world.daemons.retain(|(host, _)| *host != dead);
    world.wait_until("another server has the session", |world| {
        world.server_in_use().is_some_and(|number| dead != format!("s{number}"))
    });
    world.wait_for_answer();
}
