//! Checks claims against results.

use crate::{
    experiment::{
        Options,
        result::{CaseResult, Outcome, Substrate},
    },
    plan::{Claim, Metric, Plan, Reference},
    tunnel::Mode,
};
use std::fmt;

/// The verdict on a claim for one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The case.
    pub case: String,
    /// The verdict.
    pub verdict: ClaimVerdict,
    /// The reason.
    pub reason: String,
}

/// Result of checking a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// The bound is kept.
    Reproduced,
    /// The bound is kept, and the paper's figure is surpassed.
    Beaten,
    /// The bound is not kept.
    Missed,
    /// There is no figure to compare.
    Open,
}

impl ClaimVerdict {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Beaten => "beaten",
            Self::Missed => "missed",
            Self::Open => "open",
        }
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<10} {:<14} {}", self.verdict.name(), self.case, self.reason)
    }
}

/// Checks every claim of a plan that applies to the mode of the run.
pub fn judge(plan: &Plan, results: &[&CaseResult], options: &Options) -> Vec<Judgement> {
    let original = options.mode == Mode::Original;
    let mut judgements = Vec::new();
    for claim in plan.claims.iter().filter(|claim| claim.original == original) {
        let concerned = |result: &&&CaseResult| claim.cases.is_empty() || claim.cases.contains(&result.case);
        for result in results.iter().filter(concerned) {
            let published = plan.cases.iter().find(|case| case.name == result.case);
            let published = published.and_then(|case| case.published.get(&claim.metric)).copied();
            // The papers publish most cases of a grid only as a picture.
            if claim.of != Reference::Published || published.is_some() {
                let base = result.case.rsplit_once('/').map_or("", |(base, _)| base);
                let base = results.iter().find(|result| result.case == base).copied();
                judgements.push(of_case(claim, result, base, published));
            }
        }
    }
    judgements
}

fn of_case(claim: &Claim, result: &CaseResult, base: Option<&CaseResult>, published: Option<f64>) -> Judgement {
    let case = result.case.clone();
    if let Some(reason) = failure(claim, result) {
        return Judgement { case, verdict: ClaimVerdict::Missed, reason };
    }
    let ours = result.ours().and_then(|ours| ours.median(claim.metric));
    let reference = reference(claim, result, base, published);
    let (Some(ours), Some(reference)) = (ours, reference.filter(|reference| *reference > 0.0)) else {
        let missing = if ours.is_none() { "MPT has no" } else { "no reference for" };
        let why = result.ours().and_then(|ours| ours.absent.clone()).unwrap_or_default();
        let reason = format!("{missing} {} {}: {why}", claim.metric.title(), claim.of.name());
        return Judgement { case, verdict: ClaimVerdict::Open, reason };
    };
    let ratio = ours / reference;
    let kept = claim.at_least.is_none_or(|least| ratio >= least) && claim.at_most.is_none_or(|most| ratio <= most);
    let surpassed =
        published.is_some_and(|figure| if claim.metric.more_is_better() { ours > figure } else { ours < figure });
    let verdict = match (kept, surpassed && !claim.original) {
        (true, true) => ClaimVerdict::Beaten,
        (true, false) => ClaimVerdict::Reproduced,
        (false, _) => ClaimVerdict::Missed,
    };
    Judgement { case, verdict, reason: reason(claim, ours, reference) }
}

/// Returns a failure if a repetition of MPT lacks the figure. In the simulator a missing figure is not a failure.
fn failure(claim: &Claim, result: &CaseResult) -> Option<String> {
    let ours = result.ours().filter(|_| result.substrate != Substrate::Sim)?;
    let (count, of) = (ours.count(claim.metric), result.repetitions);
    let why = ours.absent.clone().unwrap_or_default();
    (count < of as usize).then(|| format!("MPT has a {} in {count} of {of} runs: {why}", claim.metric.title()))
}

fn reference(claim: &Claim, result: &CaseResult, base: Option<&CaseResult>, published: Option<f64>) -> Option<f64> {
    let of = |outcome: &Outcome| outcome.median(claim.metric);
    match claim.of {
        Reference::Ceiling => result.ceiling.filter(|_| claim.metric == Metric::Goodput),
        Reference::Ideal => result.outcome("ideal").and_then(of),
        Reference::Mptcp => result.outcome("mptcp").and_then(of),
        Reference::Solo if claim.metric.more_is_better() => result.solo().filter_map(of).max_by(f64::total_cmp),
        Reference::Solo => result.solo().filter_map(of).min_by(f64::total_cmp),
        Reference::Stem => base.and_then(CaseResult::ours).and_then(of),
        Reference::Published => published,
        Reference::Unit => Some(1.0),
    }
}

fn reason(claim: &Claim, ours: f64, reference: f64) -> String {
    let (unit, title) = (claim.metric.unit(), claim.metric.title());
    if claim.of == Reference::Unit {
        let bound = bounds(claim, |bound| format!("{bound} {unit}"));
        return format!("{title} {ours:.2} {unit}, claimed {bound}");
    }
    let bound = bounds(claim, |bound| format!("{:.0} %", bound * 100.0));
    let percent = ours / reference * 100.0;
    format!("{title} {ours:.2} {unit} is {percent:.1} % of the {} ({reference:.2}), claimed {bound}", claim.of.name())
}

fn bounds(claim: &Claim, written: impl Fn(f64) -> String) -> String {
    let least = claim.at_least.map(|bound| format!("at least {}", written(bound)));
    let most = claim.at_most.map(|bound| format!("at most {}", written(bound)));
    least.into_iter().chain(most).collect::<Vec<_>>().join(" and ")
}

impl Reference {
    /// Returns the name used in reasons.
    fn name(self) -> &'static str {
        match self {
            Self::Ceiling => "ceiling",
            Self::Ideal => "ideal single link",
            Self::Solo => "best path alone",
            Self::Mptcp => "kernel's MPTCP",
            Self::Stem => "single CUBIC flow",
            Self::Published => "published figure",
            Self::Unit => "bound",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::result::Run, plan};

    fn verdicts(key: &str, mode: Mode, mbit: f64, ceiling: f64) -> Vec<ClaimVerdict> {
        let run = Run { metrics: [(Metric::Goodput, mbit)].into(), ..Run::default() };
        of_runs(key, mode, CaseResult { ceiling: Some(ceiling), ..CaseResult::default() }, vec![run])
    }

    fn of_runs(key: &str, mode: Mode, result: CaseResult, runs: Vec<Run>) -> Vec<ClaimVerdict> {
        let plans = plan::select(key).unwrap();
        let ours = Outcome { name: "mpt".into(), absent: None, runs };
        let result = CaseResult { case: plans[0].cases[0].name.clone(), outcomes: vec![ours], ..result };
        let options = Options {
            keys: vec![],
            quick: true,
            seed: 1,
            substrate: Substrate::Netns,
            mode,
            against: vec![],
            build: String::new(),
        };
        judge(&plans[0], &[&result], &options).iter().map(|judgement| judgement.verdict).collect()
    }

    #[test]
    fn the_best_path_alone_has_the_most_goodput_or_the_least_delay() {
        let run = |mbit, ms| Run { metrics: [(Metric::Goodput, mbit), (Metric::Delay, ms)].into(), ..Run::default() };
        let path = |name: &str, run| Outcome { name: name.into(), absent: None, runs: vec![run] };
        let outcomes = vec![path("path 1", run(50.0, 10.0)), path("path 2", run(20.0, 5.0))];
        let result = CaseResult { outcomes, ..CaseResult::default() };
        let solo = |metric| {
            let of = Reference::Solo;
            let claim = Claim { metric, of, at_least: Some(1.0), at_most: None, cases: Vec::new(), original: false };
            reference(&claim, &result, None, None)
        };
        assert_eq!((solo(Metric::Goodput), solo(Metric::Delay)), (Some(50.0), Some(5.0)));
    }

    #[test]
    fn a_repetition_without_a_figure_is_a_miss_except_in_the_simulator() {
        let run = Run { metrics: [(Metric::Goodput, 99.0)].into(), ..Run::default() };
        let three = |substrate| CaseResult { ceiling: Some(103.0), repetitions: 3, substrate, ..CaseResult::default() };
        let verdicts = |substrate, runs| of_runs("E1.I/50", Mode::Plain, three(substrate), runs);
        assert_eq!(verdicts(Substrate::Netns, vec![run.clone(); 2]), [ClaimVerdict::Missed]);
        assert_eq!(verdicts(Substrate::Netns, vec![]), [ClaimVerdict::Missed]);
        assert_eq!(verdicts(Substrate::Netns, vec![run.clone(), run.clone(), Run::default()]), [ClaimVerdict::Missed]);
        assert_eq!(verdicts(Substrate::Netns, vec![run; 3]), [ClaimVerdict::Beaten]);
        assert_eq!(verdicts(Substrate::Sim, vec![]), [ClaimVerdict::Open]);
    }

    #[test]
    fn a_claim_is_beaten_missed_or_reproduced() {
        // Published: 52.65. The claims: 95 % of the ceiling, and within 25 % of the paper in the paper's mode.
        assert_eq!(verdicts("E1.I/50", Mode::Plain, 99.0, 103.0), [ClaimVerdict::Beaten]);
        assert_eq!(verdicts("E1.I/50", Mode::Plain, 90.0, 103.0), [ClaimVerdict::Missed]);
        assert_eq!(verdicts("E1.I/50", Mode::Original, 60.0, 103.0), [ClaimVerdict::Reproduced]);
        assert_eq!(verdicts("E1.I/50", Mode::Original, 70.0, 103.0), [ClaimVerdict::Missed]);
        assert!(verdicts("rtt_40", Mode::Plain, 90.0, 100.0).contains(&ClaimVerdict::Open), "there is no reference");
    }
}
