//! Deadlines by flow bucket, with the earliest at hand: a peer may have a deadline in each of a thousand buckets, and
//! the event loop needs the earliest in each turn.

use std::collections::{BTreeMap, BTreeSet};

use crate::time::Time;

/// At most one deadline for each bucket.
#[derive(Debug, Default)]
pub(crate) struct DeadlineIndex {
    by_bucket: BTreeMap<u16, Time>,
    ordered: BTreeSet<(Time, u16)>,
}

impl DeadlineIndex {
    /// Replaces the deadline of a bucket.
    pub fn set(&mut self, bucket: u16, at: Option<Time>) {
        let before = match at {
            Some(at) => self.by_bucket.insert(bucket, at),
            None => self.by_bucket.remove(&bucket),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.ordered.remove(&(before, bucket));
        }
        self.ordered.extend(at.map(|at| (at, bucket)));
    }

    /// Returns the earliest deadline.
    pub fn first(&self) -> Option<Time> {
        self.ordered.first().map(|(at, _)| *at)
    }

    /// Returns the buckets whose deadline is at or before `now`, in ascending order.
    pub fn due(&self, now: Time) -> Vec<u16> {
        let mut due: Vec<_> = self.ordered.range(..=(now, u16::MAX)).map(|(_, bucket)| *bucket).collect();
        due.sort_unstable();
        due
    }

    /// Returns the buckets that have a deadline, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = u16> {
        self.by_bucket.keys().copied()
    }

    /// Returns true if a bucket has a deadline.
    pub fn contains(&self, bucket: u16) -> bool {
        self.by_bucket.contains_key(&bucket)
    }

    /// Removes all deadlines.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_has_one_deadline_the_last_that_was_set() {
        let at = |ms| Time::after(Duration::from_millis(ms));
        let mut index = DeadlineIndex::default();
        [(7, 5), (3, 9), (7, 8), (1, 8)].into_iter().for_each(|(bucket, ms)| index.set(bucket, Some(at(ms))));
        assert_eq!((index.first(), index.due(at(7)), index.due(at(8))), (Some(at(8)), vec![], vec![1, 7]));
        index.set(7, None);
        assert!(index.contains(1) && !index.contains(7));
        assert_eq!(index.due(at(9)), [1, 3]);
        index.clear();
        assert_eq!(index.first(), None);
    }
}
