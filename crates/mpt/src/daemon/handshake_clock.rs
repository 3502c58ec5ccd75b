//! Keeps the timestamp of the last handshake over restarts.
//!
//! Peers refuse an initiation that is not newer than the last one. A host without a battery for its clock starts with
//! one that is behind, so it continues after the timestamp in this file until its clock is set.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use crate::daemon::workers::Workers;
use mpt_proto::crypto::handshake::{Clock, Tai64n};
use mpt_proto::time::Time;

use super::state_file::StateFile;
use super::state_folder;

/// The file with the last timestamp, in hexadecimal.
#[derive(Debug)]
pub(super) struct HandshakeClock {
    file: StateFile,
    saved: Option<Tai64n>,
    last: Option<Tai64n>,
    next_save: Time,
}

impl HandshakeClock {
    /// Names the file of a tunnel; it may not exist.
    pub(super) fn of(interface: &str) -> Self {
        let path = state_folder().join(format!("{interface}.handshake"));
        let file = StateFile::new(path, "after a restart with an older clock, peers refuse handshakes until it is set");
        Self { file, saved: None, last: None, next_save: Time::START }
    }

    /// Returns the clock for handshakes: the wall clock, after the last timestamp in the file.
    pub(super) fn read(&self, now: Time) -> Clock {
        let mut clock = Clock::new(Duration::ZERO);
        clock.set(now, since_1970());
        match fs::read_to_string(self.file.path()) {
            Ok(text) => match decode(text.trim()) {
                Some(last) => clock.resume_after(last),
                None => {
                    tracing::warn!(file = %self.file.path().display(), "not a timestamp: handshakes follow the clock alone")
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(file = %self.file.path().display(), %error, "cannot read the last timestamp: handshakes follow the clock alone");
            }
        }
        clock
    }

    /// Saves the last timestamp, at most once per [`SAVE_INTERVAL`].
    pub(super) fn poll(&mut self, now: Time, workers: &Workers) {
        self.last = workers.last_timestamp();
        if now >= self.next_save && self.is_unsaved() {
            self.next_save = now + SAVE_INTERVAL;
            self.save();
        }
    }

    /// Starts to save the last timestamp at the end of the tunnel.
    pub(super) fn save_final(&mut self, workers: &Workers) {
        self.last = workers.last_timestamp();
        if self.is_unsaved() {
            self.save();
        }
    }

    fn is_unsaved(&mut self) -> bool {
        self.last != self.saved || self.file.has_failed()
    }

    fn save(&mut self) {
        let Some(last) = self.last else { return };
        if self.file.start(encode(last).into_bytes()) {
            self.saved = self.last;
        }
    }
}

impl Drop for HandshakeClock {
    fn drop(&mut self) {
        self.file.finish();
        if self.is_unsaved() {
            self.save();
            self.file.finish();
        }
    }
}

/// Returns what the wall clock shows.
pub(super) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn encode(timestamp: Tai64n) -> String {
    timestamp.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n"
}

fn decode(text: &str) -> Option<Tai64n> {
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 24)?;
    let [_, _, _, _, bytes @ ..] = number.to_be_bytes();
    Some(Tai64n::from_bytes(bytes))
}

/// Interval between writes. After a crash the file is behind by this much at most.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_read_as_it_was_written() {
        let timestamp = Tai64n::from_unix(Duration::new(1_800_000_000, 999_999_999));
        let text = encode(timestamp);
        assert_eq!(text, "400000006b49d20a3b9ac9ff\n");
        assert_eq!(decode(text.trim()), Some(timestamp));
        for wrong in ["", "4000", "400000006b49d20a3b9ac9fg", "400000006b49d20a3b9ac9ff00"] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
