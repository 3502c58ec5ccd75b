//! The report as one self-contained HTML page.

use super::{
    ClaimVerdict, figure, judge,
    table::{Cell, Table},
};
use crate::{
    error::Result,
    experiment::{
        Options,
        result::{CaseResult, Substrate},
    },
    plan::Plan,
};

/// Returns the page of a run.
pub fn html(plans: &[Plan], results: &[CaseResult], options: &Options) -> Result<String> {
    let title = format!("MPT laboratory: {}", options.keys.join(", "));
    let mut page =
        format!("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{}</title>", escaped(&title));
    page +=
        &format!("<style>{STYLE}</style>\n<h1>{}</h1>\n<p>{}</p>\n", escaped(&title), escaped(&conditions(options)));
    for plan in plans {
        let own: Vec<&CaseResult> = results.iter().filter(|result| result.experiment == plan.key).collect();
        if !own.is_empty() {
            page += &section(plan, &own, options)?;
        }
    }
    Ok(page + "</html>\n")
}

fn conditions(options: &Options) -> String {
    let place = match options.substrate {
        Substrate::Netns => "network namespaces and the wire",
        Substrate::Emu => "network namespaces and the wire in a user namespace",
        Substrate::Sim => "simulated, in virtual time",
    };
    let length = if options.quick { "quick run: fewer cases, a few seconds each, once" } else { "full run" };
    format!(
        "{length}; {place}; seed {}; MPT in {} mode. TCP payload at the receiver, unless a table says otherwise.",
        options.seed,
        options.mode.name()
    )
}

fn section(plan: &Plan, results: &[&CaseResult], options: &Options) -> Result<String> {
    let mut html =
        format!("<h2>{}: {}</h2>\n<p>{}</p>\n", escaped(&plan.key), escaped(&plan.title), escaped(&plan.paper));
    html += &verdicts(plan, results, options);
    for figure in figure::all(plan, results)? {
        html += &format!("<figure>{figure}</figure>\n");
    }
    for table in Table::all(plan, results) {
        html += &format!("<h3>{}, {}</h3>\n{}", escaped(table.title), table.unit, table_html(&table));
    }
    Ok(html + &absences(results))
}

fn verdicts(plan: &Plan, results: &[&CaseResult], options: &Options) -> String {
    let judgements = judge(plan, results, options);
    if judgements.is_empty() {
        return "<p>This plan has no claims about this mode.</p>\n".into();
    }
    let count = |verdict: ClaimVerdict| judgements.iter().filter(|judgement| judgement.verdict == verdict).count();
    let all = [ClaimVerdict::Beaten, ClaimVerdict::Reproduced, ClaimVerdict::Missed, ClaimVerdict::Open];
    let sums: Vec<String> = all.iter().map(|verdict| format!("{} {}", count(*verdict), verdict.name())).collect();
    let row = |judgement: &super::Judgement| {
        let (name, case, reason) = (judgement.verdict.name(), escaped(&judgement.case), escaped(&judgement.reason));
        format!("<tr><td class=\"{name}\">{name}<td>{case}<td>{reason}\n")
    };
    let rows: String = judgements.iter().map(row).collect();
    let heading = "<tr><th>verdict<th>case<th>why";
    format!(
        "<details open><summary>{}</summary><table class=\"verdicts\">{heading}\n{rows}</table></details>\n",
        sums.join(", ")
    )
}

fn table_html(table: &Table) -> String {
    let head: String = table.head.iter().map(|name| format!("<th>{}", escaped(name))).collect();
    let ours = table.head.iter().position(|name| name == "MPT");
    let mut html = format!("<table><tr>{head}\n");
    for row in &table.rows {
        let cell = |(column, cell): (usize, &Cell)| {
            let class = if Some(column) == ours { " class=\"ours\"" } else { "" };
            let title =
                if let Cell::Absent(why) = cell { format!(" title=\"{}\"", escaped(why)) } else { String::new() };
            format!("<td{class}{title}>{}", escaped(&cell.text()))
        };
        let cells: String = row.iter().enumerate().map(cell).collect();
        html += &format!("<tr>{cells}\n");
    }
    html + "</table>\n"
}

/// Lists absent contenders with the reasons; each reason once.
fn absences(results: &[&CaseResult]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for outcome in results.iter().flat_map(|result| &result.outcomes) {
        let line = outcome.absent.as_ref().map(|why| format!("<li>{}: {}", escaped(&outcome.name), escaped(why)));
        lines.extend(line.filter(|line| !lines.contains(line)));
    }
    let faults: u64 = results.iter().map(|result| result.faults).sum();
    lines.extend((faults > 0).then(|| format!("<li>the wire missed {faults} frames")));
    if lines.is_empty() { String::new() } else { format!("<p>Absent:</p><ul>{}</ul>\n", lines.join("\n")) }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.6em 0}th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right}\
th{border-bottom:2px solid #888}td:first-child,th:first-child,.verdicts td,.verdicts th{text-align:left}\
.ours{font-weight:bold}.beaten{color:#00724f}.reproduced{color:#0072b2}.missed{color:#b03000;font-weight:bold}.open{color:#777}\
figure{margin:1em 0}svg{max-width:100%;height:auto}h2{margin-top:2.2em;border-top:1px solid #ccc;padding-top:.8em}";
