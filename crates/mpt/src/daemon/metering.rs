//! Counts the traffic of metered paths, and puts them on standby when their monthly limit is used up.
//!
//! The counters are saved on disk: a crash loses at most the last minute. Months are in UTC.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io, mem};

use mpt_proto::endpoint::Endpoint;
use mpt_proto::stats::PathStatus;
use mpt_proto::time::Time;
use serde::{Deserialize, Serialize};

use super::state_folder;
use crate::config::File;
use crate::config::model::Peer;
use crate::control::report::Report;

/// The metered paths of a tunnel.
#[derive(Debug)]
pub(super) struct Metering {
    file: PathBuf,
    /// Keyed by the names of peer and path.
    path_limits: BTreeMap<(String, String), Metered>,
    usage: UsageFile,
    /// The endpoint's last totals, by usage key.
    last_totals: BTreeMap<String, u64>,
    next: Time,
    /// Time of the oldest change that is not saved.
    unsaved: Option<Time>,
    /// Peer and path whose limit was reached since the last [`Self::take_used_up`].
    used_up: Vec<(String, String)>,
}

/// A metered path.
#[derive(Debug)]
struct Metered {
    /// Its key in the usage file.
    key: String,
    limit: u64,
}

/// The file's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct UsageFile {
    /// For example `2026-11`.
    month: String,
    /// Bytes, keyed by the peer's public key and the path's name with a slash between them: renaming a peer keeps its
    /// count. A path's name has no slash.
    used: BTreeMap<String, u64>,
}

impl Metering {
    /// Loads the counters of a tunnel.
    pub(super) fn open(file: &File) -> Self {
        let mut metering = Self {
            file: state_folder().join(format!("{}.usage", *file.interface)),
            path_limits: BTreeMap::new(),
            usage: UsageFile::default(),
            last_totals: BTreeMap::new(),
            next: Time::START,
            unsaved: None,
            used_up: Vec::new(),
        };
        metering.configure(file);
        metering
    }

    /// Sets the metered paths of a changed configuration.
    pub(super) fn configure(&mut self, file: &File) {
        let paths = file.peers.iter().flat_map(|peer| peer.paths.iter().map(move |path| (peer, path)));
        let metered = paths.filter_map(|(peer, path)| {
            let metered = Metered { key: usage_key(peer, &path.name)?, limit: path.limit? };
            Some(((peer.name.to_string(), path.name.to_string()), metered))
        });
        self.path_limits = metered.collect();
        if !self.path_limits.is_empty() && self.usage == UsageFile::default() {
            self.usage = self.read();
            for ((peer, path), metered) in &self.path_limits {
                self.usage.migrate_key(peer, path, &metered.key);
            }
        }
        self.next = Time::START;
    }

    /// Counts the traffic once per interval, and returns the next deadline.
    pub(super) fn poll(&mut self, now: Time, endpoint: &mut Endpoint) -> Option<Time> {
        if self.path_limits.is_empty() {
            return None;
        }
        if now >= self.next {
            self.next = now + COUNT_INTERVAL;
            self.count(now, endpoint);
            if self.unsaved.is_some_and(|since| now.since(since) >= SAVE_INTERVAL) {
                self.save();
            }
        }
        Some(self.next)
    }

    /// Counts the rest before a peer is removed or the tunnel ends.
    pub(super) fn count_final(&mut self, now: Time, endpoint: &mut Endpoint) {
        if !self.path_limits.is_empty() {
            self.count(now, endpoint);
        }
    }

    fn count(&mut self, now: Time, endpoint: &mut Endpoint) {
        self.usage.start_month(month(SystemTime::now()));
        for peer in endpoint.status().peers {
            for path in &peer.paths {
                let names = (peer.name.clone(), path.name.clone());
                let Some(Metered { key, limit }) = self.path_limits.get(&names) else { continue };
                let limit = *limit;
                let total = bytes(path);
                // The totals of a peer that was removed and added start at zero.
                let before = self.last_totals.insert(key.clone(), total).filter(|before| *before <= total).unwrap_or(0);
                let used = self.usage.used.entry(key.clone()).or_default();
                let was_over = *used >= limit;
                *used += total - before;
                if total > before {
                    self.unsaved.get_or_insert(now);
                }
                let is_over = *used >= limit;
                if let Err(error) = endpoint.set_standby(now, &peer.name, &path.name, is_over) {
                    tracing::warn!(peer = peer.name, path = path.name, %error, "standby state unchanged");
                }
                if is_over && !was_over {
                    tracing::warn!(
                        peer = peer.name,
                        path = path.name,
                        limit,
                        "monthly limit reached: the path is on standby"
                    );
                    self.unsaved = Some(now - SAVE_INTERVAL);
                    self.used_up.push(names);
                }
            }
        }
    }

    /// Returns the paths whose limit was reached since the last call.
    pub(super) fn take_used_up(&mut self) -> Vec<(String, String)> {
        mem::take(&mut self.used_up)
    }

    /// Fills in the usage fields of a report.
    pub(super) fn fill_report(&self, report: &mut Report) {
        if self.path_limits.is_empty() {
            return;
        }
        for peer in &mut report.peers {
            for path in &mut peer.paths {
                let names = (peer.name.clone(), path.name.clone());
                let Some(Metered { key, limit }) = self.path_limits.get(&names) else { continue };
                path.role = "metered".to_owned();
                path.limit_bytes = Some(*limit);
                path.used_bytes = Some(*self.usage.used.get(key).unwrap_or(&0));
            }
        }
    }

    fn read(&self) -> UsageFile {
        let read = fs::read(&self.file).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other));
        match read {
            Ok(usage) => usage,
            Err(error) if error.kind() == io::ErrorKind::NotFound => UsageFile::default(),
            Err(error) => {
                tracing::warn!(file = %self.file.display(), %error, "cannot read the usage file: metered paths count from zero");
                UsageFile::default()
            }
        }
    }

    /// Writes a new file and renames it over the old one, so that a complete file exists at any time.
    fn save(&mut self) {
        self.unsaved = None;
        let next = self.file.with_extension("usage.new");
        let write = || -> io::Result<()> {
            self.file.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&next, serde_json::to_vec(&self.usage).map_err(io::Error::other)?)?;
            fs::File::open(&next)?.sync_all()?;
            fs::rename(&next, &self.file)
        };
        if let Err(error) = write() {
            tracing::warn!(file = %self.file.display(), %error, "cannot write the usage file: counters will be lost at a restart");
        }
    }
}

impl UsageFile {
    /// Resets the counters in another month, unless the clock is not set yet.
    fn start_month(&mut self, month: String) {
        if month != self.month && month.as_str() >= FIRST_MONTH {
            *self = Self { month, ..Self::default() };
        }
    }

    /// Moves a counter from its old key, the names of peer and path, to the new one.
    fn migrate_key(&mut self, peer: &str, path: &str, key: &str) {
        if let Some(used) = self.used.remove(&format!("{peer}/{path}")) {
            self.used.entry(key.to_owned()).or_insert(used);
        }
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        if self.unsaved.is_some() {
            self.save();
        }
    }
}

/// Returns a path's key in the usage file; only native mode has metered paths.
fn usage_key(peer: &Peer, path: &str) -> Option<String> {
    Some(format!("{}/{path}", peer.protocol.public_key()?))
}

/// Bytes of IP packets, as a provider counts them.
fn bytes(path: &PathStatus) -> u64 {
    let outer = if path.remote.is_ipv4() { 20 + 8 } else { 40 + 8 };
    path.sent.bytes + path.received.bytes + outer * (path.sent.packets + path.received.packets)
}

/// Returns the month of an instant: Hinnant's `civil_from_days`, whose years begin in March.
fn month(at: SystemTime) -> String {
    let days = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let (year, month) = if march < 10 { (year, march + 3) } else { (year + 1, march - 9) };
    format!("{:04}-{month:02}", year + era * 400)
}

/// At 1 Gbit/s a limit is overrun by at most 125 MB.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between writes.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// The release of this program; a correct clock shows no earlier month.
const FIRST_MONTH: &str = "2026-11";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_are_those_of_the_calendar() {
        let at = |seconds| month(UNIX_EPOCH + Duration::from_secs(seconds));
        // `date -u +%s -d ...`
        assert_eq!(at(0), "1970-01");
        assert_eq!(
            (at(951_782_399), at(951_782_400), at(951_868_800)),
            ("2000-02".into(), "2000-02".into(), "2000-03".into())
        );
        assert_eq!((at(1_798_761_599), at(1_798_761_600)), ("2026-12".into(), "2027-01".into()));
    }

    #[test]
    fn a_clock_that_is_not_set_yet_resets_no_counters() {
        let used = BTreeMap::from([("hub/lte".to_owned(), 7)]);
        let mut usage = UsageFile { month: "2026-11".to_owned(), used };
        let before = usage.clone();
        for month in ["1970-01", "2026-11"] {
            usage.start_month(month.to_owned());
            assert_eq!(usage, before, "in {month}");
        }
        for month in ["2099-01", "2026-12"] {
            usage.start_month(month.to_owned());
            assert_eq!(
                usage,
                UsageFile { month: month.to_owned(), ..UsageFile::default() },
                "also after a clock that was ahead"
            );
        }
    }

    #[test]
    fn a_renamed_peer_keeps_its_counter() {
        let file = |name: &str| {
            let key = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";
            let text = format!(
                "address = []\nprivate_key = 'dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo='\n[[peer]]\nname = '{name}'\n\
                 public_key = '{key}'\n[[peer.path]]\ninterface = 'lte'\nremote = '192.0.2.1'\nrole = 'metered'\nlimit = '2MB'"
            );
            crate::config::parse(std::path::Path::new("t.toml"), &text).unwrap()
        };
        let key = |name: &str| usage_key(&file(name).peers[0], "lte").unwrap();
        assert_eq!(key("hub"), key("office"));

        let mut usage = UsageFile { month: "2026-11".to_owned(), used: BTreeMap::from([("hub/lte".to_owned(), 7)]) };
        for _ in 0..2 {
            usage.migrate_key("hub", "lte", &key("hub"));
            assert_eq!(usage.used, BTreeMap::from([(key("office"), 7)]), "a counter under names is migrated once");
        }
    }
}
