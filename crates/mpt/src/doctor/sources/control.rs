//! The control socket of the tunnel.

use crate::control::{Client, RunDir};
use crate::daemon;
use crate::doctor::facts::Control;

/// Requests a report with rates of half a second.
pub fn query(interface: &str) -> Control {
    let run = RunDir::from_env();
    if interface.is_empty() || !run.running().iter().any(|name| name == interface) {
        return if daemon::is_blocking(interface) { Control::Blocked } else { Control::Absent };
    }
    let report = Client::connect_status(&run, Some(interface)).and_then(|mut client| client.status_with_rates());
    match report {
        Ok(report) => Control::Report(Box::new(report)),
        Err(failure) => Control::Refused(failure),
    }
}
