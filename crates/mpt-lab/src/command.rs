//! `mpt-lab list`, `run`, `report`, `matrix` and `trace`.

use crate::progress_bar::ProgressBar;
use clap::{Args, ValueEnum};
use mpt_lab::{
    chart, competitors,
    experiment::{
        self, Options,
        contender::Contender,
        matrix,
        population::committed,
        record::{self, Record},
        result::{CaseResult, Substrate},
        store::{self, Store},
        trace,
    },
    plan::{self, Plan},
    progress::Progress,
    report,
    tunnel::Mode,
};
use mpt_sim::seed::Seed;
use std::{
    env,
    error::Error,
    fs,
    io::{self, IsTerminal, Write as _, stderr},
    path::{Path, PathBuf},
    process,
    sync::{Mutex, PoisonError},
    time::Duration,
};

type CommandResult = Result<(), Box<dyn Error>>;

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Measurements: an experiment (E1.I), a group (E1), a case (E1.I/50, rtt_40), all, or your own plan file
    /// (./mine.toml).
    #[arg(required = true)]
    keys: Vec<String>,
    /// Quick run: fewer cases, a few seconds each, one repetition.
    #[arg(long)]
    quick: bool,
    /// Contenders to compare MPT with: solo, ideal, mptcp, wireguard-go, boringtun, openvpn, glorytun, mlvpn, mqvpn; or
    /// none.
    #[arg(long, value_delimiter = ',', default_value = "solo,ideal,mptcp")]
    against: Vec<String>,
    /// Seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object per line.
    #[arg(long)]
    json: bool,
    /// Protocol mode of MPT.
    #[arg(long, value_enum, default_value_t = ModeArg::Native)]
    mode: ModeArg,
    /// MPT as in the papers: static weights, no resequencing.
    #[arg(long, conflicts_with = "mode")]
    original: bool,
    /// Place: in network namespaces (root), in a user namespace, or in the simulator; the last two need no
    /// privileges.
    #[arg(long, value_enum, default_value_t = SubstrateArg::Netns)]
    substrate: SubstrateArg,
    /// Folder for the results; default: a folder below lab-results named after the run.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum SubstrateArg {
    /// Kernel namespaces and the emulated links.
    Netns,
    /// The same in a user namespace, without privileges.
    Emu,
    /// The simulator, in virtual time.
    Sim,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
    /// Authenticated and encrypted, adaptive.
    Native,
    /// GRE-in-UDP with sequence numbers.
    Plain,
}

impl RunArgs {
    /// Returns true if the run needs a user namespace of its own.
    pub(crate) fn is_unprivileged(&self) -> bool {
        matches!(self.substrate, SubstrateArg::Emu)
    }
}

/// Prints the experiments of the catalogue.
pub(crate) fn list() -> CommandResult {
    let mut text = String::new();
    for plan in plan::catalogue()? {
        text += &format!("{:<10} {:>4} cases  {}\n", plan.key, plan.cases.len(), plan.title);
        if plan.axes.is_empty() {
            let names: Vec<&str> = plan.cases.iter().map(|case| case.name.as_str()).collect();
            text += &format!("{:<22} {}\n", "", names.join(", "));
        }
    }
    print(&text)
}

/// Prints the cases of experiments with their links.
pub(crate) fn list_cases(keys: &[String]) -> CommandResult {
    let mut text = String::new();
    for plan in selected(keys)? {
        text += &format!("{}: {}\n", plan.key, plan.title);
        for case in &plan.cases {
            text += &format!("  {}/{}\n", plan.key, case.name);
            for (name, what) in case.links(false) {
                text += &format!("    {name:<8}  {what}\n");
            }
        }
    }
    print(&text)
}

/// Writes `text` to stdout. A closed pipe, as after `head`, is no failure.
pub(crate) fn print(text: &str) -> CommandResult {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Runs experiments, or continues an interrupted run, and writes the report.
pub(crate) fn run(run: &RunArgs) -> CommandResult {
    let plans = selected(&run.keys)?;
    let options = options(run)?;
    let folder = run.out.clone().unwrap_or_else(|| default_folder(&options));
    let mut store = Store::open(&folder, &options)?;
    if let Some(earlier) = &store.earlier {
        eprintln!("moved the earlier results of {} to {}", folder.display(), earlier.display());
    }
    if !store.results.is_empty() {
        eprintln!("continuing {}: {} cases are done", folder.display(), store.results.len());
    }
    let mut bar = ProgressBar::default();
    experiment::run(&plans, &options, &mut store, &mut |progress| bar.show(&progress))?;
    bar.end();
    report_absent(&store.results);
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

/// Rewrites the report of a run from the results in its folder.
pub(crate) fn report(folder: &Path, markdown: bool) -> CommandResult {
    let options = store::read_options(folder)?;
    let plans = selected(&options.keys)?;
    let results = store::read_results(folder)?;
    if markdown {
        print!("{}", report::markdown(&plans, &results, &options));
        return Ok(());
    }
    write(folder, &plans, &results, &options)?;
    print!("{}", report::text(&plans, &results, &options));
    println!("report: {}", folder.join("report.html").display());
    Ok(())
}

/// Draws the core's estimates for each path of a case, and writes both ends' event traces into the folder `qlog`.
pub(crate) fn trace(key: &str, seed: Seed, length: Duration, picture: &Path, qlog: Option<&Path>) -> CommandResult {
    let plans = selected(&[key.to_owned()])?;
    let [plan] = plans.as_slice() else {
        return Err(format!("{key} is several experiments; hint: mpt-lab list").into());
    };
    let [case] = plan.cases.as_slice() else {
        return Err(format!("{key} is {} cases; hint: {key}/CASE, see mpt-lab list", plan.cases.len()).into());
    };
    chart::draw(picture, &trace::trace(case, seed, length, qlog)?)?;
    println!("{}", picture.display());
    if let Some(folder) = qlog {
        println!("{}", folder.display());
    }
    Ok(())
}

/// Computes the simulator's figures and prints the differences to the committed files, or writes these files.
pub(crate) fn matrix(accept: bool) -> CommandResult {
    check_source_tree(matrix::FILE)?;
    let computed = matrix::compute(&progress("matrix"))?;
    ProgressBar::default().end();
    let mut changes = 0;
    for (file, computed) in [(matrix::FILE, computed.matrix), (matrix::JOURNALS, computed.journals)] {
        changes += print_changes(file, &computed);
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

/// Computes the committed mixes, prints the differences to their file, and writes it.
pub(crate) fn accept_population() -> CommandResult {
    check_source_tree(committed::FILE)?;
    let computed = committed::compute(0..committed::CASES, &progress("population"));
    ProgressBar::default().end();
    print_changes(committed::FILE, &computed);
    fs::write(committed::FILE, computed)?;
    Ok(())
}

/// Fails early, before the runs, if the folder of a committed file does not exist here.
fn check_source_tree(file: &str) -> CommandResult {
    match Path::new(file).parent().is_some_and(Path::is_dir) {
        true => Ok(()),
        false => Err(format!("{file} not found; hint: run this in the root of the source tree").into()),
    }
}

/// Prints the lines in which a committed file differs from the computed text, and returns their number.
fn print_changes(file: &str, computed: &str) -> usize {
    let committed = fs::read_to_string(file).unwrap_or_default();
    let changed = matrix::difference(&committed, computed);
    changed.iter().for_each(|line| println!("{line}"));
    changed.len()
}

/// Returns a function that shows the progress of parallel runs if stderr is a terminal.
pub(crate) fn progress(what: &str) -> impl Fn(usize, usize) + Sync {
    let (bar, what) = (Mutex::new(ProgressBar::default()), what.to_owned());
    move |step, of| {
        let share = step as f64 / of as f64;
        if stderr().is_terminal() {
            let progress = Progress { step, of, what: what.clone(), share, remaining: None };
            bar.lock().unwrap_or_else(PoisonError::into_inner).show(&progress);
        }
    }
}

fn write(folder: &Path, plans: &[Plan], results: &[CaseResult], options: &Options) -> CommandResult {
    let records = records(plans, results);
    fs::write(folder.join("results.csv"), record::csv(&records))?;
    let lines = records.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    fs::write(folder.join("results.json"), lines.join("\n") + "\n")?;
    fs::write(folder.join("report.html"), report::html(plans, results, options, &store::read_origin(folder))?)?;
    Ok(())
}

fn selected(keys: &[String]) -> Result<Vec<Plan>, Box<dyn Error>> {
    let mut plans: Vec<Plan> = Vec::new();
    for plan in keys.iter().map(|key| plan::select(key)).collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        match plans.iter_mut().find(|other| other.key == plan.key) {
            Some(known) => known.merge(plan),
            None => plans.push(plan),
        }
    }
    Ok(plans)
}

fn options(run: &RunArgs) -> Result<Options, Box<dyn Error>> {
    let known: Vec<&str> =
        Contender::NAMES.into_iter().chain(competitors::ALL.iter().map(|competitor| competitor.name)).collect();
    let against: Vec<String> = run.against.iter().filter(|name| *name != "none").cloned().collect();
    if let Some(name) = against.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("unknown contender '{name}'; hint: {}, none", known.join(", ")).into());
    }
    let mode = match run.mode {
        _ if run.original => Mode::Original,
        ModeArg::Native => Mode::Native,
        ModeArg::Plain => Mode::Plain,
    };
    let substrate = match run.substrate {
        SubstrateArg::Netns => Substrate::Netns,
        SubstrateArg::Emu => Substrate::Emu,
        SubstrateArg::Sim => Substrate::Sim,
    };
    let (keys, build) = (run.keys.clone(), build());
    Ok(Options { keys, quick: run.quick, seed: run.seed, substrate, mode, against, build })
}

/// Returns the commit of the source tree in whose target folder this program is; of an installed program, the version.
fn build() -> String {
    let program = env::current_exe().unwrap_or_default();
    let git = process::Command::new("git")
        .arg("-C")
        .arg(program.parent().unwrap_or(Path::new("/")))
        .args(["describe", "--always", "--dirty", "--abbrev=10"])
        .stderr(process::Stdio::null())
        .output();
    let text = git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() { env!("MPT_VERSION").to_owned() } else { text }
}

/// Returns the default folder. It depends only on the options, so that the same command continues its run.
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

/// Prints what could not be measured; each reason once.
fn report_absent(results: &[CaseResult]) {
    let mut reported: Vec<String> = Vec::new();
    for outcome in results.iter().flat_map(|result| &result.outcomes) {
        let line = outcome.absent.as_ref().map(|why| format!("absent: {}: {why}", outcome.name));
        reported.extend(line.filter(|line| !reported.contains(line)));
    }
    reported.iter().for_each(|line| eprintln!("{line}"));
    let faults: u64 = results.iter().map(|result| result.faults).sum();
    if faults > 0 {
        eprintln!("warning: the wire missed {faults} frames; hint: mpt-lab selftest");
    }
}
