//! The share of the time in which this thread runs or waits for a processor: near 1, the processor limits the tunnel.
//! And the longest turn of the event loop, during which no packet moves.
//!
//! The event loop alone cannot tell. A thread whose control group has used up its share sleeps until the next period,
//! mostly in the call in which it waits for packets: with 5 % of a processor it seems to wait 95 % of the time.

use std::time::Duration;

use mpt_proto::time::Time;

use crate::control::report::BUSY;

/// Measures the share over windows of at least a second.
#[derive(Debug, Default)]
pub struct ProcessorLoad {
    since: Time,
    waited: Duration,
    runnable: Duration,
    share: f64,
    /// The processor limits the tunnel.
    limited: bool,
    /// The time and the waited time of the last turn.
    last: (Time, Duration),
    /// The longest turns of this window and of the last one.
    longest: [Duration; 2],
}

impl ProcessorLoad {
    /// Takes the time for which the event loop has waited since the start; and at the end of a window also the time
    /// for which the thread has run or waited for a processor, if the kernel counts it. Returns whether the processor
    /// limits the tunnel, if that has changed.
    pub fn poll(&mut self, now: Time, waited: Duration, runnable: impl FnOnce() -> Option<Duration>) -> Option<bool> {
        let turn = now.since(self.last.0).saturating_sub(waited.saturating_sub(self.last.1));
        self.last = (now, waited);
        self.longest[0] = self.longest[0].max(turn);
        let elapsed = now.since(self.since);
        if elapsed >= WINDOW {
            let of_window = |time: Duration| time.as_secs_f64() / elapsed.as_secs_f64();
            let runnable = runnable();
            let share = match runnable {
                Some(runnable) => of_window(runnable.saturating_sub(self.runnable)),
                None => 1.0 - of_window(waited.saturating_sub(self.waited)),
            };
            let (share, longest) = (share.clamp(0.0, 1.0), [Duration::ZERO, self.longest[0]]);
            let runnable = runnable.unwrap_or_default();
            *self = Self { since: now, waited, runnable, share, longest, ..*self };
            let limited = self.percent() >= if self.limited { RECOVERED } else { BUSY };
            return (limited != std::mem::replace(&mut self.limited, limited)).then_some(limited);
        }
        None
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
/// Percent below which the processor is no longer the limit: less than 0.7 of [`BUSY`], the time that is left of it
/// without repair symbols on links with 2 % of loss.
const RECOVERED: u8 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_last_second() {
        let mut load = ProcessorLoad::default();
        let mut poll = |now: u64, waited: u64| {
            load.poll(Time::after(Duration::from_millis(now)), Duration::from_millis(waited), || None);
            load.percent()
        };
        assert_eq!(poll(900, 0), 0, "not yet a second");
        assert_eq!(poll(1_000, 250), 75);
        assert_eq!(poll(1_999, 1_200), 75);
        assert_eq!(poll(3_000, 2_250), 0, "waited all the time");
    }

    #[test]
    fn time_in_front_of_a_processor_counts_although_the_event_loop_seems_to_wait() {
        let mut load = ProcessorLoad::default();
        let mut poll = |now: u64, waited: u64, runnable: u64| {
            let runnable = || Some(Duration::from_millis(runnable));
            load.poll(Time::after(Duration::from_millis(now)), Duration::from_millis(waited), runnable);
            load.percent()
        };
        assert_eq!([poll(1_000, 950, 880), poll(2_000, 1_900, 920), poll(3_000, 2_000, 4_000)], [88, 4, 100]);
    }

    #[test]
    fn it_is_the_limit_from_90_percent_on_until_it_is_below_60() {
        let mut load = ProcessorLoad::default();
        let (mut now, mut waited) = (0, 0);
        let mut poll = |busy: u64| {
            (now, waited) = (now + 1_000, waited + 10 * (100 - busy));
            load.poll(Time::after(Duration::from_millis(now)), Duration::from_millis(waited), || None)
        };
        assert_eq!([89, 90, 60, 59, 89].map(&mut poll), [None, Some(true), None, Some(false), None]);
    }

    #[test]
    fn the_longest_turn_is_remembered_for_a_second_at_least() {
        let mut load = ProcessorLoad::default();
        let mut poll = |now: u64, waited: u64| {
            load.poll(Time::after(Duration::from_millis(now)), Duration::from_millis(waited), || None);
            load.longest_turn().as_millis()
        };
        assert_eq!([poll(100, 98), poll(200, 193), poll(900, 890)], [2, 5, 5]);
        assert_eq!([poll(1_000, 989), poll(1_900, 1_889), poll(2_000, 1_989)], [5, 5, 0]);
    }
}
