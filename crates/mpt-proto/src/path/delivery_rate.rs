//! Delivery rate of a path, measured by the receiver's clock.
//!
//! The sample is that of draft-cheng-iccrg-delivery-rate-estimation, with one change. The draft uses the time between
//! the arrivals of two *ACKs*; this code uses the time between the two *receiver timestamps* in them. An ACK that was
//! aggregated, delayed or sent over another path then yields the same sample, so nothing must be filtered out. Our own
//! clock is used only for the first flight after a pause, when there is no earlier timestamp.
//!
//! Beside the per-packet sample, [`DeliveryRate::recent`] is the rate over an interval shorter than a round trip, from
//! which a controller detects a slower link while the queue builds up.

use std::time::Duration;

use super::ack::PeerTime;
use crate::time::{Rate, Time};
use crate::tuning::path::delivery_rate::MIN_RATE_BYTES;

/// The delivery state when a packet was sent, kept until its ACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliverySnapshot {
    delivered: u64,
    spurious: u64,
    delivered_at: Option<PeerTime>,
    delivered_here: Time,
    first_sent: Time,
    app_limited: bool,
}

/// One measurement of the delivery rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// The rate: bytes over the longer of the two times below.
    pub rate: Rate,
    /// The bytes delivered.
    pub bytes: u64,
    /// The time in which they were sent.
    pub sending: Duration,
    /// The time in which they arrived.
    pub arriving: Duration,
}

impl RateSample {
    /// Returns true if the data took clearly longer to arrive than to be sent, jitter aside: the queue grew meanwhile,
    /// so the rate is the bottleneck's. Fewer than `MIN_RATE_BYTES` are no evidence.
    pub fn is_stretched(&self, jitter: Duration) -> bool {
        self.bytes >= MIN_RATE_BYTES && self.arriving > self.sending + self.sending / 16 + jitter * 2
    }
}

/// Delivery accounting of one path.
#[derive(Clone, Debug, Default)]
pub struct DeliveryRate {
    delivered: u64,
    /// Of these, bytes that had been declared lost: they arrived at some time before the ACK reported them.
    spurious: u64,
    delivered_at: Option<PeerTime>,
    delivered_here: Time,
    first_sent: Time,
    app_limited_until: Option<u64>,
    recent: ArrivalRate,
}

impl DeliverySnapshot {
    /// Returns the bytes that had been delivered when the packet was sent.
    pub const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns true if the sender had nothing more to send.
    pub const fn app_limited(&self) -> bool {
        self.app_limited
    }

    /// The snapshot of a packet that is not waited for.
    pub const NONE: Self = Self {
        delivered: 0,
        spurious: 0,
        delivered_at: None,
        delivered_here: Time::START,
        first_sent: Time::START,
        app_limited: false,
    };
}

impl DeliveryRate {
    /// Returns the snapshot of a packet that is sent at `now` while `in_flight` bytes are in flight.
    pub fn on_sent(&mut self, now: Time, in_flight: u64) -> DeliverySnapshot {
        if in_flight == 0 {
            (self.first_sent, self.delivered_here, self.delivered_at) = (now, now, None);
        }
        DeliverySnapshot {
            delivered: self.delivered,
            spurious: self.spurious,
            delivered_at: self.delivered_at,
            delivered_here: self.delivered_here,
            first_sent: self.first_sent,
            app_limited: self.app_limited_until.is_some(),
        }
    }

    /// Counts `bytes` as delivered by `written_at` on the receiver's clock.
    pub fn on_delivered(&mut self, now: Time, written_at: PeerTime, bytes: u64) {
        self.delivered += bytes;
        self.delivered_here = now;
        self.delivered_at = self.delivered_at.max(Some(written_at));
        if self.app_limited_until.is_some_and(|until| self.delivered > until) {
            self.app_limited_until = None;
        }
    }

    /// Counts `bytes` as delivered that had been declared lost.
    pub fn on_spurious(&mut self, bytes: u64) {
        self.delivered += bytes;
        self.spurious += bytes;
    }

    /// Returns the sample of the latest packet that an ACK has just acknowledged; must be called after `on_delivered`.
    pub fn sample(&mut self, sent_at: Time, snapshot: &DeliverySnapshot) -> Option<RateSample> {
        self.first_sent = sent_at;
        let sending = sent_at.since(snapshot.first_sent);
        let arriving = match (self.delivered_at, snapshot.delivered_at) {
            (Some(last), Some(first)) => last.since(first),
            _ => self.delivered_here.since(snapshot.delivered_here),
        };
        let interval = sending.max(arriving);
        let bytes = self.delivered - snapshot.delivered;
        let is_timely = (self.spurious - snapshot.spurious) * 2 <= bytes;
        (interval > Duration::ZERO && is_timely).then(|| RateSample {
            rate: Rate::of(bytes, interval),
            bytes,
            sending,
            arriving,
        })
    }

    /// Adds a receiver timestamp for [`Self::recent`] if it is `spacing` after the last one; returns the rate since
    /// then.
    pub fn mark(&mut self, written_at: PeerTime, spacing: Duration) -> Option<Rate> {
        self.recent.mark(written_at, self.delivered, spacing)
    }

    /// Returns the rate over the last `window` or a little more by the receiver's clock, if at least `MIN_RATE_BYTES`
    /// arrived.
    pub fn recent(&self, window: Duration) -> Option<Rate> {
        self.recent.rate(self.delivered_at?, self.delivered, window)
    }

    /// Notes that the sender has nothing more to send: samples are app-limited until what is `in_flight` has been
    /// delivered.
    pub fn on_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = Some(self.delivered + in_flight);
    }

    /// Returns the bytes delivered since the path began.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }
}

/// Pairs of receiver timestamp and bytes delivered, at least one spacing apart.
#[derive(Clone, Debug, Default)]
struct ArrivalRate {
    marks: [Option<(PeerTime, u64)>; MARKS],
    newest: usize,
}

impl ArrivalRate {
    fn mark(&mut self, at: PeerTime, delivered: u64, spacing: Duration) -> Option<Rate> {
        let last = self.marks[self.newest];
        if last.is_some_and(|(last, _)| at.since(last) < spacing) {
            return None;
        }
        self.newest = (self.newest + 1) % MARKS;
        self.marks[self.newest] = Some((at, delivered));
        last.filter(|(last, _)| *last < at).map(|(last, before)| Rate::of(delivered - before, at.since(last)))
    }

    fn rate(&self, at: PeerTime, delivered: u64, window: Duration) -> Option<Rate> {
        let (since, before) = (0..MARKS)
            .filter_map(|back| self.marks[(self.newest + MARKS - back) % MARKS])
            .find(|(marked_at, bytes)| at.since(*marked_at) >= window && delivered - bytes >= MIN_RATE_BYTES)?;
        Some(Rate::of(delivered - before, at.since(since)))
    }
}

/// Marks: eight cover the window, and as many are older.
const MARKS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    fn peer_time(ms: u64) -> PeerTime {
        PeerTime(1_000_000_000 + ms * 1_000)
    }

    /// 1000 bytes per millisecond over a path of 10 ms each way; `ack_late` delays each ACK on its way back.
    fn steady(ack_late: impl Fn(u64) -> u64) -> (DeliveryRate, Vec<RateSample>) {
        let (mut delivery_rate, mut snapshots, mut samples) = (DeliveryRate::default(), Vec::new(), Vec::new());
        for n in 0..200u64 {
            let in_flight = if n == 0 { 0 } else { 10_000 };
            snapshots.push((at(n), delivery_rate.on_sent(at(n), in_flight)));
            if let Some(acked) = n.checked_sub(20) {
                delivery_rate.on_delivered(at(n + ack_late(n)), peer_time(acked + 10), 1_000);
                delivery_rate.mark(peer_time(acked + 10), Duration::from_millis(1));
                let (sent_at, snapshot) = snapshots[acked as usize];
                samples.extend(delivery_rate.sample(sent_at, &snapshot));
            }
        }
        (delivery_rate, samples)
    }

    #[test]
    fn the_rate_of_a_steady_flow_is_exact() {
        let (delivery_rate, samples) = steady(|_| 0);
        let last = samples.last().unwrap();
        assert_eq!(last.rate, Rate::from_bytes(1_000_000));
        assert!(!last.is_stretched(Duration::ZERO));
        assert_eq!(delivery_rate.recent(Duration::from_millis(12)), Some(Rate::from_bytes(1_000_000)));
    }

    #[test]
    fn aggregated_acks_yield_the_same_rate() {
        let (_, aggregated) = steady(|n| 16 - n % 16);
        assert!(aggregated[60..].iter().all(|s| s.rate == Rate::from_bytes(1_000_000)), "{aggregated:?}");
    }

    #[test]
    fn data_that_arrives_slower_than_it_was_sent_is_stretched() {
        let mut delivery_rate = DeliveryRate::default();
        delivery_rate.on_sent(at(0), 0);
        delivery_rate.on_delivered(at(20), peer_time(10), 1_000);
        let sent: Vec<_> = (20..32).map(|n| (at(n), delivery_rate.on_sent(at(n), 1_000))).collect();
        delivery_rate.first_sent = at(20);
        let mut last = None;
        for (n, (sent_at, snapshot)) in sent.iter().enumerate() {
            let late = n as u64 * 4;
            delivery_rate.on_delivered(at(40 + late), peer_time(30 + late), 1_000);
            last = delivery_rate.sample(*sent_at, snapshot);
        }
        // 12 packets sent within 11 ms; the last one arrived 64 ms after the timestamp from which they are counted.
        let last = last.unwrap();
        assert!(last.is_stretched(Duration::ZERO) && !last.is_stretched(Duration::from_millis(30)));
        assert_eq!(last.rate, Rate::of(12_000, Duration::from_millis(64)));
    }

    #[test]
    fn samples_are_app_limited_until_what_was_in_flight_has_arrived() {
        let mut delivery_rate = DeliveryRate::default();
        delivery_rate.on_sent(at(0), 0);
        delivery_rate.on_app_limited(1_000);
        assert!(delivery_rate.on_sent(at(1), 1_000).app_limited);
        delivery_rate.on_delivered(at(20), peer_time(10), 2_000);
        assert!(!delivery_rate.on_sent(at(21), 1_000).app_limited);
    }
}
