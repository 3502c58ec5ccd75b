//! etcd, `mpt-fleet` and the end of a tunnel.

#![allow(clippy::unwrap_used, reason = "a failure here is a failure of the test")]

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub const SITE: &str = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=";
pub const OTHER: &str = "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=";
pub const TOKEN: &str = "correct-horse";
/// SHA-256 of [`TOKEN`].
const HASH: &str = "sha256:9dca666eb54730714630d1519264a7bf1eeaad00b8f2edc90d3ecbfad928d163";

/// Waits for a condition, for a minute at most.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        sleep(Duration::from_millis(20));
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A cluster of one member.
pub struct Etcd {
    folder: TempDir,
    pub port: u16,
    child: Option<Child>,
}

impl Etcd {
    /// Starts etcd, or reports that the test is skipped.
    pub fn start() -> Option<Self> {
        let mut etcd = Self::stopped()?;
        etcd.run();
        Some(etcd)
    }

    /// Chooses a port for etcd, which does not run yet.
    pub fn stopped() -> Option<Self> {
        let is_there = |name: &str| Command::new(name).arg("--help").output().is_ok();
        if !is_there("etcd") || !is_there("etcdctl") {
            eprintln!("skipped: needs etcd and etcdctl, of the packages etcd-server and etcd-client");
            return None;
        }
        Some(Self { folder: tempfile::tempdir().unwrap(), port: free_port(), child: None })
    }

    pub fn run(&mut self) {
        let (client, peer) = (format!("http://127.0.0.1:{}", self.port), format!("http://127.0.0.1:{}", free_port()));
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--unsafe-no-fsync"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        wait_for("etcd", || self.try_ctl(&["endpoint", "health"]).status.success());
    }

    /// Stops or continues the process, as a network that drops everything does.
    pub fn signal(&self, signal: &str) {
        let process = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }

    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn try_ctl(&self, arguments: &[&str]) -> Output {
        let endpoint = format!("--endpoints=http://127.0.0.1:{}", self.port);
        Command::new("etcdctl").env("ETCDCTL_API", "3").arg(endpoint).args(arguments).output().unwrap()
    }

    pub fn ctl(&self, arguments: &[&str]) -> String {
        let output = self.try_ctl(arguments);
        assert!(output.status.success(), "etcdctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn put(&self, key: &str, value: &str) {
        self.ctl(&["put", &format!("/mpt/north/{key}"), value]);
    }

    pub fn get(&self, key: &str) -> Option<Value> {
        let text = self.ctl(&["get", "--print-value-only", &format!("/mpt/north/{key}")]);
        (!text.trim().is_empty()).then(|| serde_json::from_str(&text).unwrap())
    }

    /// Returns the revision of the last change.
    pub fn revision(&self) -> u64 {
        let answer: Value = serde_json::from_str(&self.ctl(&["get", "x", "-w", "json"])).unwrap();
        answer["header"]["revision"].as_u64().unwrap()
    }

    /// Returns the server that a site belongs to.
    pub fn owner(&self, key: &str) -> Option<u64> {
        self.get(&format!("owners/{key}"))?["server"].as_u64()
    }

    /// Admits a site.
    pub fn admit(&self, key: &str, name: &str) {
        self.put(&format!("peers/{key}"), &format!(r#"{{"name": "{name}", "networks": ["10.80.5.0/24"]}}"#));
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A running `mpt-fleet`.
pub struct Fleet {
    pub folder: TempDir,
    pub child: Child,
    http: u16,
    id: u8,
}

impl Fleet {
    pub fn start(etcd: &Etcd, id: u8) -> Self {
        Self::start_with(&format!("endpoints = [\"http://127.0.0.1:{}\"]", etcd.port), id)
    }

    /// Starts a server with these lines in `[etcd]`.
    pub fn start_with(etcd: &str, id: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let http = free_port();
        write_config(&folder, etcd, id, http);
        let socket = folder.path().join("peers.sock");
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let child = command(&folder, &["run"]).stderr(log).spawn().unwrap();
        wait_for("the socket", || UnixStream::connect(&socket).is_ok());
        wait_for("HTTP", || TcpStream::connect(("127.0.0.1", http)).is_ok());
        Self { folder, child, http, id }
    }

    /// Runs a command with the configuration of this server.
    pub fn run(&self, arguments: &[&str]) -> Output {
        command(&self.folder, arguments).output().unwrap()
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("peers.sock")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Connects a tunnel.
    pub fn tunnel(&self) -> Tunnel {
        let mut tunnel = Tunnel::connect(self.socket());
        let keys = format!(r#""public_key": "{OTHER}", "enrolment_key": "{OTHER}""#);
        tunnel.send(&format!(r#"{{"hello": 1, "server_id": {}, {keys}}}"#, self.id));
        tunnel
    }

    /// Returns status and body of a request.
    pub fn request(&self, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http)).unwrap();
        let len = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Length: {len}\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// Returns a metric.
    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.request("GET", "/metrics", "", "");
        let line = text.lines().find(|line| line.starts_with(&format!("mpt_fleet_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until the registry was read and the server is registered.
    pub fn wait_until_ready(&self) {
        wait_for("the registration", || self.metric("registered") == 1 && self.metric("etcd_connected") == 1);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of server {}:\n{}", self.id, self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_config(folder: &TempDir, etcd: &str, id: u8, http: u16) {
    let [socket, list] = ["peers.sock", "servers.signed"].map(|name| folder.path().join(name));
    let text = format!(
        "cluster = \"north\"\nserver_id = {id}\nsocket = {socket:?}\nserver_list = {list:?}\naddresses = [\"203.0.113.{id}:4754\"]\n\
         [etcd]\n{etcd}\nlease = 2\n[api]\nlisten = \"127.0.0.1:{http}\"\ntokens = [\"{HASH}\"]\n"
    );
    fs::write(folder.path().join("fleet.toml"), text).unwrap();
}

/// Runs a command with these lines in `[etcd]`, and returns its errors.
pub fn errors_with(etcd: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    write_config(&folder, etcd, 3, 0);
    String::from_utf8(command(&folder, arguments).output().unwrap().stderr).unwrap()
}

fn command(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpt-fleet"));
    command.arg("--config").arg(folder.path().join("fleet.toml")).args(arguments);
    command
}

/// The end of a tunnel.
pub struct Tunnel {
    reader: BufReader<UnixStream>,
}

impl Tunnel {
    pub fn connect(socket: PathBuf) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    pub fn send(&mut self, line: &str) {
        // A process that has closed the connection is noticed by the next read.
        let _ = writeln!(self.reader.get_mut(), "{line}");
    }

    /// Returns the next line; `Null` at the end.
    pub fn next(&mut self) -> Value {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            // The process closed the connection before it had read everything.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Value::Null,
            read => read.map(|_| serde_json::from_str(&line).unwrap_or_default()).unwrap(),
        }
    }

    /// Returns true if no line comes for a while.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        self.reader.get_ref().set_read_timeout(Some(time)).unwrap();
        let mut line = String::new();
        let is_silent = self.reader.read_line(&mut line).is_err();
        self.reader.get_ref().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        is_silent
    }

    pub fn up(&mut self, key: &str, timestamp: u32, role: &str) {
        self.send(&format!(
            r#"{{"event": "up", "key": "{key}", "name": "a", "timestamp": "{timestamp:024x}", "role": "{role}"}}"#
        ));
    }

    pub fn down(&mut self, key: &str) {
        self.send(&format!(r#"{{"event": "down", "key": "{key}", "reason": "expired"}}"#));
    }

    /// Sends a question about a peer and returns the answer.
    pub fn ask(&mut self, number: u64, key: &str) -> Value {
        self.send(&format!(r#"{{"ask": {number}, "key": "{key}", "timestamp": "{:024x}"}}"#, 1));
        let answer = self.next();
        assert_eq!(answer["answer"], number, "{answer}");
        answer
    }
}
