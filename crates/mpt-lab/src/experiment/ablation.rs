//! Ablation: the effect of a rule of the core on goodput, from pairs of simulations with and without it.
//!
//! ```text
//! set of cases x seeds -> Simulation with all rules  \
//!                      -> Simulation without the rule -> ln(with / without) of each pair -> Effect, verdict
//! ```
//!
//! Both runs of a pair have the same seed, so the links' loss and jitter follow the same random numbers. Effects are
//! means of log-ratios: a gain of a factor and a loss by the same factor cancel, and slow cases weigh as much as fast
//! ones.
//!
//! The five cases that a rule helps most are chosen by the first half of the seeds and measured by the second half.
//! With the same seeds for both, the choice would favour cases with positive noise, and a rule without effect would
//! seem to help.
//!
//! Intervals treat the pairs of all cases and seeds as independent. They hold for these cases: a set of other cases may
//! have another mean.

use super::{contender::Contender, mixes::mixes, parallel, sim::Simulation};
use crate::{
    error::Result,
    plan::{Case, Metric, select},
    tunnel::Mode,
};
use mpt_proto::tuning::Tuning;
use mpt_sim::seed::Seed;
use std::{fmt, time::Duration};

/// Set of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseSet {
    /// The plans E1.IV, static, dynamic and E3.
    Matrix,
    /// This number of random link mixes.
    Mixes(usize),
}

/// Cases and seeds of an ablation.
#[derive(Debug)]
pub struct Ablation {
    /// Names for the output, and the cases.
    cases: Vec<(String, Case)>,
    seeds: u64,
    length: Duration,
}

/// Goodput in Mbit/s by case and seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Goodputs(Vec<Vec<f64>>);

impl Ablation {
    /// Returns an ablation over `set`; every case runs for `length` with each of `seeds` seeds, at least one.
    pub fn new(set: CaseSet, seeds: u64, length: Duration) -> Self {
        let cases = match set {
            CaseSet::Matrix => matrix_cases(),
            CaseSet::Mixes(count) => mixes(count).into_iter().map(|case| (case.name.clone(), case)).collect(),
        };
        Self { cases, seeds: seeds.max(1), length }
    }

    /// Runs all cases with all seeds on all processors. `progress` gets the number of finished runs and the total.
    ///
    /// # Errors
    /// Returns the first error of a simulation.
    pub fn run(&self, tuning: Tuning, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Goodputs> {
        let seeds = self.seeds as usize;
        let run = |number: usize| self.goodput(number / seeds, (number % seeds) as u64 + 1, tuning);
        let runs: Result<Vec<f64>> = parallel::map(self.cases.len() * seeds, run, progress).into_iter().collect();
        Ok(Goodputs(runs?.chunks(seeds).map(<[f64]>::to_vec).collect()))
    }

    /// Runs one case. Seed 1 is that of the committed matrix.
    fn goodput(&self, case: usize, seed: u64, tuning: Tuning) -> Result<f64> {
        let (name, case) = &self.cases[case];
        let seed = Seed(seed).fork(name).fork("repetition 0");
        let simulation = Simulation { case, mode: Mode::Native, tuning, seed, length: self.length, quick: true };
        Ok(simulation.run(Contender::Mpt)?.metrics.get(&Metric::Goodput).copied().unwrap_or_default())
    }

    /// Compares the runs with all rules and those without some of them.
    pub fn compare(&self, with: &Goodputs, without: &Goodputs) -> Comparison<'_> {
        // A run that delivers nothing counts as one packet, so that its logarithm exists.
        let least = PACKET_BITS * 1e-6 / self.length.as_secs_f64();
        let ratio = |(with, without): (&f64, &f64)| (with.max(least) / without.max(least)).ln();
        let pairs = || with.0.iter().zip(&without.0);
        let logs: Vec<Vec<f64>> = pairs().map(|(a, b)| a.iter().zip(b).map(ratio).collect()).collect();
        let medians = pairs().map(|(a, b)| [median(a), median(b)]).collect();
        Comparison { ablation: self, medians, best: self.best(&logs), logs }
    }

    /// Returns the cases with the highest mean over the first half of the seeds, best first; none with too few seeds.
    fn best(&self, logs: &[Vec<f64>]) -> Vec<usize> {
        if self.seeds < MIN_SEEDS {
            return Vec::new();
        }
        let mean = |case: usize| logs[case][..self.first_half()].iter().sum::<f64>();
        let mut order: Vec<usize> = (0..logs.len()).collect();
        order.sort_by(|a, b| mean(*b).total_cmp(&mean(*a)));
        order.truncate(BEST_CASES);
        order
    }

    fn first_half(&self) -> usize {
        self.seeds as usize / 2
    }
}

/// Runs with and without a rule, compared.
#[derive(Debug)]
pub struct Comparison<'a> {
    ablation: &'a Ablation,
    /// Median goodput with and without the rule, by case.
    medians: Vec<[f64; 2]>,
    /// Logarithm of the ratio of each pair, by case and seed.
    logs: Vec<Vec<f64>>,
    best: Vec<usize>,
}

impl Comparison<'_> {
    /// Returns the effect on all cases with all seeds.
    pub fn on_all(&self) -> Effect {
        Effect::of(self.logs.concat())
    }

    /// Returns the effect on the five cases that the rule helps most, with the seeds that did not choose them. It is
    /// absent with fewer than [`MIN_SEEDS`] seeds.
    pub fn on_best(&self) -> Option<Effect> {
        let half = self.ablation.first_half();
        let logs: Vec<f64> = self.best.iter().flat_map(|case| &self.logs[*case][half..]).copied().collect();
        (!logs.is_empty()).then(|| Effect::of(logs))
    }

    /// Returns `keeps` if the lower bound of the effect on the best cases is above 1.01, else `drops`.
    pub fn verdict(&self) -> &'static str {
        match self.on_best() {
            None => "none",
            Some(best) if best.low > MIN_EFFECT => "keeps",
            Some(_) if self.logs.iter().flatten().all(|log| *log == 0.0) => "drops (no run differs)",
            Some(_) => "drops",
        }
    }

    /// Returns the row of a rule in the Markdown table; [`TABLE_HEAD`] is its head.
    pub fn row(&self, rule: &str) -> String {
        let names: Vec<&str> = self.best.iter().map(|case| self.ablation.cases[*case].0.as_str()).collect();
        let best = self.on_best().map_or("-".into(), |effect| effect.to_string());
        format!("| `{rule}` | {} | {best} | {} | {} |", names.join(", "), self.on_all(), self.verdict())
    }
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24} {:>10} {:>10} {:>8}", "case (Mbit/s, median)", "with", "without", "ratio")?;
        for ((name, _), [with, without]) in self.ablation.cases.iter().zip(&self.medians) {
            writeln!(f, "{name:<24} {with:>10.3} {without:>10.3} {:>8.3}", with / without)?;
        }
        let seeds = self.ablation.seeds;
        writeln!(f, "\neffect: with / without, mean of the paired log-ratios, 95 % interval (t over cases x seeds)")?;
        writeln!(f, "all cases, all {seeds} seeds: {}", self.on_all())?;
        let Some(best) = self.on_best() else {
            let why = format!("no verdict: it needs at least {MIN_SEEDS} seeds, half of them to choose the best cases");
            return writeln!(f, "{why}");
        };
        let half = self.ablation.first_half();
        writeln!(f, "{} best cases: {best}, seeds {} to {seeds}", self.best.len(), half + 1)?;
        writeln!(f, "their choice: seeds 1 to {half}")?;
        for (name, case) in self.best.iter().map(|case| &self.ablation.cases[*case]) {
            let paths: Vec<String> = case.paths.iter().map(ToString::to_string).collect();
            writeln!(f, "    {name}: {}", paths.join(" + "))?;
        }
        writeln!(f, "verdict: {}", self.verdict())
    }
}

/// Mean ratio of goodputs, with / without a rule; above 1 the rule helps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Geometric mean of the ratios.
    pub mean: f64,
    /// Lower bound of its 95 % confidence interval.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Effect {
    /// Student's interval for the mean of the logarithms. One pair has no bounds.
    fn of(logs: Vec<f64>) -> Self {
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let margin = match logs.len() {
            0 | 1 => f64::INFINITY,
            pairs => t_quantile(pairs - 1) * (variance / count).sqrt(),
        };
        Self { mean: mean.exp(), low: (mean - margin).exp(), high: (mean + margin).exp() }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.mean, self.low, self.high)
    }
}

fn matrix_cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for key in MATRIX_PLANS {
        for plan in select(key).expect("a plan of the catalogue") {
            cases.extend(plan.cases.into_iter().map(|case| (format!("{}/{}", plan.key, case.name), case)));
        }
    }
    cases
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}

/// Returns the 97.5 % quantile of Student's t distribution, to 0.001: a table, above it the expansion 26.7.5 of
/// Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964.
fn t_quantile(freedom: usize) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    const X: f64 = 1.959_964;
    if (1..=TABLE.len()).contains(&freedom) {
        return TABLE[freedom - 1];
    }
    let n = freedom as f64;
    let first = (X.powi(3) + X) / 4.0;
    let second = (5.0 * X.powi(5) + 16.0 * X.powi(3) + 3.0 * X) / 96.0;
    let third = (3.0 * X.powi(7) + 19.0 * X.powi(5) + 17.0 * X.powi(3) - 15.0 * X) / 384.0;
    X + first / n + second / n.powi(2) + third / n.powi(3)
}

/// Head of the Markdown table of all rules.
pub const TABLE_HEAD: &str = "\
| rule | five cases it helps most | effect on them (95 %) | effect on all (95 %) | verdict |
|---|---|---|---|---|";

/// Number of seeds for a verdict: two choose the best cases and two measure them.
pub const MIN_SEEDS: u64 = 4;

/// Effect on the best cases that justifies the code of a rule.
const MIN_EFFECT: f64 = 1.01;
const BEST_CASES: usize = 5;
const PACKET_BITS: f64 = 1_500.0 * 8.0;

/// Plans in which a rule can show an effect within seconds: loss, the link profiles, links that change, and the WAN.
const MATRIX_PLANS: [&str; 4] = ["E1.IV", "static", "dynamic", "E3"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_a_t_table() {
        let table =
            [(1, 12.706), (4, 2.776), (10, 2.228), (11, 2.201), (15, 2.131), (30, 2.042), (60, 2.000), (120, 1.980)];
        for (freedom, quantile) in table {
            assert!((t_quantile(freedom) - quantile).abs() < 0.000_6, "{freedom}: {}", t_quantile(freedom));
        }
    }

    #[test]
    fn an_interval_is_that_of_the_t_distribution() {
        // Mean 0.03, deviation 0.0158114, four degrees of freedom: 2.776 * 0.0158114 / sqrt(5) = 0.019629.
        let effect = Effect::of(vec![0.01, 0.02, 0.03, 0.04, 0.05]);
        for (bound, log) in [(effect.mean, 0.03), (effect.low, 0.010_371), (effect.high, 0.049_629)] {
            assert!((bound.ln() - log).abs() < 1e-5, "{effect:?}");
        }
        assert_eq!((Effect::of(vec![0.0]).low, Effect::of(vec![0.0]).high), (0.0, f64::INFINITY));
    }

    #[test]
    fn the_best_cases_are_chosen_and_measured_with_different_seeds() {
        let ablation = Ablation::new(CaseSet::Mixes(7), 4, Duration::from_secs(1));
        let with = Goodputs((1..=7).map(|case| vec![1.0 + f64::from(case), 1.0 + f64::from(case), 1.0, 1.0]).collect());
        let comparison = ablation.compare(&with, &Goodputs(vec![vec![1.0; 4]; 7]));
        assert_eq!(comparison.best, [6, 5, 4, 3, 2]);
        assert_eq!(comparison.on_best(), Some(Effect { mean: 1.0, low: 1.0, high: 1.0 }));
        assert_eq!(comparison.verdict(), "drops");
    }

    #[test]
    fn a_rule_is_kept_if_it_helps_in_its_best_cases() {
        let ablation = Ablation::new(CaseSet::Mixes(6), 4, Duration::from_secs(1));
        let goodputs = |value: f64| Goodputs(vec![vec![value; 4]; 6]);
        assert_eq!(ablation.compare(&goodputs(1.02), &goodputs(1.0)).verdict(), "keeps");
        assert_eq!(ablation.compare(&goodputs(1.005), &goodputs(1.0)).verdict(), "drops");
        assert_eq!(ablation.compare(&goodputs(1.0), &goodputs(1.0)).verdict(), "drops (no run differs)");
        let few = Ablation::new(CaseSet::Mixes(6), 3, Duration::from_secs(1));
        assert_eq!(few.compare(&goodputs(1.02), &goodputs(1.0)).verdict(), "none");
    }

    #[test]
    fn a_pair_with_the_same_rules_has_ratio_one_and_other_rules_change_the_run() {
        let ablation = Ablation::new(CaseSet::Mixes(2), 1, Duration::from_secs(1));
        let run = |tuning| ablation.run(tuning, &|_, _| ()).expect("the simulator runs mixes");
        let with = run(Tuning::default());
        assert!(with.0.concat().iter().all(|goodput| *goodput > 0.0));
        let same = ablation.compare(&with, &run(Tuning::default())).on_all();
        assert_eq!(same, Effect { mean: 1.0, low: 1.0, high: 1.0 });
        let rule = mpt_proto::tuning::Rule::HeaderCompression;
        assert_ne!(with, run(Tuning::default().without(rule)));
    }
}
