//! Results in the form in which a run saves them for its report.

use crate::{plan::Metric, traffic::bulk::Sample};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Results of one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// Key of the plan.
    pub experiment: String,
    /// Name of the case.
    pub case: String,
    /// Values along the plan's axes.
    pub at: Vec<String>,
    /// Substrate of the measurement.
    #[serde(default)]
    pub substrate: Substrate,
    /// Seed of the run.
    pub seed: u64,
    /// Number of repetitions.
    pub repetitions: u32,
    /// Goodput of a perfect tunnel in Mbit/s.
    pub ceiling: Option<f64>,
    /// Frames that the wire missed.
    pub faults: u64,
    /// Results of the contenders.
    pub outcomes: Vec<Outcome>,
}

/// A substrate: namespaces, a user namespace, or the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Substrate {
    /// Kernel namespaces and the emulated links, in real time.
    #[default]
    Netns,
    /// The same in a user namespace, without privileges; system-wide settings are not changed.
    Emu,
    /// The simulator, in virtual time.
    Sim,
}

impl Substrate {
    /// Returns the name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Netns => "netns",
            Self::Emu => "emu",
            Self::Sim => "sim",
        }
    }
}

/// Results of one contender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name: `path 1`, `ideal`, `mpt`, `mptcp`, ...
    pub name: String,
    /// Reason why some or all runs are missing.
    pub absent: Option<String>,
    /// One run per repetition.
    pub runs: Vec<Run>,
}

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Figures of the run.
    pub metrics: BTreeMap<Metric, f64>,
    /// Received bytes of payload.
    #[serde(default)]
    pub bytes: u64,
    /// Journal hash of a simulated run; 0 otherwise.
    #[serde(default)]
    pub journal: u64,
    /// Processor seconds of the contender's processes at both ends per GB of payload.
    pub cpu_s_per_gb: Option<f64>,
    /// Seconds, and Mbit/s of received payload.
    pub goodput: Vec<(f64, f64)>,
    /// The same for each path: Mbit/s of frames that it delivered.
    pub paths: Vec<Vec<(f64, f64)>>,
    /// One-way delays, ms.
    pub delays: Vec<f64>,
    /// Seconds, and the event.
    pub events: Vec<(f64, String)>,
    /// Bytes received over time, of a flow whose gaps are measured; not saved.
    #[serde(skip)]
    pub arrivals: Vec<Sample>,
}

impl CaseResult {
    /// Returns a contender's results by name.
    pub fn outcome(&self, name: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.name == name)
    }

    /// Returns MPT's results.
    pub fn ours(&self) -> Option<&Outcome> {
        self.outcome("mpt")
    }

    /// Returns the results of each path alone, in order.
    pub fn solo(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.name.starts_with("path "))
    }

    /// Returns the results of the contenders other than MPT and single paths.
    pub fn peers(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| !outcome.name.starts_with("path ") && outcome.name != "mpt")
    }
}

impl Outcome {
    /// Returns the median over the repetitions.
    pub fn median(&self, metric: Metric) -> Option<f64> {
        let values = self.sorted(metric);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(values[middle]),
            _ => Some((values[middle - 1] + values[middle]) / 2.0),
        }
    }

    /// Returns the number of repetitions that have the figure.
    pub fn count(&self, metric: Metric) -> usize {
        self.sorted(metric).len()
    }

    /// Returns minimum and maximum over the repetitions.
    pub fn range(&self, metric: Metric) -> Option<(f64, f64)> {
        let values = self.sorted(metric);
        Some((*values.first()?, *values.last()?))
    }

    /// Returns the mean processor time over the repetitions.
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
