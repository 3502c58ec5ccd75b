//! Two hosts with a daemon each.

use mpt_lab::topology::{Family, Host, Netns, Topology, address, interface};
use mpt_sim::{link::PathSpec, seed::Seed};
use serde_json::{Map, Value};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Time limit for every expected event.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Two hosts and their daemons.
pub struct Rig {
    pub hosts: Topology,
    pub folder: TempDir,
    daemons: [Option<Daemon>; 2],
}

/// Configuration of the daemons.
#[derive(Clone)]
pub struct Plan {
    /// The IP version of each path.
    outer: Vec<Family>,
    /// Lines for the top of the file, of host A and of host B.
    top: [String; 2],
    /// Lines of `[plain]`, the same on both.
    plain: String,
    /// Lines of `[[peer]]`, the same on both.
    peer: String,
}

impl Plan {
    /// Returns a plan with one path for each of `outer`, and IPv4 and IPv6 inside.
    pub fn over(outer: &[Family]) -> Self {
        Self { outer: outer.to_vec(), top: Default::default(), plain: String::new(), peer: String::new() }
    }

    /// Adds a line at the top of one host's file.
    pub fn on(mut self, host: Host, line: &str) -> Self {
        writeln!(self.top[index(host)], "{line}").expect("a string takes everything");
        self
    }

    /// Sets the lines under `[plain]`.
    pub fn plain(self, lines: &str) -> Self {
        Self { plain: lines.into(), ..self }
    }

    /// Sets the lines under `[[peer]]`.
    pub fn peer(self, lines: &str) -> Self {
        Self { peer: lines.into(), ..self }
    }

    fn config(&self, host: Host) -> String {
        let far = if host == Host::A { Host::B } else { Host::A };
        let (v4, v6) = (inside(host, Family::V4), inside(host, Family::V6));
        let mut text = format!("mode = \"plain\"\naddress = [\"{v4}/24\", \"{v6}/64\"]\n{}\n", self.top[index(host)]);
        write!(text, "[plain]\n{}\n\n[[peer]]\n{}\n", self.plain, self.peer).expect("a string takes everything");
        for (path, family) in self.outer.iter().enumerate() {
            let (local, remote) = (address(host, path, *family), address(far, path, *family));
            let interface = interface(path);
            write!(text, "[[peer.path]]\ninterface = \"{interface}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n")
                .expect("a string takes everything");
        }
        text
    }
}

impl Rig {
    /// Builds the hosts, with a path for each of `specs`. Without root it reports that and returns none.
    pub fn build(test: &str, specs: &[&str]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            // Written directly, because the test harness captures the output of passing tests.
            writeln!(io::stderr(), "skipped: needs root: {test}").expect("stderr takes a line");
            return None;
        }
        let paths: Vec<PathSpec> = specs.iter().map(|spec| spec.parse().expect("a valid path")).collect();
        let name = format!("{}-{test}", Topology::unique_name());
        let hosts = Topology::build(&name, &paths, Seed(1)).expect("hosts");
        let folder = TempDir::with_prefix(name).expect("a folder");
        // The daemons' user passes it on the way to the control sockets.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).expect("its mode");
        Some(Self { hosts, folder, daemons: [None, None] })
    }

    /// Builds the hosts and starts the tunnel.
    pub fn up(test: &str, specs: &[&str], plan: &Plan) -> Option<Self> {
        let mut rig = Self::build(test, specs)?;
        rig.start(plan);
        Some(rig)
    }

    /// Replaces both daemons and waits until the tunnel answers.
    pub fn start(&mut self, plan: &Plan) {
        self.daemons = [None, None];
        for host in [Host::A, Host::B] {
            self.launch(host, plan);
        }
        self.wait_for_answer(&[], Family::V4, "a new tunnel");
    }

    /// Starts one daemon and waits until its control socket answers.
    pub fn launch(&mut self, host: Host, plan: &Plan) {
        self.launch_with(host, &plan.config(host));
    }

    /// Does the same with the given configuration.
    pub fn launch_with(&mut self, host: Host, config: &str) {
        self.launch_by(host, self.program(host), config);
    }

    /// Does the same with a command that runs the program.
    pub fn launch_by(&mut self, host: Host, program: Command, config: &str) {
        self.daemons[index(host)] = None;
        let (file, log) = (self.file(host), self.log(host));
        self.daemons[index(host)] = Some(Daemon::start(program, config, &file, &log));
        self.wait_until("the daemon answers", |rig| rig.mpt(host, &["status", "--json"]).status.success());
    }

    /// Runs `mpt` with these arguments on a host, to its end.
    pub fn mpt(&self, host: Host, arguments: &[&str]) -> Output {
        self.program(host).args(arguments).output().expect("mpt runs")
    }

    /// Returns the output of `mpt status --json`.
    pub fn status(&self, host: Host) -> Value {
        let output = self.mpt(host, &["status", "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Returns a path from the output of `mpt status --json`.
    pub fn path(&self, host: Host, path: usize) -> Value {
        self.status(host)["peers"][0]["paths"][path].clone()
    }

    /// Returns the program on a host. Hosts on one machine must not share a directory of control sockets.
    pub fn program(&self, host: Host) -> Command {
        let mut command = self.hosts.host(host).command(&program().to_string_lossy());
        command.env("MPT_RUN_DIR", self.run_dir(host));
        command.env("MPT_STATE_DIR", self.state_dir(host));
        command
    }

    /// Returns the directory of what a host's daemon keeps over restarts.
    pub fn state_dir(&self, host: Host) -> PathBuf {
        self.folder.path().join(format!("state-{host:?}"))
    }

    /// Returns the directory of a host's control sockets.
    pub fn run_dir(&self, host: Host) -> PathBuf {
        self.folder.path().join(format!("run-{host:?}"))
    }

    /// Returns a host's configuration file.
    pub fn file(&self, host: Host) -> PathBuf {
        self.folder.path().join(format!("{host:?}.toml"))
    }

    fn log(&self, host: Host) -> PathBuf {
        self.folder.path().join(format!("{host:?}.log"))
    }

    /// Counts the occurrences of a text in a daemon's log.
    pub fn logged(&self, host: Host, expected: &str) -> usize {
        fs::read_to_string(self.log(host)).expect("a log").matches(expected).count()
    }

    /// Returns true if `ping` with these options is answered at least once.
    pub fn ping(&self, from: Host, options: &[&str], to: IpAddr) -> bool {
        let mut command = self.hosts.host(from).command("ping");
        command.args(["-n", "-c", "3", "-i", "0.02", "-W", "1"]).args(options).arg(to.to_string());
        command.output().expect("ping runs").status.success()
    }

    /// Waits until host B answers host A through the tunnel: on a busy machine a daemon may be off the processor for so
    /// long that its peer declares the paths dead.
    pub fn wait_for_answer(&self, options: &[&str], family: Family, what: &str) {
        let to = inside(Host::B, family);
        self.wait_until(&format!("{to} answers: {what}"), |rig| rig.ping(Host::A, options, to));
    }

    /// Returns a host's drop counters without those of paths declared dead.
    pub fn drops(&self, host: Host) -> Map<String, Value> {
        let mut drops = self.status(host)["peers"][0]["drops"].as_object().expect("an object").clone();
        drops.remove("no_path");
        drops
    }

    /// Sends a daemon a signal and waits for its end.
    pub fn signal(&mut self, host: Host, signal: nix::sys::signal::Signal) -> ExitStatus {
        let daemon = self.daemons[index(host)].as_ref().expect("a running daemon");
        let pid = nix::unistd::Pid::from_raw(daemon.0.id() as i32);
        nix::sys::signal::kill(pid, signal).expect("a signal");
        self.wait_for_end(host)
    }

    /// Waits for a daemon's end.
    pub fn wait_for_end(&mut self, host: Host) -> ExitStatus {
        let mut daemon = self.daemons[index(host)].take().expect("a running daemon");
        daemon.0.wait().expect("it ends")
    }

    /// Waits for an expected event.
    pub fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}\n{}", self.diagnostics());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns logs and states for the message of a failing test.
    fn diagnostics(&self) -> String {
        let log = |host| fs::read_to_string(self.log(host)).unwrap_or_default();
        let state = |host| text(&self.mpt(host, &["status", "--json"]).stdout);
        [Host::A, Host::B].map(|host| format!("{host:?}:\n{}{}\n", log(host), state(host))).concat()
    }
}

/// A running daemon; dropping this kills it.
pub struct Daemon(Child);

impl Daemon {
    /// Starts a daemon with a configuration that is written to `file`, readable only by its owner if it contains a key.
    pub fn start(mut program: Command, config: &str, file: &Path, log: &Path) -> Self {
        fs::write(file, config).expect("a file");
        let mode = if config.contains("private_key") { 0o600 } else { 0o644 };
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("its mode");
        let log = File::create(log).expect("a log");
        program.arg("up").arg(file).stdout(log.try_clone().expect("the log again")).stderr(log);
        Self(program.spawn().expect("mpt up"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a host's address inside the tunnel.
pub fn inside(host: Host, family: Family) -> IpAddr {
    let text = match (host, family) {
        (Host::A, Family::V4) => "10.77.0.1",
        (Host::B, Family::V4) => "10.77.0.2",
        (Host::A, Family::V6) => "fd77::1",
        (Host::B, Family::V6) => "fd77::2",
    };
    text.parse().expect("an address")
}

/// Runs a shell script on a host.
pub fn sh(host: &Netns, script: &str) -> String {
    host.sh(script).expect(script)
}

/// Returns the program that was built beside this test.
pub fn program() -> PathBuf {
    let own = std::env::current_exe().expect("a test is a program");
    let program = own.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join("mpt");
    assert!(program.is_file(), "no {}; hint: cargo build --workspace", program.display());
    program
}

/// Runs a command without standard input.
pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("it runs")
}

/// Returns output as text, for a message.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Creates a folder that all users may write to.
pub fn open_folder(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("its mode");
}

fn index(host: Host) -> usize {
    usize::from(host == Host::B)
}
