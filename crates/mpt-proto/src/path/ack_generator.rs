//! ACK generation: which datagrams of a path have arrived, and when to send an ACK of them.
//!
//! Frequent ACKs are useful and cost capacity. Three rules decide:
//!
//! - each byte that arrives earns 1/100 byte of credit, and an ACK costs its size on the wire: bulk data is
//!   acknowledged at 1 % of its volume. A path begins with credit for `FREE_ACKS`, so ACKs are frequent in start-up;
//! - with credit, an ACK is due for every second packet and at once when a gap opens or closes, but never less than
//!   `MIN_ACK_INTERVAL` after the last one: a batch from the kernel is acknowledged once;
//! - without credit, it is due `MAX_ACK_DELAY` after the first packet that it acknowledges, or at once if the sender
//!   requests it with a padded probe (as with IMMEDIATE_ACK, draft-ietf-quic-ack-frequency section 5).
//!
//! An ACK can be lost, and it cannot carry all ranges when jitter keeps many gaps open. So it carries the ranges that
//! changed recently: each change is reported in `REPORTS` ACKs.

use std::collections::VecDeque;

use super::ack::{Ack, PeerTime, Range, Ranges};
use crate::id::PathSeq;
use crate::time::Time;
use crate::tuning::path::ack_generator::{BYTES_PER_ACK_BYTE, FREE_ACKS, MIN_ACK_INTERVAL, REPORTS};
use crate::tuning::path::packet_pair::MIN_LARGE;
use crate::tuning::path::sent_packets::MAX_ACK_DELAY;

/// The ACK that a datagram elicits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckEliciting {
    /// None: it carries only ACKs. The next ACK acknowledges it.
    #[default]
    Nothing,
    /// An ACK by the rules above.
    Ack,
    /// An immediate ACK: it is a probe of full size.
    AckAtOnce,
}

/// The datagrams that have arrived on one path.
#[derive(Clone, Debug)]
pub struct AckGenerator {
    slot: u8,
    ranges: VecDeque<TrackedRange>,
    highest: Option<PathSeq>,
    /// The highest ack-eliciting number and its arrival: the sender stores no other numbers, and its samples are of
    /// this one.
    largest: Option<(PathSeq, Time)>,
    ce: u64,
    unacked: u32,
    due: Option<Time>,
    last_ack: Time,
    last_ranges: u64,
    credit: u64,
}

impl AckGenerator {
    /// Makes the generator of the path in `slot`, on which nothing has arrived.
    pub fn new(slot: u8) -> Self {
        Self {
            slot,
            ranges: VecDeque::new(),
            highest: None,
            largest: None,
            ce: 0,
            unacked: 0,
            due: None,
            last_ack: Time::START,
            last_ranges: 1,
            credit: FREE_ACKS * ACK_BYTES * BYTES_PER_ACK_BYTE,
        }
    }

    /// Adds a datagram of `bytes`. `ce` is true if it was marked Congestion Experienced.
    pub fn on_packet(&mut self, now: Time, seq: PathSeq, bytes: u64, elicits: AckEliciting, ce: bool) {
        let in_order = self.highest.is_none_or(|highest| seq.0.checked_sub(1) == Some(highest.0));
        if !self.insert(seq) {
            return;
        }
        self.highest = self.highest.max(Some(seq));
        if elicits != AckEliciting::Nothing && self.largest.is_none_or(|(largest, _)| largest < seq) {
            self.largest = Some((seq, now));
        }
        self.ce += u64::from(ce);
        self.credit = (self.credit + bytes).min(FREE_ACKS * ACK_BYTES * BYTES_PER_ACK_BYTE);
        if elicits != AckEliciting::Nothing {
            self.unacked += 1;
            // A large datagram among small ones yields the rate of a slow link (`path::packet_pair`), if it is
            // acknowledged before a later one is the largest.
            let measures_link = bytes >= MIN_LARGE && self.credit >= FREE_ACKS / 2 * ACK_BYTES * BYTES_PER_ACK_BYTE;
            self.schedule(now, elicits == AckEliciting::AckAtOnce, !in_order || ce || measures_link);
        }
    }

    /// Returns true if the datagram with this number was sent after all that have arrived.
    pub fn is_newest(&self, seq: PathSeq) -> bool {
        self.highest.is_none_or(|highest| highest < seq)
    }

    /// Returns the time at which an ACK is due, if one is.
    pub fn ack_due(&self) -> Option<Time> {
        self.due
    }

    /// Returns an ACK to be sent at `now`, if anything has arrived. It may be taken before it is due, to share a
    /// datagram with data in the other direction.
    pub fn take_ack(&mut self, now: Time) -> Option<Ack> {
        let (largest, arrived) = self.largest?;
        let ranges = self.changes(largest);
        self.last_ranges = ranges.as_slice().len() as u64;
        self.credit = self.credit.saturating_sub(self.next_cost());
        (self.unacked, self.due, self.last_ack) = (0, None, now);
        let received_at = PeerTime(arrived.as_nanos() / 1_000);
        Some(Ack { slot: self.slot, largest, received_at, delay: now.since(arrived), ranges, ce: self.ce })
    }

    fn schedule(&mut self, now: Time, immediate: bool, urgent: bool) {
        let latest = self.due.unwrap_or(now + MAX_ACK_DELAY);
        let affordable = self.credit >= self.next_cost();
        let soon = immediate || affordable && (urgent || self.unacked >= 2);
        self.due = Some(if soon { latest.min(now.max(self.last_ack + MIN_ACK_INTERVAL)) } else { latest });
    }

    /// Estimates the cost of the next ACK, which has about as many ranges as the last one.
    fn next_cost(&self) -> u64 {
        (ACK_BYTES + RANGE_BYTES * self.last_ranges) * BYTES_PER_ACK_BYTE
    }

    /// Adds `seq`; false if it is a duplicate, or older than all tracked ranges.
    fn insert(&mut self, seq: PathSeq) -> bool {
        // Datagrams mostly come in order.
        let is_after_all = self.ranges.back().is_none_or(|last| last.range.last < seq.0);
        let at = if is_after_all { self.ranges.len() } else { self.position(seq) };
        if self.ranges.get(at).is_some_and(|next| next.range.contains(seq)) {
            return false;
        }
        let joins_next = self.ranges.get(at).is_some_and(|next| next.range.first.checked_sub(1) == Some(seq.0));
        let joins_last = at > 0 && seq.0.checked_sub(1) == Some(self.ranges[at - 1].range.last);
        match (joins_last, joins_next) {
            (true, true) => {
                let next = self.ranges.remove(at).expect("joins_next found it");
                self.ranges[at - 1].grow(next.range);
            }
            (true, false) => self.ranges[at - 1].grow(Range::one(seq)),
            (false, true) => self.ranges[at].grow(Range::one(seq)),
            (false, false) => return self.insert_alone(at, seq),
        }
        true
    }

    /// Returns the index of the first range that does not end before `seq`.
    fn position(&self, seq: PathSeq) -> usize {
        self.ranges.partition_point(|tracked| tracked.range.last < seq.0)
    }

    fn insert_alone(&mut self, at: usize, seq: PathSeq) -> bool {
        let full = self.ranges.len() == MAX_TRACKED;
        if full && at == 0 {
            return false;
        }
        self.ranges.insert(at, TrackedRange { range: Range::one(seq), reports: REPORTS });
        if full {
            self.ranges.pop_front();
        }
        true
    }

    /// Returns the ranges to report, highest first: the one up to `largest` always, others while their change is
    /// recent.
    fn changes(&mut self, largest: PathSeq) -> Ranges {
        let mut list = Ranges::new();
        let candidates = self.ranges.iter_mut().rev().skip_while(|tracked| tracked.range.first > largest.0);
        for (age, tracked) in candidates.enumerate() {
            let range = Range { last: tracked.range.last.min(largest.0), ..tracked.range };
            if (age == 0 || tracked.reports > 0) && list.push(range) {
                tracked.reports = tracked.reports.saturating_sub(1);
            }
        }
        list
    }
}

#[derive(Clone, Copy, Debug)]
struct TrackedRange {
    range: Range,
    reports: u8,
}

impl TrackedRange {
    fn grow(&mut self, by: Range) {
        self.range = Range { first: self.range.first.min(by.first), last: self.range.last.max(by.last) };
        self.reports = REPORTS;
    }
}

/// Size of an ACK on its own: IPv4 and UDP 28, GRE 12, frame about 24, tag 16.
const ACK_BYTES: u64 = 80;
/// Size of a range: two short variable-length integers.
const RANGE_BYTES: u64 = 3;
/// Ranges that are tracked; the oldest is forgotten first. Twice as many as fit into one ACK, because lost packets
/// leave gaps, too.
const MAX_TRACKED: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(us: u64) -> Time {
        Time::after(Duration::from_micros(us))
    }

    fn arrive(generator: &mut AckGenerator, seqs: impl IntoIterator<Item = u64>) {
        seqs.into_iter().for_each(|seq| generator.on_packet(at(seq), PathSeq(seq), 1_400, AckEliciting::Ack, false));
    }

    fn ranges(ack: &Ack) -> Vec<(u64, u64)> {
        ack.ranges.as_slice().iter().map(|r| (r.first, r.last)).collect()
    }

    #[test]
    fn an_overtaken_datagram_is_not_the_newest_even_behind_one_that_elicits_no_ack() {
        let mut generator = AckGenerator::new(0);
        generator.on_packet(at(0), PathSeq(4), 60, AckEliciting::Nothing, false);
        assert!(!generator.is_newest(PathSeq(3)) && generator.is_newest(PathSeq(5)));
    }

    #[test]
    fn ranges_merge_as_gaps_close() {
        let mut generator = AckGenerator::new(3);
        arrive(&mut generator, [5, 6, 9, 7, 1]);
        let ack = generator.take_ack(at(20)).unwrap();
        assert_eq!((ack.slot, ack.largest), (3, PathSeq(9)));
        assert_eq!(ranges(&ack), [(9, 9), (5, 7), (1, 1)]);
        arrive(&mut generator, [8]);
        assert_eq!(ranges(&generator.take_ack(at(21)).unwrap()), [(5, 9), (1, 1)]);
    }

    #[test]
    fn a_change_is_reported_six_times_and_the_newest_range_always() {
        let mut generator = AckGenerator::new(0);
        arrive(&mut generator, [0, 1, 4]);
        let acks: Vec<_> = (0..7).map(|n| ranges(&generator.take_ack(at(10 + n)).unwrap())).collect();
        assert_eq!(acks[5], [(4, 4), (0, 1)]);
        assert_eq!(acks[6], [(4, 4)]);
    }

    #[test]
    fn the_receive_time_is_that_of_the_largest() {
        let mut generator = AckGenerator::new(0);
        generator.on_packet(at(5_000), PathSeq(8), 100, AckEliciting::Ack, false);
        generator.on_packet(at(6_000), PathSeq(7), 100, AckEliciting::Ack, true);
        let ack = generator.take_ack(at(7_500)).unwrap();
        assert_eq!((ack.received_at, ack.delay), (PeerTime(5_000), Duration::from_micros(2_500)));
        assert_eq!((ack.written_at(), ack.ce), (PeerTime(7_500), 1));
    }

    #[test]
    fn largest_is_ack_eliciting_and_nothing_above_it_is_reported() {
        let mut generator = AckGenerator::new(0);
        generator.on_packet(at(1_000), PathSeq(3), 100, AckEliciting::Ack, false);
        generator.on_packet(at(2_000), PathSeq(4), 60, AckEliciting::Nothing, false);
        generator.on_packet(at(3_000), PathSeq(6), 60, AckEliciting::Nothing, false);
        let ack = generator.take_ack(at(3_000)).unwrap();
        assert_eq!((ack.largest, ack.received_at), (PathSeq(3), PeerTime(1_000)));
        assert_eq!(ranges(&ack), [(3, 3)]);
    }

    /// 100 Mbit/s for a second: 8929 packets of 1400 bytes, every 112 us.
    #[test]
    fn acks_of_bulk_data_are_one_percent_of_its_volume() {
        let (mut generator, mut acks, mut volume) = (AckGenerator::new(0), 0, 0);
        for n in 0..8_929 {
            let now = at(n * 112);
            if generator.ack_due().is_some_and(|due| due <= now) {
                let ack = generator.take_ack(now).unwrap();
                acks += 1;
                volume += 80 + 3 * ack.ranges.as_slice().len();
            }
            generator.on_packet(now, PathSeq(n), 1_400, AckEliciting::Ack, false);
        }
        assert!(volume <= 8_929 * 14 + 32 * 83, "{volume} bytes");
        assert!(acks > 500, "{acks} ACKs a second");
    }

    #[test]
    fn a_lone_packet_is_acknowledged_after_max_ack_delay() {
        let mut generator = AckGenerator::new(0);
        generator.on_packet(at(0), PathSeq(0), 100, AckEliciting::Ack, false);
        assert_eq!(generator.ack_due(), Some(Time::START + MAX_ACK_DELAY));
    }

    #[test]
    fn a_padded_probe_is_acknowledged_at_once_even_without_credit() {
        for (elicits, due) in [(AckEliciting::Ack, at(1_000) + MAX_ACK_DELAY), (AckEliciting::AckAtOnce, at(1_000))] {
            let mut generator = AckGenerator { credit: 0, ..AckGenerator::new(0) };
            generator.on_packet(at(1_000), PathSeq(0), 1_400, elicits, false);
            assert_eq!(generator.ack_due(), Some(due));
        }
    }

    #[test]
    fn a_gap_is_reported_at_once_but_not_within_a_millisecond_of_the_last_ack() {
        let mut generator = AckGenerator::new(0);
        arrive(&mut generator, [0, 1]);
        generator.take_ack(at(100));
        generator.on_packet(at(200), PathSeq(3), 100, AckEliciting::Ack, false);
        assert_eq!(generator.ack_due(), Some(at(1_100)));
    }

    #[test]
    fn an_ack_never_elicits_an_ack() {
        let mut generator = AckGenerator::new(0);
        generator.on_packet(at(0), PathSeq(0), 80, AckEliciting::Nothing, false);
        assert_eq!(generator.ack_due(), None);
        assert_eq!(generator.unacked, 0);
    }

    #[test]
    fn memory_is_bounded_whatever_arrives() {
        let mut generator = AckGenerator::new(0);
        arrive(&mut generator, (0..10_000).map(|n| n * 2));
        assert_eq!(generator.ranges.len(), MAX_TRACKED);
        arrive(&mut generator, [3]);
        assert_eq!(generator.ranges.len(), MAX_TRACKED, "too old to be remembered");
        arrive(&mut generator, [1 << 60]);
        generator.on_packet(at(0), PathSeq(u64::MAX), 1, AckEliciting::Ack, false);
        assert_eq!(generator.largest.unwrap().0, PathSeq(u64::MAX));
    }
}
