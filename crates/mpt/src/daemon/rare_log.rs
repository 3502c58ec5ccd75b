//! Lines of the log that may be due often.

use std::time::Duration;

use mpt_proto::time::Time;

/// Limits a kind of line to one a minute.
#[derive(Debug, Default)]
pub struct RareLog(Option<Time>);

impl RareLog {
    /// Returns true if the line may be logged now, and notes that it is.
    pub fn may_log(&mut self, now: Time) -> bool {
        let may = self.0.is_none_or(|last| now.since(last) >= INTERVAL);
        if may {
            self.0 = Some(now);
        }
        may
    }
}

const INTERVAL: Duration = Duration::from_secs(60);
