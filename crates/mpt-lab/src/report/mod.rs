//! Reports of a run: the paper's table beside the measured one, the paper's figure, and a verdict for every claim.
//!
//! The report is one self-contained HTML page with embedded SVG. [`text`] is the same table for a terminal,
//! [`markdown`] for documents.

mod figure;
mod page;
mod table;
mod verdict;

pub use page::html;
pub use verdict::{ClaimVerdict, Judgement, judge};

use crate::{
    experiment::{Options, result::CaseResult},
    plan::Plan,
};
use std::fmt::Write;
use table::Table;

/// Returns the tables of a run for documents, each with the command, the build and the number of measurements. A cell
/// has the median, or the median with the range of several measurements.
pub fn markdown(plans: &[Plan], results: &[CaseResult], options: &Options) -> String {
    let mut text = String::new();
    for (plan, own) in measured(plans, results) {
        for table in Table::all(plan, &own) {
            let length = plan.length.of(options.quick);
            write!(
                text,
                "**{}** in {}: median{} of {} measurements of {} s, seed {}, build {}\n\n{}\n",
                table.title,
                table.unit,
                if options.repetitions(plan) > 1 { " (range)" } else { "" },
                options.repetitions(plan),
                length.as_secs(),
                options.seed,
                options.build,
                table.markdown()
            )
            .expect("a string takes it");
        }
        let command = format!("{} --substrate {}", options.keys.join(" "), options.substrate.name());
        let quick = if options.quick { " --quick" } else { "" };
        let against = if options.against.is_empty() { "none".into() } else { options.against.join(",") };
        writeln!(text, "`mpt-lab run {command}{quick} --against {against}`\n").expect("a string takes it");
    }
    text
}

/// Returns the plans that have results, each with them.
fn measured<'a>(plans: &'a [Plan], results: &'a [CaseResult]) -> impl Iterator<Item = (&'a Plan, Vec<&'a CaseResult>)> {
    let own = |plan: &Plan| results.iter().filter(|result| result.experiment == plan.key).collect::<Vec<_>>();
    plans.iter().map(move |plan| (plan, own(plan))).filter(|(_, own)| !own.is_empty())
}

/// Returns tables and verdicts for a terminal.
pub fn text(plans: &[Plan], results: &[CaseResult], options: &Options) -> String {
    let mut text = String::new();
    for (plan, own) in measured(plans, results) {
        for table in Table::all(plan, &own) {
            write!(text, "\n{}: {}, {}\n{}", plan.key, table.title, table.unit, table.plain())
                .expect("a string takes it");
        }
        for judgement in judge(plan, &own, options) {
            writeln!(text, "{judgement}").expect("a string takes it");
        }
    }
    text
}
