//! The state of all tunnels, which one thread for each keeps up to date.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::history::History;
use crate::control::report::Report;
use crate::control::watch::WatchItem;
use crate::control::watch_all::{Change, watch_all};
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

    fn change(&self, name: &str, change: Change) {
        match change {
            Change::Item(item) => self.handle(name, item),
            Change::Silent(why) => {
                if let Some(tunnel) = self.lock().get_mut(name) {
                    tunnel.report = Err(why);
                }
            }
            Change::Forgotten => drop(self.lock().remove(name)),
        }
    }

    fn handle(&self, name: &str, item: WatchItem) {
        let mut tunnels = self.lock();
        let Some(tunnel) = tunnels.get_mut(name) else { return };
        match item {
            WatchItem::Sample(sample) => {
                tunnel.history.add(sample.time_ms, &sample.report);
                tunnel.report = Ok(Arc::new(sample.report));
            }
            WatchItem::Event(event) => {
                if tunnel.events.len() >= MAX_EVENTS {
                    tunnel.events.pop_front();
                }
                tunnel.events.push_back(event);
            }
            WatchItem::Lost { .. } => {}
        }
    }
}

/// Starts a thread that watches all tunnels. A tunnel that ends keeps its history for a day, over restarts as well.
pub fn start(run: &RunDir, samples: &Arc<Samples>) {
    let (run, samples) = (run.clone(), Arc::clone(samples));
    thread::spawn(move || {
        watch_all(&run, INTERVAL, |name, _| {
            let starting = Err("no sample yet".to_owned());
            let tunnel = Tunnel { report: starting, history: History::default(), events: VecDeque::new() };
            samples.lock().insert(name.to_owned(), tunnel);
            let (samples, name) = (Arc::clone(&samples), name.to_owned());
            move |change| samples.change(&name, change)
        })
    });
}

/// Interval of samples.
const INTERVAL: Duration = Duration::from_secs(2);
/// Events that the page shows.
const MAX_EVENTS: usize = 50;
