//! `mpt-lab population`.

use crate::{
    command::{accept_population, print, progress},
    progress_bar::ProgressBar,
};
use clap::Args;
use mpt_lab::{
    chart,
    experiment::population::{Population, report},
    plan::Congestion,
};
use mpt_proto::tuning::{Heuristic, Tuning};
use mpt_sim::seed::Seed;
use std::{error::Error, path::PathBuf, time::Duration};

/// Distributions over random mixes of access links, in the simulator.
#[derive(Args)]
pub(crate) struct PopulationArgs {
    /// Number of mixes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    cases: u64,
    /// Number of the first mix.
    #[arg(long, default_value_t = 0)]
    first: usize,
    /// Seed of the mixes. Reports use seeds that tuning did not use.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seed of the random numbers of each run [default: that of the mixes].
    #[arg(long)]
    run_seed: Option<u64>,
    /// Length of each run.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Congestion control of the flow, and of those over single paths. The flows of --call, --both, --page and --idle
    /// have CUBIC.
    #[arg(long, value_enum, default_value_t = Congestion::Cubic)]
    congestion: Congestion,
    /// Also runs MPT over each path alone and over all but one; takes four times as long.
    #[arg(long)]
    parts: bool,
    /// Also runs a call beside the flow, and reports the delay that the flow adds to it.
    #[arg(long)]
    call: bool,
    /// Also runs a flow in each direction at the same time, and reports the share that each keeps of what it has alone.
    #[arg(long)]
    both: bool,
    /// Also loads a page of 20 objects, and reports its load time divided by that over the best path alone.
    #[arg(long)]
    page: bool,
    /// Also runs a flow that starts on an idle tunnel, after another one, and reports its start.
    #[arg(long)]
    idle: bool,
    /// Rules of the core to switch off.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    without: Vec<Heuristic>,
    /// Prints one line per mix.
    #[arg(long)]
    each: bool,
    /// File for a picture of the cumulative distributions.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Runs the committed mixes, prints the lines that differ, and writes them to their file; excludes other options.
    #[arg(long, exclusive = true)]
    accept: bool,
}

/// Runs the mixes and prints the distributions and the worst cases.
pub(crate) fn run(args: &PopulationArgs) -> Result<(), Box<dyn Error>> {
    if args.accept {
        return accept_population();
    }
    let run_seed = args.run_seed.unwrap_or(args.seed);
    let population = Population {
        seed: Seed(args.seed),
        run_seed: Seed(run_seed),
        congestion: args.congestion,
        length: Duration::from_secs(args.seconds),
        parts: args.parts,
        call: args.call,
        both: args.both,
        page: args.page,
        idle: args.idle,
        tuning: args.without.iter().fold(Tuning::default(), |tuning, rule| tuning.without(*rule)),
    };
    let numbers = args.first..args.first + args.cases as usize;
    let outcomes = population.run(numbers, &progress("population"));
    ProgressBar::default().end();
    let mut text = String::new();
    for outcome in outcomes.iter().filter(|_| args.each) {
        text += &format!("{}\n", report::line(outcome));
    }
    text += &report::table(&outcomes);
    text += &report::worst(&outcomes, [args.seed, run_seed], args.seconds);
    if let Some(file) = &args.picture {
        chart::draw(file, &[report::chart(&outcomes)])?;
        text += &format!("\npicture: {}\n", file.display());
    }
    print(&text)
}
