//! The simulator's figures for the catalogue as one text, which is committed: what a change of the core does to any of them is
//! a diff that somebody looks at and accepts.
//!
//! Runs are as short as still tells something: long enough for a flow to get through its beginning. What it makes of its own queue, and of
//! links that change, shows later: where that is the question MPT is run for as long as an experiment as well. Figures are rounded to what
//! a person would notice.

use super::{ceiling, contender::Contender, result::Run, sim::Simulation};
use crate::{
    plan::{Case, Metric, Plan, Problem, select},
    tunnel::Mode,
};
use mpt_sim::seed::Seed;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// Where it is kept, from the root of the source tree.
pub const FILE: &str = "lab/matrix.txt";

/// The journals of the same runs: they change with every datagram, where the figures are rounded.
pub const JOURNALS: &str = "lab/journals/matrix.txt";

/// The figures, and the journals of the runs that gave them.
#[derive(Debug)]
pub struct Computed {
    /// The text of [`FILE`].
    pub matrix: String,
    /// The text of [`JOURNALS`].
    pub journals: String,
}

/// What accepts its changes.
pub const ACCEPT: &str = "cargo run -p mpt-lab -- matrix --accept";

/// Runs all of it on all processors. `progress` is told how many cases are done, and of how many.
///
/// # Errors
/// What is wrong with a plan of the catalogue.
pub fn compute(progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Computed, Problem> {
    let mut plans = Vec::new();
    for (key, seconds) in PLANS {
        let length = Duration::from_secs(seconds);
        plans.extend(select(key).expect("a plan of the catalogue").into_iter().map(|plan| (plan, length)));
    }
    let mut cases = Vec::new();
    for (plan, length) in &plans {
        cases.extend(plan.cases.iter().map(|case| Row { plan, case, length: *length }));
    }
    let lines: Vec<Mutex<(String, String)>> = cases.iter().map(|_| Mutex::default()).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((number, row)) = Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((n, cases.get(n)?)))
                {
                    *lines[number].lock().unwrap_or_else(PoisonError::into_inner) = row.line();
                    progress(done.fetch_add(1, Relaxed) + 1, cases.len());
                }
            });
        }
    });
    let lines = lines.into_iter().map(|line| line.into_inner().unwrap_or_else(PoisonError::into_inner));
    let (figures, journals): (String, String) = lines.unzip();
    Ok(Computed { matrix: HEAD.to_owned() + &figures, journals })
}

/// The lines in which two matrices differ: those of the old one with a minus, those of the new one with a plus.
pub fn difference(old: &str, new: &str) -> Vec<String> {
    let rows = |text: &'_ str| -> Vec<(String, String)> {
        let named = |line: &str| Some((line.split_whitespace().next()?.to_owned(), line.to_owned()));
        text.lines().filter(|line| !line.starts_with('#')).filter_map(named).collect()
    };
    let (old, new) = (rows(old), rows(new));
    let find = |rows: &[(String, String)], name: &str| rows.iter().find(|row| row.0 == name).map(|row| row.1.clone());
    let mut lines = Vec::new();
    for (name, line) in &old {
        let other = find(&new, name);
        if other.as_ref() != Some(line) {
            lines.push(format!("-{line}"));
            lines.extend(other.map(|line| format!("+{line}")));
        }
    }
    lines.extend(new.iter().filter(|row| find(&old, &row.0).is_none()).map(|row| format!("+{}", row.1)));
    lines
}

struct Row<'a> {
    plan: &'a Plan,
    case: &'a Case,
    length: Duration,
}

impl Row<'_> {
    /// The case's figures, and the journals of its tunnels.
    fn line(&self) -> (String, String) {
        let Self { plan, case, length } = *self;
        let ours = self.run(Contender::Mpt, Mode::Native, length);
        let metric = |metric| ours.as_ref().and_then(|run| run.metrics.get(&metric).copied());
        // Paths that are alike are alike alone.
        let unlike = |path: &usize| !case.paths[..*path].contains(&case.paths[*path]);
        let alone = (0..case.paths.len()).filter(unlike);
        let alone = alone.filter_map(|path| self.goodput(Contender::Solo(path), Mode::Native, length));
        let ceiling = |length| ceiling::of(case, Mode::Native, length, true);
        let share = |mbit: Option<f64>, length| Some(mbit? / ceiling(length)? * 100.0);
        let is_of = |plans: &[&str]| plans.contains(&plan.key.as_str());
        let run_if = |wanted: bool, mode, length| wanted.then(|| self.run(Contender::Mpt, mode, length)).flatten();
        let lasting = run_if(is_of(&LASTING), Mode::Native, LONG);
        let original = run_if(is_of(&ORIGINAL), Mode::Original, length);
        let goodput = |run: &Option<Run>| run.as_ref()?.metrics.get(&Metric::Goodput).copied();
        let name = format!("{}/{}", plan.key, case.name);
        let figures = [
            ceiling(length).map(tenths),
            alone.max_by(f64::total_cmp).map(tenths),
            self.goodput(Contender::Ideal, Mode::Native, length).map(tenths),
            metric(Metric::Goodput).map(tenths),
            share(metric(Metric::Goodput), length).map(whole),
            share(goodput(&lasting), LONG).map(whole),
            metric(Metric::Gap).map(whole),
            metric(Metric::Recovery).map(whole),
            goodput(&original).map(tenths),
        ];
        let cells = figures.map(|figure| format!(" {:>9}", figure.unwrap_or_else(|| "-".into())));
        let journal = |run: &Option<Run>| run.as_ref().map_or("-".into(), |run| format!("{:016x}", run.journal));
        let journals = [ours, lasting, original].map(|run| format!(" {:>16}", journal(&run)));
        (format!("{name:<24}{}\n", cells.concat()), format!("{name:<24}{}\n", journals.concat()))
    }

    fn run(&self, contender: Contender, mode: Mode, length: Duration) -> Option<Run> {
        let Self { plan, case, .. } = *self;
        let seed = Seed(1).fork(&format!("{}/{}", plan.key, case.name)).fork("repetition 0");
        Simulation { case, mode, seed, length, quick: true }.run(contender).ok()
    }

    fn goodput(&self, contender: Contender, mode: Mode, length: Duration) -> Option<f64> {
        self.run(contender, mode, length)?.metrics.get(&Metric::Goodput).copied()
    }
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

/// With seconds for each case: events of the outages are those of a quick run, and links that swing do so in ten.
const PLANS: [(&str, u64); 8] =
    [("E1.I", 3), ("E1.II", 3), ("E1.III", 3), ("E1.IV", 3), ("E3", 5), ("static", 5), ("dynamic", 10), ("outages", 7)];

/// As an experiment.
const LONG: Duration = Duration::from_secs(30);
/// Those in which MPT is run for so long as well.
const LASTING: [&str; 6] = ["E1.I", "E1.II", "E1.III", "E1.IV", "static", "dynamic"];

/// Those whose published collapse is one of static shares.
const ORIGINAL: [&str; 3] = ["E1.I", "E1.II", "E1.IV"];

const HEAD: &str = "\
# E1.I to E1.IV, E3, static, dynamic and outages in virtual time, one TCP flow for 3 to 10 s, seed 1: Mbit/s of payload, % of the ceiling, ms. best-path is the best path
# alone, ideal a single link of the summed rate, long the same in 30 s, original MPT with static shares and no resequencing.
# A change of the core changes this file: look at the difference, and accept it with
#     cargo run -p mpt-lab -- matrix --accept
# case                     ceiling best-path     ideal       mpt         %      long       gap  recovery  original
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_shows_both_lines_and_what_came_and_went() {
        let (old, new) = ("E1/0  1 2\nE1/1  5\nE1/2  3\n", "E1/0  1 4\nE1/1  5\nE1/3  7\n");
        assert_eq!(difference(old, new), ["-E1/0  1 2", "+E1/0  1 4", "-E1/2  3", "+E1/3  7"]);
        assert!(difference(old, old).is_empty());
    }

    #[test]
    fn the_file_says_how_it_is_accepted() {
        assert!(HEAD.contains(ACCEPT));
    }
}
