//! Figures like those of the paper, drawn from the measurements: lines, bars, a grid of bars, or throughput over time;
//! and distributions of delays if there are any.

use crate::{
    chart::{self, Bars, Chart, Line, Series},
    error::Result,
    experiment::result::{CaseResult, Outcome, Run},
    plan::{Figure, Metric, Plan},
};

/// Returns the pictures of an experiment as SVG.
pub(super) fn all(plan: &Plan, results: &[&CaseResult]) -> Result<Vec<String>> {
    let mut pictures = match plan.figure {
        Figure::Lines => lines(plan, results)?,
        Figure::Bars => vec![bars(plan, results)?],
        Figure::Grid => vec![grid(plan, results)?],
        Figure::Time => over_time(results)?,
    };
    for result in results.iter().filter(|result| result.outcomes.iter().any(|outcome| !delays(outcome).is_empty())) {
        pictures.push(chart::svg(&distribution(result, "one-way delay", delays))?);
        pictures.push(chart::svg(&distribution(result, "difference of consecutive one-way delays", steps))?);
    }
    Ok(pictures)
}

/// Returns the metric to draw: the one that the paper published, else the first measured one.
fn drawn_metric(plan: &Plan, results: &[&CaseResult]) -> Metric {
    let measured = || results.iter().flat_map(|result| &result.outcomes).flat_map(|outcome| &outcome.runs);
    plan.published_metric()
        .or_else(|| measured().flat_map(|run| run.metrics.keys()).min().copied())
        .unwrap_or(Metric::Goodput)
}

/// Returns the contenders in any of the results, MPT first, and single paths if there are at most three.
fn names(results: &[&CaseResult]) -> Vec<String> {
    let mut names: Vec<String> = vec!["mpt".into()];
    for outcome in results.iter().flat_map(|result| &result.outcomes).filter(|outcome| !outcome.runs.is_empty()) {
        if !names.contains(&outcome.name) {
            names.push(outcome.name.clone());
        }
    }
    // Many paths alone would give as many overlapping lines.
    let paths = names.iter().filter(|name| name.starts_with("path ")).count();
    names.retain(|name| !name.starts_with("path ") || paths <= 3);
    names
}

/// Returns lines over the first axis, one picture for each combination of the others.
fn lines(plan: &Plan, results: &[&CaseResult]) -> Result<Vec<String>> {
    let mut rest: Vec<&[String]> = Vec::new();
    results.iter().map(|result| result.at.get(1..).unwrap_or_default()).for_each(|others| {
        if !rest.contains(&others) {
            rest.push(others);
        }
    });
    let belongs = |result: &&&CaseResult, others: &[String]| result.at.get(1..).unwrap_or_default() == others;
    rest.iter()
        .map(|others| {
            let own: Vec<&CaseResult> = results.iter().filter(|result| belongs(result, others)).copied().collect();
            chart::svg(&over_axis(plan, &own, others))
        })
        .collect()
}

fn over_axis(plan: &Plan, results: &[&CaseResult], others: &[String]) -> Chart {
    let metric = drawn_metric(plan, results);
    let x = |result: &CaseResult| result.at.first().and_then(|value| value.parse::<f64>().ok());
    let line = |name: &str, colour: usize, y: &dyn Fn(&CaseResult) -> Option<f64>| {
        let points = results.iter().filter_map(|result| Some((x(result)?, y(result)?))).collect();
        Line { name: name.into(), colour, points, marked: true }
    };
    let measured = |name: &String| {
        line(&display_name(name), colour(name), &|result| {
            result.outcome(name).and_then(|outcome| outcome.median(metric))
        })
    };
    let mut lines: Vec<Line> = names(results).iter().map(measured).collect();
    let published =
        |result: &CaseResult| plan.cases.iter().find(|case| case.name == result.case)?.published.get(&metric).copied();
    lines.push(line("published", PUBLISHED, &published));
    if metric == Metric::Goodput {
        lines.push(line("ceiling", CEILING, &|result| result.ceiling));
    }
    lines.retain(|line| !line.points.is_empty());
    let values = plan.axes.iter().skip(1).zip(others).map(|(axis, value)| format!(", {} {value}", axis.name));
    Chart {
        title: format!("{}: {}{}", plan.key, plan.title, values.collect::<String>()),
        across: plan.axes.first().map(|axis| axis.labelled()).unwrap_or_default(),
        unit: labelled(metric),
        lines,
        ..Chart::default()
    }
}

/// Returns a group of bars for each case. Bars show shares of the ceiling if the ceilings differ too much to read low
/// bars.
fn bars(plan: &Plan, results: &[&CaseResult]) -> Result<String> {
    let metric = drawn_metric(plan, results);
    let relative = metric == Metric::Goodput && ceilings_differ(results);
    let scaled = |result: &CaseResult, value: f64| match result.ceiling.filter(|_| relative) {
        Some(ceiling) => value / ceiling * 100.0,
        None => value,
    };
    let series = |name: &str, colour: usize, y: &dyn Fn(&CaseResult) -> Option<f64>| Series {
        name: name.into(),
        colour,
        values: results.iter().map(|result| y(result).map(|value| scaled(result, value))).collect(),
    };
    let published =
        |result: &CaseResult| plan.cases.iter().find(|case| case.name == result.case)?.published.get(&metric).copied();
    let mut all = vec![series("published", PUBLISHED, &published)];
    for name in names(results) {
        let y = |result: &CaseResult| result.outcome(&name).and_then(|outcome| outcome.median(metric));
        all.push(series(&display_name(&name), colour(&name), &y));
    }
    if metric == Metric::Goodput && !relative {
        all.push(series("ceiling", CEILING, &|result| result.ceiling));
    }
    all.retain(|series| series.values.iter().any(Option::is_some));
    let groups = results.iter().map(|result| result.case.clone()).collect();
    let title = format!("{}: {}", plan.key, plan.title);
    let unit = if relative { format!("{}, % of the ceiling", metric.title()) } else { labelled(metric) };
    Bars { title, across: "case".into(), unit, groups, series: all, graded: false }.svg()
}

fn ceilings_differ(results: &[&CaseResult]) -> bool {
    let ceilings: Vec<f64> = results.iter().filter_map(|result| result.ceiling).collect();
    let (least, most) =
        (ceilings.iter().copied().fold(f64::MAX, f64::min), ceilings.iter().copied().fold(0.0, f64::max));
    ceilings.len() == results.len() && most > least * MAX_CEILING_RATIO
}

/// Returns a group for each value of the first axis with a bar for each value of the second.
fn grid(plan: &Plan, results: &[&CaseResult]) -> Result<String> {
    let metric = drawn_metric(plan, results);
    let along = |axis: usize| {
        let mut values: Vec<&String> = Vec::new();
        results.iter().filter_map(|result| result.at.get(axis)).for_each(|value| {
            if !values.contains(&value) {
                values.push(value);
            }
        });
        values
    };
    let (first, second) = (along(0), along(1));
    let at = |a: &String, b: &String| {
        let result = results.iter().find(|result| result.at.first() == Some(a) && result.at.get(1) == Some(b))?;
        result.ours()?.median(metric)
    };
    let name = |axis: usize| plan.axes.get(axis).map(|axis| axis.labelled()).unwrap_or_default();
    let bar = |b: &&String| Series {
        name: format!("{} {b}", plan.axes.get(1).map_or("", |axis| &axis.name)),
        colour: 0,
        values: first.iter().map(|a| at(a, b)).collect(),
    };
    let title = format!("{}: {}, MPT", plan.key, plan.title);
    let groups = first.iter().map(|value| (*value).clone()).collect();
    let series = second.iter().map(bar).collect();
    Bars { title, across: name(0), unit: labelled(metric), groups, series, graded: true }.svg()
}

/// Returns the throughput over time of each case that has no such picture in [`all`].
pub(super) fn curves(plan: &Plan, results: &[&CaseResult]) -> Result<Vec<String>> {
    let missing = results.iter().filter(|_| plan.figure != Figure::Time);
    missing
        .map(|result| throughput(result))
        .filter(|chart| !chart.lines.is_empty())
        .map(|chart| chart::svg(&chart))
        .collect()
}

/// Returns two pictures per case: throughput of MPT and MPTCP over time, and the rate of each path under MPT.
fn over_time(results: &[&CaseResult]) -> Result<Vec<String>> {
    let mut pictures = Vec::new();
    for result in results {
        pictures.push(chart::svg(&throughput(result))?);
        let ours = first_run(result);
        let path = |(number, points): (usize, &Vec<(f64, f64)>)| Line {
            name: format!("path {}", number + 1),
            colour: FIRST_PATH + number,
            points: points.clone(),
            marked: false,
        };
        let lines = ours.paths.iter().enumerate().map(path).collect();
        let title = format!("{}: rate of each path under MPT", result.case);
        let unit = "frames, Mbit/s".to_owned();
        pictures.push(chart::svg(&Chart { title, unit, lines, events: events(&ours), ..Chart::default() })?);
    }
    Ok(pictures)
}

/// Returns the throughput of MPT and MPTCP over time in the first measurement.
fn throughput(result: &CaseResult) -> Chart {
    let whole = result.outcomes.iter().filter(|outcome| matches!(outcome.name.as_str(), "mpt" | "mptcp"));
    let line = |outcome: &Outcome| {
        let points = outcome.runs.first()?.goodput.clone();
        let name = display_name(&outcome.name);
        (!points.is_empty()).then(|| Line { colour: colour(&outcome.name), name, points, marked: false })
    };
    Chart {
        title: format!("{}: throughput over time", result.case),
        unit: "TCP payload, Mbit/s".to_owned(),
        lines: whole.filter_map(line).collect(),
        levels: result.ceiling.map(|ceiling| (ceiling, format!("ceiling {ceiling:.1}"))).into_iter().collect(),
        events: events(&first_run(result)),
        ..Chart::default()
    }
}

/// Returns MPT's first measurement.
fn first_run(result: &CaseResult) -> Run {
    result.ours().and_then(|ours| ours.runs.first().cloned()).unwrap_or_default()
}

fn events(run: &Run) -> Vec<(f64, String)> {
    run.events.iter().map(|(at, what)| (*at, format!("\u{a0}{what}"))).collect()
}

/// Returns the cumulative distribution of a quantity in ms.
fn distribution(result: &CaseResult, what: &str, of: fn(&Outcome) -> Vec<f64>) -> Chart {
    let line = |outcome: &Outcome| {
        let mut sorted = of(outcome);
        sorted.sort_by(f64::total_cmp);
        let step = (sorted.len() / MAX_POINTS).max(1);
        let share = |(rank, value): (usize, &f64)| (*value, (rank + 1) as f64 / sorted.len() as f64 * 100.0);
        let points =
            sorted.iter().enumerate().filter(|(rank, _)| rank % step == 0 || rank + 1 == sorted.len()).map(share);
        Line {
            name: display_name(&outcome.name),
            colour: colour(&outcome.name),
            points: points.collect(),
            marked: false,
        }
    };
    let known = result.outcomes.iter().filter(|outcome| !of(outcome).is_empty());
    Chart {
        title: format!("{}/{}: distribution of the {what}", result.experiment, result.case),
        across: format!("{what}, ms"),
        unit: "share of packets below, %".into(),
        lines: known.map(line).collect(),
        ..Chart::default()
    }
}

fn delays(outcome: &Outcome) -> Vec<f64> {
    outcome.runs.iter().flat_map(|run| run.delays.iter().copied()).collect()
}

/// Returns the jitter as defined in the papers.
fn steps(outcome: &Outcome) -> Vec<f64> {
    let of = |run: &Run| run.delays.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect::<Vec<_>>();
    outcome.runs.iter().flat_map(of).collect()
}

fn labelled(metric: Metric) -> String {
    format!("{}, {}", metric.title(), metric.unit())
}

/// Returns a contender's name in pictures.
fn display_name(name: &str) -> String {
    match name {
        "mpt" => "MPT".into(),
        "mptcp" => "kernel MPTCP".into(),
        "ideal" => "ideal single link".into(),
        path if path.starts_with("path ") => format!("{path} alone"),
        other => other.into(),
    }
}

/// Returns a contender's colour, which is the same in every picture.
fn colour(name: &str) -> usize {
    match name {
        "mpt" => 0,
        "mptcp" => 1,
        "ideal" => 4,
        "path 1" => FIRST_PATH,
        "path 2" => FIRST_PATH + 1,
        _ => 5,
    }
}

/// A bar of a third of the height is still readable.
const MAX_CEILING_RATIO: f64 = 3.0;

/// Colours in the palette.
const FIRST_PATH: usize = 2;
const PUBLISHED: usize = 6;
const CEILING: usize = 7;

/// Maximum points of a distribution; more would be finer than a pixel.
const MAX_POINTS: usize = 400;
