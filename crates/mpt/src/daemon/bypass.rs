//! `mpt bypass`: what leaves through the tunnel by default leaves beside it for a while.
//!
//! A hotel's login page is reached by the network's own name servers and routes, and the kill switch blocks both. So
//! for the time of a bypass the default routes into the tunnel, the kill switch and the name servers of the
//! configuration are suspended. They return by themselves, also when the host wakes from sleep or the tunnel restarts.

use std::time::Duration;

use mpt_linux::netlink::Netlink;
use mpt_proto::time::Time;

use super::Daemon;
use crate::Failure;
use crate::config::File;
use crate::config::model::At;

impl Daemon {
    /// Begins a bypass of so many seconds, or ends it.
    ///
    /// # Errors
    /// Nothing is routed into the tunnel by default, the time is too long, or the system refused a change.
    pub(super) fn set_bypass(&mut self, now: Time, seconds: Option<u64>) -> Result<(), Failure> {
        let Some(seconds) = seconds else { return self.end_bypass() };
        let time = Duration::from_secs(seconds);
        if !(Duration::from_secs(1)..=LONGEST).contains(&time) {
            return Err(Failure::new(format!("a bypass of {seconds} s")).hint("a time from 1s to 4h"));
        }
        if !is_needed(&self.file) {
            let failure = Failure::new("nothing leaves through this tunnel by default, so there is nothing to bypass");
            return Err(failure.hint("it is for routes = [\"0.0.0.0/0\"] and kill_switch"));
        }
        let is_new = self.bypass_until.replace(now + time).is_none();
        if is_new && let Err(failure) = self.suspend_routes(true) {
            // What was suspended before the failure is in effect again.
            self.end_bypass()?;
            return Err(failure);
        }
        tracing::warn!(seconds, "bypass: everything leaves beside the tunnel");
        Ok(())
    }

    /// Ends a bypass that is over. Returns the time at which the present one is.
    pub(super) fn poll_bypass(&mut self, now: Time) -> Option<Time> {
        let until = self.bypass_until?;
        if now < until {
            return Some(until);
        }
        match self.end_bypass() {
            Ok(()) => None,
            Err(failure) => {
                tracing::warn!(%failure, "the bypass is over, but traffic still leaves beside the tunnel");
                self.bypass_until = Some(now + RETRY);
                self.bypass_until
            }
        }
    }

    fn end_bypass(&mut self) -> Result<(), Failure> {
        if self.bypass_until.is_none() {
            return Ok(());
        }
        self.suspend_routes(false)?;
        self.bypass_until = None;
        tracing::info!("the bypass is over");
        Ok(())
    }

    /// Suspends what leads into the tunnel, or puts it back. Routes and kill switch come back before the name servers.
    fn suspend_routes(&mut self, is_suspended: bool) -> Result<(), Failure> {
        self.routes.set_suspended(is_suspended);
        self.routes.apply(&self.file, &mut Netlink::open()?)?;
        match is_suspended {
            true => self.config_files.restore_name_servers(&self.file),
            false => self.config_files.set_name_servers(&self.file),
        }
    }
}

/// Returns true if a bypass would change anything.
fn is_needed(file: &File) -> bool {
    *file.kill_switch || !file.dns.is_empty() || file.routes.iter().any(|net| net.prefix_len() == 0)
}

/// Returns a configuration without what a bypass suspends.
pub fn without_default_routes(file: &File) -> File {
    let routes = file.routes.iter().filter(|net| net.prefix_len() > 0).cloned().collect();
    File { routes, kill_switch: At { value: false, line: file.kill_switch.line }, ..file.clone() }
}

/// Longer than anybody needs for a login, and shorter than what is forgotten for a night.
const LONGEST: Duration = Duration::from_secs(4 * 3_600);
/// Between attempts to end a bypass.
const RETRY: Duration = Duration::from_secs(1);
