//! Page loads over all paths and over the best path alone.

use super::Population;
use crate::{
    experiment::{page, sim::Simulation},
    plan::Case,
};
use std::time::Duration;

/// Load time of a page through MPT over all paths, beside that over the best path alone: the one over which plain TCP
/// loads it in the least time.
#[derive(Clone, Copy, Debug)]
pub struct PageLoad {
    /// Mean load time over all paths in seconds.
    pub seconds: f64,
    /// This time divided by that of plain TCP over the best path.
    pub of_best: f64,
    /// The same divided by that of MPT over the best path, which has the tunnel's headers, too.
    pub of_mpt_over_best: f64,
}

impl PageLoad {
    /// Loads [`LOADS`] pages one at a time, each in a tunnel of its own and over each path alone.
    pub(super) fn of(population: &Population, case: &Case) -> Self {
        let mean = |case: &Case, time: &dyn Fn(&Simulation<'_>) -> f64| {
            let seed = |load: usize| population.seed.fork(&format!("page {}/{load}", case.name));
            let simulation = |load| Simulation { seed: seed(load), length: LIMIT, ..population.simulation(case) };
            (0..LOADS).map(|load| time(&simulation(load))).sum::<f64>() / LOADS as f64
        };
        let tunnel = |simulation: &Simulation<'_>| page::through_tunnel(simulation, AT_ONCE);
        let alone = |path: usize| mean(case, &|simulation| page::over_path(simulation, path, AT_ONCE));
        let (best, least) = (0..case.paths.len())
            .map(|path| (path, alone(path)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .expect("a case has paths");
        let seconds = mean(case, &tunnel);
        let over_best = mean(&Case { paths: vec![case.paths[best].clone()], ..case.clone() }, &tunnel);
        Self { seconds, of_best: seconds / least, of_mpt_over_best: seconds / over_best }
    }
}

/// Pages of a mix: times of a single page vary with random loss and jitter.
const LOADS: usize = 10;
/// Objects that load at the same time, as browsers do over HTTP/1.1.
const AT_ONCE: usize = 6;
/// Time after which a load is given up; it then counts with this time.
const LIMIT: Duration = Duration::from_secs(60);
