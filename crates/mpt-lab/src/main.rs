//! `mpt-lab`: the laboratory's command line. Data goes to stdout, messages go to stderr.

mod ablation;
mod command;
mod cost;
mod fleet_command;
mod population;
mod progress_bar;

use clap::{Parser, Subcommand};
use mpt_lab::{
    chaos,
    demo::Demo,
    flood,
    hosts::ReadyFiles,
    null_tunnel::NullTunnel,
    topology::{self, Family, Host, Topology},
    tunnel::{Layout, inner_address},
    wire::{Pair, Remote, Report, Wire},
    worker_cost::{self, WorkersOutcome, WorkersPlan},
};
use mpt_sim::{link::PathSpec, seed::Seed};
use progress_bar::ProgressBar;
use std::{
    error::Error,
    io::BufRead,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

/// Emulated links and experiments for MPT.
#[derive(Parser)]
#[command(name = "mpt-lab", version = env!("MPT_VERSION"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Connects pairs of interfaces of this network namespace by emulated links, until interrupted.
    ///
    /// Reads commands from stdin: "cut N", "restore N", "set N SPEC", "report"; pairs count from 1.
    Wire {
        /// Two interfaces for each pair: the one towards host A, the one towards host B.
        #[arg(required = true, num_args = 2..)]
        interfaces: Vec<String>,
        /// Properties of the link, such as "rate=10mbit,delay=20ms,jitter=5ms,loss=0.5%,queue=400ms" or "THERE | BACK";
        /// one for all pairs, or one for each in order.
        #[arg(long = "spec", required = true)]
        specs: Vec<PathSpec>,
        /// Seed of all random numbers.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Builds two hosts with these paths and a file for `mpt up` in each, prints how to use them, and waits until
    /// interrupted.
    Hosts {
        /// One path each.
        #[arg(required = true)]
        specs: Vec<PathSpec>,
        /// Name of the hosts' namespaces, without -a and -b.
        #[arg(long)]
        name: Option<String>,
        /// Seed of all random numbers.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Prints the experiments of the catalogue, or the links of each case of some of them.
    List {
        /// As for `run`: an experiment (E1.I), a group (E1), a case (E1.I/50, rtt_40), all, or your own plan file.
        keys: Vec<String>,
    },
    /// Runs experiments and writes their report; after an interruption, the same command continues the run.
    Run(command::RunArgs),
    /// Writes the report of a run again.
    Report {
        /// Folder of the run.
        folder: PathBuf,
        /// Prints the tables for a document, and writes nothing.
        #[arg(long)]
        markdown: bool,
    },
    /// Computes the committed matrix of the simulator's figures and shows the differences, or measures the effect of
    /// rules of the core.
    Matrix {
        /// Writes the matrix.
        #[arg(long)]
        accept: bool,
        #[command(flatten)]
        ablation: ablation::AblationArgs,
    },
    /// Prints the distribution of goodput over random mixes of access links, in the simulator.
    Population(population::PopulationArgs),
    /// Draws the core's estimates for each path while one TCP flow runs in the simulator.
    Trace {
        /// A case: baseline, farm, E1.I/50.
        case: String,
        /// File for the picture.
        #[arg(long, default_value = "trace.svg")]
        picture: PathBuf,
        /// Folder for the event traces of both ends, in qlog form.
        #[arg(long, value_name = "DIR")]
        qlog: Option<PathBuf>,
        /// Duration of the flow in seconds.
        #[arg(long, default_value_t = 15)]
        seconds: u64,
        /// Seed of all random numbers.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Compares one TCP flow over two links like DSL and 4G, alone and together, and pulls one cable.
    Demo {
        /// File for the picture.
        #[arg(long, default_value = "demo-throughput.svg")]
        picture: PathBuf,
        /// Seconds for each measurement.
        #[arg(long, default_value_t = 7)]
        seconds: u64,
    },
    /// Kills the servers of a fleet, one after the other, while a host talks to each of its sites.
    Fleet(fleet_command::FleetArgs),
    /// Connects many sites to a server that gets its peers from a source.
    Sites {
        /// Sites that connect.
        #[arg(long, default_value_t = 1_000)]
        count: usize,
        /// Paths of each site.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=32))]
        paths: u8,
        /// Keys that the source knows; default: those of the sites.
        #[arg(long, default_value_t = 0)]
        known: usize,
        /// Sites that begin in a second.
        #[arg(long, default_value_t = 250)]
        rate: usize,
        /// Seconds for which the sessions are kept when all have one.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
        /// Threads of the server that move packets.
        #[arg(long, default_value_t = 1)]
        workers: u8,
    },
    /// Measures a server with several busy peers, with one worker and with two.
    Workers {
        /// Peers, each with one flow.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=100))]
        peers: u8,
        /// Numbers of workers to compare.
        #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u8).range(1..=16))]
        workers: Vec<u8>,
        /// Seconds for each measurement.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Rounds, in which the numbers take turns.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// Measures a TCP flow through the tunnel during a flood of invalid handshakes.
    Flood {
        /// The path of the tunnel.
        #[arg(default_value = "rate=200mbit,delay=5ms,queue=100ms")]
        path: PathSpec,
        /// Seconds for each measurement.
        #[arg(long, default_value_t = 4)]
        seconds: u64,
    },
    /// Measures processor time, wake-ups and system calls of a tunnel under one TCP flow, for each end.
    Cost(cost::CostArgs),
    /// Injects faults into a tunnel that carries TCP, UDP and ICMP, and checks that it recovers.
    Chaos {
        /// Seconds until the last fault.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Seed of the schedule and of the links.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Runs one end of a null tunnel in this network namespace; `mpt-lab cost --null` starts it.
    #[command(hide = true)]
    NullTunnel {
        /// Name of the TUN device.
        device: String,
        /// Address and port of this end.
        local: SocketAddr,
        /// Address and port of the other end.
        remote: SocketAddr,
        /// Seals the packets.
        #[arg(long)]
        sealed: bool,
        /// Microseconds for which it leaves input waiting after each turn.
        #[arg(long, default_value_t = 0)]
        pause: u64,
    },
    /// Measures the accuracy of the wire on this machine with all processors busy; takes about 15 s.
    Selftest,
    /// Removes the namespaces and folders of killed laboratories.
    Clean,
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match prepare(&command).and_then(|()| run(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            topology::park_if_ending();
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does what must precede the second thread.
fn prepare(command: &Command) -> Result<(), Box<dyn Error>> {
    if matches!(command, Command::Run(run) if run.is_unprivileged()) {
        topology::enter_own_namespaces()?;
    }
    topology::install_exit_handlers();
    Ok(())
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Wire { interfaces, specs, seed } => wire(&interfaces, &specs, Seed(seed)),
        Command::Hosts { specs, name, seed } => hosts(&specs, name, Seed(seed)),
        Command::List { keys } if keys.is_empty() => command::list(),
        Command::List { keys } => command::list_cases(&keys),
        Command::Run(run) => command::run(&run),
        Command::Report { folder, markdown } => command::report(&folder, markdown),
        Command::Matrix { ablation, .. } if ablation.is_requested() => ablation::run(&ablation),
        Command::Matrix { accept, .. } => command::matrix(accept),
        Command::Population(args) => population::run(&args),
        Command::Trace { case, picture, qlog, seconds, seed } => {
            command::trace(&case, Seed(seed), Duration::from_secs(seconds), &picture, qlog.as_deref())
        }
        Command::Fleet(args) => fleet_command::run(&args),
        Command::Demo { picture, seconds } => demo(&picture, Duration::from_secs(seconds)),
        Command::Flood { path, seconds } => {
            let mut print = |row: &flood::FloodResult| println!("{row}");
            flood::run(&path, Duration::from_secs(seconds), &mut print).map_err(Into::into)
        }
        Command::Sites { count, paths, known, rate, seconds, workers } => {
            let (limit, rest) = (Duration::from_secs(300), Duration::from_secs(seconds));
            let paths = usize::from(paths);
            sites(&mpt_lab::sites::SitesPlan { count, paths, known, rate, limit, rest, workers })
        }
        Command::Workers { peers, workers, seconds, rounds } => {
            compare_workers(&WorkersPlan { peers, workers, time: Duration::from_secs(seconds), rounds })
        }
        Command::Cost(args) => cost::run(&args),
        Command::NullTunnel { device, local, remote, sealed, pause } => {
            NullTunnel { device, local, remote, sealed, pause: Duration::from_micros(pause) }.run().map_err(Into::into)
        }
        Command::Chaos { seconds, seed } => chaos(Duration::from_secs(seconds), Seed(seed)),
        Command::Selftest => selftest(),
        Command::Clean => {
            topology::remove_orphans().iter().for_each(|name| println!("{name}"));
            Ok(())
        }
    }
}

fn sites(plan: &mpt_lab::sites::SitesPlan) -> Result<(), Box<dyn Error>> {
    let program = mpt_lab::tunnel::program().ok_or(mpt_lab::error::LabError::NoTunnel)?;
    println!("{}", mpt_lab::sites::run(&program, plan)?);
    Ok(())
}

fn compare_workers(plan: &WorkersPlan) -> Result<(), Box<dyn Error>> {
    let program = mpt_lab::tunnel::program().ok_or(mpt_lab::error::LabError::NoTunnel)?;
    let outcomes = worker_cost::run(&program, plan, &mut |outcome| println!("{outcome}"))?;
    for up in [false, true] {
        let direction = if up { "up" } else { "down" };
        for workers in &plan.workers {
            let of = |outcome: &&WorkersOutcome| outcome.up == up && outcome.workers == *workers;
            let mut capacities: Vec<_> = outcomes.iter().filter(of).map(|outcome| outcome.capacity).collect();
            capacities.sort_unstable_by(f64::total_cmp);
            let [Some(least), Some(most)] = [capacities.first(), capacities.last()] else { continue };
            let (median, n) = (capacities[capacities.len() / 2], capacities.len());
            println!(
                "{direction}, {workers} workers, n = {n}: {median:.0} ({least:.0} to {most:.0}) Mbit per s of the busiest thread"
            );
        }
    }
    Ok(())
}

fn wire(interfaces: &[String], specs: &[PathSpec], seed: Seed) -> Result<(), Box<dyn Error>> {
    let (ends, odd) = interfaces.as_chunks::<2>();
    if !odd.is_empty() || (specs.len() != 1 && specs.len() != ends.len()) {
        return Err("interfaces come in pairs; hint: give one --spec for all pairs, or one for each".into());
    }
    let paths = specs.iter().cycle();
    let pairs: Vec<Pair> = ends.iter().zip(paths).map(|([a, b], path)| pair(a, b, path)).collect();
    let (wire, remote) = Wire::open(&pairs, seed)?;
    let count = pairs.len();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Err(error) = execute(&line, &remote, count) {
                eprintln!("{error}");
            }
        }
        // At the end of stdin no more commands come, but the wire keeps running.
        std::mem::forget(remote);
    });
    wire.run()?;
    Ok(())
}

fn pair(a: &str, b: &str, path: &PathSpec) -> Pair {
    Pair { a: a.into(), b: b.into(), path: path.clone() }
}

fn execute(line: &str, remote: &Remote, pairs: usize) -> Result<(), Box<dyn Error>> {
    let fields: Vec<&str> = line.splitn(3, ' ').collect();
    let path = |number: &str| match number.parse::<usize>() {
        Ok(number) if (1..=pairs).contains(&number) => Ok(number - 1),
        _ => Err(format!("unknown pair '{number}'; hint: 1 to {pairs}")),
    };
    match fields[..] {
        ["cut", number] => remote.cut(path(number)?),
        ["restore", number] => remote.restore(path(number)?),
        ["set", number, spec] => remote.change(path(number)?, spec.parse()?),
        ["report"] => remote.report().iter().for_each(print_report),
        _ => return Err("hint: cut N, restore N, set N SPEC, report".into()),
    }
    Ok(())
}

fn print_report(report: &Report) {
    for (number, line) in report.lines.iter().enumerate() {
        let direction = if number % 2 == 0 { "there" } else { "back" };
        println!("path {} {direction}: {line}", number / 2 + 1);
    }
    println!("release deviation {}; scheduling {:?}", report.deviation, report.scheduling);
}

fn selftest() -> Result<(), Box<dyn Error>> {
    let accuracy = mpt_lab::selftest::run(&mut |what| eprintln!("{what}"))?;
    println!("{accuracy}");
    if accuracy.holds() { Ok(()) } else { Err("the wire is not accurate enough on this machine".into()) }
}

fn demo(picture: &Path, time: Duration) -> Result<(), Box<dyn Error>> {
    let mut bar = ProgressBar::default();
    let outcome = Demo { time, ..Demo::default() }.run(&mut |progress| bar.show(&progress))?;
    bar.end();
    print!("{outcome}");
    outcome.draw(picture)?;
    println!("\npicture: {}", picture.display());
    if let Some(report) = outcome.wire.filter(|report| report.faults() > 0) {
        eprintln!("warning: the wire missed {} frames; hint: mpt-lab selftest", report.faults());
    }
    if let Err(error) = &outcome.mptcp {
        eprintln!("absent: kernel MPTCP: {error}");
    }
    outcome.tunnel.map(drop).map_err(Into::into)
}

fn chaos(time: Duration, seed: Seed) -> Result<(), Box<dyn Error>> {
    let report = chaos::run(time, seed, &mut |line| eprintln!("{line}"))?;
    print!("{report}");
    match report.failures.len() + report.late.len() {
        0 => Ok(()),
        count => Err(format!("{count} failures; hint: mpt-lab chaos --seed {} repeats the schedule", seed.0).into()),
    }
}

fn hosts(specs: &[PathSpec], name: Option<String>, seed: Seed) -> Result<(), Box<dyn Error>> {
    let name = name.unwrap_or_else(Topology::unique_name);
    let topology = Topology::build(&name, specs, seed)?;
    for (path, spec) in specs.iter().enumerate() {
        let end = |host| topology::address(host, path, Family::V4);
        println!("path {}: {} - {}: {spec}", path + 1, end(Host::A), end(Host::B));
    }
    println!("try: ip netns exec {} ping {}", topology.a.name(), topology::address(Host::B, 0, Family::V4));
    let _files = ready_files(&topology, specs);
    std::io::stdin().lock().lines().map_while(Result::ok).for_each(|_| topology.report().iter().for_each(print_report));
    loop {
        thread::park();
    }
}

/// Writes a file for `mpt up` in each host and prints how to use them. Without `mpt`, the hosts serve other programs.
fn ready_files(topology: &Topology, specs: &[PathSpec]) -> Option<ReadyFiles> {
    let files = ReadyFiles::write(topology, &Layout::native(specs));
    let files = files.inspect_err(|error| eprintln!("no files for a tunnel: {error}")).ok()?;
    for host in [Host::A, Host::B] {
        println!("up {host:?}: {}", files.up(topology, host));
    }
    println!("status: {} status", files.mpt(topology, Host::A));
    let inside = inner_address(Host::B, Family::V4);
    println!("inside: ip netns exec {} ping {inside}", topology.a.name());
    Some(files)
}

#[cfg(test)]
#[path = "../../mpt/tests/guide/pages.rs"]
mod pages;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{blocks, without_synopsis};

    #[test]
    fn every_command_in_the_guide_is_accepted_by_the_command_line() {
        let examples = [("N", "1"), ("T", "1"), ("S", "1"), ("SPEC", "rate=1mbit"), ("RULE", "ack_delay")];
        let mut count = 0;
        for block in blocks().iter().filter(|block| block.may_be_shell()) {
            for words in block.commands().iter().filter(|words| words[0] == "mpt-lab") {
                if let Err(error) = Cli::try_parse_from(without_synopsis(words, &examples)) {
                    panic!("{}: {words:?}\n{error}", block.place);
                }
                count += 1;
            }
        }
        assert!(count >= 18, "{count} commands were found");
    }

    #[test]
    fn every_example_of_a_link_in_the_guide_is_right() {
        let blocks = blocks();
        let block =
            blocks.iter().find(|block| block.text.starts_with("rate=10mbit,delay=20ms,jitter")).expect("a block");
        for line in block.text.lines() {
            let spec = line.split("    ").next().expect("a part").trim();
            spec.parse::<PathSpec>().unwrap_or_else(|error| panic!("{}: {spec}: {error}", block.place));
        }
    }
}
