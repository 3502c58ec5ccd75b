//! Decides when forward error correction is used, and its overhead.
//!
//! A retransmission costs the lost bytes and a round trip. FEC costs a share of the bandwidth, and the time until the
//! next repair symbol. All later packets in order wait for a lost one: at 100 Mbit/s and 1 % loss there is a loss every
//! 12 ms, so if repairs take longer, all packets wait all the time, and the round trip of the inner flow is that of the
//! repairs. A path without loss gets no repair symbol.

use std::time::Duration;

use super::MAX_SOURCES;
use crate::time::Time;
use crate::tuning::repair::fec::{
    FALL_TIME, MAX_OVERHEAD, MIN_LOSS, MIN_LOSS_AT_SHORT_RTT, MIN_RTT, MIN_TAIL_TIMEOUT, OVERLAP, RISE_TIME, SHORT_RTT,
    TAIL_RTT_DIVISOR,
};

/// The policy of one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct FecPolicy {
    /// The share of packets lost, smoothed over some seconds.
    loss: f64,
    updated: Time,
}

/// The rate and coverage of repair symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FecSchedule {
    /// Packets from one repair symbol to the next.
    pub interval: usize,
    /// The number of packets that each symbol covers.
    pub sources: usize,
    /// The idle time after which the last packets are covered.
    pub tail_timeout: Duration,
}

impl FecPolicy {
    /// Returns the schedule for a path with this loss, round-trip time and time per packet, with `realtime` packets on
    /// it or without; `None` if FEC is not used.
    pub fn schedule(
        &mut self,
        now: Time,
        loss: f64,
        srtt: Duration,
        packet: Duration,
        realtime: bool,
    ) -> Option<FecSchedule> {
        let time_constant = if loss > self.loss { RISE_TIME } else { FALL_TIME };
        let weight = now.since(self.updated).min(time_constant).as_secs_f64() / time_constant.as_secs_f64();
        (self.loss, self.updated) = (self.loss + (loss - self.loss) * weight, now);
        let min_loss = if realtime || srtt > SHORT_RTT { MIN_LOSS } else { MIN_LOSS_AT_SHORT_RTT };
        let is_useful = self.loss >= min_loss && srtt > MIN_RTT;
        // Twice the loss, plus a margin for its variance.
        let overhead = (self.loss * 2.0 + 0.01).min(MAX_OVERHEAD);
        let interval = (1.0 / overhead) as usize;
        let tail_timeout = (srtt / TAIL_RTT_DIVISOR).max(packet * 2).max(MIN_TAIL_TIMEOUT);
        is_useful.then_some(FecSchedule { interval, sources: (interval * OVERLAP).min(MAX_SOURCES), tail_timeout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64, loss: f64, srtt_ms: u64) -> Option<FecSchedule> {
        beside_realtime(seconds, loss, srtt_ms, false)
    }

    fn beside_realtime(seconds: u64, loss: f64, srtt_ms: u64, realtime: bool) -> Option<FecSchedule> {
        let mut policy = FecPolicy::default();
        let at = |ms| Time::after(Duration::from_millis(ms));
        (0..seconds * 100)
            .map(|n| {
                policy.schedule(at(n * 10), loss, Duration::from_millis(srtt_ms), Duration::from_millis(1), realtime)
            })
            .last()
            .flatten()
    }

    #[test]
    fn a_clean_path_and_one_with_a_short_rtt_get_no_repair() {
        assert_eq!(after(10, 0.0, 600), None);
        assert_eq!(beside_realtime(10, 0.02, 10, true), None);
        assert_eq!(after(10, 0.005, 60), None);
        assert!(after(10, 0.005, 61).is_some() && after(10, 0.011, 40).is_some());
        assert!(beside_realtime(10, 0.005, 11, true).is_some());
    }

    #[test]
    fn a_lossy_path_with_a_long_rtt_gets_twice_its_loss() {
        let schedule = after(20, 0.005, 640).unwrap();
        assert!((50..=60).contains(&schedule.interval) && schedule.sources == MAX_SOURCES, "{schedule:?}");
        assert_eq!(after(20, 0.10, 640).map(|schedule| schedule.interval), Some(4));
    }

    #[test]
    fn a_rising_loss_is_smoothed_over_half_a_second_and_a_falling_one_over_a_second() {
        let mut policy = FecPolicy::default();
        let mut at = |ms, loss, srtt, packet| {
            let (srtt, packet) = (Duration::from_millis(srtt), Duration::from_millis(packet));
            policy.schedule(Time::after(Duration::from_millis(ms)), loss, srtt, packet, true)
        };
        let schedule = |interval, sources, tail| {
            Some(FecSchedule { interval, sources, tail_timeout: Duration::from_millis(tail) })
        };
        // Half of the way to 10 %; the overhead is 2 * 5 % + 1 %, which is one in 9.09, and each packet is covered
        // eight times.
        assert_eq!(at(250, 0.1, 640, 1), schedule(9, 72, 80));
        // A quarter of the way to 0, to 3.75 %: one in 11.8.
        assert_eq!(at(500, 0.0, 640, 50), schedule(11, 88, 100));
        assert_eq!(at(500, 0.0, 10, 1), None, "the least RTT");
        assert_eq!(at(500, 0.0, 11, 1), schedule(11, 88, 5));
    }
}
