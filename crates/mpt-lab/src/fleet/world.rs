//! The hosts of a fleet and their programs.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::programs::{FRR_PROGRAMS, Kind, Program};
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

    /// Returns the name of its host.
    pub fn host(self) -> String {
        format!("server{}", self.number())
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

/// The routing daemon of the routers. That of the servers is BIRD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// BIRD 2.
    Bird,
    /// FRR.
    Frr,
}

/// All hosts. Dropping this ends their programs.
pub struct World {
    internet: Netns,
    /// Two bridges: `lan` between servers and routers, `core` between routers and centre.
    switch: Netns,
    pub(super) sites: Vec<Netns>,
    pub(super) servers: Vec<Netns>,
    pub(super) routers: Vec<Netns>,
    centre: Netns,
    folder: Folder,
    /// The public keys.
    pub(super) site_keys: Vec<String>,
    pub(super) server_keys: Vec<String>,
    pub(super) programs: Vec<Program>,
    /// The routing daemon of the routers.
    pub(super) routing: Routing,
}

impl World {
    /// Builds the hosts and their links, and makes their keys.
    pub fn build(sites: usize, routing: Routing) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        ["etcd", "etcdctl", "bird"].into_iter().try_for_each(require)?;
        if routing == Routing::Frr && !Path::new(FRR_PROGRAMS).join("bgpd").exists() {
            return Err(LabError::Missing { tool: "FRR".into(), package: "frr".into() });
        }
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
            programs: Vec::new(),
            routing,
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

    pub(super) fn path(&self, host: &str, file: &str) -> PathBuf {
        self.folder.0.join(host).join(file)
    }

    pub(super) fn write(&self, host: &str, file: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(host, file);
        let written =
            fs::write(&path, text).and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)));
        written.and_then(|()| chown(&path, Some(USER), Some(USER))).context(path.display().to_string())?;
        Ok(path)
    }

    /// Waits for a condition, a minute at most.
    pub fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) -> Result<()> {
        if self.is_soon(condition) {
            return Ok(());
        }
        let message = format!("not within {TIMEOUT:?}; the logs:\n{}", self.last_lines());
        Err(LabError::Failed { command: what.to_owned(), message })
    }

    /// Returns true as soon as a condition holds, false if it does not within a minute.
    pub fn is_soon(&self, condition: impl Fn(&Self) -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if condition(self) {
                return true;
            }
            thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// Returns the last lines of the logs of the servers and of the first site.
    pub(super) fn last_lines(&self) -> String {
        let hosts = (1..=SERVERS).map(|number| format!("server{number}")).chain(["site1".to_owned()]);
        let logs = hosts.flat_map(|host| Kind::ALL.map(|kind| self.path(&host, kind.log())));
        let end = |path: PathBuf| {
            let text = fs::read_to_string(&path).ok()?;
            let from = text.lines().count().saturating_sub(5);
            let lines: Vec<_> = text.lines().skip(from).collect();
            Some(format!("{}:\n  {}\n", path.display(), lines.join("\n  ")))
        };
        logs.filter_map(end).collect()
    }
}

/// Connects two hosts by a pair of interfaces, which are up.
fn wire(host: &Netns, interface: &str, far: &Netns, port: &str) -> Result<()> {
    host.ip(&format!("link add {interface} type veth peer name {port} netns {}\nlink set {interface} up", far.name()))?;
    far.ip(&format!("link set {port} up"))
}

/// The user of tunnels on a host without a user `mpt`; `mpt-fleet` runs as the same one.
pub(super) const USER: u32 = 65_520;
/// Everything is ready within this time, or something is wrong.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
