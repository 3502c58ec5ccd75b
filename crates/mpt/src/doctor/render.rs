//! The result of all checks, as text and as JSON.

use std::time::Duration;

use serde::Serialize;

use super::checks::{CHECKS, Check, Finding, FindingSeverity};
use super::facts::{Config, FactSource, Facts};

/// The results of all checks.
#[derive(Debug, Serialize)]
pub struct Checked {
    interface: String,
    config: Option<String>,
    /// The program's version.
    version: &'static str,
    /// The kernel's release.
    kernel: Option<String>,
    checks: Vec<Result>,
    took_ms: u64,
}

/// The result of a check.
#[derive(Debug, Serialize)]
struct Result {
    name: &'static str,
    result: Verdict,
    /// The reason for which the check was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Wait for the source of its facts.
    waited_ms: u64,
    findings: Vec<Finding>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    Skipped,
    Warning,
    Failed,
}

impl Checked {
    /// Runs all checks.
    pub fn of(facts: &Facts) -> Self {
        let config = match &facts.config {
            Config::Absent => None,
            Config::Broken(path, _) => Some(path.display().to_string()),
            Config::Read(file) => Some(file.path.display().to_string()),
        };
        let (version, took_ms) = (env!("CARGO_PKG_VERSION"), milliseconds(facts.time));
        let kernel = facts.host.kernel.clone();
        Self { interface: facts.interface.clone(), config, version, kernel, checks: results(facts), took_ms }
    }

    /// Returns the number of checks with this result.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|check| check.result == verdict).count()
    }

    /// Formats the findings, the failures first, and a line with all counts.
    pub fn text(&self) -> String {
        let mut text = format!("{}  {}\n", self.interface, self.config.as_deref().unwrap_or("no configuration file"));
        for verdict in [Verdict::Failed, Verdict::Warning] {
            let checks = self.checks.iter().filter(|check| check.result == verdict);
            checks.for_each(|check| text += &check.text());
        }
        let skipped = self.checks.iter().filter_map(|check| Some((check.name, check.why.as_ref()?)));
        let unanswered: Vec<_> = skipped.filter(|(_, why)| *why != DOES_NOT_APPLY).collect();
        unanswered.iter().for_each(|(name, why)| text += &format!("\nskipped  {name}: {why}\n"));
        let [failed, warned, well, skipped] =
            [Verdict::Failed, Verdict::Warning, Verdict::Ok, Verdict::Skipped].map(|verdict| self.count(verdict));
        let seconds = self.took_ms as f64 / 1e3;
        text + &format!(
            "\n{} checks in {seconds:.1} s: {failed} failed, {warned} warned, {well} well, {skipped} skipped\n",
            self.checks.len()
        )
    }

    /// Formats all as JSON.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("names and numbers can be written as JSON");
        format!("{json}\n")
    }
}

impl Result {
    fn text(&self) -> String {
        let word = if self.result == Verdict::Failed { "FAILED " } else { "warning" };
        let findings = self.findings.iter().map(|finding| format!("  {}\n  cure: {}\n", finding.cause, finding.cure));
        format!("\n{word}  {}\n{}", self.name, findings.collect::<String>())
    }
}

fn results(facts: &Facts) -> Vec<Result> {
    CHECKS.iter().map(|check| result(check, facts)).collect()
}

fn result(check: &Check, facts: &Facts) -> Result {
    let wait = facts.waits.get(&check.source);
    let waited_ms = wait.map_or(0, |wait| milliseconds(wait.time));
    // Silence of the control socket or of a resolver is itself a finding. Other facts are then not known.
    let is_known =
        wait.is_none_or(|wait| wait.answered) || matches!(check.source, FactSource::Control | FactSource::Names);
    let outcome = if is_known { (check.run)(facts) } else { None };
    let (result, why) = match &outcome {
        Some(findings) => (worst(findings), None),
        None if is_known => (Verdict::Skipped, Some(DOES_NOT_APPLY.to_owned())),
        None => (Verdict::Skipped, Some(format!("no answer within {:.1} s", waited_ms as f64 / 1e3))),
    };
    Result { name: check.name, result, why, waited_ms, findings: outcome.unwrap_or_default() }
}

fn worst(findings: &[Finding]) -> Verdict {
    let has = |severity| findings.iter().any(|finding| finding.severity == severity);
    match (has(FindingSeverity::Failed), has(FindingSeverity::Warning)) {
        (true, _) => Verdict::Failed,
        (_, true) => Verdict::Warning,
        _ => Verdict::Ok,
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis() as u64
}

const DOES_NOT_APPLY: &str = "does not apply here";
