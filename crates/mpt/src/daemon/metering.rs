//! Counts the traffic of paths that have a limit. A path whose limit is used up becomes standby, or is taken down until
//! its next month with `beyond_limit = "never"`.
//!
//! The servers of a peer share the limits of its paths: their traffic is counted together.
//!
//! Traffic is counted once a second, and ten times a second when little is left. [`usage_file`](super::usage_file)
//! keeps the counts on disk: a power cut loses a minute at most, and [`UNSAVED_SHARE`] of the limit.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::{Duration, SystemTime};

use crate::daemon::workers::Workers;
use mpt_proto::config::PathRole;
use mpt_proto::path::{DownCause, PathState};
use mpt_proto::stats::PathStatus;
use mpt_proto::time::Time;

use super::state_file::StateFile;
use super::state_folder;
use super::usage_file::{self, Date, SAVE_INTERVAL, UsageFile};
use crate::Failure;
use crate::config::File;
use crate::config::model::{BeyondLimit, DataLimit, Peer, Role};
use crate::control::EventKind;
use crate::control::report::Report;

/// The names of peer and path.
type PeerAndPath = (String, String);

/// The paths of a tunnel that have a limit.
#[derive(Debug)]
pub(super) struct Metering {
    paths: BTreeMap<PeerAndPath, Metered>,
    usage: UsageFile,
    file: StateFile,
    /// The file has been read.
    is_read: bool,
    /// The workers's last totals, by public key and path.
    last_totals: BTreeMap<String, u64>,
    /// Bytes that were counted since the last save, by usage key.
    unsaved_bytes: BTreeMap<String, u64>,
    /// Paths that were taken down because their limit is used up.
    stopped: BTreeSet<PeerAndPath>,
    next: Time,
    /// Time of the oldest change that is not saved.
    unsaved: Option<Time>,
    /// True if more has changed than a power cut may lose.
    save_now: bool,
    events: Vec<EventKind>,
}

/// A path with a limit.
#[derive(Debug)]
struct Metered {
    /// Its key in the usage file.
    key: String,
    /// Its public key and its name.
    totals_key: String,
    role: Role,
    limit: DataLimit,
}

impl Metering {
    /// Loads the counters of a tunnel.
    pub(super) fn open(file: &File) -> Self {
        let mut metering = Self {
            paths: BTreeMap::new(),
            usage: UsageFile::default(),
            file: StateFile::new(
                state_folder().join(format!("{}.usage", *file.interface)),
                "counters of paths with a limit will be lost at a restart",
            ),
            is_read: false,
            last_totals: BTreeMap::new(),
            unsaved_bytes: BTreeMap::new(),
            stopped: BTreeSet::new(),
            next: Time::START,
            unsaved: None,
            save_now: false,
            events: Vec::new(),
        };
        metering.configure(file);
        metering
    }

    /// Sets the paths of a changed configuration.
    pub(super) fn configure(&mut self, file: &File) {
        let paths = file.peers.iter().flat_map(|peer| peer.paths.iter().map(move |path| (peer, path)));
        let metered = paths.filter_map(|(peer, path)| {
            let (totals_key, limit) = (totals_key(peer, &path.name)?, path.limit?);
            let key = usage_key(peer, &path.name)?;
            let names = (peer.name.to_string(), path.name.to_string());
            Some((names, Metered { key, totals_key, role: path.role, limit }))
        });
        self.paths = metered.collect();
        if !self.paths.is_empty() && !mem::replace(&mut self.is_read, true) {
            self.usage = usage_file::read(self.file.path());
        }
        self.next = Time::START;
    }

    /// Counts the traffic once per interval, and returns the next deadline.
    pub(super) fn poll(&mut self, now: Time, workers: &mut Workers) -> Option<Time> {
        if self.paths.is_empty() && self.stopped.is_empty() {
            return None;
        }
        if now >= self.next {
            self.next = now + self.count(now, workers);
            let is_due = self.unsaved.is_some_and(|since| now.since(since) >= SAVE_INTERVAL);
            let is_due = is_due || self.file.has_failed();
            if (self.save_now || is_due) && self.file.start(self.usage.to_bytes()) {
                (self.unsaved, self.save_now) = (None, false);
                self.unsaved_bytes.clear();
            }
        }
        Some(self.next)
    }

    /// Counts the rest before a peer is removed or the tunnel ends.
    pub(super) fn count_final(&mut self, now: Time, workers: &mut Workers) {
        if !self.paths.is_empty() {
            self.count(now, workers);
        }
    }

    /// Counts, and returns the time until the next count.
    fn count(&mut self, now: Time, workers: &mut Workers) -> Duration {
        let today = Date::of(SystemTime::now());
        let mut interval = COUNT_INTERVAL;
        for peer in workers.status().peers {
            for path in &peer.paths {
                let names = (peer.name.clone(), path.name.clone());
                let wanted = match self.paths.get(&names) {
                    Some(metered) => {
                        let total = bytes(path);
                        let before = self.last_totals.insert(metered.totals_key.clone(), total);
                        // The totals of a peer that was removed and added start at zero.
                        let new = total - before.filter(|before| *before <= total).unwrap_or(0);
                        if new > 0 {
                            self.unsaved.get_or_insert(now);
                        }
                        let usage = self.usage.paths.entry(metered.key.clone()).or_default();
                        usage.start_month(today, metered.limit.reset_day);
                        let crossed = crossed(usage.bytes, new, metered.limit.bytes);
                        usage.bytes += new;
                        let unsaved = self.unsaved_bytes.entry(metered.key.clone()).or_default();
                        *unsaved += new;
                        self.save_now |= crossed.is_some() || *unsaved >= may_lose(metered.limit.bytes);
                        self.events.extend(crossed.map(|crossed| crossed.report(&names, metered)));
                        let left = metered.limit.bytes.saturating_sub(usage.bytes);
                        if left > 0 && left < new * 2 {
                            interval = LAST_INTERVAL;
                        }
                        metered.use_with(left)
                    }
                    None if self.stopped.contains(&names) => Use::As(path.roles[0]),
                    None => continue,
                };
                self.apply(now, workers, &names, path, wanted);
            }
        }
        interval
    }

    /// Gives a path its role, or takes it down, if that differs from its present use.
    fn apply(&mut self, now: Time, workers: &mut Workers, names: &PeerAndPath, path: &PathStatus, wanted: Use) {
        let (peer, name) = (names.0.as_str(), names.1.as_str());
        let is_down = path.state == PathState::Down(DownCause::Operator);
        let applied = match wanted {
            Use::Never if is_down => return,
            Use::Never => {
                self.stopped.insert(names.clone());
                workers.enable_path(now, peer, name, false)
            }
            Use::As(role) => {
                let enabled = match self.stopped.remove(names) && is_down {
                    true => workers.enable_path(now, peer, name, true),
                    false => Ok(()),
                };
                enabled.and(workers.set_role(now, peer, name, role))
            }
        };
        if let Err(error) = applied {
            tracing::warn!(peer, path = name, %error, "the limit of the path is not applied");
        }
    }

    /// Returns the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<EventKind> {
        mem::take(&mut self.events)
    }

    /// Returns true if the path is down because its limit is used up.
    pub(super) fn is_stopped(&self, peer: &str, path: &str) -> bool {
        self.stopped.contains(&(peer.to_owned(), path.to_owned()))
    }

    /// Fails if the path may not be taken up by command.
    pub(super) fn check_may_go_up(&self, peer: &str, path: &str) -> Result<(), Failure> {
        if !self.is_stopped(peer, path) {
            return Ok(());
        }
        let metered = self.paths.get(&(peer.to_owned(), path.to_owned()));
        let until = metered.map_or_else(String::new, |metered| format!(" until {}", metered.next_reset()));
        Err(Failure::new(format!("the path {path} to the peer {peer} has used up its limit{until}"))
            .hint("raise its limit, or set beyond_limit = \"standby\"; then mpt reload"))
    }

    /// Fills in the usage fields of a report.
    pub(super) fn fill_report(&self, report: &mut Report) {
        if self.paths.is_empty() {
            return;
        }
        for peer in &mut report.peers {
            for path in &mut peer.paths {
                let names = (peer.name.clone(), path.name.clone());
                let Some(metered) = self.paths.get(&names) else { continue };
                path.role = metered.role.name().to_owned();
                path.limit_bytes = Some(metered.limit.bytes);
                path.limit_resets = Some(metered.next_reset());
                path.used_bytes = Some(self.usage.paths.get(&metered.key).map_or(0, |usage| usage.bytes));
                if self.stopped.contains(&names) && path.cause.as_deref() == Some("operator") {
                    path.cause = Some(LIMIT.to_owned());
                }
            }
        }
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        self.file.finish();
        if self.unsaved.is_some() || self.save_now || self.file.has_failed() {
            self.file.start(self.usage.to_bytes());
            self.file.finish();
        }
    }
}

impl Metered {
    /// Returns the use of the path while so many bytes of its limit are left.
    fn use_with(&self, left: u64) -> Use {
        match self.limit.beyond {
            _ if left > 0 => Use::As(self.role.path_role()),
            BeyondLimit::Standby => Use::As(PathRole::Standby),
            BeyondLimit::Never => Use::Never,
        }
    }

    /// Returns the day on which the count begins again.
    fn next_reset(&self) -> String {
        Date::of(SystemTime::now()).next_reset(self.limit.reset_day).to_string()
    }
}

/// The use of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    As(PathRole),
    Never,
}

/// A part of the limit that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossed {
    Warning,
    Limit,
}

impl Crossed {
    /// Logs it, and returns the event.
    fn report(self, (peer, path): &PeerAndPath, metered: &Metered) -> EventKind {
        let DataLimit { bytes: limit, beyond, .. } = metered.limit;
        let (peer, path) = (peer.clone(), path.clone());
        match self {
            Self::Warning => {
                tracing::warn!(peer, path, limit, "{WARNING_PERCENT} % of the monthly limit are used up");
                EventKind::LimitWarning { peer, path }
            }
            Self::Limit => {
                let what = match beyond {
                    BeyondLimit::Standby => "the path is on standby",
                    BeyondLimit::Never => "the path is taken down",
                };
                tracing::warn!(peer, path, limit, resets = metered.next_reset(), "monthly limit reached: {what}");
                EventKind::Limit { peer, path }
            }
        }
    }
}

/// Returns what `new` bytes have passed; the limit alone if both.
fn crossed(used: u64, new: u64, limit: u64) -> Option<Crossed> {
    let passes = |mark: u64| used < mark && used + new >= mark;
    let warning = limit / 100 * WARNING_PERCENT;
    if passes(limit) { Some(Crossed::Limit) } else { passes(warning).then_some(Crossed::Warning) }
}

/// Returns the bytes that a power cut may lose.
fn may_lose(limit: u64) -> u64 {
    (limit / UNSAVED_SHARE).max(MIN_UNSAVED)
}

/// Returns a path's key in the usage file. The servers of a peer share one, with the peer's name, because lists change
/// the servers.
fn usage_key(peer: &Peer, path: &str) -> Option<String> {
    match &peer.server {
        Some(server) => Some(format!("{}/{path}", server.group)),
        None => totals_key(peer, path),
    }
}

/// Returns the key of a path's totals; only paths of native mode have a limit.
fn totals_key(peer: &Peer, path: &str) -> Option<String> {
    Some(format!("{}/{path}", peer.protocol.public_key()?))
}

/// Bytes of IP packets, as a provider counts them.
fn bytes(path: &PathStatus) -> u64 {
    let outer = if path.remote.is_ipv4() { 20 + 8 } else { 40 + 8 };
    path.sent.bytes + path.received.bytes + outer * (path.sent.packets + path.received.packets)
}

/// The cause for which a path is down, in reports and events.
pub(super) const LIMIT: &str = "limit";
/// The percentage of a limit at which an event warns.
const WARNING_PERCENT: u64 = 80;
/// Interval of counts.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Interval while two more of the last intervals would use up the limit: at 1 Gbit/s it is overrun by at most 12.5 MB.
const LAST_INTERVAL: Duration = Duration::from_millis(100);
/// One part in so many of the limit may be lost by a power cut, and causes at most so many writes in a month.
const UNSAVED_SHARE: u64 = 1_000;
/// Less is not written at once.
const MIN_UNSAVED: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighty_percent_and_the_limit_are_passed_once() {
        assert_eq!(crossed(0, 79, 100), None);
        assert_eq!(crossed(79, 1, 100), Some(Crossed::Warning));
        assert_eq!(crossed(80, 19, 100), None);
        assert_eq!(crossed(99, 1, 100), Some(Crossed::Limit));
        assert_eq!(crossed(100, 50, 100), None);
        assert_eq!(crossed(0, 100, 100), Some(Crossed::Limit), "not both");
    }

    #[test]
    fn a_power_cut_loses_a_thousandth_or_a_megabyte() {
        assert_eq!([2_000_000, 20_000_000_000].map(may_lose), [1_000_000, 20_000_000]);
    }

    const KEY: &str = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";
    const OTHER: &str = "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=";

    fn file(name: &str, peer: &str) -> File {
        let text = format!(
            "address = ['10.77.0.1/24']\nprivate_key = 'dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo='\n\
             [[peer]]\nname = '{name}'\n{peer}\n"
        );
        crate::config::parse(std::path::Path::new("t.toml"), &text).unwrap()
    }

    #[test]
    fn a_renamed_peer_keeps_its_key() {
        let limit = "interface = 'lte'\nremote = '192.0.2.1'\nrole = 'metered'\nlimit = '2MB'";
        let peer = format!("public_key = '{KEY}'\n[[peer.path]]\n{limit}");
        let key = |name: &str| usage_key(&file(name, &peer).peers[0], "lte").unwrap();
        assert_eq!(key("hub"), key("office"));
    }

    #[test]
    fn the_servers_of_a_peer_share_the_limit_of_a_path_and_have_totals_of_their_own() {
        let server = |name: &str, key, last| {
            format!("[[peer.server]]\nname = '{name}'\npublic_key = '{key}'\nremote = '192.0.2.{last}'\n")
        };
        let limit = "[[peer.path]]\ninterface = 'lte'\nrole = 'metered'\nlimit = '2MB'";
        let servers = server("a", KEY, 1) + &server("b", OTHER, 2);
        let file = file("office", &format!("networks = ['10.77.0.0/24']\n{servers}{limit}"));
        let metering = Metering::open(&file);
        let paths: Vec<_> = metering.paths.iter().collect();
        let [(first, a), (second, b)] = paths[..] else { panic!("{paths:?}") };
        assert_eq!([&*first.0, &*second.0], ["office/a", "office/b"]);
        assert_eq!((&*a.key, &b.key), ("office/lte", &a.key));
        assert_ne!(a.totals_key, b.totals_key);
    }
}
