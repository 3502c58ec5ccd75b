//! Ablation: paired runs of the simulator with all rules of the core and without some.
//!
//! ```text
//! all cases x screening seeds -> values with and without the rule -> the five cases that the rule helps most
//! these five x other seeds    -> values with and without the rule -> log-ratio of each pair -> effect, verdict
//! ```
//!
//! Both runs of a pair have the same seed, so the links draw the same random numbers. A log-ratio is positive if the
//! rule helps, also where smaller values are better. Results depend only on the arguments.
//!
//! The cases are selected and measured with different seeds. With the same seeds for both, the selection would prefer
//! cases with positive noise, and a rule without effect would seem to help.

mod cases;
pub mod lines;
pub mod report;
mod run;
mod stats;

pub use cases::{AblationCase, Set, cases, mix};
pub use run::Quantity;
pub(super) use run::call_beside_a_flow;
pub use stats::{Estimate, median};

use super::parallel;
use mpt_proto::tuning::Tuning;
use mpt_sim::seed::Seed;
use std::collections::HashMap;

/// The values of one run: those of [`AblationCase::quantities`], or none if the case cannot be simulated.
type Values = Option<Vec<f64>>;

/// An ablation of several rules, one after another. The runs with all rules are made once.
#[derive(Debug)]
pub struct Ablation {
    cases: Vec<AblationCase>,
    screening: u64,
    seeds: u64,
    /// Values with all rules by case and seed.
    with: HashMap<(usize, u64), Values>,
}

impl Ablation {
    /// Returns an ablation that selects cases with seeds 1 to `screening` and measures them with the next `seeds`.
    pub fn new(cases: Vec<AblationCase>, screening: u64, seeds: u64) -> Self {
        Self { cases, screening, seeds, with: HashMap::new() }
    }

    /// Measures the rules that `tuning` switches off.
    pub fn measure(&mut self, tuning: Tuning, progress: &(dyn Fn(usize, usize) + Sync)) -> Comparison {
        let all: Vec<usize> = (0..self.cases.len()).collect();
        let screened = self.effects(&all, 1..=self.screening, tuning, progress);
        let mut order: Vec<&Effect> = screened.iter().collect();
        order.sort_by(|a, b| b.estimate().mean.total_cmp(&a.estimate().mean));
        order.truncate(MOST_HELPED);
        let mut selected: Vec<usize> = order.iter().map(|effect| effect.number).collect();
        selected.sort_unstable();
        selected.dedup();
        let measured = self.effects(&selected, self.screening + 1..=self.screening + self.seeds, tuning, progress);
        let find = |effect: &&Effect| {
            let same = |other: &&Effect| (other.number, other.quantity) == (effect.number, effect.quantity);
            measured.iter().find(same).cloned()
        };
        Comparison { most_helped: order.iter().filter_map(find).collect(), screened }
    }

    /// Runs the cases of these numbers with and without the rules. Runs without a value are omitted.
    fn effects(
        &mut self,
        numbers: &[usize],
        seeds: std::ops::RangeInclusive<u64>,
        tuning: Tuning,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Vec<Effect> {
        let keys: Vec<(usize, u64)> =
            numbers.iter().flat_map(|number| seeds.clone().map(move |seed| (*number, seed))).collect();
        let missing: Vec<(usize, u64)> = keys.iter().filter(|key| !self.with.contains_key(key)).copied().collect();
        let jobs: Vec<((usize, u64), Tuning)> =
            missing.iter().map(|key| (*key, Tuning::default())).chain(keys.iter().map(|key| (*key, tuning))).collect();
        let run = |job: usize| {
            let ((number, seed), tuning) = jobs[job];
            self.cases[number].run(Seed(seed), tuning)
        };
        let mut values = parallel::map(jobs.len(), run, progress).into_iter();
        self.with.extend(missing.iter().copied().zip(values.by_ref().take(missing.len())));
        let mut without = keys.into_iter().zip(values).peekable();
        let mut effects = Vec::new();
        for number in numbers {
            let mut pairs: Vec<(Vec<f64>, Vec<f64>)> = Vec::new();
            while let Some((key, values)) = without.next_if(|((case, _), _)| case == number) {
                pairs.extend(self.with[&key].clone().zip(values));
            }
            if !pairs.is_empty() {
                effects.extend(Effect::of(*number, &self.cases[*number], &pairs));
            }
        }
        effects
    }
}

/// Number of cases on which a rule is judged.
pub const MOST_HELPED: usize = 5;

/// The effect of a rule on one quantity of a case.
#[derive(Clone, Debug)]
pub struct Effect {
    number: usize,
    /// Set of the case.
    pub set: Set,
    /// Name of the case.
    pub case: String,
    /// The quantity.
    pub quantity: Quantity,
    /// Values with all rules, by seed.
    pub with: Vec<f64>,
    /// Values without the rule, by seed.
    pub without: Vec<f64>,
    /// Log-ratios of the pairs, positive if the rule helps.
    pub log_ratios: Vec<f64>,
}

impl Effect {
    /// Returns the effects on each quantity of a case, from its runs with and without the rule.
    fn of(number: usize, case: &AblationCase, pairs: &[(Vec<f64>, Vec<f64>)]) -> Vec<Self> {
        let of = |(column, quantity): (usize, &Quantity)| {
            let (with, without): (Vec<f64>, Vec<f64>) =
                pairs.iter().map(|(with, without)| (with[column], without[column])).unzip();
            let log = |(with, without): (&f64, &f64)| log_ratio(*with, *without, quantity.smaller_is_better);
            let log_ratios = with.iter().zip(&without).map(log).collect();
            Self { number, set: case.set, case: case.name.clone(), quantity: *quantity, with, without, log_ratios }
        };
        case.quantities().iter().enumerate().map(of).collect()
    }

    /// Returns the ratio of the medians, above 1 if the rule helps.
    pub fn ratio(&self) -> f64 {
        log_ratio(median(&self.with), median(&self.without), self.quantity.smaller_is_better).exp()
    }

    /// Returns the mean of the log-ratios.
    pub fn estimate(&self) -> Estimate {
        Estimate::of(&self.log_ratios)
    }
}

/// Returns the logarithm of the ratio, limited to that of [`MAX_RATIO`]; zero if both values are equal.
fn log_ratio(with: f64, without: f64, smaller_is_better: bool) -> f64 {
    if with == without {
        return 0.0;
    }
    let ratio = if smaller_is_better { without / with } else { with / without };
    ratio.clamp(1.0 / MAX_RATIO, MAX_RATIO).ln()
}

/// A value of zero, from a run that carried nothing, would make the mean infinite.
const MAX_RATIO: f64 = 100.0;

/// The effects of a rule.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Effects on all cases, with the screening seeds.
    pub screened: Vec<Effect>,
    /// Effects on the cases that the rule helps most, best first, with the other seeds.
    pub most_helped: Vec<Effect>,
}

impl Comparison {
    /// Returns the mean log-ratio of the cases that the rule helps most. The interval is that of fixed cases and random
    /// seeds.
    pub fn of_most_helped(&self) -> Estimate {
        let groups: Vec<Vec<f64>> = self.most_helped.iter().map(|effect| effect.log_ratios.clone()).collect();
        Estimate::of_groups(&groups)
    }

    /// Returns the mean log-ratio of all cases. The interval takes the cases as a random sample.
    pub fn of_all(&self) -> Estimate {
        let means: Vec<f64> = self.screened.iter().map(|effect| effect.estimate().mean).collect();
        Estimate::of(&means)
    }

    /// Returns true if no run differs: the rule has no effect on these cases.
    pub fn is_equal(&self) -> bool {
        self.screened.iter().chain(&self.most_helped).all(|effect| effect.with == effect.without)
    }
}

/// Answer to the question of what switching a rule off costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AblationVerdict {
    /// More than 1 %, with 95 % confidence.
    CostsMore,
    /// Less than 1 %, with 95 % confidence.
    CostsLess,
    /// The interval contains 1 %.
    Undecided,
}

impl AblationVerdict {
    /// Returns the verdict on a mean log-ratio; undecided without an interval.
    pub fn on(estimate: Estimate) -> Self {
        match (estimate.low(), estimate.high()) {
            (Some(low), _) if low > one_percent() => Self::CostsMore,
            (_, Some(high)) if high < one_percent() => Self::CostsLess,
            _ => Self::Undecided,
        }
    }

    /// Returns the text of the verdict for a table.
    pub fn text(self) -> &'static str {
        match self {
            Self::CostsMore => "costs more than 1 %",
            Self::CostsLess => "costs less than 1 %",
            Self::Undecided => "undecided",
        }
    }
}

/// Log-ratio of a rule without which 99 % remain.
fn one_percent() -> f64 {
    -(0.99f64.ln())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpt_proto::tuning::Heuristic;
    use std::time::Duration;

    #[test]
    fn a_ratio_above_one_means_that_the_rule_helps() {
        assert!((log_ratio(20.0, 10.0, false).exp() - 2.0).abs() < 1e-12);
        assert!((log_ratio(10.0, 20.0, true).exp() - 2.0).abs() < 1e-12);
        assert_eq!((log_ratio(0.0, 0.0, false), log_ratio(1.0, 0.0, false)), (0.0, MAX_RATIO.ln()));
    }

    #[test]
    fn the_selection_and_the_estimate_use_different_seeds() {
        let few = cases(Set::Mixes, 7, Some(Duration::from_secs(1)));
        let mut ablation = Ablation::new(few, 1, 2);
        let comparison = ablation.measure(Tuning::default().without(Heuristic::HeaderCompression), &|_, _| ());
        assert_eq!((comparison.screened.len(), comparison.most_helped.len()), (7, 5));
        assert!(comparison.screened.iter().all(|effect| effect.log_ratios.len() == 1));
        assert!(comparison.most_helped.iter().all(|effect| effect.log_ratios.len() == 2));
        let screened = |effect: &Effect| comparison.screened[effect.number].estimate().mean;
        assert!(comparison.most_helped.windows(2).all(|pair| screened(&pair[0]) >= screened(&pair[1])));
        assert!(!comparison.is_equal() && comparison.of_most_helped().half.is_some());
        // Another rule needs the screening runs of only one tuning.
        let runs = std::sync::atomic::AtomicUsize::new(0);
        let count = |_, of| runs.store(of, std::sync::atomic::Ordering::Relaxed);
        ablation.screening = 1;
        ablation.seeds = 0;
        assert!(ablation.measure(Tuning::default(), &count).is_equal());
        assert_eq!(runs.into_inner(), 7);
    }

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let on = |mean, half| AblationVerdict::on(Estimate { mean, half });
        assert_eq!(on(0.05, Some(0.02)), AblationVerdict::CostsMore);
        assert_eq!(on(0.05, Some(0.045)), AblationVerdict::Undecided);
        assert_eq!(on(-0.05, Some(0.02)), AblationVerdict::CostsLess);
        assert_eq!(on(0.05, None), AblationVerdict::Undecided);
    }
}
