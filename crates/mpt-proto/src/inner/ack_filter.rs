//! Filters ACKs of inner TCP flows: sends them in batches, with the newest of each flow only (RFC 3449 section 5.2.1).
//!
//! CUBIC leaves slow start when HyStart finds that the path is full (Ha and Rhee, "Taming the Elephants: New TCP Slow
//! Start", Computer Networks 55, 2011, sections 4.1 and 4.2). Over several paths both of its signs are wrong. A train
//! of ACKs, at most 2 ms apart, that lasts half an RTT shows only that the first path is full. An RTT 4 to 16 ms above
//! the minimum shows only that a second path is used, or that the first packets arrived early on paths with jitter:
//! restoring order gives every packet the delay of the slowest. HyStart uses the RTT from the ninth ACK of a round on.
//!
//! So pure ACKs are held, and those that a later ACK of their flow supersedes are dropped. At most eight ACKs of a
//! young flow are sent per RTT, no fewer than from a receiver that merges 64 KiB before it acknowledges. A round whose
//! RTT is a third above the paths' contains queueing delay, and is not limited further. If ACKs are few, as for a page
//! or a call, or slow start is over, an ACK is held for at most 2.5 ms: BBR counts this time as path delay, and its
//! window is at most two minimum RTTs. Filtering also saves packets on a slow uplink.

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

/// Held ACKs, by the bucket of their flow.
#[derive(Debug, Default)]
pub struct AckFilter {
    flows: BTreeMap<u16, AckFlow>,
    /// Number of held ACKs.
    held: usize,
    /// Time until which some flow is young.
    startup_until: Time,
}

/// RTTs of inner flows without our queues, which their data does not pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct InnerRtt {
    /// Over the slowest path that brings their packets.
    pub in_use: Duration,
    /// Over the slowest path that may bring them. A flow uses a far path only when its queue takes longer than the far
    /// path's delay, so a queue is no sign of full paths in shorter round trips.
    pub usable: Duration,
    /// Over the fastest path.
    pub fastest: Duration,
}

/// The ACKs of one flow bucket.
#[derive(Debug)]
struct AckFlow {
    held: Vec<SuperPacket>,
    started: Time,
    /// It is in its first round trips. A path that becomes slower later does not make it young again.
    is_young: bool,
    last_ack: Time,
    /// Time of its last batch.
    last_batch: Option<Time>,
    /// Theoretical arrival time of its next batch (generic cell rate algorithm, ITU-T I.371).
    next_conforming: Time,
    /// Interval between its batches in the long run.
    spacing: Duration,
    /// Time from the start of a round for which its ACKs are limited to [`HYSTART_SAMPLES`].
    round_limit: Duration,
    round: SenderRound,
}

/// A round as HyStart counts it at the flow's sender: it ends with the first ACK for data sent after the ACK that
/// started the round. The timestamp that data echoes identifies this data (RFC 7323 section 4.3).
#[derive(Clone, Copy, Debug, Default)]
struct SenderRound {
    /// The timestamp of the ACK that started it, and the time when that was sent.
    started: Option<(u32, Time)>,
    /// Sequence number of the first data that was sent after that.
    end: Option<u32>,
    /// Number of its ACKs that were sent.
    acks: u32,
}

/// The result for a packet from the TUN device.
#[derive(Debug)]
pub enum FilterVerdict {
    /// The packet is sent now.
    Send(SuperPacket),
    /// The packet is held.
    Hold,
    /// The packet is held, and supersedes this one.
    Replace(SuperPacket),
}

impl AckFilter {
    /// Holds `packet` if it is a pure ACK that follows another closely. `rtt` is the RTT of the paths without a queue.
    pub fn on_packet(
        &mut self,
        now: Time,
        bucket: u16,
        packet: SuperPacket,
        rtt: impl FnOnce() -> InnerRtt,
    ) -> FilterVerdict {
        if !may_hold(&packet) {
            return FilterVerdict::Send(packet);
        }
        let rtt = rtt();
        // No path has a round trip yet, so nothing shows how old a flow is.
        if rtt.usable.is_zero() {
            return FilterVerdict::Send(packet);
        }
        if !self.flows.contains_key(&bucket) {
            self.flows.retain(|_, flow| !flow.held.is_empty() || now.since(flow.last_ack) <= FLOW_IDLE);
        }
        let flow = self.flows.entry(bucket).or_insert_with(|| AckFlow::new(now));
        let young_until = flow.update(now, rtt);
        self.startup_until = self.startup_until.max(young_until);
        // A flow grows old here, too: a far path that is used later must not make it young.
        if rtt.usable < MIN_RTT {
            return FilterVerdict::Send(packet);
        }
        let verdict = flow.on_ack(now, packet);
        self.held += usize::from(matches!(verdict, FilterVerdict::Hold));
        verdict
    }

    /// Finds the ends of rounds in packets that are delivered to the TUN device.
    pub fn on_data(&mut self, now: Time, ip: &Ip, bytes: &[u8]) {
        if now > self.startup_until || ip.protocol != TCP {
            return;
        }
        let flow = self.flows.get_mut(&flow::reverse_bucket(ip, bytes, Class::Bulk));
        if let Some((flow, (number, (_, echo)))) = flow.zip(ip.sequence(bytes).zip(ip.timestamps(bytes))) {
            flow.round.on_data(number, echo);
        }
    }

    /// Returns the number of held ACKs.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Returns the next time at which [`Self::release`] returns ACKs.
    pub fn due(&self) -> Option<Time> {
        let waiting = || self.flows.values().filter_map(AckFlow::due).min();
        if self.held == 0 { None } else { waiting() }
    }

    /// Removes the ACKs whose time has come.
    pub fn release(&mut self, now: Time) -> Vec<(u16, SuperPacket)> {
        let due = self.flows.iter_mut().filter(|(_, flow)| flow.due().is_some_and(|due| due <= now));
        let released: Vec<_> =
            due.flat_map(|(bucket, flow)| flow.release(now).map(|packet| (*bucket, packet))).collect();
        self.held -= released.len();
        released
    }

    /// Removes the ACKs of one flow, so that a packet does not overtake them.
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
        let (round, round_limit) = (SenderRound::default(), Duration::ZERO);
        Self {
            held: Vec::new(),
            started: now,
            is_young: true,
            last_ack: now,
            last_batch: None,
            next_conforming: Time::START,
            spacing: MIN_SPACING,
            round_limit,
            round,
        }
    }

    /// Sets the interval between batches; returns the time until which the flow is young.
    fn update(&mut self, now: Time, rtt: InnerRtt) -> Time {
        if now.since(self.last_ack) > FLOW_IDLE {
            (self.started, self.is_young, self.round) = (now, true, SenderRound::default());
        }
        self.last_ack = now;
        let InnerRtt { in_use, usable, fastest } = rtt;
        let young_until = self.started + usable * STARTUP_RTTS;
        self.is_young &= now < young_until;
        (self.spacing, self.round_limit) = match self.is_young {
            true => ((in_use / ACKS_PER_RTT).max(MIN_SPACING), usable + fastest / ROUND_MARGIN),
            false => (MIN_SPACING, Duration::ZERO),
        };
        young_until
    }

    fn on_ack(&mut self, now: Time, packet: SuperPacket) -> FilterVerdict {
        if self.held.is_empty() && self.next_batch(&packet).is_none_or(|next| now >= next) {
            self.on_batch(now);
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
        self.next_batch(self.held.last()?)
    }

    fn release(&mut self, now: Time) -> impl Iterator<Item = SuperPacket> {
        self.on_batch(now);
        self.held.iter().for_each(|packet| self.round.on_ack(now, packet, self.round_limit));
        self.held.drain(..)
    }

    /// Returns the earliest time of the next batch, of which `packet` is the last packet.
    fn next_batch(&self, packet: &SuperPacket) -> Option<Time> {
        let spaced = (self.last_batch? + MIN_SPACING).max(self.next_conforming - self.spacing * ACK_BURST);
        Some(self.round.full_since(packet).map_or(spaced, |started| spaced.max(started + self.round_limit)))
    }

    fn on_batch(&mut self, now: Time) {
        self.last_batch = Some(now);
        self.next_conforming = self.next_conforming.max(now) + self.spacing;
    }
}

impl SenderRound {
    /// Counts an ACK that is sent. If a round lasts too long, its end was missed, or it belongs to another flow.
    fn on_ack(&mut self, now: Time, packet: &SuperPacket, round_limit: Duration) {
        let Some((stamp, _)) = packet.ip().timestamps(packet.bytes()) else { return };
        let is_stale = self.started.is_none_or(|(_, sent)| now.since(sent) > round_limit * MAX_ROUNDS);
        if is_stale || self.is_ended_by(packet) {
            *self = Self { started: Some((stamp, now)), end: None, acks: 0 };
        }
        self.acks += 1;
    }

    /// Notes that data is delivered that begins at `number` and echoes the timestamp `echo`.
    fn on_data(&mut self, number: u32, echo: u32) {
        let Some((stamp, _)) = self.started.filter(|_| self.end.is_none()) else { return };
        if echo.wrapping_sub(stamp) as i32 >= 0 {
            self.end = Some(number);
        }
    }

    fn is_ended_by(&self, packet: &SuperPacket) -> bool {
        let after = |end| packet.ip().acknowledged(packet.bytes()).map(|number| number.wrapping_sub(end) as i32);
        self.end.and_then(after).is_some_and(|bytes| bytes > 0)
    }

    /// Returns the start of the round, if its ACKs were sent and `packet` neither starts the next one nor reports a
    /// loss.
    fn full_since(&self, packet: &SuperPacket) -> Option<Time> {
        let is_plain = packet.ip().is_plain_ack(packet.bytes());
        let (_, sent) =
            self.started.filter(|_| self.acks >= HYSTART_SAMPLES && is_plain && !self.is_ended_by(packet))?;
        Some(sent)
    }
}

/// Returns true for a single pure ACK of class bulk.
fn may_hold(packet: &SuperPacket) -> bool {
    packet.mark().class == Class::Bulk && packet.count() == 1 && packet.ip().is_pure_ack(packet.bytes())
}

fn is_of_one_flow(a: &SuperPacket, b: &SuperPacket) -> bool {
    let flow = |packet: &SuperPacket| (packet.ip().source, packet.ip().destination, packet.ip().ports(packet.bytes()));
    flow(a) == flow(b)
}

/// Returns true if `newer` acknowledges more than `older` and `older` is a plain ACK. An ACK with the same number is a
/// duplicate ACK or a window update.
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

    fn rtt(all: Duration) -> InnerRtt {
        InnerRtt { in_use: all, usable: all, fastest: all }
    }

    fn at(us: u64) -> Time {
        Time::after(Duration::from_micros(us))
    }

    /// Returns a segment that acknowledges the bytes before `number`.
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

    fn is_sent(ack_filter: &mut AckFilter, now: Time, packet: SuperPacket) -> bool {
        matches!(ack_filter.on_packet(now, 7, packet, || rtt(RTT)), FilterVerdict::Send(_))
    }

    fn release(ack_filter: &mut AckFilter, now: Time) -> Vec<u32> {
        let numbers = |(_, packet): (u16, SuperPacket)| packet.ip().acknowledged(packet.bytes()).unwrap();
        ack_filter.release(now).into_iter().map(numbers).collect()
    }

    #[test]
    fn the_first_ack_is_sent_at_once_and_only_the_newest_of_the_next_ones() {
        let mut ack_filter = AckFilter::default();
        assert!(is_sent(&mut ack_filter, at(0), ack(100)));
        assert!(!is_sent(&mut ack_filter, at(100), ack(200)));
        assert!(!is_sent(&mut ack_filter, at(2_600), ack(300)), "not before the held ones");
        assert_eq!((ack_filter.due(), ack_filter.len()), (Some(at(2_500)), 1));
        assert_eq!(release(&mut ack_filter, at(2_600)), [300]);
        assert_eq!(ack_filter.due(), None);
        assert!(is_sent(&mut ack_filter, at(9_000), ack(400)), "no other is close");
    }

    /// Returns the number of batches from `from` to `until` in milliseconds, with an ACK every quarter of a
    /// millisecond.
    fn batches(ack_filter: &mut AckFilter, from: u64, until: u64) -> usize {
        batches_over(RTT, ack_filter, from, until)
    }

    fn batches_over(path_rtt: Duration, ack_filter: &mut AckFilter, from: u64, until: u64) -> usize {
        let sent = (from * 4..until * 4).filter(|quarter| {
            let now = at(quarter * 250);
            let due = ack_filter.due().is_some_and(|due| due <= now);
            let verdict = |filter: &mut AckFilter| filter.on_packet(now, 7, ack(*quarter as u32), || rtt(path_rtt));
            due && !release(ack_filter, now).is_empty() || matches!(verdict(ack_filter), FilterVerdict::Send(_))
        });
        sent.count()
    }

    #[test]
    fn a_young_flow_sends_eight_batches_in_its_first_round_trip_and_then_six() {
        let mut ack_filter = AckFilter::default();
        assert_eq!(batches(&mut ack_filter, 0, 40), 8);
        assert_eq!(batches(&mut ack_filter, 40, 1_040), 25 * 6);
        batches(&mut ack_filter, 1_040, 1_300);
        assert_eq!(batches(&mut ack_filter, 1_300, 1_700), 160, "slow start is over");
        assert_eq!(batches(&mut ack_filter, 4_000, 4_040), 9, "the held ACK is sent, and the flow is young again");
    }

    /// While it did, a flow had three ACKs in a second until its end.
    #[test]
    fn a_path_that_becomes_slower_does_not_make_a_flow_young_again() {
        let mut ack_filter = AckFilter::default();
        batches(&mut ack_filter, 0, 1_300);
        assert_eq!(batches(&mut ack_filter, 1_300, 1_700), 160);
        assert_eq!(batches_over(RTT * 4, &mut ack_filter, 1_700, 2_100), 160);
    }

    /// Over 469 Mbit/s with 7 ms beside 4 Mbit/s with 28 ms, a flow fell from 430 to 59 Mbit/s.
    #[test]
    fn a_far_path_after_seconds_over_a_near_one_does_not_make_a_flow_young() {
        let mut ack_filter = AckFilter::default();
        assert_eq!(batches_over(RTT / 8, &mut ack_filter, 0, 2_000), 8_000, "all, below 20 ms");
        assert_eq!(batches_over(RTT * 4, &mut ack_filter, 2_000, 2_400), 160);
    }

    #[test]
    fn a_flow_stays_young_while_no_round_trip_is_known() {
        let mut ack_filter = AckFilter::default();
        batches_over(Duration::ZERO, &mut ack_filter, 0, 100);
        assert_eq!(batches(&mut ack_filter, 100, 140), 8);
    }

    /// Returns an ACK for the bytes before `number`, sent at `ms`, and data that begins there and echoes that
    /// timestamp.
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

    /// Returns the number of ACKs sent in a round of `ms` milliseconds, with one ACK per millisecond.
    fn acks_of_a_round(ms: u64) -> usize {
        let mut ack_filter = AckFilter::default();
        let [ack, data] = stamped(1_000, 10);
        let bucket = flow::bucket(ack.ip(), ack.bytes(), Class::Bulk);
        let is_sent = |ack_filter: &mut AckFilter, now, ack| {
            matches!(ack_filter.on_packet(now, bucket, ack, || rtt(RTT)), FilterVerdict::Send(_))
        };
        assert!(is_sent(&mut ack_filter, at(10_000), ack));
        // The data that answers the first ACK arrives at the end of the round; an ACK of more than its first byte ends
        // it.
        let sent = (11..10 + ms).filter(|now| {
            let [ack, _] = stamped(900 + *now as u32, *now as u32);
            let released = ack_filter.release(at(now * 1_000)).len();
            is_sent(&mut ack_filter, at(now * 1_000), ack) || released > 0
        });
        let sent = 1 + sent.count();
        ack_filter.on_data(at(ms * 1_000), data.ip(), data.bytes());
        ack_filter.release_flow(at(ms * 1_000), bucket);
        let [next, _] = stamped(1_001, 200);
        assert!(is_sent(&mut ack_filter, at((10 + ms) * 1_000 + 40_000), next), "the first of the next");
        sent
    }

    #[test]
    fn a_round_has_eight_acks_unless_it_is_longer_than_the_paths_rtt() {
        assert_eq!([40, 46, 53].map(acks_of_a_round), [8, 8, 8]);
        assert_eq!(acks_of_a_round(64), 12);
    }

    #[test]
    fn other_packets_and_short_paths_are_not_filtered() {
        let mut ack_filter = AckFilter::default();
        assert!(is_sent(&mut ack_filter, at(0), ack(1)));
        assert!(is_sent(&mut ack_filter, at(1), segment(2, &[], 1, ACK)));
        assert!(is_sent(&mut ack_filter, at(1), segment(3, &[], 0, ACK | 1)));
        assert!(matches!(
            ack_filter.on_packet(at(1), 7, ack(4), || rtt(Duration::from_millis(10))),
            FilterVerdict::Send(_)
        ));
        assert_eq!(ack_filter.len(), 0);
    }

    #[test]
    fn an_ack_that_reports_a_loss_is_not_replaced() {
        let mut ack_filter = AckFilter::default();
        is_sent(&mut ack_filter, at(0), ack(1));
        for packet in [ack(2), ack(2), segment(2, &SACK, 0, ACK), segment(3, &TIMESTAMPS, 0, ACK)] {
            assert!(matches!(ack_filter.on_packet(at(1), 7, packet, || rtt(RTT)), FilterVerdict::Hold));
        }
        assert!(matches!(ack_filter.on_packet(at(1), 7, ack(4), || rtt(RTT)), FilterVerdict::Replace(_)));
        let released = ack_filter.release_flow(at(2), 7);
        assert_eq!((released.len(), ack_filter.len(), ack_filter.due()), (4, 0, None));
    }

    #[test]
    fn a_young_flow_delays_no_other() {
        let mut ack_filter = AckFilter::default();
        (0..2_000).for_each(|ms| _ = batches(&mut ack_filter, ms, ms + 1));
        let now = at(2_000_000);
        ack_filter.release_flow(now, 7);
        for number in 1..9 {
            let young = ack_filter.on_packet(now, 8, ack(number), || rtt(RTT));
            assert_eq!(matches!(young, FilterVerdict::Send(_)), number == 1);
        }
        assert!(is_sent(&mut ack_filter, now + MIN_SPACING * 2, ack(u32::MAX / 2)));
    }
}
