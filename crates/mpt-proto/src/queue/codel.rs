//! CoDel (RFC 8289): drops packets of a queue that persists.
//!
//! The queue of a burst is temporary. A queue whose delay stays above *target* for a whole *interval* is a standing
//! queue: it adds delay and no throughput. CoDel then drops one packet, and after the n-th drop the next one `interval
//! / sqrt(n)` later. TCP throughput is proportional to one over the square root of the loss rate, so the sending rate
//! falls linearly with time until the queue is gone.
//!
//! The pseudo-code of section 5 is a loop around `dequeue`. Here the decision is a function of one packet, so that the
//! packet at the front can be inspected and left there. The control law (section 5.6) runs when a packet is dropped,
//! and in the pseudo-code at the next dequeue: only the state kept after leaving the dropping state can differ.

use std::time::Duration;

use crate::time::Time;
use crate::tuning::queue::codel::LIMITED_FACTOR;

/// CoDel's two parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodelParams {
    /// Acceptable standing queue.
    pub target: Duration,
    /// Time for which the delay may exceed the target: a round trip of the flows in the queue.
    pub interval: Duration,
}

impl CodelParams {
    /// Returns the parameters for a flow whose receive window this end limits. It has a longer queue only if it
    /// disregards the limit, or if the paths' rates fell.
    pub fn of_limited_flow(self) -> Self {
        let target = self.target * LIMITED_FACTOR;
        Self { target, interval: self.interval + target - self.target }
    }
}

/// CoDel's state of one queue. Names as in the RFC.
#[derive(Debug, Default)]
pub(super) struct Codel {
    /// Time at which the delay will have been above target for an interval.
    first_above_time: Option<Time>,
    dropping: bool,
    drop_next: Time,
    /// Packets dropped since it entered the dropping state.
    count: u32,
    /// `count` when it entered the dropping state.
    last_count: u32,
}

impl Codel {
    /// Returns true if the packet at the front must be dropped or marked. It arrived at `arrived` and has `behind`
    /// bytes behind it. Must be called once per packet.
    pub fn should_drop(&mut self, now: Time, arrived: Time, behind: usize, params: CodelParams) -> bool {
        if !self.ok_to_drop(now, arrived, behind, params) {
            self.dropping = false;
            return false;
        }
        if !self.dropping {
            self.enter_dropping(now, params);
            return true;
        }
        let due = now >= self.drop_next;
        if due {
            self.count = self.count.saturating_add(1);
            self.drop_next += control_law(self.count, params);
        }
        due
    }

    /// Resets the state because the queue is empty.
    pub fn on_empty(&mut self) {
        self.first_above_time = None;
        self.dropping = false;
    }

    /// The pseudo-code's `ok_to_drop`: the delay was above target for an interval, and this packet is not the last.
    fn ok_to_drop(&mut self, now: Time, arrived: Time, behind: usize, params: CodelParams) -> bool {
        if now.since(arrived) < params.target || behind <= MAX_PACKET {
            self.first_above_time = None;
            return false;
        }
        now >= *self.first_above_time.get_or_insert(now + params.interval)
    }

    /// Enters the dropping state. If it was left recently, resumes near the drop rate that controlled the queue.
    fn enter_dropping(&mut self, now: Time, params: CodelParams) {
        let delta = self.count - self.last_count;
        let is_recent = now.since(self.drop_next) < params.interval * 16;
        self.count = if delta > 1 && is_recent { delta } else { 1 };
        self.last_count = self.count;
        self.dropping = true;
        self.drop_next = now + control_law(self.count, params);
    }
}

/// Returns the time between drop number `count` and the next.
fn control_law(count: u32, params: CodelParams) -> Duration {
    params.interval.div_f64(f64::from(count).sqrt())
}

/// A backlog of one Ethernet frame is never dropped. The RFC tracks the largest packet; a tunnel's is known.
const MAX_PACKET: usize = 1_514;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const DELAY: CodelParams = CodelParams { target: Duration::from_millis(5), interval: Duration::from_millis(100) };

    fn at(ms: u64) -> Time {
        Time::after(MS * ms as u32)
    }

    /// Returns when packets are dropped from a queue with a constant delay `sojourn`, checked every 10 us.
    fn drops(codel: &mut Codel, from: Time, len: Duration, sojourn: Duration) -> Vec<Time> {
        let steps = (0..len.as_micros() as u64 / 10).map(|i| from + Duration::from_micros(i * 10));
        steps.filter(|now| codel.should_drop(*now, *now - sojourn, 100_000, DELAY)).collect()
    }

    #[test]
    fn the_nth_drop_follows_after_interval_over_sqrt_n() {
        let drops = drops(&mut Codel::default(), at(1_000), MS * 2_000, MS * 50);
        assert_eq!(drops[0], at(1_100), "an interval after the delay was first above target");
        let mut expected = 1_100.0;
        for (n, drop) in drops.iter().enumerate().skip(1) {
            expected += 100.0 / (n as f64).sqrt();
            let actual = drop.as_nanos() as f64 / 1e6;
            assert!((0.0..0.011).contains(&(actual - expected)), "drop {n} at {actual}, expected {expected}");
        }
        // The sum of 1/sqrt(i) up to n is 2 sqrt(n) - 1.46 + 1/(2 sqrt(n)), so 1.9 s are 19 intervals: n = 104.
        assert_eq!(drops.len(), 105);
    }

    #[test]
    fn a_burst_shorter_than_an_interval_loses_nothing() {
        let mut codel = Codel::default();
        for burst in 0..100 {
            let from = at(1_000 + burst * 100);
            assert_eq!(drops(&mut codel, from, MS * 99, MS * 80), []);
            assert!(!codel.should_drop(from + MS * 99, from + MS * 95, 100_000, DELAY), "one packet waited 4 ms");
        }
    }

    #[test]
    fn the_last_packet_is_never_dropped_however_late() {
        let mut codel = Codel::default();
        assert!((0..1_000).all(|ms| !codel.should_drop(at(10_000 + ms), at(0), 1_514, DELAY)));
    }

    #[test]
    fn a_queue_that_returns_soon_meets_the_previous_drop_rate() {
        let mut codel = Codel::default();
        let first = drops(&mut codel, at(1_000), MS * 700, MS * 50);
        assert!(!codel.should_drop(at(1_700), at(1_700), 100_000, DELAY));
        let second = drops(&mut codel, at(1_701), MS * 200, MS * 50);
        // The first of `first.len()` drops entered the state and counts as `last_count`; the others are `delta`.
        let pause = second[1].since(second[0]);
        let expected = (MS * 100).div_f64((first.len() as f64 - 1.0).sqrt());
        assert_eq!(second[0], at(1_801));
        assert!(pause >= expected && pause < expected + MS / 50, "{pause:?}, expected {expected:?}");
    }

    #[test]
    fn a_queue_that_returns_late_is_a_new_one() {
        let mut codel = Codel::default();
        drops(&mut codel, at(1_000), MS * 700, MS * 50);
        assert!(!codel.should_drop(at(1_700), at(1_700), 100_000, DELAY));
        let second = drops(&mut codel, at(1_700 + 16 * 100), MS * 250, MS * 50);
        assert_eq!(second[1].since(second[0]), MS * 100);
    }
}
