//! Random link mixes, so that an ablation does not depend on the links for which a rule was made.
//!
//! | property | distribution |
//! |---|---|
//! | paths | 2 to 4, each with the same properties in both directions |
//! | rate | 0.5 to 300 Mbit/s, log-uniform |
//! | one-way delay | 3 to 300 ms, log-uniform |
//! | jitter | in half of the paths: normal, 3 to 30 % of the delay, log-uniform; half of them reorder frames |
//! | random loss | in a third of the paths: 0.01 to 3 %, log-uniform |
//! | queue | 10 frames to 1 s at the path's rate, log-uniform |
//!
//! The seed of the model is fixed and every property is drawn under its own label, so a mix does not depend on the
//! number of mixes, and a new property leaves the others as they are.

use crate::{
    plan::{Case, Load, Settings, Traffic},
    topology::Family,
};
use mpt_proto::time::Rate;
use mpt_sim::{
    link::{Jitter, LinkSpec, Loss, Order, PathSpec, Queue},
    seed::Seed,
};
use std::{collections::BTreeMap, time::Duration};

/// Returns the first `count` mixes, each with one greedy TCP flow.
pub(super) fn mixes(count: usize) -> Vec<Case> {
    (1..=count).map(|number| mix(format!("mix{number}"))).collect()
}

fn mix(name: String) -> Case {
    let draws = Draws(MODEL.fork(&name));
    let count = 2 + (draws.unit("paths") * 3.0) as usize;
    Case {
        at: Vec::new(),
        quick: true,
        paths: (1..=count).map(|number| path(Draws(draws.0.fork(&format!("path {number}"))))).collect(),
        tunnel: Settings::default(),
        inner: Family::V4,
        outer: Family::V4,
        traffic: Traffic { load: Load::Bulk, beside: Vec::new() },
        events: Vec::new(),
        published: BTreeMap::new(),
        published_solo: Vec::new(),
        name,
    }
}

fn path(draws: Draws) -> PathSpec {
    let kbit = draws.log_uniform("rate", 500.0, 300_000.0).round();
    let rate = Rate::from_bits(kbit as u64 * 1_000);
    let micros = draws.log_uniform("delay", 3_000.0, 300_000.0).round();
    let second = rate.bytes_in(Duration::from_secs(1)) as f64;
    let mut link = LinkSpec::new(rate, Duration::from_micros(micros as u64))
        .with_queue(Queue::Bytes(draws.log_uniform("queue", 10.0 * FRAME, second).round() as u64));
    if draws.unit("has jitter") < 1.0 / 2.0 {
        let deviation = (micros * draws.log_uniform("jitter", 0.03, 0.3)).round();
        let order = if draws.unit("order") < 1.0 / 2.0 { Order::Keep } else { Order::Free };
        link = link.with_jitter(Jitter::Normal(Duration::from_micros(deviation as u64)), order);
    }
    if draws.unit("has loss") < 1.0 / 3.0 {
        let parts = draws.log_uniform("loss", 1e-4, 0.03) * 1e6;
        link = link.with_loss(Loss::Random(parts.round() / 1e6));
    }
    PathSpec::symmetric(link)
}

/// Random numbers by label.
struct Draws(Seed);

impl Draws {
    /// Returns a number from 0 to 1, without 1; the seeds of labels are uniform over 64 bits.
    fn unit(&self, label: &str) -> f64 {
        (self.0.fork(label).0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn log_uniform(&self, label: &str, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit(label))
    }
}

const MODEL: Seed = Seed(1);

/// Bytes of a full Ethernet frame.
const FRAME: f64 = 1_514.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_have_the_properties_of_the_model() {
        let mixes = mixes(300);
        let links: Vec<&LinkSpec> = mixes.iter().flat_map(|mix| &mix.paths).map(|path| &path.there).collect();
        assert!(mixes.iter().all(|mix| (2..=4).contains(&mix.paths.len())));
        for link in &links {
            assert!((500_000..=300_000_000).contains(&link.start.rate.bits()), "{link}");
            assert!((3_000..=300_000).contains(&link.start.delay.as_micros()), "{link}");
            let Queue::Bytes(bytes) = link.queue else { panic!("{link}") };
            assert!((15_140..=link.start.rate.bytes() + 1).contains(&bytes), "{link}");
        }
        // 300 mixes have about 900 paths, so a share has a standard deviation below 0.017.
        let share =
            |has: &dyn Fn(&LinkSpec) -> bool| links.iter().filter(|link| has(link)).count() as f64 / links.len() as f64;
        assert!((share(&|link| link.start.jitter != Jitter::None) - 1.0 / 2.0).abs() < 0.06);
        assert!((share(&|link| link.order == Order::Free) - 1.0 / 4.0).abs() < 0.06);
        assert!((share(&|link| link.start.loss != Loss::None) - 1.0 / 3.0).abs() < 0.06);
    }

    #[test]
    fn a_mix_does_not_depend_on_the_number_of_mixes() {
        let (few, many) = (mixes(2), mixes(5));
        assert_eq!((&few[1].name, &few[1].paths), (&many[1].name, &many[1].paths));
        assert_ne!(many[0].paths, many[1].paths);
    }
}
