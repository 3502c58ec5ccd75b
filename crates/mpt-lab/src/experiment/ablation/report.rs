//! Tables and JSON of an ablation.

use super::{AblationVerdict, Comparison, Effect, Estimate, MOST_HELPED, median};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Returns the table of all cases, that of the cases which the rules help most, and the verdict.
pub fn table(rules: &str, comparison: &Comparison) -> String {
    let mut text = format!(
        "without {rules}: medians, their ratio, and the mean log-ratio of the pairs with its 95 % interval (t)\n\
         {:<36} {:<16} {:>9} {:>9} {:>7} {:>9} {:>20}\n",
        "case", "metric", "with", "without", "ratio", "log-ratio", "interval"
    );
    rows(&mut text, &comparison.screened);
    writeln!(text, "the cases that the rules help most, with other seeds:").expect("a string takes everything");
    rows(&mut text, &comparison.most_helped);
    text + &verdict(rules, comparison)
}

fn rows(text: &mut String, effects: &[Effect]) {
    for effect in effects {
        let (with, without, estimate) = (median(&effect.with), median(&effect.without), effect.estimate());
        let interval = estimate.low().zip(estimate.high());
        let interval = interval.map_or("-".into(), |(low, high)| format!("{low:+.4} .. {high:+.4}"));
        writeln!(
            text,
            "{:<36} {:<16} {with:>9.3} {without:>9.3} {:>7.3} {:>+9.4} {interval:>20}",
            name(effect),
            effect.quantity.name,
            effect.ratio(),
            estimate.mean
        )
        .expect("a string takes everything");
    }
}

fn name(effect: &Effect) -> String {
    format!("{}/{}", effect.set.name(), effect.case)
}

/// Returns the lines below the table.
fn verdict(rules: &str, comparison: &Comparison) -> String {
    if comparison.screened.is_empty() {
        return "no case could be run\n".into();
    }
    let note = if comparison.is_equal() { "no run differs: these rules have no effect on these cases\n" } else { "" };
    let (helped, all) = (comparison.of_most_helped(), comparison.of_all());
    format!(
        "{note}verdict: {rules}: these {}: {}, {}; all {}: {}\n",
        comparison.most_helped.len(),
        percent(helped),
        AblationVerdict::on(helped).text(),
        comparison.screened.len(),
        percent(all),
    )
}

/// Returns the first lines of the Markdown table of rules.
pub fn markdown_head() -> String {
    format!(
        "| rule | lines | the {MOST_HELPED} cases that it helps most | effect on these | on all | verdict |\n\
         |---|---|---|---|---|---|\n"
    )
}

/// Returns the line of one rule in the Markdown table. The verdict is on the cases that the rule helps most.
pub fn markdown_row(rule: &str, lines: Option<usize>, comparison: &Comparison) -> String {
    let lines = lines.map_or("-".into(), |lines| lines.to_string());
    if comparison.screened.is_empty() {
        return format!("| `{rule}` | {lines} | - | - | - | no case could be run |\n");
    }
    let (helped, all) = (comparison.of_most_helped(), comparison.of_all());
    let verdict = if comparison.is_equal() { "no run differs" } else { AblationVerdict::on(helped).text() };
    let mut names: Vec<String> = comparison.most_helped.iter().map(name).collect();
    names.dedup();
    let names = names.join(", ");
    format!("| `{rule}` | {lines} | {names} | {} | {} | {verdict} |\n", percent(helped), percent(all))
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
pub fn json(rules: &str, comparison: &Comparison) -> Value {
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
    let list = |effects: &[Effect]| effects.iter().map(of).collect::<Vec<_>>();
    json!({ "without": rules, "screened": list(&comparison.screened), "most_helped": list(&comparison.most_helped) })
}
