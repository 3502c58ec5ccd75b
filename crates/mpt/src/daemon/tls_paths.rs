//! Paths over TLS at the client: connected while no other path to the peer answers, and left when one does.
//!
//! ```text
//!   no UDP path answers for 5 s    connect; if that fails, again after 5 s and up to a minute
//!   connected                      the path has a carrier: the core probes it, and uses it as a standby path
//!   a UDP path answers             the core sends there at once; after 30 s without a failure, disconnect
//! ```
//!
//! The core decides nothing new: to it, a path over TLS is a standby path whose carrier comes and goes.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use crate::daemon::workers::Workers;
use mpt_linux::reactor::Interest;
use mpt_proto::path::{DownCause, LinkId, PathState};
use mpt_proto::time::Time;

use super::{Daemon, TLS};
use crate::Failure;
use crate::config::tls::{TlsHost, TlsServer};
use crate::control::report::{Report, TlsReport};
use crate::tls::client::{TlsClient, TlsEvent, TlsTarget};
use crate::tls::listen::is_relay;

/// All paths over TLS.
#[derive(Debug, Default)]
pub(super) struct TlsPaths {
    paths: Vec<TlsPath>,
    /// Time of the next poll.
    due: Option<Time>,
}

/// One path.
#[derive(Debug)]
pub struct TlsPath {
    peer: String,
    name: String,
    link: LinkId,
    server: TlsServer,
    client: TlsClient,
    /// The address of the server, while connected.
    address: Option<SocketAddr>,
    plan: Plan,
}

/// When to connect and disconnect.
#[derive(Debug, Default)]
struct Plan {
    state: TlsConnectionState,
    /// Time since which no UDP path answers.
    silent_since: Option<Time>,
    /// Time since which one does.
    answered_since: Option<Time>,
    /// Time before which no further attempt is made.
    retry: Time,
    /// Attempts that failed in a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TlsConnectionState {
    #[default]
    Idle,
    Connecting,
    Connected {
        since: Time,
    },
    Closing,
}

/// The step that the plan requires now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStep {
    Wait,
    Connect,
    Close,
}

impl TlsPath {
    /// Starts the thread of a path over the link that is bound to `local`.
    ///
    /// # Errors
    /// The system refused it.
    pub fn start(peer: &str, name: &str, local: SocketAddr, link: LinkId, target: TlsTarget) -> io::Result<Self> {
        let server = target.server.clone();
        let client = TlsClient::start(target, local)?;
        let (peer, name) = (peer.to_owned(), name.to_owned());
        Ok(Self { peer, name, link, server, client, address: None, plan: Plan::default() })
    }

    /// Returns the address to which the core sends.
    pub fn remote(&self) -> SocketAddr {
        self.client.local()
    }
}

impl Plan {
    /// Returns the step that is due. `answers` if a UDP path does; `disabled` if the operator has taken this path down.
    fn step(&mut self, now: Time, answers: bool, disabled: bool) -> ConnectionStep {
        if answers {
            (self.silent_since, self.answered_since) = (None, self.answered_since.or(Some(now)));
        } else {
            (self.silent_since, self.answered_since) = (self.silent_since.or(Some(now)), None);
        }
        let is_due = self.deadline().is_some_and(|deadline| deadline <= now);
        match self.state {
            TlsConnectionState::Idle if is_due && !disabled => {
                self.state = TlsConnectionState::Connecting;
                ConnectionStep::Connect
            }
            TlsConnectionState::Connected { .. } if is_due || disabled => {
                self.state = TlsConnectionState::Closing;
                ConnectionStep::Close
            }
            _ => ConnectionStep::Wait,
        }
    }

    /// Returns the time of the next step, unless something happens before.
    fn deadline(&self) -> Option<Time> {
        match self.state {
            TlsConnectionState::Idle => self.silent_since.map(|since| (since + SILENCE).max(self.retry)),
            TlsConnectionState::Connected { .. } => self.answered_since.map(|since| since + LINGER),
            TlsConnectionState::Connecting | TlsConnectionState::Closing => None,
        }
    }

    /// An attempt failed. Waits twice as long after each.
    fn on_failed(&mut self, now: Time) {
        self.state = TlsConnectionState::Idle;
        self.retry = now + (FIRST_RETRY * 2_u32.saturating_pow(self.failures)).min(LAST_RETRY);
        self.failures = (self.failures + 1).min(16);
    }
}

impl TlsPaths {
    /// Makes a poll due: a connection or the state of a path has changed.
    pub(super) fn schedule(&mut self, now: Time) {
        if !self.paths.is_empty() {
            self.due = Some(now);
        }
    }

    /// Returns the cause for which a path over TLS has no carrier.
    pub(super) fn cause(&self, peer: &str, path: &str) -> Option<&'static str> {
        let path = self.paths.iter().find(|own| own.peer == peer && own.name == path)?;
        Some(if path.plan.answered_since.is_some() { "unused" } else { "connecting" })
    }

    /// Adds the connections to a report. At a server that `accepts` such paths, their addresses show them.
    pub(super) fn fill_report(&self, now: Time, accepts: bool, report: &mut Report) {
        for peer in &mut report.peers {
            for path in &mut peer.paths {
                if let Some(own) = self.paths.iter().find(|own| own.peer == peer.name && own.name == path.name) {
                    let connected_s = match own.plan.state {
                        TlsConnectionState::Connected { since } => Some(now.since(since).as_secs()),
                        TlsConnectionState::Idle | TlsConnectionState::Connecting | TlsConnectionState::Closing => None,
                    };
                    path.tls = Some(TlsReport { connected_s, dropped_packets: Some(own.client.dropped()) });
                    path.remote = own.address.map_or_else(|| own.server.to_string(), |address| address.to_string());
                    if path.cause.as_deref() == Some("carrier") {
                        path.cause = self.cause(&peer.name, &path.name).map(str::to_owned);
                    }
                } else if accepts && path.remote.parse().is_ok_and(|at: SocketAddr| is_relay(at.ip())) {
                    path.tls = Some(TlsReport::default());
                }
            }
        }
    }
}

impl Daemon {
    /// Takes the paths over TLS whose sockets were opened. They have no carrier until they are connected.
    ///
    /// # Errors
    /// The system refused a registration.
    pub(super) fn add_tls_paths(&mut self, now: Time) -> Result<(), Failure> {
        for path in self.sockets.take_tls() {
            self.workers.watch(&path.client, TLS, Interest::Read)?;
            self.workers.handle_carrier(now, path.link, false);
            self.tls.paths.push(path);
        }
        self.tls.schedule(now);
        Ok(())
    }

    /// Ends those of a removed peer.
    pub(super) fn remove_tls_paths(&mut self, now: Time, peer: &str) {
        let (gone, others): (Vec<_>, Vec<_>) =
            mem::take(&mut self.tls.paths).into_iter().partition(|path| path.peer == peer);
        self.tls.paths = others;
        for path in gone {
            path.client.close();
            self.workers.remove_paths_over(now, path.link);
            self.workers.close_link(path.link);
            self.sockets.release_id(path.link);
        }
    }

    /// Handles what has happened and what is due, and returns the next deadline.
    pub(super) fn poll_tls(&mut self, now: Time) -> Option<Time> {
        if self.tls.due.is_none_or(|due| due > now) {
            return self.tls.due;
        }
        let links: Vec<_> = self.tls.paths.iter().map(|path| path.link).collect();
        let mut paths = mem::take(&mut self.tls.paths);
        for path in &mut paths {
            for event in path.client.take_events() {
                path.on_event(now, event, &mut self.workers);
            }
            let (answers, disabled) = states(&self.workers, path, &links);
            match path.plan.step(now, answers, disabled) {
                ConnectionStep::Wait => {}
                ConnectionStep::Connect => {
                    let (peer, name, server) = (&path.peer, &path.name, path.server.to_string());
                    tracing::info!(peer, path = name, server, "no UDP path answers: connecting over TLS");
                    let host = if let TlsHost::Name(name) = path.server.next_hop().0 { name } else { "" };
                    path.client.connect(self.lookup(host));
                }
                ConnectionStep::Close => {
                    path.on_left(now, "not needed any more", &mut self.workers);
                    path.client.close();
                }
            }
        }
        // A path that is taken down has a deadline that has passed: an event ends that state.
        self.tls.due = paths.iter().filter_map(|path| path.plan.deadline()).filter(|due| *due > now).min();
        self.tls.paths = paths;
        self.tls.due
    }
}

impl TlsPath {
    fn on_event(&mut self, now: Time, event: TlsEvent, workers: &mut Workers) {
        let (peer, path, server) = (&self.peer, &self.name, self.server.to_string());
        match event {
            TlsEvent::Connected(address) => {
                (self.plan.state, self.plan.failures, self.address) =
                    (TlsConnectionState::Connected { since: now }, 0, Some(address));
                workers.handle_carrier(now, self.link, true);
                tracing::info!(peer, path, server, %address, "connected over TLS");
            }
            TlsEvent::Refused(why, hint) => {
                self.plan.on_failed(now);
                let next_s = self.plan.retry.since(now).as_secs();
                tracing::warn!(peer, path, server, next_s, "cannot connect over TLS: {why}; hint: {hint}");
            }
            TlsEvent::Ended(why) => {
                self.on_left(now, &why, workers);
                self.plan.on_failed(now);
            }
            TlsEvent::Closed => self.plan.state = TlsConnectionState::Idle,
        }
    }

    /// The connection has ended, or is about to.
    fn on_left(&mut self, now: Time, why: &str, workers: &mut Workers) {
        if self.address.take().is_none() {
            return;
        }
        workers.handle_carrier(now, self.link, false);
        let dropped = self.client.dropped();
        tracing::info!(peer = self.peer, path = self.name, dropped, "left TLS: {why}");
    }
}

/// Returns whether a path to the peer of `path` that is not over TLS is alive, and whether `path` is taken down.
fn states(workers: &Workers, path: &TlsPath, over_tls: &[LinkId]) -> (bool, bool) {
    let Some(peer) = workers.peers().find(|peer| peer.name() == path.peer) else { return (true, true) };
    let status = peer.status();
    let is_alive = |state| matches!(state, PathState::Up | PathState::Demoted(_));
    let answers = status.paths.iter().any(|other| !over_tls.contains(&other.link) && is_alive(other.state));
    let own = status.paths.iter().find(|own| own.link == path.link);
    (answers, own.is_some_and(|own| own.state == PathState::Down(DownCause::Operator)))
}

/// The time without an answer over UDP after which TLS is used.
const SILENCE: Duration = Duration::from_secs(5);
/// The time with answers over UDP after which the connection ends.
const LINGER: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::START + Duration::from_secs(seconds)
    }

    #[test]
    fn tls_is_connected_after_five_seconds_of_silence_and_left_after_thirty_of_answers() {
        let mut plan = Plan::default();
        assert_eq!((plan.step(at(1), false, false), plan.deadline()), (ConnectionStep::Wait, Some(at(6))));
        assert_eq!(plan.step(at(3), true, false), ConnectionStep::Wait, "UDP answers in time");
        assert_eq!((plan.step(at(4), false, false), plan.deadline()), (ConnectionStep::Wait, Some(at(9))));
        assert_eq!((plan.step(at(9), false, false), plan.deadline()), (ConnectionStep::Connect, None));
        plan.state = TlsConnectionState::Connected { since: at(10) };
        assert_eq!((plan.step(at(20), true, false), plan.deadline()), (ConnectionStep::Wait, Some(at(50))));
        assert_eq!(plan.step(at(49), false, false), ConnectionStep::Wait, "UDP failed again");
        assert_eq!(plan.step(at(52), true, false), ConnectionStep::Wait);
        assert_eq!((plan.step(at(82), true, false), plan.deadline()), (ConnectionStep::Close, None));
    }

    #[test]
    fn an_attempt_that_fails_is_repeated_after_longer_and_longer_times() {
        let (mut plan, mut now) = (Plan::default(), at(1));
        plan.step(now, false, false);
        for wait in [5, 10, 20, 40, 60, 60] {
            now = plan.deadline().unwrap();
            assert_eq!(plan.step(now, false, false), ConnectionStep::Connect);
            plan.on_failed(now);
            assert_eq!(plan.deadline(), Some(now + Duration::from_secs(wait)));
        }
    }

    #[test]
    fn a_path_that_is_taken_down_is_not_connected_and_is_left() {
        let mut plan = Plan::default();
        plan.step(at(1), false, true);
        assert_eq!(plan.step(at(9), false, true), ConnectionStep::Wait);
        plan.state = TlsConnectionState::Connected { since: at(10) };
        assert_eq!(plan.step(at(11), false, true), ConnectionStep::Close);
    }
}
