//! Hosts at the ends of the tunnel: they exchange packets with the TUN device.

pub mod call;
pub mod delayed;
pub mod merged;
pub mod pages;
pub mod tcp;

use std::any::Any;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use mpt_proto::packet::checksum;
use mpt_proto::time::{Rate, Time};

/// A host behind an endpoint.
pub trait Host: Any {
    /// Handles a packet from the TUN device.
    fn handle(&mut self, now: Time, packet: &[u8]);
    /// Returns the next packet for the TUN device, if any.
    fn poll(&mut self, now: Time) -> Option<Vec<u8>>;
    /// Returns the time at which [`Self::poll`] may return a packet although no packet has arrived.
    fn next_deadline(&self) -> Option<Time>;
    /// Returns how many of the host's packets may wait in the TUN device before it stops sending (TCP small queues).
    fn tun_limit(&self) -> usize {
        usize::MAX
    }
}

/// Sends numbered UDP packets at a constant rate.
#[derive(Debug)]
pub struct Source {
    next: u64,
    len: usize,
    interval: Duration,
    due: Time,
    until: Time,
}

impl Source {
    /// Sends packets of `len` bytes (36 to 1500, including the IP header) at `rate` from the start until `until`.
    pub fn new(rate: Rate, len: usize, until: Duration) -> Self {
        Self { next: 0, len, interval: rate.time_for(len as u64), due: Time::START, until: Time::after(until) }
    }
}

impl Source {
    /// Returns the number of packets sent.
    pub fn sent(&self) -> u64 {
        self.next
    }
}

impl Host for Source {
    fn handle(&mut self, _now: Time, _packet: &[u8]) {}

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        if now < self.due || self.due >= self.until {
            return None;
        }
        self.due += self.interval;
        let packet = numbered(self.next, self.len);
        self.next += 1;
        Some(packet)
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(self.due).filter(|due| *due < self.until)
    }
}

/// Receives numbered packets and records their order and times.
#[derive(Debug, Default)]
pub struct Sink {
    /// Numbers in order of arrival.
    pub numbers: Vec<u64>,
    /// Arrival times of the first and the last packet.
    pub span: Option<(Time, Time)>,
    /// Bytes of all packets.
    pub bytes: u64,
    /// Longest time without a packet.
    pub longest_gap: Duration,
    /// End of the longest gap.
    pub gap_ended: Time,
}

impl Sink {
    /// Returns the numbers that arrived more than once, with their counts.
    pub fn duplicates(&self) -> Vec<(u64, usize)> {
        let mut counts = BTreeMap::new();
        self.numbers.iter().for_each(|number| *counts.entry(*number).or_insert(0) += 1);
        counts.into_iter().filter(|(_, count)| *count > 1).collect()
    }

    /// Returns the number of packets that arrived after one with a greater number.
    pub fn reordered(&self) -> u64 {
        let mut greatest = None;
        self.numbers
            .iter()
            .filter(|number| greatest.replace((**number).max(greatest.unwrap_or(0))).is_some_and(|g| **number < g))
            .count() as u64
    }

    /// Returns the bytes divided by the time between the first and the last packet.
    pub fn goodput(&self) -> Rate {
        self.span.map_or(Rate::ZERO, |(first, last)| Rate::of(self.bytes, last - first))
    }
}

impl Host for Sink {
    fn handle(&mut self, now: Time, packet: &[u8]) {
        let number = packet.get(28..36).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        self.numbers.extend(number);
        self.bytes += packet.len() as u64;
        let (first, last) = self.span.unwrap_or((now, now));
        if now - last > self.longest_gap {
            (self.longest_gap, self.gap_ended) = (now - last, now);
        }
        self.span = Some((first, now));
    }

    fn poll(&mut self, _now: Time) -> Option<Vec<u8>> {
        None
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }
}

/// Returns a valid UDP packet from 10.77.0.1 to 10.77.0.2 that carries `number`.
pub fn numbered(number: u64, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[..10].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, 17]);
    packet[12..16].copy_from_slice(&Ipv4Addr::new(10, 77, 0, 1).octets());
    packet[16..20].copy_from_slice(&Ipv4Addr::new(10, 77, 0, 2).octets());
    let sum = checksum::checksum(0, &packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..24].copy_from_slice(&[0x30, 0x39, 0x30, 0x39]);
    packet[24..26].copy_from_slice(&((len - 20) as u16).to_be_bytes());
    packet[28..36].copy_from_slice(&number.to_be_bytes());
    packet
}
