//! A site with two servers, which announce it to a router by BIRD. The configurations are those of the guide.

use crate::rig::{Daemon, TIMEOUT, output, program, text};
use mpt_lab::topology::{Netns, Topology};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};
use tempfile::TempDir;

const GUIDE: &str = include_str!("../../../../docs/guide/several-servers.md");
/// Private keys of the site and of both servers, and their public keys in the guide.
const KEYS: [(&str, &str); 3] = [
    ("site", "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ="),
    ("frankfurt", "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg="),
    ("amsterdam", "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw="),
];

/// Returns the blocks of the guide in this language.
pub fn blocks(language: &str) -> Vec<&'static str> {
    let open = format!("```{language}\n");
    GUIDE.split(&open).skip(1).map(|rest| rest.split("```").next().expect("a block")).collect()
}

/// The site has two uplinks to `internet`, which leads to both servers. These share a network with the router.
pub struct World {
    hosts: Vec<(&'static str, Netns)>,
    pub folder: TempDir,
    /// The public keys, in the order of [`KEYS`].
    pub public: Vec<String>,
    daemons: Vec<(&'static str, Daemon)>,
    /// Other programs, which end with the world.
    pub routing: Vec<Child>,
}

impl World {
    pub fn build(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            writeln!(io::stderr(), "skipped: needs root: {test}").expect("stderr takes a line");
            return None;
        }
        let name = format!("{}-{test}", Topology::unique_name());
        let host = |host: &'static str| (host, Netns::create(&format!("{name}-{host}")).expect("a namespace"));
        let hosts = ["site", "internet", "frankfurt", "amsterdam", "router"].map(host).into_iter().collect();
        let folder = TempDir::with_prefix(&name).expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).expect("its mode");
        let mut world = Self { hosts, folder, public: Vec::new(), daemons: Vec::new(), routing: Vec::new() };
        world.connect();
        world.make_keys();
        Some(world)
    }

    pub fn host(&self, name: &str) -> &Netns {
        &self.hosts.iter().find(|(host, _)| *host == name).expect("a host").1
    }

    /// Connects two hosts; each gets an interface with this name and address.
    fn wire(&self, [a, b]: [(&str, &str, &str); 2]) {
        let peer = self.host(b.0).name();
        self.host(a.0).ip(&format!("link add {} type veth peer name {} netns {peer}", a.1, b.1)).expect("a pair");
        for (host, interface, address) in [a, b] {
            self.host(host).ip(&format!("link set {interface} up")).expect("up");
            if !address.is_empty() {
                self.host(host).ip(&format!("address add {address} dev {interface}")).expect("an address");
            }
        }
    }

    fn connect(&self) {
        self.wire([("site", "eth0", "192.168.1.2/24"), ("internet", "up0", "192.168.1.1/24")]);
        self.wire([("site", "eth1", "192.168.2.2/24"), ("internet", "up1", "192.168.2.1/24")]);
        self.host("router")
            .ip("link add lan type bridge\nlink set lan up\naddress add 10.88.0.1/24 dev lan")
            .expect("a bridge");
        for (server, last) in [("frankfurt", 11), ("amsterdam", 12)] {
            self.wire([(server, "eth0", &format!("203.0.113.{last}/32")), ("internet", server, "")]);
            self.wire([(server, "lan0", &format!("10.88.0.{last}/24")), ("router", server, "")]);
            self.host("internet").ip(&format!("route add 203.0.113.{last} dev {server}")).expect("a route");
            self.host("router").ip(&format!("link set {server} master lan")).expect("a port");
            let routes = "route add 192.168.0.0/16 dev eth0";
            self.host(server).ip(routes).expect("routes");
            self.host(server).sysctl(&[("net/ipv4/ip_forward", "1")]).expect("forwarding");
        }
        self.host("internet")
            .sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.proxy_arp=1 \
            net.ipv4.conf.frankfurt.proxy_arp=1 net.ipv4.conf.amsterdam.proxy_arp=1")
            .expect("forwarding");
        let site = "address add 10.80.5.1/32 dev lo\nroute add default via 192.168.1.1 metric 100\n\
                    route add default via 192.168.2.1 metric 200";
        self.host("site").ip(site).expect("the site");
    }

    fn make_keys(&mut self) {
        for (name, _) in KEYS {
            let secret = text(&output(Command::new(program()).args(["key", "new"])).stdout);
            let file = self.folder.path().join(format!("{name}.key"));
            fs::write(&file, &secret).expect("a key");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
            let mut public = Command::new(program());
            public.args(["key", "public"]).stdin(fs::File::open(&file).expect("the key"));
            self.public.push(text(&public.output().expect("mpt runs").stdout).trim().to_owned());
        }
    }

    /// Adapts a configuration of the guide to this world.
    fn adapt(&self, host: &str, config: &str) -> String {
        let file = self.folder.path().join(format!("{host}.key"));
        let keys = KEYS.iter().zip(&self.public);
        let config = keys.fold(config.to_owned(), |config, ((_, printed), real)| config.replace(printed, real));
        let key = format!("private_key_file = \"{}\"", file.display());
        let own = |line: &str| if line.starts_with("private_key = ") { key.clone() } else { line.to_owned() };
        config.lines().map(|line| own(line) + "\n").collect()
    }

    pub fn mpt(&self, host: &str) -> Command {
        let mut command = self.host(host).command(&program().to_string_lossy());
        command.env("MPT_RUN_DIR", self.folder.path().join(format!("run-{host}")));
        command.env("MPT_STATE_DIR", self.folder.path().join(format!("state-{host}")));
        command
    }

    /// Returns the configuration of a host in the guide.
    pub fn config(host: &str) -> String {
        let toml = blocks("toml");
        match host {
            "site" => toml[0].to_owned(),
            "frankfurt" => toml[1].to_owned(),
            _ => toml[1].replace("10.77.0.11", "10.77.0.12").replace("server_id = 1", "server_id = 2"),
        }
    }

    pub fn start(&mut self, host: &'static str) {
        self.start_with(host, &Self::config(host));
    }

    pub fn start_with(&mut self, host: &'static str, config: &str) {
        let folder = self.folder.path();
        let (file, log) = (folder.join(format!("{host}.toml")), folder.join(format!("{host}.log")));
        self.daemons.push((host, Daemon::start(self.mpt(host), &self.adapt(host, config), &file, &log)));
    }

    /// Kills a daemon as `kill -9` does.
    pub fn kill(&mut self, host: &str) {
        self.daemons.retain(|(other, _)| *other != host);
    }

    /// Starts BIRD with a configuration of the guide.
    pub fn route(&mut self, host: &'static str, config: &str) {
        let path = |end: &str| self.folder.path().join(format!("bird-{host}.{end}"));
        fs::write(path("conf"), config).expect("a file");
        let mut bird = self.host(host).command("bird");
        bird.arg("-f").arg("-c").arg(path("conf")).arg("-s").arg(path("socket")).arg("-P").arg(path("pid"));
        let log = fs::File::create(path("log")).expect("a log");
        bird.stdout(Stdio::null()).stderr(log);
        self.routing.push(bird.spawn().expect("bird"));
    }

    pub fn status(&self, host: &str) -> Value {
        let output = self.mpt(host).args(["status", "--json"]).output().expect("mpt runs");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Returns the uses of both servers at the site.
    pub fn uses(&self) -> Vec<String> {
        let peers = self.status("site")["peers"].as_array().cloned().unwrap_or_default();
        peers.iter().map(|peer| peer["server"].as_str().unwrap_or_default().to_owned()).collect()
    }

    pub fn sh(&self, host: &str, script: &str) -> String {
        self.host(host).sh(script).unwrap_or_default()
    }

    pub fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}\n{}", self.diagnostics());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn diagnostics(&self) -> String {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let log =
            |(host, _): &(&str, Netns)| format!("{host}:\n{}", read(self.folder.path().join(format!("{host}.log"))));
        let routes = ["frankfurt", "amsterdam"].map(|host| self.sh(host, "ip route show table 77"));
        let status = self.status("site");
        format!(
            "{}{routes:?}\n{}\n{status:#}",
            self.hosts.iter().map(log).collect::<String>(),
            self.sh("router", "ip route")
        )
    }

    /// Returns true if the router sends packets for the site to 10.88.0.LAST.
    pub fn leads_to(&self, last: u32) -> bool {
        self.sh("router", "ip route get 10.80.5.1").contains(&format!("via 10.88.0.{last} "))
    }

    pub fn has_route(&self, server: &str, metric: u32) -> bool {
        let routes = self.sh(server, "ip route show table 77 proto 77");
        ["10.77.0.1 ", "10.80.5.0/24 "].iter().all(|net| {
            let mut lines = routes.lines().filter(|line| line.starts_with(net));
            lines.next().is_some_and(|line| line.contains(&format!("metric {metric}"))) && lines.next().is_none()
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.daemons.clear();
        for child in &mut self.routing {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_routes_of_a_server_follow_the_sessions() {
    let Some(mut world) = World::build("sessions") else { return };
    for host in ["frankfurt", "amsterdam", "site"] {
        world.start(host);
    }
    world.wait_until("one server is in use, the other on standby", |world| {
        world.uses() == ["active", "standby"] && world.has_route("frankfurt", 100) && world.has_route("amsterdam", 200)
    });
    world.kill("frankfurt");
    world.wait_until("the standby is in use", |world| {
        world.uses() == ["standby", "active"] && world.has_route("amsterdam", 100)
    });
    world.start("frankfurt");
    world.wait_until("the server is on standby after its restart", |world| world.has_route("frankfurt", 200));
    world.kill("site");
    world.wait_until("no routes without sessions", |world| {
        ["frankfurt", "amsterdam"].iter().all(|host| world.sh(host, "ip route show table 77").is_empty())
    });
}

/// A host that echoes, and one that sends a number every 10 ms and notes when it returns.
struct Echo {
    longest: Duration,
    count: u64,
}

fn echo(world: &World, stop: &AtomicBool) -> io::Result<Echo> {
    let listener = world.host("site").enter(|| TcpListener::bind(("10.80.5.1", 7))).expect("the site")?;
    let mut stream = world
        .host("router")
        .enter(|| TcpStream::connect_timeout(&"10.80.5.1:7".parse().expect("an address"), TIMEOUT))
        .expect("the router")?;
    let (mut far, _) = listener.accept()?;
    thread::spawn(move || {
        let mut bytes = [0; 8];
        while far.read_exact(&mut bytes).is_ok() && far.write_all(&bytes).is_ok() {}
    });
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let (mut last, mut result) = (Instant::now(), Echo { longest: Duration::ZERO, count: 0 });
    while !stop.load(Ordering::Relaxed) {
        let mut bytes = result.count.to_be_bytes();
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
        assert_eq!(bytes, result.count.to_be_bytes());
        (result.longest, last) = (result.longest.max(last.elapsed()), Instant::now());
        result.count += 1;
        thread::sleep(Duration::from_millis(10));
    }
    Ok(result)
}

/// The connection is opened by the centre, so that its packets need the router's route.
#[test]
fn a_connection_survives_the_death_of_a_server() {
    if !Path::new("/usr/sbin/bird").exists() {
        writeln!(io::stderr(), "skipped: bird is not installed; hint: apt-get install bird2")
            .expect("stderr takes a line");
        return;
    }
    let Some(mut world) = World::build("bird") else { return };
    for host in ["frankfurt", "amsterdam", "site"] {
        world.start(host);
    }
    let bird = blocks("bird");
    world.route("frankfurt", bird[0]);
    world.route("amsterdam", &bird[0].replace("10.88.0.11", "10.88.0.12"));
    world.route("router", bird[1]);
    world.wait_until("the router sends to the server in use", |world| {
        world.leads_to(11) && world.has_route("amsterdam", 200)
    });
    let stop = AtomicBool::new(false);
    let folder = world.folder.path().to_owned();
    let pid = fs::read_to_string(folder.join("bird-frankfurt.pid")).expect("a pid");
    // Everything at the server dies at once: the tunnel, and with its routing daemon the BFD session.
    let site_of_death = world.daemons.iter().position(|(host, _)| *host == "frankfurt").expect("a daemon");
    let (_, dying) = world.daemons.remove(site_of_death);
    let result = thread::scope(|scope| {
        let running = scope.spawn(|| echo(&world, &stop));
        thread::sleep(Duration::from_secs(2));
        drop(dying);
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid.trim().parse().expect("a number")),
            nix::sys::signal::SIGKILL,
        )
        .expect("bird dies");
        world.wait_until("the router sends to the other server", |world| {
            world.leads_to(12) && world.uses() == ["standby", "active"]
        });
        thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        running.join().expect("no panic")
    });
    let result = result.expect("the connection survives");
    writeln!(io::stderr(), "a server died: longest gap {:?} in {} round trips", result.longest, result.count)
        .expect("stderr");
    assert!(result.count > 100, "{}", result.count);
    assert!(result.longest < Duration::from_secs(10), "{:?}", result.longest);
}

/// The first uplink is metered, and the second one on standby: it carries nothing before the limit.
#[test]
fn the_servers_share_the_limit_of_a_path() {
    const LIMIT: &str = "[[peer.path]]\ninterface = \"eth0\"\nrole = \"metered\"\nlimit = \"2MB\"\nbeyond_limit = \"never\"\n\
        [[peer.path]]\ninterface = \"eth1\"\nrole = \"standby\"\n";
    let Some(mut world) = World::build("limit") else { return };
    world.start("frankfurt");
    world.start("amsterdam");
    world.start_with("site", &(World::config("site") + LIMIT));
    world.wait_until("one server is in use", |world| world.uses() == ["active", "standby"]);
    let path = |world: &World, server: usize| world.status("site")["peers"][server]["paths"][0].clone();
    let count = |path: &Value, name: &str| path[name].as_u64().unwrap_or_default();
    // 50 packets of 1 kB and their answers, in a fifth of a second: a count each second finds a fourth of the limit.
    let send = |world: &World, to: &str| world.sh("site", &format!("ping -n -q -c 50 -i 0.004 -s 1000 -W 1 {to}"));
    world.wait_until("half of the limit is used", |world| {
        send(world, "10.77.0.11");
        count(&path(world, 0), "used_bytes") > 1_000_000
    });
    let before = count(&path(&world, 0), "used_bytes");
    assert!(count(&path(&world, 1), "used_bytes") >= before, "both servers show the sum");
    world.kill("frankfurt");
    world.wait_until("the standby is in use", |world| world.uses() == ["standby", "active"]);
    world.wait_until("the limit is used up", |world| {
        send(world, "10.77.0.12");
        path(world, 1)["cause"] == "limit"
    });
    let second = path(&world, 1);
    assert!(count(&second, "used_bytes") >= 2_000_000, "{second}");
    let carried = count(&second, "sent_bytes") + count(&second, "received_bytes");
    assert!(carried < 1_700_000, "the first server's part of the limit was used before: {carried}");
    world.wait_until("the other path carries on", |world| send(world, "10.77.0.12").contains(" 0% packet loss"));
    world.wait_until("the path to the first server is down, too", |world| path(world, 0)["cause"] == "limit");
}
