//! The state of all tunnels, which one thread for each keeps up to date.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::history::History;
use crate::control::report::Report;
use crate::control::watch::{Item, Watch};
use crate::control::{Event, RunDir};

/// The state of all tunnels, by interface.
#[derive(Debug, Default)]
pub struct Samples(Mutex<BTreeMap<String, Tunnel>>);

/// The state of a tunnel.
#[derive(Debug)]
pub struct Tunnel {
    /// The last report while the tunnel responds, or the reason why it does not.
    pub report: Result<Arc<Report>, String>,
    /// The last 24 hours.
    pub history: History,
    /// The last events, the oldest first.
    pub events: VecDeque<Event>,
}

impl Samples {
    /// Returns the state for reading or writing. Nothing that waits may happen meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Tunnel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, name: &str, report: Result<Arc<Report>, String>) {
        if let Some(tunnel) = self.lock().get_mut(name) {
            tunnel.report = report;
        }
    }

    fn handle(&self, name: &str, item: Item) {
        let mut tunnels = self.lock();
        let Some(tunnel) = tunnels.get_mut(name) else { return };
        match item {
            Item::Sample(sample) => {
                tunnel.history.add(sample.time_ms, &sample.report);
                tunnel.report = Ok(Arc::new(sample.report));
            }
            Item::Event(event) => {
                if tunnel.events.len() >= MAX_EVENTS {
                    tunnel.events.pop_front();
                }
                tunnel.events.push_back(event);
            }
            Item::Lost { .. } => {}
        }
    }
}

/// Starts a thread that looks for tunnels, and lets a further one watch each.
pub fn start(run: &RunDir, samples: &Arc<Samples>) {
    let (run, samples) = (run.clone(), Arc::clone(samples));
    thread::spawn(move || {
        loop {
            for name in run.names() {
                let is_new = !samples.lock().contains_key(&name);
                if is_new && samples.lock().len() < MAX_TUNNELS {
                    watch(&run, &samples, name);
                }
            }
            thread::sleep(INTERVAL);
        }
    });
}

/// Watches a tunnel until its socket is gone. The history stays as long as the socket does, over restarts as well.
fn watch(run: &RunDir, samples: &Arc<Samples>, name: String) {
    let starting = Err("no sample yet".to_owned());
    let tunnel = Tunnel { report: starting, history: History::default(), events: VecDeque::new() };
    samples.lock().insert(name.clone(), tunnel);
    let (run, samples) = (run.clone(), Arc::clone(samples));
    thread::spawn(move || {
        let mut absent = 0;
        while absent < FORGET_AFTER {
            match Watch::start(&run, Some(&name), INTERVAL) {
                Ok(mut watch) => {
                    absent = 0;
                    let failure = loop {
                        match watch.next_item() {
                            Ok(item) => samples.handle(&name, item),
                            Err(failure) => break failure,
                        }
                    };
                    samples.set(&name, Err(failure.what));
                }
                Err(failure) => samples.set(&name, Err(failure.what)),
            }
            // A crash leaves the socket, an orderly end removes it.
            absent = if run.names().contains(&name) { 0 } else { absent + 1 };
            thread::sleep(INTERVAL);
        }
        samples.lock().remove(&name);
    });
}

/// Interval of samples.
pub const INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of tunnels; each has a thread.
const MAX_TUNNELS: usize = 64;
/// Events that the page shows.
const MAX_EVENTS: usize = 50;
/// Looks without a socket until a tunnel that ended is forgotten: a day, so that a restart keeps its history.
const FORGET_AFTER: u64 = 86_400 / INTERVAL.as_secs();
