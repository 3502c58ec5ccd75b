//! What the controller makes of a path's delays: what is queue, whose it is, and how much is enough.
//!
//! Three lengths of queue matter. *Drained* is as good as none. *Enough* proves that the path is full: a quarter of what
//! the empty path takes, less where the buffer is known to hold less, more where jitter would look like it. Twice that is
//! *too much*. All of it is what stands beyond the *foreign* queue, which stays when ours is gone: a longer route, or
//! somebody else's packets.

use std::time::Duration;

use crate::path::rtt::INITIAL_RTT;
use crate::path::sample::AckSample;
use crate::time::Time;

/// Delays of one path.
#[derive(Clone, Copy, Debug)]
pub struct QueueEstimate {
    srtt: Duration,
    base_rtt: Duration,
    sojourn: Duration,
    jitter: Duration,
    queue: Duration,
    standing_queue: Duration,
    /// Two packets at the bottleneck.
    two_packets: Duration,
    /// Three quarters of what the buffer held when it last dropped.
    buffer_limit: Duration,
    round_max: Duration,
    round_min: Duration,
    /// Sum of the queues that the round's ACKs told of, and their number.
    round_sum: (Duration, u32),
    /// When the path was last seen empty, and last emptied on purpose.
    empty_at: Option<Time>,
    half_window_at: Option<Time>,
}

impl QueueEstimate {
    /// Nothing is known.
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

    /// Takes in a sample; two full packets take `packets` at the bottleneck.
    pub fn on_ack(&mut self, ack: &AckSample, packets: Duration) {
        (self.srtt, self.base_rtt, self.sojourn) = (ack.srtt, ack.base_rtt, ack.sojourn);
        (self.jitter, self.queue, self.two_packets) = (ack.jitter, ack.queue, packets);
        self.round_max = self.round_max.max(self.queue());
        self.round_min = self.round_min.min(self.queue);
        self.round_sum = (self.round_sum.0 + self.queue, self.round_sum.1 + 1);
        if self.empty_at.is_none() || self.queue <= (self.target() / 8).max(MIN_QUEUE / 2) {
            self.empty_at = Some(ack.now);
        }
        self.half_window_at.get_or_insert(ack.now);
    }

    /// Ends a round: a known ceiling is forgotten slowly, a foreign queue that shrank quickly.
    pub fn end_round(&mut self) {
        self.buffer_limit = (self.buffer_limit + self.buffer_limit / 32).min(MAX_QUEUE);
        let standing = if self.is_low_jitter() { self.round_min } else { self.round_mean() };
        self.standing_queue -= self.standing_queue.saturating_sub(standing) / 8;
        (self.round_min, self.round_max, self.round_sum) = (Duration::MAX, Duration::ZERO, (Duration::ZERO, 0));
    }

    /// The buffer dropped: it holds about the most queue of this round.
    pub fn on_overflow(&mut self) {
        self.buffer_limit = (self.round_max * 3 / 4).clamp(MIN_QUEUE, MAX_QUEUE);
    }

    /// Our queue was short and has been emptied; what has been taken for foreign stays so.
    pub fn on_probe_rtt_done(&mut self, now: Time) {
        self.empty_at = Some(now);
    }

    /// Our queue has been emptied: what stands yet is foreign.
    pub fn on_half_window_done(&mut self, now: Time) {
        (self.empty_at, self.half_window_at) = (Some(now), Some(now));
        let (standing, threshold) =
            if self.is_low_jitter() { (self.queue, self.target()) } else { (self.round_mean(), self.target() / 2) };
        self.standing_queue = if standing > threshold { standing } else { Duration::ZERO };
    }

    /// The mean queue of the round. Where late packets delay those behind them, the least is often none at all.
    fn round_mean(&self) -> Duration {
        self.round_sum.0 / self.round_sum.1.max(1)
    }

    /// Whether nobody has seen the path empty for so long that its own delay will soon be forgotten.
    pub fn is_probe_rtt_due(&self, now: Time) -> bool {
        self.empty_at.is_some_and(|at| now.since(at) > PROBE_RTT_INTERVAL)
    }

    /// Whether it was last emptied so long ago that what is taken for its own delay may be our queue.
    pub fn is_half_window_due(&self, now: Time) -> bool {
        self.half_window_at.is_some_and(|at| now.since(at) > HALF_WINDOW_INTERVAL)
    }

    /// Our standing queue.
    pub fn queue(&self) -> Duration {
        self.queue.saturating_sub(self.standing_queue)
    }

    /// For how long a packet is in flight when none of our queue stands.
    pub fn base(&self) -> Duration {
        self.base_rtt + self.standing_queue
    }

    /// For how long a packet is in flight, in seconds: what it is at present where jitter makes the least unreliable.
    pub fn flight_time(&self) -> f64 {
        if self.is_low_jitter() { self.base() } else { self.base().max(self.sojourn) }.as_secs_f64()
    }

    /// Interarrival jitter.
    pub fn jitter(&self) -> Duration {
        self.jitter
    }

    /// Smoothed round-trip time.
    pub fn srtt(&self) -> Duration {
        self.srtt
    }

    /// Whether the path keeps time so well that one look at it is enough.
    pub fn is_low_jitter(&self) -> bool {
        self.jitter < self.base() / LOW_JITTER_DIVISOR
    }

    /// How much queue is enough.
    pub fn target(&self) -> Duration {
        self.target_queue() + self.jitter + BURST_TIME
    }

    /// How much queue is none: jitter keeps the latest minimum above that of the last ten seconds.
    pub fn empty_threshold(&self) -> Duration {
        (self.target_queue() / 4 + self.jitter * 2 + BURST_TIME).min(self.target())
    }

    /// Whether there is a queue at all.
    pub fn is_drained(&self) -> bool {
        self.queue() <= self.empty_threshold()
    }

    /// Whether there is no queue, not even a foreign one.
    pub fn is_empty(&self) -> bool {
        self.queue <= self.empty_threshold()
    }

    fn target_queue(&self) -> Duration {
        (self.base() / 4).min(self.buffer_limit).max(MIN_QUEUE).max(self.two_packets.min(MAX_QUEUE))
    }
}

/// Below this a queue cannot be told from the spacing of ACKs.
const MIN_QUEUE: Duration = Duration::from_millis(1);
/// Beyond this a queue is felt by people (the lab's limit for added latency is 60 ms at the 99th percentile).
const MAX_QUEUE: Duration = Duration::from_millis(25);
/// The packets of one burst wait for each other: see `Controller::burst`.
const BURST_TIME: Duration = Duration::from_micros(500);
/// Jitter below a thirty-second of a round trip does not blur a rate measured over half of one by more than a tenth.
const LOW_JITTER_DIVISOR: u32 = 32;
/// Half of the time for which a minimum is remembered.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// A queue that is drained but for a little each time creeps; this often, the path is emptied for certain.
const HALF_WINDOW_INTERVAL: Duration = Duration::from_secs(30);

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
    fn enough_is_a_quarter_of_the_empty_path_within_bounds_and_a_burst() {
        assert_eq!(delay(40, 0, 0).target(), ms(10) + BURST_TIME);
        assert_eq!(delay(300, 0, 0).target(), MAX_QUEUE + BURST_TIME);
        assert_eq!(delay(1, 0, 0).target(), MIN_QUEUE + BURST_TIME);
        assert_eq!(delay(40, 0, 5).target(), ms(15) + BURST_TIME);
    }

    #[test]
    fn a_buffer_that_overflowed_is_given_less() {
        let mut delay = delay(100, 20, 0);
        delay.on_overflow();
        assert_eq!(delay.target(), ms(15) + BURST_TIME);
    }

    #[test]
    fn what_stays_when_ours_is_gone_is_foreign_and_forgotten_when_it_goes() {
        let mut delay = delay(80, 40, 0);
        delay.on_half_window_done(Time::START);
        assert_eq!((delay.queue(), delay.base()), (ms(0), ms(120)));
        for _ in 0..40 {
            delay.on_ack(&AckSample { base_rtt: ms(80), ..AckSample::default() }, Duration::ZERO);
            delay.end_round();
        }
        assert!(delay.base() < ms(81), "{:?}", delay.base());
    }
}
