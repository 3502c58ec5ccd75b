//! The paper's table: a row for each case, published and measured side by side.

use crate::{
    experiment::result::{CaseResult, Outcome},
    plan::{Metric, Plan},
};
use std::collections::BTreeSet;

/// One metric over all cases of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// One cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Name(String),
    Figure(f64),
    /// Median, minimum and maximum.
    Spread(f64, f64, f64),
    /// Neither measured nor published.
    Nothing,
    /// Measurement failed; with the reason.
    Absent(String),
}

impl Table {
    /// Returns a table for every measured metric.
    pub(super) fn all(plan: &Plan, results: &[&CaseResult]) -> Vec<Self> {
        let runs = results.iter().flat_map(|result| &result.outcomes).flat_map(|outcome| &outcome.runs);
        let metrics: BTreeSet<Metric> = runs.flat_map(|run| run.metrics.keys().copied()).collect();
        metrics.into_iter().map(|metric| Self::of(plan, results, metric)).collect()
    }

    fn of(plan: &Plan, results: &[&CaseResult], metric: Metric) -> Self {
        let columns = Columns::of(plan, results, metric);
        let rows = results.iter().map(|result| columns.row(plan, result)).collect();
        Self { title: metric.title(), unit: metric.unit(), head: columns.head(plan), rows }
    }

    /// Returns the table in Markdown.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | ").replace("..", " to "));
        let rows = self.rows.iter().map(|row| line(row.iter().map(Cell::text).collect()));
        let rule = format!("|{}\n", "---|".repeat(self.head.len()));
        [line(self.head.clone()), rule].into_iter().chain(rows).collect()
    }

    /// Returns the table for a terminal.
    pub(super) fn plain(&self) -> String {
        let texts: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        let lines = || std::iter::once(&self.head).chain(&texts);
        let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |cells: &Vec<String>| {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
            padded.collect::<Vec<_>>().join("  ") + "\n"
        };
        lines().map(line).collect()
    }
}

/// Columns besides the case names: published figures, ceiling, MPT and the other contenders.
struct Columns {
    metric: Metric,
    published_solo: usize,
    published: bool,
    ceiling: bool,
    cpu: bool,
    contenders: Vec<String>,
}

impl Columns {
    fn of(plan: &Plan, results: &[&CaseResult], metric: Metric) -> Self {
        let mut contenders: Vec<String> = Vec::new();
        for outcome in results.iter().flat_map(|result| &result.outcomes).filter(|outcome| outcome.name != "mpt") {
            if !contenders.contains(&outcome.name) {
                contenders.push(outcome.name.clone());
            }
        }
        let goodput = metric == Metric::Goodput;
        let cpu = |result: &&CaseResult| result.ours().and_then(Outcome::cpu_s_per_gb).is_some();
        let first = plan.published_metric();
        let solo = plan.cases.iter().map(|case| case.published_solo.len()).max().unwrap_or(0);
        Self {
            metric,
            published_solo: if first == Some(metric) { solo } else { 0 },
            published: plan.cases.iter().any(|case| case.published.contains_key(&metric)),
            ceiling: goodput && results.iter().any(|result| result.ceiling.is_some()),
            cpu: goodput && results.iter().any(cpu),
            contenders,
        }
    }

    fn head(&self, plan: &Plan) -> Vec<String> {
        let axes: Vec<String> = plan.axes.iter().map(|axis| axis.labelled()).collect();
        let mut head = vec![if axes.is_empty() { "case".into() } else { axes.join(" / ") }];
        head.extend((1..=self.published_solo).map(|path| format!("published path {path}")));
        head.extend(self.published.then(|| "published".into()));
        head.extend(self.contenders.iter().cloned());
        head.extend(self.ceiling.then(|| "ceiling".into()));
        head.push("MPT".into());
        head.extend(self.ceiling.then(|| "of ceiling".into()));
        head.extend(self.cpu.then(|| "CPU s/GB".into()));
        head
    }

    fn row(&self, plan: &Plan, result: &CaseResult) -> Vec<Cell> {
        let case = plan.cases.iter().find(|case| case.name == result.case);
        let figure = |value: Option<f64>| value.map_or(Cell::Nothing, Cell::Figure);
        let mut row = vec![Cell::Name(result.case.clone())];
        let solo = |path: usize| case.and_then(|case| case.published_solo.get(path)).copied();
        row.extend((0..self.published_solo).map(|path| figure(solo(path))));
        if self.published {
            row.push(figure(case.and_then(|case| case.published.get(&self.metric)).copied()));
        }
        row.extend(self.contenders.iter().map(|name| self.measured(result.outcome(name))));
        let ours = result.ours().and_then(|ours| ours.median(self.metric));
        if self.ceiling {
            row.push(figure(result.ceiling));
        }
        row.push(self.measured(result.ours()));
        if self.ceiling {
            let share = ours.zip(result.ceiling).map(|(ours, ceiling)| format!("{:.1} %", ours / ceiling * 100.0));
            row.push(share.map_or(Cell::Nothing, Cell::Name));
        }
        if self.cpu {
            row.push(figure(result.ours().and_then(Outcome::cpu_s_per_gb)));
        }
        row
    }

    fn measured(&self, outcome: Option<&Outcome>) -> Cell {
        let Some(outcome) = outcome else { return Cell::Nothing };
        match (outcome.median(self.metric), outcome.range(self.metric), &outcome.absent) {
            (Some(median), Some((least, most)), _) if outcome.runs.len() > 1 => Cell::Spread(median, least, most),
            (Some(median), ..) => Cell::Figure(median),
            (None, _, Some(why)) => Cell::Absent(why.clone()),
            (None, _, None) => Cell::Nothing,
        }
    }
}

impl Cell {
    /// Returns the text of the cell.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Figure(value) => short(*value),
            Self::Spread(median, least, most) => format!("{} ({}..{})", short(*median), short(*least), short(*most)),
            Self::Nothing => "-".into(),
            Self::Absent(_) => "absent".into(),
        }
    }
}

/// Formats with two decimals below 100, with one above.
fn short(value: f64) -> String {
    if value.abs() < 100.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::result::Run, plan};

    #[test]
    fn published_and_measured_stand_side_by_side() {
        let plans = plan::select("E1.I/50").unwrap();
        let run = |mbit| Run { metrics: [(Metric::Goodput, mbit)].into(), ..Run::default() };
        let outcome = |name: &str, runs| Outcome { name: name.into(), absent: Some("no reason".into()), runs };
        let result = CaseResult {
            case: "50".into(),
            ceiling: Some(100.0),
            outcomes: vec![outcome("mptcp", vec![]), outcome("mpt", vec![run(90.0), run(92.0)])],
            ..CaseResult::default()
        };
        let tables = Table::all(&plans[0], &[&result]);
        assert_eq!(tables.len(), 1);
        assert_eq!(
            tables[0].head[1..],
            ["published path 1", "published path 2", "published", "mptcp", "ceiling", "MPT", "of ceiling"]
        );
        let row: Vec<String> = tables[0].rows[0].iter().map(Cell::text).collect();
        assert_eq!(row, ["50", "9.39", "94.70", "52.65", "absent", "100.0", "91.00 (90.00..92.00)", "91.0 %"]);
        assert_eq!(tables[0].plain().lines().count(), 2);
        let markdown = tables[0].markdown();
        assert!(markdown.contains("\n|---|---|---|---|---|---|---|---|\n| 50 | 9.39 |"), "{markdown}");
        assert!(markdown.contains("| 91.00 (90.00 to 92.00) |"), "{markdown}");
    }
}
