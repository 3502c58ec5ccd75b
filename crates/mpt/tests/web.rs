//! `mpt web` over real sockets: the page, metrics and health, and clients that are slow, greedy or foreign.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mpt::control::report::{PathReport, PeerReport, Report, TunnelReport};
use mpt::control::{ControlServer, Request, Response, RunDir};
use nix::unistd::{Uid, User, geteuid};
use tempfile::TempDir;

/// A tunnel with one path that is up, and the number of its reports.
struct Tunnel {
    run: TempDir,
    reports: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tunnel {
    fn start() -> Self {
        Self::with_drops(0)
    }

    /// Starts a tunnel whose reports have this number of reasons for drops.
    fn with_drops(reasons: usize) -> Self {
        let run = tempfile::tempdir().expect("a folder");
        // The user of `mpt web` passes it.
        fs::set_permissions(run.path(), fs::Permissions::from_mode(0o711)).expect("its mode");
        let directory = RunDir::at(run.path().join("run"));
        let control = ControlServer::bind(&directory, "mpt0").expect("a fresh directory");
        let reader = User::from_name("mpt-web").ok().flatten().map_or(Uid::from_raw(65_521), |user| user.uid);
        let server = ControlServer::bind_status(&directory, "mpt0", reader).expect("the same");
        let (reports, stop) = (Arc::default(), Arc::default());
        let thread = thread::spawn({
            let (reports, stop) = (Arc::clone(&reports), Arc::clone(&stop));
            move || answer([control, server], reasons, &reports, &stop)
        });
        Self { run, reports, stop, thread: Some(thread) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpt"));
        command.arg("web").args(arguments).env("MPT_RUN_DIR", self.run.path().join("run"));
        command
    }

    /// Starts `mpt web` and waits until it has a sample.
    fn web(&self, arguments: &[&str]) -> Web {
        let mut child =
            self.command(arguments).args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().expect("mpt");
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("stderr")).read_line(&mut line).expect("a line");
        let address = line.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        let address = address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        Web { child, address }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn answer([_control, mut server]: [ControlServer; 2], reasons: usize, reports: &AtomicUsize, stop: &AtomicBool) {
    let drops: BTreeMap<_, _> = (0..reasons).map(|at| (format!("reason_{at}"), 1)).collect();
    while !stop.load(Ordering::Relaxed) {
        for (token, request) in server.handle_ready() {
            if !matches!(request, Request::Status { .. }) {
                server.respond(token, &Response::Done {});
                continue;
            }
            let second = reports.fetch_add(1, Ordering::Relaxed) as u64;
            let path = PathReport {
                name: "dsl".to_owned(),
                remote: "192.0.2.1:4754".to_owned(),
                up: true,
                sent_bytes: second * 125_000,
                ..PathReport::default()
            };
            let peer = PeerReport { name: "office".to_owned(), paths: vec![path], ..PeerReport::default() };
            let tunnel = TunnelReport { uptime_us: second * 1_000_000, ..TunnelReport::default() };
            server.respond(token, &Response::Status(Report { tunnel, peers: vec![peer], drops: drops.clone() }));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A running `mpt web`.
struct Web {
    child: Child,
    address: SocketAddr,
}

impl Web {
    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).expect("a connection")
    }

    /// Sends bytes and returns everything that comes back. A connection that is reset after an answer counts as ended.
    fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("a request");
        read(&mut stream)
    }

    fn get(&self, target: &str) -> String {
        self.get_with(target, "")
    }

    fn get_with(&self, target: &str, fields: &str) -> String {
        self.exchange(format!("GET {target} HTTP/1.1\r\nHost: {}\r\n{fields}\r\n", self.address).as_bytes())
    }

    /// Waits until this number of connections is served: each has a thread, beside the main thread, the one that looks
    /// for tunnels, and the one of the tunnel.
    fn wait_for_connections(&self, count: usize) {
        let threads = || fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a process").count();
        wait_until(&format!("{count} connections"), || threads() == 3 + count);
    }

    fn wait_for(&self, target: &str, text: &str) -> String {
        let mut answer = String::new();
        wait_until(&format!("{text} in {target}"), || {
            answer = self.get(target);
            answer.contains(text)
        });
        answer
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits much longer than a busy machine needs, so that a defect fails this test instead of stopping all others.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(120), "waiting for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn read(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        Ok(_) | Err(_) => String::from_utf8_lossy(&answer).into_owned(),
    }
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or(answer)
}

#[test]
fn the_page_metrics_and_health_are_served_without_privileges() {
    let tunnel = Tunnel::start();
    let web = tunnel.web(&[]);
    web.wait_for("/healthz", "mpt0 ok: 1 of 1 paths are up");
    assert!(web.get("/metrics").contains("\nmpt_path_up{interface=\"mpt0\",peer=\"office\",path=\"dsl\"} 1\n"));
    web.wait_for("/api/now", "\"sent_bits_per_s\":1000000");
    assert!(web.get("/api/history?tunnel=mpt0&peer=office&path=dsl").contains("\"out\":[null"));
    for (target, kind) in [("/", "text/html"), ("/page.js", "text/javascript"), ("/uplot.css", "text/css")] {
        let answer = web.get(target);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains(kind), "{answer}");
    }
    if geteuid().is_root() {
        let process = fs::read_to_string(format!("/proc/{}/status", web.child.id())).unwrap();
        let field = |name: &str| process.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        assert_ne!(field("Uid:").split_whitespace().next(), Some("0"), "{process}");
        let none = "0000000000000000";
        assert_eq!([field("CapEff:"), field("CapPrm:"), field("NoNewPrivs:")], [none, none, "1"]);
    }
}

#[test]
fn scrapes_cause_no_reports_of_the_tunnel() {
    let tunnel = Tunnel::start();
    let web = tunnel.web(&[]);
    web.wait_for("/healthz", "mpt0 ok");
    let (before, scrapes) = (tunnel.reports.load(Ordering::Relaxed), 300);
    for _ in 0..scrapes {
        assert_eq!(status(&web.get("/metrics")), "200");
    }
    // Even at two scrapes a second there would be no more reports than scrapes.
    assert!(tunnel.reports.load(Ordering::Relaxed) - before < scrapes);
}

#[test]
fn slow_greedy_and_foreign_clients_are_refused_and_others_served() {
    let tunnel = Tunnel::start();
    let web = tunnel.web(&[]);
    web.wait_for("/healthz", "ok");
    assert_eq!(status(&web.exchange(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")), "405");
    assert_eq!(status(&web.exchange(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")), "421");
    assert_eq!(status(&web.get_with("/api/now", "Origin: http://evil.example\r\n")), "403");
    assert_eq!(status(&web.exchange(&[0; 100])), "400");
    let long = format!("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: {}", "x".repeat(4096));
    assert_eq!(status(&web.exchange(&long.as_bytes()[..4096])), "431");

    // Clients that send one byte and wait: sixteen at most are kept, and cut off after 5 s; the others are refused.
    let mut slow: Vec<_> = (0..40).map(|_| web.connect()).collect();
    // A refused connection may be closed already.
    slow.iter_mut().for_each(|client| drop(client.write_all(b"G")));
    let answers: Vec<_> = slow.iter_mut().map(read).collect();
    let cut_off = answers.iter().filter(|answer| status(answer) == "408").count();
    assert!((1..=16).contains(&cut_off), "{answers:?}");
    // The byte of a client that is refused may arrive after the answer, and reset the connection.
    assert!(answers.iter().all(|answer| ["408", "503", ""].contains(&status(answer))), "{answers:?}");
    assert!(answers.iter().any(|answer| status(answer) == "503"), "{answers:?}");
    web.wait_for("/healthz", "mpt0 ok");
}

#[test]
fn a_client_that_does_not_read_keeps_nobody_waiting() {
    // 7 MB of metrics: more than the buffers of a connection take, 4 MB here (tcp_wmem) and 128 kB there (tcp_rmem).
    let tunnel = Tunnel::with_drops(100_000);
    let web = tunnel.web(&[]);
    web.wait_for("/healthz", "mpt0 ok");
    let mut silent: Vec<_> = (0..8)
        .map(|_| {
            let mut client = web.connect();
            client.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
            client
        })
        .collect();
    web.wait_for_connections(8);
    let before = tunnel.reports.load(Ordering::Relaxed);
    assert_eq!(status(&web.get("/healthz")), "200");
    wait_until("a report", || tunnel.reports.load(Ordering::Relaxed) != before);
    // It was still being answered: one that does not read for 20 s is cut off.
    assert!(read(&mut silent[0]).contains("\n# HELP mpt_path_down_info "), "the last metric");
}

#[test]
fn other_addresses_need_a_token_in_a_file_of_its_owner() {
    let tunnel = Tunnel::start();
    let file = tunnel.run.path().join("token");
    let run = |arguments: &[&str]| tunnel.command(arguments).stdin(Stdio::null()).output().unwrap();
    let message = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = run(&["--listen", "0.0.0.0:0"]);
    assert!(message(&refused).starts_with("error: 0.0.0.0 is not a loopback address"), "{}", message(&refused));

    let name = file.display().to_string();
    write(&file, "0123456789abcdefghijklmnopq\n", 0o644);
    assert!(message(&run(&["--token-file", &name])).contains("is open to others than its owner (mode 0644)"));
    write(&file, "short\n", 0o600);
    assert!(message(&run(&["--token-file", &name])).contains("the token has 5 characters"));

    write(&file, "0123456789abcdefghijklmnopq\n", 0o600);
    let web = tunnel.web(&["--token-file", &name]);
    for target in ["/", "/metrics", "/healthz", "/api/now"] {
        assert_eq!(status(&web.get(target)), "401", "{target}");
        let wrong = "Authorization: Bearer 0123456789abcdefghijklmnopX\r\n";
        assert_eq!(status(&web.get_with(target, wrong)), "401", "{target}");
    }
    let right = "Authorization: Bearer 0123456789abcdefghijklmnopq\r\n";
    assert_eq!(status(&web.get_with("/metrics", right)), "200");
    assert!(!web.get("/").contains("0123456789"), "no answer repeats it");
}

#[test]
fn a_token_that_systemd_loads_may_be_readable_by_its_group() {
    let tunnel = Tunnel::start();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    let name = file.display().to_string();
    let run = |credentials: Option<&Path>| {
        let mut command = tunnel.command(&["--token-file", &name]);
        command.env_remove("CREDENTIALS_DIRECTORY").envs(credentials.map(|folder| ("CREDENTIALS_DIRECTORY", folder)));
        let output = command.stdin(Stdio::null()).output().expect("mpt web");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // It is read, and then refused for another reason.
    write(&file, "short\n", 0o440);
    let accepted = run(Some(folder.path()));
    assert!(accepted.contains("the token has 5 characters"), "{accepted}");
    for elsewhere in [None, Some(tunnel.run.path())] {
        let refused = run(elsewhere);
        assert!(refused.contains("is open to others than its owner (mode 0440)"), "{refused}");
    }
}

fn write(file: &Path, text: &str, mode: u32) {
    fs::write(file, text).expect("a file");
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("its mode");
}
