//! Ablation: paired runs of the simulator with all rules of the core and without some.
//!
//! ```text
//! cases x seeds -> parallel -> values with all rules   \
//!                           -> values without the rule -> log-ratio of each pair -> effect of a case -> summary
//! ```
//!
//! Both runs of a pair have the same seed, so the links draw the same random numbers. A log-ratio is positive if the
//! rule helps, also where smaller values are better. Results depend only on the arguments.

mod cases;
pub mod lines;
pub mod report;
mod run;
mod stats;

pub use cases::{AblationCase, Set, cases, mix};
pub use run::Quantity;
pub use stats::{Estimate, median};

use super::parallel;
use mpt_proto::tuning::Tuning;
use mpt_sim::seed::Seed;

/// The values of a case with one tuning: for each seed those of [`AblationCase::quantities`].
pub type Values = Vec<Option<Vec<f64>>>;

/// Runs all cases with seeds 1 to `seeds` on all processors.
pub fn measure(
    cases: &[AblationCase],
    seeds: u64,
    tuning: Tuning,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Vec<Values> {
    let runs: Vec<(&AblationCase, Seed)> =
        cases.iter().flat_map(|case| (1..=seeds).map(move |seed| (case, Seed(seed)))).collect();
    let mut values = parallel::map(&runs, |(case, seed)| case.run(*seed, tuning), progress).into_iter();
    cases.iter().map(|_| values.by_ref().take(seeds as usize).collect()).collect()
}

/// The effect of a rule on one quantity of a case.
#[derive(Clone, Debug)]
pub struct Effect {
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
    /// Returns the ratio of the medians, above 1 if the rule helps.
    pub fn ratio(&self) -> f64 {
        log_ratio(median(&self.with), median(&self.without), self.quantity.smaller_is_better).exp()
    }

    /// Returns the mean of the log-ratios.
    pub fn estimate(&self) -> Estimate {
        Estimate::of(&self.log_ratios)
    }
}

/// Pairs the values of two tunings. Runs without a value are omitted.
pub fn effects(cases: &[AblationCase], with: &[Values], without: &[Values]) -> Vec<Effect> {
    let mut effects = Vec::new();
    for ((case, with), without) in cases.iter().zip(with).zip(without) {
        let pairs: Vec<_> =
            with.iter().zip(without).filter_map(|pair| Some((pair.0.as_ref()?, pair.1.as_ref()?))).collect();
        if pairs.is_empty() {
            continue;
        }
        for (number, quantity) in case.quantities().iter().copied().enumerate() {
            let (with, without): (Vec<f64>, Vec<f64>) =
                pairs.iter().map(|pair| (pair.0[number], pair.1[number])).unzip();
            let log = |(with, without): (&f64, &f64)| log_ratio(*with, *without, quantity.smaller_is_better);
            let log_ratios = with.iter().zip(&without).map(log).collect();
            effects.push(Effect { set: case.set, case: case.name.clone(), quantity, with, without, log_ratios });
        }
    }
    effects
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

/// The effect of a rule on all cases.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Indices of the cases that the rule helps most, best first.
    pub most_helped: Vec<usize>,
    /// Mean log-ratio of these.
    pub of_most_helped: Estimate,
    /// Mean log-ratio of all cases.
    pub of_all: Estimate,
}

/// Number of cases in [`Summary::most_helped`].
pub const MOST_HELPED: usize = 5;

/// Summarizes effects; none if there are none.
///
/// The cases that the rule helps most are selected by the first half of the seeds, and their effect is estimated by the
/// other half: with the same seeds for both, the selection of the largest values would bias the estimate upwards. With
/// one seed there is no other half, and the estimate has no interval. The interval over the selected cases is that of
/// fixed cases and random seeds; the interval over all takes the cases as a random sample.
pub fn summarize(effects: &[Effect]) -> Option<Summary> {
    let seeds = effects.iter().map(|effect| effect.log_ratios.len()).min()?;
    let selecting = seeds.div_ceil(2);
    let score = |number: &usize| Estimate::of(&effects[*number].log_ratios[..selecting]).mean;
    let mut order: Vec<usize> = (0..effects.len()).collect();
    order.sort_by(|a, b| score(b).total_cmp(&score(a)));
    order.truncate(MOST_HELPED);
    let rest = if selecting < seeds { selecting } else { 0 };
    let groups: Vec<Vec<f64>> = order.iter().map(|number| effects[*number].log_ratios[rest..].to_vec()).collect();
    let means: Vec<f64> = effects.iter().map(|effect| effect.estimate().mean).collect();
    Some(Summary { most_helped: order, of_most_helped: Estimate::of_groups(&groups), of_all: Estimate::of(&means) })
}

/// Answer to the question of what switching a rule off costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// More than 1 %, with 95 % confidence.
    CostsMore,
    /// Less than 1 %, with 95 % confidence.
    CostsLess,
    /// The interval contains 1 %.
    Undecided,
}

impl Verdict {
    /// Returns the verdict on a mean log-ratio; undecided without an interval.
    pub fn on(estimate: Estimate) -> Self {
        match (estimate.low(), estimate.high()) {
            (Some(low), _) if low > one_percent() => Self::CostsMore,
            (_, Some(high)) if high < one_percent() => Self::CostsLess,
            _ => Self::Undecided,
        }
    }

    /// Returns the verdict in words.
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

    fn effect(log_ratios: &[f64]) -> Effect {
        let quantity = Quantity { name: "goodput", smaller_is_better: false };
        let with: Vec<f64> = log_ratios.iter().map(|log| log.exp()).collect();
        let without = vec![1.0; with.len()];
        Effect { set: Set::Mixes, case: "mix".into(), quantity, with, without, log_ratios: log_ratios.to_vec() }
    }

    #[test]
    fn a_ratio_above_one_means_that_the_rule_helps() {
        assert!((log_ratio(20.0, 10.0, false).exp() - 2.0).abs() < 1e-12);
        assert!((log_ratio(10.0, 20.0, true).exp() - 2.0).abs() < 1e-12);
        assert_eq!((log_ratio(0.0, 0.0, false), log_ratio(1.0, 0.0, false)), (0.0, MAX_RATIO.ln()));
    }

    #[test]
    fn the_selection_and_the_estimate_use_different_seeds() {
        let mut effects = vec![effect(&[0.0, 0.0, 0.0, 0.0]); 6];
        effects[3] = effect(&[0.5, 0.5, 0.1, 0.1]);
        let summary = summarize(&effects).unwrap();
        assert_eq!(summary.most_helped, [3, 0, 1, 2, 4]);
        assert!((summary.of_most_helped.mean - 0.1 / 5.0).abs() < 1e-12);
        assert!((summary.of_all.mean - 0.3 / 6.0).abs() < 1e-12);
    }

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let on = |mean, half| Verdict::on(Estimate { mean, half });
        assert_eq!(on(0.05, Some(0.02)), Verdict::CostsMore);
        assert_eq!(on(0.05, Some(0.045)), Verdict::Undecided);
        assert_eq!(on(-0.05, Some(0.02)), Verdict::CostsLess);
        assert_eq!(on(0.05, None), Verdict::Undecided);
    }
}
