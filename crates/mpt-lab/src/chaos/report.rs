//! The result of a run, as a table.

use super::fault::FaultKind;
use mpt_sim::seed::Seed;
use std::{fmt, time::Duration};

/// Result of one fault.
#[derive(Clone, Copy, Debug)]
pub struct FaultOutcome {
    /// The fault's kind.
    pub kind: FaultKind,
    /// Longest time without an answer over UDP, less the blackout.
    pub recovery: Duration,
    /// The same for progress of the TCP connection.
    pub tcp: Duration,
    /// Time from the end of the fault until both paths are up at both ends and everything flows.
    pub whole: Duration,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct ChaosReport {
    /// The seed.
    pub seed: Seed,
    /// A result for each fault after which the tunnel recovered.
    pub outcomes: Vec<FaultOutcome>,
    /// Losses, growth and remains, with seed and fault.
    pub failures: Vec<String>,
    /// Recoveries beyond their limits, with seed and fault. Other load of the machine may cause them.
    pub late: Vec<String>,
    /// True if the tunnel did not recover, so that the run ended early.
    pub aborted: bool,
    /// Amounts of the traffic.
    pub traffic: String,
    /// Memory and descriptors of A and of B.
    pub footprint: [String; 2],
}

impl ChaosReport {
    pub(super) fn new(seed: Seed) -> Self {
        let (traffic, footprint) = (String::new(), Default::default());
        Self { seed, outcomes: Vec::new(), failures: Vec::new(), late: Vec::new(), aborted: false, traffic, footprint }
    }
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["median", "max", "limit", "TCP max", "whole max"];
        write!(f, "{:<22} {:>3}", "fault", "n")?;
        columns.iter().try_for_each(|column| write!(f, " {column:>9}"))?;
        writeln!(f)?;
        for kind in FaultKind::ALL {
            let mut of: Vec<&FaultOutcome> = self.outcomes.iter().filter(|outcome| outcome.kind == kind).collect();
            of.sort_by_key(|outcome| outcome.recovery);
            let Some(longest) = of.last() else { continue };
            let tcp = of.iter().map(|outcome| outcome.tcp).max().unwrap_or_default();
            let whole = of.iter().map(|outcome| outcome.whole).max().unwrap_or_default();
            write!(f, "{:<22} {:>3}", kind.name(), of.len())?;
            for time in [of[of.len() / 2].recovery, longest.recovery, kind.limit(), tcp, whole] {
                write!(f, " {:>7.2} s", time.as_secs_f64())?;
            }
            writeln!(f)?;
        }
        writeln!(f, "traffic: {}", self.traffic)?;
        for (host, line) in ["A", "B"].iter().zip(&self.footprint) {
            writeln!(f, "host {host}: {line}")?;
        }
        self.late.iter().try_for_each(|late| writeln!(f, "LATE: {late}"))?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "FAILED: {failure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_kind_that_occurred_and_all_failures() {
        let mut report = ChaosReport::new(Seed(3));
        let seconds = Duration::from_secs;
        for recovery in [3, 1, 2] {
            let recovery = seconds(recovery);
            report.outcomes.push(FaultOutcome {
                kind: FaultKind::KillResponder,
                recovery,
                tcp: seconds(4),
                whole: seconds(5),
            });
        }
        report.failures.push("seed 3, fault 1".into());
        let text = report.to_string();
        let row = text.lines().nth(1).expect("a row").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row, "B killed, restarted 3 2.00 s 3.00 s 5.00 s 4.00 s 5.00 s");
        assert!(text.ends_with("FAILED: seed 3, fault 1\n") && !text.contains("SIGSTOP"), "{text}");
    }
}
