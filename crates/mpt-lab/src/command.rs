//! `mpt-lab list`, `run`, `report`, `matrix` and `trace`.

use crate::bar::Bar;
use clap::{Args, ValueEnum};
use mpt_lab::{
    chart,
    experiment::{
        self, Options,
        contender::Contender,
        matrix,
        record::{self, Record},
        result::{CaseResult, Substrate},
        store::{self, Store},
        trace,
    },
    plan::{self, Plan},
    progress::Progress,
    report, rivals,
    tunnel::Mode,
};
use mpt_sim::seed::Seed;
use std::{
    error::Error,
    fs,
    io::{IsTerminal, stderr},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

type Done = Result<(), Box<dyn Error>>;

#[derive(Args)]
pub(crate) struct Run {
    /// What to run: an experiment (E1.I), a group (E1), a case (E1.I/50, rtt_40), all, or a plan of your own (./mine.toml).
    #[arg(required = true)]
    keys: Vec<String>,
    /// Fewer cases, a few seconds each, once.
    #[arg(long)]
    quick: bool,
    /// What MPT is compared with: solo, ideal, mptcp, wireguard-go, openvpn, glorytun, mlvpn; or none.
    #[arg(long, value_delimiter = ',', default_value = "solo,ideal,mptcp")]
    against: Vec<String>,
    /// Seed of all chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object a line.
    #[arg(long)]
    json: bool,
    /// How MPT speaks.
    #[arg(long, value_enum, default_value_t = Speech::Native)]
    mode: Speech,
    /// MPT as the papers had it: static weights, no resequencing.
    #[arg(long, conflicts_with = "mode")]
    original: bool,
    /// Where it is measured: in network namespaces, in those of a user namespace, or in the simulator; the last two need no
    /// privileges.
    #[arg(long, value_enum, default_value_t = Ground::Netns)]
    substrate: Ground,
    /// Where results are kept; by default a folder below lab-results that is named after the run.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Ground {
    /// Kernel namespaces and the wire.
    Netns,
    /// The same without privileges, in a user namespace.
    Emu,
    /// Virtual time.
    Sim,
}

#[derive(Clone, Copy, ValueEnum)]
enum Speech {
    /// Authenticated and encrypted, adaptive.
    Native,
    /// GRE-in-UDP with sequence numbers.
    Plain,
}

impl Run {
    /// Whether it needs namespaces of its own to run in.
    pub(crate) fn is_unprivileged(&self) -> bool {
        matches!(self.substrate, Ground::Emu)
    }
}

/// Prints what there is to run.
pub(crate) fn list() -> Done {
    for plan in plan::catalogue()? {
        println!("{:<10} {:>4} cases  {}", plan.key, plan.cases.len(), plan.title);
        if plan.axes.is_empty() {
            let names: Vec<&str> = plan.cases.iter().map(|case| case.name.as_str()).collect();
            println!("{:<22} {}", "", names.join(", "));
        }
    }
    Ok(())
}

/// Runs experiments, or goes on with a run that was interrupted, and writes its report.
pub(crate) fn run(run: &Run) -> Done {
    let plans = selected(&run.keys)?;
    let options = options(run)?;
    let folder = run.out.clone().unwrap_or_else(|| default_folder(&options));
    let mut store = Store::open(&folder, &options)?;
    if let Some(earlier) = &store.earlier {
        eprintln!("what was in {} is in {}", folder.display(), earlier.display());
    }
    if !store.results.is_empty() {
        eprintln!("going on with {}: {} cases are done", folder.display(), store.results.len());
    }
    let mut bar = Bar::default();
    experiment::run(&plans, &options, &mut store, &mut |progress| bar.show(&progress))?;
    bar.end();
    tell_absent(&store.results);
    let records = records(&plans, &store.results);
    if run.json {
        records.iter().try_for_each(|record| serde_json::to_string(record).map(|line| println!("{line}")))?;
    } else {
        print!("{}", report::text(&plans, &store.results, &options));
    }
    write(&folder, &plans, &store.results, &options)?;
    store.finish()?;
    eprintln!("report: {}", folder.join("report.html").display());
    Ok(())
}

/// Writes the report of a run again, from what is kept in its folder.
pub(crate) fn report(folder: &Path) -> Done {
    let options = store::read_options(folder)?;
    let plans = selected(&options.keys)?;
    let results = store::read_results(folder)?;
    write(folder, &plans, &results, &options)?;
    print!("{}", report::text(&plans, &results, &options));
    println!("report: {}", folder.join("report.html").display());
    Ok(())
}

/// Draws what the core believes of each path in a case.
pub(crate) fn trace(key: &str, seed: Seed, length: Duration, picture: &Path) -> Done {
    let plans = selected(&[key.to_owned()])?;
    let [plan] = plans.as_slice() else {
        return Err(format!("{key} is several experiments; hint: mpt-lab list").into());
    };
    let [case] = plan.cases.as_slice() else {
        return Err(format!("{key} is {} cases; hint: {key}/CASE, see mpt-lab list", plan.cases.len()).into());
    };
    chart::draw(picture, &trace::trace(case, seed, length)?)?;
    println!("{}", picture.display());
    Ok(())
}

/// Computes the simulator's figures and shows where they are not the committed ones, or commits them to the file.
pub(crate) fn matrix(accept: bool) -> Done {
    if !Path::new(matrix::FILE).parent().is_some_and(Path::is_dir) {
        return Err(format!("{} is not here; hint: run it at the root of the source tree", matrix::FILE).into());
    }
    let bar = Mutex::new(Bar::default());
    let computed = matrix::compute(&|step, of| {
        let progress = Progress { step, of, what: "matrix".into(), share: step as f64 / of as f64, remaining: None };
        if stderr().is_terminal() {
            bar.lock().unwrap_or_else(PoisonError::into_inner).show(&progress);
        }
    })?;
    Bar::default().end();
    let mut changes = 0;
    for (file, computed) in [(matrix::FILE, computed.matrix), (matrix::JOURNALS, computed.journals)] {
        let committed = fs::read_to_string(file).unwrap_or_default();
        let changed = matrix::difference(&committed, &computed);
        changed.iter().for_each(|line| println!("{line}"));
        changes += changed.len();
        if accept {
            fs::write(file, computed)?;
        }
    }
    match changes {
        changes if changes > 0 && !accept => {
            Err(format!("{changes} lines differ; hint: mpt-lab matrix --accept").into())
        }
        _ => Ok(()),
    }
}

fn write(folder: &Path, plans: &[Plan], results: &[CaseResult], options: &Options) -> Done {
    let records = records(plans, results);
    fs::write(folder.join("results.csv"), record::csv(&records))?;
    let lines = records.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    fs::write(folder.join("results.json"), lines.join("\n") + "\n")?;
    fs::write(folder.join("report.html"), report::html(plans, results, options)?)?;
    Ok(())
}

fn selected(keys: &[String]) -> Result<Vec<Plan>, Box<dyn Error>> {
    let mut plans: Vec<Plan> = Vec::new();
    for plan in keys.iter().map(|key| plan::select(key)).collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        match plans.iter_mut().find(|other| other.key == plan.key) {
            Some(known) => known.take(plan),
            None => plans.push(plan),
        }
    }
    Ok(plans)
}

fn options(run: &Run) -> Result<Options, Box<dyn Error>> {
    let known: Vec<&str> = Contender::NAMES.into_iter().chain(rivals::ALL.iter().map(|rival| rival.name)).collect();
    let against: Vec<String> = run.against.iter().filter(|name| *name != "none").cloned().collect();
    if let Some(name) = against.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("there is no '{name}' to compare with; hint: {}, none", known.join(", ")).into());
    }
    let mode = match run.mode {
        _ if run.original => Mode::Original,
        Speech::Native => Mode::Native,
        Speech::Plain => Mode::Plain,
    };
    let substrate = match run.substrate {
        Ground::Netns => Substrate::Netns,
        Ground::Emu => Substrate::Emu,
        Ground::Sim => Substrate::Sim,
    };
    Ok(Options { keys: run.keys.clone(), quick: run.quick, seed: run.seed, substrate, mode, against })
}

/// The same for the same run, so that repeating the command goes on where it was.
fn default_folder(options: &Options) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' };
    let keys: String = options.keys.join("+").trim_start_matches("./").chars().map(plain).collect();
    let quick = if options.quick { "-quick" } else { "" };
    let place = match options.substrate {
        Substrate::Netns => String::new(),
        other => format!("-{}", other.name()),
    };
    Path::new("lab-results").join(format!("{keys}-{}{place}{quick}-{}", options.mode.name(), options.seed))
}

fn records(plans: &[Plan], results: &[CaseResult]) -> Vec<Record> {
    let of = |plan: &Plan, case: &plan::Case| {
        let result = results.iter().find(|result| result.experiment == plan.key && result.case == case.name);
        result.map(|result| record::records(result, case)).unwrap_or_default()
    };
    plans.iter().flat_map(|plan| plan.cases.iter().flat_map(move |case| of(plan, case))).collect()
}

/// What could not be measured, each reason once.
fn tell_absent(results: &[CaseResult]) {
    let mut told: Vec<String> = Vec::new();
    for outcome in results.iter().flat_map(|result| &result.outcomes) {
        let line = outcome.absent.as_ref().map(|why| format!("absent: {}: {why}", outcome.name));
        told.extend(line.filter(|line| !told.contains(line)));
    }
    told.iter().for_each(|line| eprintln!("{line}"));
    let faults: u64 = results.iter().map(|result| result.faults).sum();
    if faults > 0 {
        eprintln!("warning: the wire itself missed {faults} frames; hint: mpt-lab selftest");
    }
}
