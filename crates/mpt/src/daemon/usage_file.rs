//! The file with the traffic of paths that have a limit, and the months over which it is counted.
//!
//! A month of a path begins on its reset day, at 0:00 UTC.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, fs, io};

use serde::{Deserialize, Serialize};

/// The file's contents: the traffic by the peer's public key and the path's name with a slash between them, so that
/// renaming a peer keeps its count. A peer with several servers has its name in place of a key. No path's name and no
/// peer's has a slash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct UsageFile {
    pub(super) paths: BTreeMap<String, Usage>,
}

/// The traffic of a path in its month.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Usage {
    /// First day of the month, for example `2026-11-15`.
    since: String,
    reset_day: u8,
    pub(super) bytes: u64,
}

impl Usage {
    /// Begins the month of `today`, unless the clock is not set yet. Another reset day keeps the count.
    pub(super) fn start_month(&mut self, today: Date, reset_day: u8) {
        let since = today.month_start(reset_day).to_string();
        if since == self.since || since.as_str() < FIRST_DAY {
            return;
        }
        let is_same_month = self.reset_day != reset_day && !self.since.is_empty();
        let bytes = if is_same_month { self.bytes } else { 0 };
        *self = Self { since, reset_day, bytes };
    }
}

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Date {
    year: u64,
    /// From 1.
    month: u64,
    day: u64,
}

impl Date {
    /// Returns the day of an instant in UTC: Hinnant's `civil_from_days`, whose years begin in March.
    pub(super) fn of(at: SystemTime) -> Self {
        let days = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400 + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let march = (5 * day + 2) / 153;
        let day = day - (153 * march + 2) / 5 + 1;
        let (year, month) = if march < 10 { (year, march + 3) } else { (year + 1, march - 9) };
        Self { year: year + era * 400, month, day }
    }

    /// Returns the first day of the month that begins on `reset_day` and contains this day.
    pub(super) fn month_start(self, reset_day: u8) -> Self {
        let this = self.on(reset_day);
        if self.day >= this.day {
            return this;
        }
        let (year, month) = if self.month == 1 { (self.year - 1, 12) } else { (self.year, self.month - 1) };
        Self { year, month, day: 1 }.on(reset_day)
    }

    /// Returns the day after this one on which the count begins again.
    pub(super) fn next_reset(self, reset_day: u8) -> Self {
        let this = self.on(reset_day);
        if self.day < this.day {
            return this;
        }
        let (year, month) = if self.month == 12 { (self.year + 1, 1) } else { (self.year, self.month + 1) };
        Self { year, month, day: 1 }.on(reset_day)
    }

    /// Returns the reset day of this calendar month, or its last day.
    fn on(self, reset_day: u8) -> Self {
        let Self { year, month, .. } = self;
        let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
        let last = match month {
            2 if is_leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        Self { day: u64::from(reset_day).min(last), ..self }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl UsageFile {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers")
    }
}

/// Reads the file of usage, if there is one.
pub(super) fn read(file: &Path) -> UsageFile {
    let read = fs::read(file).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other));
    read.unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(file = %file.display(), %error, "cannot read the usage file: paths with a limit count from zero");
        }
        UsageFile::default()
    })
}

/// Interval between writes.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// The release of this program; a correct clock shows no earlier day.
const FIRST_DAY: &str = "2026-10-01";

#[cfg(test)]
mod tests {
    use super::*;

    fn date(seconds: u64) -> Date {
        Date::of(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    fn day(year: u64, month: u64, day: u64) -> Date {
        Date { year, month, day }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        // `date -u +%s -d ...`
        let days = [0, 951_782_399, 951_782_400, 951_868_800, 1_798_761_599, 1_798_761_600].map(date);
        let expected = ["1970-01-01", "2000-02-28", "2000-02-29", "2000-03-01", "2026-12-31", "2027-01-01"];
        assert_eq!(days.map(|day| day.to_string()), expected);
    }

    #[test]
    fn a_month_begins_on_its_reset_day_or_on_the_last_day_of_a_shorter_month() {
        let start = |at: Date, reset_day| at.month_start(reset_day).to_string();
        assert_eq!(start(day(2026, 11, 25), 1), "2026-11-01");
        assert_eq!(start(day(2026, 11, 25), 25), "2026-11-25");
        assert_eq!(start(day(2026, 11, 25), 26), "2026-10-26");
        assert_eq!(start(day(2027, 1, 3), 15), "2026-12-15");
        assert_eq!(start(day(2027, 2, 28), 31), "2027-02-28");
        assert_eq!(start(day(2028, 2, 28), 31), "2028-01-31");
        assert_eq!(start(day(2028, 2, 29), 30), "2028-02-29");
        assert_eq!(start(day(2027, 3, 1), 31), "2027-02-28");
    }

    #[test]
    fn the_next_reset_begins_the_next_month() {
        for reset_day in 1..=31 {
            for second in (0..800).map(|days| 1_798_761_600 + days * 86_400) {
                let (today, tomorrow) = (date(second), date(second + 86_400));
                let begins = today.month_start(reset_day) != tomorrow.month_start(reset_day);
                assert_eq!(today.next_reset(reset_day) == tomorrow, begins, "{today} with {reset_day}");
            }
        }
    }

    #[test]
    fn a_clock_that_is_not_set_yet_and_another_reset_day_keep_the_count() {
        let mut usage = Usage { since: "2026-11-01".to_owned(), reset_day: 1, bytes: 7 };
        usage.start_month(day(1970, 1, 1), 1);
        usage.start_month(day(2026, 11, 30), 1);
        assert_eq!(usage.bytes, 7);
        usage.start_month(day(2026, 11, 30), 15);
        assert_eq!(usage, Usage { since: "2026-11-15".to_owned(), reset_day: 15, bytes: 7 });
        usage.start_month(day(2026, 12, 14), 15);
        assert_eq!(usage.bytes, 7);
        usage.start_month(day(2026, 12, 15), 15);
        assert_eq!(usage, Usage { since: "2026-12-15".to_owned(), reset_day: 15, bytes: 0 });
    }

    #[test]
    fn a_month_of_a_clock_that_was_ahead_ends_with_it() {
        let mut usage = Usage { since: "2099-01-01".to_owned(), reset_day: 1, bytes: 7 };
        usage.start_month(day(2026, 12, 2), 1);
        assert_eq!(usage.bytes, 0);
    }
}
