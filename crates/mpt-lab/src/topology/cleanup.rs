//! Nothing stays behind: however the laboratory ends, its namespaces, what runs in them, and its folders of keys and captures go
//! with it.
//!
//! Every namespace and folder is made and removed here, one at a time. It is removed when its [`super::Netns`] or
//! [`super::Folder`] is dropped, and, for all that are left, on a panic and on SIGINT, SIGTERM and SIGHUP. Only SIGKILL leaves
//! something, for which there is [`remove_orphans`].

use super::netns;
use crate::error::Result;
use nix::{
    errno::Errno,
    sys::signal::{SigSet, Signal},
    unistd::Pid,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// What the names of all the laboratory's namespaces and folders begin with.
pub const PREFIX: &str = "mptlab";

/// Set by a signal.
static ENDING: AtomicBool = AtomicBool::new(false);

/// In the order in which they were made: what runs in a namespace ends before its folder goes.
static ALIVE: Mutex<Vec<Trace>> = Mutex::new(Vec::new());

/// Something that must not stay behind.
#[derive(Debug, PartialEq)]
pub(super) enum Trace {
    /// A network namespace, by name.
    Namespace(String),
    /// A folder with what is in it.
    Folder(PathBuf),
}

impl Trace {
    /// Ends everything in a namespace and removes it; removes a folder.
    fn remove(&self) {
        match self {
            Self::Namespace(name) => netns::destroy(name),
            // What cannot be removed from the temporary folder, the system removes in time.
            Self::Folder(folder) => drop(fs::remove_dir_all(folder)),
        }
    }
}

/// Makes sure that signals and panics clean up. Call it before the first thread is started: later threads inherit that the
/// signals are left to one thread that waits for them.
pub fn on_every_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        clean_up_on_signals();
        clean_up_on_panics();
    });
}

/// Holds up a thread of a laboratory that a signal is ending: what fails under its hands then is no result.
pub fn hold_if_ending() {
    while ENDING.load(Relaxed) {
        thread::park();
    }
}

fn clean_up_on_signals() {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    if signals.thread_block().is_err() {
        return;
    }
    thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        ENDING.store(true, Relaxed);
        eprintln!("\n{signal}: cleaning up");
        // Locked to the end, so that nobody makes another one.
        let mut alive = alive();
        remove_all(&mut alive);
        std::process::exit(128 + signal as i32);
    });
}

fn clean_up_on_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        // Release builds abort right after this, without dropping anything.
        remove_all(&mut alive());
    }));
}

/// Calls `create`, and removes what it has made when the laboratory ends.
pub(super) fn make(trace: Trace, create: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut alive = alive();
    create()?;
    alive.push(trace);
    Ok(())
}

/// Removes what was made.
pub(super) fn remove(trace: &Trace) {
    let mut alive = alive();
    trace.remove();
    alive.retain(|other| other != trace);
}

fn remove_all(alive: &mut Vec<Trace>) {
    alive.drain(..).for_each(|trace| trace.remove());
}

/// Removes the namespaces and folders of laboratories that were killed, and returns their names.
pub fn remove_orphans() -> Vec<String> {
    let namespaces = netns::list().unwrap_or_default();
    let namespaces = namespaces.into_iter().filter(|name| is_orphan(name)).map(Trace::Namespace);
    let orphans: Vec<Trace> = namespaces.chain(orphaned_folders(&env::temp_dir())).collect();
    orphans.iter().for_each(Trace::remove);
    let name = |orphan| match orphan {
        Trace::Namespace(name) => name,
        Trace::Folder(folder) => folder.display().to_string(),
    };
    orphans.into_iter().map(name).collect()
}

fn orphaned_folders(within: &Path) -> Vec<Trace> {
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    let orphans = entries.filter(|entry| is_orphan(&entry.file_name().to_string_lossy()));
    orphans.map(|entry| Trace::Folder(entry.path())).collect()
}

/// Names begin with PREFIX-PID-; one whose process is gone has no owner.
fn is_orphan(name: &str) -> bool {
    let mut parts = name.split('-');
    let pid = match (parts.next(), parts.next()) {
        (Some(PREFIX), Some(pid)) => pid.parse::<i32>(),
        _ => return false,
    };
    pid.is_ok_and(|pid| nix::sys::signal::kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH))
}

fn alive() -> MutexGuard<'static, Vec<Trace>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_and_without_its_process_is_an_orphan() {
        // Process numbers end at 2^22 (proc(5), pid_max).
        assert!(is_orphan("mptlab-99999999-a") && is_orphan("mptlab-99999999-a-capture"));
        assert!(!is_orphan(&format!("mptlab-{}-a", std::process::id())));
        assert!(!is_orphan("somebody-99999999-a"));
        assert!(!is_orphan("mptlab-mine-a"));
    }

    #[test]
    fn a_killed_laboratorys_capture_is_an_orphan_and_goes() {
        let temporary = tempfile::TempDir::new().expect("a folder");
        let left = temporary.path().join("mptlab-99999999-a-capture");
        fs::create_dir(&left).and_then(|()| fs::write(left.join("packets.pcap"), "")).expect("a capture");
        fs::create_dir(temporary.path().join("somebody-99999999-a")).expect("a folder");
        let orphans = orphaned_folders(temporary.path());
        assert_eq!(orphans, [Trace::Folder(left.clone())]);
        orphans[0].remove();
        assert!(!left.exists());
    }
}
