//! `mpt-lab matrix --without` and `--all-rules`.

use crate::progress_bar::ProgressBar;
use clap::Args;
use mpt_lab::{
    experiment::ablation::{AblationCase, Set, Values, cases, effects, lines, measure, report},
    progress::Progress,
};
use mpt_proto::tuning::{Rule, Tuning};
use std::{
    error::Error,
    fs,
    io::{IsTerminal, stderr},
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

#[derive(Args)]
pub(crate) struct AblationArgs {
    /// Rules of the core to switch off together, such as ack_delay,link_rate; an unknown name lists all.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Rule>,
    /// Switches off every rule, one after the other, and writes a markdown table.
    #[arg(long, conflicts_with = "without")]
    all_rules: bool,
    /// Number of seeds, from seed 1 on; at least 4 give a useful interval.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Number of random mixes of links in the set mixes.
    #[arg(long, default_value_t = 100)]
    cases: usize,
    /// Length of each run; default: that of the committed matrix, 10 s for the others, and at most 60 s for a page.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: Option<u64>,
    /// Cases: matrix, mixes, flows, latency, pages, or all.
    #[arg(long, default_value = "matrix")]
    set: String,
    /// File for all raw values.
    #[arg(long)]
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
    let selected: Vec<AblationCase> =
        Set::select(&args.set)?.into_iter().flat_map(|set| cases(set, args.cases, length)).collect();
    let with = measured(&selected, args.seeds, Tuning::default(), "with all rules");
    let without = |rules: &[Rule]| {
        let names: Vec<&str> = rules.iter().map(|rule| rule.name()).collect();
        let tuning = rules.iter().fold(Tuning::default(), |tuning, rule| tuning.without(*rule));
        let values = measured(&selected, args.seeds, tuning, &format!("without {}", names.join(",")));
        (names.join(","), effects(&selected, &with, &values))
    };
    let mut raw = Vec::new();
    if args.all_rules {
        print!("{}", report::markdown_head());
        for (_, rule) in Rule::NAMES {
            let (name, effects) = without(&[*rule]);
            print!("{}", report::markdown_row(&name, lines::of(*rule), &effects));
            raw.push(report::json(&name, args.seeds, &effects));
        }
    } else {
        let (names, effects) = without(&args.without);
        print!("{}", report::table(&names, &effects));
        raw.push(report::json(&names, args.seeds, &effects));
    }
    if let Some(file) = &args.json {
        fs::write(file, serde_json::to_string(&raw)? + "\n")?;
    }
    Ok(())
}

/// Runs all cases and shows the progress on a terminal.
fn measured(cases: &[AblationCase], seeds: u64, tuning: Tuning, what: &str) -> Vec<Values> {
    let bar = Mutex::new(ProgressBar::default());
    let values = measure(cases, seeds, tuning, &|step, of| {
        let progress = Progress { step, of, what: what.into(), share: step as f64 / of as f64, remaining: None };
        if stderr().is_terminal() {
            bar.lock().unwrap_or_else(PoisonError::into_inner).show(&progress);
        }
    });
    ProgressBar::default().end();
    values
}
