//! A TCP connection from the centre to each site, which lives through the events.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::fleet::probe::Probe;
use crate::fleet::world::World;

/// The connections of all sites.
pub struct Connections(Vec<Option<Connection>>);

struct Connection {
    stream: TcpStream,
    thread: JoinHandle<()>,
    state: Arc<Mutex<State>>,
}

struct State {
    /// The time of sending of the last number that returned.
    answered: Instant,
    /// The longest wait for a number since the last look.
    longest: Duration,
    lost: Option<String>,
}

impl Connections {
    /// Connects the centre to all sites.
    pub fn connect(world: &World, sites: usize) -> Result<Self> {
        (0..sites).map(|site| Connection::start(world, site).map(Some)).collect::<Result<_>>().map(Self)
    }

    /// Connects the centre to a site again.
    pub fn renew(&mut self, world: &World, site: usize) -> Result<()> {
        self.end(site);
        self.0[site] = Some(Connection::start(world, site)?);
        Ok(())
    }

    /// Ends the connection to a site.
    pub fn end(&mut self, site: usize) {
        if let Some(Connection { stream, thread, .. }) = self.0[site].take() {
            // It fails if the connection is lost already.
            let _ = stream.shutdown(Shutdown::Both);
            let _ = thread.join();
        }
    }

    /// Returns the first site without an answer to a number that was sent after `since`.
    pub fn silent_since(&self, since: Instant) -> Option<usize> {
        self.0.iter().position(|connection| {
            connection.as_ref().is_some_and(|connection| {
                let state = connection.state();
                state.lost.is_none() && state.answered < since
            })
        })
    }

    /// Returns the sites whose connection was lost, with the reasons.
    pub fn lost(&self) -> Vec<(usize, String)> {
        let lost =
            |(site, connection): (usize, &Option<Connection>)| Some((site, connection.as_ref()?.state().lost.clone()?));
        self.0.iter().enumerate().filter_map(lost).collect()
    }

    /// Returns the longest wait for a number since the last call.
    pub fn take_longest(&self) -> Duration {
        let take = |connection: &Connection| std::mem::take(&mut connection.state().longest);
        self.0.iter().flatten().map(take).max().unwrap_or_default()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        (0..self.0.len()).for_each(|site| self.end(site));
    }
}

impl Connection {
    fn start(world: &World, site: usize) -> Result<Self> {
        let (mut probe, stream) = Probe::connect(world, site)?.split(site)?;
        let state = State { answered: Instant::now(), longest: Duration::ZERO, lost: None };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        let thread = thread::spawn(move || {
            for number in 0.. {
                let sent = Instant::now();
                let result = probe.exchange(number);
                let mut state = lock(&shared);
                if let Err(error) = result {
                    state.lost = Some(error.to_string());
                    return;
                }
                state.answered = sent;
                state.longest = state.longest.max(sent.elapsed());
                drop(state);
                thread::sleep(INTERVAL);
            }
        });
        Ok(Self { stream, thread, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For hours, a tenth of the numbers of the demonstration is enough.
const INTERVAL: Duration = Duration::from_millis(100);
