//! Packets in flight on one path, and loss detection.
//!
//! Losses are detected by RACK (RFC 8985), which is RFC 9002 section 6.1 in terms of send time: a packet is lost when
//! one that was sent a *reordering window* later has arrived. Until reordering has been seen, three later packets are
//! enough. Jitter within a path reorders heavily (20 ms at 50 Mbit/s: by a hundred packets), so the window is learned
//! per path: each packet that arrives after a later one, declared lost or not, is a sample of reordering. The window is
//! 5/4 of the value that all but a few in a thousand stay below. It shrinks with time, and is at most two probe
//! timeouts.
//!
//! Both thresholds are monotone in the packet number, so lost packets are taken off the front of the ring, and no
//! packet is examined twice. The ring grows to the path's bandwidth-delay product and then allocates no more.

use std::collections::VecDeque;
use std::time::Duration;

use super::ack::{Ack, Range};
use super::delivery_rate::DeliverySnapshot;
use super::number_set::NumberSet;
use super::rtt::Rtt;
use super::sample::LossSample;
use super::windowed_filter::WindowedMax;
use crate::id::PathSeq;
use crate::time::Time;
use crate::tuning::path::sent_packets::{
    GRANULARITY, HIGH_REORDERING_DECAY, MAX_ACK_DELAY, MAX_LOST, MEAN_REORDERING_PACKETS, PACKET_THRESHOLD,
    REORDERING_MEMORY, SPURIOUS_WINDOW,
};

/// The content of a datagram, as far as its outcome matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// Control frames, padding or a repair symbol: nothing is sent again if it is lost.
    #[default]
    Control,
    /// An inner packet that is kept until it is acknowledged.
    Packet(PacketKey),
    /// A path MTU probe of this size in bytes: a larger datagram than the path carries is lost.
    MtuProbe(u16),
}

impl Payload {
    fn is_packet(self) -> bool {
        matches!(self, Self::Packet(_))
    }

    /// Returns true if the loss of a datagram may be due to the path's load. The size of an MTU probe explains its loss
    /// (RFC 8899 section 3).
    fn shows_loss(self) -> bool {
        !matches!(self, Self::MtuProbe(_))
    }
}

/// Identifies a packet that is kept for retransmission. A key is not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketKey(pub u64);

/// Fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It arrived.
    Acked,
    /// It was declared lost.
    Lost,
    /// It was declared lost, and arrived.
    Spurious,
}

/// The packets in flight on one path.
#[derive(Clone, Debug, Default)]
pub struct SentPackets {
    base: u64,
    ring: VecDeque<SentPacket>,
    /// The numbers of the ring that were sent and are neither acknowledged nor lost. The first entry is one of them.
    waiting: NumberSet,
    in_flight: u64,
    /// Inner packets in flight.
    packets: usize,
    largest_acked: Option<(PathSeq, Time)>,
    lost: VecDeque<LostPacket>,
    reordering: ReorderingHistory,
}

/// The packets that an ACK newly acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Confirmed {
    /// Bytes that were in flight.
    pub bytes: u64,
    /// Packets that were in flight.
    pub packets: u64,
    /// Bytes that had been declared lost.
    pub spurious_bytes: u64,
    /// Packets that had been declared lost.
    pub spurious: u64,
    /// The sum of the times in flight of all of these. Without the packets that had been declared lost, the mean would
    /// be that of the fast ones.
    pub sojourn: Duration,
    /// The packet with the highest number: its number, send time and snapshot.
    pub newest: Option<(PathSeq, Time, DeliverySnapshot)>,
}

impl SentPackets {
    /// Adds a packet. Numbers rise; numbers that are skipped (pure ACKs) are not waited for.
    pub fn on_sent(&mut self, now: Time, seq: PathSeq, bytes: u32, payload: Payload, snapshot: DeliverySnapshot) {
        if self.ring.is_empty() {
            self.base = seq.0;
        }
        debug_assert!(seq.0 >= self.next(), "packet numbers of a path rise");
        while self.next() < seq.0 {
            self.push(SentPacket::GONE);
        }
        self.push(SentPacket { sent_at: now, snapshot, payload, bytes });
        self.waiting.push(seq.0);
        self.in_flight += u64::from(bytes);
        self.packets += usize::from(payload.is_packet());
    }

    /// Processes an ACK and reports the outcome of each packet that it acknowledges. Numbers that were never sent are
    /// ignored.
    pub fn on_ack(&mut self, now: Time, ack: &Ack, on_outcome: &mut impl FnMut(Outcome, Payload)) -> Confirmed {
        let mut confirmed = Confirmed::default();
        self.confirm_spurious(now, ack, &mut confirmed, on_outcome);
        for range in ack.ranges.as_slice() {
            self.confirm(now, *range, &mut confirmed, on_outcome);
        }
        self.trim();
        if let Some((seq, sent_at, _)) = confirmed.newest {
            self.largest_acked = self.largest_acked.max(Some((seq, sent_at)));
        }
        confirmed
    }

    /// Declares packets lost because of later arrivals or the time that has passed. Returns the losses but those of MTU
    /// probes.
    pub fn detect(
        &mut self,
        now: Time,
        rtt: &Rtt,
        on_outcome: &mut impl FnMut(Outcome, Payload),
    ) -> Option<LossSample> {
        let (largest, largest_sent) = self.largest_acked?;
        let (window, timeout) = (self.reordering_window(rtt), self.loss_timeout(rtt));
        let overtaken = |sent_at: Time| largest_sent.since(sent_at) > window || now.since(sent_at) >= timeout;
        let threshold = self.packet_threshold();
        self.declare_lost(now, on_outcome, |seq, sent_at| {
            seq < largest.0 && (overtaken(sent_at) || threshold.is_some_and(|n| seq + n <= largest.0))
        })
    }

    /// Declares everything in flight lost.
    pub fn abandon(&mut self, now: Time, on_outcome: &mut impl FnMut(Outcome, Payload)) -> Option<LossSample> {
        self.declare_lost(now, on_outcome, |_, _| true)
    }

    /// Releases memory while little is in flight. Packets that were declared lost before are not recognized if they
    /// arrive.
    pub fn shrink(&mut self) {
        self.trim_memory();
        self.lost = VecDeque::new();
    }

    /// Releases memory that what is in flight does not need.
    pub fn trim_memory(&mut self) {
        self.ring.shrink_to_fit();
        self.waiting.shrink();
    }

    /// Returns the time at which [`Self::detect`] would find a loss without a further ACK.
    pub fn loss_deadline(&self, rtt: &Rtt) -> Option<Time> {
        let (largest, _) = self.largest_acked?;
        let oldest = self.ring.front()?;
        (self.base < largest.0).then(|| oldest.sent_at + self.loss_timeout(rtt))
    }

    /// Returns the reordering window: a packet that was sent this much later may arrive first.
    pub fn reordering_window(&self, rtt: &Rtt) -> Duration {
        let bound = rtt.probe_timeout(Duration::ZERO) * 2;
        // RFC 9002 section 6.1.2: kTimeThreshold is 9/8 of a round trip, which leaves an eighth for reordering.
        (rtt.smoothed() / 8).max(self.reordering.window()).max(GRANULARITY).min(bound)
    }

    /// Returns the mean reordering, in which packets in order count as zero; zero on a path that keeps order.
    pub fn reordering(&self) -> Duration {
        self.reordering.mean
    }

    /// Returns the reordering that all but a few in a thousand packets stay below; zero on a path that keeps order.
    pub fn max_reordering(&self) -> Duration {
        self.reordering.worst.get().map_or(Duration::ZERO, |worst| self.reordering.high.min(worst))
    }

    /// Returns the bytes allocated beyond twice what the inner packets in flight need: for control datagrams, and for
    /// numbers that are not waited for.
    pub fn excess_memory(&self) -> usize {
        self.ring.capacity().saturating_sub(2 * self.packets) * size_of::<SentPacket>()
    }

    /// Returns the bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns send time and payload of the oldest packet in flight.
    pub fn oldest(&self) -> Option<(Time, Payload)> {
        self.ring.front().map(|packet| (packet.sent_at, packet.payload))
    }

    /// Returns the payloads of the packets in flight, the last one first.
    pub fn tail(&self) -> impl Iterator<Item = Payload> {
        let numbered = self.ring.iter().enumerate().rev();
        numbered.filter(|(at, _)| self.waiting.contains(self.base + *at as u64)).map(|(_, packet)| packet.payload)
    }

    /// Returns send time and bytes of a packet in flight.
    pub fn find(&self, seq: PathSeq) -> Option<(Time, u32)> {
        let packet = self.ring.get(usize::try_from(seq.0.checked_sub(self.base)?).ok()?)?;
        self.waiting.contains(seq.0).then_some((packet.sent_at, packet.bytes))
    }

    /// Processes packets that had been declared lost and arrived: the window was too short, and each of them widens it.
    fn confirm_spurious(
        &mut self,
        now: Time,
        ack: &Ack,
        confirmed: &mut Confirmed,
        on_outcome: &mut impl FnMut(Outcome, Payload),
    ) {
        let Self { lost, reordering, largest_acked, .. } = self;
        while lost.front().is_some_and(|p| now.since(p.lost_at) > SPURIOUS_WINDOW) {
            lost.pop_front();
        }
        lost.retain(|packet| {
            let arrived = covers(ack, packet.seq);
            if arrived {
                reordering.on_arrival(now, *largest_acked, packet.seq, packet.sent_at);
                if packet.payload.shows_loss() {
                    confirmed.spurious += 1;
                    confirmed.sojourn += now.since(packet.sent_at);
                    confirmed.spurious_bytes += u64::from(packet.bytes);
                }
                on_outcome(Outcome::Spurious, packet.payload);
            }
            !arrived
        });
    }

    fn confirm(
        &mut self,
        now: Time,
        range: Range,
        confirmed: &mut Confirmed,
        on_outcome: &mut impl FnMut(Outcome, Payload),
    ) {
        let mut from = range.first;
        while let Some(seq) = self.waiting.next(from, range.last) {
            from = seq + 1;
            self.waiting.remove(seq);
            let packet = &self.ring[(seq - self.base) as usize];
            self.in_flight -= u64::from(packet.bytes);
            self.packets -= usize::from(packet.payload.is_packet());
            confirmed.bytes += u64::from(packet.bytes);
            confirmed.packets += 1;
            confirmed.sojourn += now.since(packet.sent_at);
            if confirmed.newest.is_none_or(|(newest, ..)| newest.0 < seq) {
                confirmed.newest = Some((PathSeq(seq), packet.sent_at, packet.snapshot));
            }
            self.reordering.on_arrival(now, self.largest_acked, PathSeq(seq), packet.sent_at);
            on_outcome(Outcome::Acked, packet.payload);
        }
    }

    /// Declares packets at the front lost while `is_lost` returns true.
    fn declare_lost(
        &mut self,
        now: Time,
        on_outcome: &mut impl FnMut(Outcome, Payload),
        is_lost: impl Fn(u64, Time) -> bool,
    ) -> Option<LossSample> {
        let mut loss = LossSample { now, ..LossSample::default() };
        while let Some(packet) = self.ring.front().filter(|packet| is_lost(self.base, packet.sent_at)) {
            self.in_flight -= u64::from(packet.bytes);
            self.packets -= usize::from(packet.payload.is_packet());
            if packet.payload.shows_loss() {
                loss.packets += 1;
                loss.bytes += u64::from(packet.bytes);
                loss.newest_sent = packet.sent_at;
            }
            on_outcome(Outcome::Lost, packet.payload);
            remember_lost(&mut self.lost, LostPacket::of(packet, PathSeq(self.base), now));
            self.waiting.remove(self.base);
            self.trim();
        }
        loss.in_flight = self.in_flight;
        (loss.packets > 0).then_some(loss)
    }

    /// Appends an entry. A long ring grows by a constant, because a doubled one would exceed a limit by far.
    fn push(&mut self, packet: SentPacket) {
        if self.ring.len() == self.ring.capacity() {
            self.ring.reserve_exact(self.ring.len().clamp(MIN_GROWTH, MAX_GROWTH));
        }
        self.ring.push_back(packet);
    }

    /// Takes the entries off the front that do not wait.
    fn trim(&mut self) {
        let gone = self.waiting.first().map_or(self.ring.len(), |first| (first - self.base) as usize);
        self.ring.drain(..gone);
        self.base += gone as u64;
    }

    fn next(&self) -> u64 {
        self.base + self.ring.len() as u64
    }

    /// Returns the packet threshold. It applies only until reordering has been seen (RFC 8985 section 6.2 step 4).
    fn packet_threshold(&self) -> Option<u64> {
        self.reordering.worst.get().is_none().then_some(PACKET_THRESHOLD)
    }

    /// Returns the time after which a packet that a later one has overtaken is lost without a further ACK.
    fn loss_timeout(&self, rtt: &Rtt) -> Duration {
        rtt.smoothed().max(rtt.latest()) + self.reordering_window(rtt) + MAX_ACK_DELAY
    }
}

/// The ring doubles, but grows by at least and at most so many entries: an idle path needs little memory.
const MIN_GROWTH: usize = 16;
const MAX_GROWTH: usize = 8_192;

/// ReorderingHistory: for an arrival after a later packet, the difference of their send times.
#[derive(Clone, Debug, Default)]
struct ReorderingHistory {
    worst: WindowedMax<Duration>,
    /// The value that all but a few in a thousand stay below.
    high: Duration,
    mean: Duration,
}

impl ReorderingHistory {
    /// Adds an arrival. `high` rises half of the way to a larger sample, and falls a little with each smaller one, so
    /// that a few packets in a thousand exceed it: waiting for the very last would cost every real loss another round
    /// trip.
    fn on_arrival(&mut self, now: Time, largest: Option<(PathSeq, Time)>, seq: PathSeq, sent_at: Time) {
        let overtaken_by = largest.filter(|(largest, _)| *largest > seq);
        let late = overtaken_by.map_or(Duration::ZERO, |(_, largest_sent)| largest_sent.since(sent_at));
        self.mean = (self.mean * (MEAN_REORDERING_PACKETS - 1) + late) / MEAN_REORDERING_PACKETS;
        if late > self.high {
            self.high += (late - self.high) / 2;
        } else {
            self.high -= self.high / HIGH_REORDERING_DECAY;
        }
        if overtaken_by.is_some() {
            self.worst.insert(now, REORDERING_MEMORY, late);
        }
    }

    /// Returns the reordering window; zero if no packet has been late for a while.
    fn window(&self) -> Duration {
        self.worst.get().map_or(Duration::ZERO, |worst| (self.high + self.high / 4).min(worst))
    }
}

fn covers(ack: &Ack, seq: PathSeq) -> bool {
    let ranges = ack.ranges.as_slice();
    let at = ranges.partition_point(|range| range.first > seq.0);
    ranges.get(at).is_some_and(|range| range.contains(seq))
}

fn remember_lost(lost: &mut VecDeque<LostPacket>, packet: LostPacket) {
    if lost.len() == MAX_LOST {
        lost.pop_front();
    }
    lost.push_back(packet);
}

#[derive(Clone, Debug)]
struct SentPacket {
    sent_at: Time,
    snapshot: DeliverySnapshot,
    payload: Payload,
    bytes: u32,
}

impl SentPacket {
    const GONE: Self =
        Self { sent_at: Time::START, snapshot: DeliverySnapshot::NONE, payload: Payload::Control, bytes: 0 };
}

#[derive(Clone, Debug)]
struct LostPacket {
    seq: PathSeq,
    sent_at: Time,
    lost_at: Time,
    payload: Payload,
    bytes: u32,
}

impl LostPacket {
    fn of(packet: &SentPacket, seq: PathSeq, lost_at: Time) -> Self {
        Self { seq, sent_at: packet.sent_at, lost_at, payload: packet.payload, bytes: packet.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::ack::PeerTime;

    fn packet(number: u64) -> Payload {
        Payload::Packet(PacketKey(number))
    }

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    fn rtt_of_40_ms() -> Rtt {
        let mut rtt = Rtt::default();
        (0..40).for_each(|n| rtt.on_sample(at(n), Duration::from_millis(40), Duration::ZERO));
        rtt
    }

    fn ack(ranges: &[(u64, u64)]) -> Ack {
        let ranges = ranges.iter().map(|(first, last)| Range { first: *first, last: *last }).collect();
        Ack { ranges, received_at: PeerTime(0), ..Ack::default() }
    }

    /// One packet of 1000 bytes per millisecond, with the millisecond as its number and key.
    fn sent(packets: u64) -> SentPackets {
        let mut sent = SentPackets::default();
        (0..packets).for_each(|n| sent.on_sent(at(n), PathSeq(n), 1_000, packet(n), DeliverySnapshot::default()));
        sent
    }

    fn outcomes(run: impl FnOnce(&mut dyn FnMut(Outcome, Payload))) -> Vec<(Outcome, u64)> {
        let mut seen = Vec::new();
        run(&mut |outcome, payload| {
            let Payload::Packet(PacketKey(number)) = payload else { panic!("{payload:?}") };
            seen.push((outcome, number));
        });
        seen
    }

    #[test]
    fn a_packet_is_lost_when_three_later_ones_have_arrived() {
        let (mut sent, rtt) = (sent(10), rtt_of_40_ms());
        sent.on_ack(at(40), &ack(&[(1, 2)]), &mut |_, _| {});
        assert!(sent.detect(at(40), &rtt, &mut |_, _| {}).is_none());
        sent.on_ack(at(41), &ack(&[(1, 3)]), &mut |_, _| {});
        let seen = outcomes(|mut on_outcome| {
            sent.detect(at(41), &rtt, &mut on_outcome);
        });
        assert_eq!(seen, [(Outcome::Lost, 0)]);
        assert_eq!(sent.in_flight(), 6_000);
    }

    /// RFC 8899 section 3: the loss of a probe is no sign of congestion. With Reno, a path on which six probes were
    /// lost had 2.6 Mbit/s in place of 38.
    #[test]
    fn lost_mtu_probes_are_reported_and_do_not_count_as_loss() {
        let (mut sent, rtt) = (SentPackets::default(), rtt_of_40_ms());
        sent.on_sent(at(0), PathSeq(0), 1_472, Payload::MtuProbe(1_472), DeliverySnapshot::default());
        (1..6).for_each(|n| sent.on_sent(at(n), PathSeq(n), 1_000, packet(n), DeliverySnapshot::default()));
        sent.on_ack(at(41), &ack(&[(1, 3)]), &mut |_, _| {});
        let mut seen = Vec::new();
        let loss = sent.detect(at(41), &rtt, &mut |outcome, payload| seen.push((outcome, payload)));
        assert_eq!((loss.is_none(), seen), (true, vec![(Outcome::Lost, Payload::MtuProbe(1_472))]));
        assert_eq!(sent.in_flight(), 2_000);
        let confirmed = sent.on_ack(at(42), &ack(&[(0, 3)]), &mut |_, _| {});
        assert_eq!((confirmed.spurious, confirmed.spurious_bytes), (0, 0));
    }

    #[test]
    fn a_spurious_loss_widens_the_window_of_its_path() {
        let (mut sent, rtt) = (sent(100), rtt_of_40_ms());
        sent.on_ack(at(60), &ack(&[(1, 20)]), &mut |_, _| {});
        sent.detect(at(60), &rtt, &mut |_, _| {});
        let seen = outcomes(|mut on_outcome| {
            sent.on_ack(at(61), &ack(&[(0, 20)]), &mut on_outcome);
        });
        assert_eq!(seen, [(Outcome::Spurious, 0)]);
        // Half of the way to 20 ms, and 1/4 on top.
        assert_eq!(sent.reordering_window(&rtt), Duration::from_micros(12_500));
        sent.on_ack(at(70), &ack(&[(22, 33)]), &mut |_, _| {});
        assert!(sent.detect(at(70), &rtt, &mut |_, _| {}).is_none(), "12 ms late is not lost on this path");
    }

    #[test]
    fn shrinking_keeps_capacity_only_for_packets_in_flight() {
        let mut sent = sent(1_000);
        sent.on_ack(at(1_040), &ack(&[(0, 997)]), &mut |_, _| {});
        sent.shrink();
        assert_eq!((sent.in_flight(), sent.ring.len()), (2_000, 2));
        assert!(sent.ring.capacity() < 10, "{}", sent.ring.capacity());
    }

    #[test]
    fn a_widened_window_shrinks_after_five_seconds() {
        let (mut sent, rtt) = (sent(30), rtt_of_40_ms());
        sent.on_ack(at(60), &ack(&[(21, 21)]), &mut |_, _| {});
        sent.on_ack(at(61), &ack(&[(0, 5)]), &mut |_, _| {});
        assert!(sent.reordering_window(&rtt) > Duration::from_millis(15));
        sent.on_ack(at(6_000), &ack(&[(20, 20)]), &mut |_, _| {});
        assert_eq!(sent.reordering_window(&rtt), rtt.smoothed() / 8);
    }

    #[test]
    fn the_window_never_exceeds_two_probe_timeouts() {
        let (mut sent, rtt) = (sent(2_000), rtt_of_40_ms());
        sent.on_ack(at(2_000), &ack(&[(1_999, 1_999)]), &mut |_, _| {});
        sent.on_ack(at(2_001), &ack(&[(0, 0)]), &mut |_, _| {});
        assert_eq!(sent.reordering_window(&rtt), rtt.probe_timeout(Duration::ZERO) * 2);
    }

    #[test]
    fn an_overtaken_packet_is_lost_when_time_passes_without_an_ack() {
        let (mut sent, rtt) = (sent(3), rtt_of_40_ms());
        sent.on_ack(at(41), &ack(&[(1, 1)]), &mut |_, _| {});
        let deadline = sent.loss_deadline(&rtt).unwrap();
        // Round trip, 1/8 of it, and max_ack_delay.
        assert_eq!(deadline, at(40 + 5 + 25));
        let seen = outcomes(|mut on_outcome| {
            sent.detect(deadline, &rtt, &mut on_outcome);
        });
        assert_eq!(seen, [(Outcome::Lost, 0)]);
        assert_eq!(sent.loss_deadline(&rtt), None, "packet 2 has not been overtaken: a probe finds its loss");
    }

    #[test]
    fn numbers_that_were_never_sent_are_ignored() {
        let mut sent = sent(3);
        let confirmed = sent.on_ack(at(5), &ack(&[(2, u64::MAX)]), &mut |_, _| {});
        assert_eq!(confirmed.packets, 1);
        assert_eq!(SentPackets::default().on_ack(at(5), &ack(&[(0, u64::MAX)]), &mut |_, _| {}).packets, 0);
    }

    /// A peer that acknowledges nothing else can repeat this for ever. Each such ACK took 76 to 158 us when every
    /// number was looked at.
    #[test]
    fn acks_of_50_000_numbers_that_are_not_waited_for_find_nothing() {
        let mut sent = SentPackets::default();
        sent.on_sent(at(0), PathSeq(0), 100, packet(1), DeliverySnapshot::default());
        sent.on_sent(at(1), PathSeq(50_000), 100, packet(2), DeliverySnapshot::default());
        let seen = outcomes(|mut on_outcome| {
            for _ in 0..5_000 {
                let confirmed = sent.on_ack(at(5), &ack(&[(1, 25_000), (25_002, 49_999)]), &mut on_outcome);
                assert_eq!((confirmed.packets, sent.in_flight(), sent.ring.len()), (0, 200, 50_001));
            }
            let single: Vec<_> = (1..128).map(|number| (2 * number, 2 * number)).collect();
            assert_eq!(sent.on_ack(at(5), &ack(&single), &mut on_outcome).packets, 0);
            sent.on_ack(at(5), &ack(&[(0, 49_999)]), &mut on_outcome);
        });
        assert_eq!((seen, sent.ring.len()), (vec![(Outcome::Acked, 1)], 1));
    }

    #[test]
    fn the_numbers_of_pure_acks_are_not_waited_for() {
        let mut sent = SentPackets::default();
        sent.on_sent(at(0), PathSeq(10), 100, packet(1), DeliverySnapshot::default());
        sent.on_sent(at(1), PathSeq(14), 100, packet(2), DeliverySnapshot::default());
        let seen = outcomes(|mut on_outcome| {
            sent.on_ack(at(5), &ack(&[(10, 14)]), &mut on_outcome);
        });
        assert_eq!(seen, [(Outcome::Acked, 1), (Outcome::Acked, 2)]);
        assert_eq!((sent.in_flight(), sent.oldest()), (0, None));
    }
}
