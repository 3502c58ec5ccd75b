//! Nothing stays behind: however the laboratory ends, its namespaces and what runs in them go with it.
//!
//! Every namespace is registered here before it is made. It is removed when its [`super::Netns`] is dropped, and, for all
//! that are left, on a panic and on SIGINT, SIGTERM and SIGHUP. Only SIGKILL leaves something, for which there is
//! [`remove_orphans`].

use super::netns;
use nix::{
    sys::signal::{SigSet, Signal},
    unistd::Pid,
};
use std::{
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// What the names of all the laboratory's namespaces begin with.
pub const PREFIX: &str = "mptlab";

/// Set by a signal.
static ENDING: AtomicBool = AtomicBool::new(false);

static ALIVE: Mutex<Vec<String>> = Mutex::new(Vec::new());

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
        remove_all();
        std::process::exit(128 + signal as i32);
    });
}

fn clean_up_on_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        // Release builds abort right after this, without dropping anything.
        remove_all();
    }));
}

pub(super) fn register(name: &str) {
    alive().push(name.into());
}

/// Ends everything in a namespace and removes it.
pub(super) fn remove(name: &str) {
    alive().retain(|other| other != name);
    netns::destroy(name);
}

fn remove_all() {
    let names = std::mem::take(&mut *alive());
    names.iter().for_each(|name| netns::destroy(name));
}

/// Removes the namespaces of laboratories that were killed, and returns their names.
pub fn remove_orphans() -> Vec<String> {
    let names = netns::list().unwrap_or_default();
    let orphans: Vec<String> = names.into_iter().filter(|name| is_orphan(name)).collect();
    orphans.iter().for_each(|name| netns::destroy(name));
    orphans
}

/// Names are PREFIX-PID-HOST; one whose process is gone has no owner.
fn is_orphan(name: &str) -> bool {
    let mut parts = name.split('-');
    let pid = match (parts.next(), parts.next()) {
        (Some(PREFIX), Some(pid)) => pid.parse::<i32>(),
        _ => return false,
    };
    pid.is_ok_and(|pid| nix::sys::signal::kill(Pid::from_raw(pid), None).is_err())
}

fn alive() -> MutexGuard<'static, Vec<String>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_of_ours_without_its_process_is_an_orphan() {
        // Process numbers end at 2^22 (proc(5), pid_max).
        assert!(is_orphan("mptlab-99999999-a"));
        assert!(!is_orphan(&format!("mptlab-{}-a", std::process::id())));
        assert!(!is_orphan("somebody-99999999-a"));
        assert!(!is_orphan("mptlab-mine-a"));
    }
}
