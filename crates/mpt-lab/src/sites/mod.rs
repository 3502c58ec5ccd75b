//! Many sites that begin at once, at a server that gets its peers from a source.
//!
//! ```text
//!   crowd: an endpoint of the core for each site --- UDP on loopback --- mpt up --- Unix socket --- source
//! ```
//!
//! The server has the first processor, and crowd and source have the others, so that a turn of the server's event loop
//! contains no other program. With one processor they share it. All sites have addresses of their own on loopback:
//! under load the server limits the handshakes of one address.

mod crowd;
mod server;
mod source;

use crate::error::{Context, LabError, Result};
use crate::topology::Topology;
use crowd::Crowd;
use mpt_proto::crypto::keys::KeyPair;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, rlim_t, setrlimit};
use nix::sys::time::TimeValLike as _;
use nix::unistd::Pid;
use server::SitesServer;
use source::PeerSource;
use std::{
    fmt,
    path::Path,
    time::{Duration, Instant},
};

/// The extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct SitesPlan {
    /// Sites that connect.
    pub count: usize,
    /// Keys that the source knows, those of the sites among them.
    pub known: usize,
    /// Sites that begin in a second.
    pub rate: usize,
    /// Paths of each site.
    pub paths: usize,
    /// Time limit until all sites have a session.
    pub limit: Duration,
    /// Time for which the sessions are kept then.
    pub rest: Duration,
    /// Threads of the server that move packets.
    pub workers: u8,
}

/// The figures.
#[derive(Clone, Debug)]
pub struct SitesOutcome {
    /// Sites that connected.
    pub count: usize,
    /// Sites that have a session.
    pub up: usize,
    /// Peers of the server at the end.
    pub peers: usize,
    /// Questions to the source.
    pub asked: u64,
    /// Time until half of the sites had a session, nine of ten, 99 of 100, and all.
    pub times: [Duration; 4],
    /// The most sites that got a session within a second.
    pub best_second: usize,
    /// Memory of the server for each site in KiB, at the end.
    pub memory: f64,
    /// Processor time while sites connected: of the server, and of this program, which is sites and source.
    pub connecting: [Duration; 2],
    /// The longest turn of the server while sites connected, and while all were connected.
    pub turns: [Duration; 2],
    /// Share of a processor that the server took while all were connected.
    pub idle_load: f64,
    /// Time of `mpt status --peer`, without the start of the program, and of a list of all peers.
    pub status: [Duration; 2],
}

impl fmt::Display for SitesOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, up, peers, asked, times: [half, most, nearly_all, all], best_second, memory, .. } = self;
        let seconds = all.as_secs_f64();
        writeln!(f, "{up} of {count} sites have a session; {peers} peers, {asked} questions")?;
        let [half, most, nearly_all] = [half, most, nearly_all].map(Duration::as_secs_f64);
        write!(f, "half of them after {half:.2} s, 90 % after {most:.2} s, 99 % after {nearly_all:.2} s, ")?;
        writeln!(f, "all after {seconds:.2} s")?;
        writeln!(f, "{:.0} sessions/s, {best_second} in the best second", *up as f64 / seconds.max(1e-9))?;
        writeln!(f, "{memory:.1} KiB of memory for each site")?;
        let [server, sites] = self.connecting.map(|time| time.as_secs_f64());
        let each = server * 1e6 / (*up).max(1) as f64;
        writeln!(f, "{server:.1} s of a processor at the server, {each:.0} us a site; {sites:.1} s at the sites")?;
        let [connecting, resting] = self.turns.map(|turn| turn.as_secs_f64() * 1e3);
        writeln!(f, "longest turn {connecting:.2} ms while they connect, {resting:.2} ms later")?;
        writeln!(f, "{:.1} % of a processor while all are connected", self.idle_load * 100.0)?;
        let [one, list] = self.status.map(|time| time.as_secs_f64() * 1e3);
        write!(f, "status of one peer in {one:.2} ms, of all in {list:.0} ms")
    }
}

/// Starts a server, the program `mpt`, and connects the sites of a plan.
///
/// # Errors
/// No root, no such program, or the system refused something.
pub fn run(program: &Path, plan: &SitesPlan) -> Result<SitesOutcome> {
    if !nix::unistd::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    raise_descriptors(plan.count * plan.paths)?;
    let name = format!("{}-sites", Topology::unique_name());
    let server_keys = KeyPair::generate([2; 32]);
    let server = SitesServer::start(program, &name, &server_keys, plan.workers)?;
    let source = PeerSource::listen(&server.source_socket(), plan.known.max(plan.count))?;
    server.wait_for(|report| report["peer_source"]["connected"] == true)?;
    let alone = server.memory()?;
    separate(&server)?;
    let mut crowd = Crowd::open(&server.netns, plan, server_keys.public())?;
    let sampler = server.sample_turns(Duration::ZERO);
    let (begin, before) = (Instant::now(), [server.processor_time()?, own_time()?]);
    crowd.run(plan.limit, |crowd| crowd.up() == plan.count);
    let ticks = server.processor_time()?;
    let connecting = [ticks - before[0], own_time()? - before[1]];
    let longest_turn = sampler.end();
    let (rest, sampler) = (Instant::now(), server.sample_turns(plan.rest.min(Duration::from_secs(3))));
    crowd.run(plan.rest, |_| false);
    let resting = sampler.end();
    let idle_load = (server.processor_time()? - ticks).as_secs_f64() / rest.elapsed().as_secs_f64().max(1e-9);
    let report = server.report(0, 0)?;
    let mut times = crowd.times(begin);
    times.sort_unstable();
    let at = |index: usize| times.get(index).copied().unwrap_or_default();
    let within = |from: &Duration, at: &Duration| (*from..*from + Duration::from_secs(1)).contains(at);
    let in_second = |from: &Duration| times.iter().filter(|at| within(from, at)).count();
    let outcome = SitesOutcome {
        count: plan.count,
        up: times.len(),
        peers: report["peer_count"].as_u64().unwrap_or(0) as usize,
        asked: source.asked(),
        times: [50, 90, 99, 100].map(|percent| at((times.len() * percent / 100).min(times.len().saturating_sub(1)))),
        best_second: times.iter().step_by((times.len() / 200).max(1)).map(in_second).max().unwrap_or(0),
        memory: (server.memory()? as f64 - alone as f64) / plan.count as f64,
        connecting,
        turns: [longest_turn, resting],
        idle_load,
        status: [server.time_of_one()?, server.time_of_all()?],
    };
    Ok(outcome)
}

/// Returns the processor time of this program.
fn own_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(std::io::Error::from).context("getrusage")?;
    let times = [usage.user_time(), usage.system_time()];
    Ok(times.iter().map(|time| Duration::from_micros(time.num_microseconds().unsigned_abs())).sum())
}

/// Gives the server the first processor, and this program the others, if there are any.
fn separate(server: &SitesServer) -> Result<()> {
    let this = Pid::from_raw(0);
    let fail = |error: Errno| std::io::Error::from(error);
    let separate = || -> nix::Result<()> {
        let (mut first, mut others) = (CpuSet::new(), sched_getaffinity(this)?);
        first.set(0)?;
        others.unset(0)?;
        if (1..CpuSet::count()).any(|cpu| others.is_set(cpu) == Ok(true)) {
            sched_setaffinity(server.pid(), &first)?;
            sched_setaffinity(this, &others)?;
        }
        Ok(())
    };
    separate().map_err(fail).context("sched_setaffinity")
}

/// Each path of a site has a socket.
fn raise_descriptors(count: usize) -> Result<()> {
    // 32 bits on 32-bit ARM.
    let needed = rlim_t::try_from(count).unwrap_or(rlim_t::MAX).saturating_add(200);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(std::io::Error::from).context("getrlimit")?;
    if soft >= needed {
        return Ok(());
    }
    let set = setrlimit(Resource::RLIMIT_NOFILE, needed, hard.max(needed)).map_err(std::io::Error::from);
    set.context(
        "setrlimit: a descriptor for each path; hint: fewer sites, or a higher limit of descriptors (ulimit -Hn)",
    )
}
