//! The implementation of each command.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use serde::Serialize;
use tracing::Level;
use tracing_subscriber::filter::Targets;

use super::arguments::{PathArgs, PathCommand, PeerCommand, ReportArgs, TunnelArg, UpArgs};
use super::render;
use crate::config::{self, File, Problem};
use crate::control::report::{self, Report};
use crate::control::{Action, ControlClient, Request, RunDir};
use crate::legacy::toml::Allowed;
use crate::logging::LogFormat;
use crate::output::print;
use crate::{Failure, daemon, enroll, logging};

/// Reads the file and passes it to `run`, with the folder for the event trace.
pub fn up(arguments: UpArgs, run: impl FnOnce(File, Option<&Path>) -> Result<(), Failure>) -> Result<(), Failure> {
    let read = if arguments.legacy { load_original(&arguments) } else { load(&arguments.file) };
    let mut file = read.inspect_err(|_| daemon::release_kept_interface())?;
    print_problems(&file.warnings);
    file.offload &= !arguments.no_offload;
    logging::init(arguments.log, arguments.log_format);
    run(file, arguments.qlog.as_deref())
}

pub fn load(file: &Path) -> Result<File, Failure> {
    config::load(file).map_err(|problems| {
        print_problems(&problems);
        unusable(file)
    })
}

/// Reads a configuration directory of the original.
fn load_original(up: &UpArgs) -> Result<File, Failure> {
    let allowed = Allowed { unauthenticated: up.unauthenticated, public_key: up.public_key };
    let (file, notes) = config::load_original(&up.file, allowed).map_err(|problems| {
        problems.iter().for_each(|problem| eprintln!("{problem}"));
        unusable(&up.file)
    })?;
    notes.iter().for_each(|note| eprintln!("{note}"));
    Ok(file)
}

/// Prints the status of all peers, or of one.
pub fn status(named: &ReportArgs, peer: Option<&str>) -> Result<(), Failure> {
    let mut client = connect(&named.tunnel)?;
    match (named.json, peer) {
        (false, peer) => print(render::status(&client.status_with_rates(peer)?)),
        (true, Some(peer)) => print_json(&client.status_of(peer)?),
        (true, None) => print_json(&client.status()?),
    }
}

/// Lists the paths, or takes one up or down.
pub fn path(command: PathCommand) -> Result<(), Failure> {
    match command {
        PathCommand::List(named) => list(named),
        PathCommand::Up(chosen) => set(chosen, Action::Up),
        PathCommand::Down(chosen) => set(chosen, Action::Down),
        PathCommand::Test { chosen, json } => test(&chosen, json),
    }
}

/// Measures a path.
fn test(chosen: &PathArgs, json: bool) -> Result<(), Failure> {
    let mut client = connect(&chosen.tunnel)?;
    let (peer, path) = find(&client.status()?, &chosen.path)?;
    eprintln!("testing {path} to {peer}: 5 s in each direction");
    let report = client.test_path(peer, path)?;
    if report.received.is_none() {
        eprintln!("the peer did not test its direction\nhint: it runs an older version, or was busy with another test");
    }
    if json { print_json(&report) } else { print(render::path_test(&report)) }
}

/// Lists, adds, removes or shows peers.
pub fn peer(command: PeerCommand) -> Result<(), Failure> {
    match command {
        PeerCommand::List(named) => peers(&named),
        PeerCommand::Add { tunnel, peer, expires } => enroll::add(&tunnel, peer, expires),
        PeerCommand::Remove { tunnel, peer } => enroll::remove(&tunnel, &peer),
        PeerCommand::Show { tunnel, peer } => print(enroll::show(&tunnel, &peer)?),
    }
}

/// Lists the peers, as in the status report but without their paths. Sites that have not joined go to stderr.
fn peers(named: &ReportArgs) -> Result<(), Failure> {
    let report = connect(&named.tunnel)?.status()?;
    enroll::pending(&report.tunnel.interface).iter().for_each(|site| eprintln!("{site}"));
    if named.json { print_json(&report.peers) } else { print(render::peers(&report)) }
}

/// Takes the tunnel down, or removes what a killed one left behind.
pub fn down(tunnel: TunnelArg) -> Result<(), Failure> {
    let failure = match connect(&tunnel) {
        Ok(mut client) => return client.down(),
        Err(failure) => failure,
    };
    let Some(name) = tunnel.name.or_else(only_crashed_tunnel) else { return Err(failure) };
    if access(RunDir::from_env().path(), AccessFlags::W_OK).is_err_and(|errno| errno != Errno::ENOENT) {
        return Err(failure.hint(format!("run as root: sudo mpt down {name}")));
    }
    log_warnings();
    match daemon::clean_up(&name)? {
        true => {
            eprintln!("{name} was not running; removed what it had left behind");
            Ok(())
        }
        false => Err(failure),
    }
}

/// Activates the kill switch of a file whose tunnel is not running.
pub fn kill_switch(file: &Path) -> Result<(), Failure> {
    let file = load(file)?;
    log_warnings();
    daemon::activate_kill_switch(&file)
}

/// Logs warnings of a command that changes the system: for example that it stays root.
fn log_warnings() {
    logging::init(Targets::new().with_default(Level::WARN), LogFormat::Text);
}

/// Returns the crashed tunnel, if exactly one has left a socket file.
fn only_crashed_tunnel() -> Option<String> {
    let run = RunDir::from_env();
    match (&run.names()[..], run.running().is_empty()) {
        ([name], true) => Some(name.clone()),
        _ => None,
    }
}

/// Prints the problems of a file to stdout: they are the requested data.
pub fn check(file: &Path, json: bool) -> Result<(), Failure> {
    let (problems, verdict) = match config::load(file) {
        Ok(file) => (file.warnings, Ok(())),
        Err(errors) => (errors, Err(unusable(file))),
    };
    if json {
        print_json(&problems)?
    } else {
        print(render::lines(&problems))?
    }
    verdict
}

/// Executes `mpt-lab`; returns only on failure.
pub fn lab(arguments: &[OsString]) -> Failure {
    let error = Command::new(beside("mpt-lab")).args(arguments).exec();
    match error.kind() {
        ErrorKind::NotFound => Failure::new("mpt-lab is neither beside mpt nor in PATH")
            .hint("install the laboratory, or build it with: cargo build --release -p mpt-lab"),
        _ => Failure::new(format!("cannot run mpt-lab: {error}")),
    }
}

fn list(named: ReportArgs) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Listed<'a> {
        peer: &'a str,
        #[serde(flatten)]
        path: &'a report::PathReport,
    }
    let report = connect(&named.tunnel)?.status()?;
    if !named.json {
        return print(render::paths(&report));
    }
    print_json(&report.paths().map(|(peer, path)| Listed { peer, path }).collect::<Vec<_>>())
}

fn set(chosen: PathArgs, action: Action) -> Result<(), Failure> {
    if let Some((local, remote)) = as_addresses(&chosen) {
        return connect(&TunnelArg { name: None })?.request(&Request::Ends { local, remote, action });
    }
    let mut client = connect(&chosen.tunnel)?;
    let (peer, path) = find(&client.status()?, &chosen.path)?;
    client.request(&Request::Path { peer, path, action })
}

/// Returns the two addresses by which the original names a path; ours has the tunnel's and the path's name there.
fn as_addresses(chosen: &PathArgs) -> Option<(IpAddr, IpAddr)> {
    Some((chosen.tunnel.name.as_ref()?.parse().ok()?, chosen.path.parse().ok()?))
}

/// Returns the peer and path that `wanted` refers to, which is PATH or PEER/PATH.
fn find(report: &Report, wanted: &str) -> Result<(String, String), Failure> {
    let full = |peer: &str, path: &report::PathReport| format!("{peer}/{}", path.name);
    let is_wanted = |peer: &str, path: &report::PathReport| path.name == wanted || full(peer, path) == wanted;
    let list = |found: Vec<_>| found.into_iter().map(|(peer, path)| full(peer, path)).collect::<Vec<_>>().join(", ");
    let found: Vec<_> = report.paths().filter(|(peer, path)| is_wanted(peer, path)).collect();
    match found[..] {
        [(peer, path)] => Ok((peer.to_owned(), path.name.clone())),
        [] => Err(Failure::new(format!("there is no path {wanted}"))
            .hint(format!("paths: {}", list(report.paths().collect())))),
        _ => Err(Failure::new(format!("several peers have a path {wanted}")).hint(format!("one of: {}", list(found)))),
    }
}

pub(super) fn connect(tunnel: &TunnelArg) -> Result<ControlClient, Failure> {
    let connected = ControlClient::connect(&RunDir::from_env(), tunnel.name.as_deref());
    connected.map_err(|failure| with_kill_switch(tunnel.name.clone().or_else(only_crashed_tunnel), failure))
}

/// Replaces the hint if the tunnel that cannot be reached has left an active kill switch.
fn with_kill_switch(name: Option<String>, failure: Failure) -> Failure {
    match name.filter(|name| !RunDir::from_env().running().contains(name) && daemon::is_blocking(name)) {
        Some(name) => failure.hint(format!("its kill switch keeps this host off the net; mpt down {name} removes it")),
        None => failure,
    }
}

/// Returns the program `name` in the directory of this one, or for lookup in PATH.
fn beside(name: &str) -> PathBuf {
    let sibling = env::current_exe().ok().map(|program| program.with_file_name(name));
    sibling.filter(|path| path.exists()).unwrap_or_else(|| name.into())
}

fn unusable(file: &Path) -> Failure {
    Failure::new(format!("{} cannot be used", file.display()))
}

fn print_problems(problems: &[Problem]) {
    eprint!("{}", render::lines(problems));
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value).expect("names and numbers can be written as JSON");
    print(format!("{json}\n"))
}
