//! The result of the churn as tables.

use std::fmt;
use std::time::Duration;

use super::event::EventKind;
use super::samples::Samples;

/// Result of one event.
#[derive(Clone, Copy, Debug)]
pub struct EventOutcome {
    /// The event's kind.
    pub kind: EventKind,
    /// Time from the return of what was away until everything was whole.
    pub recovery: Duration,
    /// The longest wait for an answer over the connections, since the begin of the event.
    pub wait: Duration,
}

/// Result of a run.
#[derive(Debug)]
pub struct ChurnReport {
    /// Length of the run.
    pub length: Duration,
    /// A result for each event.
    pub outcomes: Vec<EventOutcome>,
    /// Everything that was not whole within a minute or was lost, with seed, event and time.
    pub violations: Vec<String>,
    /// Connections that were lost and should have lived.
    pub lost: usize,
    /// Connections that were made again, because their site was stopped or revoked.
    pub renewed: usize,
    /// Memory, descriptors and counts.
    pub samples: Samples,
}

impl ChurnReport {
    /// Returns true if nothing was violated and everything is flat.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.lost == 0 && self.samples.uneven() == 0
    }
}

impl fmt::Display for ChurnReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {:>6} {:>12} {:>8} {:>12}", "", "", "whole after", "", "longest wait")?;
        writeln!(f, "{:<18} {:>6} {:>12} {:>8} {:>12}", "event", "n", "median, s", "max, s", "for TCP, s")?;
        for kind in EventKind::ALL {
            let mut of: Vec<_> = self.outcomes.iter().filter(|outcome| outcome.kind == kind).collect();
            of.sort_by_key(|outcome| outcome.recovery);
            let Some(longest) = of.last() else { continue };
            let wait = of.iter().map(|outcome| outcome.wait).max().unwrap_or_default();
            let [median, max, wait] =
                [of[of.len() / 2].recovery, longest.recovery, wait].map(|time| time.as_secs_f64());
            writeln!(f, "{:<18} {:>6} {median:>12.1} {max:>8.1} {wait:>12.1}", kind.name(), of.len())?;
        }
        writeln!(f, "\n{}", self.samples)?;
        let (count, minutes) = (self.outcomes.len(), self.length.as_secs_f64() / 60.0);
        writeln!(
            f,
            "{count} events in {minutes:.1} min; TCP connections lost: {}, renewed: {}",
            self.lost, self.renewed
        )?;
        let uneven = self.samples.uneven();
        let verdict = if uneven == 0 { "flat".to_owned() } else { format!("NOT FLAT: {uneven} rows") };
        writeln!(f, "verdict: {verdict}; violations: {}", self.violations.len())?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "VIOLATION: {violation}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_the_longest_recovery_of_each_kind_and_all_violations() {
        let seconds = Duration::from_secs;
        let outcome = |recovery, wait| EventOutcome {
            kind: EventKind::KillServer,
            recovery: seconds(recovery),
            wait: seconds(wait),
        };
        let mut report = ChurnReport {
            length: seconds(90),
            outcomes: vec![outcome(3, 1), outcome(1, 2), outcome(2, 1)],
            violations: Vec::new(),
            lost: 0,
            renewed: 4,
            samples: Samples::new(seconds(90)),
        };
        assert!(report.is_good());
        report.violations.push("seed 1, event 2".into());
        assert!(!report.is_good());
        let text = report.to_string();
        let row = text.lines().nth(2).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row, "server killed 3 2.0 3.0 2.0");
        assert!(text.ends_with("verdict: flat; violations: 1\nVIOLATION: seed 1, event 2\n"), "{text}");
    }
}
