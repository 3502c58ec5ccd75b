//! Minimum and maximum over a sliding window of time.
//!
//! An estimate such as the minimum delay must expire: routes change, clocks drift. The window is divided into four
//! buckets, and the oldest bucket expires at once, so a value is kept for between 3/4 and all of the window, at a cost
//! of four values and no allocation. Nothing expires while nothing is inserted: the last value of an idle path stands
//! until there is a newer one.

use std::cmp::Reverse;
use std::time::Duration;

use crate::time::Time;

/// The least value in a window of time.
#[derive(Clone, Debug)]
pub struct WindowedMin<T> {
    started: Time,
    buckets: [Option<T>; BUCKETS as usize],
}

impl<T: Copy + Ord> WindowedMin<T> {
    /// Makes an empty window.
    pub const fn new() -> Self {
        Self { started: Time::START, buckets: [None; BUCKETS as usize] }
    }

    /// Adds `value`, and forgets values older than `window`.
    pub fn insert(&mut self, now: Time, window: Duration, value: T) {
        self.expire(now, window);
        let newest = &mut self.buckets[0];
        *newest = Some(newest.map_or(value, |old| old.min(value)));
    }

    /// Returns the least value in the window, if there is one.
    pub fn get(&self) -> Option<T> {
        self.buckets.iter().flatten().min().copied()
    }

    fn expire(&mut self, now: Time, window: Duration) {
        let span = window / BUCKETS;
        for _ in 0..BUCKETS {
            if now.since(self.started) < span {
                return;
            }
            self.buckets.rotate_right(1);
            self.buckets[0] = None;
            self.started += span;
        }
        self.started = now;
    }
}

impl<T: Copy + Ord> Default for WindowedMin<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The greatest value in a window of time.
#[derive(Clone, Debug, Default)]
pub struct WindowedMax<T: Copy + Ord>(WindowedMin<Reverse<T>>);

impl<T: Copy + Ord> WindowedMax<T> {
    /// Makes an empty window.
    pub const fn new() -> Self {
        Self(WindowedMin::new())
    }

    /// Adds `value`, and forgets values older than `window`.
    pub fn insert(&mut self, now: Time, window: Duration, value: T) {
        self.0.insert(now, window, Reverse(value));
    }

    /// Returns the greatest value in the window, if there is one.
    pub fn get(&self) -> Option<T> {
        self.0.get().map(|Reverse(value)| value)
    }
}

/// Buckets of a window, which expire one at a time.
const BUCKETS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(4);

    fn second(n: u64) -> Time {
        Time::after(Duration::from_secs(n))
    }

    #[test]
    fn the_least_value_is_kept_for_three_quarters_of_the_window_and_expires_within_all_of_it() {
        let mut min = WindowedMin::new();
        min.insert(second(10), WINDOW, 1);
        min.insert(second(13), WINDOW, 5);
        assert_eq!(min.get(), Some(1));
        min.insert(second(14), WINDOW, 7);
        assert_eq!(min.get(), Some(5));
    }

    #[test]
    fn after_a_long_pause_only_the_new_value_counts() {
        let mut max = WindowedMax::new();
        max.insert(second(1), WINDOW, 100);
        max.insert(second(1_000), WINDOW, 3);
        assert_eq!(max.get(), Some(3));
    }
}
