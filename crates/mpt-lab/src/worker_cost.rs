//! The worth of workers: a server with several busy peers, with one worker and with more.
//!
//! ```text
//!   iperf3 --- server: mpt, `workers = N` ---+--- peer 0: mpt --- iperf3
//!                                            +--- peer 1: mpt --- iperf3
//!                                            ...
//! ```
//!
//! All programs share the processors of this machine, so goodput shows what the peers leave. The capacity of the server
//! is what it carries for each second of the processor that its busiest thread takes: with processors of its own for
//! each thread it would carry as much a second.

use crate::error::{Context, LabError, Result};
use crate::topology::{Host, Netns, Topology, folder::Folder};
use crate::traffic::ChildProcess;
use crate::tunnel;
use mpt_proto::crypto::keys::KeyPair;
use serde_json::Value;
use std::{
    fmt, fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

/// The extent of a measurement.
#[derive(Clone, Debug)]
pub struct WorkersPlan {
    /// Number of peers, 1 to 100.
    pub peers: u8,
    /// Numbers of workers that are compared, by turns.
    pub workers: Vec<u8>,
    /// Length of each flow.
    pub time: Duration,
    /// Rounds.
    pub rounds: usize,
}

/// One run: all peers at once in one direction.
#[derive(Clone, Debug)]
pub struct WorkersOutcome {
    /// Number of workers.
    pub workers: u8,
    /// From the peers to the server.
    pub up: bool,
    /// Sum of the flows, Mbit/s.
    pub goodput: f64,
    /// Processor time of the server's threads, the busiest one first.
    pub threads: Vec<Duration>,
    /// Payload in Mbit for each second of a processor that the busiest thread took.
    pub capacity: f64,
}

impl fmt::Display for WorkersOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, up, goodput, threads, capacity } = self;
        let direction = if *up { "up  " } else { "down" };
        write!(
            f,
            "{workers} workers, {direction}: {goodput:6.0} Mbit/s, {capacity:6.0} Mbit per s of the busiest thread,"
        )?;
        write!(f, " threads")?;
        threads.iter().try_for_each(|thread| write!(f, " {:.2}", thread.as_secs_f64()))?;
        write!(f, " s")
    }
}

/// Measures by turns, and passes each outcome to `print`.
///
/// # Errors
/// No root, no iperf3, or the system refused something.
pub fn run(program: &Path, plan: &WorkersPlan, print: &mut dyn FnMut(&WorkersOutcome)) -> Result<Vec<WorkersOutcome>> {
    if !nix::unistd::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    let mut all = Vec::new();
    for _ in 0..plan.rounds {
        for workers in &plan.workers {
            let scene = Scene::build(program, plan.peers, *workers)?;
            for up in [false, true] {
                let outcome = scene.measure(up, plan.time)?;
                print(&outcome);
                all.push(outcome);
            }
        }
    }
    Ok(all)
}

struct Scene {
    // Processes end before their namespaces.
    sinks: Vec<ChildProcess>,
    server: ChildProcess,
    workers: u8,
    _peers: Vec<ChildProcess>,
    hub: Netns,
    _others: Vec<(Netns, Folder)>,
    _folder: Folder,
}

impl Scene {
    fn build(program: &Path, peers: u8, workers: u8) -> Result<Self> {
        let name = Topology::unique_name();
        let hub = Netns::create(&format!("{name}-hub"))?;
        hub.ip("link set lo up")?;
        let keys = |number: u8| KeyPair::generate([number + 1; 32]);
        let mut config = format!(
            "private_key = \"{}\"\naddress = [\"10.77.0.1/16\"]\nworkers = {workers}\n",
            &*keys(0).secret_base64()
        );
        let (mut others, mut daemons, mut sinks) = (Vec::new(), Vec::new(), Vec::new());
        for peer in 1..=peers {
            config += &format!(
                "[[peer]]\nname = \"peer{peer}\"\npublic_key = \"{}\"\nnetworks = [\"10.77.{peer}.1/32\"]\n",
                keys(peer).public()
            );
        }
        let folder = folder(&format!("{name}-hub"))?;
        for peer in 1..=peers {
            let netns = Netns::create(&format!("{name}-p{peer}"))?;
            hub.ip(&format!(
                "link add p{peer} type veth peer name eth0 netns {}\nlink set p{peer} up\n\
                 address add 10.90.{peer}.1/24 dev p{peer}",
                netns.name()
            ))?;
            netns.ip(&format!("link set lo up\nlink set eth0 up\naddress add 10.90.{peer}.2/24 dev eth0"))?;
            others.push((netns, self::folder(&format!("{name}-p{peer}"))?));
        }
        let server = tunnel::start(program, &folder.0, &hub, Host::A, &config, None)?;
        for (peer, (netns, folder)) in (1..).zip(&others) {
            let config = format!(
                "private_key = \"{}\"\naddress = [\"10.77.{peer}.1/16\"]\n[[peer]]\nname = \"server\"\n\
                 public_key = \"{}\"\nnetworks = [\"10.77.0.0/16\"]\nremote = \"10.90.{peer}.1\"\n",
                &*keys(peer).secret_base64(),
                keys(0).public()
            );
            daemons.push(tunnel::start(program, &folder.0, netns, Host::B, &config, None)?);
            let sink = netns.command("iperf3").arg("-s").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            sinks.push(ChildProcess(sink.context("iperf3 -s")?));
        }
        let scene = Self { sinks, server, workers, _peers: daemons, hub, _others: others, _folder: folder };
        scene.wait(peers)?;
        Ok(scene)
    }

    /// Waits until all peers answer.
    fn wait(&self, peers: u8) -> Result<()> {
        let begin = Instant::now();
        for peer in 1..=peers {
            let ping = format!("ping -n -c 1 -W 1 10.77.{peer}.1 >/dev/null && ss -Hltn >/dev/null");
            while self.hub.sh(&ping).is_err() {
                if begin.elapsed() > START_LIMIT {
                    let message = format!("peer {peer} does not answer within {START_LIMIT:?}");
                    return Err(LabError::Failed { command: "mpt up".into(), message });
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    fn measure(&self, up: bool, time: Duration) -> Result<WorkersOutcome> {
        let before = thread_times(self.server.0.id())?;
        let start = |peer: usize| {
            let mut command = self.hub.command("iperf3");
            command.args(["-J", "-t", &time.as_secs().max(1).to_string(), "-c", &format!("10.77.{peer}.1")]);
            command.args(up.then_some("-R")).stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn().context("iperf3 -c").map(ChildProcess)
        };
        let mut flows: Vec<_> = (1..=self.sinks.len()).map(start).collect::<Result<_>>()?;
        let mut goodput = 0.0;
        for flow in &mut flows {
            let output = flow.0.stdout.take().expect("stdout is piped");
            let report: Value = serde_json::from_reader(output)
                .map_err(|error| LabError::Failed { command: "iperf3 -c".into(), message: error.to_string() })?;
            goodput += report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6;
        }
        let after = thread_times(self.server.0.id())?;
        let mut threads: Vec<_> = after.iter().zip(&before).map(|(after, before)| *after - *before).collect();
        threads.sort_unstable_by(|a, b| b.cmp(a));
        let busiest = threads.first().map_or(0.0, Duration::as_secs_f64);
        let capacity = goodput * time.as_secs_f64() / busiest.max(1e-9);
        Ok(WorkersOutcome { workers: self.workers, up, goodput, threads, capacity })
    }
}

/// Creates a folder that the tunnel's user may pass.
fn folder(name: &str) -> Result<Folder> {
    let folder = Folder::create(name)?;
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o711)).context("a folder")?;
    Ok(folder)
}

/// Returns the processor time of each thread of a process, in the order of their numbers.
fn thread_times(process: u32) -> Result<Vec<Duration>> {
    let folder = format!("/proc/{process}/task");
    let tasks = fs::read_dir(&folder).context(folder.clone())?;
    let mut numbers: Vec<u32> = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let time = |number: &u32| {
        let file = format!("{folder}/{number}/schedstat");
        let text = fs::read_to_string(&file).context(file.clone())?;
        let nanos = text.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
        Ok(Duration::from_nanos(nanos))
    };
    numbers.iter().map(time).collect()
}

const START_LIMIT: Duration = Duration::from_secs(30);
