//! Extremes over a sliding window of time.
//!
//! An estimate such as the minimum delay must forget: routes change, clocks drift. The window is cut into four buckets
//! and the oldest bucket is dropped whole, so a value is remembered for between three quarters and all of the window, at
//! a cost of four values and no allocation. Nothing expires while nothing arrives: the last word about an idle path
//! stands until there is a newer one.

use std::cmp::Reverse;
use std::time::Duration;

use crate::time::Time;

/// The least value seen in a window of time.
#[derive(Clone, Debug)]
pub struct WindowedMin<T> {
    started: Time,
    buckets: [Option<T>; BUCKETS as usize],
}

impl<T: Copy + Ord> WindowedMin<T> {
    /// A window that has seen nothing.
    pub const fn new() -> Self {
        Self { started: Time::START, buckets: [None; BUCKETS as usize] }
    }

    /// Takes in `value`, and forgets what is older than `window`.
    pub fn insert(&mut self, now: Time, window: Duration, value: T) {
        self.expire(now, window);
        let newest = &mut self.buckets[0];
        *newest = Some(newest.map_or(value, |old| old.min(value)));
    }

    /// The least value in the window, if there is any.
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

/// The greatest value seen in a window of time.
#[derive(Clone, Debug, Default)]
pub struct WindowedMax<T: Copy + Ord>(WindowedMin<Reverse<T>>);

impl<T: Copy + Ord> WindowedMax<T> {
    /// A window that has seen nothing.
    pub const fn new() -> Self {
        Self(WindowedMin::new())
    }

    /// Takes in `value`, and forgets what is older than `window`.
    pub fn insert(&mut self, now: Time, window: Duration, value: T) {
        self.0.insert(now, window, Reverse(value));
    }

    /// The greatest value in the window, if there is any.
    pub fn get(&self) -> Option<T> {
        self.0.get().map(|Reverse(value)| value)
    }
}

/// Pieces of a window that are forgotten at once.
const BUCKETS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(4);

    fn second(n: u64) -> Time {
        Time::after(Duration::from_secs(n))
    }

    #[test]
    fn the_least_value_is_kept_for_three_quarters_of_the_window_and_gone_after_all_of_it() {
        let mut least = WindowedMin::new();
        least.insert(second(10), WINDOW, 1);
        least.insert(second(13), WINDOW, 5);
        assert_eq!(least.get(), Some(1));
        least.insert(second(14), WINDOW, 7);
        assert_eq!(least.get(), Some(5));
    }

    #[test]
    fn after_a_long_silence_only_the_new_value_counts() {
        let mut most = WindowedMax::new();
        most.insert(second(1), WINDOW, 100);
        most.insert(second(1_000), WINDOW, 3);
        assert_eq!(most.get(), Some(3));
    }
}
