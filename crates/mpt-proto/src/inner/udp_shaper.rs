//! UDP burst shaping: a token bucket for each UDP flow that reordering releases.
//!
//! When a hole is filled, everything held behind it is in order at once: a megabyte after 150 ms at 60 Mbit/s. TCP
//! absorbs that. A UDP socket has room for 212,992 bytes (`net.core.rmem_default`), and QUIC treats a packet that the
//! socket drops as congestion (RFC 9002 section 7). So a UDP flow gets one burst at once and the rest at a rate that
//! its reader sustains, and never less than twice the rate at which it arrives.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::trim;
use crate::deadline_index::DeadlineIndex;
use crate::time::Time;
use crate::tuning::inner::udp_shaper::{BURST, CHUNK, RATE};

/// The shaped flows of one peer, by flow bucket.
#[derive(Debug, Default)]
pub struct UdpShaper {
    flows: BTreeMap<u16, TokenBucket>,
    /// Packets held, of all flows.
    count: usize,
    /// Bytes allocated for them.
    held_bytes: usize,
    /// Times at which the flows with waiting packets may deliver the next.
    due: DeadlineIndex,
}

/// The packets of one flow that wait for tokens.
#[derive(Debug)]
struct TokenBucket {
    waiting: VecDeque<Vec<u8>>,
    /// Their bytes.
    bytes: u64,
    /// Tokens in bytes, as of the time `at`.
    credit: u64,
    at: Time,
}

impl UdpShaper {
    /// Returns true if a packet may be delivered at once. Otherwise it was queued behind those of its flow that wait.
    pub fn admits(&mut self, now: Time, bucket: u16, packet: &[u8]) -> bool {
        let full = || TokenBucket { waiting: VecDeque::new(), bytes: 0, credit: BURST, at: now };
        let flow = self.flows.entry(bucket).or_insert_with(full);
        flow.refill(now);
        let len = packet.len() as u64;
        if flow.waiting.is_empty() && flow.may_pass(len) {
            flow.credit = flow.credit.saturating_sub(len);
            return true;
        }
        let before = flow.held_bytes();
        flow.waiting.push_back(packet.to_vec());
        flow.bytes += len;
        self.count += 1;
        self.held_bytes = self.held_bytes + flow.held_bytes() - before;
        self.due.set(bucket, flow.opens_at());
        false
    }

    /// Adds twice the `bytes` of a packet that arrived to its flow's tokens. Returns true if the flow is shaped.
    pub fn on_arrival(&mut self, bucket: u16, bytes: usize) -> bool {
        let Some(flow) = self.flows.get_mut(&bucket) else { return false };
        flow.credit = (flow.credit + 2 * bytes as u64).min(BURST);
        true
    }

    /// Delivers the packets of a flow for which there are tokens.
    pub fn release(&mut self, now: Time, bucket: u16, mut deliver: impl FnMut(&[u8])) {
        let Some(flow) = self.flows.get_mut(&bucket) else { return };
        let before = flow.held_bytes();
        flow.refill(now);
        while let Some(packet) = flow.pop() {
            deliver(&packet);
            self.count -= 1;
        }
        trim(&mut flow.waiting);
        self.held_bytes = self.held_bytes + flow.held_bytes() - before;
        self.due.set(bucket, flow.opens_at());
    }

    /// Returns the buckets for which packets wait. They share the peer's budget and drain at [`RATE`] each: a thousand
    /// are empty within 2 ms.
    pub fn waiting(&self) -> Vec<u16> {
        self.due.buckets().collect()
    }

    /// Returns the bytes allocated for packets that wait.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Returns the number of packets that wait.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the next time at which packets can be released.
    pub fn next_deadline(&self) -> Option<Time> {
        self.due.first()
    }

    /// Releases memory.
    pub fn shrink(&mut self) {
        self.flows.retain(|_, flow| !flow.waiting.is_empty());
    }
}

impl TokenBucket {
    fn refill(&mut self, now: Time) {
        self.credit = (self.credit + RATE.bytes_in(now.since(self.at))).min(BURST);
        self.at = now;
    }

    /// A packet longer than the bucket passes when the bucket is full.
    fn may_pass(&self, len: u64) -> bool {
        len.min(BURST) <= self.credit
    }

    /// Takes the next packet, if there are tokens for it.
    fn pop(&mut self) -> Option<Vec<u8>> {
        let len = self.waiting.front().map(|packet| packet.len() as u64).filter(|len| self.may_pass(*len))?;
        self.credit = self.credit.saturating_sub(len);
        self.bytes -= len;
        self.waiting.pop_front()
    }

    /// Returns when the next packets may be delivered, if any wait.
    fn opens_at(&self) -> Option<Time> {
        let first = self.waiting.front()?.len() as u64;
        let needed = self.bytes.min(CHUNK).max(first).min(BURST);
        Some(self.at + RATE.time_for(needed.saturating_sub(self.credit)) + Duration::from_nanos(1))
    }

    /// Returns the bytes allocated for the packets that wait.
    fn held_bytes(&self) -> usize {
        self.bytes as usize + self.waiting.capacity() * size_of::<Vec<u8>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner::{Inner, InnerSink};
    use crate::packet::ChecksumState;
    use crate::packet::ip::UDP;
    use crate::packet::ip::{TCP, Version};
    use crate::packet::tests::packet;
    use crate::packet::{Coalescer, Merge};

    const NOW: Time = Time::after(Duration::from_secs(1));
    const LEN: usize = 1_400;

    /// The borrows of an [`InnerSink`].
    struct Bench {
        inner: Inner,
        delivered: u64,
        tun: Coalescer,
    }

    impl Bench {
        fn new() -> Self {
            Self { inner: Inner::default(), delivered: 0, tun: Coalescer::new(Merge::default()) }
        }

        fn sink(&mut self, now: Time) -> InnerSink<'_> {
            self.inner.sink(now, 5, &mut self.delivered, &mut self.tun)
        }
    }

    /// Delivers `count` packets at once, then follows the deadlines; returns how many went at once, and when the last
    /// did.
    fn burst(protocol: u8, count: usize) -> (u64, Duration) {
        let mut bench = Bench::new();
        let header = if protocol == TCP { 40 } else { 28 };
        let bytes = packet(Version::V4, protocol, LEN - header, 1);
        (0..count).for_each(|_| bench.sink(NOW).deliver(&bytes, ChecksumState::Final));
        let (at_once, mut now) = (bench.delivered, NOW);
        while let Some(at) = bench.inner.udp_shaper.next_deadline() {
            let before = bench.delivered;
            now = at;
            bench.sink(now).release();
            assert!(bench.delivered > before, "no wake-up without work");
        }
        assert_eq!((bench.delivered, bench.inner.udp_shaper.len()), (count as u64, 0));
        (at_once, now.since(NOW))
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_a_rate() {
        assert_eq!(burst(UDP, 23), (23, Duration::ZERO));
        let (at_once, took) = burst(UDP, 750);
        assert_eq!(at_once, 23);
        // 727 packets of 1400 bytes at 128 Mbit/s, minus the rest of the burst.
        assert!((63..=64).contains(&took.as_millis()), "{took:?}");
        assert_eq!(burst(TCP, 750), (750, Duration::ZERO));
    }

    #[test]
    fn a_packet_that_is_longer_than_any_burst_goes_in_its_turn() {
        let mut bench = Bench::new();
        let bytes = packet(Version::V4, UDP, 40_000, 1);
        (0..3).for_each(|_| bench.sink(NOW).deliver(&bytes, ChecksumState::Final));
        assert_eq!((bench.delivered, bench.inner.udp_shaper.len()), (1, 2));
        let mut now = NOW;
        while let Some(next) = bench.inner.udp_shaper.next_deadline() {
            assert!(next > now, "woken for nothing");
            now = next;
            bench.sink(now).release();
        }
        assert_eq!(bench.delivered, 3);
        assert!(now.since(NOW) < Duration::from_millis(6), "40 kB in 2.5 ms at 128 Mbit/s");
    }

    #[test]
    fn what_arrives_in_order_never_waits() {
        let mut bench = Bench::new();
        let bytes = packet(Version::V4, UDP, LEN - 28, 1);
        (0..10_000).for_each(|_| {
            bench.sink(NOW).deliver(&bytes, ChecksumState::Final);
            bench.sink(NOW).on_arrival(LEN);
        });
        assert_eq!((bench.delivered, bench.inner.udp_shaper.len()), (10_000, 0));
    }
}
