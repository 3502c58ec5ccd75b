//! Estimates the bottleneck's rate.
//!
//! A delivery-rate sample equals the bottleneck's rate only if the path was full. The estimate therefore rises with any
//! higher sample, because nothing arrives faster than the bottleneck allows, and falls only if data took longer to
//! arrive than to be sent: then the bottleneck was busy, and the arrival rate is its rate. A low sample without that
//! evidence is ignored, so neither an idle application nor a lossy path lowers the estimate.

use std::time::Duration;

use crate::path::delivery_rate::RateSample;
use crate::path::sample::AckSample;
use crate::time::{Rate, Time};
use crate::tuning::cc::bandwidth::{LOSS_BETA, MAX_OVERESTIMATE, MIN_INTERVAL};
use crate::tuning::path::ack_generator::MIN_ACK_INTERVAL;

/// Estimate of the bottleneck rate of one path, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    rate: f64,
    round_best: f64,
    last_round_best: f64,
    busy_best: f64,
    samples: u32,
    busy_samples: u32,
    busy: bool,
    previous_recent: f64,
    tracked_at: Time,
    round_ended: Time,
}

impl Bandwidth {
    /// Creates an empty estimate.
    pub const fn new() -> Self {
        Self {
            rate: 0.0,
            round_best: 0.0,
            last_round_best: 0.0,
            busy_best: 0.0,
            samples: 0,
            busy_samples: 0,
            busy: false,
            previous_recent: f64::INFINITY,
            tracked_at: Time::START,
            round_ended: Time::START,
        }
    }

    /// Returns the estimate in bytes per second, 0 while there is none.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Sets a rate that is known before the path has been filled.
    pub fn set_initial(&mut self, rate: Rate) {
        self.rate = rate.bytes() as f64;
    }

    /// Processes a sample. `busy`: the sample shows that the bottleneck was busy. `low_jitter`: jitter is low enough to
    /// use the rate over half a round trip.
    pub fn on_ack(&mut self, ack: &AckSample, busy: bool, low_jitter: bool) {
        let Some(sample) = ack.rate else { return };
        let rate = sample.rate.bytes() as f64 * (1.0 - overestimate(&sample, ack.jitter));
        let recent = ack.recent.filter(|_| low_jitter).map_or(0.0, |recent| recent.bytes() as f64);
        if !self.is_tracking() {
            self.rate = self.rate.max(rate).max(recent);
        }
        self.round_best = self.round_best.max(rate);
        self.samples += 1;
        if busy {
            self.busy_samples += 1;
            self.busy_best = self.busy_best.max(rate);
            self.busy = true;
        }
    }

    /// Called while the queue is long: sets the estimate to the recent arrival rate if the bottleneck was busy since
    /// the last look. Uses the better of two looks, because a pause in arrivals (a new route, a radio's scheduler) is
    /// no slower link.
    pub fn track_down(&mut self, ack: &AckSample, window: Duration) {
        let Some(recent) = ack.recent.filter(|_| self.busy) else { return };
        if ack.now.since(self.tracked_at) >= window.max(MIN_INTERVAL) {
            let recent = recent.bytes() as f64;
            self.rate = if self.is_tracking() { recent.max(self.previous_recent) } else { self.rate };
            (self.previous_recent, self.tracked_at, self.busy) = (recent, ack.now, false);
        }
    }

    /// Returns true while the estimate follows the recent rate; an older sample then covers a faster time.
    fn is_tracking(&self) -> bool {
        self.previous_recent.is_finite()
    }

    /// Stops following the recent rate, because the queue is short.
    pub fn stop_tracking(&mut self, now: Time) {
        (self.busy, self.previous_recent, self.tracked_at) = (false, f64::INFINITY, now);
    }

    /// Reacts to excess loss: lowers the estimate to the best rate of the last two rounds, but by at most 30 % per
    /// reduction (BBRv3's beta).
    pub fn on_congestion(&mut self) {
        let best = self.round_best.max(self.last_round_best);
        self.rate = self.rate.min(best.max(self.rate * LOSS_BETA));
    }

    /// Ends a measuring interval: if the bottleneck was busy for at least half of its samples, the best busy sample is
    /// an upper bound of the estimate. A round shorter than [`MIN_INTERVAL`] extends into the next.
    pub fn end_round(&mut self, now: Time) {
        if now.since(self.round_ended) < MIN_INTERVAL {
            return;
        }
        self.round_ended = now;
        if self.busy_samples * 2 >= self.samples && self.busy_best > 0.0 {
            self.rate = self.rate.min(self.busy_best);
        }
        self.last_round_best = std::mem::take(&mut self.round_best);
        (self.busy_best, self.samples, self.busy_samples) = (0.0, 0, 0);
    }
}

/// Returns the fraction by which a sample may be too high. Jitter J moves arrivals across the ends of an interval T, so
/// a count of n has a standard deviation of about sqrt(n J / T). One standard deviation is subtracted; more would keep
/// a flow from growing beside another. Packets further apart than ACKs delay each other by up to a packet's time, and
/// each is acknowledged: that part of J adds no error.
fn overestimate(sample: &RateSample, jitter: Duration) -> f64 {
    let interval = sample.sending.max(sample.arriving).as_secs_f64();
    let packets = (sample.bytes as f64 / PACKET).max(1.0);
    let spacing = interval / packets;
    let serialization = if spacing >= MIN_ACK_INTERVAL.as_secs_f64() { spacing } else { 0.0 };
    let jitter = (jitter.as_secs_f64() - serialization).max(0.0);
    (jitter / interval / packets).sqrt().min(MAX_OVERESTIMATE)
}

/// Bytes of a full packet, approximately.
const PACKET: f64 = 1_400.0;

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(40);

    /// Builds a sample over a round trip at `mbit` Mbit/s, with a recent rate of `recent` Mbit/s.
    fn ack(ms: u64, mbit: u64, recent: u64) -> AckSample {
        let rate = Rate::from_bits(mbit * 1_000_000);
        let sample = RateSample { rate, bytes: rate.bytes_in(RTT), sending: RTT, arriving: RTT };
        let recent = Some(Rate::from_bits(recent * 1_000_000));
        AckSample { now: at(ms), rate: Some(sample), recent, ..AckSample::default() }
    }

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    fn mbit(bandwidth: &Bandwidth) -> f64 {
        bandwidth.rate() * 8e-6
    }

    #[test]
    fn a_low_sample_is_ignored_unless_the_bottleneck_was_busy() {
        let mut bandwidth = Bandwidth::new();
        bandwidth.on_ack(&ack(0, 50, 0), false, false);
        bandwidth.end_round(at(40));
        bandwidth.on_ack(&ack(40, 5, 0), false, false);
        bandwidth.end_round(at(80));
        assert_eq!(mbit(&bandwidth), 50.0, "the application had little to send");
        bandwidth.on_ack(&ack(80, 40, 0), true, false);
        bandwidth.end_round(at(120));
        assert_eq!(mbit(&bandwidth), 40.0, "a queue grew while 40 Mbit/s came out of it");
    }

    #[test]
    fn the_estimate_follows_a_collapsed_link_at_the_second_sample() {
        let mut bandwidth = Bandwidth::new();
        bandwidth.on_ack(&ack(0, 50, 50), false, true);
        bandwidth.stop_tracking(Time::START);
        bandwidth.on_ack(&ack(20, 30, 5), true, true);
        bandwidth.track_down(&ack(20, 30, 5), RTT / 4);
        assert_eq!(mbit(&bandwidth), 50.0);
        bandwidth.on_ack(&ack(30, 20, 5), true, true);
        bandwidth.track_down(&ack(30, 20, 5), RTT / 4);
        assert_eq!(mbit(&bandwidth), 5.0);
        bandwidth.on_ack(&ack(35, 20, 5), true, true);
        assert_eq!(mbit(&bandwidth), 5.0, "a sample that covers the faster time is ignored");
    }

    #[test]
    fn a_longer_route_is_no_slower_link() {
        let mut bandwidth = Bandwidth::new();
        bandwidth.on_ack(&ack(0, 50, 50), true, true);
        for n in 1..10 {
            bandwidth.on_ack(&ack(n * 10, 20, 5), false, true);
            bandwidth.track_down(&ack(n * 10, 20, 5), RTT / 4);
        }
        assert_eq!(mbit(&bandwidth), 50.0, "since the delay grew, nothing took longer to arrive than to be sent");
    }

    #[test]
    fn a_pause_longer_than_a_short_round_trip_is_no_slower_link() {
        let mut bandwidth = Bandwidth::new();
        bandwidth.on_ack(&ack(0, 50, 0), false, false);
        bandwidth.end_round(at(10));
        for ms in 11..20 {
            bandwidth.on_ack(&ack(ms, 5, 0), true, false);
            bandwidth.end_round(at(ms));
            assert_eq!(mbit(&bandwidth), 50.0, "{ms} ms");
        }
        bandwidth.on_ack(&ack(20, 48, 0), true, false);
        bandwidth.end_round(at(20));
        assert_eq!(mbit(&bandwidth), 48.0);
        for ms in 21..=30 {
            bandwidth.on_ack(&ack(ms, 5, 0), true, false);
            bandwidth.end_round(at(ms));
        }
        assert_eq!(mbit(&bandwidth), 5.0, "a lasting low rate is");
    }

    #[test]
    fn one_round_of_loss_lowers_the_estimate_by_at_most_30_percent() {
        let mut bandwidth = Bandwidth::new();
        bandwidth.on_ack(&ack(0, 50, 0), false, false);
        bandwidth.end_round(at(40));
        bandwidth.end_round(at(80));
        bandwidth.on_ack(&ack(40, 10, 0), false, false);
        bandwidth.on_congestion();
        assert!((mbit(&bandwidth) - 35.0).abs() < 1e-9);
    }
}
