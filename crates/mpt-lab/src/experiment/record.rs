//! Results for other programs: JSON lines or CSV, always with the same fields; missing values are null.

use super::result::{CaseResult, Outcome};
use crate::plan::{Case, Metric};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// One figure of one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// Key of the plan.
    pub experiment: String,
    /// Name of the case.
    pub case: String,
    /// Substrate of the measurement: `netns`, `emu` or `sim`.
    pub substrate: &'static str,
    /// Name of the metric.
    pub metric: &'static str,
    /// Unit of the metric.
    pub unit: &'static str,
    /// Figures of each path alone, by path number from 1.
    pub solo: Option<BTreeMap<String, Option<f64>>>,
    /// Goodput of a perfect tunnel; only for goodput.
    pub ceiling: Option<f64>,
    /// The paper's figure.
    pub published: Option<f64>,
    /// MPT's median over the repetitions.
    pub ours: Option<f64>,
    /// Minimum over the repetitions.
    pub ours_min: Option<f64>,
    /// Maximum over the repetitions.
    pub ours_max: Option<f64>,
    /// Figures of the other contenders.
    pub peers: BTreeMap<String, Option<f64>>,
    /// Processor seconds of MPT's processes at both ends per GB.
    pub cpu_s_per_gb: Option<f64>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number of measurements of MPT that have the figure.
    pub repetitions: usize,
}

/// Returns a record for each metric that a contender measured or the paper published.
pub fn records(result: &CaseResult, case: &Case) -> Vec<Record> {
    let figures = result.outcomes.iter().flat_map(|outcome| &outcome.runs).flat_map(|run| run.metrics.keys());
    let metrics: BTreeSet<Metric> = figures.chain(case.published.keys()).copied().collect();
    metrics.into_iter().map(|metric| record(result, case, metric)).collect()
}

fn record(result: &CaseResult, case: &Case, metric: Metric) -> Record {
    let ours = result.ours();
    let range = ours.and_then(|ours| ours.range(metric));
    let number = |outcome: &Outcome| outcome.name.trim_start_matches("path ").to_owned();
    let solo: BTreeMap<_, _> =
        result.solo().map(|path| (number(path), path.median(metric).map(round_to_thousandths))).collect();
    Record {
        experiment: result.experiment.clone(),
        case: result.case.clone(),
        substrate: result.substrate.name(),
        metric: metric.name(),
        unit: metric.unit(),
        solo: (!solo.is_empty()).then_some(solo),
        ceiling: result.ceiling.filter(|_| metric == Metric::Goodput).map(round_to_thousandths),
        published: case.published.get(&metric).copied(),
        ours: ours.and_then(|ours| ours.median(metric)).map(round_to_thousandths),
        ours_min: range.map(|(least, _)| round_to_thousandths(least)),
        ours_max: range.map(|(_, most)| round_to_thousandths(most)),
        peers: result.peers().map(|peer| (peer.name.clone(), peer.median(metric).map(round_to_thousandths))).collect(),
        cpu_s_per_gb: ours.and_then(Outcome::cpu_s_per_gb).map(round_to_thousandths),
        seed: result.seed,
        repetitions: ours.map_or(0, |ours| ours.count(metric)),
    }
}

/// Returns the records as CSV, with a column for every path and contender that occurs in any of them.
pub fn csv(records: &[Record]) -> String {
    let solo: BTreeSet<&String> = records.iter().flat_map(|record| &record.solo).flat_map(BTreeMap::keys).collect();
    let peers: BTreeSet<&String> = records.iter().flat_map(|record| record.peers.keys()).collect();
    let mut head: Vec<String> = ["experiment", "case", "substrate", "metric", "unit"].map(String::from).into();
    head.extend(solo.iter().map(|path| format!("path {path}")));
    head.extend(["ceiling", "published", "ours", "ours_min", "ours_max"].map(String::from));
    head.extend(peers.iter().map(|peer| (*peer).clone()));
    head.extend(["cpu_s_per_gb", "seed", "repetitions"].map(String::from));
    let mut text = head.join(",") + "\n";
    for r in records {
        let figure = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        let mut row = vec![r.experiment.clone(), r.case.clone(), r.substrate.into(), r.metric.into(), r.unit.into()];
        let alone = |path| r.solo.as_ref().and_then(|solo| solo.get(path).copied().flatten());
        row.extend(solo.iter().map(|path| figure(alone(*path))));
        row.extend([r.ceiling, r.published, r.ours, r.ours_min, r.ours_max].map(figure));
        row.extend(peers.iter().map(|peer| figure(r.peers.get(*peer).copied().flatten())));
        row.extend([figure(r.cpu_s_per_gb), r.seed.to_string(), r.repetitions.to_string()]);
        text += &(row.join(",") + "\n");
    }
    text
}

/// Rounds to three decimals; further digits are noise.
fn round_to_thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::result::Run, plan};

    #[test]
    fn every_field_is_present_and_missing_values_are_null() {
        let plans = plan::select("E1.I/50").unwrap();
        let run = |mbit| Run { metrics: [(Metric::Goodput, mbit)].into(), ..Run::default() };
        let outcome = |name: &str, runs| Outcome { name: name.into(), absent: None, runs };
        let result = CaseResult {
            experiment: "E1.I".into(),
            case: "50".into(),
            ceiling: Some(102.3456),
            outcomes: vec![
                outcome("path 1", vec![run(9.4)]),
                outcome("mptcp", vec![]),
                outcome("mpt", vec![run(99.0)]),
            ],
            seed: 1,
            repetitions: 1,
            ..CaseResult::default()
        };
        let record = &records(&result, &plans[0].cases[0])[0];
        let line = serde_json::to_string(record).unwrap();
        assert_eq!(
            line,
            "{\"experiment\":\"E1.I\",\"case\":\"50\",\"substrate\":\"netns\",\"metric\":\"goodput\",\"unit\":\"Mbit/s\",\
             \"solo\":{\"1\":9.4},\"ceiling\":102.346,\"published\":52.65,\"ours\":99.0,\"ours_min\":99.0,\"ours_max\":99.0,\
             \"peers\":{\"mptcp\":null},\"cpu_s_per_gb\":null,\"seed\":1,\"repetitions\":1}"
        );
        let csv = csv(std::slice::from_ref(record));
        assert!(csv.ends_with("E1.I,50,netns,goodput,Mbit/s,9.4,102.346,52.65,99,99,99,,,1,1\n"), "{csv}");
    }
}
