//! The control socket of the tunnel.

use std::fs;
use std::io::ErrorKind;

use crate::Failure;
use crate::control::{ControlClient, RunDir};
use crate::daemon;
use crate::doctor::facts::Control;

/// Requests a report with rates of half a second.
pub fn query(interface: &str) -> Control {
    let run = RunDir::from_env();
    if let Err(error) = fs::read_dir(run.path())
        && error.kind() == ErrorKind::PermissionDenied
    {
        let failure = Failure::new(format!("cannot list {}: {error}", run.path().display()));
        return Control::Refused(failure.hint("run as root"));
    }
    if interface.is_empty() || !run.running().iter().any(|name| name == interface) {
        return if daemon::is_blocking(interface) { Control::Blocked } else { Control::Absent };
    }
    let report =
        ControlClient::connect_status(&run, Some(interface)).and_then(|mut client| client.status_with_rates(None));
    match report {
        Ok(report) => Control::Report(Box::new(report)),
        Err(failure) => Control::Refused(failure),
    }
}
