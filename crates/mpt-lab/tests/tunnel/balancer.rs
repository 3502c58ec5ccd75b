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
/// The address of all servers.
const COMMON: &str = "198.51.100.1";
/// Rules of `internet` that replace the address of the first path.
const OTHER_ADDRESS: &str = "table ip translator { chain arriving { type filter hook prerouting priority raw; \
    ip saddr 192.168.0.2 ip saddr set 192.168.0.77; ip daddr 192.168.0.77 ip daddr set 192.168.0.2; }; }";

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
    fn build(test: &str) -> Option<Self> {
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
        let config = format!(
            "address = [\"10.77.0.1/24\"]\n[[peer]]\nname = \"centre\"\npublic_key = \"{servers}\"\n\
             networks = [\"10.77.0.0/24\"]\nremote = \"{COMMON}\"\n"
        );
        world.balance(&rules());
        world.start("site", "site", &config);
        Some(world)
    }

    fn connect(&self) {
        let wire = |a: (&Netns, &str, &str), b: (&Netns, &str, &str)| {
            a.0.ip(&format!("link add {} type veth peer name {} netns {}", a.1, b.1, b.0.name())).expect("a pair");
            for (host, interface, address) in [a, b] {
                let address = (!address.is_empty()).then(|| format!("address add {address} dev {interface}\n"));
                host.ip(&format!("link set {interface} up\n{}", address.unwrap_or_default())).expect("an interface");
            }
        };
        for path in 0..PATHS {
            let (near, far) = (format!("192.168.{path}.2/24"), format!("192.168.{path}.1/24"));
            wire((&self.site, &format!("eth{path}"), &near), (&self.internet, &format!("up{path}"), &far));
            let route = format!("route add default via 192.168.{path}.1 metric 10{path}");
            self.site.ip(&route).expect("a route");
        }
        wire((&self.balancer, "eth0", "203.0.113.2/24"), (&self.internet, "lb", "203.0.113.1/24"));
        self.internet.ip(&format!("route add {COMMON} via 203.0.113.2")).expect("a route");
        let balancer = format!(
            "link add lan0 type bridge\nlink set lan0 up\naddress add 10.88.0.1/24 dev lan0\n\
             route add default via 203.0.113.1\nroute add {COMMON} via 10.88.0.11"
        );
        self.balancer.ip(&balancer).expect("the balancer");
        for (number, server) in SERVERS.iter().zip(&self.servers) {
            wire((server, "lan0", &format!("10.88.0.1{number}/24")), (&self.balancer, &format!("s{number}"), ""));
            self.balancer.ip(&format!("link set s{number} master lan0")).expect("a port");
            let own = format!("address add {COMMON}/32 dev lo\nroute add default via 10.88.0.1");
            server.ip(&own).expect("the common address");
        }
        for host in [&self.internet, &self.balancer] {
            host.sysctl(&[("net/ipv4/ip_forward", "1")]).expect("forwarding");
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
        up.filter_map(|path| Some(path["remote"].as_str()?.strip_suffix(":4754")?.to_owned())).collect()
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

/// Returns the rules of the guide.
fn rules() -> String {
    let block = GUIDE.split("```nft\n").nth(1).and_then(|rest| rest.split("```").next());
    block.expect("a block").to_owned()
}

/// Returns the same rules, by which data goes where initiations from its address go.
fn rules_without_index() -> String {
    let rules = rules();
    let by_source = rules.split("fwd ip to ").find(|part| part.starts_with("jhash")).expect("a rule");
    let by_source = by_source.split(" device").next().expect("a target");
    let replaced = rules.replace("@th,96,8 map @servers", by_source);
    assert_ne!(replaced, rules);
    replaced
}

/// The site's addresses hash to two servers and, after the change of one, to a third. Its session is at one.
#[test]
fn a_balancer_leads_by_the_index_to_the_server_of_the_session_and_by_the_source_to_others() {
    let Some(mut world) = World::build("balance") else { return };
    world.wait_until("all paths are up at one server", |world| world.server_in_use().is_some());
    world.wait_for_answer();
    let server = world.server_in_use().expect("a server");
    // An address translator gets another address: the site does not notice.
    world.internet.sh(&format!("nft '{OTHER_ADDRESS}'")).expect("another address");
    world.wait_until("the path goes on from the other address", |world| {
        world.addresses_at(server).contains(&"192.168.0.77".to_owned())
    });
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
