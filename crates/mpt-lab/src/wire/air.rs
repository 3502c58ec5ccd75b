//! Frames under way, by the time at which they come out.

use crate::sys::packet::Frame;
use mpt_proto::time::Time;
use std::{cmp::Ordering, collections::BinaryHeap};

/// A frame and when it comes out of its line.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) at: Time,
    pub(super) line: usize,
    pub(super) frame: Frame,
}

/// All frames of all lines that are under way.
#[derive(Default)]
pub(super) struct Air {
    flying: BinaryHeap<Flight>,
    launched: u64,
}

impl Air {
    pub(super) fn put(&mut self, at: Time, line: usize, frame: Frame) {
        self.launched += 1;
        self.flying.push(Flight { number: self.launched, due: Due { at, line, frame } });
    }

    /// The next frame whose time has come; among equals the one that was put first.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Due> {
        if self.next()? > now {
            return None;
        }
        self.flying.pop().map(|flight| flight.due)
    }

    /// When the next frame comes out.
    pub(super) fn next(&self) -> Option<Time> {
        self.flying.peek().map(|flight| flight.due.at)
    }

    /// How many frames are under way.
    pub(super) fn len(&self) -> usize {
        self.flying.len()
    }

    /// Loses every frame of `line`.
    pub(super) fn forget(&mut self, line: usize) {
        self.flying.retain(|flight| flight.due.line != line);
    }
}

struct Flight {
    number: u64,
    due: Due,
}

impl Ord for Flight {
    /// The earliest is the greatest, since the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due.at, other.number).cmp(&(self.due.at, self.number))
    }
}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Flight {}

#[cfg(test)]
mod tests {
    use super::*;

    fn air(flights: &[(u64, usize)]) -> Air {
        let mut air = Air::default();
        for (at, line) in flights {
            air.put(Time::from_nanos(*at), *line, Frame::with_room(0));
        }
        air
    }

    fn landings(air: &mut Air, now: u64) -> Vec<usize> {
        std::iter::from_fn(|| air.take_due(Time::from_nanos(now))).map(|due| due.line).collect()
    }

    #[test]
    fn frames_come_out_by_time_and_equals_as_they_went_in() {
        let mut air = air(&[(30, 0), (10, 1), (20, 2), (10, 3), (10, 4)]);
        assert_eq!(landings(&mut air, 20), [1, 3, 4, 2]);
        assert_eq!(air.next(), Some(Time::from_nanos(30)));
    }

    #[test]
    fn a_forgotten_line_loses_its_frames_alone() {
        let mut air = air(&[(30, 0), (10, 1), (20, 0)]);
        air.forget(0);
        assert_eq!(landings(&mut air, 100), [1]);
    }
}
