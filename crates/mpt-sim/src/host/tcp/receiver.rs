//! The receiver: acknowledges segments and records the readable bytes over time.

use super::segment::{MAX_RANGES, Range, Segment, timestamp};
use crate::host::Host;
use mpt_proto::time::Time;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// The receiving end of a transfer.
#[derive(Debug)]
pub struct TcpSink {
    mtu: usize,
    flow: u16,
    next: u64,
    /// Ranges above `next`, by start.
    ranges_above: BTreeMap<u64, u64>,
    /// Ranges in the order of their last growth; the latest is reported first in SACK blocks.
    recent: VecDeque<u64>,
    duplicate: Option<Range>,
    /// A SYN is to be answered.
    accepts: bool,
    waiting: u32,
    at_once: bool,
    due: Option<Time>,
    /// The last cumulative acknowledgement.
    acked: u64,
    /// The latest timestamp of a segment at or below that (RFC 7323 section 4.3).
    echo: u32,
    /// Readable bytes over time, at least 10 ms apart; no entry without progress.
    pub series: Vec<(Time, u64)>,
}

impl TcpSink {
    /// Creates a receiver for packets of up to `mtu` bytes.
    pub fn new(mtu: usize) -> Self {
        Self {
            mtu,
            flow: 0,
            next: 0,
            ranges_above: BTreeMap::new(),
            recent: VecDeque::new(),
            duplicate: None,
            accepts: false,
            waiting: 0,
            at_once: false,
            due: None,
            acked: 0,
            echo: 0,
            series: vec![(Time::START, 0)],
        }
    }

    /// Makes this the receiver of connection number `flow`.
    pub fn flow(self, flow: u16) -> Self {
        Self { flow, ..self }
    }

    /// Returns the bytes that the application could read so far.
    pub fn bytes(&self) -> u64 {
        self.next * (self.mtu - super::HEADERS) as u64
    }

    fn on_segment(&mut self, now: Time, number: u64) {
        let is_old =
            number < self.next || self.ranges_above.range(..=number).next_back().is_some_and(|(_, end)| number < *end);
        if is_old {
            self.duplicate = Some((number, number + 1));
            self.at_once = true;
            return;
        }
        self.at_once |= number != self.next || !self.ranges_above.is_empty();
        self.waiting += 1;
        self.at_once |= self.waiting >= 2;
        self.due = self.due.or(Some(now + ACK_DELAY));
        self.insert(number);
        if let Some(end) = self.ranges_above.remove(&self.next) {
            self.next = end;
            if self.series.last().is_none_or(|(at, _)| now - *at >= RESOLUTION) {
                self.series.push((now, self.bytes()));
            }
        }
    }

    /// Merges a segment into the adjacent ranges.
    fn insert(&mut self, number: u64) {
        let (mut from, mut to) = (number, number + 1);
        if let Some((start, _)) = self.ranges_above.range(..=number).next_back().filter(|(_, end)| **end == number) {
            from = *start;
        }
        if let Some(end) = self.ranges_above.remove(&to) {
            to = end;
        }
        self.ranges_above.insert(from, to);
        self.recent.push_front(from);
        self.recent.truncate(4 * MAX_RANGES);
    }

    fn ranges(&mut self) -> Vec<Range> {
        let mut ranges: Vec<Range> = self.duplicate.take().into_iter().collect();
        for from in &self.recent {
            let range = self.ranges_above.range(..=*from).next_back().map(|(from, to)| (*from, *to));
            if let Some(range) = range.filter(|range| range.1 > *from && !ranges.contains(range)) {
                ranges.push(range);
            }
        }
        ranges.truncate(MAX_RANGES);
        ranges
    }
}

impl Host for TcpSink {
    fn handle(&mut self, now: Time, packet: &[u8]) {
        match Segment::decode(packet, self.mtu, self.next) {
            Some(Segment::Data(number)) => {
                if number <= self.acked {
                    self.echo = self.echo.max(timestamp(packet));
                }
                self.on_segment(now, number);
            }
            Some(Segment::Syn) => self.accepts = true,
            Some(Segment::SynAck | Segment::Ack(..)) | None => {}
        }
    }

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        if std::mem::take(&mut self.accepts) {
            return Some(Segment::SynAck.encode(self.flow, self.mtu, now, self.echo));
        }
        if !self.at_once && self.due.is_none_or(|due| due > now) {
            return None;
        }
        (self.at_once, self.due, self.waiting, self.acked) = (false, None, 0, self.next);
        Some(Segment::Ack(self.next, self.ranges()).encode(self.flow, self.mtu, now, self.echo))
    }

    fn next_deadline(&self) -> Option<Time> {
        self.due
    }
}

/// Minimum delay of an ACK in Linux (TCP_DELACK_MIN).
const ACK_DELAY: Duration = Duration::from_millis(40);

/// Minimum distance of the entries of the series.
const RESOLUTION: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn acks(sink: &mut TcpSink, numbers: &[u64]) -> Vec<Segment> {
        let mut acks = Vec::new();
        for number in numbers {
            sink.handle(Time::START, &Segment::Data(*number).encode(0, 1_400, Time::START, 0));
            acks.extend(sink.poll(Time::START).and_then(|packet| Segment::decode(&packet, 1_400, 0)));
        }
        acks
    }

    #[test]
    fn every_second_segment_is_acknowledged_and_a_gap_immediately() {
        let mut sink = TcpSink::new(1_400);
        assert_eq!(acks(&mut sink, &[0, 1, 2]), [Segment::Ack(2, vec![])]);
        assert_eq!(acks(&mut sink, &[4]), [Segment::Ack(3, vec![(4, 5)])]);
        assert_eq!(acks(&mut sink, &[6, 5]), [Segment::Ack(3, vec![(6, 7), (4, 5)]), Segment::Ack(3, vec![(4, 7)])]);
        assert_eq!(acks(&mut sink, &[3]), [Segment::Ack(7, vec![])]);
        assert_eq!(acks(&mut sink, &[3]), [Segment::Ack(7, vec![(3, 4)])], "a duplicate is reported");
        assert_eq!(sink.bytes(), 7 * (1_400 - 52));
    }

    #[test]
    fn a_single_segment_is_acknowledged_after_a_delay() {
        let mut sink = TcpSink::new(1_400);
        assert_eq!(acks(&mut sink, &[0]), []);
        let due = sink.next_deadline().unwrap();
        assert_eq!(due, Time::START + ACK_DELAY);
        assert!(sink.poll(due).is_some() && sink.poll(due).is_none());
    }
}
