//! The hosts of a fleet and their programs.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::configs;
use crate::error::{Context as _, LabError, Result, require, run};
use crate::topology::{Folder, Netns, Topology};
use crate::tunnel;

pub const SERVERS: usize = 3;
pub const ROUTERS: usize = 2;

/// A server, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server(pub usize);

impl Server {
    /// Returns its number, from 1.
    pub fn number(self) -> usize {
        self.0 + 1
    }

    /// Returns its address in the Internet.
    pub fn address(self) -> String {
        format!("203.0.113.{}", 16 * self.number() + 1)
    }

    /// Returns its address in the network of the routers.
    pub fn inner(self) -> String {
        format!("10.88.0.{}", 10 + self.number())
    }
}

/// All hosts. Dropping this ends their programs.
pub struct World {
    internet: Netns,
    /// Two bridges: `lan` between servers and routers, `core` between routers and centre.
    switch: Netns,
    sites: Vec<Netns>,
    servers: Vec<Netns>,
    routers: Vec<Netns>,
    centre: Netns,
    folder: Folder,
    /// The public keys.
    site_keys: Vec<String>,
    server_keys: Vec<String>,
    children: Vec<Child>,
}

impl World {
    /// Builds the hosts and their links, and makes their keys.
    pub fn build(sites: usize) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        ["etcd", "etcdctl", "bird"].into_iter().try_for_each(require)?;
        let name = Topology::unique_name();
        let host = |host: &str| Netns::create(&format!("{name}-{host}"));
        let hosts = |kind: &str, count: usize| {
            (1..=count).map(|number| host(&format!("{kind}{number}"))).collect::<Result<Vec<_>>>()
        };
        let folder = Folder::create(&name)?;
        let mut world = Self {
            internet: host("internet")?,
            switch: host("switch")?,
            sites: hosts("site", sites)?,
            servers: hosts("server", SERVERS)?,
            routers: hosts("router", ROUTERS)?,
            centre: host("centre")?,
            folder,
            site_keys: Vec::new(),
            server_keys: Vec::new(),
            children: Vec::new(),
        };
        world.connect()?;
        world.site_keys = (0..sites).map(|site| world.make_key(&format!("site{}", site + 1))).collect::<Result<_>>()?;
        let servers = (0..SERVERS).map(Server);
        world.server_keys = servers.map(|s| world.make_key(&format!("server{}", s.number()))).collect::<Result<_>>()?;
        Ok(world)
    }

    /// Returns a site's host.
    pub fn site(&self, site: usize) -> &Netns {
        &self.sites[site]
    }

    /// Returns the host behind the routers.
    pub fn centre(&self) -> &Netns {
        &self.centre
    }

    fn connect(&self) -> Result<()> {
        self.internet.sysctl(&[("net/ipv4/ip_forward", "1")])?;
        self.switch.ip("link add lan type bridge\nlink set lan up\nlink add core type bridge\nlink set core up")?;
        for (index, site) in self.sites.iter().enumerate() {
            let number = index + 1;
            for (link, metric) in [(0, 100), (1, 200)] {
                let (own, far) = (format!("172.{}.{number}.2", 16 + link), format!("172.{}.{number}.1", 16 + link));
                wire(site, &format!("eth{link}"), &self.internet, &format!("u{number}-{link}"))?;
                site.ip(&format!("address add {own}/24 dev eth{link}\nroute add default via {far} metric {metric}"))?;
                self.internet.ip(&format!("address add {far}/24 dev u{number}-{link}"))?;
            }
            site.ip(&format!("address add 10.80.{number}.1/32 dev lo"))?;
        }
        for (index, host) in self.servers.iter().enumerate() {
            let (server, gateway) = (Server(index), format!("203.0.113.{}", 16 * (index + 1) + 14));
            wire(host, "eth0", &self.internet, &format!("srv{}", server.number()))?;
            self.internet.ip(&format!("address add {gateway}/28 dev srv{}", server.number()))?;
            host.ip(&format!("address add {}/28 dev eth0\nroute add default via {gateway}", server.address()))?;
            self.plug(host, "lan0", "lan", &format!("s{}", server.number()), &server.inner())?;
            host.ip("route add 10.89.0.0/24 nexthop via 10.88.0.1 nexthop via 10.88.0.2")?;
            host.sysctl(&[("net/ipv4/ip_forward", "1")])?;
        }
        for (index, router) in self.routers.iter().enumerate() {
            let number = index + 1;
            self.plug(router, "lan0", "lan", &format!("r{number}"), &format!("10.88.0.{number}"))?;
            self.plug(router, "core0", "core", &format!("c{number}"), &format!("10.89.0.{number}"))?;
            router.sysctl(&[("net/ipv4/ip_forward", "1")])?;
        }
        self.plug(&self.centre, "core0", "core", "centre", "10.89.0.10")?;
        self.centre.ip("route add 10.80.0.0/16 nexthop via 10.89.0.1 nexthop via 10.89.0.2")
    }

    /// Connects a host to a bridge.
    fn plug(&self, host: &Netns, interface: &str, bridge: &str, port: &str, address: &str) -> Result<()> {
        wire(host, interface, &self.switch, port)?;
        self.switch.ip(&format!("link set {port} master {bridge}"))?;
        host.ip(&format!("address add {address}/24 dev {interface}"))
    }

    /// Makes the folders and the key of a host, for the user of its programs. Returns the public key.
    fn make_key(&self, host: &str) -> Result<String> {
        let folder = self.path(host, "");
        for folder in [folder.clone(), self.path(host, "run"), self.path(host, "state")] {
            fs::create_dir_all(&folder).and_then(|()| chown(&folder, Some(USER), Some(USER))).context("a folder")?;
        }
        let mpt = tunnel::program().ok_or(LabError::NoTunnel)?;
        self.write(host, "key", &run(Command::new(&mpt).args(["key", "new"]))?)?;
        let secret = File::open(self.path(host, "key")).context("a key")?;
        Ok(run(Command::new(mpt).args(["key", "public"]).stdin(secret))?.trim().to_owned())
    }

    fn path(&self, host: &str, file: &str) -> PathBuf {
        self.folder.0.join(host).join(file)
    }

    fn write(&self, host: &str, file: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(host, file);
        let written =
            fs::write(&path, text).and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)));
        written.and_then(|()| chown(&path, Some(USER), Some(USER))).context(path.display().to_string())?;
        Ok(path)
    }

    /// Starts a program on a host, with its output in a log file.
    fn spawn(&mut self, host: &str, mut command: Command, log: &str) -> Result<()> {
        let path = self.path(host, log);
        let log = File::create(&path).context(path.display().to_string())?;
        let errors = log.try_clone().context(path.display().to_string())?;
        self.children.push(command.stdout(log).stderr(errors).spawn().context(path.display().to_string())?);
        Ok(())
    }

    fn mpt(&self, netns: &Netns, host: &str) -> Result<Command> {
        let program = tunnel::program().ok_or(LabError::NoTunnel)?;
        let mut command = netns.command(&program.to_string_lossy());
        command.env("MPT_RUN_DIR", self.path(host, "run")).env("MPT_STATE_DIR", self.path(host, "state"));
        Ok(command)
    }

    /// Returns `mpt-fleet` as the user of the tunnel, who may use its socket.
    fn mpt_fleet(&self, server: Server) -> Result<Command> {
        let host = format!("server{}", server.number());
        let program = tunnel::program_named("mpt-fleet").ok_or_else(|| LabError::Missing {
            tool: "mpt-fleet".into(),
            package: "mpt-fleet (cargo build --workspace)".into(),
        })?;
        let mut command = self.servers[server.0].command("setpriv");
        command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups"]).arg(program);
        command.arg("--config").arg(self.path(&host, "fleet.toml"));
        Ok(command)
    }

    /// Starts the programs of all servers and routers, and waits for etcd.
    pub fn start_servers(&mut self) -> Result<()> {
        for server in (0..SERVERS).map(Server) {
            self.start_etcd(server)?;
        }
        self.wait("etcd", |world| world.leader().is_some())?;
        for server in (0..SERVERS).map(Server) {
            self.start_programs(server)?;
        }
        for number in 1..=ROUTERS {
            let host = format!("router{number}");
            fs::create_dir_all(self.path(&host, "")).context("a folder")?;
            let command = self.bird(&host, number - 1, &configs::bird_of_router(number))?;
            self.spawn(&host, command, "bird.log")?;
        }
        Ok(())
    }

    /// Starts the programs of a server.
    pub fn start_server(&mut self, server: Server) -> Result<()> {
        self.start_etcd(server)?;
        self.start_programs(server)
    }

    fn start_etcd(&mut self, server: Server) -> Result<()> {
        let (host, own) = (format!("server{}", server.number()), server.inner());
        let mut etcd = self.servers[server.0].command("etcd");
        let members =
            (0..SERVERS).map(Server).map(|other| format!("e{}=http://{}:2380", other.number(), other.inner()));
        let (client, peer) = (format!("http://{own}:2379"), format!("http://{own}:2380"));
        etcd.args(["--name", &format!("e{}", server.number()), "--data-dir"]).arg(self.path(&host, "etcd"));
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer, "--unsafe-no-fsync"]);
        etcd.args(["--initial-cluster", &members.collect::<Vec<_>>().join(",")]);
        self.spawn(&host, etcd, "etcd.log")
    }

    fn start_programs(&mut self, server: Server) -> Result<()> {
        let host = format!("server{}", server.number());
        let socket = self.path(&host, "peers.sock");
        self.write(&host, "fleet.toml", &configs::fleet(server, &socket))?;
        let mut fleet = self.mpt_fleet(server)?;
        fleet.arg("run");
        self.spawn(&host, fleet, "fleet.log")?;
        let config = self.write(&host, "mpt.toml", &configs::server(server, &self.path(&host, "key"), &socket))?;
        let mut mpt = self.mpt(&self.servers[server.0], &host)?;
        mpt.arg("up").arg(config);
        self.spawn(&host, mpt, "mpt.log")?;
        let bird = self.bird_on(&self.servers[server.0], &host, &configs::bird_of_server(server))?;
        self.spawn(&host, bird, "bird.log")
    }

    fn bird(&self, host: &str, router: usize, config: &str) -> Result<Command> {
        self.bird_on(&self.routers[router], host, config)
    }

    fn bird_on(&self, netns: &Netns, host: &str, config: &str) -> Result<Command> {
        let file = self.write(host, "bird.conf", config)?;
        let mut bird = netns.command("bird");
        bird.arg("-f").arg("-c").arg(file).arg("-s").arg(self.path(host, "bird.ctl"));
        bird.arg("-P").arg(self.path(host, "bird.pid"));
        Ok(bird)
    }

    /// Adds all sites to the registry.
    pub fn admit_sites(&self) -> Result<()> {
        for (site, key) in self.site_keys.iter().enumerate() {
            let mut add = self.mpt_fleet(Server(0))?;
            let [address, network] = configs::networks(site);
            add.args(["peer", "add", key, "--name", &format!("site-{}", site + 1)]);
            run(add.args(["--network", &address, "--network", &network]))?;
        }
        Ok(())
    }

    /// Starts the tunnels of all sites.
    pub fn start_sites(&mut self) -> Result<()> {
        for site in 0..self.sites.len() {
            let host = format!("site{}", site + 1);
            let text = configs::site(site, &self.path(&host, "key"), &self.server_keys);
            let config = self.write(&host, "mpt.toml", &text)?;
            let mut mpt = self.mpt(&self.sites[site], &host)?;
            mpt.arg("up").arg(config);
            self.spawn(&host, mpt, "mpt.log")?;
        }
        Ok(())
    }

    /// Returns the use of each server at a site.
    fn servers_of(&self, site: usize) -> Vec<(Server, String)> {
        let command = self.mpt(&self.sites[site], &format!("site{}", site + 1));
        let status = command.and_then(|mut command| run(command.args(["status", "--json"]))).unwrap_or_default();
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let peers = status["peers"].as_array().cloned().unwrap_or_default();
        let use_of = |peer: &Value| {
            let number: usize = peer["name"].as_str()?.strip_prefix("centre/s")?.parse().ok()?;
            Some((Server(number.checked_sub(1)?), peer["server"].as_str()?.to_owned()))
        };
        peers.iter().filter_map(use_of).collect()
    }

    /// Returns the server that each site uses, once the site has a second session.
    pub fn uses(&self) -> Vec<Option<Server>> {
        let used = |site| {
            let servers = self.servers_of(site);
            let find = |wanted: &str| servers.iter().find(|(_, used)| used == wanted).map(|(server, _)| *server);
            find("active").filter(|_| find("standby").is_some())
        };
        (0..self.sites.len()).map(used).collect()
    }

    /// Returns true if every router knows the way to each site.
    pub fn has_routes(&self) -> bool {
        self.routers.iter().all(|router| {
            let routes = router.sh("ip route show").unwrap_or_default();
            (1..=self.sites.len()).all(|site| routes.contains(&format!("10.80.{site}.0/24 ")))
        })
    }

    /// Returns the server whose etcd leads.
    pub fn leader(&self) -> Option<Server> {
        let endpoints: Vec<_> = (0..SERVERS).map(|other| format!("http://{}:2379", Server(other).inner())).collect();
        for host in &self.servers {
            let mut status = host.command("etcdctl");
            status.env("ETCDCTL_API", "3").args(["--command-timeout=1s", "--dial-timeout=500ms"]);
            status.arg(format!("--endpoints={}", endpoints.join(","))).args(["endpoint", "status"]);
            let Ok(output) = status.output() else { continue };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let leads = |line: &&str| line.split(", ").nth(4) == Some("true");
            let leader = text.lines().find(leads).and_then(|line| {
                (0..SERVERS).map(Server).find(|server| line.contains(&format!("{}:", server.inner())))
            });
            if leader.is_some() {
                return leader;
            }
        }
        None
    }

    /// Kills all programs of a server at once.
    pub fn kill(&mut self, server: Server) -> Result<()> {
        let pids = run(Command::new("ip").args(["netns", "pids", self.servers[server.0].name()]))?;
        for pid in pids.lines().filter_map(|line| line.trim().parse().ok()) {
            // It fails if the program has just ended.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        self.children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        Ok(())
    }

    /// Waits for a condition, a minute at most.
    pub fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) -> Result<()> {
        let start = Instant::now();
        while !condition(self) {
            if start.elapsed() > TIMEOUT {
                let message = format!("not within {TIMEOUT:?}; the logs:\n{}", self.last_lines());
                return Err(LabError::Failed { command: what.to_owned(), message });
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Returns the last lines of the logs of the servers and of the first site.
    fn last_lines(&self) -> String {
        let hosts = (1..=SERVERS).map(|number| format!("server{number}")).chain(["site1".to_owned()]);
        let logs =
            hosts.flat_map(|host| ["etcd.log", "fleet.log", "mpt.log", "bird.log"].map(|log| self.path(&host, log)));
        let end = |path: PathBuf| {
            let text = fs::read_to_string(&path).ok()?;
            let from = text.lines().count().saturating_sub(5);
            let lines: Vec<_> = text.lines().skip(from).collect();
            Some(format!("{}:\n  {}\n", path.display(), lines.join("\n  ")))
        };
        logs.filter_map(end).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both fail only if the program has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Connects two hosts by a pair of interfaces, which are up.
fn wire(host: &Netns, interface: &str, far: &Netns, port: &str) -> Result<()> {
    host.ip(&format!("link add {interface} type veth peer name {port} netns {}\nlink set {interface} up", far.name()))?;
    far.ip(&format!("link set {port} up"))
}

/// The user of tunnels on a host without a user `mpt`; `mpt-fleet` runs as the same one.
const USER: u32 = 65_520;
const TIMEOUT: Duration = Duration::from_secs(60);
