//! Reports of a run: the paper's table beside the measured one, the paper's figure, and a verdict for every claim.
//!
//! The report is one self-contained HTML page with embedded SVG. [`text`] is the same table for a terminal.

mod figure;
mod page;
mod table;
mod verdict;

pub use page::html;
pub use verdict::{Judgement, Verdict, judge};

use crate::{
    experiment::{Options, result::CaseResult},
    plan::Plan,
};
use std::fmt::Write;
use table::Table;

/// Returns tables and verdicts for a terminal.
pub fn text(plans: &[Plan], results: &[CaseResult], options: &Options) -> String {
    let mut text = String::new();
    for plan in plans {
        let own: Vec<&CaseResult> = results.iter().filter(|result| result.experiment == plan.key).collect();
        if own.is_empty() {
            continue;
        }
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
