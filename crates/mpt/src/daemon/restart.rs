//! A signal to stop from systemd: `systemctl restart` and `systemctl stop` send the same one.
//!
//! After a restart the next process takes over the TUN device, the rules, the kill switch and the settings of a
//! gateway, so they must stay. `systemctl list-jobs` shows which of the two it is. The tunnel carries traffic until the
//! answer is there, or [`TIME_LIMIT`] has passed. Without an answer it is a stop, and without the name of the unit in
//! `MPT_UNIT`.

use std::env;
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mpt_linux::reactor::Interest;
use mpt_proto::time::Time;

use super::{Daemon, LoopControl, RESTART};

/// A query that runs.
#[derive(Debug)]
pub struct StopRequest {
    query: Child,
    unit: String,
    deadline: Time,
}

impl StopRequest {
    /// Starts the query. Returns `None` if the unit has no name, or `systemctl` cannot be run.
    fn start(now: Time) -> Option<Self> {
        let unit = env::var("MPT_UNIT").ok()?;
        let mut command = Command::new("systemctl");
        command.args(["list-jobs", "--no-legend", "--plain", "--full", "--no-pager", &unit]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let query = command.spawn().inspect_err(|error| tracing::debug!(%error, "cannot run systemctl")).ok()?;
        Some(Self { query, unit, deadline: now + TIME_LIMIT })
    }

    /// Returns the time at which the query is ended.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Returns true if the service is being restarted; `None` as long as the answer may come.
    fn poll(&mut self, now: Time) -> Option<bool> {
        match self.query.try_wait() {
            Ok(None) if now < self.deadline => None,
            Ok(None) => {
                tracing::warn!(time = ?TIME_LIMIT, "systemctl does not answer: stopping as if there were no restart");
                Some(false)
            }
            Err(_) => Some(false),
            Ok(Some(_)) => {
                let mut answer = String::new();
                let output = self.query.stdout.as_mut();
                let read = output.is_some_and(|output| output.take(MAX_ANSWER).read_to_string(&mut answer).is_ok());
                Some(read && is_restart(&answer, &self.unit))
            }
        }
    }
}

impl Drop for StopRequest {
    fn drop(&mut self) {
        // It fails if the query has ended.
        let _ = self.query.kill();
        let _ = self.query.wait();
    }
}

impl Daemon {
    /// Handles a signal to stop. A second one does not wait for the answer to the first.
    pub(super) fn request_stop(&mut self, now: Time) -> LoopControl {
        let is_first = self.stop_request.is_none() && self.service.is_managed();
        self.stop_request = is_first.then(|| StopRequest::start(now)).flatten();
        let Some(output) = self.stop_request.as_ref().and_then(|request| request.query.stdout.as_ref()) else {
            return LoopControl::Exit;
        };
        // The end of the output wakes the main loop.
        match self.workers.watch(output, RESTART, Interest::Read) {
            Ok(()) => LoopControl::Continue,
            Err(_) => LoopControl::Exit,
        }
    }

    /// Returns true or false if the tunnel is to stop: the service is being restarted or not.
    pub(super) fn poll_stop_request(&mut self, now: Time) -> Option<bool> {
        let restarts = self.stop_request.as_mut()?.poll(now)?;
        if restarts {
            tracing::info!("the service restarts: the interface, rules and kill switch stay");
        }
        Some(restarts)
    }
}

/// Returns true if the list of jobs has a restart of the unit: number, unit, kind and state.
fn is_restart(jobs: &str, unit: &str) -> bool {
    let mut jobs = jobs.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    jobs.any(|job| job.get(1) == Some(&unit) && job.get(2) == Some(&"restart"))
}

/// `systemctl` takes some 10 ms. A manager kills a service that has not ended after 90 s.
const TIME_LIMIT: Duration = Duration::from_secs(1);
const MAX_ANSWER: u64 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_differs_from_a_stop_and_from_jobs_of_others() {
        assert!(is_restart("1234 mpt@home.service restart running\n", "mpt@home.service"));
        assert!(!is_restart("1234 mpt@home.service stop running\n", "mpt@home.service"));
        assert!(!is_restart("1 mpt@office.service restart running\nNo jobs running.\n", "mpt@home.service"));
        assert!(!is_restart("", "mpt@home.service"));
    }
}
