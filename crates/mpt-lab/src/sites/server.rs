//! The server: `mpt up` in a namespace, and what its control socket and `/proc` show.

use crate::error::{Context, LabError, Result};
use crate::topology::{Host, Netns, folder::Folder};
use crate::{traffic::ChildProcess, tunnel};
use mpt_proto::crypto::keys::KeyPair;
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A running server.
pub(super) struct SitesServer {
    daemon: ChildProcess,
    folder: Folder,
    /// Where it runs.
    pub(super) netns: Netns,
}

impl SitesServer {
    /// Starts it, and waits until it answers.
    pub(super) fn start(program: &Path, name: &str, keys: &KeyPair, workers: u8) -> Result<Self> {
        let netns = Netns::create(name)?;
        let folder = Folder::create(name)?;
        // The user of the tunnel passes it on the way to the sockets.
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o711)).context("a folder")?;
        let config = format!(
            "private_key = \"{}\"\naddress = [\"10.77.0.1/24\"]\nworkers = {workers}\npeer_source = \"{}\"\n",
            &*keys.secret_base64(),
            folder.0.join("peers.sock").display()
        );
        let daemon = tunnel::start(program, &folder.0, &netns, Host::A, &config, None)?;
        let server = Self { daemon, folder, netns };
        server.wait_for(|_| true)?;
        Ok(server)
    }

    /// Returns the socket at which its source listens.
    pub(super) fn source_socket(&self) -> PathBuf {
        self.folder.0.join("peers.sock")
    }

    /// Waits until its report fulfils a condition.
    pub(super) fn wait_for(&self, holds: impl Fn(&Value) -> bool) -> Result<()> {
        let begin = Instant::now();
        loop {
            let report = self.report(0, 0);
            if report.as_ref().is_ok_and(&holds) {
                return Ok(());
            }
            if begin.elapsed() > START_LIMIT {
                let log = fs::read_to_string(tunnel::log(&self.folder.0, Host::A)).unwrap_or_default();
                return Err(report.err().unwrap_or(LabError::Failed { command: "mpt up".into(), message: log }));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns its report with some peers.
    pub(super) fn report(&self, first: usize, count: usize) -> Result<Value> {
        request(&self.control(), &json!({ "command": "status", "first": first, "count": count }))
    }

    /// Returns the time of a report with one peer.
    pub(super) fn time_of_one(&self) -> Result<Duration> {
        let begin = Instant::now();
        request(&self.control(), &json!({ "command": "peer_status", "peer": "site-0" }))?;
        Ok(begin.elapsed())
    }

    /// Returns the time of a report with all peers, page by page.
    pub(super) fn time_of_all(&self) -> Result<Duration> {
        let (begin, mut first) = (Instant::now(), 0);
        loop {
            let page = self.report(first, PAGE)?["peers"].as_array().map_or(0, Vec::len);
            first += page;
            if page < PAGE {
                return Ok(begin.elapsed());
            }
        }
    }

    /// Returns the number of its process.
    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(self.daemon.0.id() as i32)
    }

    /// Returns its memory in KiB.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.0.id())).context("its memory")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        memory.ok_or(LabError::Unreadable { tool: "/proc", message: status })
    }

    /// Returns the processor time that it has taken.
    pub(super) fn processor_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.daemon.0.id())).context("its time")?;
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        let ticks: u64 = fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Watches the longest turn of its event loop, after `skipped`: a report is about two seconds before it.
    pub(super) fn sample_turns(&self, skipped: Duration) -> Sampler {
        let (control, ended) = (self.control(), Arc::new(AtomicBool::new(false)));
        let ends = ended.clone();
        let thread = thread::spawn(move || {
            let mut longest = 0;
            thread::sleep(skipped);
            while !ends.load(Relaxed) {
                let status = json!({ "command": "status", "first": 0, "count": 0 });
                let report = request(&control, &status).unwrap_or_default();
                longest = longest.max(report["longest_turn_us"].as_u64().unwrap_or(0));
                thread::sleep(Duration::from_millis(300));
            }
            Duration::from_micros(longest)
        });
        Sampler { ended, thread }
    }

    fn control(&self) -> PathBuf {
        tunnel::run_dir(&self.folder.0, Host::A).join("mpt0.sock")
    }
}

/// A thread that reads the longest turn.
pub(super) struct Sampler {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Sampler {
    /// Ends it, and returns the longest turn that it has seen.
    pub(super) fn end(self) -> Duration {
        self.ended.store(true, Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn request(socket: &Path, request: &Value) -> Result<Value> {
    let stream = UnixStream::connect(socket).context("the control socket")?;
    (&stream).write_all(format!("{request}\n").as_bytes()).context("a request")?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).context("a report")?;
    let unreadable = |_| LabError::Unreadable { tool: "mpt", message: line.clone() };
    let mut response: Value = serde_json::from_str(&line).map_err(unreadable)?;
    match response["status"].take() {
        Value::Null => Err(LabError::Failed { command: request.to_string(), message: line }),
        report => Ok(report),
    }
}

const START_LIMIT: Duration = Duration::from_secs(60);
const PAGE: usize = 32;
