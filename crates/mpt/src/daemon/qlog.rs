//! Writes the event trace of each peer to a file of its own, in qlog form: `mpt up --qlog DIR`.
//!
//! The core records events while the trace is on, and [`Qlog::poll`] takes them at the end of each iteration. The files
//! of the configured peers are created before the daemon drops its privileges. The file of a peer that is added later
//! is created by the user of the tunnel, and the peer has no trace if that fails.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::daemon::workers::Workers;
use mpt_proto::time::Time;
use mpt_proto::trace::TraceRecord;
use mpt_proto::trace::qlog::{self, QlogHeader};

use crate::config::model::Mode;
use crate::{Failure, config};

/// The trace files of a tunnel.
#[derive(Debug)]
pub(super) struct Qlog {
    folder: PathBuf,
    tunnel: String,
    /// The time since the Unix epoch when the clock of the core was zero.
    epoch: Duration,
    /// The Unix time in the names of the files.
    started: u64,
    /// By the name of the peer; none if its file cannot be written.
    files: BTreeMap<String, Option<BufWriter<File>>>,
    /// Text that is written next.
    text: String,
    /// The time of the next flush, if something is not flushed.
    flush_at: Option<Time>,
}

impl Qlog {
    /// Creates the folder if it is missing and a file for each peer. The trace of the core is not started yet.
    ///
    /// # Errors
    /// The folder or a file cannot be created, or the tunnel is in plain mode.
    pub(super) fn open(folder: &Path, file: &config::File, now: Time) -> Result<Self, Failure> {
        if *file.mode == Mode::Plain {
            let failure = Failure::new("--qlog: a tunnel in plain mode has no event trace");
            return Err(failure.hint("use native mode, or leave --qlog out"));
        }
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut qlog = Self {
            folder: folder.to_owned(),
            tunnel: file.interface.to_string(),
            epoch: unix_time.saturating_sub(now - Time::START),
            started: unix_time.as_secs(),
            files: BTreeMap::new(),
            text: String::new(),
            flush_at: None,
        };
        fs::create_dir_all(folder).map_err(|error| cannot_create(folder, &error))?;
        for peer in &file.peers {
            let trace = qlog.create(&peer.name).map_err(|error| cannot_create(folder, &error))?;
            qlog.files.insert(peer.name.to_string(), Some(trace));
        }
        Ok(qlog)
    }

    /// Writes the events since the last call, and flushes the files once in a second. Returns the time of the next
    /// flush.
    pub(super) fn poll(&mut self, now: Time, workers: &mut Workers) -> Option<Time> {
        while let Some(record) = workers.poll_trace() {
            if let Some(peer) = workers.peer(record.peer) {
                self.write(peer.name(), &record);
                self.flush_at.get_or_insert(now + FLUSH_INTERVAL);
            }
        }
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush();
        }
        self.flush_at
    }

    /// Writes the last events.
    pub(super) fn close(&mut self, workers: &mut Workers) {
        self.poll(Time::START, workers);
        self.flush();
    }

    fn write(&mut self, peer: &str, record: &TraceRecord) {
        if !self.files.contains_key(peer) {
            let created = self.create(peer);
            let created = created.inspect_err(|error| tracing::warn!(peer, %error, "cannot create the qlog file"));
            self.files.insert(peer.to_owned(), created.ok());
        }
        let Some(Some(file)) = self.files.get_mut(peer) else { return };
        self.text.clear();
        qlog::write_event(&mut self.text, record);
        if let Err(error) = file.write_all(self.text.as_bytes()) {
            self.give_up(peer, &error);
        }
    }

    fn flush(&mut self) {
        self.flush_at = None;
        let flushed = self.files.iter_mut().filter_map(|(peer, file)| Some((peer, file.as_mut()?.flush().err()?)));
        for (peer, error) in flushed.map(|(peer, error)| (peer.clone(), error)).collect::<Vec<_>>() {
            self.give_up(&peer, &error);
        }
    }

    /// Ends the trace of a peer: its file would miss events in the middle.
    fn give_up(&mut self, peer: &str, error: &io::Error) {
        tracing::warn!(peer, %error, "the qlog file ends here: cannot write it");
        if let Some(file) = self.files.get_mut(peer).and_then(Option::take) {
            // The buffer cannot be written, and must not be tried again on drop.
            drop(file.into_parts());
        }
    }

    /// Creates the file of a peer with its header. An existing file, or a link in its place, is an error.
    fn create(&self, peer: &str) -> io::Result<BufWriter<File>> {
        let name = format!("{}-{}-{}.sqlog", escape(&self.tunnel), escape(peer), self.started);
        let path = self.folder.join(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&path)?;
        let (mut file, mut text) = (BufWriter::new(file), String::new());
        let title = format!("{} to {peer}", self.tunnel);
        let header = QlogHeader { title: &title, vantage_point: &self.tunnel, wall_clock: Some(self.epoch) };
        qlog::write_header(&mut text, &header);
        file.write_all(text.as_bytes())?;
        file.flush()?;
        tracing::info!(peer, file = %path.display(), "writing the event trace");
        Ok(file)
    }
}

fn cannot_create(folder: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot create event traces in {}: {error}", folder.display()));
    failure.hint("--qlog needs a directory that this user may write to")
}

/// Returns a name as part of a file name: every byte but letters, digits, `.`, `-` and `_` becomes `%` and two digits.
fn escape(name: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_".contains(byte);
    name.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// A program that is killed loses at most the events of this time.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// A trace contains the addresses of both ends.
const OWNER_ONLY: u32 = 0o600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_peers_cannot_leave_the_folder_or_collide() {
        assert_eq!(escape("office-2.b_c"), "office-2.b_c");
        assert_eq!(escape("../a b"), "..%2Fa%20b");
        assert_ne!(escape("a/b"), escape("a%2Fb"));
    }

    #[test]
    fn the_folder_is_named_if_it_cannot_be_created() {
        let failure = cannot_create(Path::new("/proc/nowhere"), &io::ErrorKind::NotFound.into());
        assert!(failure.to_string().contains("/proc/nowhere") && failure.hint.is_some(), "{failure}");
    }
}
