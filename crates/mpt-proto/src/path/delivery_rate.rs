//! Delivery rate: how fast a path brings data, measured at the far end.
//!
//! The sample is the one of draft-cheng-iccrg-delivery-rate-estimation, with one change. The draft takes the time between
//! two *ACKs'* arrivals here; ours takes the time between two *readings of the receiver's clock* that came with them. An
//! ACK that was compressed, held up or sent over another path then says the same as one that was not, so there is nothing
//! to filter out. Our own clock is used only for the first flight after a pause, when no reading exists to start from.
//!
//! Beside the per-packet sample, [`Meter`] answers how fast data arrived over the last moment, shorter than a round trip:
//! what a controller needs to see a link slow down while a queue builds.

use std::time::Duration;

use super::ack::PeerTime;
use crate::time::{Rate, Time};

/// What a packet carries from its sending to its ACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliverySnapshot {
    delivered: u64,
    recalled: u64,
    delivered_at: Option<PeerTime>,
    delivered_here: Time,
    first_sent: Time,
    app_limited: bool,
}

/// One measurement of the delivery rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered over the longer of the two times below, as a rate.
    pub rate: Rate,
    /// These bytes.
    pub bytes: u64,
    /// The time it took to send.
    pub sending: Duration,
    /// The time it took to arrive.
    pub arriving: Duration,
}

impl RateSample {
    /// Whether the data took clearly longer to arrive than to be sent, jitter aside: a queue grew meanwhile, so the rate
    /// is the bottleneck's. Fewer than [`MIN_METERED`] bytes prove nothing.
    pub fn is_stretched(&self, jitter: Duration) -> bool {
        self.bytes >= MIN_METERED && self.arriving > self.sending + self.sending / 16 + jitter * 2
    }
}

/// Delivery accounting of one path.
#[derive(Clone, Debug, Default)]
pub struct DeliveryRate {
    delivered: u64,
    /// Of these, what had been taken for lost: it arrived at some time before it was told.
    recalled: u64,
    delivered_at: Option<PeerTime>,
    delivered_here: Time,
    first_sent: Time,
    app_limited_until: Option<u64>,
    meter: ArrivalRate,
}

impl DeliverySnapshot {
    /// Bytes that had been delivered when the packet was sent.
    pub const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Whether the sender had nothing more to send.
    pub const fn app_limited(&self) -> bool {
        self.app_limited
    }

    /// The snapshot of a packet nobody waits for.
    pub const NONE: Self = Self {
        delivered: 0,
        recalled: 0,
        delivered_at: None,
        delivered_here: Time::START,
        first_sent: Time::START,
        app_limited: false,
    };
}

impl DeliveryRate {
    /// What to keep with a packet that is sent at `now` while `in_flight` bytes are under way.
    pub fn on_sent(&mut self, now: Time, in_flight: u64) -> DeliverySnapshot {
        if in_flight == 0 {
            (self.first_sent, self.delivered_here, self.delivered_at) = (now, now, None);
        }
        DeliverySnapshot {
            delivered: self.delivered,
            recalled: self.recalled,
            delivered_at: self.delivered_at,
            delivered_here: self.delivered_here,
            first_sent: self.first_sent,
            app_limited: self.app_limited_until.is_some(),
        }
    }

    /// Counts `bytes` as delivered by `written` on the receiver's clock.
    pub fn on_delivered(&mut self, now: Time, written: PeerTime, bytes: u64) {
        self.delivered += bytes;
        self.delivered_here = now;
        self.delivered_at = self.delivered_at.max(Some(written));
        if self.app_limited_until.is_some_and(|until| self.delivered > until) {
            self.app_limited_until = None;
        }
    }

    /// Counts `bytes` as delivered that had been taken for lost.
    pub fn on_spurious(&mut self, bytes: u64) {
        self.delivered += bytes;
        self.recalled += bytes;
    }

    /// The sample of the packet that was sent last among those an ACK has just confirmed; call after `on_delivered`.
    pub fn sample(&mut self, sent_at: Time, then: &DeliverySnapshot) -> Option<RateSample> {
        self.first_sent = sent_at;
        let sending = sent_at.since(then.first_sent);
        let arriving = match (self.delivered_at, then.delivered_at) {
            (Some(last), Some(first)) => last.since(first),
            _ => self.delivered_here.since(then.delivered_here),
        };
        let interval = sending.max(arriving);
        let bytes = self.delivered - then.delivered;
        let is_timely = (self.recalled - then.recalled) * 2 <= bytes;
        (interval > Duration::ZERO && is_timely).then(|| RateSample {
            rate: Rate::of(bytes, interval),
            bytes,
            sending,
            arriving,
        })
    }

    /// Notes a reading for [`Delivery::recent`], if it is `spacing` after the last one; returns the rate since that.
    pub fn mark(&mut self, written: PeerTime, spacing: Duration) -> Option<Rate> {
        self.meter.mark(written, self.delivered, spacing)
    }

    /// The rate over the last `window` or a little more by the receiver's clock; none before [`MIN_METERED`] bytes.
    pub fn recent(&self, window: Duration) -> Option<Rate> {
        self.meter.rate(self.delivered_at?, self.delivered, window)
    }

    /// The sender has nothing more to send; samples say so until what is `in_flight` has been delivered.
    pub fn on_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = Some(self.delivered + in_flight);
    }

    /// Bytes delivered since the path began.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }
}

/// Readings of (receiver's clock, bytes delivered), a little apart.
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
            .find(|(then, bytes)| at.since(*then) >= window && delivered - bytes >= MIN_METERED)?;
        Some(Rate::of(delivered - before, at.since(since)))
    }
}

/// Enough marks that eight cover the window and as many are older.
const MARKS: usize = 16;
/// Below eight full packets the granularity of one packet is more than a tenth of the rate.
pub const MIN_METERED: u64 = 8 * 1_400;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    fn there(ms: u64) -> PeerTime {
        PeerTime(1_000_000_000 + ms * 1_000)
    }

    /// 1000 bytes per millisecond over a path of 10 ms each way; `ack_late` delays each ACK on its way back.
    fn steady(ack_late: impl Fn(u64) -> u64) -> (DeliveryRate, Vec<RateSample>) {
        let (mut delivery, mut snapshots, mut samples) = (DeliveryRate::default(), Vec::new(), Vec::new());
        for n in 0..200u64 {
            let in_flight = if n == 0 { 0 } else { 10_000 };
            snapshots.push((at(n), delivery.on_sent(at(n), in_flight)));
            if let Some(done) = n.checked_sub(20) {
                delivery.on_delivered(at(n + ack_late(n)), there(done + 10), 1_000);
                delivery.mark(there(done + 10), Duration::from_millis(1));
                let (sent_at, snapshot) = snapshots[done as usize];
                samples.extend(delivery.sample(sent_at, &snapshot));
            }
        }
        (delivery, samples)
    }

    #[test]
    fn a_steady_flow_is_measured_at_its_rate() {
        let (delivery, samples) = steady(|_| 0);
        let last = samples.last().unwrap();
        assert_eq!(last.rate, Rate::from_bytes(1_000_000));
        assert!(!last.is_stretched(Duration::ZERO));
        assert_eq!(delivery.recent(Duration::from_millis(12)), Some(Rate::from_bytes(1_000_000)));
    }

    #[test]
    fn acks_that_arrive_in_a_clump_say_the_same() {
        let (_, clumped) = steady(|n| 16 - n % 16);
        assert!(clumped[60..].iter().all(|s| s.rate == Rate::from_bytes(1_000_000)), "{clumped:?}");
    }

    #[test]
    fn data_that_arrives_slower_than_it_was_sent_is_stretched() {
        let mut delivery = DeliveryRate::default();
        delivery.on_sent(at(0), 0);
        delivery.on_delivered(at(20), there(10), 1_000);
        let sent: Vec<_> = (20..32).map(|n| (at(n), delivery.on_sent(at(n), 1_000))).collect();
        delivery.first_sent = at(20);
        let mut last = None;
        for (n, (sent_at, snapshot)) in sent.iter().enumerate() {
            let late = n as u64 * 4;
            delivery.on_delivered(at(40 + late), there(30 + late), 1_000);
            last = delivery.sample(*sent_at, snapshot);
        }
        // 12 packets, the last of which arrived 64 ms after the reading they started from, sent within 11 ms.
        let last = last.unwrap();
        assert!(last.is_stretched(Duration::ZERO) && !last.is_stretched(Duration::from_millis(30)));
        assert_eq!(last.rate, Rate::of(12_000, Duration::from_millis(64)));
    }

    #[test]
    fn samples_are_app_limited_until_what_was_in_flight_has_arrived() {
        let mut delivery = DeliveryRate::default();
        delivery.on_sent(at(0), 0);
        delivery.on_app_limited(1_000);
        assert!(delivery.on_sent(at(1), 1_000).app_limited);
        delivery.on_delivered(at(20), there(10), 2_000);
        assert!(!delivery.on_sent(at(21), 1_000).app_limited);
    }
}
