//! The sets of cases.
//!
//! | set | cases | metrics |
//! |---|---|---|
//! | matrix | those of [`super::super::matrix`] | goodput |
//! | mixes | random mixes of links, one CUBIC flow | goodput |
//! | flows | [`PATH_SETS`], two CUBIC flows | sum, Jain's index |
//! | latency | [`PATH_SETS`], a call beside a CUBIC flow | median and p99 of the one-way delay, goodput |
//! | pages | [`PATH_SETS`], 20 objects, one after the other and six at once | load time |

use super::super::matrix;
use crate::plan::Case;
use mpt_proto::time::Rate;
use mpt_sim::{
    link::{Jitter, LinkSpec, Loss, Order, PathSpec, Queue},
    seed::Seed,
};
use std::{str::FromStr, time::Duration};

/// A set of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// The plans of the matrix.
    Matrix,
    /// Random mixes of links.
    Mixes,
    /// Two TCP flows beside each other.
    Flows,
    /// A call beside a download.
    Latency,
    /// Page loads.
    Pages,
}

impl Set {
    /// All sets with their names.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("matrix", Self::Matrix),
        ("mixes", Self::Mixes),
        ("flows", Self::Flows),
        ("latency", Self::Latency),
        ("pages", Self::Pages),
    ];

    /// Returns the set's name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, set)| *set == self).map_or("", |(name, _)| name)
    }

    /// Returns the set of this name.
    ///
    /// # Errors
    /// Returns a message with the known names.
    pub fn named(name: &str) -> Result<Self, String> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, set)| *set);
        known.ok_or_else(|| format!("unknown set '{name}'; hint: {}", Self::NAMES.map(|(known, _)| known).join(", ")))
    }
}

/// Traffic of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// One TCP flow.
    Flow,
    /// Two TCP flows.
    TwoFlows,
    /// A call beside a TCP flow.
    Call,
    /// A page, with this number of objects at once.
    Page { at_once: usize },
}

/// A case of an ablation.
#[derive(Clone, Debug)]
pub struct AblationCase {
    /// Its set.
    pub set: Set,
    /// Its name.
    pub name: String,
    pub(super) case: Case,
    pub(super) length: Duration,
    pub(super) workload: Workload,
}

/// Returns the cases of a set: `mixes` is the number of random mixes, `length` replaces the default length of a run.
pub fn cases(set: Set, mixes: usize, length: Option<Duration>) -> Vec<AblationCase> {
    let new = |name: String, paths, workload, default| {
        let case = Case::one_flow(name.clone(), paths);
        AblationCase { set, name, case, length: length.unwrap_or(default), workload }
    };
    let path_sets = || PATH_SETS.map(|(name, paths)| (name, paths.iter().map(|path| parsed(path)).collect::<Vec<_>>()));
    match set {
        Set::Matrix => matrix_cases(length),
        Set::Mixes => {
            let mix = |number| new(format!("mix_{number}"), mix(number), Workload::Flow, FIVE_SECONDS);
            (0..mixes).map(mix).collect()
        }
        Set::Flows => path_sets().map(|(name, paths)| new(name.into(), paths, Workload::TwoFlows, FIVE_SECONDS)).into(),
        Set::Latency => path_sets().map(|(name, paths)| new(name.into(), paths, Workload::Call, FIVE_SECONDS)).into(),
        Set::Pages => {
            let variants = [("sequential", 1), ("six", 6)];
            let of = |(name, paths): (&str, Vec<PathSpec>)| {
                variants.map(|(variant, at_once)| {
                    new(format!("{name}/{variant}"), paths.clone(), Workload::Page { at_once }, PAGE_LIMIT)
                })
            };
            path_sets().into_iter().flat_map(of).collect()
        }
    }
}

fn matrix_cases(length: Option<Duration>) -> Vec<AblationCase> {
    let mut cases = Vec::new();
    for (plan, default) in matrix::plans() {
        cases.extend(plan.cases.into_iter().map(|case| AblationCase {
            set: Set::Matrix,
            name: format!("{}/{}", plan.key, case.name),
            case,
            length: length.unwrap_or(default),
            workload: Workload::Flow,
        }));
    }
    cases
}

fn parsed(path: &str) -> PathSpec {
    PathSpec::from_str(path).expect("a constant path")
}

/// Draws the mix of links of this number. The model, whose seed is fixed:
///
/// - 2 to 4 paths, equal in both directions;
/// - rates of 0.5 to 300 Mbit/s and one-way delays of 3 to 300 ms, log-uniform;
/// - in a quarter of the mixes, a slow near path (0.5 to 10 Mbit/s, 3 to 30 ms) beside a fast far one (30 to 300
///   Mbit/s, 50 to 300 ms);
/// - normal jitter on half of the paths, with a deviation of 2 to 30 % of the delay, and half of these reorder;
/// - random loss of 0 to 3 % on a third of the paths;
/// - queues from 10 packets of 1,514 bytes to 1 s, log-uniform.
pub fn mix(number: usize) -> Vec<PathSpec> {
    let seed = MODEL_SEED.fork(&format!("mix {number}"));
    let count = 2 + (seed.fork("paths").unit() * 3.0) as usize;
    let unlike = seed.fork("unlike").unit() < 0.25;
    (0..count)
        .map(|path| PathSpec::symmetric(link(seed.fork(&format!("path {path}")), unlike.then_some(path))))
        .collect()
}

/// Draws a link; `unlike` is its number in a mix of a slow near and a fast far path.
fn link(seed: Seed, unlike: Option<usize>) -> LinkSpec {
    let unit = |label: &str| seed.fork(label).unit();
    let log_uniform = |label: &str, low: f64, high: f64| low * (high / low).powf(unit(label));
    let (rates, delays) = match unlike {
        Some(0) => ((0.5, 10.0), (3.0, 30.0)),
        Some(1) => ((30.0, 300.0), (50.0, 300.0)),
        _ => ((0.5, 300.0), (3.0, 300.0)),
    };
    let rate = Rate::from_bits((log_uniform("rate", rates.0, rates.1) * 1e6) as u64);
    let delay = Duration::from_secs_f64(log_uniform("delay", delays.0, delays.1) / 1e3);
    let order = if unit("order") < 0.5 { Order::Keep } else { Order::Free };
    let jitter = match unit("with jitter") < 0.5 {
        true => Jitter::Normal(delay.mul_f64(0.02 + 0.28 * unit("jitter"))),
        false => Jitter::None,
    };
    let loss = if unit("with loss") < 1.0 / 3.0 { Loss::Random(0.03 * unit("loss")) } else { Loss::None };
    let (least, second) = (TEN_PACKETS, rate.bytes() as f64);
    let queue = Queue::Bytes(log_uniform("queue", least, second.max(least)) as u64);
    LinkSpec::new(rate, delay).with_jitter(jitter, order).with_loss(loss).with_queue(queue)
}

/// Paths of the sets flows, latency and pages.
const PATH_SETS: [(&str, &[&str]); 8] = [
    ("equal", &["rate=20mbit,delay=20ms", "rate=20mbit,delay=20ms"]),
    ("unlike", &["rate=40mbit,delay=15ms", "rate=10mbit,delay=50ms"]),
    ("near_slow", &["rate=2mbit,delay=20ms,queue=100ms", "rate=80mbit,delay=40ms"]),
    ("lossy", &["rate=40mbit,delay=15ms,loss=1%", "rate=20mbit,delay=35ms,loss=0.5%"]),
    ("jitter", &["rate=30mbit,delay=25ms,jitter=8ms", "rate=20mbit,delay=40ms,jitter=5ms,order=free"]),
    ("satellite", &["rate=5mbit,delay=15ms", "rate=50mbit,delay=280ms"]),
    ("bloated", &["rate=8mbit,delay=20ms,queue=1s", "rate=30mbit,delay=30ms,queue=1s"]),
    ("swinging", &["rate=40mbit,delay=20ms; 3s: rate=8mbit; 6s: repeat", "rate=15mbit,delay=35ms,jitter=3ms"]),
];

const MODEL_SEED: Seed = Seed(2026);
const TEN_PACKETS: f64 = 10.0 * 1_514.0;
const FIVE_SECONDS: Duration = Duration::from_secs(5);
/// Time after which a page load is given up; it then counts with this time.
const PAGE_LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_stay_within_the_model_and_do_not_change() {
        let mixes: Vec<_> = (0..300).map(mix).collect();
        assert_eq!(mixes[7], mix(7));
        assert!(mixes.iter().all(|paths| (2..=4).contains(&paths.len())));
        let links: Vec<&LinkSpec> = mixes.iter().flatten().map(|path| &path.there).collect();
        for link in &links {
            let (bits, ms) = (link.start.rate.bits() as f64, link.start.delay.as_secs_f64() * 1e3);
            assert!((499e3..=300e6).contains(&bits) && (2.999..=300.001).contains(&ms), "{link}");
            assert!(link.start.loss.mean() <= 0.03);
        }
        let share = |test: &dyn Fn(&LinkSpec) -> bool| {
            links.iter().filter(|link| test(link)).count() as f64 / links.len() as f64
        };
        // Some 900 links: the standard error of a share of 1/3 or 1/2 is 0.017.
        assert!((share(&|link| link.start.loss != Loss::None) - 1.0 / 3.0).abs() < 0.07);
        assert!((share(&|link| link.start.jitter != Jitter::None) - 0.5).abs() < 0.07);
    }

    #[test]
    fn every_set_has_cases() {
        for (name, set) in Set::NAMES {
            assert_eq!(Set::named(name), Ok(set));
            assert!(cases(set, 3, None).len() >= 3, "{name}");
        }
        assert!(Set::named("luck").is_err_and(|why| why.contains("hint")));
    }
}
