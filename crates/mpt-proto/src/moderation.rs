//! Wake-up moderation: under load, input waits for a fraction of the round trip and is processed together, as network
//! cards do with interrupts.
//!
//! At 100 Mbit/s a packet comes every 0.12 ms, and a process that is woken for each spends its time on waking up: at
//! 10 ms of RTT, moderation takes off a third of the processor time and half of the receiver's system calls.

use std::time::Duration;

use crate::time::Time;
use crate::tuning::moderation::{LOAD, MAX_GAP, MIN};

/// Decides how long new input waits.
#[derive(Debug, Default)]
pub(crate) struct Moderation {
    /// The time of the last turn with traffic.
    last: Option<Time>,
    /// Number of turns with traffic that came one soon after the other.
    streak: u32,
    /// The shortest interval of the peers that were flushed in this turn.
    interval: Option<Duration>,
}

impl Moderation {
    /// A peer was flushed whose input may wait for `interval`.
    pub(crate) fn on_flush(&mut self, interval: Duration) {
        self.interval = self.interval.into_iter().chain([interval]).min();
    }

    /// Ends a turn. Returns the time until which new input waits; absent without load, and if that is hardly longer
    /// than a wake-up takes.
    pub(crate) fn end_turn(&mut self, now: Time) -> Option<Time> {
        let interval = self.interval.take()?;
        let last = self.last.replace(now)?;
        self.streak = if now.since(last) < interval * MAX_GAP { self.streak.saturating_add(1) } else { 0 };
        (interval >= MIN && self.streak >= LOAD).then(|| now + interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_waits_under_load_only() {
        let at = |micros| Time::after(Duration::from_micros(micros));
        let mut moderation = Moderation::default();
        let mut turn = |now: u64, intervals: &[u64]| {
            intervals.iter().for_each(|micros| moderation.on_flush(Duration::from_micros(*micros)));
            moderation.end_turn(at(now))
        };
        for packet in 0..u64::from(LOAD) {
            assert_eq!(turn(packet * 100, &[500]), None, "the first packets");
        }
        let start = u64::from(LOAD) * 100;
        assert_eq!(turn(start, &[500]), Some(at(start + 500)));
        assert_eq!(turn(start + 500, &[500, 200]), Some(at(start + 700)), "the nearer peer decides");
        assert_eq!(turn(start + 700, &[]), None, "a turn without traffic");
        assert_eq!(turn(start + 800, &[99]), None, "shorter than a wake-up takes");
        assert_eq!(turn(start + 900, &[500]), Some(at(start + 1_400)));
        assert_eq!(turn(start + 3_000, &[500]), None, "the next packet after a pause");
    }
}
