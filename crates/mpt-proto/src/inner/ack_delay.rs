//! Delays inner TCP ACKs that return faster than usual, so that the sender's minimum RTT is one that it can sustain.
//!
//! Over paths with jitter, a flow that sends little has the delay of single packets, and one that sends much has that
//! of the slowest of many, because the receiver restores order. So the minimum RTT, which the sender takes for the RTT
//! without a queue, may be a third of the RTT under load. BBR then has two minimum RTTs in flight (draft-ietf-ccwg-bbr
//! section 5.6.4.2), which is less than one RTT, and HyStart takes the difference for a queue (RFC 9406 section 4.2).
//!
//! An ACK whose RTT is below the usual mean plus a mean deviation is held until the RTT has that value. Only pure ACKs
//! are held; other packets are delivered at once, after the held ACKs that acknowledge no more than they do. A SYN-ACK
//! is held only until the mean, because a program waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{LONGEST_ACK, trim};
use crate::classify::Class;
use crate::deadline_index::DeadlineIndex;
use crate::flow;
use crate::packet::SuperPacket;
use crate::packet::ip::{Ip, TCP};
use crate::time::Time;
use crate::tuning::inner::ack_delay::{MAX_HELD, SAMPLES};

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

/// The usual RTT; zero if the jitter is low.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypicalRtt {
    pub mean: Duration,
    /// The mean plus a mean deviation. ACKs with a shorter RTT are held.
    pub late: Duration,
}

#[derive(Debug, Default)]
struct DelayedFlow {
    /// Sequence numbers, and the earliest send time of the data that begins there.
    sent: VecDeque<(u32, Time)>,
    /// In order of their acknowledgement numbers.
    held: VecDeque<HeldAck>,
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
    /// Sets the usual RTT.
    pub fn set_typical(&mut self, typical: TypicalRtt) {
        self.typical = typical;
    }

    /// Remembers the send time of a packet from the TUN device.
    pub fn on_sent(&mut self, now: Time, packet: &SuperPacket) {
        let (ip, bytes) = (packet.ip(), packet.bytes());
        if self.typical.late.is_zero() || ip.protocol != TCP || ip.is_pure_ack(bytes) {
            return;
        }
        let Some(number) = ip.sequence(bytes) else { return };
        let flow = self.flows.entry(flow::reverse_bucket(ip, bytes, Class::Bulk)).or_default();
        while flow.sent.front().is_some_and(|(_, at)| now.since(*at) > self.typical.late) {
            flow.sent.pop_front();
        }
        let spacing = self.typical.late / SAMPLES;
        let is_next = |(last, at): &(u32, Time)| is_after(number, *last) && now.since(*at) >= spacing;
        if flow.sent.back().is_none_or(is_next) {
            flow.sent.push_back((number, now));
        }
    }

    /// Returns the held ACKs that are delivered before a packet from the peer; `None` if the packet is held itself.
    pub fn on_packet(&mut self, now: Time, ip: &Ip, bytes: &[u8]) -> Option<impl Iterator<Item = Vec<u8>> + use<>> {
        let min_rtt = self.min_rtt_shown(ip, bytes);
        let is_relevant = min_rtt.is_some() || self.held > 0 && ip.protocol == TCP;
        let bucket = is_relevant.then(|| flow::bucket(ip, bytes, Class::Bulk));
        let mut before = Vec::new();
        if let Some(bucket) = bucket
            && let Some((flow, number)) = self.flows.get_mut(&bucket).zip(ip.acknowledged(bytes))
        {
            let covered = flow.held.partition_point(|held| !is_after(held.number, number));
            let due = min_rtt.and_then(|min_rtt| Some(flow.sent_at(number)? + min_rtt));
            let holds = due.filter(|due| *due > now && self.held < MAX_HELD);
            match holds {
                Some(due) => flow.held.insert(covered, HeldAck { due, number, packet: bytes.to_vec() }),
                None => before.extend(flow.held.drain(..covered)),
            }
            trim(&mut flow.held);
            self.due.set(bucket, flow.held.front().map(|first| first.due));
            if holds.is_some() {
                self.held += 1;
                return None;
            }
        }
        self.held -= before.len();
        Some(before.into_iter().map(|held| held.packet))
    }

    /// Returns the minimum RTT that the sender may measure from this packet, if it is one that may be held.
    fn min_rtt_shown(&self, ip: &Ip, bytes: &[u8]) -> Option<Duration> {
        if self.flows.is_empty() || bytes.len() > LONGEST_ACK {
            return None;
        }
        let for_ack = ip.is_pure_ack(bytes).then_some(self.typical.late);
        for_ack.or_else(|| ip.is_syn_ack(bytes).then_some(self.typical.mean))
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

impl DelayedFlow {
    /// Returns the earliest send time of the newest data before `number`.
    fn sent_at(&self, number: u32) -> Option<Time> {
        self.sent.iter().rfind(|(first, _)| is_after(number, *first)).map(|(_, at)| *at)
    }
}

/// Returns true if `number` is after `other` (RFC 9293 section 3.4).
fn is_after(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) as i32 > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Offload;

    const TYPICAL: TypicalRtt = TypicalRtt { mean: Duration::from_millis(40), late: Duration::from_millis(70) };
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(1_000 + ms))
    }

    /// Returns a segment of the sender that begins at `number`, or one of its receiver that acknowledges the bytes
    /// before it.
    fn segment(number: u32, flags: u8, payload: usize, back: bool) -> SuperPacket {
        let len = 40 + payload;
        let mut bytes = vec![0; len];
        bytes[..10].copy_from_slice(&[0x45, 0, 0, len as u8, 0, 0, 0, 0, 64, TCP]);
        let (source, destination, field) = if back { (21, 23, 28) } else { (23, 21, 24) };
        (bytes[source], bytes[destination]) = (1, 2);
        bytes[field..field + 4].copy_from_slice(&number.to_be_bytes());
        (bytes[32], bytes[33]) = (5 << 4, flags);
        SuperPacket::new(bytes, len, Offload::default()).unwrap()
    }

    /// Sends five segments of 100 bytes, ten milliseconds apart.
    fn bench() -> AckDelay {
        let mut ack_delay = AckDelay::default();
        ack_delay.set_typical(TYPICAL);
        (0..5).for_each(|n| ack_delay.on_sent(at(n * 10), &segment(n as u32 * 100, ACK, 100, false)));
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
        ack_delay.on_sent(at(0), &segment(7, SYN, 0, false));
        assert_eq!(deliver(&mut ack_delay, 10, &segment(8, SYN | ACK, 0, true)), []);
        assert_eq!(ack_delay.next_deadline(), Some(at(40)));
    }

    #[test]
    fn nothing_is_held_or_remembered_on_paths_with_low_jitter() {
        let mut ack_delay = AckDelay::default();
        ack_delay.on_sent(at(0), &segment(0, ACK, 100, false));
        assert_eq!(deliver(&mut ack_delay, 1, &segment(100, ACK, 0, true)), [100]);
        assert!(ack_delay.flows.is_empty());
    }

    #[test]
    fn the_number_of_samples_is_bounded_and_old_ones_are_removed() {
        let mut ack_delay = AckDelay::default();
        ack_delay.set_typical(TYPICAL);
        for n in 0..50_000 {
            ack_delay.on_sent(Time::after(Duration::from_micros(n * 10)), &segment(n as u32 * 100, ACK, 100, false));
        }
        let flow = ack_delay.flows.values().next().unwrap();
        assert!(flow.sent.len() as u32 <= SAMPLES + 1, "{}", flow.sent.len());
    }
}
