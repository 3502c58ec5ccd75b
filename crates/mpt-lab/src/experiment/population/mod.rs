//! Distributions over a population of random mixes: [`crate::plan::population`] draws them, the simulator runs them.

mod both_directions;
pub mod committed;
mod distribution;
mod idle_tunnel;
mod page_load;
pub mod report;

pub use distribution::Distribution;
pub use page_load::PageLoad;

use super::{ablation::call_beside_a_flow, ceiling, contender::Contender, parallel, result::Run, sim::Simulation};
use crate::{
    plan::{Case, Congestion, Metric, population::mix},
    traffic::bulk,
    tunnel::Mode,
};
use both_directions::shares_beside_each_other;
use idle_tunnel::flow_after_idle;
use mpt_proto::tuning::Tuning;
use mpt_sim::{link::PathSpec, seed::Seed};
use std::time::Duration;

/// Parameters of the runs.
#[derive(Clone, Copy, Debug)]
pub struct Population {
    /// Seed of the mixes.
    pub seed: Seed,
    /// Seed of the random numbers of each run.
    pub run_seed: Seed,
    /// Congestion control of the flow.
    pub congestion: Congestion,
    /// Length of a run.
    pub length: Duration,
    /// Also runs MPT over each single path and over all paths but one.
    pub parts: bool,
    /// Also runs a call beside the flow.
    pub call: bool,
    /// Also runs a flow in each direction at the same time, and each of them alone.
    pub both: bool,
    /// Also loads a page over all paths and over each path alone.
    pub page: bool,
    /// Also runs a flow that starts on an idle tunnel, after another one.
    pub idle: bool,
    /// Rules of the core that are on.
    pub tuning: Tuning,
}

/// Results of one mix.
#[derive(Clone, Debug)]
pub struct MixOutcome {
    /// Number of the mix.
    pub number: usize,
    /// Its paths.
    pub case: Case,
    /// Ceiling in Mbit/s.
    pub ceiling: f64,
    /// Goodput in Mbit/s through MPT.
    pub goodput: f64,
    /// Goodput of plain TCP over the best path alone.
    pub best: f64,
    /// Seconds until the flow had [`STARTED`] of the ceiling for [`WINDOW`]; the length of the run if it never had.
    pub start: f64,
    /// Seconds that the start may take: [`START_LIMIT`] or ten round trips of the slowest path that has [`USEFUL`] of
    /// all rates, whichever is longer.
    pub start_limit: f64,
    /// Longest time without delivered data in seconds, after the first data.
    pub stall: f64,
    /// Goodput over parts of the paths and, as the last entry, over all of them.
    pub parts: Vec<Part>,
    /// Delay that the flow adds to a call beside it.
    pub added: Option<AddedDelay>,
    /// Goodput of a flow in each direction beside the other one, divided by that alone; the smaller of both.
    pub both: Option<f64>,
    /// Load time of a page.
    pub page: Option<PageLoad>,
    /// The start of a flow on an idle tunnel, as `start`.
    pub start_after_idle: Option<f64>,
    /// Share of the ceiling in the last minute, divided by that in the second one; of runs of three minutes or more.
    pub last_minute: Option<f64>,
}

/// One-way delay of a call beside the flow, less the least delay of a path, in ms.
#[derive(Clone, Copy, Debug)]
pub struct AddedDelay {
    /// Median.
    pub median: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Goodput of MPT over a part of the paths.
#[derive(Clone, Debug)]
pub struct Part {
    /// Indices of the paths.
    pub paths: Vec<usize>,
    /// Goodput in Mbit/s from [`SETTLED`] on.
    pub goodput: f64,
}

/// Share of the ceiling at which a flow counts as started.
const STARTED: f64 = 0.8;
/// Time over which that share is measured.
const WINDOW: Duration = Duration::from_millis(500);
/// Least time that a start may take.
const START_LIMIT: Duration = Duration::from_secs(2);
/// Round trips that it may take.
const START_ROUNDS: u32 = 10;
/// Share of all rates from which on a path is useful.
const USEFUL: f64 = 0.05;
/// Start of the time in which all paths are compared with a part of them.
const SETTLED: Duration = Duration::from_secs(5);
/// Length of the first and of the last part of a long run that are compared.
const MINUTE: Duration = Duration::from_secs(60);
/// Interval of the goodput series.
const STEP: Duration = Duration::from_millis(100);

impl Population {
    /// Runs the mixes of these numbers on all processors. `progress` gets the number of finished mixes and the total.
    pub fn run(
        &self,
        numbers: impl IntoIterator<Item = usize>,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Vec<MixOutcome> {
        let numbers: Vec<usize> = numbers.into_iter().collect();
        parallel::map(numbers.len(), |index| self.outcome(numbers[index]), progress)
    }

    fn outcome(&self, number: usize) -> MixOutcome {
        let case = mix(self.seed, number).with_congestion(self.congestion);
        let all = self.simulate(&case, Contender::Mpt);
        let alone = (0..case.paths.len()).map(|path| goodput(&self.simulate(&case, Contender::Solo(path))));
        let best = alone.fold(0.0, f64::max);
        let part = |paths: Vec<usize>| {
            let selected = paths.iter().map(|path| case.paths[*path].clone()).collect();
            let run = self.simulate(&Case { paths: selected, ..case.clone() }, Contender::Mpt);
            Part { paths, goodput: self.settled(&run) }
        };
        let mut parts: Vec<Part> = match self.parts {
            true => parts(case.paths.len()).into_iter().map(part).collect(),
            false => Vec::new(),
        };
        parts.push(Part { paths: (0..case.paths.len()).collect(), goodput: self.settled(&all) });
        let ceiling = ceiling::between(&case, Duration::ZERO, self.length).expect("every path has a rate");
        let (start, stall) = (self.start(&case, &all, Duration::ZERO), self.stall(&all));
        let added = self.call.then(|| self.added_delay(&case));
        let last_minute = (self.length >= MINUTE * 3)
            .then(|| share_between(&case, &all, self.length - MINUTE) / share_between(&case, &all, MINUTE));
        let both = self.both.then(|| shares_beside_each_other(&self.simulation(&case)));
        let both = both.map(|shares| shares[0].min(shares[1]));
        let page = self.page.then(|| PageLoad::of(self, &case));
        let after_idle = self.idle.then(|| flow_after_idle(&self.simulation(&case)));
        let start_after_idle = after_idle.map(|run| self.start(&case, &run, idle_tunnel::BEFORE));
        let goodput = goodput(&all);
        let start_limit = start_limit(&case).as_secs_f64();
        MixOutcome {
            number,
            ceiling,
            goodput,
            best,
            start,
            start_limit,
            stall,
            parts,
            added,
            both,
            page,
            start_after_idle,
            last_minute,
            case,
        }
    }

    fn simulate(&self, case: &Case, contender: Contender) -> Run {
        self.simulation(case).run(contender).expect("one greedy TCP flow over constant paths")
    }

    fn simulation<'a>(&self, case: &'a Case) -> Simulation<'a> {
        Simulation {
            case,
            mode: Mode::Native,
            tuning: self.tuning,
            seed: self.run_seed,
            length: self.length,
            quick: true,
            offset: Duration::ZERO,
        }
    }

    fn added_delay(&self, case: &Case) -> AddedDelay {
        let least = case.paths.iter().map(|path| path.there.start.delay).min().unwrap_or_default();
        let call = call_beside_a_flow(&self.simulation(case));
        let added = |delay: f64| (delay - least.as_secs_f64() * 1e3).max(0.0);
        AddedDelay { median: added(call[0]), p99: added(call[1]) }
    }

    /// Returns the mean goodput in Mbit/s from [`SETTLED`] on.
    fn settled(&self, run: &Run) -> f64 {
        let skipped = (SETTLED.min(self.length / 2).as_millis() / STEP.as_millis()) as usize;
        let rates: Vec<f64> = run.goodput.iter().skip(skipped).map(|(_, rate)| *rate).collect();
        rates.iter().sum::<f64>() / rates.len().max(1) as f64
    }

    fn stall(&self, run: &Run) -> f64 {
        let first = run.arrivals.iter().find(|sample| sample.bytes > 0).map_or(Duration::ZERO, |sample| sample.at);
        bulk::longest_gap(&run.arrivals, first, self.length, self.length).as_secs_f64()
    }

    /// Returns the start of a flow that begins at `begin` of the links' schedules.
    fn start(&self, case: &Case, run: &Run, begin: Duration) -> f64 {
        let width = (WINDOW.as_millis() / STEP.as_millis()) as usize;
        let has_started = |end: &usize| {
            let to = STEP * *end as u32;
            let rate = run.goodput[end - width..*end].iter().map(|(_, rate)| rate).sum::<f64>() / width as f64;
            let ceiling = ceiling::between(case, begin + to - WINDOW, begin + to);
            ceiling.is_some_and(|ceiling| ceiling > 0.0 && rate >= STARTED * ceiling)
        };
        let end = (width..=run.goodput.len()).find(has_started);
        end.map_or(self.length, |end| STEP * end as u32).as_secs_f64()
    }
}

/// Returns the time that the start over these paths may take.
fn start_limit(case: &Case) -> Duration {
    let rate = |path: &PathSpec| path.there.start.rate.bits() as f64;
    let all = case.paths.iter().map(rate).sum::<f64>();
    let useful = case.paths.iter().filter(|path| rate(path) >= USEFUL * all);
    let slowest = useful.map(|path| path.there.start.delay + path.back.start.delay).max().unwrap_or_default();
    START_LIMIT.max(slowest * START_ROUNDS)
}

/// Returns the share of the ceiling in the minute that begins at `from`.
fn share_between(case: &Case, run: &Run, from: Duration) -> f64 {
    let index = |at: Duration| (at.as_millis() / STEP.as_millis()) as usize;
    let rates = &run.goodput[index(from)..index(from + MINUTE).min(run.goodput.len())];
    let mean = rates.iter().map(|(_, rate)| rate).sum::<f64>() / rates.len().max(1) as f64;
    mean / ceiling::between(case, from, from + MINUTE).expect("every path has a rate")
}

/// Returns each path alone and, of more than two paths, all but one.
fn parts(count: usize) -> Vec<Vec<usize>> {
    let alone = (0..count).map(|path| vec![path]);
    let without = (0..count).filter(|_| count > 2).map(|left| (0..count).filter(|path| *path != left).collect());
    alone.chain(without).collect()
}

fn goodput(run: &Run) -> f64 {
    run.metrics.get(&Metric::Goodput).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_has_goodput_below_its_ceiling_and_each_part_a_run() {
        let length = Duration::from_secs(2);
        let population = Population {
            seed: Seed(5),
            run_seed: Seed(6),
            congestion: Congestion::Cubic,
            length,
            parts: true,
            call: true,
            both: true,
            page: true,
            idle: true,
            tuning: Tuning::default(),
        };
        // The first mixes that are quick to simulate.
        let is_slow = |number: &usize| {
            let ceiling = ceiling::between(&mix(population.seed, *number), Duration::ZERO, length);
            ceiling.is_some_and(|mbit| mbit < 60.0)
        };
        for number in (0..).filter(is_slow).take(2) {
            let [outcome] = &population.run([number], &|_, _| ())[..] else { panic!("one outcome") };
            assert!(outcome.goodput > 0.0 && outcome.share() < 1.02 && outcome.best > 0.0, "{outcome:?}");
            assert!(outcome.start <= 2.0 && outcome.stall <= 2.0, "{outcome:?}");
            assert!(outcome.added.is_some_and(|added| added.median <= added.p99), "{outcome:?}");
            assert!(outcome.both.is_some_and(|both| both > 0.0 && both < 1.5), "{outcome:?}");
            let page = outcome.page.expect("a page was loaded");
            assert!(page.seconds > 0.0 && page.of_best > 0.0 && page.of_mpt_over_best < 2.0, "{outcome:?}");
            assert!(outcome.start_after_idle.is_some_and(|start| start > 0.0 && start <= 2.0), "{outcome:?}");
            assert_eq!(outcome.parts.len(), parts(outcome.case.paths.len()).len() + 1);
            let again = population.run([number], &|_, _| ());
            assert_eq!(report::line(&again[0]), report::line(outcome));
            let table = report::table(&again);
            assert!(table.contains("of the ceiling") && table.contains("of MPT over a part of the paths"), "{table}");
            let trace = format!("mpt-lab trace population/5/{number} --seed 6 --seconds 2");
            assert!(report::worst(&again, [5, 6], 2).contains(&trace));
        }
    }

    #[test]
    fn the_parts_are_each_path_and_all_but_one() {
        assert_eq!(parts(2), [vec![0], vec![1]]);
        assert_eq!(parts(3), [vec![0], vec![1], vec![2], vec![1, 2], vec![0, 2], vec![0, 1]]);
    }
}
