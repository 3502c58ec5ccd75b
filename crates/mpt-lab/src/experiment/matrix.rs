//! The simulator's figures for the catalogue as one committed text, so that every change of the core that affects a
//! figure shows up as a diff to be reviewed and accepted.
//!
//! Runs are short: a few seconds, enough to include slow start. Effects of the flow's own queue and of changing links
//! appear later, so plans about them also run MPT for the length of an experiment. Figures are rounded to what a user
//! would notice.

use super::{ceiling, contender::Contender, parallel, result::Run, sim::Simulation};
use crate::{
    plan::{Case, Metric, Plan, Problem, select},
    tunnel::Mode,
};
use mpt_proto::tuning::Tuning;
use mpt_sim::seed::Seed;
use std::time::Duration;

/// File of the matrix, relative to the root of the source tree.
pub const FILE: &str = "lab/matrix.txt";

/// Journals of the same runs. They change with every datagram, whereas the figures are rounded.
pub const JOURNALS: &str = "lab/journals/matrix.txt";

/// The figures and the journals of their runs.
#[derive(Debug)]
pub struct Computed {
    /// The text of [`FILE`].
    pub matrix: String,
    /// The text of [`JOURNALS`].
    pub journals: String,
}

/// Command that accepts changes.
pub const ACCEPT: &str = "cargo run -p mpt-lab -- matrix --accept";

/// Runs all cases on all processors. `progress` gets the number of finished cases and the total.
///
/// # Errors
/// Returns the first error in a plan of the catalogue.
pub fn compute(progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Computed, Problem> {
    let plans = plans();
    let mut cases = Vec::new();
    for (plan, length) in &plans {
        cases.extend(plan.cases.iter().map(|case| MatrixRow { plan, case, length: *length }));
    }
    let lines = parallel::map(cases.len(), |number| cases[number].line(), progress);
    let (figures, journals): (String, String) = lines.into_iter().unzip();
    Ok(Computed { matrix: HEAD.to_owned() + &figures, journals })
}

/// Returns the plans of the matrix with the length of a run.
pub(super) fn plans() -> Vec<(Plan, Duration)> {
    let of = |(key, seconds)| {
        let plans = select(key).expect("a plan of the catalogue");
        plans.into_iter().map(move |plan| (plan, Duration::from_secs(seconds)))
    };
    PLANS.into_iter().flat_map(of).collect()
}

/// Returns the lines in which two matrices differ: old ones with a minus, new ones with a plus.
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

struct MatrixRow<'a> {
    plan: &'a Plan,
    case: &'a Case,
    length: Duration,
}

impl MatrixRow<'_> {
    /// Returns the case's figures and the journals of its tunnels.
    fn line(&self) -> (String, String) {
        let Self { plan, case, length } = *self;
        let ours = self.run(Contender::Mpt, Mode::Native, length);
        let metric = |metric| ours.as_ref().and_then(|run| run.metrics.get(&metric).copied());
        // Equal paths have equal results, so each distinct path runs once.
        let is_distinct = |path: &usize| !case.paths[..*path].contains(&case.paths[*path]);
        let alone = (0..case.paths.len()).filter(is_distinct);
        let alone = alone.filter_map(|path| self.goodput(Contender::Solo(path), Mode::Native, length));
        let ceiling = |length| ceiling::of(case, Mode::Native, length, true);
        let share = |mbit: Option<f64>, length| Some(mbit? / ceiling(length)? * 100.0);
        let is_of = |plans: &[&str]| plans.contains(&plan.key.as_str());
        let run_if =
            |condition: bool, mode, length| condition.then(|| self.run(Contender::Mpt, mode, length)).flatten();
        let long = run_if(is_of(&LONG_PLANS), Mode::Native, LONG_RUN);
        let original = run_if(is_of(&ORIGINAL_PLANS), Mode::Original, length);
        let goodput = |run: &Option<Run>| run.as_ref()?.metrics.get(&Metric::Goodput).copied();
        let name = format!("{}/{}", plan.key, case.name);
        let figures = [
            ceiling(length).map(tenths),
            alone.max_by(f64::total_cmp).map(tenths),
            self.goodput(Contender::Ideal, Mode::Native, length).map(tenths),
            metric(Metric::Goodput).map(tenths),
            share(metric(Metric::Goodput), length).map(whole),
            share(goodput(&long), LONG_RUN).map(whole),
            metric(Metric::Gap).map(whole),
            metric(Metric::Recovery).map(whole),
            goodput(&original).map(tenths),
        ];
        let cells = figures.map(|figure| format!(" {:>9}", figure.unwrap_or_else(|| "-".into())));
        let journal = |run: &Option<Run>| run.as_ref().map_or("-".into(), |run| format!("{:016x}", run.journal));
        let journals = [ours, long, original].map(|run| format!(" {:>16}", journal(&run)));
        (format!("{name:<24}{}\n", cells.concat()), format!("{name:<24}{}\n", journals.concat()))
    }

    fn run(&self, contender: Contender, mode: Mode, length: Duration) -> Option<Run> {
        let Self { plan, case, .. } = *self;
        let seed = Seed(1).fork(&format!("{}/{}", plan.key, case.name)).fork("repetition 0");
        let (tuning, offset) = (Tuning::default(), Duration::ZERO);
        Simulation { case, mode, tuning, seed, length, quick: true, offset }.run(contender).ok()
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

/// Plans with seconds per case. Outages use the event times of a quick run; 10 s include changes of varying links.
const PLANS: [(&str, u64); 8] =
    [("E1.I", 3), ("E1.II", 3), ("E1.III", 3), ("E1.IV", 3), ("E3", 5), ("static", 5), ("dynamic", 10), ("outages", 7)];

/// Length of a run in an experiment.
const LONG_RUN: Duration = Duration::from_secs(30);
/// Plans in which MPT also runs for `LONG_RUN`.
const LONG_PLANS: [&str; 6] = ["E1.I", "E1.II", "E1.III", "E1.IV", "static", "dynamic"];

/// Plans whose published collapse is caused by static shares.
const ORIGINAL_PLANS: [&str; 3] = ["E1.I", "E1.II", "E1.IV"];

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
    fn a_difference_shows_changed_added_and_removed_lines() {
        let (old, new) = ("E1/0  1 2\nE1/1  5\nE1/2  3\n", "E1/0  1 4\nE1/1  5\nE1/3  7\n");
        assert_eq!(difference(old, new), ["-E1/0  1 2", "+E1/0  1 4", "-E1/2  3", "+E1/3  7"]);
        assert!(difference(old, old).is_empty());
    }

    #[test]
    fn the_file_contains_the_command_that_accepts_it() {
        assert!(HEAD.contains(ACCEPT));
    }
}
