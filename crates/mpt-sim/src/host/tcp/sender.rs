//! The sender: sends what the window allows and retransmits losses.

use super::{
    cubic::Cubic,
    segment::{Range, Segment, echoed, stamp},
};
use crate::host::Host;
use mpt_proto::time::Time;
use std::{collections::VecDeque, time::Duration};

/// The sender of a transfer with unlimited data.
#[derive(Debug)]
pub struct TcpSource {
    start: Time,
    mtu: usize,
    /// The first unacknowledged segment.
    first: u64,
    /// Segments from `first` on.
    sent: VecDeque<Sent>,
    in_flight: usize,
    lost: usize,
    cubic: Cubic,
    /// The window before the last loss, and the number of retransmissions that may be spurious.
    before: Option<(Cubic, u32)>,
    /// Losses below this belong to the last reduction.
    recovery: u64,
    /// True if the last reduction was due to a timeout, after which the window may grow during recovery.
    timed_out: bool,
    trips: Trips,
    /// The latest send time among the delivered segments.
    newest: Time,
    timeout: Option<Time>,
    backoff: u32,
    /// Time at which a delayed segment is declared lost.
    patience_ends: Option<Time>,
    /// Reordering window in quarters of the minimum RTT.
    quarters: u32,
    reordered: bool,
    /// The highest segment that was acknowledged out of order.
    highest: u64,
    /// Segment threshold of loss detection before RACK; none with RACK.
    overtaken: Option<usize>,
    /// The latest timestamp of the peer.
    echo: u32,
    /// Reductions of the window: after losses, after timeouts, and undone ones.
    reductions: [u32; 3],
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Time,
    again: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    UnderWay,
    Arrived,
    Lost,
}

/// RTT estimation (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
struct Trips {
    smoothed: Option<Duration>,
    varied: Duration,
    least: Duration,
    latest: Duration,
    count: u64,
}

impl TcpSource {
    /// Creates a sender of packets of `mtu` bytes.
    pub fn new(mtu: usize) -> Self {
        Self {
            start: Time::START,
            mtu,
            first: 0,
            sent: VecDeque::new(),
            in_flight: 0,
            lost: 0,
            cubic: Cubic::new(),
            before: None,
            recovery: 0,
            timed_out: false,
            trips: Trips::default(),
            newest: Time::START,
            timeout: None,
            backoff: 0,
            patience_ends: None,
            quarters: 1,
            reordered: false,
            highest: 0,
            overtaken: None,
            echo: 0,
            reductions: [0; 3],
        }
    }

    /// Detects losses as Linux did before RACK: by the number of segments that overtook one (RFC 6675), with a
    /// threshold above the highest reordering seen; a lost retransmission waits for the timeout.
    pub fn before_rack(self) -> Self {
        Self { overtaken: Some(DUPLICATES), ..self }
    }

    /// Delays the start until `start`.
    pub fn starting(self, start: Time) -> Self {
        Self { start, ..self }
    }

    /// Returns the congestion window in segments.
    pub fn window(&self) -> f64 {
        self.cubic.window
    }

    /// Returns the number of reductions of the window: after losses, after timeouts, and undone ones.
    pub fn reductions(&self) -> [u32; 3] {
        self.reductions
    }

    /// Returns the smoothed RTT.
    pub fn round_trip(&self) -> Option<Duration> {
        self.trips.smoothed
    }

    fn on_ack(&mut self, now: Time, next: u64, ranges: &[Range], echoed: u32) {
        let duplicate = ranges.first().filter(|range| range.1 <= next);
        if duplicate.is_some() {
            self.on_duplicate();
        }
        let (mut arrived, measured) = (0, self.trips.count);
        for (from, to) in ranges.iter().filter(|range| range.0 >= next) {
            arrived += (*from..*to).filter(|number| self.arrive(now, *number)).count();
        }
        let advances = self.first < next;
        while self.first < next && !self.sent.is_empty() {
            arrived += usize::from(self.arrive(now, self.first));
            self.sent.pop_front();
            self.first += 1;
        }
        if arrived == 0 {
            return;
        }
        // A retransmitted segment gives no RTT sample by itself (Karn), but its timestamp does (RFC 7323 section 4.1).
        if self.trips.count == measured && advances && echoed > 0 {
            self.trips.note(now - (Time::START + Duration::from_millis(echoed.into())));
        }
        self.backoff = 0;
        self.timeout = (!self.sent.is_empty()).then(|| now + self.trips.timeout(0));
        self.timed_out &= self.first < self.recovery;
        if self.first >= self.recovery || self.timed_out {
            let (trips, next) = (self.trips, self.first + self.sent.len() as u64);
            self.cubic.on_ack(now, arrived as f64, trips.latest, trips.least, self.first, next);
        }
        self.look_for_losses(now);
    }

    /// Marks a segment as received; returns true if it was not yet.
    fn arrive(&mut self, now: Time, number: u64) -> bool {
        let Some(sent) = number.checked_sub(self.first).and_then(|index| self.sent.get_mut(index as usize)) else {
            return false;
        };
        match std::mem::replace(&mut sent.state, State::Arrived) {
            State::Arrived => return false,
            State::UnderWay => self.in_flight -= 1,
            State::Lost => self.lost -= 1,
        }
        let sent = *sent;
        if !sent.again {
            self.trips.note(now - sent.at);
            self.reordered |= number < self.highest;
            let extent = self.highest.saturating_sub(number) as usize;
            self.overtaken = self.overtaken.map(|known| known.max(extent.min(MOST_OVERTAKEN)));
        }
        // An ACK earlier than the minimum RTT acknowledges the first transmission, not the retransmission.
        if !sent.again || now - sent.at >= self.trips.least {
            self.newest = self.newest.max(sent.at);
        }
        self.highest = self.highest.max(number);
        true
    }

    /// RACK: a segment is lost if it was sent a reordering window before a delivered one (RFC 8985 section 6.2).
    fn look_for_losses(&mut self, now: Time) {
        self.patience_ends = None;
        let window = self.reordering();
        let mut first_lost = None;
        let mut above = self.sent.iter().filter(|sent| sent.state == State::Arrived).count();
        for (number, sent) in (self.first..).zip(&mut self.sent) {
            if let Some(needed) = self.overtaken {
                above -= usize::from(sent.state == State::Arrived);
                if above < needed {
                    break;
                }
                if sent.state == State::UnderWay && !sent.again {
                    sent.state = State::Lost;
                    (self.in_flight, self.lost) = (self.in_flight - 1, self.lost + 1);
                    first_lost = first_lost.or(Some(number));
                }
                continue;
            }
            if sent.state != State::UnderWay || sent.at >= self.newest {
                continue;
            }
            let end = sent.at + self.trips.latest + window;
            if end <= now {
                sent.state = State::Lost;
                (self.in_flight, self.lost) = (self.in_flight - 1, self.lost + 1);
                first_lost = first_lost.or(Some(number));
            } else {
                self.patience_ends = Some(self.patience_ends.map_or(end, |known| known.min(end)));
            }
        }
        if first_lost.is_some_and(|number| number >= self.recovery) {
            self.before = Some((self.cubic.clone(), 0));
            self.cubic.on_loss();
            self.reductions[0] += 1;
            self.recovery = self.first + self.sent.len() as u64;
        }
    }

    fn reordering(&self) -> Duration {
        match self.reordered {
            true => (self.trips.least / 4 * self.quarters).min(self.trips.smoothed.unwrap_or_default()),
            // Three overtaking segments suffice for a loss if no reordering has been seen.
            false if self.sent.iter().filter(|sent| sent.state == State::Arrived).count() >= 3 => Duration::ZERO,
            false => self.trips.least / 4,
        }
    }

    /// Handles a spurious retransmission: enlarges the reordering window, and undoes a reduction that had no other
    /// cause (RFC 3708).
    fn on_duplicate(&mut self) {
        self.quarters = (self.quarters + 1).min(255);
        if let Some((before, needless)) = &mut self.before {
            *needless = needless.saturating_sub(1);
            if *needless == 0 {
                before.window = before.window.max(self.cubic.window);
                self.cubic = before.clone();
                self.recovery = self.first;
                self.before = None;
                self.reductions[2] += 1;
            }
        }
    }

    fn on_timeout(&mut self, now: Time) {
        // With that many segments overtaken without loss, the reordering estimate was too high (tcp_enter_loss).
        if self.first >= self.recovery
            && self.sent.iter().filter(|sent| sent.state == State::Arrived).count() >= DUPLICATES
        {
            self.overtaken = self.overtaken.map(|_| DUPLICATES);
        }
        for sent in self.sent.iter_mut().filter(|sent| sent.state == State::UnderWay) {
            sent.state = State::Lost;
        }
        (self.lost, self.in_flight) = (self.lost + self.in_flight, 0);
        self.before = None;
        self.cubic.on_timeout();
        self.reductions[1] += 1;
        self.recovery = self.first + self.sent.len() as u64;
        self.timed_out = true;
        self.backoff = (self.backoff + 1).min(10);
        self.timeout = Some(now + self.trips.timeout(self.backoff));
    }

    fn send(&mut self, now: Time) -> Option<u64> {
        if self.in_flight as f64 >= self.cubic.window.floor() {
            return None;
        }
        let index = if self.lost > 0 { self.sent.iter().position(|sent| sent.state == State::Lost) } else { None };
        let sent = Sent { at: now, again: index.is_some(), state: State::UnderWay };
        self.in_flight += 1;
        self.timeout = self.timeout.or_else(|| Some(now + self.trips.timeout(self.backoff)));
        let index = match index {
            Some(index) => {
                self.lost -= 1;
                self.sent[index] = sent;
                if let Some((_, needless)) = &mut self.before {
                    *needless += 1;
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
        if let Some(Segment::Ack(next, ranges)) = Segment::read(packet, self.mtu) {
            self.echo = self.echo.max(stamp(packet));
            self.on_ack(now, next, &ranges, echoed(packet));
        }
    }

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        if self.patience_ends.is_some_and(|end| end <= now) {
            self.look_for_losses(now);
        }
        if self.timeout.is_some_and(|end| end <= now) {
            self.on_timeout(now);
        }
        if now < self.start {
            return None;
        }
        self.send(now).map(|number| Segment::Data(number).write(self.mtu, now, self.echo))
    }

    fn next_deadline(&self) -> Option<Time> {
        let begin = Some(self.start).filter(|_| self.first == 0 && self.sent.is_empty());
        self.patience_ends.into_iter().chain(self.timeout).chain(begin).min()
    }

    /// TCP small queues: about a millisecond at 100 Mbit/s.
    fn patience(&self) -> usize {
        16
    }
}

impl Trips {
    fn note(&mut self, trip: Duration) {
        self.latest = trip;
        self.count += 1;
        self.least = if self.smoothed.is_some() { self.least.min(trip) } else { trip };
        let smoothed = self.smoothed.map_or(trip, |old| (old * 7 + trip) / 8);
        self.varied = self.smoothed.map_or(trip / 2, |old| (self.varied * 3 + old.abs_diff(trip)) / 4);
        self.smoothed = Some(smoothed);
    }

    fn timeout(&self, backoff: u32) -> Duration {
        let once = self.smoothed.map_or(FIRST_TIMEOUT, |smoothed| smoothed + (self.varied * 4).max(LEAST_VARIED));
        once * 2u32.pow(backoff)
    }
}

/// RFC 6675's DupThresh, and Linux' tcp_max_reordering.
const DUPLICATES: usize = 3;
const MOST_OVERTAKEN: usize = 300;

/// RFC 6298 section 2.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
/// Linux's TCP_RTO_MIN is the minimum that is added to the smoothed RTT.
const LEAST_VARIED: Duration = Duration::from_millis(200);
