//! The share of the time in which this process does not wait: near 1, the processor limits the tunnel.

use std::time::Duration;

use mpt_proto::time::Time;

/// Measures the share over windows of at least a second.
#[derive(Debug, Default)]
pub struct ProcessorLoad {
    since: Time,
    waited: Duration,
    share: f64,
}

impl ProcessorLoad {
    /// Takes the time for which the event loop has waited since the start.
    pub fn poll(&mut self, now: Time, waited: Duration) {
        let elapsed = now.since(self.since);
        if elapsed >= WINDOW {
            let idle = waited.saturating_sub(self.waited).as_secs_f64() / elapsed.as_secs_f64();
            *self = Self { since: now, waited, share: (1.0 - idle).clamp(0.0, 1.0) };
        }
    }

    /// Returns the share in the last window in percent.
    pub fn percent(&self) -> u8 {
        (self.share * 100.0).round() as u8
    }
}

const WINDOW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_last_second() {
        let mut load = ProcessorLoad::default();
        let mut poll = |now: u64, waited: u64| {
            load.poll(Time::after(Duration::from_millis(now)), Duration::from_millis(waited));
            load.percent()
        };
        assert_eq!(poll(900, 0), 0, "not yet a second");
        assert_eq!(poll(1_000, 250), 75);
        assert_eq!(poll(1_999, 1_200), 75);
        assert_eq!(poll(3_000, 2_250), 0, "waited all the time");
    }
}
