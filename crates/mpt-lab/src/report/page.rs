//! The report as one self-contained HTML page.

use super::{
    ClaimVerdict, figure, judge,
    table::{Cell, Table},
};
use crate::{
    error::Result,
    experiment::{
        Options,
        origin::RunOrigin,
        result::{CaseResult, Substrate},
    },
    plan::Plan,
};

/// Returns the page of a run.
pub fn html(plans: &[Plan], results: &[CaseResult], options: &Options, origin: &RunOrigin) -> Result<String> {
    let title = format!("MPT laboratory: {}", options.keys.join(", "));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">{VIEWPORT}<title>{}</title>",
        escaped(&title)
    );
    page +=
        &format!("<style>{STYLE}</style>\n<h1>{}</h1>\n<p>{}</p>\n", escaped(&title), escaped(&conditions(options)));
    page += &origin_html(options, origin);
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

/// Returns machine, kernel, build, date and command; what is not known is left out.
fn origin_html(options: &Options, origin: &RunOrigin) -> String {
    let RunOrigin { machine, kernel, date, command } = origin;
    let command = if command.is_empty() { String::new() } else { format!("<code>{}</code>", escaped(command)) };
    let rows = [
        ("machine", escaped(machine)),
        ("kernel", escaped(kernel)),
        ("build", escaped(&options.build)),
        ("date", escaped(date)),
        ("command", command),
    ];
    let row = |(name, value): &(&str, String)| format!("<tr><td>{name}<td>{value}\n");
    let rows: String = rows.iter().filter(|(_, value)| !value.is_empty()).map(row).collect();
    format!("<table class=\"words\">{rows}</table>\n")
}

/// Returns the links of each case, and what happens to them.
fn links_html(plan: &Plan, results: &[&CaseResult], options: &Options) -> String {
    let mut rows = String::new();
    for case in plan.cases.iter().filter(|case| results.iter().any(|result| result.case == case.name)) {
        for (number, (name, what)) in case.links(options.quick).iter().enumerate() {
            let case = if number == 0 { escaped(&case.name) } else { String::new() };
            rows += &format!("<tr><td>{case}<td>{}<td>{}\n", escaped(name), escaped(what));
        }
    }
    let table = format!("<table class=\"words links\"><tr><th>case<th>path<th>link\n{rows}</table>");
    format!("<details><summary>links</summary>{}</details>\n", scrolled(&table))
}

/// Returns the number of measurements and what a cell has.
fn measurements(plan: &Plan, options: &Options) -> String {
    let (count, seconds) = (options.repetitions(plan), plan.length.of(options.quick).as_secs_f64());
    match count {
        1 => format!("<p>One measurement of {seconds} s for each figure.</p>\n"),
        _ => format!("<p>Median (minimum..maximum) of {count} measurements of {seconds} s.</p>\n"),
    }
}

/// A wide table scrolls by itself on a narrow screen, not the page.
fn scrolled(table: &str) -> String {
    format!("<div class=\"wide\">{table}</div>")
}

fn section(plan: &Plan, results: &[&CaseResult], options: &Options) -> Result<String> {
    let mut html =
        format!("<h2>{}: {}</h2>\n<p>{}</p>\n", escaped(&plan.key), escaped(&plan.title), escaped(&plan.paper));
    html += &measurements(plan, options);
    html += &links_html(plan, results, options);
    html += &verdicts(plan, results, options);
    for figure in figure::all(plan, results)? {
        html += &format!("<figure>{figure}</figure>\n");
    }
    for table in Table::all(plan, results) {
        html += &format!("<h3>{}, {}</h3>\n{}", escaped(table.title), table.unit, scrolled(&table_html(&table)));
    }
    let curves = figure::curves(plan, results)?;
    if !curves.is_empty() {
        let curves: String = curves.iter().map(|curve| format!("<figure>{curve}</figure>\n")).collect();
        html += &format!("<details><summary>first measurement of each case, over time</summary>{curves}</details>\n");
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
    let table = scrolled(&format!("<table class=\"words\">{heading}\n{rows}</table>"));
    format!("<details open><summary>{}</summary>{table}</details>\n", sums.join(", "))
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

/// Without it, a phone shows the page in the width of a desktop, at a third of its size.
const VIEWPORT: &str = "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">";

/// Charts have texts of 14 px at a width of 960 px: below 640 px, they scroll, as do tables.
const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.6em 0}th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right}\
th{border-bottom:2px solid #888}td:first-child,th:first-child,.words td,.words th{text-align:left;vertical-align:top}\
.ours{font-weight:bold}.beaten{color:#00724f}.reproduced{color:#0072b2}.missed{color:#b03000;font-weight:bold}.open{color:#777}\
figure,.wide{margin:1em 0;overflow-x:auto}svg{width:100%;min-width:640px;max-width:960px;height:auto}\
h1,h2,code,.words td+td{overflow-wrap:anywhere}.wide .words td+td{overflow-wrap:normal}.links td{white-space:nowrap}summary{cursor:pointer;padding:.4em 0}h2{margin-top:2.2em;border-top:1px solid #ccc;padding-top:.8em}";
