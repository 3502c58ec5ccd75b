//! How fast a path has been used lately, and how much is worth sending on it in one go.

use std::time::Duration;

use crate::time::{Rate, Time};

/// Bytes per second over windows of [`WINDOW`], smoothed.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendRate {
    began: Time,
    bytes: u64,
    rate: Rate,
}

const WINDOW: Duration = Duration::from_millis(10);
/// What a path sends in this time may leave in one run: longer runs delay the other paths' packets of the same flow
/// and burst into shallow queues, shorter ones cost system calls (io-and-limits: "half a millisecond").
const RUN: Duration = Duration::from_micros(500);
/// The longest run: one send with segmentation offload.
const MAX_RUN: u64 = 64_000;

impl SendRate {
    /// Counts what was sent.
    pub fn on_sent(&mut self, now: Time, bytes: usize) {
        let elapsed = now.since(self.began);
        if elapsed >= WINDOW {
            let seen = Rate::of(self.bytes, elapsed);
            self.rate =
                if elapsed > 16 * WINDOW { seen } else { Rate::from_bytes((self.rate.bytes() + seen.bytes()) / 2) };
            (self.began, self.bytes) = (now, 0);
        }
        self.bytes += bytes as u64;
    }

    /// The smoothed rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Bytes worth sending in one go; at least one byte, so at least one packet.
    pub fn burst(&self) -> u64 {
        self.rate.bytes_in(RUN).clamp(1, MAX_RUN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_path_sends_single_packets_and_a_fast_one_whole_runs() {
        let after_a_second_at = |mbit: u64| {
            let mut meter = SendRate::default();
            let per_ms = Rate::from_bits(mbit * 1_000_000).bytes() / 1_000;
            (0..1_000).for_each(|ms| meter.on_sent(Time::after(Duration::from_millis(ms)), per_ms as usize));
            meter.burst()
        };
        assert!(after_a_second_at(10) < 1_400);
        assert!((5_600..7_000).contains(&after_a_second_at(100)), "{}", after_a_second_at(100));
        assert_eq!(after_a_second_at(10_000), 64_000);
    }
}
