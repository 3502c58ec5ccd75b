//! Cleanup on every exit: namespaces, the processes in them, and folders of keys and captures.
//!
//! Every namespace and folder is created and removed here, one at a time. It is removed when its [`super::Netns`] or
//! [`super::Folder`] is dropped, and otherwise on a panic and on SIGINT, SIGTERM and SIGHUP. Only SIGKILL leaves
//! resources behind; [`remove_orphans`] removes them.

use crate::error::{Result, run};
use nix::{
    errno::Errno,
    sys::signal::{SigSet, Signal, kill},
    unistd::Pid,
};
use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// Prefix of the names of all namespaces and folders of the laboratory.
pub const PREFIX: &str = "mptlab";

/// True once a signal has arrived.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Resources in order of creation: processes in a namespace end before its folder is removed.
static ALIVE: Mutex<Vec<Resource>> = Mutex::new(Vec::new());

/// A resource that must be removed.
#[derive(Debug, PartialEq)]
pub(super) enum Resource {
    /// A network namespace, by name.
    Namespace(String),
    /// A folder with its contents.
    Folder(PathBuf),
}

impl Resource {
    /// Kills all processes in a namespace and removes it; removes a folder.
    fn remove(&self) {
        match self {
            Self::Namespace(name) => destroy(name),
            // The system removes leftovers in the temporary folder itself.
            Self::Folder(folder) => {
                unmount_below(folder);
                drop(fs::remove_dir_all(folder));
            }
        }
    }
}

/// Kills all processes in a namespace and removes it. Errors are printed, because no caller can handle them.
fn destroy(name: &str) {
    let pids = run(Command::new("ip").args(["netns", "pids", name])).unwrap_or_default();
    let own = std::process::id() as i32;
    for pid in pids.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != own) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    if let Err(error) = run(Command::new("ip").args(["netns", "delete", name])) {
        // Must not panic, because the caller holds a lock.
        let _ = writeln!(std::io::stderr(), "warning: {error}");
    }
}

/// Installs cleanup on signals and panics. Must be called before the first thread starts: threads inherit the signal
/// mask, which leaves these signals to one waiting thread.
pub fn install_exit_handlers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        clean_up_on_signals();
        clean_up_on_panics();
    });
}

/// Parks the calling thread if a signal is ending the laboratory: failures from then on are not results.
pub fn park_if_ending() {
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
        // Stays locked to the end, so that no thread creates another one.
        let mut alive = alive();
        remove_all(&mut alive);
        std::process::exit(128 + signal as i32);
    });
}

fn clean_up_on_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        // Release builds abort right after this, without running destructors.
        remove_all(&mut alive());
    }));
}

/// Calls `create` and registers the resource for removal.
pub(super) fn create(resource: Resource, create: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut alive = alive();
    create()?;
    alive.push(resource);
    Ok(())
}

/// Removes a resource.
/// Unmounts the disks in a folder.
fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    for point in points.filter(|point| point.starts_with(folder)) {
        let _ = Command::new("umount").arg(point).status();
    }
}

pub(super) fn remove(resource: &Resource) {
    let mut alive = alive();
    resource.remove();
    alive.retain(|other| other != resource);
}

fn remove_all(alive: &mut Vec<Resource>) {
    alive.drain(..).for_each(|resource| resource.remove());
}

/// Removes the namespaces and folders of killed laboratories and returns their names.
pub fn remove_orphans() -> Vec<String> {
    let namespaces = namespaces().unwrap_or_default();
    let namespaces = namespaces.into_iter().filter(|name| is_orphan(name)).map(Resource::Namespace);
    let orphans: Vec<Resource> = namespaces.chain(orphaned_folders(&env::temp_dir())).collect();
    orphans.iter().for_each(Resource::remove);
    let name = |orphan| match orphan {
        Resource::Namespace(name) => name,
        Resource::Folder(folder) => folder.display().to_string(),
    };
    orphans.into_iter().map(name).collect()
}

/// Returns the names of all namespaces.
pub(super) fn namespaces() -> Result<Vec<String>> {
    let text = run(Command::new("ip").args(["netns", "list"]))?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(String::from).collect())
}

fn orphaned_folders(within: &Path) -> Vec<Resource> {
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    let orphans = entries.filter(|entry| is_orphan(&entry.file_name().to_string_lossy()));
    orphans.map(|entry| Resource::Folder(entry.path())).collect()
}

/// Names start with PREFIX-PID-; a resource is orphaned if that process does not exist.
fn is_orphan(name: &str) -> bool {
    let mut parts = name.split('-');
    let pid = match (parts.next(), parts.next()) {
        (Some(PREFIX), Some(pid)) => pid.parse::<i32>(),
        _ => return false,
    };
    pid.is_ok_and(|pid| kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH))
}

fn alive() -> MutexGuard<'static, Vec<Resource>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_without_a_process_are_orphans() {
        // Process IDs end at 2^22 (proc(5), pid_max).
        assert!(is_orphan("mptlab-99999999-a") && is_orphan("mptlab-99999999-a-capture"));
        assert!(!is_orphan(&format!("mptlab-{}-a", std::process::id())));
        assert!(!is_orphan("somebody-99999999-a"));
        assert!(!is_orphan("mptlab-mine-a"));
    }

    #[test]
    fn the_capture_of_a_killed_laboratory_is_removed() {
        let temporary = tempfile::TempDir::new().expect("a folder");
        let left = temporary.path().join("mptlab-99999999-a-capture");
        fs::create_dir(&left).and_then(|()| fs::write(left.join("packets.pcap"), "")).expect("a capture");
        fs::create_dir(temporary.path().join("somebody-99999999-a")).expect("a folder");
        let orphans = orphaned_folders(temporary.path());
        assert_eq!(orphans, [Resource::Folder(left.clone())]);
        orphans[0].remove();
        assert!(!left.exists());
    }
}
