//! Random mixes of access links, drawn from a model of the links that people have. No constant of the core was chosen
//! by them; tuning and reports use different seeds.
//!
//! Ranges are log-uniform unless noted. Delays are one way. Sources:
//!
//! - fixed lines: FCC, "Measuring Broadband America", fixed, 2011 to 2023 (rates, latency); Sundaresan et al.,
//!   "Broadband Internet Performance: A View From the Gateway", SIGCOMM 2011 (queues of modems);
//! - LTE: Huang et al., "A Close Examination of Performance and Power Characteristics of 4G LTE Networks", MobiSys
//!   2012; Winstein et al., "Stochastic Forecasts Achieve High Throughput and Low Delay over Cellular Networks", NSDI
//!   2013 (rates that change by factors, outages, queues of seconds);
//! - 5G: Narayanan et al., "A Variegated Look at 5G in the Wild", SIGCOMM 2021;
//! - Starlink and GEO: Michel et al., "A First Look at Starlink Performance", IMC 2022 (rates, delays, loss in bursts);
//!   Mohan et al., "A Multifaceted Look at Starlink Performance", WWW 2024 (reallocation every 15 s);
//! - Wi-Fi: Pei et al., "WiFi Can Be the Weakest Link of Round Trip Network Latency in the Wild", INFOCOM 2016;
//! - GPRS: RFC 3481, section 2; queues in general: Gettys and Nichols, "Bufferbloat", ACM Queue 2011.

use super::model::{Case, Figure, Plan, RunDuration};
use mpt_proto::time::Rate;
use mpt_sim::{
    link::{Change, Jitter, LinkSpec, Loss, Order, PathSpec, Queue, Step, shapes},
    seed::Seed,
};
use std::time::Duration;

/// First part of the keys of these plans: `population/SEED` and `population/SEED/CASE`.
pub(super) const KEY: &str = "population";

/// Length of a schedule, after which it repeats.
const PERIOD: Duration = Duration::from_secs(60);

/// Number of cases that a key without a case's number selects.
const SAMPLE: usize = 40;

/// Returns the plan that `key` selects: one case, or the first cases of a seed; none if the key has another form.
pub(super) fn select(key: &str) -> Option<Plan> {
    let rest = key.strip_prefix(KEY)?.strip_prefix('/')?;
    let (seed, number) = match rest.split_once('/') {
        Some((seed, number)) => (seed, Some(number.parse().ok()?)),
        None => (rest, None),
    };
    let seed: u64 = seed.parse().ok()?;
    let numbers = number.map_or(0..SAMPLE, |number| number..number + 1);
    let seconds = |seconds| Duration::from_secs(seconds);
    Some(Plan {
        key: format!("{KEY}/{seed}"),
        title: "Random mixes of access links".into(),
        paper: "No paper: the model is in docs/guide/lab.md".into(),
        length: RunDuration { full: seconds(20), quick: seconds(5) },
        repetitions: 1,
        figure: Figure::Bars,
        axes: Vec::new(),
        cases: numbers.map(|number| mix(Seed(seed), number)).collect(),
        claims: Vec::new(),
    })
}

/// Draws the mix with this number: one CUBIC flow over 2 to 6 paths, mostly 2 or 3. The data goes in the direction of
/// the higher rates in two thirds of the mixes.
pub fn mix(seed: Seed, number: usize) -> Case {
    let seed = seed.fork(&format!("case {number}"));
    let count = 2 + COUNTS.iter().filter(|share| seed.fork("count").unit() >= **share).count();
    let upload = seed.fork("upload").unit() < 1.0 / 3.0;
    let path = |number: usize| {
        let path = Draw(seed.fork(&format!("path {number}"))).path();
        if upload { PathSpec { there: path.back, back: path.there } } else { path }
    };
    Case::one_flow(number.to_string(), (0..count).map(path).collect())
}

/// Shares of mixes with at most 2, 3, 4 and 5 paths.
const COUNTS: [f64; 4] = [0.5, 0.8, 0.9, 0.95];

/// A kind of access link.
#[derive(Clone, Copy)]
enum Access {
    Dsl,
    Cable,
    Lte,
    FiveG,
    Starlink,
    Geo,
    WiFi,
    Gprs,
}

/// Shares of the kinds.
const KINDS: [(f64, Access); 8] = [
    (0.20, Access::Dsl),
    (0.15, Access::Cable),
    (0.25, Access::Lte),
    (0.10, Access::FiveG),
    (0.12, Access::Starlink),
    (0.06, Access::Geo),
    (0.10, Access::WiFi),
    (0.02, Access::Gprs),
];

/// Draws the properties of one path; each has a seed of its own.
struct Draw(Seed);

impl Draw {
    fn unit(&self, label: &str) -> f64 {
        self.0.fork(label).unit()
    }

    fn happens(&self, label: &str, probability: f64) -> bool {
        self.unit(label) < probability
    }

    /// Returns a number with three significant digits.
    fn log_uniform(&self, label: &str, low: f64, high: f64) -> f64 {
        let drawn = low * (high / low).powf(self.unit(label));
        let digit = 10f64.powi(drawn.log10().floor() as i32 - 2);
        (drawn / digit).round() * digit
    }

    fn ms(&self, label: &str, low: f64, high: f64) -> Duration {
        rounded(Duration::from_secs_f64(self.log_uniform(label, low, high) / 1e3))
    }

    fn path(&self) -> PathSpec {
        let mut share = self.unit("kind");
        let kind = KINDS.iter().find(|(part, _)| {
            share -= part;
            share < 0.0
        });
        match kind.map_or(Access::Dsl, |(_, kind)| *kind) {
            Access::Dsl => self.links(self.rates((0.5, 100.0), (0.1, 0.5)), self.ms("delay", 5.0, 25.0)),
            Access::Cable => {
                let path = self.links(self.rates((50.0, 1_000.0), (0.05, 1.0)), self.ms("delay", 2.0, 15.0));
                self.with_jitter(path, (0.1, 2.0), 0.5, 0.0)
            }
            Access::Lte => {
                let path = self.links(self.rates((1.0, 100.0), (0.1, 0.5)), self.ms("delay", 15.0, 50.0));
                let path = self.with_jitter(self.with_loss(path, 0.5, (1e-4, 5e-3)), (2.0, 15.0), 1.0, 0.2);
                self.with_radio(path, 0.6)
            }
            Access::FiveG => {
                let path = self.links(self.rates((20.0, 600.0), (0.05, 0.3)), self.ms("delay", 8.0, 30.0));
                let path = self.with_jitter(self.with_loss(path, 0.3, (1e-4, 2e-3)), (1.0, 8.0), 1.0, 0.2);
                self.with_radio(path, 0.6)
            }
            Access::Starlink => {
                let path = self.links(self.rates((40.0, 250.0), (0.05, 0.2)), self.ms("delay", 15.0, 35.0));
                let path = self.with_jitter(self.with_loss(path, 1.0, (1e-3, 1e-2)), (1.0, 8.0), 1.0, 0.0);
                self.with_handovers(path)
            }
            Access::Geo => {
                let path = self.links(self.rates((5.0, 100.0), (0.03, 0.2)), self.ms("delay", 270.0, 320.0));
                self.with_jitter(self.with_loss(path, 0.5, (1e-4, 1e-2)), (2.0, 20.0), 0.7, 0.0)
            }
            Access::WiFi => {
                let path = self.links(self.rates((5.0, 300.0), (0.3, 1.0)), self.ms("delay", 5.0, 25.0));
                let path = self.with_jitter(self.with_loss(path, 0.7, (1e-4, 2e-2)), (1.0, 10.0), 1.0, 0.3);
                self.with_radio(path, 0.3)
            }
            Access::Gprs => {
                let path = self.links(self.rates((0.04, 0.2), (0.3, 1.0)), self.ms("delay", 150.0, 400.0));
                self.with_jitter(path, (20.0, 100.0), 1.0, 0.0)
            }
        }
    }

    /// Draws the rate down in Mbit/s, and the rate up as a share of it, at least that of GPRS.
    fn rates(&self, down: (f64, f64), up: (f64, f64)) -> [Rate; 2] {
        let down = self.log_uniform("down", down.0, down.1);
        let up = (down * self.log_uniform("up", up.0, up.1)).max(0.02);
        [down, up].map(|mbit| Rate::from_bits((mbit * 1e6) as u64))
    }

    /// Returns a path of these rates. Its queues are 10 packets of 1,514 bytes to 2 s, of the mean of both in logarithm
    /// 0.1 to 0.2 s at most rates.
    fn links(&self, [down, up]: [Rate; 2], delay: Duration) -> PathSpec {
        let link = |label: &str, rate: Rate| {
            let longest = 2.0 * rate.bytes() as f64;
            let bytes = self.log_uniform(label, TEN_PACKETS, longest.max(TEN_PACKETS));
            LinkSpec::new(rate, delay).with_queue(Queue::Bytes(bytes as u64))
        };
        PathSpec { there: link("queue down", down), back: link("queue up", up) }
    }

    /// Adds normal jitter of `ms` with probability `share`; a part `free` of these links reorders.
    fn with_jitter(&self, path: PathSpec, ms: (f64, f64), share: f64, free: f64) -> PathSpec {
        if !self.happens("with jitter", share) {
            return path;
        }
        let jitter = Jitter::Normal(self.ms("jitter", ms.0, ms.1));
        let order = if self.happens("order", free) { Order::Free } else { Order::Keep };
        both(path, |link| link.with_jitter(jitter, order))
    }

    /// Adds loss of this mean with probability `share`: one half independent, one half in bursts of 2 to 20 frames.
    fn with_loss(&self, path: PathSpec, share: f64, mean: (f64, f64)) -> PathSpec {
        if !self.happens("with loss", share) {
            return path;
        }
        let mean = self.log_uniform("loss", mean.0, mean.1);
        let recover = 1.0 / self.log_uniform("burst", 2.0, 20.0);
        let loss = match self.happens("bursts", 0.5) {
            true => Loss::Bursts { worsen: mean * recover / (1.0 - mean), recover, bad: 1.0 },
            false => Loss::Random(mean),
        };
        both(path, |link| link.with_loss(loss))
    }

    /// With probability `share`, lets the rates of a radio link change, and adds fades and outages.
    fn with_radio(&self, path: PathSpec, share: f64) -> PathSpec {
        if !self.happens("radio", share) {
            return path;
        }
        let every = self.ms("every", 200.0, 5_000.0);
        let (factor, depth) = (1.0 + 0.6 * self.unit("factor"), self.log_uniform("depth", 1.5, 8.0));
        let outage =
            self.happens("outage", 0.3).then(|| (5.0 + 40.0 * self.unit("when"), self.ms("outage", 50.0, 5e3)));
        both(path, |link| {
            let high = link.start.rate;
            let low = high.scale(1.0 / depth);
            let mut steps = shapes::random_walk(low, high, factor, every, PERIOD, self.0.fork("walk"));
            if let Some((at, length)) = outage {
                let at = rounded(Duration::from_secs_f64(at));
                steps.push(Step { at, change: Change { up: Some(false), ..Change::default() } });
                steps.push(Step { at: at + length, change: Change { up: Some(true), ..Change::default() } });
                steps.sort_by_key(|step| step.at);
            }
            link.with_steps(steps, Some(PERIOD))
        })
    }

    /// Adds a reallocation every 15 s: an outage of 50 to 400 ms, then another delay, and on some links another rate.
    fn with_handovers(&self, path: PathSpec) -> PathSpec {
        let changes_rate = self.happens("rate per interval", 0.5);
        both(path, |link| {
            let (rate, delay) = (link.start.rate, link.start.delay);
            let mut steps = Vec::new();
            for turn in 0..4u32 {
                let at = HANDOVER * turn + rounded(HANDOVER.mul_f64(0.97 * self.unit("phase")));
                let delay = rounded(delay.mul_f64(0.8 + 0.5 * self.unit(&format!("delay {turn}"))));
                let rate = changes_rate.then(|| rate.scale(0.5 + 0.5 * self.unit(&format!("rate {turn}"))));
                let back = at + self.ms(&format!("outage {turn}"), 50.0, 400.0);
                steps.push(Step { at, change: Change { up: Some(false), ..Change::default() } });
                let change = Change { up: Some(true), delay: Some(delay), rate, ..Change::default() };
                steps.push(Step { at: back, change });
            }
            link.with_steps(steps, Some(PERIOD))
        })
    }
}

/// Returns a time without the digits below 10 us.
fn rounded(time: Duration) -> Duration {
    Duration::from_micros((time.as_secs_f64() * 1e5).round() as u64 * 10)
}

fn both(path: PathSpec, change: impl Fn(LinkSpec) -> LinkSpec) -> PathSpec {
    PathSpec { there: change(path.there), back: change(path.back) }
}

const TEN_PACKETS: f64 = 10.0 * 1_514.0;
/// Interval between reallocations of Starlink.
const HANDOVER: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_depend_on_seed_and_number_alone_and_their_text_is_theirs() {
        let case = mix(Seed(7), 3);
        assert_eq!(case.paths, mix(Seed(7), 3).paths);
        assert_ne!(case.paths, mix(Seed(7), 4).paths);
        assert_ne!(case.paths, mix(Seed(8), 3).paths);
        for path in (0..200).flat_map(|number| mix(Seed(7), number).paths) {
            let again: PathSpec = path.to_string().parse().unwrap_or_else(|error| panic!("{path}: {error}"));
            // Rates are rounded to whole bytes per second, the text to whole bits.
            assert_eq!((again.there.start.delay, again.there.queue), (path.there.start.delay, path.there.queue));
            assert_eq!(again.back.steps.len(), path.back.steps.len());
        }
    }

    #[test]
    fn the_mixes_have_the_shares_of_the_model() {
        let cases: Vec<Case> = (0..2_000).map(|number| mix(Seed(1), number)).collect();
        let share = |test: &dyn Fn(&Case) -> bool| cases.iter().filter(|case| test(case)).count() as f64 / 2_000.0;
        // The standard error of a share of one half of 2,000 cases is 0.011.
        assert!((share(&|case| case.paths.len() == 2) - 0.5).abs() < 0.05);
        assert!((share(&|case| case.paths.len() > 4) - 0.1).abs() < 0.03);
        let paths: Vec<&PathSpec> = cases.iter().flat_map(|case| &case.paths).collect();
        let far = paths.iter().filter(|path| path.there.start.delay > Duration::from_millis(260)).count();
        assert!((far as f64 / paths.len() as f64 - 0.065).abs() < 0.02, "GEO, and some of GPRS");
        assert!(paths.iter().all(|path| path.there.steps.windows(2).all(|pair| pair[0].at <= pair[1].at)));
    }

    #[test]
    fn keys_select_one_case_or_the_first_of_a_seed() {
        assert_eq!(select("population/7").map(|plan| plan.cases.len()), Some(SAMPLE));
        let plan = select("population/7/93").expect("a case");
        assert_eq!((plan.key.as_str(), plan.cases[0].name.as_str()), ("population/7", "93"));
        assert!(
            ["population", "population/", "population/x", "population/7/x", "farm"]
                .iter()
                .all(|key| select(key).is_none())
        );
    }
}
