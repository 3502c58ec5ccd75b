//! The receiving half of a path's feedback: what has arrived, and when to say so.
//!
//! An ACK must be prompt to be useful and rare to be cheap. Three rules decide:
//!
//! - every byte that arrives earns a hundredth of a byte of credit, an ACK costs what it weighs on the wire: bulk data
//!   is acknowledged at 1 % of its volume. A path begins with credit for [`FREE_ACKS`], so start-up is answered fast;
//! - with credit, an ACK is due for every second packet and at once when a hole opens or closes, but never sooner than
//!   [`SPACING`] after the last one: a batch from the kernel is acknowledged once;
//! - without, it is due [`MAX_HOLD`] after the first packet it confirms, or at once if the sender asks for it with a padded probe (as with
//!   IMMEDIATE_ACK, draft-ietf-quic-ack-frequency section 5).
//!
//! An ACK can be lost, and it does not carry all ranges when jitter keeps many holes open. So it carries the ranges that
//! changed lately: each change is told [`REPORTS`] times.

use std::collections::VecDeque;
use std::time::Duration;

use super::PathSeq;
use super::ack::{Ack, PeerTime, Range, Ranges};
use super::packet_pair::LARGE;
use super::sent_packets::MAX_HOLD;
use crate::time::Time;

/// What a datagram asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckEliciting {
    /// It carries nothing but ACKs: it is confirmed with the next one and never causes one.
    #[default]
    Nothing,
    /// To be acknowledged.
    Ack,
    /// To be acknowledged at once: a probe as long as a full packet.
    AckAtOnce,
}

/// What has arrived on one path.
#[derive(Clone, Debug)]
pub struct AckGenerator {
    slot: u8,
    ranges: VecDeque<TrackedRange>,
    highest: Option<PathSeq>,
    /// The highest that asks for an ACK, and when it arrived: a sender remembers no others, and measures by this one.
    largest: Option<(PathSeq, Time)>,
    ce: u64,
    unacked: u32,
    due: Option<Time>,
    last_ack: Time,
    last_ranges: u64,
    credit: u64,
}

impl AckGenerator {
    /// Nothing has arrived yet on the path in `slot`.
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
            credit: FREE_ACKS * ACK_BYTES * EARN,
        }
    }

    /// Notes a datagram of `bytes`. `ce` says whether it was marked Congestion Experienced.
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
        self.credit = (self.credit + bytes).min(FREE_ACKS * ACK_BYTES * EARN);
        if elicits != AckEliciting::Nothing {
            self.unacked += 1;
            // A large one among small ones tells how slow the line is (`path::line`), but not when a later one is the largest.
            let telling = bytes >= LARGE && self.credit >= FREE_ACKS / 2 * ACK_BYTES * EARN;
            self.schedule(now, elicits == AckEliciting::AckAtOnce, !in_order || ce || telling);
        }
    }

    /// Whether the datagram with this number was sent after all that have arrived.
    pub fn is_newest(&self, seq: PathSeq) -> bool {
        self.highest.is_none_or(|highest| highest < seq)
    }

    /// When an ACK should leave, if one should.
    pub fn ack_due(&self) -> Option<Time> {
        self.due
    }

    /// An ACK of what arrived, for sending at `now`; none when nothing has. It may be taken before it is due, to ride on
    /// data that goes the other way.
    pub fn take_ack(&mut self, now: Time) -> Option<Ack> {
        let (largest, arrived) = self.largest?;
        let ranges = self.changes(largest);
        self.last_ranges = ranges.as_slice().len() as u64;
        self.credit = self.credit.saturating_sub(self.next_cost());
        (self.unacked, self.due, self.last_ack) = (0, None, now);
        let received_at = PeerTime(arrived.as_nanos() / 1_000);
        Some(Ack { slot: self.slot, largest, received_at, delay: now.since(arrived), ranges, ce: self.ce })
    }

    fn schedule(&mut self, now: Time, asked: bool, urgent: bool) {
        let latest = self.due.unwrap_or(now + MAX_HOLD);
        let affordable = self.credit >= self.next_cost();
        let soon = asked || affordable && (urgent || self.unacked >= 2);
        self.due = Some(if soon { latest.min(now.max(self.last_ack + SPACING)) } else { latest });
    }

    /// An estimate: about as many ranges as last time.
    fn next_cost(&self) -> u64 {
        (ACK_BYTES + RANGE_BYTES * self.last_ranges) * EARN
    }

    /// Adds `seq`; false when it is known already, or too old to be told from known ones.
    fn insert(&mut self, seq: PathSeq) -> bool {
        let at = self.ranges.partition_point(|tracked| tracked.range.last < seq.0);
        if self.ranges.get(at).is_some_and(|next| next.range.contains(seq)) {
            return false;
        }
        let joins_next = self.ranges.get(at).is_some_and(|next| next.range.first.checked_sub(1) == Some(seq.0));
        let joins_last = at > 0 && seq.0.checked_sub(1) == Some(self.ranges[at - 1].range.last);
        match (joins_last, joins_next) {
            (true, true) => {
                let next = self.ranges.remove(at).expect("it was looked at above");
                self.ranges[at - 1].grow(next.range);
            }
            (true, false) => self.ranges[at - 1].grow(Range::one(seq)),
            (false, true) => self.ranges[at].grow(Range::one(seq)),
            (false, false) => return self.insert_alone(at, seq),
        }
        true
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

    /// The ranges worth telling, highest first: the one up to `largest` always, others while their change is fresh.
    fn changes(&mut self, largest: PathSeq) -> Ranges {
        let mut list = Ranges::new();
        let told = self.ranges.iter_mut().rev().skip_while(|tracked| tracked.range.first > largest.0);
        for (age, tracked) in told.enumerate() {
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

/// ACKs a path may send before it has earned any: the first rounds of start-up.
pub const FREE_ACKS: u64 = 32;
/// The least time between two ACKs of a path. At 1 Gbit/s it is 90 packets, so ACKs cost no processor time to speak of.
pub const SPACING: Duration = Duration::from_millis(1);
/// How often a change is told. ACKs get lost, and where jitter on the way back lets them overtake each other the newest
/// must tell what those behind it would have told: what becomes known late looks like a rate that was never there.
const REPORTS: u8 = 6;
/// Bytes of data that pay for one byte of ACK: 1 %.
const EARN: u64 = 100;
/// An ACK on its own: IPv4 and UDP 28, GRE 12, frame about 24, tag 16.
const ACK_BYTES: u64 = 80;
/// Two short variable-length integers.
const RANGE_BYTES: u64 = 3;
/// Ranges that are remembered; the oldest is forgotten first. Twice what one ACK can carry, as lost packets leave
/// holes too.
const MAX_TRACKED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::after(Duration::from_micros(us))
    }

    fn arrive(received: &mut AckGenerator, seqs: impl IntoIterator<Item = u64>) {
        seqs.into_iter().for_each(|seq| received.on_packet(at(seq), PathSeq(seq), 1_400, AckEliciting::Ack, false));
    }

    fn told(ack: &Ack) -> Vec<(u64, u64)> {
        ack.ranges.as_slice().iter().map(|r| (r.first, r.last)).collect()
    }

    #[test]
    fn what_was_overtaken_is_not_the_newest_though_nothing_asked_for_an_ack() {
        let mut received = AckGenerator::new(0);
        received.on_packet(at(0), PathSeq(4), 60, AckEliciting::Nothing, false);
        assert!(!received.is_newest(PathSeq(3)) && received.is_newest(PathSeq(5)));
    }

    #[test]
    fn ranges_join_as_holes_close() {
        let mut received = AckGenerator::new(3);
        arrive(&mut received, [5, 6, 9, 7, 1]);
        let ack = received.take_ack(at(20)).unwrap();
        assert_eq!((ack.slot, ack.largest), (3, PathSeq(9)));
        assert_eq!(told(&ack), [(9, 9), (5, 7), (1, 1)]);
        arrive(&mut received, [8]);
        assert_eq!(told(&received.take_ack(at(21)).unwrap()), [(5, 9), (1, 1)]);
    }

    #[test]
    fn a_change_is_told_six_times_and_the_newest_range_always() {
        let mut received = AckGenerator::new(0);
        arrive(&mut received, [0, 1, 4]);
        let acks: Vec<_> = (0..7).map(|n| told(&received.take_ack(at(10 + n)).unwrap())).collect();
        assert_eq!(acks[5], [(4, 4), (0, 1)]);
        assert_eq!(acks[6], [(4, 4)]);
    }

    #[test]
    fn the_receive_time_is_that_of_the_largest() {
        let mut received = AckGenerator::new(0);
        received.on_packet(at(5_000), PathSeq(8), 100, AckEliciting::Ack, false);
        received.on_packet(at(6_000), PathSeq(7), 100, AckEliciting::Ack, true);
        let ack = received.take_ack(at(7_500)).unwrap();
        assert_eq!((ack.received_at, ack.delay), (PeerTime(5_000), Duration::from_micros(2_500)));
        assert_eq!((ack.written_at(), ack.ce), (PeerTime(7_500), 1));
    }

    #[test]
    fn the_largest_asked_for_an_ack_and_nothing_above_it_is_told() {
        let mut received = AckGenerator::new(0);
        received.on_packet(at(1_000), PathSeq(3), 100, AckEliciting::Ack, false);
        received.on_packet(at(2_000), PathSeq(4), 60, AckEliciting::Nothing, false);
        received.on_packet(at(3_000), PathSeq(6), 60, AckEliciting::Nothing, false);
        let ack = received.take_ack(at(3_000)).unwrap();
        assert_eq!((ack.largest, ack.received_at), (PathSeq(3), PeerTime(1_000)));
        assert_eq!(told(&ack), [(3, 3)]);
    }

    /// 100 Mbit/s for a second: 8929 packets of 1400 bytes, every 112 us.
    #[test]
    fn acks_of_bulk_data_weigh_one_percent_of_it() {
        let (mut received, mut acks, mut weight) = (AckGenerator::new(0), 0, 0);
        for n in 0..8_929 {
            let now = at(n * 112);
            if received.ack_due().is_some_and(|due| due <= now) {
                let ack = received.take_ack(now).unwrap();
                acks += 1;
                weight += 80 + 3 * ack.ranges.as_slice().len();
            }
            received.on_packet(now, PathSeq(n), 1_400, AckEliciting::Ack, false);
        }
        assert!(weight <= 8_929 * 14 + 32 * 83, "{weight} bytes");
        assert!(acks > 500, "{acks} ACKs a second");
    }

    #[test]
    fn a_lone_packet_is_acknowledged_after_the_longest_hold() {
        let mut received = AckGenerator::new(0);
        received.on_packet(at(0), PathSeq(0), 100, AckEliciting::Ack, false);
        assert_eq!(received.ack_due(), Some(Time::START + MAX_HOLD));
    }

    #[test]
    fn a_padded_probe_is_acknowledged_at_once_though_there_is_no_credit() {
        for (elicits, due) in [(AckEliciting::Ack, at(1_000) + MAX_HOLD), (AckEliciting::AckAtOnce, at(1_000))] {
            let mut received = AckGenerator { credit: 0, ..AckGenerator::new(0) };
            received.on_packet(at(1_000), PathSeq(0), 1_400, elicits, false);
            assert_eq!(received.ack_due(), Some(due));
        }
    }

    #[test]
    fn a_hole_is_reported_at_once_but_not_sooner_than_a_millisecond_after_the_last_ack() {
        let mut received = AckGenerator::new(0);
        arrive(&mut received, [0, 1]);
        received.take_ack(at(100));
        received.on_packet(at(200), PathSeq(3), 100, AckEliciting::Ack, false);
        assert_eq!(received.ack_due(), Some(at(1_100)));
    }

    #[test]
    fn an_ack_never_causes_an_ack() {
        let mut received = AckGenerator::new(0);
        received.on_packet(at(0), PathSeq(0), 80, AckEliciting::Nothing, false);
        assert_eq!(received.ack_due(), None);
        assert_eq!(received.unacked, 0);
    }

    #[test]
    fn memory_is_bounded_whatever_arrives() {
        let mut received = AckGenerator::new(0);
        arrive(&mut received, (0..10_000).map(|n| n * 2));
        assert_eq!(received.ranges.len(), MAX_TRACKED);
        arrive(&mut received, [3]);
        assert_eq!(received.ranges.len(), MAX_TRACKED, "too old to be remembered");
        arrive(&mut received, [1 << 60]);
        received.on_packet(at(0), PathSeq(u64::MAX), 1, AckEliciting::Ack, false);
        assert_eq!(received.largest.unwrap().0, PathSeq(u64::MAX));
    }
}
