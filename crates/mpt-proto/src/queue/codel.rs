//! CoDel (RFC 8289): a queue is bad when it stands.
//!
//! What a burst brings is gone after a while; what is there for a whole *interval* without the delay once falling below
//! *target* is a standing queue, which adds delay and no throughput. Then one packet is taken out, and more of them ever
//! sooner, the n-th `interval / sqrt(n)` after the one before, because a TCP's throughput goes with one over the square
//! root of its loss rate: its rate falls linearly with time until the queue is gone.
//!
//! The pseudo-code of section 5 is one loop around `dequeue`; here it is a question asked of one packet after the other, so
//! that the packet at the front can be looked at and left there. The control law (section 5.6) runs when a packet
//! is taken out, where the pseudo-code waits for the next one: only the memory of a state just left can tell.

use std::time::Duration;

use crate::time::Time;

/// CoDel's two settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodelParams {
    /// How long a queue may stand.
    pub target: Duration,
    /// For how long it may be longer: a round trip of the flows in it.
    pub interval: Duration,
}

/// What CoDel remembers of one queue. Names as in the RFC.
#[derive(Debug, Default)]
pub(super) struct Codel {
    /// When the delay will have been above target for an interval.
    first_above_time: Option<Time>,
    dropping: bool,
    drop_next: Time,
    /// Packets taken out since it began to drop.
    count: u32,
    /// `count` as it was then.
    last_count: u32,
}

impl Codel {
    /// Whether to drop, or mark, the packet at the front, which came at `arrived` and has `behind` bytes behind it.
    /// Asked once of each packet.
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

    /// The queue stands from now on: the interval is over.
    pub fn on_rate_collapse(&mut self, now: Time) {
        self.first_above_time = Some(now);
    }

    /// The queue is empty, which is as short as it gets.
    pub fn on_empty(&mut self) {
        self.first_above_time = None;
        self.dropping = false;
    }

    /// `ok_to_drop` of the pseudo-code: the delay was above target for an interval, and this packet is not the last.
    fn ok_to_drop(&mut self, now: Time, arrived: Time, behind: usize, params: CodelParams) -> bool {
        if now.since(arrived) < params.target || behind <= MAX_PACKET {
            self.first_above_time = None;
            return false;
        }
        now >= *self.first_above_time.get_or_insert(now + params.interval)
    }

    /// If it dropped a moment ago, it goes on near the rate that controlled the queue then.
    fn enter_dropping(&mut self, now: Time, params: CodelParams) {
        let delta = self.count - self.last_count;
        let is_recent = now.since(self.drop_next) < params.interval * 16;
        self.count = if delta > 1 && is_recent { delta } else { 1 };
        self.last_count = self.count;
        self.dropping = true;
        self.drop_next = now + control_law(self.count, params);
    }
}

/// The control law: the time between drop number `count` and the next.
fn control_law(count: u32, params: CodelParams) -> Duration {
    params.interval.div_f64(f64::from(count).sqrt())
}

/// What may always wait: one Ethernet frame. The RFC learns its own largest packet; that of a tunnel is known.
const MAX_PACKET: usize = 1_514;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const DELAY: CodelParams = CodelParams { target: Duration::from_millis(5), interval: Duration::from_millis(100) };

    fn at(ms: u64) -> Time {
        Time::after(MS * ms as u32)
    }

    /// When packets are taken out of a queue that stands for `sojourn`, looked at every ten microseconds.
    fn drops(codel: &mut Codel, from: Time, len: Duration, sojourn: Duration) -> Vec<Time> {
        let steps = (0..len.as_micros() as u64 / 10).map(|i| from + Duration::from_micros(i * 10));
        steps.filter(|now| codel.should_drop(*now, *now - sojourn, 100_000, DELAY)).collect()
    }

    #[test]
    fn drops_follow_each_other_after_the_interval_over_the_square_root_of_their_number() {
        let drops = drops(&mut Codel::default(), at(1_000), MS * 2_000, MS * 50);
        assert_eq!(drops[0], at(1_100), "an interval after the delay was first above target");
        let mut expected = 1_100.0;
        for (n, drop) in drops.iter().enumerate().skip(1) {
            expected += 100.0 / (n as f64).sqrt();
            let actual = drop.as_nanos() as f64 / 1e6;
            assert!((0.0..0.011).contains(&(actual - expected)), "drop {n} at {actual}, by the law {expected}");
        }
        // The sum of 1/sqrt(i) up to n is 2 sqrt(n) - 1.46 + 1/(2 sqrt(n)), so 1.9 s are 19 intervals: n = 104.
        assert_eq!(drops.len(), 105);
    }

    #[test]
    fn a_burst_that_is_gone_within_an_interval_loses_nothing() {
        let mut codel = Codel::default();
        for burst in 0..100 {
            let from = at(1_000 + burst * 100);
            assert_eq!(drops(&mut codel, from, MS * 99, MS * 80), []);
            assert!(!codel.should_drop(from + MS * 99, from + MS * 95, 100_000, DELAY), "one packet waited 4 ms");
        }
    }

    #[test]
    fn the_last_packet_is_never_taken_however_late() {
        let mut codel = Codel::default();
        assert!((0..1_000).all(|ms| !codel.should_drop(at(10_000 + ms), at(0), 1_514, DELAY)));
    }

    #[test]
    fn a_queue_that_comes_back_soon_is_met_at_the_rate_that_controlled_it() {
        let mut codel = Codel::default();
        let first = drops(&mut codel, at(1_000), MS * 700, MS * 50);
        assert!(!codel.should_drop(at(1_700), at(1_700), 100_000, DELAY));
        let second = drops(&mut codel, at(1_701), MS * 200, MS * 50);
        // Of `first.len()` drops the first began the state, which counts as `last_count`; the rest is `delta`.
        let pause = second[1].since(second[0]);
        let expected = (MS * 100).div_f64((first.len() as f64 - 1.0).sqrt());
        assert_eq!(second[0], at(1_801));
        assert!(pause >= expected && pause < expected + MS / 50, "{pause:?}, by the law {expected:?}");
    }

    #[test]
    fn after_a_squeeze_the_first_packet_that_waited_too_long_is_taken_out() {
        let mut codel = Codel::default();
        let at = |ms| Time::after(Duration::from_millis(ms));
        codel.on_rate_collapse(at(50));
        assert!(!codel.should_drop(at(52), at(50), 100_000, DELAY), "2 ms are not too long");
        codel.on_rate_collapse(at(60));
        assert!(codel.should_drop(at(62), at(50), 100_000, DELAY));
        assert!(!codel.should_drop(at(63), at(51), 100_000, DELAY), "and then one an interval later");
    }

    #[test]
    fn a_queue_that_comes_back_late_is_a_new_one() {
        let mut codel = Codel::default();
        drops(&mut codel, at(1_000), MS * 700, MS * 50);
        assert!(!codel.should_drop(at(1_700), at(1_700), 100_000, DELAY));
        let second = drops(&mut codel, at(1_700 + 16 * 100), MS * 250, MS * 50);
        assert_eq!(second[1].since(second[0]), MS * 100);
    }
}
