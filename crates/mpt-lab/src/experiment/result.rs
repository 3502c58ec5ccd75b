//! What was measured, as it is kept between a run and its report.

use crate::{plan::Metric, traffic::bulk::Sample};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All that was measured of one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The plan's key.
    pub experiment: String,
    /// The case's name.
    pub case: String,
    /// Its values along the plan's axes.
    pub at: Vec<String>,
    /// Where it was measured.
    #[serde(default)]
    pub substrate: Substrate,
    /// The run's seed.
    pub seed: u64,
    /// How often everything was measured.
    pub repetitions: u32,
    /// What a perfect tunnel could deliver, Mbit/s.
    pub ceiling: Option<f64>,
    /// Frames that the wire itself missed.
    pub faults: u64,
    /// Who took part.
    pub outcomes: Vec<Outcome>,
}

/// Where something was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Substrate {
    /// Kernel namespaces and the wire, by the machine's clock.
    #[default]
    Netns,
    /// The same in a user namespace, without privileges; the machine's settings are what they are.
    Emu,
    /// The simulator, in virtual time.
    Sim,
}

impl Substrate {
    /// Its name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Netns => "netns",
            Self::Emu => "emu",
            Self::Sim => "sim",
        }
    }
}

/// What one contender reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its name: `path 1`, `ideal`, `mpt`, `mptcp`, ...
    pub name: String,
    /// Why there is nothing, or not everything.
    pub absent: Option<String>,
    /// One for each repetition.
    pub runs: Vec<Run>,
}

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What it came to.
    pub metrics: BTreeMap<Metric, f64>,
    /// Bytes of payload that arrived.
    #[serde(default)]
    pub bytes: u64,
    /// The simulator's journal of it; 0 elsewhere.
    #[serde(default)]
    pub journal: u64,
    /// Processor seconds of the contender's processes at both ends for each GB of payload.
    pub cpu_s_per_gb: Option<f64>,
    /// Seconds, and Mbit/s of payload that arrived.
    pub goodput: Vec<(f64, f64)>,
    /// The same for each path: Mbit/s of frames that came out of it.
    pub paths: Vec<Vec<(f64, f64)>>,
    /// One-way delays, ms.
    pub delays: Vec<f64>,
    /// Seconds, and what happened then.
    pub events: Vec<(f64, String)>,
    /// What had arrived when, of a flow whose gaps are looked for; not kept.
    #[serde(skip)]
    pub arrivals: Vec<Sample>,
}

impl CaseResult {
    /// A contender by name.
    pub fn outcome(&self, name: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.name == name)
    }

    /// The tunnel.
    pub fn ours(&self) -> Option<&Outcome> {
        self.outcome("mpt")
    }

    /// Each path alone, in order.
    pub fn solo(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.name.starts_with("path "))
    }

    /// Those that are neither a path nor MPT.
    pub fn peers(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| !outcome.name.starts_with("path ") && outcome.name != "mpt")
    }
}

impl Outcome {
    /// The median over the repetitions.
    pub fn median(&self, metric: Metric) -> Option<f64> {
        let values = self.sorted(metric);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(values[middle]),
            _ => Some((values[middle - 1] + values[middle]) / 2.0),
        }
    }

    /// How many repetitions have a figure.
    pub fn count(&self, metric: Metric) -> usize {
        self.sorted(metric).len()
    }

    /// The least and the greatest.
    pub fn range(&self, metric: Metric) -> Option<(f64, f64)> {
        let values = self.sorted(metric);
        Some((*values.first()?, *values.last()?))
    }

    /// The mean over the repetitions of the processor time.
    pub fn cpu_s_per_gb(&self) -> Option<f64> {
        let known: Vec<f64> = self.runs.iter().filter_map(|run| run.cpu_s_per_gb).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }

    fn sorted(&self, metric: Metric) -> Vec<f64> {
        let mut values: Vec<f64> = self.runs.iter().filter_map(|run| run.metrics.get(&metric).copied()).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_the_repetitions() {
        let run = |mbit| Run { metrics: [(Metric::Goodput, mbit)].into(), ..Run::default() };
        let mut outcome = Outcome { runs: vec![run(3.0), run(1.0)], ..Outcome::default() };
        assert_eq!(outcome.median(Metric::Goodput), Some(2.0));
        outcome.runs.push(run(9.0));
        assert_eq!((outcome.median(Metric::Goodput), outcome.median(Metric::Gap)), (Some(3.0), None));
        assert_eq!(outcome.range(Metric::Goodput), Some((1.0, 9.0)));
    }
}
