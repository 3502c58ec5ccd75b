//! Tables and JSON of an ablation.

use super::{Effect, Estimate, MOST_HELPED, Verdict, median, summarize};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Returns the table of all cases and the verdict.
pub fn table(rules: &str, effects: &[Effect]) -> String {
    let mut text = format!(
        "without {rules}: medians, their ratio, and the mean log-ratio of the pairs with its 95 % interval (t)\n\
         {:<36} {:<16} {:>9} {:>9} {:>7} {:>9} {:>20}\n",
        "case", "metric", "with", "without", "ratio", "log-ratio", "interval"
    );
    for effect in effects {
        let (with, without, estimate) = (median(&effect.with), median(&effect.without), effect.estimate());
        let name = format!("{}/{}", effect.set.name(), effect.case);
        let interval = estimate.low().zip(estimate.high());
        let interval = interval.map_or("-".into(), |(low, high)| format!("{low:+.4} .. {high:+.4}"));
        writeln!(
            text,
            "{name:<36} {:<16} {with:>9.3} {without:>9.3} {:>7.3} {:>+9.4} {interval:>20}",
            effect.quantity.name,
            effect.ratio(),
            estimate.mean
        )
        .expect("a string takes everything");
    }
    text + &verdict(rules, effects)
}

/// Returns the lines below the table.
fn verdict(rules: &str, effects: &[Effect]) -> String {
    let Some(summary) = summarize(effects) else { return "no case could be run\n".into() };
    let name = |number: &usize| {
        let effect = &effects[*number];
        format!("{}/{} ({})", effect.set.name(), effect.case, effect.quantity.name)
    };
    let helped: Vec<String> = summary.most_helped.iter().map(name).collect();
    let equal = effects.iter().all(|effect| effect.with == effect.without);
    let note = if equal { "no run differs: these rules have no effect on these cases\n" } else { "" };
    format!(
        "helps most: {}\n{note}verdict: {rules}: these {}: {}, {}; all {}: {}, {}\n",
        helped.join(", "),
        helped.len(),
        percent(summary.of_most_helped),
        Verdict::on(summary.of_most_helped).text(),
        effects.len(),
        percent(summary.of_all),
        Verdict::on(summary.of_all).text(),
    )
}

/// Returns the first lines of the markdown table of rules.
pub fn markdown_head() -> String {
    format!(
        "| rule | lines | effect on the {MOST_HELPED} cases it helps most | on all | verdict |\n|---|---|---|---|---|\n"
    )
}

/// Returns the line of one rule in the markdown table. The verdict is on the cases that the rule helps most.
pub fn markdown_row(rule: &str, lines: Option<usize>, effects: &[Effect]) -> String {
    let lines = lines.map_or("-".into(), |lines| lines.to_string());
    match summarize(effects) {
        Some(summary) => format!(
            "| `{rule}` | {lines} | {} | {} | {} |\n",
            percent(summary.of_most_helped),
            percent(summary.of_all),
            Verdict::on(summary.of_most_helped).text()
        ),
        None => format!("| `{rule}` | {lines} | - | - | no case could be run |\n"),
    }
}

/// Returns an effect in percent of the value without the rule, with its interval.
fn percent(estimate: Estimate) -> String {
    let of = |log: f64| log.exp_m1() * 100.0;
    match (estimate.low(), estimate.high()) {
        (Some(low), Some(high)) => format!("{:+.1} % ({:+.1} .. {:+.1})", of(estimate.mean), of(low), of(high)),
        _ => format!("{:+.1} % (no interval)", of(estimate.mean)),
    }
}

/// Returns all raw values of an ablation.
pub fn json(rules: &str, seeds: u64, effects: &[Effect]) -> Value {
    let of = |effect: &Effect| {
        json!({
            "set": effect.set.name(),
            "case": effect.case,
            "metric": effect.quantity.name,
            "smaller_is_better": effect.quantity.smaller_is_better,
            "with": effect.with,
            "without": effect.without,
        })
    };
    json!({ "without": rules, "seeds": seeds, "cases": effects.iter().map(of).collect::<Vec<_>>() })
}
