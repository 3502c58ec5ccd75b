//! Delays inner TCP ACKs that return faster than usual, so that the sender's minimum RTT is one that it can sustain.
//!
//! Over paths with jitter, a flow that sends little has the delay of single packets, and one that sends much has that
//! of the slowest of many, because the receiver restores order. So the minimum RTT, which the sender takes for the RTT
//! without a queue, may be a third of the RTT under load. BBR then has two minimum RTTs in flight (draft-ietf-ccwg-bbr
//! section 5.6.4.2), which is less than one RTT, and HyStart takes the difference for a queue (RFC 9406 section 4.2).
//!
//! Over unlike delays, the scheduler uses a far path once the queue for the near one takes longer than the difference.
//! BBR's queue is at most 1.9 of its minimum RTTs long in start-up, later one, so it may never use the far path.
//!
//! On paths with jitter, an ACK waits until its RTT is the usual mean plus a mean deviation. If the flow was
//! backlogged for two seconds, the ACK waits until its RTT is that over all paths: the shortest plus the largest
//! difference of the one-way delays. The RTT that it shows is then at most 1.8 times the shortest that the sender has
//! measured in the last 10.5 s, which is longer than BBR's memory. BBR has two of these in flight, so its rate does not
//! fall.
//!
//! Only pure ACKs are held. Other packets are delivered at once, after the held ACKs that acknowledge no more than they
//! do. A SYN-ACK is held only until the mean, because a program waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::connection::{Connection, connection, is_after, reverse};
use super::{LONGEST_ACK, trim};
use crate::classify::Class;
use crate::deadline_index::DeadlineIndex;
use crate::flow;
use crate::packet::SuperPacket;
use crate::packet::ip::{Ip, TCP};
use crate::path::windowed_filter::WindowedMin;
use crate::time::Time;
use crate::tuning::inner::ack_delay::{BUSY, FIRST_PAUSE, KEPT, MAX_HELD, MAX_RAISE, MIN_RTT_WINDOW, PAUSE, SAMPLES};

/// Send times of data and the held ACKs, by the bucket of the ACKs.
#[derive(Debug, Default)]
pub struct AckDelay {
    flows: BTreeMap<u16, DelayedFlow>,
    typical: TypicalRtt,
    /// Number of held ACKs.
    held: usize,
    /// The times of the first held ACK of each flow.
    due: DeadlineIndex,
}

/// The RTTs that ACKs are to show to the senders.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypicalRtt {
    /// The usual RTT of the path where it is lowest; zero if the jitter is low.
    pub mean: Duration,
    /// The mean plus a mean deviation.
    pub late: Duration,
    /// That of a flow over all paths; zero if their delays are alike or the scheduler does not predict arrivals.
    pub all_paths: Duration,
}

/// One TCP flow. Others whose ACKs have the same bucket are not delayed.
#[derive(Debug, Default)]
struct DelayedFlow {
    connection: Option<Connection>,
    /// Sequence numbers, and the earliest send time of the data that begins there.
    sent: VecDeque<(u32, Time)>,
    /// In order of their acknowledgement numbers.
    held: VecDeque<HeldAck>,
    /// Shortest RTT that packets from the peer have shown to the sender.
    shown: WindowedMin<Duration>,
    /// First and last time at which a packet waited at this end, without a longer pause between.
    busy: Option<(Time, Time)>,
}

/// An ACK that is delivered later.
#[derive(Debug)]
struct HeldAck {
    due: Time,
    /// Its acknowledgement number.
    number: u32,
    packet: Vec<u8>,
}

impl AckDelay {
    /// Sets the usual RTT. While it is zero, nothing is recorded, so what was known of the flows is forgotten.
    pub fn set_typical(&mut self, typical: TypicalRtt) {
        if typical.longest().is_zero() && !self.typical.longest().is_zero() {
            self.flows.values_mut().for_each(DelayedFlow::forget);
            self.flows.retain(|_, flow| !flow.held.is_empty());
        }
        self.typical = typical;
    }

    /// Remembers the send time of a packet from the TUN device. `is_backlogged`: others of its flow wait, and may use
    /// all paths.
    pub fn on_sent(&mut self, now: Time, packet: &SuperPacket, is_backlogged: bool) {
        let (ip, bytes) = (packet.ip(), packet.bytes());
        let longest = self.typical.longest();
        if longest.is_zero() || ip.protocol != TCP || ip.is_pure_ack(bytes) {
            return;
        }
        let Some((number, connection)) = ip.sequence(bytes).zip(connection(ip, bytes)) else { return };
        let flow = self.flows.entry(flow::reverse_bucket(ip, bytes, Class::Bulk)).or_default();
        if flow.connection != Some(connection) {
            if flow.is_in_use(now) {
                return;
            }
            *flow = DelayedFlow { connection: Some(connection), ..DelayedFlow::default() };
        }
        if ip.tcp_flags(bytes).is_some_and(|flags| flags.syn) {
            flow.forget();
        }
        if is_backlogged {
            flow.on_backlog(now);
        }
        flow.on_sent(now, number, longest);
    }

    /// Returns the held ACKs that are delivered before a packet from the peer; `None` if the packet is held itself.
    pub fn on_packet(&mut self, now: Time, ip: &Ip, bytes: &[u8]) -> Option<impl Iterator<Item = Vec<u8>> + use<>> {
        let is_relevant = !self.flows.is_empty() && ip.protocol == TCP;
        let bucket = is_relevant.then(|| flow::bucket(ip, bytes, Class::Bulk));
        let mut before = Vec::new();
        if let Some(bucket) = bucket
            && let Some((flow, number)) = self.flows.get_mut(&bucket).zip(ip.acknowledged(bytes))
            && flow.connection == reverse(ip, bytes)
        {
            let may_wait = bytes.len() <= LONGEST_ACK;
            let is_ack = may_wait && ip.is_pure_ack(bytes);
            let least_rtt = if is_ack {
                flow.least_rtt(now, &self.typical)
            } else if may_wait && ip.is_syn_ack(bytes) {
                self.typical.mean
            } else {
                Duration::ZERO
            };
            let covered = flow.held.partition_point(|held| !is_after(held.number, number));
            let sent = flow.sent_at(number);
            let due = sent.map(|sent| sent + least_rtt).filter(|due| *due > now && self.held < MAX_HELD);
            let rtt = sent.map(|sent| due.unwrap_or(now).since(sent));
            flow.on_rtt(now, rtt, is_ack.then_some(self.typical.longest()));
            match due {
                Some(due) => flow.held.insert(covered, HeldAck { due, number, packet: bytes.to_vec() }),
                None => before.extend(flow.held.drain(..covered)),
            }
            trim(&mut flow.held);
            self.due.set(bucket, flow.held.front().map(|first| first.due));
            if due.is_some() {
                self.held += 1;
                return None;
            }
        }
        self.held -= before.len();
        Some(before.into_iter().map(|held| held.packet))
    }

    /// Returns the number of held ACKs.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Returns the next time at which [`Self::release`] returns an ACK.
    pub fn next_deadline(&self) -> Option<Time> {
        self.due.first()
    }

    /// Removes the ACKs whose time has come.
    pub fn release(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut released = Vec::new();
        for bucket in self.due.due(now) {
            let Some(flow) = self.flows.get_mut(&bucket) else { continue };
            let due = flow.held.iter().take_while(|held| held.due <= now).count();
            released.extend(flow.held.drain(..due).map(|held| held.packet));
            trim(&mut flow.held);
            self.due.set(bucket, flow.held.front().map(|first| first.due));
        }
        self.held -= released.len();
        released
    }

    /// Releases memory.
    pub fn shrink(&mut self) {
        self.flows.retain(|_, flow| !flow.held.is_empty());
    }
}

impl TypicalRtt {
    fn longest(&self) -> Duration {
        self.late.max(self.all_paths)
    }
}

impl DelayedFlow {
    /// Returns for how long a send time is kept: until an ACK is not early any more, at most a few of the shortest
    /// RTTs, so that the times are close to each other.
    fn kept(&self, longest: Duration) -> Duration {
        self.shown.get().map_or(longest, |shortest| longest.min(shortest * KEPT))
    }

    /// Returns true if another flow with the same bucket is not delayed in its place.
    fn is_in_use(&self, now: Time) -> bool {
        !self.held.is_empty() || self.sent.back().is_some_and(|(_, at)| now.since(*at) < PAUSE)
    }

    /// Forgets all but the held ACKs.
    fn forget(&mut self) {
        self.sent.clear();
        self.shown = WindowedMin::new();
        self.busy = None;
    }

    /// Remembers the send time of the data from `number` on.
    fn on_sent(&mut self, now: Time, number: u32, longest: Duration) {
        let kept = self.kept(longest);
        while self.sent.front().is_some_and(|(_, at)| now.since(*at) > kept) {
            self.sent.pop_front();
        }
        let spacing = kept / SAMPLES as u32;
        let is_next = |(last, at): &(u32, Time)| is_after(number, *last) && now.since(*at) >= spacing;
        if self.sent.back().is_none_or(is_next) {
            self.sent.push_back((number, now));
        }
        if self.sent.len() > SAMPLES {
            self.sent.pop_front();
        }
    }

    /// Adds the RTT that a packet from the peer shows to the sender. If it is a pure ACK without a known send time, its
    /// data left before the times that are kept, so its RTT is at least as long as they are; `longest` limits that.
    fn on_rtt(&mut self, now: Time, rtt: Option<Duration>, longest: Option<Duration>) {
        let at_least = longest.filter(|_| !self.sent.is_empty()).map(|longest| self.kept(longest));
        let longer = at_least.filter(|least| self.shown.get().is_some_and(|shortest| shortest < *least));
        if let Some(rtt) = rtt.or(longer) {
            self.shown.insert(now, MIN_RTT_WINDOW, rtt);
        }
    }

    /// A packet of the flow waits at this end.
    fn on_backlog(&mut self, now: Time) {
        let goes_on = |(since, last): &(Time, Time)| {
            let pause = if last.since(*since) >= BUSY { PAUSE } else { FIRST_PAUSE };
            now.since(*last) < pause
        };
        let since = self.busy.filter(goes_on).map_or(now, |(since, _)| since);
        self.busy = Some((since, now));
    }

    /// Returns the least RTT that an ACK may show to the sender.
    fn least_rtt(&self, now: Time, typical: &TypicalRtt) -> Duration {
        let is_busy = self.busy.is_some_and(|(since, last)| now.since(last) < PAUSE && last.since(since) >= BUSY);
        let Some(shortest) = self.shown.get() else { return typical.late };
        let usual = if is_busy { typical.longest() } else { typical.late };
        usual.min(shortest.mul_f64(MAX_RAISE))
    }

    /// Returns the earliest send time of the newest data before `number`.
    fn sent_at(&self, number: u32) -> Option<Time> {
        self.sent.iter().rfind(|(first, _)| is_after(number, *first)).map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Offload;

    const TYPICAL: TypicalRtt =
        TypicalRtt { mean: Duration::from_millis(40), late: Duration::from_millis(70), all_paths: Duration::ZERO };
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(1_000 + ms))
    }

    /// Returns a segment of the sender that begins at `number`, or one of its receiver that acknowledges the bytes
    /// before it.
    fn segment(number: u32, flags: u8, payload: usize, back: bool) -> SuperPacket {
        segment_of(0, number, flags, payload, back)
    }

    /// The same; the sender has this port.
    fn segment_of(port: u16, number: u32, flags: u8, payload: usize, back: bool) -> SuperPacket {
        let len = 40 + payload;
        let mut bytes = vec![0; len];
        bytes[..10].copy_from_slice(&[0x45, 0, 0, len as u8, 0, 0, 0, 0, 64, TCP]);
        let (source, destination, field) = if back { (21, 23, 28) } else { (23, 21, 24) };
        (bytes[source], bytes[destination]) = (1, 2);
        bytes[field..field + 4].copy_from_slice(&number.to_be_bytes());
        let own = if back { 22 } else { 20 };
        bytes[own..own + 2].copy_from_slice(&port.to_be_bytes());
        (bytes[32], bytes[33]) = (5 << 4, flags);
        SuperPacket::new(bytes, len, Offload::default()).unwrap()
    }

    /// Sends five segments of 100 bytes, ten milliseconds apart.
    fn bench() -> AckDelay {
        let mut ack_delay = AckDelay::default();
        ack_delay.set_typical(TYPICAL);
        (0..5).for_each(|n| ack_delay.on_sent(at(n * 10), &segment(n as u32 * 100, ACK, 100, false), false));
        ack_delay
    }

    /// Returns what is delivered when a packet arrives from the peer, that packet last.
    fn deliver(ack_delay: &mut AckDelay, ms: u64, packet: &SuperPacket) -> Vec<u32> {
        let number = packet.ip().acknowledged(packet.bytes()).unwrap();
        let before = ack_delay.on_packet(at(ms), packet.ip(), packet.bytes());
        before.into_iter().flat_map(|before| before.map(acknowledged).chain([number])).collect()
    }

    fn acknowledged(packet: Vec<u8>) -> u32 {
        Ip::parse(&packet).unwrap().acknowledged(&packet).unwrap()
    }

    #[test]
    fn an_early_ack_is_held() {
        let mut ack_delay = bench();
        assert_eq!(deliver(&mut ack_delay, 25, &segment(100, ACK, 0, true)), []);
        assert_eq!((ack_delay.len(), ack_delay.next_deadline()), (1, Some(at(70))));
        assert!(ack_delay.release(at(69)).is_empty());
        assert_eq!(ack_delay.release(at(70)).into_iter().map(acknowledged).collect::<Vec<_>>(), [100]);
        assert_eq!((ack_delay.len(), ack_delay.next_deadline()), (0, None));
        assert_eq!(deliver(&mut ack_delay, 80, &segment(200, ACK, 0, true)), [200], "sent 70 ms ago");
    }

    #[test]
    fn the_newest_acknowledged_segment_gives_the_rtt() {
        let mut ack_delay = bench();
        assert_eq!(deliver(&mut ack_delay, 75, &segment(101, ACK, 0, true)), []);
        assert_eq!(ack_delay.next_deadline(), Some(at(80)), "a byte of the second packet, sent 10 ms after the first");
        assert_eq!(deliver(&mut ack_delay, 75, &segment(100, ACK, 0, true)), [100], "and an older one overtakes it");
        assert_eq!(ack_delay.len(), 1);
    }

    #[test]
    fn data_is_delivered_at_once_after_the_acks_that_it_covers() {
        let mut ack_delay = bench();
        for number in [300, 100, 200] {
            assert_eq!(deliver(&mut ack_delay, 50, &segment(number, ACK, 0, true)), []);
        }
        assert_eq!(deliver(&mut ack_delay, 60, &segment(200, ACK, 9, true)), [100, 200, 200]);
        assert_eq!((ack_delay.len(), ack_delay.next_deadline()), (1, Some(at(90))));
    }

    #[test]
    fn a_syn_ack_is_held_until_the_mean() {
        let mut ack_delay = AckDelay::default();
        ack_delay.set_typical(TYPICAL);
        ack_delay.on_sent(at(0), &segment(7, SYN, 0, false), false);
        assert_eq!(deliver(&mut ack_delay, 10, &segment(8, SYN | ACK, 0, true)), []);
        assert_eq!(ack_delay.next_deadline(), Some(at(40)));
    }

    #[test]
    fn nothing_is_held_or_remembered_on_paths_with_low_jitter() {
        let mut ack_delay = AckDelay::default();
        ack_delay.on_sent(at(0), &segment(0, ACK, 100, false), false);
        assert_eq!(deliver(&mut ack_delay, 1, &segment(100, ACK, 0, true)), [100]);
        assert!(ack_delay.flows.is_empty());
    }

    /// Sends a segment every 10 ms from `from` to `until`, each acknowledged after 20 ms. Returns the RTT that the last
    /// ACK shows.
    fn run(ack_delay: &mut AckDelay, from: u64, until: u64, is_backlogged: bool) -> Duration {
        let mut shown = Duration::ZERO;
        for ms in (from..until).step_by(10) {
            ack_delay.on_sent(at(ms), &segment(ms as u32, ACK, 10, false), is_backlogged);
            if ms >= from + 20 {
                let was_held = deliver(ack_delay, ms, &segment(ms as u32 - 10, ACK, 0, true)).is_empty();
                let last = ack_delay.flows.values().next().and_then(|flow| flow.held.back()).filter(|_| was_held);
                shown = last.map_or(Duration::from_millis(20), |held| held.due.since(at(ms - 20)));
            }
            let _released = ack_delay.release(at(ms));
        }
        shown
    }

    fn unlike() -> AckDelay {
        let mut ack_delay = AckDelay::default();
        ack_delay.set_typical(TypicalRtt { all_paths: Duration::from_millis(100), ..TypicalRtt::default() });
        ack_delay
    }

    #[test]
    fn the_minimum_rtt_of_a_backlogged_flow_rises_in_steps_to_that_over_all_paths() {
        let mut ack_delay = unlike();
        let steps = [1_900, 2_500, 10_000, 17_000, 22_000, 34_000, 60_000];
        let mut from = 0;
        let rtts = steps.map(|until| {
            let rtt = run(&mut ack_delay, from, until, true);
            from = until;
            rtt.as_micros()
        });
        assert_eq!(rtts, [20_000, 36_000, 36_000, 64_800, 64_800, 100_000, 100_000]);
    }

    #[test]
    fn a_flow_without_backlog_and_a_new_connection_are_not_delayed() {
        let mut ack_delay = unlike();
        assert_eq!(run(&mut ack_delay, 0, 5_000, false), Duration::from_millis(20));
        assert_eq!(run(&mut ack_delay, 5_000, 8_000, true), Duration::from_millis(36));
        ack_delay.on_sent(at(8_500), &segment(8_500, SYN, 0, false), false);
        assert_eq!(run(&mut ack_delay, 8_510, 10_000, true), Duration::from_millis(20), "busy since 8.5 s");
    }

    #[test]
    fn data_from_the_peer_shows_the_true_rtt_so_the_next_step_does_not_follow() {
        let mut ack_delay = unlike();
        for from in (0..40_000).step_by(5_000) {
            let rtt = run(&mut ack_delay, from, from + 5_000, true);
            assert!(rtt <= Duration::from_millis(45), "1.8 of the 25 ms of the data: {rtt:?} after {from} ms");
            let data = segment(from as u32 + 4_980, ACK, 9, true);
            assert!(deliver(&mut ack_delay, from + 4_995, &data).ends_with(&[from as u32 + 4_980]), "not held");
        }
    }

    #[test]
    fn a_flow_with_the_same_bucket_does_not_change_the_first_one() {
        let bucket = |port| {
            let segment = segment_of(port, 0, ACK, 0, false);
            flow::reverse_bucket(segment.ip(), segment.bytes(), Class::Bulk)
        };
        let port = (1..u16::MAX).find(|port| bucket(*port) == bucket(0)).unwrap();
        let mut ack_delay = unlike();
        assert_eq!(run(&mut ack_delay, 0, 20_000, true), Duration::from_micros(64_800));
        ack_delay.on_sent(at(20_000), &segment_of(port, 7, SYN, 0, false), false);
        assert_eq!(deliver(&mut ack_delay, 20_005, &segment_of(port, 8, SYN | ACK, 0, true)), [8]);
        assert_eq!(run(&mut ack_delay, 20_010, 22_000, true), Duration::from_micros(64_800));
    }

    #[test]
    fn after_a_time_without_a_far_path_the_steps_begin_again() {
        let mut ack_delay = unlike();
        assert_eq!(run(&mut ack_delay, 0, 20_000, true), Duration::from_micros(64_800));
        let typical = ack_delay.typical;
        ack_delay.set_typical(TypicalRtt::default());
        run(&mut ack_delay, 20_000, 21_000, true);
        ack_delay.set_typical(typical);
        assert_eq!(run(&mut ack_delay, 21_000, 22_900, true), Duration::from_millis(20));
        assert_eq!(run(&mut ack_delay, 22_900, 24_000, true), Duration::from_millis(36));
    }

    #[test]
    fn the_number_of_samples_is_bounded_and_old_ones_are_removed() {
        let mut ack_delay = AckDelay::default();
        ack_delay.set_typical(TYPICAL);
        for n in 0..50_000 {
            ack_delay.on_sent(
                Time::after(Duration::from_micros(n * 10)),
                &segment(n as u32 * 100, ACK, 100, false),
                false,
            );
        }
        let flow = ack_delay.flows.values().next().unwrap();
        assert!(flow.sent.len() <= SAMPLES, "{}", flow.sent.len());
    }
}
