//! Watches all tunnels of a host, also those that come later.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::RunDir;
use super::watch::{Watch, WatchItem};

/// Something that happens to a watched tunnel.
#[derive(Debug)]
pub enum Change {
    /// The tunnel yields an item.
    Item(WatchItem),
    /// The tunnel does not respond, for this reason. Comes again while that lasts.
    Silent(String),
    /// The tunnel ended a day ago. Nothing follows.
    Forgotten,
}

/// Watches all tunnels, each with a thread of its own, with a sample per interval. `handler` makes the function that
/// handles the changes of a tunnel; its second argument is true if the tunnel was there at the start.
pub fn watch_all<H: FnMut(Change) + Send + 'static>(
    run: &RunDir,
    interval: Duration,
    mut handler: impl FnMut(&str, bool) -> H,
) -> ! {
    let known = Arc::new(Mutex::new(BTreeSet::new()));
    let mut is_start = true;
    loop {
        for name in run.names() {
            let mut names = known.lock().unwrap_or_else(PoisonError::into_inner);
            if names.len() < MAX_TUNNELS && names.insert(name.clone()) {
                let (run, known, handle) = (run.clone(), Arc::clone(&known), handler(&name, is_start));
                thread::spawn(move || {
                    watch(&run, &name, interval, handle);
                    known.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                });
            }
        }
        is_start = false;
        thread::sleep(SCAN_INTERVAL);
    }
}

/// Watches a tunnel until its socket has been absent for a day.
fn watch(run: &RunDir, name: &str, interval: Duration, mut handle: impl FnMut(Change)) {
    let mut absent = 0;
    while absent < FORGET_AFTER {
        let failure = match Watch::start(run, Some(name), interval) {
            Err(failure) => failure,
            Ok(mut watch) => loop {
                match watch.next_item() {
                    Ok(item) => handle(Change::Item(item)),
                    Err(failure) => break failure,
                }
            },
        };
        handle(Change::Silent(failure.what));
        // A crash leaves the socket, an orderly end removes it.
        absent = if run.names().iter().any(|known| known == name) { 0 } else { absent + 1 };
        thread::sleep(SCAN_INTERVAL);
    }
    handle(Change::Forgotten);
}

/// Interval of scans for new tunnels, and of attempts to connect to one.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of tunnels; each has a thread.
const MAX_TUNNELS: usize = 64;
/// Failed attempts until a tunnel without a socket is forgotten: a day.
const FORGET_AFTER: u64 = 86_400 / SCAN_INTERVAL.as_secs();
