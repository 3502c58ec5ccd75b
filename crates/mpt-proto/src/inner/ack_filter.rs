//! Acknowledgements of the TCP flows inside, which leave in batches, the newest of each flow.
//!
//! CUBIC leaves slow start when a round trip tells it that the path is full (HyStart: Ha and Rhee, "Taming the Elephants: New TCP Slow
//! Start", Computer Networks 55, 2011, sections 4.1 and 4.2). Over several paths both of its signs mislead. ACKs that come close after one another
//! for half a round trip say that the first path is full. And a round trip that is 4 to 16 ms longer than the shortest ever says that a later
//! one is in use, or that the first packets were lucky: order restored over paths with jitter has the delay of the slowest packet. A train
//! of ACKs ends where two are more than two milliseconds apart; a round trip is believed in from the ninth ACK of a round on.
//!
//! So ACKs that nothing travels with are gathered, and those that a later one of their flow makes superfluous do not leave at all (RFC 3449
//! section 5.2.1). While a flow is young, eight of it leave in a round trip at most, no fewer than of a receiver that merges 64 KiB before it
//! answers; a round trip by a third longer than the paths' has met a queue, and may show it. Where ACKs are few, as of a page or a call, and once slow start is over, none waits longer than 2.5 ms: BBR takes the wait for the
//! path's, and its window is no longer than two of the shortest round trips. It also saves packets on a thin line upwards.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::classify::Class;
use crate::flow;
use crate::packet::SuperPacket;
use crate::packet::ip::{Ip, TCP};
use crate::time::Time;
use crate::tuning::inner::ack_filter::{
    ACK_BURST, ACKS_PER_RTT, FLOW_IDLE, HYSTART_SAMPLES, MAX_ROUNDS, MIN_RTT, MIN_SPACING, ROUND_MARGIN, STARTUP_RTTS,
};

/// ACKs that wait for others, by the bucket of their flow.
#[derive(Debug, Default)]
pub struct AckFilter {
    flows: BTreeMap<u16, AckFlow>,
    /// How many wait.
    held: usize,
    /// Until then some flow is young.
    startup_until: Time,
}

/// A flow that has ACKs.
#[derive(Debug)]
struct AckFlow {
    held: Vec<SuperPacket>,
    began: Time,
    seen: Time,
    /// When its last batch left.
    left: Option<Time>,
    /// Its batches that have left are paid for by then (the generic cell rate algorithm, ITU-T I.371).
    paid: Time,
    /// How far apart its batches are in the long run.
    spacing: Duration,
    /// For how long after its beginning a round has no more ACKs than HyStart overlooks. One that takes longer has met a queue.
    round_limit: Duration,
    round: SenderRound,
}

/// A round trip as the flow's sender counts them for HyStart: it ends with the first ACK of what was sent after the one that began it. Which
/// data that is tells the timestamp that it echoes (RFC 7323 section 4.3).
#[derive(Clone, Copy, Debug, Default)]
struct SenderRound {
    /// The timestamp of the ACK that began it, and when that left.
    began: Option<(u32, Time)>,
    /// Where the data begins that was sent after that.
    end: Option<u32>,
    /// ACKs that have left in it.
    acks: u32,
}

/// What becomes of a packet from inside.
#[derive(Debug)]
pub enum FilterVerdict {
    /// It leaves now.
    Send(SuperPacket),
    /// It waits for others.
    Hold,
    /// It waits in the place of this one, which says nothing that it does not say.
    Replace(SuperPacket),
}

impl AckFilter {
    /// Keeps `packet` back if it is an ACK to be gathered. `rtt` is what a round trip takes that meets no queue.
    pub fn on_packet(
        &mut self,
        now: Time,
        bucket: u16,
        packet: SuperPacket,
        rtt: impl FnOnce() -> Duration,
    ) -> FilterVerdict {
        if !is_pure_ack(&packet) {
            return FilterVerdict::Send(packet);
        }
        let rtt = rtt();
        if rtt < MIN_RTT {
            return FilterVerdict::Send(packet);
        }
        if !self.flows.contains_key(&bucket) {
            self.flows.retain(|_, flow| !flow.held.is_empty() || now.since(flow.seen) <= FLOW_IDLE);
        }
        let flow = self.flows.entry(bucket).or_insert_with(|| AckFlow::new(now));
        let young_until = flow.update(now, rtt);
        self.startup_until = self.startup_until.max(young_until);
        let gathered = flow.on_ack(now, packet);
        self.held += usize::from(matches!(gathered, FilterVerdict::Hold));
        gathered
    }

    /// Sees what is being delivered: data shows where rounds end.
    pub fn on_data(&mut self, now: Time, ip: &Ip, bytes: &[u8]) {
        if now > self.startup_until || ip.protocol != TCP {
            return;
        }
        let flow = self.flows.get_mut(&flow::reverse_bucket(ip, bytes, Class::Bulk));
        if let Some((flow, (number, (_, echo)))) = flow.zip(ip.sequence(bytes).zip(ip.timestamps(bytes))) {
            flow.round.on_data(number, echo);
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.held
    }

    /// When some of those that wait should leave.
    pub fn due(&self) -> Option<Time> {
        let waiting = || self.flows.values().filter_map(AckFlow::due).min();
        if self.held == 0 { None } else { waiting() }
    }

    /// Lets those go whose time has come.
    pub fn release(&mut self, now: Time) -> Vec<(u16, SuperPacket)> {
        let due = self.flows.iter_mut().filter(|(_, flow)| flow.due().is_some_and(|due| due <= now));
        let released: Vec<_> =
            due.flat_map(|(bucket, flow)| flow.release(now).map(|packet| (*bucket, packet))).collect();
        self.held -= released.len();
        released
    }

    /// Lets those of one flow go, which must not be overtaken.
    pub fn release_flow(&mut self, now: Time, bucket: u16) -> Vec<(u16, SuperPacket)> {
        let waiting = self.flows.get_mut(&bucket).filter(|flow| !flow.held.is_empty());
        let released: Vec<_> =
            waiting.into_iter().flat_map(|flow| flow.release(now)).map(|packet| (bucket, packet)).collect();
        self.held -= released.len();
        released
    }
}

impl AckFlow {
    fn new(now: Time) -> Self {
        let (round, calm) = (SenderRound::default(), Duration::ZERO);
        Self {
            held: Vec::new(),
            began: now,
            seen: now,
            left: None,
            paid: Time::START,
            spacing: MIN_SPACING,
            round_limit: calm,
            round,
        }
    }

    /// How far apart its batches are to be now; returns until when it is young.
    fn update(&mut self, now: Time, rtt: Duration) -> Time {
        if now.since(self.seen) > FLOW_IDLE {
            (self.began, self.round) = (now, SenderRound::default());
        }
        self.seen = now;
        let young_until = self.began + rtt * STARTUP_RTTS;
        self.spacing = if now < young_until { (rtt / ACKS_PER_RTT).max(MIN_SPACING) } else { MIN_SPACING };
        self.round_limit = if now < young_until { rtt + rtt / ROUND_MARGIN } else { Duration::ZERO };
        young_until
    }

    fn on_ack(&mut self, now: Time, packet: SuperPacket) -> FilterVerdict {
        if self.held.is_empty() && self.next(&packet).is_none_or(|next| now >= next) {
            self.leave(now);
            self.round.on_ack(now, &packet, self.round_limit);
            return FilterVerdict::Send(packet);
        }
        let older = self.held.iter_mut().rfind(|held| is_of_one_flow(held, &packet));
        if let Some(older) = older.filter(|older| supersedes(&packet, older)) {
            return FilterVerdict::Replace(std::mem::replace(older, packet));
        }
        self.held.push(packet);
        FilterVerdict::Hold
    }

    fn due(&self) -> Option<Time> {
        self.next(self.held.last()?)
    }

    fn release(&mut self, now: Time) -> impl Iterator<Item = SuperPacket> {
        self.leave(now);
        self.held.iter().for_each(|packet| self.round.on_ack(now, packet, self.round_limit));
        self.held.drain(..)
    }

    /// When a batch may leave after the last one, of which this is the last packet.
    fn next(&self, packet: &SuperPacket) -> Option<Time> {
        let spaced = (self.left? + MIN_SPACING).max(self.paid - self.spacing * ACK_BURST);
        Some(self.round.full_since(packet).map_or(spaced, |began| spaced.max(began + self.round_limit)))
    }

    fn leave(&mut self, now: Time) {
        self.left = Some(now);
        self.paid = self.paid.max(now) + self.spacing;
    }
}

impl SenderRound {
    /// An ACK leaves. A round that lasts too long is not of this flow, or its end was missed.
    fn on_ack(&mut self, now: Time, packet: &SuperPacket, calm: Duration) {
        let Some((stamp, _)) = packet.ip().timestamps(packet.bytes()) else { return };
        let is_stale = self.began.is_none_or(|(_, left)| now.since(left) > calm * MAX_ROUNDS);
        if is_stale || self.is_ended_by(packet) {
            *self = Self { began: Some((stamp, now)), end: None, acks: 0 };
        }
        self.acks += 1;
    }

    /// Data is delivered that begins at `number` and echoes the timestamp `echo`.
    fn on_data(&mut self, number: u32, echo: u32) {
        let Some((stamp, _)) = self.began.filter(|_| self.end.is_none()) else { return };
        if echo.wrapping_sub(stamp) as i32 >= 0 {
            self.end = Some(number);
        }
    }

    fn is_ended_by(&self, packet: &SuperPacket) -> bool {
        let after = |end| packet.ip().acknowledged(packet.bytes()).map(|number| number.wrapping_sub(end) as i32);
        self.end.and_then(after).is_some_and(|bytes| bytes > 0)
    }

    /// When it began, if it has had its ACKs and this is neither the first of the next one nor one that tells of a loss.
    fn full_since(&self, packet: &SuperPacket) -> Option<Time> {
        let is_plain = packet.ip().is_plain_ack(packet.bytes());
        let (_, left) = self.began.filter(|_| self.acks >= HYSTART_SAMPLES && is_plain && !self.is_ended_by(packet))?;
        Some(left)
    }
}

/// Whether it is an ACK, and in no hurry.
fn is_pure_ack(packet: &SuperPacket) -> bool {
    packet.mark().class == Class::Bulk && packet.count() == 1 && packet.ip().is_pure_ack(packet.bytes())
}

fn is_of_one_flow(a: &SuperPacket, b: &SuperPacket) -> bool {
    let flow = |packet: &SuperPacket| (packet.ip().source, packet.ip().destination, packet.ip().ports(packet.bytes()));
    flow(a) == flow(b)
}

/// Whether `newer` acknowledges more than `older`, which says nothing else. One that acknowledges as much is a duplicate, or tells of
/// another window.
fn supersedes(newer: &SuperPacket, older: &SuperPacket) -> bool {
    let acknowledged = |packet: &SuperPacket| packet.ip().acknowledged(packet.bytes());
    let more = acknowledged(newer).zip(acknowledged(older)).map(|(newer, older)| newer.wrapping_sub(older) as i32);
    more.is_some_and(|bytes| bytes > 0) && older.ip().is_plain_ack(older.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Offload;

    const ACK: u8 = 0x10;

    const RTT: Duration = Duration::from_millis(40);
    /// Kind, length, blocks of bytes that arrived out of order (RFC 2018), padded.
    const SACK: [u8; 12] = [1, 1, 5, 10, 0, 0, 9, 0, 0, 0, 10, 0];
    const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];

    fn at(us: u64) -> Time {
        Time::after(Duration::from_micros(us))
    }

    /// A segment that acknowledges what is before `number`.
    fn segment(number: u32, options: &[u8], payload: usize, flags: u8) -> SuperPacket {
        let len = 40 + options.len() + payload;
        let mut bytes = vec![0; len];
        bytes[..10].copy_from_slice(&[0x45, 0, 0, len as u8, 0, 0, 0, 0, 64, TCP]);
        bytes[28..32].copy_from_slice(&number.to_be_bytes());
        (bytes[32], bytes[33]) = (((20 + options.len()) << 2) as u8, flags);
        bytes[40..40 + options.len()].copy_from_slice(options);
        SuperPacket::new(bytes, len, Offload::default()).unwrap()
    }

    fn ack(number: u32) -> SuperPacket {
        segment(number, &[], 0, ACK)
    }

    fn leaves(ack_filter: &mut AckFilter, now: Time, packet: SuperPacket) -> bool {
        matches!(ack_filter.on_packet(now, 7, packet, || RTT), FilterVerdict::Send(_))
    }

    fn release(ack_filter: &mut AckFilter, now: Time) -> Vec<u32> {
        let numbers = |(_, packet): (u16, SuperPacket)| packet.ip().acknowledged(packet.bytes()).unwrap();
        ack_filter.release(now).into_iter().map(numbers).collect()
    }

    #[test]
    fn the_first_goes_at_once_and_of_those_after_it_the_newest() {
        let mut ack_filter = AckFilter::default();
        assert!(leaves(&mut ack_filter, at(0), ack(100)));
        assert!(!leaves(&mut ack_filter, at(100), ack(200)));
        assert!(!leaves(&mut ack_filter, at(2_600), ack(300)), "not before those that wait");
        assert_eq!((ack_filter.due(), ack_filter.len()), (Some(at(2_500)), 1));
        assert_eq!(release(&mut ack_filter, at(2_600)), [300]);
        assert_eq!(ack_filter.due(), None);
        assert!(leaves(&mut ack_filter, at(9_000), ack(400)), "nothing to gather it with");
    }

    /// How many leave in a time in which ACKs come every quarter of a millisecond, in milliseconds.
    fn batches(ack_filter: &mut AckFilter, from: u64, until: u64) -> usize {
        let left = (from * 4..until * 4).filter(|quarter| {
            let now = at(quarter * 250);
            let due = ack_filter.due().is_some_and(|due| due <= now);
            due && !release(ack_filter, now).is_empty() || leaves(ack_filter, now, ack(*quarter as u32))
        });
        left.count()
    }

    #[test]
    fn of_a_young_flow_eight_batches_leave_in_a_round_trip_and_six_in_the_long_run() {
        let mut ack_filter = AckFilter::default();
        assert_eq!(batches(&mut ack_filter, 0, 40), 8);
        assert_eq!(batches(&mut ack_filter, 40, 1_040), 25 * 6);
        batches(&mut ack_filter, 1_040, 1_300);
        assert_eq!(batches(&mut ack_filter, 1_300, 1_700), 160, "slow start is over");
        assert_eq!(batches(&mut ack_filter, 4_000, 4_040), 9, "what waited leaves, and it is young again");
    }

    /// An ACK of what is before `number`, sent at `ms`; and data that begins there and echoes that.
    fn stamped(number: u32, ms: u32) -> [SuperPacket; 2] {
        let options = |value: u32, echo: u32| {
            let mut options = TIMESTAMPS;
            options[4..8].copy_from_slice(&value.to_be_bytes());
            options[8..].copy_from_slice(&echo.to_be_bytes());
            options
        };
        let data = segment(0, &options(0, ms), 100, ACK);
        let mut bytes = data.bytes().to_vec();
        bytes[24..28].copy_from_slice(&number.to_be_bytes());
        [segment(number, &options(ms, 0), 0, ACK), SuperPacket::new(bytes, 152, Offload::default()).unwrap()]
    }

    /// How many ACKs leave of a round of so many milliseconds, in which one comes each of them.
    fn acks_of_a_round(ms: u64) -> usize {
        let mut ack_filter = AckFilter::default();
        let [ack, data] = stamped(1_000, 10);
        let bucket = flow::bucket(ack.ip(), ack.bytes(), Class::Bulk);
        let gather = |ack_filter: &mut AckFilter, now, ack| {
            matches!(ack_filter.on_packet(now, bucket, ack, || RTT), FilterVerdict::Send(_))
        };
        assert!(gather(&mut ack_filter, at(10_000), ack));
        // What answers the first ACK comes at the end of the round, and only what acknowledges more than its beginning ends that.
        let left = (11..10 + ms).filter(|now| {
            let [ack, _] = stamped(900 + *now as u32, *now as u32);
            let released = ack_filter.release(at(now * 1_000)).len();
            gather(&mut ack_filter, at(now * 1_000), ack) || released > 0
        });
        let left = 1 + left.count();
        ack_filter.on_data(at(ms * 1_000), data.ip(), data.bytes());
        ack_filter.release_flow(at(ms * 1_000), bucket);
        let [next, _] = stamped(1_001, 200);
        assert!(gather(&mut ack_filter, at((10 + ms) * 1_000 + 40_000), next), "the first of the next");
        left
    }

    #[test]
    fn a_round_of_the_sender_has_eight_acks_unless_it_is_longer_than_the_path() {
        assert_eq!([40, 46, 53].map(acks_of_a_round), [8, 8, 8]);
        assert_eq!(acks_of_a_round(64), 12);
    }

    #[test]
    fn what_says_more_than_ack_and_short_paths_are_left_alone() {
        let mut ack_filter = AckFilter::default();
        assert!(leaves(&mut ack_filter, at(0), ack(1)));
        assert!(leaves(&mut ack_filter, at(1), segment(2, &[], 1, ACK)));
        assert!(leaves(&mut ack_filter, at(1), segment(3, &[], 0, ACK | 1)));
        assert!(matches!(ack_filter.on_packet(at(1), 7, ack(4), || Duration::from_millis(10)), FilterVerdict::Send(_)));
        assert_eq!(ack_filter.len(), 0);
    }

    #[test]
    fn an_ack_that_tells_of_a_loss_is_not_replaced() {
        let mut ack_filter = AckFilter::default();
        leaves(&mut ack_filter, at(0), ack(1));
        for packet in [ack(2), ack(2), segment(2, &SACK, 0, ACK), segment(3, &TIMESTAMPS, 0, ACK)] {
            assert!(matches!(ack_filter.on_packet(at(1), 7, packet, || RTT), FilterVerdict::Hold));
        }
        assert!(matches!(ack_filter.on_packet(at(1), 7, ack(4), || RTT), FilterVerdict::Replace(_)));
        let released = ack_filter.release_flow(at(2), 7);
        assert_eq!((released.len(), ack_filter.len(), ack_filter.due()), (4, 0, None));
    }

    #[test]
    fn a_young_flow_makes_no_other_wait() {
        let mut ack_filter = AckFilter::default();
        (0..2_000).for_each(|ms| _ = batches(&mut ack_filter, ms, ms + 1));
        let now = at(2_000_000);
        ack_filter.release_flow(now, 7);
        for number in 1..9 {
            let young = ack_filter.on_packet(now, 8, ack(number), || RTT);
            assert_eq!(matches!(young, FilterVerdict::Send(_)), number == 1);
        }
        assert!(leaves(&mut ack_filter, now + MIN_SPACING * 2, ack(u32::MAX / 2)));
    }
}
