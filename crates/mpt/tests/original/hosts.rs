//! Two hosts of real network namespaces, `v0` and `v1` between them, and a daemon on each.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The two hosts, in the order of their addresses: the first is 192.168.1N.1, the second 192.168.1N.2.
pub struct Hosts {
    names: [String; 2],
    pub folder: tempfile::TempDir,
    daemons: Vec<Child>,
    sites: Vec<String>,
    _turn: MutexGuard<'static, ()>,
}

/// Serializes the tests: they share two processors.
static SERIAL: Mutex<()> = Mutex::new(());
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Timeout for every wait.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Hosts {
    /// Creates the hosts, or prints that the test is skipped for lack of privileges.
    pub fn make() -> Option<Self> {
        let turn = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
        if !nix::unistd::geteuid().is_root() || !succeeds(Command::new("ip").args(["netns", "list"])) {
            eprintln!("skipped: needs CAP_NET_ADMIN");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|host| format!("compat-{}-{number}-{host}", std::process::id()));
        let hosts =
            Self { names, folder: tempfile::tempdir().unwrap(), daemons: Vec::new(), sites: Vec::new(), _turn: turn };
        hosts.build();
        Some(hosts)
    }

    fn build(&self) {
        for name in &self.names {
            sh(&format!("ip netns add {name}; ip -n {name} link set lo up"));
        }
        let [a, b] = &self.names;
        for path in 0..2 {
            sh(&format!("ip link add v{path} netns {a} type veth peer name v{path} netns {b}"));
            for (host, name) in (1..).zip(&self.names) {
                sh(&format!(
                    "ip -n {name} addr add 192.168.1{path}.{host}/24 dev v{path}; ip -n {name} link set v{path} up"
                ));
            }
        }
    }

    /// Adds a link between the hosts.
    pub fn link(&self, interface: &str, addresses: [String; 2]) {
        let [a, b] = &self.names;
        sh(&format!("ip link add {interface} netns {a} type veth peer name {interface} netns {b}"));
        for (name, address) in self.names.iter().zip(addresses) {
            sh(&format!("ip -n {name} addr add {address} dev {interface}; ip -n {name} link set {interface} up"));
        }
    }

    /// Adds a network behind a host, which forwards for it, and a machine with the address `prefix`.9 in it.
    pub fn attach_site(&mut self, host: usize, prefix: &str) {
        let (name, site) = (&self.names[host], format!("{}-site", self.names[host]));
        sh(&format!(
            "ip netns add {site}; ip link add s0 netns {name} type veth peer name s0 netns {site}; \
             ip -n {name} addr add {prefix}.1/24 dev s0; ip -n {name} link set s0 up; \
             ip -n {site} addr add {prefix}.9/24 dev s0; ip -n {site} link set s0 up; \
             ip -n {site} route add default via {prefix}.1"
        ));
        self.sites.push(site);
        self.sh(host, "echo 1 > /proc/sys/net/ipv4/ip_forward");
    }

    /// Returns how many of ten pings from the machine in a site are answered.
    pub fn ping_from_site(&self, site: usize, to: &str) -> u32 {
        received(&sh(&format!("ip netns exec {} ping -c 10 -i 0.02 -W 5 -q {to} || true", self.sites[site])))
    }

    /// Runs `open` on a host: the sockets that it opens belong to the host for good.
    pub fn inside<T: Send>(&self, host: usize, open: impl FnOnce() -> T + Send) -> T {
        let namespace = fs::File::open(format!("/var/run/netns/{}", self.names[host])).unwrap();
        let enter = move || {
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            open()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    /// Returns the folder of host `host`.
    pub fn folder(&self, host: usize) -> PathBuf {
        self.folder.path().join(["a", "b"][host])
    }

    /// Runs a shell script on a host.
    pub fn sh(&self, host: usize, script: &str) -> String {
        sh(&format!("ip netns exec {} sh -ec '{script}'", self.names[host]))
    }

    /// Starts `mpt up` with these arguments.
    pub fn up(&mut self, host: usize, arguments: &[&str]) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_file(host)).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host], env!("CARGO_BIN_EXE_mpt"), "up"]).args(arguments);
        let run = self.run_dir(host);
        self.daemons.push(command.env("MPT_RUN_DIR", run).stdin(Stdio::null()).stderr(log).spawn().unwrap());
        wait_for("the tunnel", || self.mpt(host, &["status", "--json"]).status.success().then_some(())).unwrap_or_else(
            || {
                panic!("no tunnel: {}", self.log(host));
            },
        );
    }

    /// Starts the directory of the original in each host's folder.
    pub fn up_legacy(&mut self, more: &[&str]) {
        for host in 0..2 {
            let folder = self.folder(host);
            self.up(host, &[&["--legacy", folder.to_str().unwrap()], more].concat());
        }
    }

    /// Runs `mpt` as the operator of a host.
    pub fn mpt(&self, host: usize, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpt"));
        command.env("MPT_RUN_DIR", self.run_dir(host)).args(arguments).output().unwrap()
    }

    /// As [`Self::mpt`], for commands that must succeed.
    pub fn succeed(&self, host: usize, arguments: &[&str]) {
        let output = self.mpt(host, arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    /// Ends a host's tunnel.
    pub fn down(&self, host: usize) {
        self.succeed(host, &["down"]);
    }

    /// Returns a path's state: `up`, or the cause.
    pub fn state(&self, host: usize, path: &str) -> String {
        let Some(found) = self.path(host, path) else { return "none".to_owned() };
        found["cause"].as_str().map_or("up".to_owned(), str::to_owned)
    }

    /// Returns how many datagrams have come over a path.
    pub fn received(&self, host: usize, path: &str) -> u64 {
        self.path(host, path).and_then(|path| path["received_packets"].as_u64()).unwrap_or_default()
    }

    fn path(&self, host: usize, path: &str) -> Option<Value> {
        let output = self.mpt(host, &["path", "list", "--json"]);
        let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        list.as_array()?.iter().find(|entry| entry["name"] == path).cloned()
    }

    /// Waits until a path is in a state.
    pub fn expect(&self, host: usize, path: &str, state: &str) {
        let reached = wait_for(state, || (self.state(host, path) == state).then_some(()));
        assert!(
            reached.is_some(),
            "host {host}: {path} is {}, not {state}\n{}",
            self.state(host, path),
            self.log(host)
        );
    }

    /// Returns how many of ten pings are answered.
    pub fn ping(&self, host: usize, from: Option<&str>, to: &str) -> u32 {
        let from = from.map_or(String::new(), |from| format!("-I {from}"));
        let script = format!("ping -c 10 -i 0.02 -W 5 -q {from} {to} || true");
        received(&self.sh(host, &script))
    }

    /// Waits for the first answer, then requires ten of ten.
    pub fn reaches(&self, host: usize, from: Option<&str>, to: &str) {
        let any = wait_for("an answer", || (self.ping(host, from, to) > 0).then_some(()));
        assert!(any.is_some(), "{to} does not answer: {}", self.log(host));
        assert_eq!(self.ping(host, from, to), 10, "{to} of ten: {}", self.log(host));
    }

    /// Captures `count` UDP payloads on `v0` of host 1 that match the filter, while `meanwhile` runs.
    pub fn capture(
        &self,
        interface: &str,
        filter: &str,
        count: usize,
        meanwhile: impl FnOnce(),
    ) -> Option<Vec<Vec<u8>>> {
        if Command::new("tcpdump").arg("--version").output().is_err() {
            eprintln!("skipped: needs tcpdump");
            return None;
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[1], "tcpdump", "-ni", interface, "-x", "-c", &count.to_string()]);
        let mut child = command.arg(filter).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_listening(&mut child);
        meanwhile();
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() && started.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        Some(payloads(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Returns the log of a host's daemon.
    pub fn log(&self, host: usize) -> String {
        fs::read_to_string(self.log_file(host)).unwrap_or_default()
    }

    fn log_file(&self, host: usize) -> PathBuf {
        self.folder.path().join(format!("{host}.log"))
    }

    fn run_dir(&self, host: usize) -> PathBuf {
        self.folder.path().join(format!("run{host}"))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill().and_then(|()| daemon.wait());
        }
        for name in self.names.iter().chain(&self.sites) {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

/// Returns the number of answers in ping's summary.
fn received(summary: &str) -> u32 {
    let count = summary.split(" received").next().and_then(|head| head.rsplit(' ').next());
    count.and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// Waits for the message by which tcpdump reports that the capture is active.
fn wait_listening(child: &mut Child) {
    use std::io::{BufRead as _, BufReader};
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    while said.next().is_some_and(|line| line.is_ok_and(|line| !line.contains("listening on"))) {}
    thread::spawn(move || said.for_each(drop));
}

/// Returns the UDP payloads in output of tcpdump -x, of IPv4 packets without options.
fn payloads(text: &str) -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for line in text.lines() {
        match line.trim_start().strip_prefix("0x").and_then(|rest| rest.split_once(':')) {
            None => packets.push(Vec::new()),
            Some((_, hex)) => packets.last_mut().unwrap().extend(bytes(hex)),
        }
    }
    packets.into_iter().filter_map(|packet| Some(packet.get(28..)?.to_vec())).collect()
}

/// Parses hexadecimal bytes, with spaces anywhere.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or_default()).collect()
}

/// Retries until there is a result, or the timeout.
pub fn wait_for<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        if let Some(done) = attempt() {
            return Some(done);
        }
        thread::sleep(Duration::from_millis(50));
    }
    eprintln!("waited for {what} in vain");
    None
}

/// Writes the directory of the measured pair of hosts, for one end, after a change to both ends' connections.
pub fn directory(folder: &Path, host: usize, change: impl Fn(&str) -> String) {
    let connections = folder.join("conf/connections");
    fs::create_dir_all(&connections).unwrap();
    let seen = |text: &str| if host == 0 { text.to_owned() } else { mirrored(text) };
    fs::write(folder.join("conf/interface.conf"), seen(INTERFACE)).unwrap();
    let connection = change(&seen(CONNECTION));
    fs::write(connections.join("c.conf"), &connection).unwrap();
    fs::write(connections.join("conf.template"), &connection).unwrap();
}

/// Swaps the ends: every .1 becomes .2 and the other way round.
pub fn mirrored(text: &str) -> String {
    let swap = |last: &str| match last.strip_prefix('1') {
        Some(rest) => format!("2{rest}"),
        None => last.replacen('2', "1", 1),
    };
    let swapped = |line: &str| {
        let (key, value) = line.split_once(" = ")?;
        let address = value.split('/').next()?;
        address.parse::<IpAddr>().ok()?;
        let at = value.rfind(['.', ':'])? + 1;
        Some(format!("{key} = {}{}", &value[..at], swap(&value[at..])))
    };
    text.lines().map(|line| swapped(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

const INTERFACE: &str = "\
[general]
tunnel_num = 1
accept_remote = 1
cmdport_local = 60456
cmd_timeout = 10

[tun_0]
name = tunh
mtu = 1440
ipv4_addr = 10.77.0.1/24
ipv6_addr = fd78::1/64
";

/// As in section 3.3 of the facts about the original, with shorter times.
pub const CONNECTION: &str = "\
[connection]
name = c_A
permission = 3
ip_ver = 4
ip_local = 10.77.0.1
local_port = 4754
ip_remote = 10.77.0.2
remote_port = 4754
remote_cmd_port = 60456
path_count = 2
network_count = 0
status = 0
reorder_window = 0
max_buffdelay_msec = 300
auth_type = 0

[path_0]
interface_name = v0
ip_ver = 4
private_ipaddr = 192.168.10.1
public_ipaddr = 192.168.10.1
gw_ipaddr = 192.168.10.2
remote_ipaddr = 192.168.10.2
keepalive_time = 1
dead_time = 3
weight_out = 1
weight_in = 1
status = 0
cmd_default = 1

[path_1]
interface_name = v1
ip_ver = 4
private_ipaddr = 192.168.11.1
public_ipaddr = 192.168.11.1
gw_ipaddr = 192.168.11.2
remote_ipaddr = 192.168.11.2
keepalive_time = 1
dead_time = 3
weight_out = 1
weight_in = 1
status = 0
";

pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

pub fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
