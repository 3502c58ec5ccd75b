//! The last 24 hours of each path: every sample of the last ten minutes, and the mean of each minute.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::control::report::Report;
use crate::control::verdict;

/// Number of values of a point.
const VALUES: usize = 6;

/// The values that are drawn of a path, at a time in seconds since 1970. NaN stands for what is not known then.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    second: u32,
    values: [f32; VALUES],
}

/// The curves of a path in the units of the page; `null` where a value is missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curves {
    /// Seconds since 1970.
    t: Vec<u32>,
    /// Mbit/s.
    out: Vec<f32>,
    /// Mbit/s.
    r#in: Vec<f32>,
    /// Round-trip time in milliseconds.
    rtt: Vec<f32>,
    /// Percent.
    loss: Vec<f32>,
    /// Delay that load adds, in milliseconds.
    queue: Vec<f32>,
    /// Percent of what is sent to the peer.
    share: Vec<f32>,
}

/// The history of a tunnel, keyed by the names of peer and path.
#[derive(Debug, Default)]
pub struct History {
    paths: BTreeMap<(String, String), PathHistory>,
}

#[derive(Debug, Default)]
struct PathHistory {
    samples: VecDeque<Point>,
    minutes: VecDeque<Point>,
    /// Sums and counts of the present minute.
    sums: [f64; VALUES],
    counts: [u32; VALUES],
}

impl History {
    /// Adds a sample. Paths that are gone for 24 hours are forgotten.
    pub fn add(&mut self, time_ms: u64, report: &Report) {
        let second = u32::try_from(time_ms / 1_000).unwrap_or(u32::MAX);
        for peer in &report.peers {
            for path in &peer.paths {
                let key = (peer.name.clone(), path.name.clone());
                if self.paths.len() >= MAX_PATHS && !self.paths.contains_key(&key) {
                    continue;
                }
                let or_nan = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
                let while_up = |value: Option<f64>| or_nan(value.filter(|_| path.up));
                let values = [
                    or_nan(path.sent_bits_per_s.map(|bits| bits as f64 / 1e6)),
                    or_nan(path.received_bits_per_s.map(|bits| bits as f64 / 1e6)),
                    while_up(path.srtt_us.map(|us| us as f64 / 1e3)),
                    while_up(path.loss.map(|loss| loss * 100.0)),
                    while_up(path.queue_us.map(|us| us as f64 / 1e3)),
                    or_nan(verdict::share(peer, path).map(|share| share * 100.0)),
                ];
                self.paths.entry(key).or_default().add(Point { second, values });
            }
        }
        self.paths.retain(|_, path| path.last().is_some_and(|last| last + DAY > second));
    }

    /// Returns the curves of a path: its samples, or the minutes of a day.
    pub fn curves(&self, peer: &str, path: &str, whole_day: bool) -> Option<Curves> {
        let history = self.paths.get(&(peer.to_owned(), path.to_owned()))?;
        let points = if whole_day { &history.minutes } else { &history.samples };
        let mut curves = Curves::default();
        for Point { second, values: [out, r#in, rtt, loss, queue, share] } in points {
            curves.t.push(*second);
            curves.out.push(*out);
            curves.r#in.push(*r#in);
            curves.rtt.push(*rtt);
            curves.loss.push(*loss);
            curves.queue.push(*queue);
            curves.share.push(*share);
        }
        Some(curves)
    }
}

impl PathHistory {
    fn last(&self) -> Option<u32> {
        self.samples.back().map(|point| point.second)
    }

    fn add(&mut self, point: Point) {
        if self.last().is_some_and(|last| last / MINUTE != point.second / MINUTE) {
            self.end_minute();
        }
        for (at, value) in point.values.iter().enumerate().filter(|(_, value)| !value.is_nan()) {
            self.sums[at] += f64::from(*value);
            self.counts[at] += 1;
        }
        push(&mut self.samples, point, MAX_SAMPLES);
    }

    fn end_minute(&mut self) {
        let mean = |at: usize| {
            if self.counts[at] == 0 { f32::NAN } else { (self.sums[at] / f64::from(self.counts[at])) as f32 }
        };
        let second = self.last().unwrap_or(0) / MINUTE * MINUTE;
        let point = Point { second, values: std::array::from_fn(mean) };
        push(&mut self.minutes, point, MAX_MINUTES);
        (self.sums, self.counts) = Default::default();
    }
}

fn push(points: &mut VecDeque<Point>, point: Point, limit: usize) {
    if points.len() >= limit {
        points.pop_front();
    }
    points.push_back(point);
}

/// Paths of a tunnel with a history: 256 with 28 bytes a point are 12 MB.
pub const MAX_PATHS: usize = 256;
/// Ten minutes of samples that are two seconds apart.
const MAX_SAMPLES: usize = 300;
const MAX_MINUTES: usize = 24 * 60;
const MINUTE: u32 = 60;
const DAY: u32 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::{PathReport, PeerReport};

    fn report(paths: usize, srtt_us: u64, up: bool) -> Report {
        let path = |at| PathReport {
            name: format!("p{at}"),
            up,
            srtt_us: Some(srtt_us),
            sent_bits_per_s: Some(2_000_000),
            ..PathReport::default()
        };
        let paths = (0..paths).map(path).collect();
        Report {
            peers: vec![PeerReport { name: "office".to_owned(), paths, ..PeerReport::default() }],
            ..Report::default()
        }
    }

    #[test]
    fn minutes_are_means_and_a_path_that_is_down_leaves_a_gap() {
        let mut history = History::default();
        // A minute whose first half has 10 ms and whose second half has 30 ms; then one that is down.
        for second in (0..=120).step_by(2) {
            let srtt_us = if second % 60 < 30 { 10_000 } else { 30_000 };
            history.add(second * 1_000, &report(1, srtt_us, second < 60));
        }
        let day = history.curves("office", "p0", true).unwrap();
        assert_eq!((day.t, day.out, day.share), (vec![0, 60], vec![2.0, 2.0], vec![100.0, 100.0]));
        assert_eq!(day.rtt[0], 20.0);
        assert!(day.rtt[1].is_nan() && day.loss[0].is_nan());
        let now = history.curves("office", "p0", false).unwrap();
        assert_eq!((now.t.len(), now.rtt[0]), (61, 10.0));
        assert_eq!(serde_json::to_value(&now).unwrap()["loss"][0], serde_json::Value::Null);
        assert_eq!(history.curves("office", "p1", false), None);
    }

    #[test]
    fn a_day_of_many_paths_is_bounded_and_gone_paths_are_forgotten() {
        let mut history = History::default();
        for minute in 0..3_000 {
            history.add(minute * 60_000, &report(1, 1_000, true));
        }
        let path = &history.paths[&("office".to_owned(), "p0".to_owned())];
        assert_eq!((path.samples.len(), path.minutes.len()), (MAX_SAMPLES, MAX_MINUTES));
        history.add(3_000 * 60_000, &report(1_000, 1_000, true));
        assert_eq!(history.paths.len(), MAX_PATHS);
        history.add((3_000 + 24 * 60) * 60_000, &report(0, 0, true));
        assert_eq!(history.paths.len(), 0);
    }
}
