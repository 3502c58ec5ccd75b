//! Derives from a path's delays the queue, the part of it that is ours, and the thresholds for it.
//!
//! There are three thresholds. Below the *empty threshold* the queue counts as empty. The *target* shows that the path
//! is full: a quarter of the empty path's delay, less if the buffer is known to be smaller, more if jitter could look
//! like it. Twice the target is too much. All apply to our queue: the part above the *standing queue*, which remains
//! when our queue is drained and is due to a longer route or other flows.

use std::time::Duration;

use crate::path::sample::AckSample;
use crate::time::Time;
use crate::tuning::cc::pacing::BURST_TIME;
use crate::tuning::cc::queue_estimate::{
    HALF_WINDOW_INTERVAL, LOW_JITTER_DIVISOR, MAX_QUEUE, MIN_BUFFER, MIN_QUEUE, PROBE_RTT_INTERVAL,
};
use crate::tuning::path::rtt::INITIAL_RTT;

/// Delay estimates of one path.
#[derive(Clone, Copy, Debug)]
pub struct QueueEstimate {
    srtt: Duration,
    base_rtt: Duration,
    sojourn: Duration,
    jitter: Duration,
    queue: Duration,
    standing_queue: Duration,
    /// Serialization delay of two packets at the bottleneck.
    two_packets: Duration,
    /// Three quarters of the buffer's queue when it last overflowed.
    buffer_limit: Duration,
    round_max: Duration,
    round_min: Duration,
    /// Sum and number of the queue samples of the round.
    round_sum: (Duration, u32),
    /// Times at which the path was last measured empty, and at which ProbeRTT last used half a window.
    empty_at: Option<Time>,
    half_window_at: Option<Time>,
}

impl QueueEstimate {
    /// Creates an estimate without samples.
    pub const fn new() -> Self {
        Self {
            srtt: INITIAL_RTT,
            base_rtt: INITIAL_RTT,
            sojourn: INITIAL_RTT,
            jitter: Duration::ZERO,
            queue: Duration::ZERO,
            standing_queue: Duration::ZERO,
            two_packets: Duration::ZERO,
            buffer_limit: MAX_QUEUE,
            round_max: Duration::ZERO,
            round_min: Duration::MAX,
            round_sum: (Duration::ZERO, 0),
            empty_at: None,
            half_window_at: None,
        }
    }

    /// Processes a sample; `two_packets` is the serialization delay of two full packets.
    pub fn on_ack(&mut self, ack: &AckSample, two_packets: Duration) {
        (self.srtt, self.base_rtt, self.sojourn) = (ack.srtt, ack.base_rtt, ack.sojourn);
        (self.jitter, self.queue, self.two_packets) = (ack.jitter, ack.queue, two_packets);
        self.round_max = self.round_max.max(self.queue());
        self.round_min = self.round_min.min(self.queue);
        self.round_sum = (self.round_sum.0 + self.queue, self.round_sum.1 + 1);
        if self.empty_at.is_none() || self.queue <= (self.target() / 8).max(MIN_QUEUE / 2) {
            self.empty_at = Some(ack.now);
        }
        self.half_window_at.get_or_insert(ack.now);
    }

    /// Ends a round: the buffer limit grows slowly, a standing queue that shrank decays quickly.
    pub fn end_round(&mut self) {
        self.buffer_limit = (self.buffer_limit + self.buffer_limit / 32).min(MAX_QUEUE);
        let standing = if self.is_low_jitter() { self.round_min } else { self.round_mean() };
        self.standing_queue -= self.standing_queue.saturating_sub(standing) / 8;
        (self.round_min, self.round_max, self.round_sum) = (Duration::MAX, Duration::ZERO, (Duration::ZERO, 0));
    }

    /// Records a buffer overflow: the buffer holds about the round's maximum queue. With low jitter, no more than was
    /// known before; with high jitter, a queue below [`MIN_QUEUE`] is not known.
    pub fn on_overflow(&mut self) {
        let (shown, least) = match self.is_low_jitter() {
            true => (self.round_max.min(self.buffer_limit), MIN_BUFFER),
            false => (self.round_max, MIN_QUEUE),
        };
        self.buffer_limit = (shown * 3 / 4).clamp(least, MAX_QUEUE);
    }

    /// Records that ProbeRTT drained our short queue; the standing queue stays as it is.
    pub fn on_probe_rtt_done(&mut self, now: Time) {
        self.empty_at = Some(now);
    }

    /// Records that ProbeRTT with half a window drained our queue: the rest is the standing queue, if one is
    /// `accepted`.
    pub fn on_half_window_done(&mut self, now: Time, accepted: bool) {
        (self.empty_at, self.half_window_at) = (Some(now), Some(now));
        let (standing, threshold) =
            if self.is_low_jitter() { (self.queue, self.target()) } else { (self.round_mean(), self.target() / 2) };
        self.standing_queue = if accepted && standing > threshold { standing } else { Duration::ZERO };
    }

    /// Returns the mean queue of the round. Where late packets delay those behind them, the minimum is often zero.
    fn round_mean(&self) -> Duration {
        self.round_sum.0 / self.round_sum.1.max(1)
    }

    /// Returns true if the path was last measured empty so long ago that the minimum delay will soon expire.
    pub fn is_probe_rtt_due(&self, now: Time) -> bool {
        self.empty_at.is_some_and(|at| now.since(at) > PROBE_RTT_INTERVAL)
    }

    /// Returns true if half a window was last used so long ago that the base delay may include our queue.
    pub fn is_half_window_due(&self, now: Time) -> bool {
        self.half_window_at.is_some_and(|at| now.since(at) > HALF_WINDOW_INTERVAL)
    }

    /// Returns our queue.
    pub fn queue(&self) -> Duration {
        self.queue.saturating_sub(self.standing_queue)
    }

    /// Returns the mean flight time of a packet without our queue.
    pub fn base(&self) -> Duration {
        self.base_rtt + self.standing_queue
    }

    /// Returns the flight time in seconds: the base, or the current mean where jitter makes the base unreliable.
    pub fn flight_time(&self) -> f64 {
        if self.is_low_jitter() { self.base() } else { self.base().max(self.sojourn) }.as_secs_f64()
    }

    /// Returns the interarrival jitter.
    pub fn jitter(&self) -> Duration {
        self.jitter
    }

    /// Returns the smoothed round-trip time.
    pub fn srtt(&self) -> Duration {
        self.srtt
    }

    /// Returns true if jitter is so low that one rate sample is reliable.
    pub fn is_low_jitter(&self) -> bool {
        self.jitter < self.base() / LOW_JITTER_DIVISOR
    }

    /// Returns the time for which packets may be sent at once: half of what the buffer is known to hold.
    pub fn max_burst_time(&self) -> Duration {
        self.buffer_limit / 2
    }

    fn burst_time(&self) -> Duration {
        BURST_TIME.min(self.max_burst_time() / 2)
    }

    /// Returns the queue that shows that the path is full.
    pub fn target(&self) -> Duration {
        self.target_queue() + self.jitter + self.burst_time()
    }

    /// Returns the delay below which the queue counts as empty. With jitter the current minimum exceeds that of 10 s.
    pub fn empty_threshold(&self) -> Duration {
        (self.target_queue() / 4 + self.jitter * 2 + self.burst_time()).min(self.target())
    }

    /// Returns true if our queue is empty.
    pub fn is_drained(&self) -> bool {
        self.queue() <= self.empty_threshold()
    }

    /// Returns true if our queue is no more than the packets by which the window exceeds what the path holds
    /// (`WINDOW_SLACK`).
    pub fn is_drained_but_for_slack(&self) -> bool {
        self.queue() <= (self.empty_threshold() + self.two_packets).min(self.target())
    }

    /// Returns true if there is no queue at all, neither ours nor a standing one.
    pub fn is_empty(&self) -> bool {
        self.queue <= self.empty_threshold()
    }

    fn target_queue(&self) -> Duration {
        let least = MIN_QUEUE.min(self.buffer_limit).max(self.two_packets.min(MAX_QUEUE));
        (self.base() / 4).min(self.buffer_limit).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn delay(base: u64, queue: u64, jitter: u64) -> QueueEstimate {
        let mut delay = QueueEstimate::new();
        let ack = AckSample { base_rtt: ms(base), queue: ms(queue), jitter: ms(jitter), ..AckSample::default() };
        delay.on_ack(&ack, Duration::ZERO);
        delay
    }

    #[test]
    fn the_target_is_a_quarter_of_the_empty_path_within_bounds_plus_a_burst() {
        assert_eq!(delay(40, 0, 0).target(), ms(10) + BURST_TIME);
        assert_eq!(delay(300, 0, 0).target(), MAX_QUEUE + BURST_TIME);
        assert_eq!(delay(1, 0, 0).target(), MIN_QUEUE + BURST_TIME);
        assert_eq!(delay(40, 0, 5).target(), ms(15) + BURST_TIME);
    }

    #[test]
    fn the_packets_that_the_window_adds_are_known() {
        let mut delay = delay(40, 0, 0);
        let ack = AckSample { base_rtt: ms(40), queue: delay.empty_threshold() + ms(2), ..AckSample::default() };
        delay.on_ack(&ack, ms(1));
        assert!(!delay.is_drained() && !delay.is_drained_but_for_slack());
        delay.on_ack(&ack, ms(2));
        assert!(!delay.is_drained() && delay.is_drained_but_for_slack());
    }

    #[test]
    fn an_overflow_lowers_the_target() {
        let mut delay = delay(100, 20, 0);
        delay.on_overflow();
        assert_eq!(delay.target(), ms(15) + BURST_TIME);
    }

    #[test]
    fn a_remaining_queue_becomes_the_standing_queue_and_decays_when_it_goes() {
        let mut delay = delay(80, 40, 0);
        delay.on_half_window_done(Time::START, true);
        assert_eq!((delay.queue(), delay.base()), (ms(0), ms(120)));
        for _ in 0..40 {
            delay.on_ack(&AckSample { base_rtt: ms(80), ..AckSample::default() }, Duration::ZERO);
            delay.end_round();
        }
        assert!(delay.base() < ms(81), "{:?}", delay.base());
    }

    #[test]
    fn a_short_buffer_bounds_the_target_and_bursts_and_grows_again() {
        let mut delay = delay(20, 2, 0);
        let long = delay.target();
        delay.on_overflow();
        assert_eq!(delay.max_burst_time(), Duration::from_micros(750));
        assert!(delay.target() < long / 2, "{:?}", delay.target());
        (0..200).for_each(|_| delay.end_round());
        assert_eq!(delay.target(), long);
    }
}
