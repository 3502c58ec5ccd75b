//! ACK of one path: which datagrams arrived, when, and how many were marked Congestion Experienced.
//!
//! The receive time is a reading of the receiver's clock, whose offset to ours is unknown. That is sufficient: the
//! difference of two readings is the time between two arrivals, independent of the delay of the ACKs on their way back,
//! and a reading minus our send time is a one-way delay with an unknown offset that is the same on all paths of a peer.

use std::time::Duration;

use crate::id::PathSeq;

/// A reading of the peer's clock in microseconds since an instant unknown to this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerTime(pub u64);

impl PeerTime {
    /// Returns the time since `earlier`, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Returns the reading `delay` later.
    pub const fn plus(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay.as_micros() as u64))
    }
}

/// Datagrams from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The lowest number.
    pub first: u64,
    /// The highest number, not below `first`.
    pub last: u64,
}

impl Range {
    /// Makes the range of one datagram.
    pub const fn one(seq: PathSeq) -> Self {
        Self { first: seq.0, last: seq.0 }
    }

    /// Returns true if `seq` is in the range.
    pub const fn contains(self, seq: PathSeq) -> bool {
        self.first <= seq.0 && seq.0 <= self.last
    }
}

/// One acknowledgement of one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Slot of the path that is acknowledged; the ACK itself may be sent on another one.
    pub slot: u8,
    /// The highest number that has arrived.
    pub largest: PathSeq,
    /// Arrival time of `largest` by the receiver's clock.
    pub received_at: PeerTime,
    /// Time for which the receiver delayed the ACK after `largest` arrived.
    pub delay: Duration,
    /// Ranges that arrived, highest numbers first. Those in an earlier ACK may be omitted.
    pub ranges: Ranges,
    /// Datagrams that have arrived on this path with Congestion Experienced set, since the path began.
    pub ce: u64,
}

impl Ack {
    /// Returns the time at which the ACK was written, by the receiver's clock. Everything in `ranges` had arrived by
    /// then.
    pub const fn written_at(&self) -> PeerTime {
        self.received_at.plus(self.delay)
    }
}

/// Up to [`MAX_RANGES`] ranges, stored inline.
#[derive(Clone)]
pub struct Ranges {
    len: u8,
    ranges: [Range; MAX_RANGES],
}

impl Ranges {
    /// Makes an empty list.
    pub const fn new() -> Self {
        Self { len: 0, ranges: [Range { first: 0, last: 0 }; MAX_RANGES] }
    }

    /// Adds a range; false, and nothing is added, if the list is full or if `first` is above `last`.
    pub fn push(&mut self, range: Range) -> bool {
        let fits = self.has_room() && range.first <= range.last;
        if fits {
            self.ranges[usize::from(self.len)] = range;
            self.len += 1;
        }
        fits
    }

    /// Returns true if another range can be added.
    pub const fn has_room(&self) -> bool {
        (self.len as usize) < MAX_RANGES
    }

    /// Returns the ranges in the order in which they were added.
    pub fn as_slice(&self) -> &[Range] {
        &self.ranges[..usize::from(self.len)]
    }
}

impl Default for Ranges {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for Ranges {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Ranges {}

impl std::fmt::Debug for Ranges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice().iter().map(|r| r.first..=r.last)).finish()
    }
}

impl FromIterator<Range> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range>>(ranges: I) -> Self {
        let mut list = Self::new();
        ranges.into_iter().for_each(|range| {
            list.push(range);
        });
        list
    }
}

/// Maximum number of ranges in one ACK. Jitter of 25 ms (normal) at 100 Mbit/s leaves about 126 gaps open at any time
/// (9 packets/ms x 25 ms / sqrt(pi)); packets in ranges that do not fit are reported late and declared lost.
pub const MAX_RANGES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_accepts_no_more_ranges() {
        let list: Ranges = (0..1_000).map(|n| Range { first: n * 2, last: n * 2 }).collect();
        assert_eq!(list.as_slice().len(), MAX_RANGES);
    }

    #[test]
    fn a_range_with_first_above_last_is_refused() {
        assert!(!Ranges::new().push(Range { first: 2, last: 1 }));
    }
}
