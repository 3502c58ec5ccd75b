//! When forward error correction pays, and how much of it.
//!
//! Asking for a lost packet costs what is lost, and a round trip. Correction costs a share of everything, and the time until the
//! next repair symbol. Whatever is in order behind a lost packet waits for it: at 100 Mbit/s and 1 % lost there is a loss every twelve
//! milliseconds, so with repairs that take longer, all packets wait all the time, and the inner flow's round trip is that of the repairs.
//! A clean path gets no repair symbol at all.

use std::time::Duration;

use super::MAX_SOURCES;
use crate::time::Time;

/// Decides for one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct FecPolicy {
    /// The share of packets lost, over some seconds.
    loss: f64,
    updated: Time,
}

/// How much to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FecSchedule {
    /// Packets from one repair symbol to the next.
    pub every: usize,
    /// Packets that each of them covers.
    pub sources: usize,
    /// The last packets are covered when nothing has followed for so long.
    pub quiet: Duration,
}

impl FecPolicy {
    /// What to do on a path that loses this share, takes so long, and so long for each packet.
    pub fn schedule(&mut self, now: Time, loss: f64, srtt: Duration, packet: Duration) -> Option<FecSchedule> {
        let memory = if loss > self.loss { RISE } else { FALL };
        let passed = now.since(self.updated).min(memory).as_secs_f64() / memory.as_secs_f64();
        (self.loss, self.updated) = (self.loss + (loss - self.loss) * passed, now);
        let pays = self.loss >= LEAST_LOSS && srtt > LONG;
        // Twice what is lost, and a little for bad luck.
        let share = (self.loss * 2.0 + 0.01).min(MOST_SHARE);
        let every = (1.0 / share) as usize;
        let quiet = (srtt / TAIL).max(packet * 2).max(LEAST_TAIL);
        pays.then_some(FecSchedule { every, sources: (every * OVERLAP).min(MAX_SOURCES), quiet })
    }
}

/// A repair that takes no longer than this is lost among the milliseconds for which ACKs are gathered and runs of packets wait.
const LONG: Duration = Duration::from_millis(10);
/// Below this, a packet in a thousand, repairs are too rare to matter.
const LEAST_LOSS: f64 = 0.001;
/// The most that is spent: a path that loses more than an eighth is left alone soon.
const MOST_SHARE: f64 = 0.25;
/// Each packet is covered by so many repair symbols: the luck of many intervals evens out. Each costs a multiplication of every byte.
const OVERLAP: usize = 8;
/// A path that begins to lose packets is protected soon, and for a while after the last loss.
const RISE: Duration = Duration::from_millis(500);
const FALL: Duration = Duration::from_secs(1);
/// The last packets are not covered before the next one of a steady flow may come: this part of a round trip, two packets, and not sooner.
const TAIL: u32 = 8;
const LEAST_TAIL: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64, loss: f64, srtt_ms: u64) -> Option<FecSchedule> {
        let mut policy = FecPolicy::default();
        let at = |ms| Time::after(Duration::from_millis(ms));
        (0..seconds * 100)
            .map(|n| policy.schedule(at(n * 10), loss, Duration::from_millis(srtt_ms), Duration::from_millis(1)))
            .last()
            .flatten()
    }

    #[test]
    fn a_clean_path_and_a_short_one_get_nothing() {
        assert_eq!(after(10, 0.0, 600), None);
        assert_eq!(after(10, 0.02, 5), None);
    }

    #[test]
    fn a_long_lossy_path_gets_twice_what_it_loses() {
        let schedule = after(20, 0.005, 640).unwrap();
        assert!((50..=60).contains(&schedule.every) && schedule.sources == MAX_SOURCES, "{schedule:?}");
        assert_eq!(after(20, 0.10, 640).map(|schedule| schedule.every), Some(4));
    }
}
