//! Tables, the committed file and the picture of a population's distributions.

use super::{Distribution, MixOutcome, idle_tunnel::IDLE};
use crate::chart::{Chart, Line};
use std::{fmt::Write as _, ops::Range};

/// Returns a figure of an outcome; none if it was not measured.
type Figure = fn(&MixOutcome) -> Option<f64>;

/// A measured quantity of an outcome.
struct OutcomeQuantity {
    name: &'static str,
    /// True if smaller values are better; the worst percentiles are then the highest.
    smaller_is_better: bool,
    of: Figure,
}

const QUANTITIES: [OutcomeQuantity; 12] = [
    OutcomeQuantity { name: "of the ceiling", smaller_is_better: false, of: |outcome| Some(outcome.share()) },
    OutcomeQuantity { name: "of the best path alone", smaller_is_better: false, of: |outcome| Some(outcome.of_best()) },
    OutcomeQuantity { name: "of MPT over a part of the paths", smaller_is_better: false, of: MixOutcome::of_parts },
    OutcomeQuantity {
        name: "seconds to 80 % of the ceiling",
        smaller_is_better: true,
        of: |outcome| Some(outcome.start),
    },
    OutcomeQuantity { name: "longest stall, s", smaller_is_better: true, of: |outcome| Some(outcome.stall) },
    OutcomeQuantity {
        name: "delay added to a call, median, ms",
        smaller_is_better: true,
        of: |outcome| outcome.added.map(|added| added.median),
    },
    OutcomeQuantity {
        name: "delay added to a call, p99, ms",
        smaller_is_better: true,
        of: |outcome| outcome.added.map(|added| added.p99),
    },
    OutcomeQuantity {
        name: "of each direction alone, both at once",
        smaller_is_better: false,
        of: |outcome| outcome.both,
    },
    OutcomeQuantity { name: "last minute of the second", smaller_is_better: false, of: |outcome| outcome.last_minute },
    OutcomeQuantity {
        name: "page, of the best path alone",
        smaller_is_better: true,
        of: |outcome| outcome.page.map(|page| page.of_best),
    },
    OutcomeQuantity {
        name: "page, of MPT over the best path alone",
        smaller_is_better: true,
        of: |outcome| outcome.page.map(|page| page.of_mpt_over_best),
    },
    OutcomeQuantity {
        name: "after idle, seconds to 80 % of the ceiling",
        smaller_is_better: true,
        of: |outcome| outcome.start_after_idle,
    },
];

/// The ratios of page loads in [`QUANTITIES`], and the limits at which mixes are counted.
const PAGE_QUANTITIES: Range<usize> = 9..11;
const PAGE_LIMITS: [f64; 2] = [1.0, 1.05];
/// Longest time without delivered data, in seconds, that does not count as a stall.
const STALL: f64 = 0.1;
/// Number of cases that the report lists.
const WORST: usize = 10;

impl MixOutcome {
    /// Returns the goodput as a share of the ceiling.
    pub fn share(&self) -> f64 {
        if self.ceiling > 0.0 { self.goodput / self.ceiling } else { 1.0 }
    }

    /// Returns the goodput as a share of that of plain TCP over the best path.
    pub fn of_best(&self) -> f64 {
        if self.best > 0.0 { self.goodput / self.best } else { 1.0 }
    }

    /// Returns the goodput over all paths as a share of the highest over a part of them, if parts were measured.
    pub fn of_parts(&self) -> Option<f64> {
        let (all, parts) = self.parts.split_last()?;
        let most = parts.iter().map(|part| part.goodput).reduce(f64::max)?;
        Some(if most > 0.0 { all.goodput / most } else { 1.0 })
    }
}

/// Returns the percentiles as a Markdown table, with 95 % confidence intervals.
pub fn table(outcomes: &[MixOutcome]) -> String {
    let mut text = String::from("| | worst | p5 | p10 | median | best |\n|---|---|---|---|---|---|\n");
    for quantity in &QUANTITIES {
        let values: Vec<f64> = outcomes.iter().filter_map(quantity.of).collect();
        if values.is_empty() {
            continue;
        }
        let distribution = Distribution::new(values);
        let at = |share: f64| distribution.percentile(if quantity.smaller_is_better { 1.0 - share } else { share });
        let _ = write!(text, "| {} | {:.2} |", quantity.name, at(0.0).value);
        for share in [0.05, 0.1, 0.5] {
            let percentile = at(share);
            let (low, high) = percentile.interval;
            let _ = write!(text, " {:.2} ({low:.2} to {high:.2}) |", percentile.value);
        }
        let _ = writeln!(text, " {:.2} |", at(1.0).value);
    }
    for (limit, quantity) in [(0.97, &QUANTITIES[1]), (0.97, &QUANTITIES[2]), (0.9, &QUANTITIES[2])] {
        let distribution = Distribution::new(outcomes.iter().filter_map(quantity.of));
        if distribution.count() > 0 {
            let (below, count) = (distribution.below(limit), distribution.count());
            let _ = writeln!(text, "\nbelow {limit} {}: {below} of {count}", quantity.name);
        }
    }
    for quantity in &QUANTITIES[PAGE_QUANTITIES] {
        let ratios: Vec<f64> = outcomes.iter().filter_map(quantity.of).collect();
        for limit in PAGE_LIMITS.into_iter().filter(|_| !ratios.is_empty()) {
            let (within, count) = (ratios.iter().filter(|ratio| **ratio <= limit).count(), ratios.len());
            let _ = writeln!(text, "\n{}, at most {limit:.2}: {within} of {count}", quantity.name);
        }
    }
    let late = outcomes.iter().filter(|outcome| outcome.start > outcome.start_limit).count();
    let stalled = outcomes.iter().filter(|outcome| outcome.stall > STALL).count();
    let count = outcomes.len();
    let _ = writeln!(text, "\nbelow 80 % of the ceiling after 2 s and after ten round trips: {late} of {count}");
    let after_idle = outcomes.iter().filter_map(|outcome| Some((outcome.start_after_idle?, outcome.start_limit)));
    if after_idle.clone().count() > 0 {
        let late = after_idle.filter(|(start, limit)| start > limit).count();
        let _ = writeln!(text, "\nthe same of a flow after {} s without one: {late} of {count}", IDLE.as_secs());
    }
    let _ = writeln!(text, "\na stall longer than {STALL} s: {stalled} of {count}");
    text
}

/// Returns the cases with the least share of the ceiling, with their links and the command that repeats them. Those
/// with the longest pages and with the latest starts after idle follow, if these were measured. `seeds` are those of
/// the mixes and of the runs.
pub fn worst(outcomes: &[MixOutcome], seeds: [u64; 2], seconds: u64) -> String {
    let mut text = cases(&worst_by(outcomes, |outcome| Some(-outcome.share())), seeds, seconds);
    let lists: [(&str, Figure); 2] = [
        ("the longest pages, of the best path alone", |outcome| outcome.page.map(|page| page.of_best)),
        ("the latest starts after idle, of their limit", |outcome| {
            outcome.start_after_idle.map(|start| start / outcome.start_limit)
        }),
    ];
    for (title, figure) in lists {
        let order = worst_by(outcomes, figure);
        if !order.is_empty() {
            let _ = writeln!(text, "\n{title}:\n{}", cases(&order, seeds, seconds).trim_end());
        }
    }
    text
}

/// Returns the cases with the greatest figure, at most [`WORST`] of those that have it.
fn worst_by(outcomes: &[MixOutcome], figure: Figure) -> Vec<&MixOutcome> {
    let mut order: Vec<(f64, &MixOutcome)> =
        outcomes.iter().filter_map(|outcome| Some((figure(outcome)?, outcome))).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    order.into_iter().take(WORST).map(|(_, outcome)| outcome).collect()
}

fn cases(outcomes: &[&MixOutcome], [seed, run_seed]: [u64; 2], seconds: u64) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let _ = writeln!(text, "\n{}", line(outcome));
        for path in &outcome.case.paths {
            let _ = writeln!(text, "    {}", shortened(&path.to_string()));
        }
        for part in outcome.parts.iter().filter(|_| outcome.parts.len() > 1) {
            let paths: Vec<String> = part.paths.iter().map(|path| (path + 1).to_string()).collect();
            let _ = writeln!(text, "    MPT over {}: {:.1} Mbit/s", paths.join("+"), part.goodput);
        }
        let _ = writeln!(
            text,
            "    mpt-lab trace population/{seed}/{} --seed {run_seed} --seconds {seconds}",
            outcome.number
        );
    }
    text
}

/// Returns the line of a case in the committed file.
pub fn line(outcome: &MixOutcome) -> String {
    let mut text = format!(
        "{:>3}  ceiling {:>7.1}  MPT {:>3.0} %  of the best path {:>4.2}  start {:>5.1} s  stall {:>5.2} s",
        outcome.number,
        outcome.ceiling,
        outcome.share() * 100.0,
        outcome.of_best(),
        outcome.start,
        outcome.stall,
    );
    if let Some(parts) = outcome.of_parts() {
        let _ = write!(text, "  of a part {parts:>4.2}");
    }
    if let Some(added) = outcome.added {
        let _ = write!(text, "  call +{:.0} ms, p99 +{:.0} ms", added.median, added.p99);
    }
    if let Some(page) = outcome.page {
        let (best, mpt) = (page.of_best, page.of_mpt_over_best);
        let _ = write!(text, "  page {:.2} s, of the best path {best:.2}, of MPT over it {mpt:.2}", page.seconds);
    }
    if let Some(start) = outcome.start_after_idle {
        let _ = write!(text, "  after idle {start:.1} s");
    }
    text
}

/// Returns the cumulative distributions of the ratios as a chart.
pub fn chart(outcomes: &[MixOutcome]) -> Chart {
    let lines = QUANTITIES.iter().enumerate().filter(|(_, quantity)| !quantity.smaller_is_better);
    let line = |(colour, quantity): (usize, &OutcomeQuantity)| Line {
        name: quantity.name.into(),
        colour,
        // Ratios above 2 would compress the part of interest.
        points: Distribution::new(outcomes.iter().filter_map(quantity.of).map(|value| value.min(2.0))).cumulative(),
        marked: false,
    };
    Chart {
        title: format!("{} random mixes of links", outcomes.len()),
        across: "goodput through MPT as a ratio".into(),
        unit: "% of the mixes".into(),
        lines: lines.map(line).filter(|line| !line.points.is_empty()).collect(),
        levels: Vec::new(),
        events: Vec::new(),
    }
}

/// Returns the text of a path with at most [`SHOWN_STEPS`] steps of each schedule.
fn shortened(path: &str) -> String {
    let direction = |text: &str| {
        let steps: Vec<&str> = text.split("; ").collect();
        match steps.len() {
            count if count > SHOWN_STEPS => format!("{}; ... {} steps", steps[..SHOWN_STEPS].join("; "), count - 1),
            _ => text.to_owned(),
        }
    };
    path.split(" | ").map(direction).collect::<Vec<_>>().join(" | ")
}

const SHOWN_STEPS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_schedules_are_shortened() {
        assert_eq!(shortened("rate=1mbit | a; b; c; d; e; f"), "rate=1mbit | a; b; c; d; ... 5 steps");
    }
}
