//! Runs plans: for every case each path alone, a single link of the summed rate, MPT, and the other contenders.
//!
//! ```text
//! plans -> Task (case x contender x repetition) -> substrate -> Run -> Store (a line as soon as a case is done)
//!                                                                        -> record (JSON lines), report (HTML, CSV)
//! ```
//!
//! [`contender`] starts and stops a contender, [`measure`] runs traffic and events, [`store`] saves results so that an
//! interrupted run continues. Anything that cannot be measured is reported with its reason.

pub mod ablation;
pub mod ceiling;
pub mod contender;
pub mod cost;
pub mod matrix;
mod measure;
pub mod origin;
mod outage;
mod page;
mod parallel;
pub mod population;
pub mod record;
pub mod result;
mod sim;
mod statistics;
pub mod store;
pub mod trace;

use crate::{
    error::{LabError, Result, require},
    plan::{Case, Plan},
    progress::Progress,
    topology::{self, Topology},
    tunnel::Mode,
};
use contender::{Contender, Testbed, TopologyRef};
use measure::Measurement;
use mpt_proto::tuning::Tuning;
use mpt_sim::seed::Seed;
use result::{CaseResult, Outcome, Run, Substrate};
use serde::{Deserialize, Serialize};
use sim::Simulation;
use std::time::{Duration, Instant};
use store::Store;

/// Options that apply to all cases of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Requested plan keys.
    pub keys: Vec<String>,
    /// True for a quick run: fewer and shorter cases, one repetition.
    pub quick: bool,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Substrate of the run.
    pub substrate: Substrate,
    /// Protocol mode of MPT.
    pub mode: Mode,
    /// Names of the contenders to compare with.
    pub against: Vec<String>,
    /// Commit of the source tree that runs, with `-dirty` if files differ; empty outside of a source tree.
    #[serde(default)]
    pub build: String,
}

impl Options {
    /// Returns the cases of a plan that are run.
    pub fn cases<'p>(&self, plan: &'p Plan) -> impl Iterator<Item = &'p Case> {
        let quick = self.quick;
        plan.cases.iter().filter(move |case| case.quick || !quick)
    }

    /// Returns the number of repetitions of each case.
    pub fn repetitions(&self, plan: &Plan) -> u32 {
        if self.quick { 1 } else { plan.repetitions }
    }

    /// Returns MPT and the contenders to compare it with in `case`.
    fn contenders(&self, case: &Case) -> Vec<Contender> {
        let others = self.against.iter().flat_map(|name| Contender::named(name, case));
        others.chain([Contender::Mpt]).collect()
    }
}

/// Runs all cases that `store` lacks. `progress` gets the finished part and the remaining time.
///
/// # Errors
/// Returns errors of the laboratory as a whole; failures of single contenders are part of the results.
pub fn run(plans: &[Plan], options: &Options, store: &mut Store, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    if options.substrate != Substrate::Sim {
        topology::check_privileges().map_err(|_| LabError::NotRootHere)?;
        let cases = plans.iter().flat_map(|plan| options.cases(plan));
        cases.flat_map(measure::tools).try_for_each(require)?;
    }
    let mut estimator = ProgressEstimator::new(plans, options, store);
    for plan in plans {
        for case in options.cases(plan) {
            if store.find(&plan.key, &case.name).is_none() {
                let result = Session { plan, case, options, estimator: &mut estimator, progress, faults: 0 }.run()?;
                store.add(result)?;
            }
        }
    }
    Ok(())
}

/// One case in progress.
struct Session<'a> {
    plan: &'a Plan,
    case: &'a Case,
    options: &'a Options,
    estimator: &'a mut ProgressEstimator,
    progress: &'a mut dyn FnMut(Progress),
    /// Frames that the wire missed.
    faults: u64,
}

impl Session<'_> {
    fn run(&mut self) -> Result<CaseResult> {
        match self.options.substrate {
            Substrate::Netns | Substrate::Emu => self.run_emulated(),
            Substrate::Sim => Ok(self.run_simulated()),
        }
    }

    fn run_emulated(&mut self) -> Result<CaseResult> {
        let (case, mode, seed) = (self.case, self.options.mode, self.seed());
        let topology = Topology::build(&Topology::unique_name(), &case.paths, seed)?;
        let mut outcomes = Vec::new();
        for contender in self.options.contenders(case) {
            let testbed = Testbed { topology: &topology, case, mode, seed };
            outcomes.push(self.repeat(contender, &|session, _| session.run_once(&testbed, &contender)));
        }
        self.faults += topology.faults()?;
        Ok(self.result(outcomes))
    }

    fn run_simulated(&mut self) -> CaseResult {
        let (length, quick, mode) = (self.length(), self.options.quick, self.options.mode);
        let mut outcomes = Vec::new();
        for contender in self.options.contenders(self.case) {
            outcomes.push(self.repeat(contender, &|session, repetition| {
                session.report(&contender, 0.0);
                let seed = session.seed().fork(&format!("repetition {repetition}"));
                let tuning = Tuning::default();
                Simulation { case: session.case, mode, tuning, seed, length, quick, offset: Duration::ZERO }
                    .run(contender)
            }));
        }
        self.result(outcomes)
    }

    fn seed(&self) -> Seed {
        Seed(self.options.seed).fork(&format!("{}/{}", self.plan.key, self.case.name))
    }

    fn length(&self) -> Duration {
        self.plan.length.of(self.options.quick)
    }

    fn result(&self, outcomes: Vec<Outcome>) -> CaseResult {
        let (case, options) = (self.case, self.options);
        CaseResult {
            experiment: self.plan.key.clone(),
            case: case.name.clone(),
            at: case.at.clone(),
            substrate: options.substrate,
            seed: options.seed,
            repetitions: options.repetitions(self.plan),
            ceiling: ceiling::of(case, options.mode, self.length(), options.quick),
            faults: self.faults,
            outcomes,
        }
    }

    /// Runs all repetitions of one contender; stops at the first failure.
    fn repeat(&mut self, contender: Contender, once: &dyn Fn(&mut Self, u32) -> Result<Run>) -> Outcome {
        let mut outcome = Outcome { name: contender.name(), absent: None, runs: Vec::new() };
        for repetition in 0..self.options.repetitions(self.plan) {
            let run = once(self, repetition);
            topology::park_if_ending();
            match run {
                Ok(run) => outcome.runs.push(run),
                Err(error) => outcome.absent = Some(error.to_string()),
            }
            self.estimator.step(self.length());
            if outcome.absent.is_some() {
                break;
            }
        }
        outcome
    }

    fn run_once(&mut self, testbed: &Testbed<'_>, contender: &Contender) -> Result<Run> {
        self.report(contender, 0.0);
        let running = contender.start(testbed)?;
        let Options { mode, quick, .. } = *self.options;
        let (case, length, events) = (self.case, self.length(), contender.is_subject_to_events());
        let measurement = Measurement { case, running: &running, mode, length, quick, events };
        let run = measurement.run(&mut |share| self.report(contender, share))?;
        if let TopologyRef::Own(topology) = &running.topology {
            self.faults += topology.faults()?;
        }
        Ok(run)
    }

    fn report(&mut self, contender: &Contender, share: f64) {
        let what = format!("{}/{}: {}", self.plan.key, self.case.name, contender.name());
        let progress = self.estimator.progress(what, share, self.length());
        (self.progress)(progress);
    }
}

/// Estimates the remaining time.
struct ProgressEstimator {
    started: Instant,
    step: usize,
    of: usize,
    /// Total length of the finished measurements and of all measurements.
    done: Duration,
    total: Duration,
}

impl ProgressEstimator {
    fn new(plans: &[Plan], options: &Options, store: &Store) -> Self {
        let mut estimator =
            Self { started: Instant::now(), step: 0, of: 0, done: Duration::ZERO, total: Duration::ZERO };
        for plan in plans {
            for case in options.cases(plan).filter(|case| store.find(&plan.key, &case.name).is_none()) {
                let runs = options.contenders(case).len() as u32 * options.repetitions(plan);
                estimator.of += runs as usize;
                estimator.total += plan.length.of(options.quick) * runs;
            }
        }
        estimator
    }

    fn step(&mut self, length: Duration) {
        self.step += 1;
        self.done += length;
    }

    /// Assumes that the remaining measurements have the same overhead in proportion to their length as the finished
    /// ones.
    fn progress(&self, what: String, share: f64, length: Duration) -> Progress {
        let done = self.done + length.mul_f64(share);
        let pace = self.started.elapsed().as_secs_f64() / done.as_secs_f64().max(0.1);
        let remaining = (done > Duration::from_secs(1)).then(|| (self.total - done.min(self.total)).mul_f64(pace));
        let share = done.as_secs_f64() / self.total.as_secs_f64().max(0.1);
        Progress { step: self.step + 1, of: self.of, what, share: share.min(1.0), remaining }
    }
}
