//! The figures of the committed mixes as one text, so that a change of the core that affects one shows up as a diff.
//!
//! No constant of the core may be chosen by this seed: the file is a report.

use super::{MixOutcome, Population, report};
use crate::plan::Congestion;
use mpt_proto::tuning::Tuning;
use mpt_sim::seed::Seed;
use std::time::Duration;

/// The file, relative to the root of the source tree.
pub const FILE: &str = "lab/population.txt";
/// Number of mixes in the file.
pub const CASES: usize = 300;
/// Distance of the mixes that the test computes.
pub const STRIDE: usize = 5;
/// Command that accepts changes.
pub const ACCEPT: &str = "cargo run --release -p mpt-lab -- population --accept";

/// Runs these mixes on all processors and returns the text of the file. `progress` gets the number of finished mixes
/// and the total.
pub fn compute(numbers: impl IntoIterator<Item = usize>, progress: &(dyn Fn(usize, usize) + Sync)) -> String {
    let (seed, length) = (Seed(1_000), Duration::from_secs(10));
    let population = Population {
        seed,
        run_seed: seed,
        congestion: Congestion::Cubic,
        length,
        parts: false,
        call: false,
        both: false,
        page: false,
        idle: false,
        tuning: Tuning::default(),
    };
    text(&population.run(numbers, progress))
}

fn text(outcomes: &[MixOutcome]) -> String {
    let mut text = HEAD.to_owned();
    for line in report::table(outcomes).lines() {
        text += format!("# {line}").trim_end();
        text.push('\n');
    }
    for outcome in outcomes {
        text += &report::line(outcome);
        text.push('\n');
    }
    text
}

const HEAD: &str = "\
# Random mixes of access links in virtual time, one CUBIC flow for 10 s, seed 1000: % of the ceiling, the ratio to plain TCP over the best
# path alone, seconds until 80 % of the ceiling, longest time without data. `mpt-lab trace population/1000/NUMBER --seed 1000` draws one.
# A change of the core changes this file: look at the difference, and accept it with
#     cargo run --release -p mpt-lab -- population --accept
#
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_contains_the_command_that_accepts_it() {
        assert!(HEAD.contains(ACCEPT));
    }
}
