//! Bursts of UDP, smoothed.
//!
//! When a hole is filled, all that waited behind it is in order at once: a megabyte, after 150 ms at 60 Mbit/s. A TCP takes that in, but a
//! UDP socket has room for 212,992 bytes (`net.core.rmem_default`), and what it drops QUIC takes for congestion (RFC 9002 section 7).
//! So a UDP flow gets a burst at once and the rest at a rate that its reader keeps up with, and never more slowly than it arrives.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::super::inbound;
use super::ack_delay::AckDelay;
use super::ack_filter::AckFilter;
use crate::packet::Coalescer;
use crate::packet::ip::{Ip, UDP};
use crate::time::{Rate, Time};

/// What is in order and waits for a moment, by flow bucket.
#[derive(Debug, Default)]
pub(super) struct UdpShaper {
    flows: BTreeMap<u16, TokenBucket>,
    /// Packets that wait, of all flows.
    count: usize,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct TokenBucket {
    waiting: VecDeque<Vec<u8>>,
    /// Of these.
    bytes: u64,
    /// Bytes that may go, as of the time `at`.
    credit: u64,
    at: Time,
}

/// The way out for the packets of one bucket.
pub(super) struct InnerSink<'a> {
    pub(super) now: Time,
    pub(super) bucket: u16,
    pub(super) udp_shaper: &'a mut UdpShaper,
    pub(super) ack_filter: &'a mut AckFilter,
    pub(super) ack_delay: &'a mut AckDelay,
    pub(super) delivered: &'a mut u64,
    pub(super) tun: &'a mut Coalescer,
}

/// An eighth of what a socket has room for, which is what it has room for when it counts a page for each packet.
const BURST: u64 = 32 << 10;
/// What a busy program reads.
const RATE: Rate = Rate::from_bits(128_000_000);
/// What is worth a wake-up: a millisecond of that.
const CHUNK: u64 = 16 << 10;
/// Buffers kept for reuse.
const SPARE: usize = 64;

impl InnerSink<'_> {
    /// Delivers a packet, at once or in its turn.
    pub(super) fn deliver(&mut self, packet: &[u8]) {
        let ip = Ip::parse(packet).expect("checked on arrival");
        if ip.protocol == UDP && !self.udp_shaper.admits(self.now, self.bucket, packet) {
            return;
        }
        let Some(before) = self.ack_delay.on_packet(self.now, &ip, packet) else { return };
        before.for_each(|earlier| inbound::deliver(&earlier, self.delivered, self.tun));
        self.ack_filter.on_data(self.now, &ip, packet);
        self.tun.push(&ip, packet);
        *self.delivered += 1;
    }

    /// So many bytes of the flow have arrived: twice as many may leave.
    pub(super) fn on_arrival(&mut self, bytes: usize) {
        if let Some(outlet) = self.udp_shaper.flows.get_mut(&self.bucket) {
            outlet.credit = (outlet.credit + 2 * bytes as u64).min(BURST);
            self.release();
        }
    }

    /// Delivers what may go by now.
    pub(super) fn release(&mut self) {
        let Some(outlet) = self.udp_shaper.flows.get_mut(&self.bucket) else { return };
        outlet.refill(self.now);
        while let Some(mut packet) = outlet.next() {
            self.tun.push(&Ip::parse(&packet).expect("checked on arrival"), &packet);
            *self.delivered += 1;
            self.udp_shaper.count -= 1;
            if self.udp_shaper.spare.len() < SPARE {
                packet.clear();
                self.udp_shaper.spare.push(packet);
            }
        }
    }
}

impl UdpShaper {
    /// The buckets for which packets wait.
    pub(super) fn buckets(&self) -> Vec<u16> {
        self.waiting().map(|(bucket, _)| *bucket).collect()
    }

    /// How many packets wait.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// When some of them may go.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.waiting().map(|(_, outlet)| outlet.opens_at()).min()
    }

    /// Gives memory back.
    pub(super) fn shrink(&mut self) {
        self.flows.retain(|_, outlet| !outlet.waiting.is_empty());
        self.spare = Vec::new();
    }

    /// Mostly there are none, and nobody looks through all flows to find that out.
    fn waiting(&self) -> impl Iterator<Item = (&u16, &TokenBucket)> {
        let flows = if self.count > 0 { Some(&self.flows) } else { None };
        flows.into_iter().flatten().filter(|(_, outlet)| !outlet.waiting.is_empty())
    }

    /// Whether a packet may go at once; otherwise it has been put behind those that wait.
    fn admits(&mut self, now: Time, bucket: u16, packet: &[u8]) -> bool {
        let fresh = || TokenBucket { waiting: VecDeque::new(), bytes: 0, credit: BURST, at: now };
        let outlet = self.flows.entry(bucket).or_insert_with(fresh);
        outlet.refill(now);
        let len = packet.len() as u64;
        if outlet.waiting.is_empty() && outlet.may_pass(len) {
            outlet.credit = outlet.credit.saturating_sub(len);
            return true;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(packet);
        outlet.waiting.push_back(copy);
        outlet.bytes += len;
        self.count += 1;
        false
    }
}

impl TokenBucket {
    fn refill(&mut self, now: Time) {
        self.credit = (self.credit + RATE.bytes_in(now.since(self.at))).min(BURST);
        self.at = now;
    }

    /// One that is longer than any credit goes when that is full.
    fn may_pass(&self, len: u64) -> bool {
        len.min(BURST) <= self.credit
    }

    /// Takes the next packet out, if there is credit for it.
    fn next(&mut self) -> Option<Vec<u8>> {
        let len = self.waiting.front().map(|packet| packet.len() as u64).filter(|len| self.may_pass(*len))?;
        self.credit = self.credit.saturating_sub(len);
        self.bytes -= len;
        self.waiting.pop_front()
    }

    fn opens_at(&self) -> Time {
        let first = self.waiting.front().map_or(0, |packet| packet.len() as u64);
        let wanted = self.bytes.min(CHUNK).max(first).min(BURST);
        self.at + RATE.time_for(wanted.saturating_sub(self.credit)) + Duration::from_nanos(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Merge;
    use crate::packet::ip::{TCP, Version};
    use crate::packet::tests::packet;

    const NOW: Time = Time::after(Duration::from_secs(1));
    const LEN: usize = 1_400;

    /// What an [`Exit`] borrows.
    struct Bench {
        udp_shaper: UdpShaper,
        ack_filter: AckFilter,
        ack_delay: AckDelay,
        delivered: u64,
        tun: Coalescer,
    }

    impl Bench {
        fn new() -> Self {
            let tun = Coalescer::new(Merge::default());
            let (udp_shaper, ack_filter, ack_delay) = Default::default();
            Self { udp_shaper, ack_filter, ack_delay, delivered: 0, tun }
        }

        fn exit(&mut self, now: Time) -> InnerSink<'_> {
            let Self { udp_shaper, ack_filter, ack_delay, delivered, tun } = self;
            InnerSink { now, bucket: 5, udp_shaper, ack_filter, ack_delay, delivered, tun }
        }
    }

    /// Delivers `count` packets at once, then follows the deadlines; returns how many went at once, and when the last did.
    fn burst(protocol: u8, count: usize) -> (u64, Duration) {
        let mut bench = Bench::new();
        let header = if protocol == TCP { 40 } else { 28 };
        let bytes = packet(Version::V4, protocol, LEN - header, 1);
        (0..count).for_each(|_| bench.exit(NOW).deliver(&bytes));
        let (at_once, mut now) = (bench.delivered, NOW);
        while let Some(at) = bench.udp_shaper.next_deadline() {
            let before = bench.delivered;
            now = at;
            bench.exit(now).release();
            assert!(bench.delivered > before, "no wake-up without work");
        }
        assert_eq!((bench.delivered, bench.udp_shaper.len()), (count as u64, 0));
        (at_once, now.since(NOW))
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_a_rate() {
        assert_eq!(burst(UDP, 23), (23, Duration::ZERO));
        let (at_once, took) = burst(UDP, 750);
        assert_eq!(at_once, 23);
        // 727 packets of 1400 bytes at 128 Mbit/s, less what was left of the burst.
        assert!((63..=64).contains(&took.as_millis()), "{took:?}");
        assert_eq!(burst(TCP, 750), (750, Duration::ZERO));
    }

    #[test]
    fn a_packet_that_is_longer_than_any_burst_goes_in_its_turn() {
        let mut bench = Bench::new();
        let bytes = packet(Version::V4, UDP, 40_000, 1);
        (0..3).for_each(|_| bench.exit(NOW).deliver(&bytes));
        assert_eq!((bench.delivered, bench.udp_shaper.len()), (1, 2));
        let mut now = NOW;
        while let Some(next) = bench.udp_shaper.next_deadline() {
            assert!(next > now, "woken for nothing");
            now = next;
            bench.exit(now).release();
        }
        assert_eq!(bench.delivered, 3);
        assert!(now.since(NOW) < Duration::from_millis(6), "40 kB in 2.5 ms at 128 Mbit/s");
    }

    #[test]
    fn what_arrives_in_order_never_waits() {
        let mut bench = Bench::new();
        let bytes = packet(Version::V4, UDP, LEN - 28, 1);
        (0..10_000).for_each(|_| {
            bench.exit(NOW).deliver(&bytes);
            bench.exit(NOW).on_arrival(LEN);
        });
        assert_eq!((bench.delivered, bench.udp_shaper.len()), (10_000, 0));
    }
}
