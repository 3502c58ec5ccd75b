//! Runs plans: for every case each path alone, a single link of the summed rate, MPT, and what it is compared with.
//!
//! ```text
//! plans -> Task (case x contender x repetition) -> substrate -> Run -> Store (a line as soon as a case is done)
//!                                                                        -> record (JSON lines), report (HTML, CSV)
//! ```
//!
//! [`contender`] brings a contender up and takes it down, [`measure`] lets the traffic run and watches, [`store`] remembers,
//! so that a run that was interrupted goes on where it was. What cannot be measured is told with its reason.

pub mod ceiling;
pub mod contender;
pub mod matrix;
mod measure;
mod outage;
pub mod record;
pub mod result;
mod sim;
pub mod store;
pub mod trace;

use crate::{
    error::{LabError, Result, require},
    plan::{Case, Plan},
    progress::Progress,
    topology::{self, Topology},
    tunnel::Mode,
};
use contender::{Contender, Floor, Ground};
use measure::Measurement;
use mpt_sim::seed::Seed;
use result::{CaseResult, Outcome, Run, Substrate};
use serde::{Deserialize, Serialize};
use sim::Simulation;
use std::time::{Duration, Instant};
use store::Store;

/// What is the same for all cases of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// What was asked for: keys of plans.
    pub keys: Vec<String>,
    /// Fewer cases, shorter, once.
    pub quick: bool,
    /// Of all chance.
    pub seed: u64,
    /// Where it is measured.
    pub substrate: Substrate,
    /// How MPT speaks.
    pub mode: Mode,
    /// What it is compared with, by name.
    pub against: Vec<String>,
}

impl Options {
    /// The cases of a plan that are run.
    pub fn cases<'p>(&self, plan: &'p Plan) -> impl Iterator<Item = &'p Case> {
        let quick = self.quick;
        plan.cases.iter().filter(move |case| case.quick || !quick)
    }

    /// How often each is measured.
    pub fn repetitions(&self, plan: &Plan) -> u32 {
        if self.quick { 1 } else { plan.repetitions }
    }

    /// MPT, and whom it is compared with in `case`.
    fn contenders(&self, case: &Case) -> Vec<Contender> {
        let wanted = self.against.iter().flat_map(|name| Contender::named(name, case));
        wanted.chain([Contender::Mpt]).collect()
    }
}

/// Runs what `store` does not have yet. `progress` is told what is done and how long the rest takes.
///
/// # Errors
/// What keeps the laboratory as a whole from working; a contender that fails is part of the results.
pub fn run(plans: &[Plan], options: &Options, store: &mut Store, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    if options.substrate != Substrate::Sim {
        topology::check_privileges().map_err(|_| LabError::NotRootHere)?;
        let cases = plans.iter().flat_map(|plan| options.cases(plan));
        cases.flat_map(measure::tools).try_for_each(require)?;
    }
    let mut clock = Clock::new(plans, options, store);
    for plan in plans {
        for case in options.cases(plan) {
            if store.find(&plan.key, &case.name).is_none() {
                let result = Session { plan, case, options, clock: &mut clock, progress, faults: 0 }.run()?;
                store.add(result)?;
            }
        }
    }
    Ok(())
}

/// One case.
struct Session<'a> {
    plan: &'a Plan,
    case: &'a Case,
    options: &'a Options,
    clock: &'a mut Clock,
    progress: &'a mut dyn FnMut(Progress),
    /// Frames that wires have missed.
    faults: u64,
}

impl Session<'_> {
    fn run(&mut self) -> Result<CaseResult> {
        match self.options.substrate {
            Substrate::Netns | Substrate::Emu => self.on_the_wire(),
            Substrate::Sim => Ok(self.in_virtual_time()),
        }
    }

    fn on_the_wire(&mut self) -> Result<CaseResult> {
        let (case, mode, seed) = (self.case, self.options.mode, self.seed());
        let topology = Topology::build(&Topology::unique_name(), &case.paths, seed)?;
        let mut outcomes = Vec::new();
        for contender in self.options.contenders(case) {
            let ground = Ground { topology: &topology, case, mode, seed };
            outcomes.push(self.contend(contender, &|session, _| session.once(&ground, &contender)));
        }
        self.faults += topology.faults()?;
        Ok(self.result(outcomes))
    }

    fn in_virtual_time(&mut self) -> CaseResult {
        let (length, quick, mode) = (self.length(), self.options.quick, self.options.mode);
        let mut outcomes = Vec::new();
        for contender in self.options.contenders(self.case) {
            outcomes.push(self.contend(contender, &|session, repetition| {
                session.tell(&contender, 0.0);
                let seed = session.seed().fork(&format!("repetition {repetition}"));
                Simulation { case: session.case, mode, seed, length, quick }.run(contender)
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

    /// All repetitions of one contender; the first failure ends them.
    fn contend(&mut self, contender: Contender, once: &dyn Fn(&mut Self, u32) -> Result<Run>) -> Outcome {
        let mut outcome = Outcome { name: contender.name(), absent: None, runs: Vec::new() };
        for repetition in 0..self.options.repetitions(self.plan) {
            let run = once(self, repetition);
            topology::hold_if_ending();
            match run {
                Ok(run) => outcome.runs.push(run),
                Err(error) => outcome.absent = Some(error.to_string()),
            }
            self.clock.step(self.length());
            if outcome.absent.is_some() {
                break;
            }
        }
        outcome
    }

    fn once(&mut self, ground: &Ground<'_>, contender: &Contender) -> Result<Run> {
        self.tell(contender, 0.0);
        let standing = contender.stand(ground)?;
        let Options { mode, quick, .. } = *self.options;
        let (case, length, events) = (self.case, self.length(), contender.meets_events());
        let measurement = Measurement { case, standing: &standing, mode, length, quick, events };
        let run = measurement.run(&mut |share| self.tell(contender, share))?;
        if let Floor::Own(topology) = &standing.topology {
            self.faults += topology.faults()?;
        }
        Ok(run)
    }

    fn tell(&mut self, contender: &Contender, share: f64) {
        let what = format!("{}/{}: {}", self.plan.key, self.case.name, contender.name());
        let progress = self.clock.progress(what, share, self.length());
        (self.progress)(progress);
    }
}

/// Knows how much is left to do.
struct Clock {
    started: Instant,
    step: usize,
    of: usize,
    /// Length of the measurements done and of all.
    done: Duration,
    total: Duration,
}

impl Clock {
    fn new(plans: &[Plan], options: &Options, store: &Store) -> Self {
        let mut clock = Self { started: Instant::now(), step: 0, of: 0, done: Duration::ZERO, total: Duration::ZERO };
        for plan in plans {
            for case in options.cases(plan).filter(|case| store.find(&plan.key, &case.name).is_none()) {
                let runs = options.contenders(case).len() as u32 * options.repetitions(plan);
                clock.of += runs as usize;
                clock.total += plan.length.of(options.quick) * runs;
            }
        }
        clock
    }

    fn step(&mut self, length: Duration) {
        self.step += 1;
        self.done += length;
    }

    /// What is left takes as much longer than its measurements as what is done did.
    fn progress(&self, what: String, share: f64, length: Duration) -> Progress {
        let done = self.done + length.mul_f64(share);
        let pace = self.started.elapsed().as_secs_f64() / done.as_secs_f64().max(0.1);
        let remaining = (done > Duration::from_secs(1)).then(|| (self.total - done.min(self.total)).mul_f64(pace));
        let share = done.as_secs_f64() / self.total.as_secs_f64().max(0.1);
        Progress { step: self.step + 1, of: self.of, what, share: share.min(1.0), remaining }
    }
}
