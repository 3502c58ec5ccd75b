//! A call: small UDP packets at a constant interval, and their one-way delays.

use super::{Host, numbered};
use mpt_proto::time::Time;
use std::{collections::BTreeMap, time::Duration};

/// UDP port of calls at both ends.
pub const PORT: u16 = 12_345;

/// Times and size of a call's packets.
#[derive(Clone, Copy, Debug)]
pub struct CallSpec {
    /// Time of the first packet.
    pub start: Time,
    /// Time after which no packet is sent.
    pub end: Time,
    /// Interval between packets.
    pub interval: Duration,
    /// Length of a packet with its IP header, from 36 bytes.
    pub len: usize,
}

impl CallSpec {
    /// Returns the time at which a packet is due, if the call has that packet.
    pub fn due(&self, number: u64) -> Option<Time> {
        Some(self.start + self.interval * number as u32).filter(|at| *at < self.end)
    }
}

/// Sends a call.
#[derive(Debug)]
pub struct CallSource {
    spec: CallSpec,
    next: u64,
}

impl CallSource {
    /// Creates the sender of a call.
    pub fn new(spec: CallSpec) -> Self {
        Self { spec, next: 0 }
    }
}

impl Host for CallSource {
    fn handle(&mut self, _now: Time, _packet: &[u8]) {}

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        self.spec.due(self.next).filter(|at| *at <= now)?;
        self.next += 1;
        Some(numbered(self.next - 1, self.spec.len))
    }

    fn next_deadline(&self) -> Option<Time> {
        self.spec.due(self.next)
    }
}

/// Receives a call and records the first arrival of each packet.
#[derive(Debug)]
pub struct CallSink {
    spec: CallSpec,
    arrived: BTreeMap<u64, Time>,
}

impl CallSink {
    /// Creates the receiver of a call.
    pub fn new(spec: CallSpec) -> Self {
        Self { spec, arrived: BTreeMap::new() }
    }

    /// Returns the sorted delays from the time at which each packet was due. A packet that did not arrive has the delay
    /// `lost`.
    pub fn delays(&self, lost: Duration) -> Vec<Duration> {
        let mut delays = self.delays_in_order(lost);
        delays.sort();
        delays
    }

    /// Returns the same in the order of the packets.
    pub fn delays_in_order(&self, lost: Duration) -> Vec<Duration> {
        let packets = (0..).map_while(|number| self.spec.due(number).map(|due| (number, due)));
        packets.map(|(number, due)| self.arrived.get(&number).map_or(lost, |at| at.since(due))).collect()
    }
}

impl Host for CallSink {
    fn handle(&mut self, now: Time, packet: &[u8]) {
        let number = packet.get(28..36).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        if let Some(number) = number {
            self.arrived.entry(number).or_insert(now);
        }
    }

    fn poll(&mut self, _now: Time) -> Option<Vec<u8>> {
        None
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_delay_of_each_packet_and_a_substitute_for_lost_ones() {
        let ms = Duration::from_millis;
        let spec = CallSpec { start: Time::START, end: Time::after(ms(50)), interval: ms(20), len: 200 };
        let (mut source, mut sink) = (CallSource::new(spec), CallSink::new(spec));
        let packets: Vec<_> = [0, 20, 40].map(|at| source.poll(Time::after(ms(at))).expect("a packet is due")).into();
        assert!(source.poll(Time::after(ms(60))).is_none() && source.next_deadline().is_none());
        sink.handle(Time::after(ms(9)), &packets[0]);
        sink.handle(Time::after(ms(45)), &packets[2]);
        assert_eq!(sink.delays(ms(1_000)), [ms(5), ms(9), ms(1_000)]);
    }
}
