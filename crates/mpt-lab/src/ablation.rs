//! `mpt-lab matrix --without` and `--all-rules`.

use crate::{command::progress, progress_bar::ProgressBar};
use clap::Args;
use mpt_lab::experiment::ablation::{Ablation, AblationCase, Set, cases, lines, report};
use mpt_proto::tuning::{Heuristic, Tuning};
use std::{error::Error, fs::File, io::Write as _, path::PathBuf, time::Duration};

/// Ablation: the effect of the core's rules in the simulator.
#[derive(Args)]
pub(crate) struct AblationArgs {
    /// Rules of the core to switch off together, such as ack_delay,link_rate; an unknown name lists all.
    #[arg(long, value_name = "NAME", value_delimiter = ',', group = "ablation", conflicts_with = "accept")]
    without: Vec<Heuristic>,
    /// Switches the rules of the list off one after another, and prints a Markdown table.
    #[arg(long, requires = "without")]
    each: bool,
    /// Does the same with every rule.
    #[arg(long, group = "ablation", conflicts_with = "accept")]
    all_rules: bool,
    /// Cases: matrix, mixes, flows, latency, pages, or several of them.
    #[arg(long, value_delimiter = ',', default_value = "matrix", requires = "ablation")]
    set: Vec<String>,
    /// Only the cases with these names, such as mix_47 or static/lte_starlink.
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "ablation")]
    case: Vec<String>,
    /// Number of random mixes of links in the set mixes.
    #[arg(long, value_name = "K", default_value_t = 100, requires = "ablation")]
    cases: usize,
    /// Number of seeds by which the five cases that a rule helps most are selected, from seed 1 on.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "ablation",
        value_parser = clap::value_parser!(u64).range(1..=1_000))]
    screening: u64,
    /// Number of seeds with which these five are measured.
    #[arg(long, value_name = "N", default_value_t = 12, requires = "ablation",
        value_parser = clap::value_parser!(u64).range(2..=1_000))]
    seeds: u64,
    /// Length of each run in seconds; default: that of the committed matrix, 5 s for the others, at most 60 s for a
    /// page.
    #[arg(long, value_name = "T", requires = "ablation", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: Option<u64>,
    /// File for all raw values, one JSON object a line and rule.
    #[arg(long, value_name = "FILE", requires = "ablation")]
    json: Option<PathBuf>,
}

impl AblationArgs {
    /// Returns true if the arguments request an ablation.
    pub(crate) fn is_requested(&self) -> bool {
        self.all_rules || !self.without.is_empty()
    }
}

/// Runs an ablation and prints its table.
pub(crate) fn run(args: &AblationArgs) -> Result<(), Box<dyn Error>> {
    let length = args.seconds.map(Duration::from_secs);
    let mut selected = Vec::new();
    for name in &args.set {
        selected.extend(cases(Set::named(name)?, args.cases, length));
    }
    let is_wanted = |case: &AblationCase| args.case.is_empty() || args.case.contains(&case.name);
    selected.retain(is_wanted);
    if selected.is_empty() {
        return Err("no case has such a name; hint: without --case the table lists all names".into());
    }
    let mut ablation = Ablation::new(selected, args.screening, args.seeds);
    let mut file = args.json.as_ref().map(File::create).transpose()?;
    let mut measure = |names: &str, tuning: Tuning| -> Result<_, Box<dyn Error>> {
        let comparison = ablation.measure(tuning, &progress(&format!("without {names}")));
        ProgressBar::default().end();
        if let Some(file) = &mut file {
            writeln!(file, "{}", report::json(names, &comparison))?;
        }
        Ok(comparison)
    };
    if args.all_rules || args.each {
        print!("{}", report::markdown_head());
        let selected = Heuristic::NAMES.iter().filter(|(_, rule)| args.all_rules || args.without.contains(rule));
        for (name, rule) in selected {
            let comparison = measure(name, Tuning::default().without(*rule))?;
            print!("{}", report::markdown_row(name, lines::of(*rule), &comparison));
        }
    } else {
        let names: Vec<&str> = args.without.iter().map(|rule| rule.name()).collect();
        let tuning = args.without.iter().fold(Tuning::default(), |tuning, rule| tuning.without(*rule));
        let comparison = measure(&names.join(","), tuning)?;
        print!("{}", report::table(&names.join(","), &comparison));
    }
    Ok(())
}
