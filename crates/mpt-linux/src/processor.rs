//! The processor time that a thread has had and has waited for.

use std::fs;
use std::time::Duration;

/// Returns for how long the calling thread has run or has waited for a processor since its start
/// (`/proc/thread-self/schedstat`): for other programs, other virtual machines, or the limit of its control group. None
/// if the kernel does not count it (`CONFIG_SCHED_INFO`).
pub fn runnable_time() -> Option<Duration> {
    parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

/// The fields are the time on a processor and the time of waiting for one, in nanoseconds, and the number of turns.
fn parse(text: &str) -> Option<Duration> {
    let mut fields = text.split_whitespace().map(|field| field.parse().ok());
    let (ran, waited): (u64, u64) = (fields.next()??, fields.next()??);
    Some(Duration::from_nanos(ran.saturating_add(waited)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_on_a_processor_and_in_front_of_one_add_up() {
        assert_eq!(parse("837781700 240467243 9539\n"), Some(Duration::from_nanos(1_078_248_943)));
        for text in ["", "1", "1 x 3", "-1 2 3"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
