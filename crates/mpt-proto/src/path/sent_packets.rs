//! What is in flight on one path, and what of it is lost.
//!
//! Loss is found by RACK (RFC 8985), which is RFC 9002 section 6.1 in terms of send time: a packet is lost when one that
//! was sent a *reordering window* later has arrived. Until reordering has been seen, three later packets are enough.
//! Jitter inside a path reorders heavily (20 ms of it at 50 Mbit/s: by a hundred packets), so the window is learned per
//! path: every packet that arrives after a later one, declared lost or not, shows how late a packet can be. The window is
//! five quarters of what all but a few in a thousand stay below, shrinks by forgetting, and never exceeds two probe
//! timeouts.
//!
//! Both thresholds are monotone in the packet number, so losses are taken off the front of the ring and nothing is looked
//! at twice. The ring grows to the path's bandwidth-delay product and then allocates no more.

use std::collections::VecDeque;
use std::time::Duration;

use super::PathSeq;
use super::ack::{Ack, Range};
use super::delivery_rate::DeliverySnapshot;
use super::rtt::Rtt;
use super::sample::LossSample;
use super::windowed_filter::WindowedMax;
use crate::time::Time;

/// The content of a datagram, as far as its outcome matters to anybody.
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

/// Identifies a packet that is kept for retransmission. A key is not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketKey(pub u64);

/// What happened to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It arrived.
    Acked,
    /// It is taken for lost.
    Lost,
    /// It was taken for lost, and arrived.
    Spurious,
}

/// The packets in flight on one path.
#[derive(Clone, Debug, Default)]
pub struct SentPackets {
    base: u64,
    ring: VecDeque<SentPacket>,
    in_flight: u64,
    largest_acked: Option<(PathSeq, Time)>,
    lost: VecDeque<LostPacket>,
    lateness: Reordering,
}

/// What an ACK newly confirmed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Confirmed {
    /// Bytes that were in flight.
    pub bytes: u64,
    /// Packets that were in flight.
    pub packets: u64,
    /// Bytes that had been taken for lost.
    pub spurious_bytes: u64,
    /// Packets that had been taken for lost.
    pub spurious: u64,
    /// The sum of the times for which all of these were in flight. Without those taken for lost it would be the mean of the
    /// fast ones.
    pub sojourn: Duration,
    /// The latest packet among them: its number, send time and snapshot.
    pub newest: Option<(PathSeq, Time, DeliverySnapshot)>,
}

impl SentPackets {
    /// Notes a packet. Numbers rise; those left out (pure ACKs) are never waited for.
    pub fn on_sent(&mut self, now: Time, seq: PathSeq, bytes: u32, payload: Payload, snapshot: DeliverySnapshot) {
        if self.ring.is_empty() {
            self.base = seq.0;
        }
        debug_assert!(seq.0 >= self.next(), "packet numbers of a path rise");
        while self.next() < seq.0 {
            self.ring.push_back(SentPacket::GONE);
        }
        self.ring.push_back(SentPacket { sent_at: now, snapshot, payload, bytes, waiting: true });
        self.in_flight += u64::from(bytes);
    }

    /// Takes in an ACK, telling the fate of each packet it confirms. Numbers that were never sent are ignored.
    pub fn on_ack(&mut self, now: Time, ack: &Ack, tell: &mut impl FnMut(Outcome, Payload)) -> Confirmed {
        let mut confirmed = Confirmed::default();
        self.recall(now, ack, &mut confirmed, tell);
        for range in ack.ranges.as_slice() {
            self.confirm(now, *range, &mut confirmed, tell);
        }
        self.trim();
        if let Some((seq, sent_at, _)) = confirmed.newest {
            self.largest_acked = self.largest_acked.max(Some((seq, sent_at)));
        }
        confirmed
    }

    /// Declares lost what later arrivals, or the time that has passed, say will not come.
    pub fn detect(&mut self, now: Time, rtt: &Rtt, tell: &mut impl FnMut(Outcome, Payload)) -> Option<LossSample> {
        let (largest, largest_sent) = self.largest_acked?;
        let (window, patience) = (self.reordering_window(rtt), self.patience(rtt));
        let overtaken = |sent_at: Time| largest_sent.since(sent_at) > window || now.since(sent_at) >= patience;
        let outrun = self.packet_threshold();
        self.give_up(now, tell, |seq, sent_at| {
            seq < largest.0 && (overtaken(sent_at) || outrun.is_some_and(|n| seq + n <= largest.0))
        })
    }

    /// Declares everything in flight lost.
    pub fn abandon(&mut self, now: Time, tell: &mut impl FnMut(Outcome, Payload)) -> Option<LossSample> {
        self.give_up(now, tell, |_, _| true)
    }

    /// Gives memory back while little is in flight. What was taken for lost before is not recognised when it arrives after all.
    pub fn shrink(&mut self) {
        self.ring.shrink_to_fit();
        self.lost = VecDeque::new();
    }

    /// When [`Sent::detect`] would find a loss though no further ACK arrives.
    pub fn loss_deadline(&self, rtt: &Rtt) -> Option<Time> {
        let (largest, _) = self.largest_acked?;
        let oldest = self.ring.front()?;
        (self.base < largest.0).then(|| oldest.sent_at + self.patience(rtt))
    }

    /// How much later than a packet another may have been sent and yet arrive first.
    pub fn reordering_window(&self, rtt: &Rtt) -> Duration {
        let bound = rtt.probe_timeout(Duration::ZERO) * 2;
        // RFC 9002 section 6.1.2: kTimeThreshold is 9/8 of a round trip, which leaves an eighth for reordering.
        (rtt.smoothed() / 8).max(self.lateness.usual_worst()).max(GRANULARITY).min(bound)
    }

    /// How late packets are on average, counting those in order as not late; zero on a path that keeps order.
    pub fn reordering(&self) -> Duration {
        self.lateness.mean
    }

    /// How late all but a few in a thousand are; zero on a path that keeps order.
    pub fn max_reordering(&self) -> Duration {
        self.lateness.worst.get().map_or(Duration::ZERO, |worst| self.lateness.high.min(worst))
    }

    /// Bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Send time and payload of the oldest packet in flight.
    pub fn oldest(&self) -> Option<(Time, Payload)> {
        self.ring.front().map(|packet| (packet.sent_at, packet.payload))
    }

    /// Tokens of the packets in flight, the last one first.
    pub fn tail(&self) -> impl Iterator<Item = Payload> {
        self.ring.iter().rev().filter(|packet| packet.waiting).map(|packet| packet.payload)
    }

    /// Send time and bytes of a packet in flight.
    pub fn find(&self, seq: PathSeq) -> Option<(Time, u32)> {
        let packet = self.ring.get(usize::try_from(seq.0.checked_sub(self.base)?).ok()?)?;
        packet.waiting.then_some((packet.sent_at, packet.bytes))
    }

    /// Packets taken for lost that came back: the window was too narrow, and is now as wide as they were late.
    fn recall(&mut self, now: Time, ack: &Ack, confirmed: &mut Confirmed, tell: &mut impl FnMut(Outcome, Payload)) {
        let Self { lost, lateness, largest_acked, .. } = self;
        while lost.front().is_some_and(|p| now.since(p.lost_at) > REMEMBERED) {
            lost.pop_front();
        }
        lost.retain(|packet| {
            let here = covers(ack, packet.seq);
            if here {
                lateness.note(now, *largest_acked, packet.seq, packet.sent_at);
                confirmed.spurious += 1;
                confirmed.sojourn += now.since(packet.sent_at);
                confirmed.spurious_bytes += u64::from(packet.bytes);
                tell(Outcome::Spurious, packet.payload);
            }
            !here
        });
    }

    fn confirm(&mut self, now: Time, range: Range, confirmed: &mut Confirmed, tell: &mut impl FnMut(Outcome, Payload)) {
        if self.ring.is_empty() || range.last < self.base {
            return;
        }
        let (first, last) = (range.first.max(self.base), range.last.min(self.next() - 1));
        for seq in first..=last {
            let packet = &mut self.ring[(seq - self.base) as usize];
            if !std::mem::take(&mut packet.waiting) {
                continue;
            }
            self.in_flight -= u64::from(packet.bytes);
            confirmed.bytes += u64::from(packet.bytes);
            confirmed.packets += 1;
            confirmed.sojourn += now.since(packet.sent_at);
            if confirmed.newest.is_none_or(|(newest, ..)| newest.0 < seq) {
                confirmed.newest = Some((PathSeq(seq), packet.sent_at, packet.snapshot));
            }
            self.lateness.note(now, self.largest_acked, PathSeq(seq), packet.sent_at);
            tell(Outcome::Acked, packet.payload);
        }
    }

    /// Takes packets off the front for as long as `gone` says they are.
    fn give_up(
        &mut self,
        now: Time,
        tell: &mut impl FnMut(Outcome, Payload),
        gone: impl Fn(u64, Time) -> bool,
    ) -> Option<LossSample> {
        let mut loss = LossSample { now, ..LossSample::default() };
        while let Some(packet) = self.ring.front().filter(|p| !p.waiting || gone(self.base, p.sent_at)) {
            if packet.waiting {
                self.in_flight -= u64::from(packet.bytes);
                loss.packets += 1;
                loss.bytes += u64::from(packet.bytes);
                loss.newest_sent = packet.sent_at;
                tell(Outcome::Lost, packet.payload);
                remember(&mut self.lost, LostPacket::of(packet, PathSeq(self.base), now));
            }
            self.ring.pop_front();
            self.base += 1;
        }
        loss.in_flight = self.in_flight;
        (loss.packets > 0).then_some(loss)
    }

    fn trim(&mut self) {
        while self.ring.front().is_some_and(|packet| !packet.waiting) {
            self.ring.pop_front();
            self.base += 1;
        }
    }

    fn next(&self) -> u64 {
        self.base + self.ring.len() as u64
    }

    /// RFC 8985 section 6.2 step 4: counting packets is for paths that have not been seen to reorder.
    fn packet_threshold(&self) -> Option<u64> {
        self.lateness.worst.get().is_none().then_some(PACKET_THRESHOLD)
    }

    /// How long a packet that a later one has overtaken is waited for when ACKs stop coming.
    fn patience(&self, rtt: &Rtt) -> Duration {
        rtt.smoothed().max(rtt.latest()) + self.reordering_window(rtt) + MAX_HOLD
    }
}

/// By how much earlier than the latest arrival so far a packet was sent that arrives after it.
#[derive(Clone, Debug, Default)]
struct Reordering {
    worst: WindowedMax<Duration>,
    /// What all but a few in a thousand stay below.
    high: Duration,
    mean: Duration,
}

impl Reordering {
    /// Notes an arrival. `high` goes half of the way to a packet that was later, and sinks a little with each that was
    /// not, so it settles where one packet in some hundreds is later: waiting for the very last would cost every real
    /// loss a round trip more.
    fn note(&mut self, now: Time, largest: Option<(PathSeq, Time)>, seq: PathSeq, sent_at: Time) {
        let overtaken_by = largest.filter(|(largest, _)| *largest > seq);
        let late = overtaken_by.map_or(Duration::ZERO, |(_, largest_sent)| largest_sent.since(sent_at));
        self.mean = (self.mean * (LATENESS_MEMORY - 1) + late) / LATENESS_MEMORY;
        if late > self.high {
            self.high += (late - self.high) / 2;
        } else {
            self.high -= self.high / HIGH_MEMORY;
        }
        if overtaken_by.is_some() {
            self.worst.insert(now, LATENESS_WINDOW, late);
        }
    }

    /// How late a packet may be: forgotten when nothing has been late for a while.
    fn usual_worst(&self) -> Duration {
        self.worst.get().map_or(Duration::ZERO, |worst| (self.high + self.high / 4).min(worst))
    }
}

fn covers(ack: &Ack, seq: PathSeq) -> bool {
    let ranges = ack.ranges.as_slice();
    let at = ranges.partition_point(|range| range.first > seq.0);
    ranges.get(at).is_some_and(|range| range.contains(seq))
}

fn remember(lost: &mut VecDeque<LostPacket>, packet: LostPacket) {
    if lost.len() == MAX_REMEMBERED {
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
    waiting: bool,
}

impl SentPacket {
    const GONE: Self = Self {
        sent_at: Time::START,
        snapshot: DeliverySnapshot::NONE,
        payload: Payload::Control,
        bytes: 0,
        waiting: false,
    };
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

/// The longest a receiver keeps an ACK back (RFC 9000 section 18.2, max_ack_delay).
pub const MAX_HOLD: Duration = Duration::from_millis(25);
/// RFC 9002 section 6.1.1.
const PACKET_THRESHOLD: u64 = 3;
const GRANULARITY: Duration = Duration::from_millis(1);
/// RFC 8985 section 6.2 keeps a widened window for 16 recoveries; a path that loses rarely would keep it for hours.
const LATENESS_WINDOW: Duration = Duration::from_secs(5);
/// Packets over which lateness is averaged.
const LATENESS_MEMORY: u32 = 64;
/// The pace at which the high mark sinks, in packets.
const HIGH_MEMORY: u32 = 8192;
/// How long a packet taken for lost can still prove it was not.
const REMEMBERED: Duration = Duration::from_secs(1);
/// A second of 5 % loss at 200 Mbit/s.
const MAX_REMEMBERED: usize = 1024;

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

    /// One packet of 1000 bytes per millisecond, numbered and tokened like its millisecond.
    fn sent(packets: u64) -> SentPackets {
        let mut sent = SentPackets::default();
        (0..packets).for_each(|n| sent.on_sent(at(n), PathSeq(n), 1_000, packet(n), DeliverySnapshot::default()));
        sent
    }

    fn fates(run: impl FnOnce(&mut dyn FnMut(Outcome, Payload))) -> Vec<(Outcome, u64)> {
        let mut told = Vec::new();
        run(&mut |outcome, payload| {
            let Payload::Packet(PacketKey(number)) = payload else { panic!("{payload:?}") };
            told.push((outcome, number));
        });
        told
    }

    #[test]
    fn three_later_arrivals_are_a_loss() {
        let (mut sent, rtt) = (sent(10), rtt_of_40_ms());
        sent.on_ack(at(40), &ack(&[(1, 2)]), &mut |_, _| {});
        assert!(sent.detect(at(40), &rtt, &mut |_, _| {}).is_none());
        sent.on_ack(at(41), &ack(&[(1, 3)]), &mut |_, _| {});
        let told = fates(|mut tell| {
            sent.detect(at(41), &rtt, &mut tell);
        });
        assert_eq!(told, [(Outcome::Lost, 0)]);
        assert_eq!(sent.in_flight(), 6_000);
    }

    #[test]
    fn a_packet_that_was_not_lost_widens_the_window_of_its_path() {
        let (mut sent, rtt) = (sent(100), rtt_of_40_ms());
        sent.on_ack(at(60), &ack(&[(1, 20)]), &mut |_, _| {});
        sent.detect(at(60), &rtt, &mut |_, _| {});
        let told = fates(|mut tell| {
            sent.on_ack(at(61), &ack(&[(0, 20)]), &mut tell);
        });
        assert_eq!(told, [(Outcome::Spurious, 0)]);
        // Half of the way to 20 ms late, and a quarter for what has not been seen yet.
        assert_eq!(sent.reordering_window(&rtt), Duration::from_micros(12_500));
        sent.on_ack(at(70), &ack(&[(22, 33)]), &mut |_, _| {});
        assert!(sent.detect(at(70), &rtt, &mut |_, _| {}).is_none(), "12 ms late is not lost on this path");
    }

    #[test]
    fn at_rest_there_is_room_for_what_is_in_flight() {
        let mut sent = sent(1_000);
        sent.on_ack(at(1_040), &ack(&[(0, 997)]), &mut |_, _| {});
        sent.shrink();
        assert_eq!((sent.in_flight(), sent.ring.len()), (2_000, 2));
        assert!(sent.ring.capacity() < 10, "{}", sent.ring.capacity());
    }

    #[test]
    fn a_widened_window_is_forgotten() {
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
        // Round trip, an eighth of it, and the longest a receiver may keep an ACK.
        assert_eq!(deadline, at(40 + 5 + 25));
        let told = fates(|mut tell| {
            sent.detect(deadline, &rtt, &mut tell);
        });
        assert_eq!(told, [(Outcome::Lost, 0)]);
        assert_eq!(sent.loss_deadline(&rtt), None, "packet 2 has not been overtaken: a probe's business");
    }

    #[test]
    fn numbers_that_were_never_sent_are_ignored() {
        let mut sent = sent(3);
        let confirmed = sent.on_ack(at(5), &ack(&[(2, u64::MAX)]), &mut |_, _| {});
        assert_eq!(confirmed.packets, 1);
        assert_eq!(SentPackets::default().on_ack(at(5), &ack(&[(0, u64::MAX)]), &mut |_, _| {}).packets, 0);
    }

    #[test]
    fn pure_acks_leave_gaps_nobody_waits_for() {
        let mut sent = SentPackets::default();
        sent.on_sent(at(0), PathSeq(10), 100, packet(1), DeliverySnapshot::default());
        sent.on_sent(at(1), PathSeq(14), 100, packet(2), DeliverySnapshot::default());
        let told = fates(|mut tell| {
            sent.on_ack(at(5), &ack(&[(10, 14)]), &mut tell);
        });
        assert_eq!(told, [(Outcome::Acked, 1), (Outcome::Acked, 2)]);
        assert_eq!((sent.in_flight(), sent.oldest()), (0, None));
    }
}
