//! What stands at the ends of the tunnel: it gives packets to the TUN device and takes packets from it.

pub mod tcp;

use std::any::Any;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use mpt_proto::packet::checksum;
use mpt_proto::time::{Rate, Time};

/// A host behind an endpoint.
pub trait Host: Any {
    /// Takes a packet from the TUN device.
    fn handle(&mut self, now: Time, packet: &[u8]);
    /// The next packet for the TUN device, if there is one.
    fn poll(&mut self, now: Time) -> Option<Vec<u8>>;
    /// When [`Self::poll`] may have something to give without having taken anything.
    fn next_deadline(&self) -> Option<Time>;
    /// How many of its packets may wait in the TUN device before it holds the next one back, as TCP does.
    fn patience(&self) -> usize {
        usize::MAX
    }
}

/// Sends numbered UDP packets at a steady rate.
#[derive(Debug)]
pub struct Source {
    next: u64,
    len: usize,
    interval: Duration,
    due: Time,
    until: Time,
}

impl Source {
    /// Sends packets of `len` bytes, 36 to 1500, IP header included, at `rate`, from the start until `until`.
    pub fn new(rate: Rate, len: usize, until: Duration) -> Self {
        Self { next: 0, len, interval: rate.time_for(len as u64), due: Time::START, until: Time::after(until) }
    }
}

impl Source {
    /// How many packets it has sent.
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

/// Takes numbered packets and remembers in which order and when they came.
#[derive(Debug, Default)]
pub struct Sink {
    /// The numbers, as they came.
    pub numbers: Vec<u64>,
    /// When the first and the last came.
    pub span: Option<(Time, Time)>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// The longest time without one.
    pub longest_gap: Duration,
    /// When it ended.
    pub gap_ended: Time,
}

impl Sink {
    /// How often each number came, where it was not once.
    pub fn repeated(&self) -> Vec<(u64, usize)> {
        let mut counts = BTreeMap::new();
        self.numbers.iter().for_each(|number| *counts.entry(*number).or_insert(0) += 1);
        counts.into_iter().filter(|(_, count)| *count > 1).collect()
    }

    /// How many came after one with a greater number.
    pub fn overtaken(&self) -> u64 {
        let mut greatest = None;
        self.numbers
            .iter()
            .filter(|number| greatest.replace((**number).max(greatest.unwrap_or(0))).is_some_and(|g| **number < g))
            .count() as u64
    }

    /// Bytes over the time between the first and the last.
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

/// A valid UDP packet from 10.77.0.1 to 10.77.0.2 that carries `number`.
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
