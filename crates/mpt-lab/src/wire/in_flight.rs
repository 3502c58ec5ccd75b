//! Frames in flight, ordered by release time.

use crate::sys::packet::Frame;
use mpt_proto::time::Time;
use std::{cmp::Ordering, collections::BinaryHeap};

/// A frame with its line and its release time.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) at: Time,
    pub(super) line: usize,
    pub(super) frame: Frame,
}

/// Frames in flight on all lines.
#[derive(Default)]
pub(super) struct InFlight {
    heap: BinaryHeap<Entry>,
    sequence: u64,
}

impl InFlight {
    pub(super) fn push(&mut self, at: Time, line: usize, frame: Frame) {
        self.sequence += 1;
        self.heap.push(Entry { number: self.sequence, due: Due { at, line, frame } });
    }

    /// Removes the next due frame; of equal times the one that was pushed first.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Due> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.due)
    }

    /// Returns the release time of the next frame.
    pub(super) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.due.at)
    }

    /// Returns the number of frames in flight.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Discards all frames of `line`.
    pub(super) fn discard_line(&mut self, line: usize) {
        self.heap.retain(|entry| entry.due.line != line);
    }
}

struct Entry {
    number: u64,
    due: Due,
}

impl Ord for Entry {
    /// Reverses the order, because the heap returns its maximum and the earliest frame must come first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due.at, other.number).cmp(&(self.due.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(frames: &[(u64, usize)]) -> InFlight {
        let mut in_flight = InFlight::default();
        for (at, line) in frames {
            in_flight.push(Time::from_nanos(*at), *line, Frame::with_room(0));
        }
        in_flight
    }

    fn released_lines(in_flight: &mut InFlight, now: u64) -> Vec<usize> {
        std::iter::from_fn(|| in_flight.pop_due(Time::from_nanos(now))).map(|due| due.line).collect()
    }

    #[test]
    fn frames_are_released_by_time_and_equal_times_in_order() {
        let mut in_flight = in_flight(&[(30, 0), (10, 1), (20, 2), (10, 3), (10, 4)]);
        assert_eq!(released_lines(&mut in_flight, 20), [1, 3, 4, 2]);
        assert_eq!(in_flight.next(), Some(Time::from_nanos(30)));
    }

    #[test]
    fn discarding_a_line_leaves_other_lines_alone() {
        let mut in_flight = in_flight(&[(30, 0), (10, 1), (20, 0)]);
        in_flight.discard_line(0);
        assert_eq!(released_lines(&mut in_flight, 100), [1]);
    }
}
