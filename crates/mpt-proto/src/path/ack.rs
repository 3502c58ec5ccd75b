//! What a receiver says about one path: which datagrams arrived, when, and how many were marked.
//!
//! The receive time is the receiver's clock, which shares nothing with ours but its pace. That is enough: two readings of
//! it give the time between two arrivals, free of whatever the ACKs met on their own way back, and a reading less our own
//! send time gives a one-way delay with an unknown constant that is the same for all paths of a peer.

use std::time::Duration;

use super::PathSeq;

/// A reading of the peer's clock, in microseconds since an instant only the peer knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerTime(pub u64);

impl PeerTime {
    /// Time since `earlier`, zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The reading `delay` later.
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
    /// The range of one datagram.
    pub const fn one(seq: PathSeq) -> Self {
        Self { first: seq.0, last: seq.0 }
    }

    /// Whether `seq` lies in the range.
    pub const fn contains(self, seq: PathSeq) -> bool {
        self.first <= seq.0 && seq.0 <= self.last
    }
}

/// One acknowledgement of one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Slot of the path that is acknowledged; the ACK itself may ride another one.
    pub slot: u8,
    /// The highest number that has arrived.
    pub largest: PathSeq,
    /// When `largest` arrived, by the receiver's clock.
    pub received_at: PeerTime,
    /// How long the receiver kept this acknowledgement back after `largest` arrived.
    pub delay: Duration,
    /// What arrived, highest numbers first. What an earlier ACK told may be left out.
    pub ranges: Ranges,
    /// Datagrams that have arrived on this path with Congestion Experienced set, since the path began.
    pub ce: u64,
}

impl Ack {
    /// When the receiver wrote this, by its own clock. Everything in `ranges` had arrived by then.
    pub const fn written_at(&self) -> PeerTime {
        self.received_at.plus(self.delay)
    }
}

/// Up to [`MAX_RANGES`] ranges, in place.
#[derive(Clone)]
pub struct Ranges {
    len: u8,
    ranges: [Range; MAX_RANGES],
}

impl Ranges {
    /// No range.
    pub const fn new() -> Self {
        Self { len: 0, ranges: [Range { first: 0, last: 0 }; MAX_RANGES] }
    }

    /// Adds a range; false, and nothing is added, when there are [`MAX_RANGES`] or when it is upside down.
    pub fn push(&mut self, range: Range) -> bool {
        let fits = self.has_room() && range.first <= range.last;
        if fits {
            self.ranges[usize::from(self.len)] = range;
            self.len += 1;
        }
        fits
    }

    /// Whether another range can be added.
    pub const fn has_room(&self) -> bool {
        (self.len as usize) < MAX_RANGES
    }

    /// The ranges in the order in which they were added.
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

/// The most ranges in one ACK. Jitter of 25 ms (normal) at 100 Mbit/s leaves about 126 holes open at any time
/// (9 packets/ms x 25 ms / sqrt(pi)); what does not fit is learned late and taken for lost.
pub const MAX_RANGES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_takes_no_more() {
        let list: Ranges = (0..1_000).map(|n| Range { first: n * 2, last: n * 2 }).collect();
        assert_eq!(list.as_slice().len(), MAX_RANGES);
    }

    #[test]
    fn a_range_that_is_upside_down_is_refused() {
        assert!(!Ranges::new().push(Range { first: 2, last: 1 }));
    }
}
