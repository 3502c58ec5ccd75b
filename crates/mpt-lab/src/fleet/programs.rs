//! The programs of a fleet: how they are started and killed.

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::configs;
use super::world::{ROUTERS, Routing, SERVERS, Server, TIMEOUT, USER, World};
use crate::error::{Context as _, LabError, Result, run};
use crate::topology::Netns;
use crate::tunnel;

/// Kind of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The registry's store.
    Etcd,
    /// `mpt-fleet`.
    Fleet,
    /// `mpt`.
    Tunnel,
    /// BIRD, or a daemon of FRR on a router.
    Bird,
}

impl Kind {
    /// The programs of a server, in the order of their start.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::Fleet, Self::Tunnel, Self::Bird];

    /// Returns the program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Fleet => "mpt-fleet",
            Self::Tunnel => "mpt",
            Self::Bird => "BIRD",
        }
    }

    /// Returns the file with its output, in the folder of its host.
    pub fn log(self) -> &'static str {
        match self {
            Self::Etcd => "etcd.log",
            Self::Fleet => "fleet.log",
            Self::Tunnel => "mpt.log",
            Self::Bird => "routing.log",
        }
    }
}

/// A running program. Its process is the child, because `ip netns exec` and `setpriv` replace themselves by it.
pub struct Program {
    /// The name of its host, such as `server1`.
    pub host: String,
    pub kind: Kind,
    pub child: Child,
}

impl World {
    /// Starts a program on a host. Its output is added to a log file.
    fn spawn(&mut self, host: &str, mut command: Command, kind: Kind) -> Result<()> {
        let path = self.path(host, kind.log());
        let log = File::options().create(true).append(true).open(&path).context(path.display().to_string())?;
        let errors = log.try_clone().context(path.display().to_string())?;
        let child = command.stdout(log).stderr(errors).spawn().context(path.display().to_string())?;
        self.programs.push(Program { host: host.to_owned(), kind, child });
        Ok(())
    }

    pub(super) fn mpt(&self, netns: &Netns, host: &str) -> Result<Command> {
        let program = tunnel::program().ok_or(LabError::NoTunnel)?;
        let mut command = netns.command(&program.to_string_lossy());
        command.env("MPT_RUN_DIR", self.path(host, "run")).env("MPT_STATE_DIR", self.path(host, "state"));
        Ok(command)
    }

    /// Returns `mpt-fleet` as the user of the tunnel, who may use its socket.
    fn mpt_fleet(&self, server: Server) -> Result<Command> {
        let host = server.host();
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
        let servers = || (0..SERVERS).map(Server);
        servers().try_for_each(|server| self.start_program(server, Kind::Etcd))?;
        self.wait("etcd", |world| world.leader().is_some())?;
        for server in servers() {
            Kind::ALL[1..].iter().try_for_each(|kind| self.start_program(server, *kind))?;
        }
        for number in 1..=ROUTERS {
            let host = format!("router{number}");
            fs::create_dir_all(self.path(&host, "")).context("a folder")?;
            match self.routing {
                Routing::Bird => {
                    let command = self.bird(&self.routers[number - 1], &host, &configs::bird_of_router(number))?;
                    self.spawn(&host, command, Kind::Bird)?;
                }
                Routing::Frr => self.start_frr(number)?,
            }
        }
        Ok(())
    }

    /// Starts the daemons of FRR on a router. zebra writes the kernel's routes; the others are its clients.
    fn start_frr(&mut self, router: usize) -> Result<()> {
        let host = format!("router{router}");
        let folder = self.path(&host, "frr");
        fs::create_dir_all(&folder).context("a folder")?;
        let config = self.write(&host, "frr/frr.conf", &configs::frr_of_router(router))?;
        // The daemons change to the user of their package before they read the file.
        run(Command::new("chown").args(["-R", "frr:frr"]).arg(&folder))?;
        let socket = folder.join("zebra.socket");
        for program in FRR {
            let mut command = self.routers[router - 1].command(&format!("{FRR_PROGRAMS}/{program}"));
            command.arg("-f").arg(&config).arg("-z").arg(&socket).arg("--vty_socket").arg(&folder);
            command.arg("-i").arg(folder.join(format!("{program}.pid"))).args(["-P", "0", "--log", "stdout"]);
            if program == "bfdd" {
                command.arg("--bfdctl").arg(folder.join("bfdd.socket"));
            }
            self.spawn(&host, command, Kind::Bird)?;
            self.wait("zebra", |_| socket.exists())?;
        }
        Ok(())
    }

    /// Starts the programs of a server.
    pub fn start_server(&mut self, server: Server) -> Result<()> {
        Kind::ALL.iter().try_for_each(|kind| self.start_program(server, *kind))
    }

    /// Starts a program of a server.
    pub fn start_program(&mut self, server: Server, kind: Kind) -> Result<()> {
        let host = server.host();
        let command = match kind {
            Kind::Etcd => self.etcd(server),
            Kind::Fleet => {
                self.write(&host, "fleet.toml", &configs::fleet(server, &self.path(&host, "peers.sock")))?;
                let mut fleet = self.mpt_fleet(server)?;
                fleet.arg("run");
                fleet
            }
            Kind::Tunnel => {
                let (key, socket) = (self.path(&host, "key"), self.path(&host, "peers.sock"));
                let config = self.write(&host, "mpt.toml", &configs::server(server, &key, &socket))?;
                let mut mpt = self.mpt(&self.servers[server.0], &host)?;
                mpt.arg("up").arg(config);
                mpt
            }
            Kind::Bird => self.bird(&self.servers[server.0], &host, &configs::bird_of_server(server))?,
        };
        self.spawn(&host, command, kind)
    }

    fn etcd(&self, server: Server) -> Command {
        let (host, own) = (server.host(), server.inner());
        let mut etcd = self.servers[server.0].command("etcd");
        let members =
            (0..SERVERS).map(Server).map(|other| format!("e{}=http://{}:2380", other.number(), other.inner()));
        let (client, peer) = (format!("http://{own}:2379"), format!("http://{own}:2380"));
        etcd.args(["--name", &format!("e{}", server.number()), "--data-dir"]).arg(self.path(&host, "etcd"));
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer, "--unsafe-no-fsync"]);
        etcd.args(["--initial-cluster", &members.collect::<Vec<_>>().join(",")]);
        etcd
    }

    fn bird(&self, netns: &Netns, host: &str, config: &str) -> Result<Command> {
        let file = self.write(host, "bird.conf", config)?;
        let mut bird = netns.command("bird");
        bird.arg("-f").arg("-c").arg(file).arg("-s").arg(self.path(host, "bird.ctl"));
        bird.arg("-P").arg(self.path(host, "bird.pid"));
        Ok(bird)
    }

    /// Adds all sites to the registry.
    pub fn admit_sites(&self) -> Result<()> {
        (0..self.site_keys.len()).try_for_each(|site| self.admit_site(site))
    }

    /// Adds a site to the registry.
    pub fn admit_site(&self, site: usize) -> Result<()> {
        let mut add = self.mpt_fleet(Server(0))?;
        let [address, network] = configs::networks(site);
        add.args(["peer", "add", &self.site_keys[site], "--name", &format!("site-{}", site + 1)]);
        run(add.args(["--network", &address, "--network", &network])).map(drop)
    }

    /// Revokes a site, or deletes its record.
    pub fn change_site(&self, site: usize, change: &str) -> Result<()> {
        run(self.mpt_fleet(Server(0))?.args(["peer", change, &self.site_keys[site]])).map(drop)
    }

    /// Starts the tunnels of all sites.
    pub fn start_sites(&mut self) -> Result<()> {
        (0..self.sites.len()).try_for_each(|site| self.start_site(site))
    }

    /// Starts the tunnel of a site.
    pub fn start_site(&mut self, site: usize) -> Result<()> {
        let host = format!("site{}", site + 1);
        let text = configs::site(site, &self.path(&host, "key"), &self.server_keys);
        let config = self.write(&host, "mpt.toml", &text)?;
        let mut mpt = self.mpt(&self.sites[site], &host)?;
        mpt.arg("up").arg(config);
        self.spawn(&host, mpt, Kind::Tunnel)
    }

    /// Ends the tunnel of a site as an administrator does, and waits for its end.
    pub fn stop_site(&mut self, site: usize) -> Result<()> {
        let host = format!("site{}", site + 1);
        let mut program = self.take(&host, Kind::Tunnel)?;
        kill(Pid::from_raw(program.child.id() as i32), Signal::SIGTERM).context(format!("stop mpt of {host}"))?;
        let begin = Instant::now();
        while program.child.try_wait().context(&host)?.is_none() {
            if begin.elapsed() > TIMEOUT {
                self.programs.push(program);
                let message = format!("it does not end within {TIMEOUT:?} after SIGTERM");
                return Err(LabError::Failed { command: format!("mpt of {host}"), message });
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills a program of a server.
    pub fn kill_program(&mut self, server: Server, kind: Kind) -> Result<()> {
        let mut program = self.take(&server.host(), kind)?;
        program.child.kill().and_then(|()| program.child.wait()).context(kind.name()).map(drop)
    }

    /// Removes a program from the list of those that run.
    fn take(&mut self, host: &str, kind: Kind) -> Result<Program> {
        let place = self.programs.iter().position(|program| program.host == host && program.kind == kind);
        let missing =
            || LabError::Failed { command: format!("{} of {host}", kind.name()), message: "not started".into() };
        place.map(|place| self.programs.swap_remove(place)).ok_or_else(missing)
    }

    /// Returns the programs that ended by themselves, and forgets them.
    pub fn take_ended(&mut self) -> Vec<(String, Kind, ExitStatus)> {
        let mut ended = Vec::new();
        self.programs.retain_mut(|Program { host, kind, child }| match child.try_wait() {
            Ok(Some(status)) => {
                ended.push((host.clone(), *kind, status));
                false
            }
            _ => true,
        });
        ended
    }

    /// Kills all programs of a server at once.
    pub fn kill(&mut self, server: Server) -> Result<()> {
        let pids = run(Command::new("ip").args(["netns", "pids", self.servers[server.0].name()]))?;
        for pid in pids.lines().filter_map(|line| line.trim().parse().ok()) {
            // It fails if the program has just ended.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let host = server.host();
        for program in self.programs.iter_mut().filter(|program| program.host == host) {
            program.child.wait().context(program.kind.name())?;
        }
        self.programs.retain(|program| program.host != host);
        Ok(())
    }
}

/// The daemons of FRR on a router, in the order of their start.
const FRR: [&str; 3] = ["zebra", "bfdd", "bgpd"];
/// Their folder, which no search path contains.
pub(super) const FRR_PROGRAMS: &str = "/usr/lib/frr";

impl Drop for World {
    fn drop(&mut self) {
        for Program { child, .. } in &mut self.programs {
            // Both fail only if the program has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
