//! The share of the time in which this process does not wait: near 1, the processor limits the tunnel. And the longest
//! turn of the event loop, during which no packet moves.

use std::time::Duration;

use mpt_proto::time::Time;

/// Measures the share over windows of at least a second.
#[derive(Debug, Default)]
pub struct ProcessorLoad {
    since: Time,
    waited: Duration,
    share: f64,
    /// The time and the waited time of the last turn.
    last: (Time, Duration),
    /// The longest turns of this window and of the last one.
    longest: [Duration; 2],
}

impl ProcessorLoad {
    /// Takes the time for which the event loop has waited since the start.
    pub fn poll(&mut self, now: Time, waited: Duration) {
        let turn = now.since(self.last.0).saturating_sub(waited.saturating_sub(self.last.1));
        self.last = (now, waited);
        self.longest[0] = self.longest[0].max(turn);
        let elapsed = now.since(self.since);
        if elapsed >= WINDOW {
            let idle = waited.saturating_sub(self.waited).as_secs_f64() / elapsed.as_secs_f64();
            let (share, longest) = ((1.0 - idle).clamp(0.0, 1.0), [Duration::ZERO, self.longest[0]]);
            *self = Self { since: now, waited, share, longest, ..*self };
        }
    }

    /// Returns the longest turn of this window and the last one, without the time that it waited.
    pub fn longest_turn(&self) -> Duration {
        self.longest[0].max(self.longest[1])
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

    #[test]
    fn the_longest_turn_is_remembered_for_a_second_at_least() {
        let mut load = ProcessorLoad::default();
        let mut poll = |now: u64, waited: u64| {
            load.poll(Time::after(Duration::from_millis(now)), Duration::from_millis(waited));
            load.longest_turn().as_millis()
        };
        assert_eq!([poll(100, 98), poll(200, 193), poll(900, 890)], [2, 5, 5]);
        assert_eq!([poll(1_000, 989), poll(1_900, 1_889), poll(2_000, 1_989)], [5, 5, 0]);
    }
}
