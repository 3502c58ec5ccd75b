//! Typical schedules of real links: alternating, random-walk and recorded rates.

use super::{Change, Step};
use crate::seed::Seed;
use mpt_proto::time::Rate;
use rand::RngExt;
use std::time::Duration;

/// Returns a rate that starts at `low` and alternates between `low` and `high` every `half`; repeat after `2 * half`.
pub fn alternating(low: Rate, high: Rate, half: Duration) -> Vec<Step> {
    vec![step(Duration::ZERO, low), step(half, high)]
}

/// Returns a random walk of the rate for `length`: every `every` the rate is multiplied or divided by up to `factor`,
/// within `low` and `high`. The walk is in the logarithm, as rates of radio links vary by factors, and is reflected at
/// the bounds.
pub fn random_walk(low: Rate, high: Rate, factor: f64, every: Duration, length: Duration, seed: Seed) -> Vec<Step> {
    let (low, high) = (ln(low), ln(high));
    let mut rng = seed.rng();
    let mut value = (low + high) / 2.0;
    let mut steps = Vec::new();
    let mut at = Duration::ZERO;
    while at < length && !every.is_zero() {
        steps.push(step(at, Rate::from_bytes(value.exp() as u64)));
        value = reflect(value + factor.ln() * rng.random_range(-1.0..=1.0), low, high);
        at += every;
    }
    steps
}

/// Returns recorded rates in Mbit/s, one for each `every`.
pub fn recorded(mbits: &[f64], every: Duration) -> Vec<Step> {
    let at = |index: usize| every * index as u32;
    mbits.iter().enumerate().map(|(index, mbit)| step(at(index), Rate::from_bits((mbit * 1e6) as u64))).collect()
}

fn step(at: Duration, rate: Rate) -> Step {
    Step { at, change: Change::rate(rate) }
}

fn ln(rate: Rate) -> f64 {
    (rate.bytes().max(1) as f64).ln()
}

fn reflect(value: f64, low: f64, high: f64) -> f64 {
    let inside = if value > high { 2.0 * high - value } else { value };
    if inside < low { (2.0 * low - inside).min(high) } else { inside }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_walk_stays_within_its_bounds_and_depends_on_the_seed() {
        let (low, high) = (Rate::from_bits(5_000_000), Rate::from_bits(50_000_000));
        let make = |seed| random_walk(low, high, 1.5, Duration::from_millis(100), Duration::from_secs(60), Seed(seed));
        let rates: Vec<Rate> = make(1).iter().filter_map(|step| step.change.rate).collect();
        assert_eq!(rates.len(), 600);
        assert!(rates.iter().all(|rate| (low.scale(0.999)..=high).contains(rate)), "{rates:?}");
        let (least, most) = (rates.iter().min().unwrap(), rates.iter().max().unwrap());
        assert!(*least < low.scale(1.5) && *most > high.scale(0.67), "it visits both ends: {least:?} {most:?}");
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }

    #[test]
    fn a_trace_holds_each_rate_for_its_interval() {
        let steps = recorded(&[1.0, 2.5], Duration::from_millis(20));
        assert_eq!(steps[0], step(Duration::ZERO, Rate::from_bits(1_000_000)));
        assert_eq!(steps[1], step(Duration::from_millis(20), Rate::from_bits(2_500_000)));
    }
}
