//! The sender: sends what the window allows and retransmits losses.

use super::{
    bbr::{AckSample, Bbr},
    cubic::Cubic,
    delivery_rate::{DeliveryRate, SentState},
    segment::{Range, Segment, echoed_timestamp, receive_window, timestamp},
};
use crate::host::Host;
use mpt_proto::time::Time;
use std::{collections::VecDeque, time::Duration};

/// The sender of a transfer, by default with unlimited data.
#[derive(Debug)]
pub struct TcpSource {
    start: Time,
    /// Time from which on the application has no more data.
    end: Option<Time>,
    mtu: usize,
    flow: u16,
    /// Number of segments to send.
    limit: u64,
    /// The first unacknowledged segment.
    first: u64,
    /// Segments from `first` on.
    sent: VecDeque<SentSegment>,
    in_flight: usize,
    lost: usize,
    cubic: Cubic,
    /// BBR, which then controls the flow in place of CUBIC.
    bbr: Option<Bbr>,
    deliveries: DeliveryRate,
    /// The time of the next segment, and of the last call of [`Host::poll`].
    pace: Time,
    polled: Time,
    /// The window before the last loss, and the number of retransmissions that may be spurious.
    undo: Option<(Cubic, u32)>,
    /// Losses below this belong to the last reduction.
    recovery: u64,
    /// True if the last reduction was due to a timeout, after which the window may grow during recovery.
    timed_out: bool,
    rtt: RttEstimator,
    /// The latest send time among the delivered segments.
    newest: Time,
    timeout: Option<Time>,
    backoff: u32,
    /// Time at which a delayed segment is declared lost.
    reordering_deadline: Option<Time>,
    /// Reordering window in quarters of the minimum RTT.
    reordering_quarters: u32,
    reordered: bool,
    /// The highest segment that was acknowledged out of order.
    highest: u64,
    /// Segment threshold of loss detection before RACK; none with RACK.
    dup_thresh: Option<usize>,
    /// The latest timestamp of the peer.
    echo: u32,
    /// The SYN was sent.
    begun: bool,
    /// The data waits for the answer to the SYN.
    waits: bool,
    /// The first segment beyond the receive window.
    window_end: u64,
    /// Segments in flight when the receive window stopped the sender, if it did last.
    window_limited: Option<usize>,
    /// Reductions of the window: after losses, after timeouts, and undone ones.
    reductions: [u32; 3],
}

#[derive(Clone, Copy, Debug)]
struct SentSegment {
    at: Time,
    retransmitted: bool,
    state: SegmentState,
    deliveries: SentState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SegmentState {
    InFlight,
    Delivered,
    Lost,
}

/// RTT estimation (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
struct RttEstimator {
    smoothed: Option<Duration>,
    variation: Duration,
    min: Duration,
    latest: Duration,
    count: u64,
}

impl TcpSource {
    /// Creates a sender of packets of `mtu` bytes.
    pub fn new(mtu: usize) -> Self {
        Self {
            start: Time::START,
            end: None,
            mtu,
            flow: 0,
            limit: u64::MAX,
            first: 0,
            sent: VecDeque::new(),
            in_flight: 0,
            lost: 0,
            cubic: Cubic::new(),
            bbr: None,
            deliveries: DeliveryRate::default(),
            pace: Time::START,
            polled: Time::START,
            undo: None,
            recovery: 0,
            timed_out: false,
            rtt: RttEstimator::default(),
            newest: Time::START,
            timeout: None,
            backoff: 0,
            reordering_deadline: None,
            reordering_quarters: 1,
            reordered: false,
            highest: 0,
            dup_thresh: None,
            echo: 0,
            begun: false,
            waits: false,
            window_end: u64::MAX,
            window_limited: None,
            reductions: [0; 3],
        }
    }

    /// Detects losses as Linux did before RACK: by the number of segments that overtook one (RFC 6675), with a
    /// threshold above the highest reordering seen; a lost retransmission waits for the timeout.
    pub fn before_rack(self) -> Self {
        Self { dup_thresh: Some(DUP_THRESH), ..self }
    }

    /// Selects BBR in place of CUBIC.
    pub fn with_bbr(self) -> Self {
        Self { bbr: Some(Bbr::new()), ..self }
    }

    /// Makes this the sender of connection number `flow`.
    pub fn flow(self, flow: u16) -> Self {
        Self { flow, ..self }
    }

    /// Lets the data wait for the answer to the SYN.
    pub fn after_handshake(self) -> Self {
        Self { waits: true, ..self }
    }

    /// Limits the transfer to `bytes`, rounded up to full segments.
    pub fn limited(self, bytes: u64) -> Self {
        Self { limit: bytes.div_ceil((self.mtu - super::HEADERS) as u64), ..self }
    }

    /// Delays the start until `start`.
    pub fn starting_at(self, start: Time) -> Self {
        Self { start, ..self }
    }

    /// Ends the data at `end`; lost segments are still retransmitted.
    pub fn ending_at(self, end: Time) -> Self {
        Self { end: Some(end), ..self }
    }

    /// Returns the congestion window in segments.
    pub fn window(&self) -> f64 {
        self.bbr.as_ref().map_or(self.cubic.window, |bbr| bbr.window)
    }

    /// Returns the number of reductions of the window: after losses, after timeouts, and undone ones.
    pub fn reductions(&self) -> [u32; 3] {
        self.reductions
    }

    /// Returns the smoothed RTT.
    pub fn round_trip(&self) -> Option<Duration> {
        self.rtt.smoothed
    }

    fn on_ack(&mut self, now: Time, next: u64, ranges: &[Range], echoed: u32) {
        let duplicate = ranges.first().filter(|range| range.1 <= next);
        if duplicate.is_some() {
            self.on_spurious_retransmission();
        }
        let (mut arrived, measured) = (0, self.rtt.count);
        self.deliveries.sample = None;
        for (from, to) in ranges.iter().filter(|range| range.0 >= next) {
            arrived += (*from..*to).filter(|number| self.mark_delivered(now, *number)).count();
        }
        let advances = self.first < next;
        while self.first < next && !self.sent.is_empty() {
            arrived += usize::from(self.mark_delivered(now, self.first));
            self.sent.pop_front();
            self.first += 1;
        }
        if arrived == 0 {
            return;
        }
        // A retransmitted segment gives no RTT sample by itself (Karn), but its timestamp does (RFC 7323 section 4.1).
        if self.rtt.count == measured && advances && echoed > 0 {
            self.rtt.on_sample(now - (Time::START + Duration::from_millis(echoed.into())));
        }
        self.backoff = 0;
        self.timeout = (!self.sent.is_empty()).then(|| now + self.rtt.timeout(0));
        self.timed_out &= self.first < self.recovery;
        if (self.first >= self.recovery || self.timed_out) && self.may_grow() {
            let (trips, next) = (self.rtt, self.first + self.sent.len() as u64);
            self.cubic.on_ack(now, arrived as f64, trips.latest, trips.min, self.first, next);
        }
        self.detect_losses(now);
        self.update_bbr(now, arrived);
    }

    fn update_bbr(&mut self, now: Time, arrived: usize) {
        let in_recovery = self.first < self.recovery;
        if let Some((bbr, delivery)) = self.bbr.as_mut().zip(self.deliveries.sample) {
            bbr.on_ack(&AckSample {
                now,
                acked: arrived as f64,
                rtt: delivery.rtt,
                delivered: self.deliveries.delivered,
                delivered_before: delivery.before,
                interval: delivery.interval,
                in_flight: self.in_flight,
                in_recovery,
                is_limited: delivery.is_limited,
            });
            if bbr.probes_rtt() {
                self.deliveries.ignore(self.in_flight);
            }
        }
    }

    /// Marks a segment as received; returns true if it was not yet.
    fn mark_delivered(&mut self, now: Time, number: u64) -> bool {
        let Some(sent) = number.checked_sub(self.first).and_then(|index| self.sent.get_mut(index as usize)) else {
            return false;
        };
        match std::mem::replace(&mut sent.state, SegmentState::Delivered) {
            SegmentState::Delivered => return false,
            SegmentState::InFlight => self.in_flight -= 1,
            SegmentState::Lost => self.lost -= 1,
        }
        let sent = *sent;
        // A retransmitted segment gives no RTT sample.
        let rtt = if sent.retransmitted { self.rtt.latest } else { now - sent.at };
        self.deliveries.on_delivered(now, sent.at, sent.deliveries, rtt);
        if !sent.retransmitted {
            self.rtt.on_sample(now - sent.at);
            self.reordered |= number < self.highest;
            let extent = self.highest.saturating_sub(number) as usize;
            self.dup_thresh = self.dup_thresh.map(|known| known.max(extent.min(MAX_DUP_THRESH)));
        }
        // An ACK earlier than the minimum RTT acknowledges the first transmission, not the retransmission.
        if !sent.retransmitted || now - sent.at >= self.rtt.min {
            self.newest = self.newest.max(sent.at);
        }
        self.highest = self.highest.max(number);
        true
    }

    /// Takes the receive window of an ACK. One that acknowledges nothing new cannot reduce it, as in Linux
    /// (tcp_may_update_window).
    fn on_receive_window(&mut self, next: u64, bytes: u64) {
        let end = next + bytes / (self.mtu - super::HEADERS) as u64;
        if next > self.first || next == self.first && end > self.window_end {
            self.window_end = end;
        }
    }

    /// Returns true if the congestion window limits the flow, or slow start has not reached twice of what the receive
    /// window admits, as in Linux (tcp_is_cwnd_limited).
    fn may_grow(&self) -> bool {
        self.window_limited
            .is_none_or(|in_flight| self.cubic.in_slow_start() && self.cubic.window < 2.0 * in_flight as f64)
    }

    /// RACK: a segment is lost if it was sent a reordering window before a delivered one (RFC 8985 section 6.2).
    fn detect_losses(&mut self, now: Time) {
        self.reordering_deadline = None;
        let window = self.reordering_window();
        let mut first_lost = None;
        let mut above = self.sent.iter().filter(|sent| sent.state == SegmentState::Delivered).count();
        for (number, sent) in (self.first..).zip(&mut self.sent) {
            if let Some(needed) = self.dup_thresh {
                above -= usize::from(sent.state == SegmentState::Delivered);
                if above < needed {
                    break;
                }
                if sent.state == SegmentState::InFlight && !sent.retransmitted {
                    sent.state = SegmentState::Lost;
                    (self.in_flight, self.lost) = (self.in_flight - 1, self.lost + 1);
                    first_lost = first_lost.or(Some(number));
                }
                continue;
            }
            if sent.state != SegmentState::InFlight || sent.at >= self.newest {
                continue;
            }
            let end = sent.at + self.rtt.latest + window;
            if end <= now {
                sent.state = SegmentState::Lost;
                (self.in_flight, self.lost) = (self.in_flight - 1, self.lost + 1);
                first_lost = first_lost.or(Some(number));
            } else {
                self.reordering_deadline = Some(self.reordering_deadline.map_or(end, |known| known.min(end)));
            }
        }
        if first_lost.is_some_and(|number| number >= self.recovery) {
            self.undo = Some((self.cubic.clone(), 0));
            self.cubic.on_loss();
            if let Some(bbr) = &mut self.bbr {
                bbr.on_loss(self.in_flight, self.deliveries.delivered);
            }
            self.reductions[0] += 1;
            self.recovery = self.first + self.sent.len() as u64;
        }
    }

    fn reordering_window(&self) -> Duration {
        match self.reordered {
            true => (self.rtt.min / 4 * self.reordering_quarters).min(self.rtt.smoothed.unwrap_or_default()),
            // Three overtaking segments suffice for a loss if no reordering has been seen.
            false if self.sent.iter().filter(|sent| sent.state == SegmentState::Delivered).count() >= 3 => {
                Duration::ZERO
            }
            false => self.rtt.min / 4,
        }
    }

    /// Handles a spurious retransmission: enlarges the reordering window, and undoes a reduction that had no other
    /// cause (RFC 3708).
    fn on_spurious_retransmission(&mut self) {
        self.reordering_quarters = (self.reordering_quarters + 1).min(255);
        if let Some((before, spurious)) = &mut self.undo {
            *spurious = spurious.saturating_sub(1);
            if *spurious == 0 {
                before.window = before.window.max(self.cubic.window);
                self.cubic = before.clone();
                self.recovery = self.first;
                self.undo = None;
                self.reductions[2] += 1;
            }
        }
    }

    fn on_timeout(&mut self, now: Time) {
        // With that many segments overtaken without loss, the reordering estimate was too high (tcp_enter_loss).
        if self.first >= self.recovery
            && self.sent.iter().filter(|sent| sent.state == SegmentState::Delivered).count() >= DUP_THRESH
        {
            self.dup_thresh = self.dup_thresh.map(|_| DUP_THRESH);
        }
        for sent in self.sent.iter_mut().filter(|sent| sent.state == SegmentState::InFlight) {
            sent.state = SegmentState::Lost;
        }
        (self.lost, self.in_flight) = (self.lost + self.in_flight, 0);
        self.undo = None;
        self.cubic.on_timeout();
        if let Some(bbr) = &mut self.bbr {
            bbr.on_timeout();
        }
        self.reductions[1] += 1;
        self.recovery = self.first + self.sent.len() as u64;
        self.timed_out = true;
        self.backoff = (self.backoff + 1).min(10);
        self.timeout = Some(now + self.rtt.timeout(self.backoff));
    }

    fn send(&mut self, now: Time) -> Option<u64> {
        if now < self.pace {
            return None;
        }
        if self.in_flight as f64 >= self.window().floor() {
            self.window_limited = None;
            return None;
        }
        let has_ended = self.end.is_some_and(|end| end <= now);
        if self.lost == 0 && (has_ended || self.first + self.sent.len() as u64 >= self.limit) {
            return None;
        }
        if self.lost == 0 && self.first + self.sent.len() as u64 >= self.window_end {
            self.window_limited = Some(self.in_flight);
            return None;
        }
        let index =
            if self.lost > 0 { self.sent.iter().position(|sent| sent.state == SegmentState::Lost) } else { None };
        let sent = SentSegment {
            at: now,
            retransmitted: index.is_some(),
            state: SegmentState::InFlight,
            deliveries: self.deliveries.on_sent(now, self.sent.is_empty()),
        };
        self.in_flight += 1;
        if let Some(bbr) = &self.bbr {
            self.pace = now + bbr.spacing();
        }
        self.timeout = self.timeout.or_else(|| Some(now + self.rtt.timeout(self.backoff)));
        let index = match index {
            Some(index) => {
                self.lost -= 1;
                self.sent[index] = sent;
                if let Some((_, spurious)) = &mut self.undo {
                    *spurious += 1;
                }
                index
            }
            None => {
                self.sent.push_back(sent);
                self.sent.len() - 1
            }
        };
        Some(self.first + index as u64)
    }
}

impl Host for TcpSource {
    fn handle(&mut self, now: Time, packet: &[u8]) {
        match Segment::decode(packet, self.mtu, self.first) {
            Some(Segment::Ack(next, ranges)) => {
                self.echo = self.echo.max(timestamp(packet));
                self.on_receive_window(next, receive_window(packet));
                self.on_ack(now, next, &ranges, echoed_timestamp(packet));
            }
            Some(Segment::SynAck) => self.waits = false,
            Some(Segment::Data(_) | Segment::Syn) | None => {}
        }
    }

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        self.polled = now;
        if self.reordering_deadline.is_some_and(|end| end <= now) {
            self.detect_losses(now);
        }
        if self.timeout.is_some_and(|end| end <= now) {
            self.on_timeout(now);
        }
        if now < self.start {
            return None;
        }
        if !std::mem::replace(&mut self.begun, true) {
            return Some(Segment::Syn.encode(self.flow, self.mtu, now, 0));
        }
        if self.waits {
            return None;
        }
        self.send(now).map(|number| Segment::Data(number).encode(self.flow, self.mtu, now, self.echo))
    }

    fn next_deadline(&self) -> Option<Time> {
        let begin = Some(self.start).filter(|_| !self.begun);
        let pace = Some(self.pace).filter(|at| *at > self.polled);
        self.reordering_deadline.into_iter().chain(self.timeout).chain(begin).chain(pace).min()
    }

    /// TCP small queues: about a millisecond at 100 Mbit/s, and at the rate of BBR if that is higher.
    fn tun_limit(&self) -> usize {
        let paced = self.bbr.as_ref().map_or(0.0, |bbr| 1e-3 / bbr.spacing().as_secs_f64().max(1e-9));
        SMALL_QUEUE.max(paced as usize)
    }
}

impl RttEstimator {
    fn on_sample(&mut self, rtt: Duration) {
        self.latest = rtt;
        self.count += 1;
        self.min = if self.smoothed.is_some() { self.min.min(rtt) } else { rtt };
        let smoothed = self.smoothed.map_or(rtt, |old| (old * 7 + rtt) / 8);
        self.variation = self.smoothed.map_or(rtt / 2, |old| (self.variation * 3 + old.abs_diff(rtt)) / 4);
        self.smoothed = Some(smoothed);
    }

    fn timeout(&self, backoff: u32) -> Duration {
        let once = self.smoothed.map_or(INITIAL_TIMEOUT, |smoothed| smoothed + (self.variation * 4).max(MIN_VARIATION));
        once * 2u32.pow(backoff)
    }
}

/// Segments in the TUN device.
const SMALL_QUEUE: usize = 16;
/// RFC 6675's DupThresh, and Linux' tcp_max_reordering.
const DUP_THRESH: usize = 3;
const MAX_DUP_THRESH: usize = 300;

/// RFC 6298 section 2.
const INITIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Linux's TCP_RTO_MIN is the minimum that is added to the smoothed RTT.
const MIN_VARIATION: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receive_window_stops_the_sender_and_its_congestion_window_stops_at_twice_of_it() {
        let mut source = TcpSource::new(1_400);
        let sent = |source: &mut TcpSource| std::iter::from_fn(|| source.poll(Time::START)).count();
        assert_eq!(sent(&mut source), 1 + 10, "a SYN and the initial window");
        let ack = |next: u64, window: u16| {
            let mut packet = Segment::Ack(next, vec![]).encode(0, 1_400, Time::START, 0);
            packet[34..36].copy_from_slice(&window.to_be_bytes());
            packet
        };
        // 8 windows of 2 KiB are 12 segments.
        for next in 5..40 {
            source.handle(Time::START, &ack(next, 8));
            sent(&mut source);
        }
        assert_eq!((source.in_flight, source.cubic.window), (12, 24.0));
        source.handle(Time::START, &ack(40, u16::MAX));
        assert_eq!(sent(&mut source), 24 - 11);
    }

    #[test]
    fn a_flow_that_has_ended_sends_lost_segments_alone() {
        let end = Time::after(Duration::from_millis(100));
        let mut source = TcpSource::new(1_400).ending_at(end);
        let window = std::iter::from_fn(|| source.poll(Time::START)).count() - 1;
        // The first and the last segment of the window arrive.
        let last = window as u64 - 1;
        source.handle(end, &Segment::Ack(1, vec![(last, last + 1)]).encode(0, 1_400, end, 1));
        assert_eq!(source.poll(end), None, "the window has space, and the application has no data");
        let timeout = source.next_deadline().expect("segments are in flight");
        assert!(source.poll(timeout).is_some(), "a lost segment");
    }
}
