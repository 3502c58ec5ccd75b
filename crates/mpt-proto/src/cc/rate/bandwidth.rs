//! How fast the bottleneck is.
//!
//! A delivery rate says how fast the path is only when the path was full. So the estimate rises with any sample above it,
//! because nothing arrives faster than the bottleneck lets it, and falls only when data demonstrably took longer to arrive
//! than to be sent: then the bottleneck was busy, and what arrived *is* its rate. A low sample without that proof says
//! nothing and changes nothing, so neither an idle application nor a lossy path makes the estimate sink.

use std::time::Duration;

use crate::path::ack_generator::SPACING;
use crate::path::delivery_rate::RateSample;
use crate::path::sample::AckSample;
use crate::time::{Rate, Time};

/// Estimate of one path's bottleneck, in bytes per second.
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
    /// Nothing is known.
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

    /// The estimate, zero while there is none.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The rate is known before the path has been filled.
    pub fn set_initial(&mut self, rate: Rate) {
        self.rate = rate.bytes() as f64;
    }

    /// Takes in a sample; `busy` when it is proof that the bottleneck was, `steady` when the path keeps time well enough
    /// to believe what arrived within half a round trip.
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

    /// The queue is long: if the bottleneck has been seen to be busy since the last look, what came in lately is its rate. The better of
    /// the last two looks, because a pause in arrivals (a new route, a radio's scheduler) makes no slower link.
    pub fn track_down(&mut self, ack: &AckSample, window: Duration) {
        let Some(recent) = ack.recent.filter(|_| self.busy) else { return };
        if ack.now.since(self.tracked_at) >= window.max(MIN_INTERVAL) {
            let recent = recent.bytes() as f64;
            self.rate = if self.is_tracking() { recent.max(self.previous_recent) } else { self.rate };
            (self.previous_recent, self.tracked_at, self.busy) = (recent, ack.now, false);
        }
    }

    /// Whether the estimate is what came in lately: then a sample that reaches back to better times says nothing.
    fn is_tracking(&self) -> bool {
        self.previous_recent.is_finite()
    }

    /// There is no queue to follow.
    pub fn stop_tracking(&mut self, now: Time) {
        (self.busy, self.previous_recent, self.tracked_at) = (false, f64::INFINITY, now);
    }

    /// More was lost than usual: what arrived at best in the last two rounds is what the path takes, but one look at it
    /// takes no more than three tenths away (BBRv3's beta).
    pub fn on_congestion(&mut self) {
        let best = self.round_best.max(self.last_round_best);
        self.rate = self.rate.min(best.max(self.rate * LOSS_BETA));
    }

    /// Ends a round, and with it a look at the path: if the bottleneck was busy for most of it, the best of what arrived through it is its
    /// rate. A round that is too short to tell goes on.
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

/// By what fraction a sample may be too high. Jitter J moves arrivals over the ends of an interval T, so a count of n is off
/// by about sqrt(n J / T). One standard deviation is taken off: more keeps a flow from growing beside another. Packets that are further
/// apart than ACKs must be wait for each other, up to a packet's time, and are counted one by one: so much of J blurs nothing.
fn overestimate(sample: &RateSample, jitter: Duration) -> f64 {
    let interval = sample.sending.max(sample.arriving).as_secs_f64();
    let packets = (sample.bytes as f64 / PACKET).max(1.0);
    let spacing = interval / packets;
    let serialization = if spacing >= SPACING.as_secs_f64() { spacing } else { 0.0 };
    let jitter = (jitter.as_secs_f64() - serialization).max(0.0);
    (jitter / interval / packets).sqrt().min(MAX_OVERESTIMATE)
}

/// About a full packet, in bytes.
const PACKET: f64 = 1_400.0;
/// Short of loss, the estimate falls by nothing that takes less: a radio, a bridge or a virtual machine pauses for as long, and where a round trip is shorter
/// its two or three ACKs would all tell of the pause.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// However jittery the path, something did arrive.
const MAX_OVERESTIMATE: f64 = 0.3;
/// BBRv3's beta.
const LOSS_BETA: f64 = 0.7;

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(40);

    /// A sample over a round trip at `mbit`, from ACKs that say `recent` Mbit/s came in lately.
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
    fn a_low_sample_says_nothing_unless_the_bottleneck_was_busy() {
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
    fn a_link_that_collapses_is_followed_at_the_second_look() {
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
        assert_eq!(mbit(&bandwidth), 5.0, "a sample that reaches back to better times is not believed");
    }

    #[test]
    fn a_route_that_became_longer_is_no_slower_link() {
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
        assert_eq!(mbit(&bandwidth), 5.0, "what lasts is");
    }

    #[test]
    fn one_round_of_loss_takes_no_more_than_three_tenths() {
        let mut bandwidth = Bandwidth::new();
        bandwidth.on_ack(&ack(0, 50, 0), false, false);
        bandwidth.end_round(at(40));
        bandwidth.end_round(at(80));
        bandwidth.on_ack(&ack(40, 10, 0), false, false);
        bandwidth.on_congestion();
        assert!((mbit(&bandwidth) - 35.0).abs() < 1e-9);
    }
}
