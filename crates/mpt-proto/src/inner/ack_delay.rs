//! Round trips that were lucky, and are not shown.
//!
//! Over paths with jitter a flow that sends little sees the delay of single packets, and one that sends much that of the slowest of many,
//! because order is restored. So the shortest round trip that its sender ever sees, and takes for that of the empty path, is a lucky one
//! and may be a third of what it will be. BBR then has two of the shortest in flight (draft-ietf-ccwg-bbr section 5.6.4.2), which is less
//! than one; and HyStart takes the rest for a queue (RFC 9406 section 4.2).
//!
//! An ACK that comes back sooner than what is as late as usual waits here until that would have come. Only what says nothing but how
//! far the data has come is kept, so nobody but the sender of a flow notices; a packet that carries more does not wait, and an ACK that
//! says no more than it goes before it. A program waits for the answer to its SYN: that is kept no longer than
//! until the mean.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::LONGEST_ACK;
use crate::classify::Class;
use crate::flow;
use crate::packet::SuperPacket;
use crate::packet::ip::{Ip, TCP};
use crate::time::Time;
use crate::tuning::inner::ack_delay::SAMPLES;

/// When what is acknowledged was sent, and the ACKs that came too soon, by the bucket of the ACKs.
#[derive(Debug, Default)]
pub struct AckDelay {
    flows: BTreeMap<u16, DelayedFlow>,
    usual: TypicalRtt,
    /// How many wait.
    kept: usize,
}

/// What is usual among round trips; zero where jitter does not matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypicalRtt {
    pub mean: Duration,
    /// The mean and a mean deviation. What comes sooner was lucky.
    pub late: Duration,
}

#[derive(Debug, Default)]
struct DelayedFlow {
    /// Sequence numbers, and when what begins there was sent at the earliest.
    sent: VecDeque<(u32, Time)>,
    /// By what they acknowledge.
    kept: VecDeque<HeldAck>,
}

/// An ACK that came too soon.
#[derive(Debug)]
struct HeldAck {
    due: Time,
    /// What it acknowledges.
    number: u32,
    packet: Vec<u8>,
}

impl AckDelay {
    /// From now on round trips are to seem like this.
    pub fn set_typical(&mut self, usual: TypicalRtt) {
        self.usual = usual;
    }

    /// Sees what comes from inside.
    pub fn on_sent(&mut self, now: Time, packet: &SuperPacket) {
        let (ip, bytes) = (packet.ip(), packet.bytes());
        if self.usual.late.is_zero() || ip.protocol != TCP || ip.is_pure_ack(bytes) {
            return;
        }
        let Some(number) = ip.sequence(bytes) else { return };
        let flow = self.flows.entry(flow::reverse_bucket(ip, bytes, Class::Bulk)).or_default();
        while flow.sent.front().is_some_and(|(_, at)| now.since(*at) > self.usual.late) {
            flow.sent.pop_front();
        }
        let spacing = self.usual.late / SAMPLES;
        let is_next = |(last, at): &(u32, Time)| is_after(number, *last) && now.since(*at) >= spacing;
        if flow.sent.back().is_none_or(is_next) {
            flow.sent.push_back((number, now));
        }
    }

    /// What is to be delivered now that this packet has come, before it; none if it waits itself.
    pub fn on_packet(&mut self, now: Time, ip: &Ip, bytes: &[u8]) -> Option<impl Iterator<Item = Vec<u8>> + use<>> {
        let least = self.min_rtt_shown(ip, bytes);
        let concerned = least.is_some() || self.kept > 0 && ip.protocol == TCP;
        let bucket = concerned.then(|| flow::bucket(ip, bytes, Class::Bulk));
        let mut before = Vec::new();
        if let Some((flow, number)) = bucket.and_then(|bucket| self.flows.get_mut(&bucket)).zip(ip.acknowledged(bytes))
        {
            let said = flow.kept.partition_point(|kept| !is_after(kept.number, number));
            let due = least.and_then(|least| Some(flow.sent_at(number)? + least));
            if let Some(due) = due.filter(|due| *due > now) {
                flow.kept.insert(said, HeldAck { due, number, packet: bytes.to_vec() });
                self.kept += 1;
                return None;
            }
            before.extend(flow.kept.drain(..said));
        }
        self.kept -= before.len();
        Some(before.into_iter().map(|kept| kept.packet))
    }

    /// How long the round trip is to seem at least that this packet ends, if it is one that may wait.
    fn min_rtt_shown(&self, ip: &Ip, bytes: &[u8]) -> Option<Duration> {
        if self.flows.is_empty() || bytes.len() > LONGEST_ACK {
            return None;
        }
        let of_ack = ip.is_pure_ack(bytes).then_some(self.usual.late);
        of_ack.or_else(|| ip.is_syn_ack(bytes).then_some(self.usual.mean))
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.kept
    }

    /// When the first of them may go.
    pub fn next_deadline(&self) -> Option<Time> {
        let first = || self.flows.values().filter_map(|flow| Some(flow.kept.front()?.due)).min();
        if self.kept == 0 { None } else { first() }
    }

    /// Takes out what may go by now.
    pub fn release(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut released = Vec::new();
        if self.kept > 0 {
            for flow in self.flows.values_mut() {
                let due = flow.kept.iter().take_while(|kept| kept.due <= now).count();
                released.extend(flow.kept.drain(..due).map(|kept| kept.packet));
            }
            self.kept -= released.len();
        }
        released
    }

    /// Gives memory back.
    pub fn shrink(&mut self) {
        self.flows.retain(|_, flow| !flow.kept.is_empty());
    }
}

impl DelayedFlow {
    /// When the newest of what is before `number` was sent, at the earliest.
    fn sent_at(&self, number: u32) -> Option<Time> {
        self.sent.iter().rfind(|(first, _)| is_after(number, *first)).map(|(_, at)| *at)
    }
}

/// Whether `number` is after `other` (RFC 9293 section 3.4).
fn is_after(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) as i32 > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Offload;

    const USUAL: TypicalRtt = TypicalRtt { mean: Duration::from_millis(40), late: Duration::from_millis(70) };
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(1_000 + ms))
    }

    /// A segment of our sender's that begins at `number`, or one of its peer's that acknowledges what is before it.
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

    /// Data of 100 bytes that begins at 0, 100 and so on has left, ten milliseconds apart.
    fn bench() -> AckDelay {
        let mut ack_delay = AckDelay::default();
        ack_delay.set_typical(USUAL);
        (0..5).for_each(|n| ack_delay.on_sent(at(n * 10), &segment(n as u32 * 100, ACK, 100, false)));
        ack_delay
    }

    /// What is delivered when this packet of the peer's comes; itself as the last.
    fn come(ack_delay: &mut AckDelay, ms: u64, packet: &SuperPacket) -> Vec<u32> {
        let number = packet.ip().acknowledged(packet.bytes()).unwrap();
        let before = ack_delay.on_packet(at(ms), packet.ip(), packet.bytes());
        before.into_iter().flat_map(|before| before.map(numbered).chain([number])).collect()
    }

    fn numbered(packet: Vec<u8>) -> u32 {
        Ip::parse(&packet).unwrap().acknowledged(&packet).unwrap()
    }

    #[test]
    fn an_ack_that_comes_too_soon_waits() {
        let mut ack_delay = bench();
        assert_eq!(come(&mut ack_delay, 25, &segment(100, ACK, 0, true)), []);
        assert_eq!((ack_delay.len(), ack_delay.next_deadline()), (1, Some(at(70))));
        assert!(ack_delay.release(at(69)).is_empty());
        assert_eq!(ack_delay.release(at(70)).into_iter().map(numbered).collect::<Vec<_>>(), [100]);
        assert_eq!((ack_delay.len(), ack_delay.next_deadline()), (0, None));
        assert_eq!(come(&mut ack_delay, 80, &segment(200, ACK, 0, true)), [200], "sent 70 ms ago");
    }

    #[test]
    fn what_was_sent_last_tells_how_soon_an_ack_is() {
        let mut ack_delay = bench();
        assert_eq!(come(&mut ack_delay, 75, &segment(101, ACK, 0, true)), []);
        assert_eq!(
            ack_delay.next_deadline(),
            Some(at(80)),
            "a byte of the second packet, which left 10 ms after the first"
        );
        assert_eq!(come(&mut ack_delay, 75, &segment(100, ACK, 0, true)), [100], "and an older one overtakes it");
        assert_eq!(ack_delay.len(), 1);
    }

    #[test]
    fn data_does_not_wait_and_what_says_no_more_goes_before_it() {
        let mut ack_delay = bench();
        for number in [300, 100, 200] {
            assert_eq!(come(&mut ack_delay, 50, &segment(number, ACK, 0, true)), []);
        }
        assert_eq!(come(&mut ack_delay, 60, &segment(200, ACK, 9, true)), [100, 200, 200]);
        assert_eq!((ack_delay.len(), ack_delay.next_deadline()), (1, Some(at(90))));
    }

    #[test]
    fn the_answer_to_a_syn_comes_no_sooner_than_the_mean() {
        let mut ack_delay = AckDelay::default();
        ack_delay.set_typical(USUAL);
        ack_delay.on_sent(at(0), &segment(7, SYN, 0, false));
        assert_eq!(come(&mut ack_delay, 10, &segment(8, SYN | ACK, 0, true)), []);
        assert_eq!(ack_delay.next_deadline(), Some(at(40)));
    }

    #[test]
    fn where_paths_keep_time_nothing_waits_or_is_remembered() {
        let mut ack_delay = AckDelay::default();
        ack_delay.on_sent(at(0), &segment(0, ACK, 100, false));
        assert_eq!(come(&mut ack_delay, 1, &segment(100, ACK, 0, true)), [100]);
        assert!(ack_delay.flows.is_empty());
    }

    #[test]
    fn no_more_than_some_moments_are_remembered_and_what_is_past_is_forgotten() {
        let mut ack_delay = AckDelay::default();
        ack_delay.set_typical(USUAL);
        for n in 0..50_000 {
            ack_delay.on_sent(Time::after(Duration::from_micros(n * 10)), &segment(n as u32 * 100, ACK, 100, false));
        }
        let flow = ack_delay.flows.values().next().unwrap();
        assert!(flow.sent.len() as u32 <= SAMPLES + 1, "{}", flow.sent.len());
    }
}
