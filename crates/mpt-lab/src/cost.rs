//! `mpt-lab cost`.

use clap::Args;
use mpt_lab::{
    competitors::NULL,
    experiment::cost::{Cost, CostLoad, Subject, head, ratios},
    topology::MAX_PATHS,
    tunnel::Mode,
};
use mpt_sim::link::PathSpec;
use std::{error::Error, fs, path::PathBuf, time::Duration};

/// Cost of a tunnel.
#[derive(Args)]
pub(crate) struct CostArgs {
    /// One path each; "" is a link without limits.
    #[arg(default_value = "rate=100mbit,delay=5ms,queue=100ms")]
    paths: Vec<PathSpec>,
    /// Measures over this number of cables in place of emulated links: nothing but the processors limits the tunnel.
    #[arg(long, value_name = "N", conflicts_with = "paths", value_parser = clap::value_parser!(u8).range(1..=MAX_PATHS as i64))]
    direct: Option<u8>,
    /// Modes of MPT: native, plain, or both.
    #[arg(long, value_delimiter = ',', default_value = "native", value_parser = ["native", "plain"])]
    mode: Vec<String>,
    /// Programs to compare with: other builds of `mpt`, such as that of an earlier commit.
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    program: Vec<PathBuf>,
    /// Other tunnels, such as wireguard-go or openvpn.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = Subject::other)]
    against: Vec<Subject>,
    /// Measures the null tunnel, too: the least that a tunnel of this design can cost.
    #[arg(long)]
    null: bool,
    /// Sends UDP datagrams with this payload as fast as one sender can, in place of a TCP flow.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(16..=1400))]
    udp: Option<u16>,
    /// Number of rounds, in each of which every tunnel is measured once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Limits each end to this share of a processor, in percent: a slow machine.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=99))]
    cpu: Option<u32>,
    /// Runs a call beside the flow (G.711, without a mark), and prints its one-way delay.
    #[arg(long)]
    call: bool,
    /// Runs everything on one processor: applications, tunnels and links.
    #[arg(long)]
    one_cpu: bool,
}

/// Measures and prints the table.
pub(crate) fn run(args: &CostArgs) -> Result<(), Box<dyn Error>> {
    if args.one_cpu {
        let mut first = nix::sched::CpuSet::new();
        first.set(0)?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &first)?;
    }
    let time = Duration::from_secs(args.seconds);
    let (rounds, cpu, call) = (args.rounds, args.cpu, args.call);
    let paths = match args.direct {
        Some(count) => vec!["".parse()?; count.into()],
        None => args.paths.clone(),
    };
    let load = args.udp.map_or(CostLoad::Tcp, |payload| CostLoad::Udp { payload });
    let cost = Cost { paths, direct: args.direct.is_some(), time, rounds, cpu, call, load };
    let mut subjects = Vec::new();
    for mode in &args.mode {
        let kind = if mode == "plain" { Mode::Plain } else { Mode::Native };
        subjects.push(Subject::Mpt(format!("mpt {mode}"), None, kind));
        for program in &args.program {
            // The daemon starts in another folder.
            let found = fs::canonicalize(program).map_err(|error| format!("{}: {error}", program.display()))?;
            subjects.push(Subject::Mpt(format!("{} {mode}", program.display()), Some(found), kind));
        }
    }
    subjects.extend(NULL.iter().filter(|_| args.null).map(Subject::Other));
    subjects.extend(args.against.iter().cloned());
    let rows = cost.run(&subjects, &mut |line| eprintln!("{line}"))?;
    match args.direct {
        Some(count) => println!("{count} direct paths"),
        None => args.paths.iter().enumerate().for_each(|(number, path)| println!("path {}: {path}", number + 1)),
    }
    let packet = args.udp.map_or("1,400 bytes of goodput".into(), |payload| format!("datagram of {payload} bytes"));
    println!("{} rounds of {} s; calls and wakeups per {packet}", args.rounds, args.seconds);
    print!("{}", head(load));
    rows.iter().for_each(|row| print!("{row}"));
    print!("{}", ratios(&rows));
    Ok(())
}
