//! `mpt hooks`: runs the programs of a folder when something happens to a tunnel.
//!
//! It is a process of its own, without the rights of root, and watches the tunnels as `mpt web` does. A program gets
//! names as arguments and in its environment, without a shell in between. The programs of an event run one after the
//! other, each for [`LIMIT`] at most; meanwhile the tunnel continues, and buffers the events that follow.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::Failure;
use crate::control::report::Report;
use crate::control::watch::WatchItem;
use crate::control::watch_all::{Change, watch_all};
use crate::control::{EventKind, RunDir};
use crate::daemon::user;
use crate::secrets::may_be_changed_by_others;

/// Runs until a signal ends the process.
///
/// # Errors
/// The folder does not exist, or others may change it; privileges cannot be given up.
pub fn run(folder: &Path) -> Result<(), Failure> {
    user::become_status_reader()?;
    let programs = Arc::new(ProgramFolder::new(folder));
    programs.list()?.warn();
    let run = RunDir::from_env();
    eprintln!("the programs of {} run at events of the tunnels of {}", folder.display(), run.path().display());
    watch_all(&run, INTERVAL, |name, is_start| {
        let (name, programs) = (name.to_owned(), Arc::clone(&programs));
        let mut state = TunnelState { is_quiet: is_start, ..TunnelState::default() };
        move |change| {
            for hook in state.handle(change) {
                hook.run(&programs, &name);
            }
        }
    })
}

/// An event that programs are run for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hook {
    event: &'static str,
    peer: String,
    path: String,
    /// The cause for which a path is down.
    cause: String,
}

/// The state of a tunnel, from which events follow. A sample corrects it after lost events.
#[derive(Debug, Default)]
struct TunnelState {
    /// The tunnel ran when this process started, so its present state is no event.
    is_quiet: bool,
    responds: bool,
    /// True for paths that are up, by the names of peer and path.
    paths: BTreeMap<(String, String), bool>,
}

impl TunnelState {
    fn handle(&mut self, change: Change) -> Vec<Hook> {
        let mut hooks = Vec::new();
        match change {
            Change::Item(WatchItem::Sample(sample)) => self.on_sample(&sample.report, &mut hooks),
            Change::Item(WatchItem::Event(event)) => match event.kind {
                EventKind::Path { peer, path, to, .. } if self.responds => self.set(peer, path, &to, &mut hooks),
                EventKind::LimitWarning { peer, path } => hooks.push(Hook::of("limit-80", &peer, &path, "")),
                EventKind::Limit { peer, path } => hooks.push(Hook::of("limit", &peer, &path, "")),
                _ => {}
            },
            Change::Item(WatchItem::Lost { .. }) => {}
            Change::Silent(_) | Change::Forgotten => self.on_silent(&mut hooks),
        }
        hooks
    }

    fn on_sample(&mut self, report: &Report, hooks: &mut Vec<Hook>) {
        if !self.responds {
            self.responds = true;
            hooks.push(Hook::of("up", "", "", ""));
        }
        let is_there =
            |(peer, path): &(String, String)| report.paths().any(|(p, known)| p == peer && known.name == *path);
        let gone: Vec<_> = self.paths.keys().filter(|key| !is_there(key)).cloned().collect();
        for (peer, path) in gone {
            self.set(peer.clone(), path.clone(), "removed", hooks);
            self.paths.remove(&(peer, path));
        }
        for (peer, path) in report.paths() {
            let state = if path.up { "up" } else { path.cause.as_deref().unwrap_or("down") };
            self.set(peer.to_owned(), path.name.clone(), state, hooks);
        }
        if self.is_quiet {
            self.is_quiet = false;
            hooks.clear();
        }
    }

    fn on_silent(&mut self, hooks: &mut Vec<Hook>) {
        if !self.responds {
            return;
        }
        for (peer, path) in self.paths.keys().cloned().collect::<Vec<_>>() {
            self.set(peer, path, "tunnel", hooks);
        }
        hooks.push(Hook::of("down", "", "", ""));
        *self = Self::default();
    }

    /// Sets the state of a path: `up`, or the cause for which it is down.
    fn set(&mut self, peer: String, path: String, state: &str, hooks: &mut Vec<Hook>) {
        let is_up = state == "up";
        let was_reachable = self.is_reachable(&peer);
        let was_up = self.paths.insert((peer.clone(), path.clone()), is_up).unwrap_or(false);
        if is_up != was_up {
            hooks.push(Hook::of(
                if is_up { "path-up" } else { "path-down" },
                &peer,
                &path,
                if is_up { "" } else { state },
            ));
        }
        if was_reachable != self.is_reachable(&peer) {
            hooks.push(Hook::of(if was_reachable { "peer-down" } else { "peer-up" }, &peer, "", ""));
        }
    }

    fn is_reachable(&self, peer: &str) -> bool {
        let from = (peer.to_owned(), String::new());
        self.paths.range(from..).take_while(|((name, _), _)| name == peer).any(|(_, is_up)| *is_up)
    }
}

impl Hook {
    fn of(event: &'static str, peer: &str, path: &str, cause: &str) -> Self {
        Self { event, peer: peer.to_owned(), path: path.to_owned(), cause: cause.to_owned() }
    }

    /// Runs all programs of the folder.
    fn run(&self, folder: &ProgramFolder, interface: &str) {
        let list = folder.list().unwrap_or_else(|failure| ProgramList { programs: Vec::new(), skipped: vec![failure] });
        list.warn();
        for program in list.programs {
            let ended = self.command(&program, interface).spawn().and_then(|child| wait(child, LIMIT));
            let what = match ended {
                Ok(Some(status)) if status.success() => continue,
                Ok(Some(status)) => status.to_string(),
                Ok(None) => format!("ended by force after {} s", LIMIT.as_secs()),
                Err(error) => error.to_string(),
            };
            let Self { event, peer, path, .. } = self;
            eprintln!("warning: {} {event} {interface} {peer} {path}: {what}", program.display());
        }
    }

    fn command(&self, program: &Path, interface: &str) -> Command {
        let mut command = Command::new(program);
        command.args([self.event, interface, &self.peer, &self.path]).stdin(Stdio::null()).process_group(0);
        command.env_clear().env("PATH", PATH);
        if let Some(run) = env::var_os("MPT_RUN_DIR") {
            command.env("MPT_RUN_DIR", run);
        }
        let variables = [("EVENT", self.event), ("INTERFACE", interface), ("PEER", &self.peer), ("PATH", &self.path)];
        command.envs(variables.map(|(name, value)| (format!("MPT_{name}"), value))).env("MPT_CAUSE", &self.cause);
        command
    }
}

/// Waits for a program. After `limit`, ends it with all that it has started, and returns `None`.
fn wait(mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(10));
    }
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    child.wait().map(|_| None)
}

/// The folder with the programs. The threads of all tunnels share it.
#[derive(Debug)]
struct ProgramFolder {
    path: PathBuf,
    /// The entries that could not be read at the last listing, each of which a warning has named.
    unreadable: Mutex<BTreeSet<PathBuf>>,
}

/// The programs of a folder.
#[derive(Debug)]
struct ProgramList {
    /// The paths, sorted.
    programs: Vec<PathBuf>,
    /// A warning for each entry that is left out, unless the list before had it.
    skipped: Vec<Failure>,
}

impl ProgramFolder {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), unreadable: Mutex::default() }
    }

    /// Lists the executable files whose names have no dot. Other names are not looked at: an editor's lock is a link to
    /// a file that does not exist. An entry that cannot be read is left out, so that the other programs run.
    fn list(&self) -> Result<ProgramList, Failure> {
        let name = self.path.display();
        let cannot = |error: io::Error| {
            Failure::new(format!("cannot read {name}: {error}"))
                .hint(format!("mkdir {name}; all users must be able to pass the directories above it"))
        };
        check_owner(&self.path, &fs::metadata(&self.path).map_err(cannot)?)?;
        let (mut programs, mut unreadable) = (Vec::new(), BTreeMap::new());
        for entry in fs::read_dir(&self.path).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            if path.file_name().is_none_or(|name| name.as_encoded_bytes().contains(&b'.')) {
                continue;
            }
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 => {
                    check_owner(&path, &metadata)?;
                    programs.push(path);
                }
                Ok(_) => {}
                Err(error) => {
                    unreadable.insert(path, error);
                }
            }
        }
        programs.sort();
        Ok(ProgramList { programs, skipped: self.first_time(unreadable) })
    }

    /// Returns the warnings for entries that could be read at the last listing, or are new since.
    fn first_time(&self, unreadable: BTreeMap<PathBuf, io::Error>) -> Vec<Failure> {
        let mut known = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        let new = unreadable.iter().filter(|(path, _)| !known.contains(*path));
        let warning = |(path, error): (&PathBuf, &io::Error)| {
            let what = format!("cannot read {}, which is skipped: {error}", path.display());
            Failure::new(what).hint("remove it, or correct where it leads")
        };
        let warnings = new.map(warning).collect();
        *known = unreadable.into_keys().collect();
        warnings
    }
}

impl ProgramList {
    fn warn(&self) {
        self.skipped.iter().for_each(|failure| eprintln!("warning: {failure}"));
    }
}

/// Fails if others than root and this user may change the file.
fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    let name = path.display();
    match may_be_changed_by_others(metadata) {
        true => Err(Failure::new(format!("others may change {name}, so nothing of it is run"))
            .hint(format!("chown root {name}; chmod go-w {name}"))),
        false => Ok(()),
    }
}

/// Interval of samples, which correct the state after lost events.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time of a program.
const LIMIT: Duration = Duration::from_secs(30);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::control::report::{PathReport, PeerReport};
    use crate::control::watch::Sample;
    use crate::control::{Event, EventKind};

    fn sample(paths: &[(&str, bool)]) -> Change {
        let path =
            |(name, up): &(&str, bool)| PathReport { name: (*name).to_owned(), up: *up, ..PathReport::default() };
        let paths = paths.iter().map(path).collect();
        let peers = vec![PeerReport { name: "office".to_owned(), paths, ..PeerReport::default() }];
        Change::Item(WatchItem::Sample(Sample { time_ms: 0, report: Report { peers, ..Report::default() } }))
    }

    fn event(path: &str, to: &str) -> Change {
        let [peer, path, from, to] = ["office", path, "", to].map(str::to_owned);
        Change::Item(WatchItem::Event(Event { time_ms: 0, kind: EventKind::Path { peer, path, from, to } }))
    }

    fn texts(state: &mut TunnelState, change: Change) -> Vec<String> {
        let text = |hook: Hook| format!("{} {} {} {}", hook.event, hook.peer, hook.path, hook.cause).trim().to_owned();
        state.handle(change).into_iter().map(text).collect()
    }

    #[test]
    fn each_change_is_one_event_and_a_peer_is_down_with_its_last_path() {
        let mut state = TunnelState::default();
        let first = texts(&mut state, sample(&[("dsl", true), ("lte", false)]));
        assert_eq!(first, ["up", "path-up office dsl", "peer-up office"]);
        assert!(texts(&mut state, sample(&[("dsl", true), ("lte", false)])).is_empty());
        assert_eq!(texts(&mut state, event("lte", "up")), ["path-up office lte"]);
        assert_eq!(texts(&mut state, event("dsl", "silent")), ["path-down office dsl silent"]);
        assert!(texts(&mut state, event("dsl", "carrier")).is_empty(), "it was down before");
        assert_eq!(texts(&mut state, event("lte", "lossy")), ["path-down office lte lossy", "peer-down office"]);
        // Events were lost: the sample shows the outcome.
        assert_eq!(texts(&mut state, sample(&[("dsl", true)])), ["path-up office dsl", "peer-up office"]);
        let end = texts(&mut state, Change::Silent("gone".to_owned()));
        assert_eq!(end, ["path-down office dsl tunnel", "peer-down office", "down"]);
        assert!(texts(&mut state, Change::Silent("gone".to_owned())).is_empty());
    }

    #[test]
    fn a_limit_has_two_events() {
        let event = |kind| Change::Item(WatchItem::Event(Event { time_ms: 0, kind }));
        let [peer, path] = ["office", "lte"].map(str::to_owned);
        let warning = EventKind::LimitWarning { peer: peer.clone(), path: path.clone() };
        assert_eq!(texts(&mut TunnelState::default(), event(warning)), ["limit-80 office lte"]);
        assert_eq!(texts(&mut TunnelState::default(), event(EventKind::Limit { peer, path })), ["limit office lte"]);
    }

    #[test]
    fn the_state_at_the_start_is_no_event() {
        let mut state = TunnelState { is_quiet: true, ..TunnelState::default() };
        assert!(texts(&mut state, sample(&[("dsl", true)])).is_empty());
        assert_eq!(texts(&mut state, sample(&[])), ["path-down office dsl removed", "peer-down office"]);
    }

    #[test]
    fn a_link_to_nothing_stops_no_other_program_and_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for (name, mode) in [("notify", 0o755), ("notify.bak", 0o777), ("README", 0o644)] {
            fs::write(at(name), "").unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("root@host.77:1", at(".#notify")).unwrap();
        let programs = ProgramFolder::new(folder.path());
        let list = || {
            let ProgramList { programs, skipped } = programs.list().unwrap();
            assert_eq!(programs, [at("notify")]);
            skipped.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(list(), [""; 0]);
        symlink("absent", at("alarm")).unwrap();
        let skipped = list();
        let entry = at("alarm").display().to_string();
        assert!(skipped.len() == 1 && skipped[0].contains(&entry) && skipped[0].contains("hint: "), "{skipped:?}");
        assert_eq!(list(), [""; 0]);
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_with_its_children() {
        let mut command = Command::new("sh");
        let mut child =
            command.args(["-c", "sleep 1000 & wait"]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        assert_eq!(wait(child, Duration::from_millis(50)).unwrap(), None);
        // It ends when nobody has the other end of the pipe any more.
        assert_eq!(output.read(&mut [0]).unwrap(), 0);
    }
}
