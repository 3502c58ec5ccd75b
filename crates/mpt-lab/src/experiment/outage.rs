//! Effect of events on a flow.

use super::statistics::{mean, ms};
use crate::{
    plan::Metric,
    traffic::bulk::{self, Sample},
};
use std::time::Duration;

/// Returns the longest gap from the first event to the last, and the recovery time of the rate after the last: until
/// `end` if it never recovers. Event times are relative to the flow's start. Empty without events or samples.
pub(super) fn outage(
    events: &[Duration],
    samples: &[Sample],
    rates: &[(f64, f64)],
    end: Duration,
) -> Vec<(Metric, f64)> {
    let (Some(&first), Some(&last), false) = (events.first(), events.last(), samples.is_empty()) else {
        return Vec::new();
    };
    let until = if events.len() == 1 { end } else { last };
    let mut found = vec![(Metric::Gap, ms(bulk::longest_gap(samples, first, until, end)))];
    if events.len() > 1 {
        let before = rates.iter().filter(|(at, _)| in_second_before(*at, first));
        let before: Vec<f64> = before.map(|(_, rate)| *rate).collect();
        let back = recovery(rates, last.as_secs_f64(), mean(&before) * 0.9);
        found.push((Metric::Recovery, back.unwrap_or(end.saturating_sub(last).as_secs_f64()) * 1e3));
    }
    found
}

/// Returns the seconds from `from` until two consecutive intervals have at least `rate`.
fn recovery(rates: &[(f64, f64)], from: f64, rate: f64) -> Option<f64> {
    let after: Vec<&(f64, f64)> = rates.iter().filter(|(at, _)| *at > from).collect();
    let back = after.windows(2).find(|pair| pair.iter().all(|(_, mbit)| *mbit >= rate))?;
    Some(back[0].0 - from)
}

fn in_second_before(at: f64, event: Duration) -> bool {
    let event = event.as_secs_f64();
    at > event - 1.0 && at <= event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_recovered_after_two_intervals() {
        let rates = [(1.0, 10.0), (1.1, 2.0), (1.2, 9.5), (1.3, 3.0), (1.4, 9.5), (1.5, 9.1)];
        let seconds = recovery(&rates, 1.0, 9.0).unwrap();
        assert!((seconds - 0.4).abs() < 1e-9);
        assert_eq!(recovery(&rates, 1.4, 9.0), None);
    }

    #[test]
    fn a_rate_that_never_recovers_counts_until_the_end() {
        let seconds = Duration::from_secs;
        let half_from = |event: f64, at: f64| (at, if at <= event { 10.0 } else { 5.0 });
        let rates: Vec<(f64, f64)> = (1..=60).map(|tenth| half_from(2.0, f64::from(tenth) / 10.0)).collect();
        let samples = [0, 2, 3, 6].map(|at| Sample { at: seconds(at), bytes: at });
        let found = outage(&[seconds(2), seconds(4)], &samples, &rates, seconds(6));
        assert_eq!(found, [(Metric::Gap, 3_000.0), (Metric::Recovery, 2_000.0)]);
        assert_eq!(outage(&[seconds(2)], &samples, &rates, seconds(6)), [(Metric::Gap, 3_000.0)]);
        assert_eq!(outage(&[], &samples, &rates, seconds(6)), []);
    }
}
