//! Detects paths that share a bottleneck: their queues grow and shrink together.
//!
//! RFC 8382 compares statistics of one-way delays, which the receiver reports. The sender knows the queue of each path
//! from its ACKs, so it can compare the queues themselves. The mean queue of each interval is compared with that of the
//! interval before: slow changes, which queues of different links also have at the same time, then count little. Two
//! paths share a bottleneck if the changes correlate.

use std::time::Duration;

use crate::cc::slots::Slots;
use crate::id::{PathId, PathSet};
use crate::time::Time;
use crate::tuning::cc::shared_bottleneck::{
    INTERVAL, MEMORY, MIN_CHANGE, MIN_INTERVALS, SEPARATE_CORRELATION, SHARED_CORRELATION,
};

/// Compares the queues of all paths of a peer.
#[derive(Debug, Default)]
pub struct SharedBottlenecks {
    changes: Slots<QueueChanges>,
    /// One for each two slots, the larger first: (1, 0), (2, 0), (2, 1) and so on.
    pairs: Vec<Pair>,
}

impl SharedBottlenecks {
    /// Begins to compare the queue of a path with those of the others.
    pub fn add_path(&mut self, path: PathId) {
        self.forget_pairs(path);
        self.changes.insert(path, QueueChanges::default());
    }

    /// Ends the comparison.
    pub fn remove_path(&mut self, path: PathId) {
        if self.changes.get(path).is_some() {
            self.forget_pairs(path);
            self.changes.remove(path);
        }
    }

    /// Processes a sample of the queue, and returns true if another path began or ceased to share the bottleneck.
    pub fn on_sample(&mut self, path: PathId, now: Time, queue: Duration) -> bool {
        let Some(own) = self.changes.get_mut(path) else { return false };
        let Some(change) = own.on_sample(now, queue) else { return false };
        let mut changed = false;
        for (other, changes) in self.changes.iter().filter(|(other, _)| *other != path) {
            if let Some(theirs) = changes.latest.filter(|theirs| theirs.interval == change.interval) {
                let index = pair_index(path, other);
                if self.pairs.len() <= index {
                    self.pairs.resize_with(index + 1, Pair::default);
                }
                // Either path's interval may end last.
                let (low, high) = if path.slot < other.slot { (change, theirs) } else { (theirs, change) };
                changed |= self.pairs[index].on_changes(low.by, high.by);
            }
        }
        changed
    }

    /// Returns the paths that share a bottleneck with `path`.
    pub fn partners(&self, path: PathId) -> PathSet {
        let shared = |other: PathId| self.pairs.get(pair_index(path, other)).is_some_and(|pair| pair.shared);
        self.changes.iter().map(|(other, _)| other).filter(|other| *other != path && shared(*other)).collect()
    }

    fn forget_pairs(&mut self, path: PathId) {
        for (other, _) in self.changes.iter().filter(|(other, _)| other.slot != path.slot) {
            if let Some(pair) = self.pairs.get_mut(pair_index(path, other)) {
                *pair = Pair::default();
            }
        }
    }
}

fn pair_index(one: PathId, other: PathId) -> usize {
    let (low, high) = (usize::from(one.slot.min(other.slot)), usize::from(one.slot.max(other.slot)));
    high * high.saturating_sub(1) / 2 + low
}

/// The mean queue of one path by intervals.
#[derive(Clone, Copy, Debug, Default)]
struct QueueChanges {
    /// Number of the interval that lasts, sum of its samples in milliseconds, and their number.
    interval: u64,
    sum: f64,
    samples: u32,
    /// The last interval with samples, and its mean.
    mean: Option<(u64, f64)>,
    /// The latest change, unless an interval without samples was before it.
    latest: Option<Change>,
}

/// The difference between the means of an interval and the one before it, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Change {
    interval: u64,
    by: f64,
}

impl QueueChanges {
    /// Adds a sample, and returns the change that is known since the last interval has ended with it.
    fn on_sample(&mut self, now: Time, queue: Duration) -> Option<Change> {
        let interval = now.as_nanos() / INTERVAL.as_nanos() as u64;
        let ended = interval != self.interval && self.samples > 0;
        if ended {
            let mean = self.sum / f64::from(self.samples);
            let before = self.mean.filter(|(before, _)| before + 1 == self.interval);
            self.latest = before.map(|(_, before)| Change { interval: self.interval, by: mean - before });
            self.mean = Some((self.interval, mean));
            (self.sum, self.samples) = (0.0, 0);
        }
        self.interval = interval;
        self.sum += queue.as_secs_f64() * 1e3;
        self.samples += 1;
        self.latest.filter(|_| ended)
    }
}

/// Sums over the changes of two queues; older ones weigh less. The mean of changes is zero.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    intervals: f64,
    squares: (f64, f64),
    products: f64,
    shared: bool,
}

impl Pair {
    /// Adds the changes of one interval, and returns true if the result is another one.
    fn on_changes(&mut self, one: f64, other: f64) -> bool {
        let keep = 1.0 - 1.0 / MEMORY;
        self.intervals = self.intervals * keep + 1.0;
        self.squares = (self.squares.0 * keep + one * one, self.squares.1 * keep + other * other);
        self.products = self.products * keep + one * other;
        let least = self.squares.0.min(self.squares.1) / self.intervals;
        if self.intervals < MIN_INTERVALS || least < MIN_CHANGE * MIN_CHANGE {
            return false;
        }
        let correlation = self.products / (self.squares.0 * self.squares.1).sqrt();
        let threshold = if self.shared { SEPARATE_CORRELATION } else { SHARED_CORRELATION };
        let before = std::mem::replace(&mut self.shared, correlation > threshold);
        before != self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathId = PathId { slot: 0, generation: 0 };
    const B: PathId = PathId { slot: 2, generation: 0 };

    /// Returns a queue in microseconds that changes in each interval, without a pattern.
    fn queue_at(interval: u64, seed: u64) -> u64 {
        let mut bits = (interval + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits ^= bits >> 31;
        bits = bits.wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits >> 33) % 20_000
    }

    /// Feeds both paths over `intervals` with four samples each.
    fn feed(shared: &mut SharedBottlenecks, intervals: std::ops::Range<u64>, queue: impl Fn(PathId, u64) -> u64) {
        for sample in intervals.start * 4..intervals.end * 4 {
            let now = Time::after(INTERVAL / 4 * sample as u32);
            for path in [A, B] {
                shared.on_sample(path, now, Duration::from_micros(queue(path, sample / 4)));
            }
        }
    }

    fn two_paths() -> SharedBottlenecks {
        let mut shared = SharedBottlenecks::default();
        [A, B].into_iter().for_each(|path| shared.add_path(path));
        shared
    }

    #[test]
    fn queues_that_change_together_share_a_bottleneck_and_others_do_not() {
        let mut shared = two_paths();
        feed(&mut shared, 0..40, |path, interval| queue_at(interval, 1) + u64::from(path.slot) * 1_000);
        assert_eq!((shared.partners(A), shared.partners(B)), (PathSet::only(B), PathSet::only(A)));
        feed(&mut shared, 40..200, |path, interval| queue_at(interval, u64::from(path.slot)));
        assert_eq!((shared.partners(A), shared.partners(B)), (PathSet::NONE, PathSet::NONE));
    }

    #[test]
    fn two_seconds_are_needed() {
        let mut shared = two_paths();
        feed(&mut shared, 0..15, |_, interval| queue_at(interval, 1));
        assert_eq!(shared.partners(A), PathSet::NONE);
        feed(&mut shared, 15..25, |_, interval| queue_at(interval, 1));
        assert_eq!(shared.partners(A), PathSet::only(B));
    }

    #[test]
    fn queues_below_the_accuracy_of_acks_show_nothing() {
        let mut shared = two_paths();
        feed(&mut shared, 0..100, |_, interval| queue_at(interval, 1) / 100);
        assert_eq!(shared.partners(A), PathSet::NONE);
    }

    #[test]
    fn slow_growth_at_the_same_time_shows_nothing() {
        let mut shared = two_paths();
        feed(&mut shared, 0..200, |path, interval| interval * 100 + queue_at(interval, u64::from(path.slot)) / 20);
        assert_eq!(shared.partners(A), PathSet::NONE);
    }

    #[test]
    fn a_removed_path_and_its_successor_are_no_partners() {
        let mut shared = two_paths();
        feed(&mut shared, 0..40, |_, interval| queue_at(interval, 1));
        shared.remove_path(B);
        assert_eq!(shared.partners(A), PathSet::NONE);
        shared.add_path(PathId { generation: 1, ..B });
        assert_eq!(shared.partners(A), PathSet::NONE);
    }
}
