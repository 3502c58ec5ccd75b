//! The recent send rate of a path, and the size of a burst.

use crate::time::{Rate, Time};
use crate::tuning::path::send_rate::{BURST_TIME, MAX_BURST, WINDOW};

/// Send rate over windows of 10 ms, smoothed.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendRate {
    began: Time,
    bytes: u64,
    rate: Rate,
}

impl SendRate {
    /// Counts `bytes` as sent.
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

    /// Returns the smoothed rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the size of a burst in bytes: at least one byte, so at least one packet.
    pub fn burst(&self) -> u64 {
        self.rate.bytes_in(BURST_TIME).clamp(1, MAX_BURST)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_slow_path_sends_single_packets_and_a_fast_one_bursts() {
        let after_a_second_at = |mbit: u64| {
            let mut send_rate = SendRate::default();
            let per_ms = Rate::from_bits(mbit * 1_000_000).bytes() / 1_000;
            (0..1_000).for_each(|ms| send_rate.on_sent(Time::after(Duration::from_millis(ms)), per_ms as usize));
            send_rate.burst()
        };
        assert!(after_a_second_at(10) < 1_400);
        assert!((5_600..7_000).contains(&after_a_second_at(100)), "{}", after_a_second_at(100));
        assert_eq!(after_a_second_at(10_000), 64_000);
    }
}
