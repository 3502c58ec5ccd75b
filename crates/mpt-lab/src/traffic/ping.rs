//! Round-trip times, measured by ping.

use crate::{
    error::{LabError, Result, require},
    topology::Netns,
};
use std::{net::IpAddr, process::Command, thread, time::Duration};

/// A series of echo requests.
#[derive(Clone, Copy, Debug)]
pub struct Ping {
    /// The sender's address; chosen by the system if absent.
    pub from: Option<IpAddr>,
    /// Destination.
    pub to: IpAddr,
    /// Number of requests.
    pub count: u32,
    /// Interval of the requests, at least 2 ms.
    pub interval: Duration,
}

impl Ping {
    /// Sends all requests and returns the round-trip times of those answered within a second.
    pub fn run(&self, host: &Netns) -> Result<Vec<Duration>> {
        require("ping")?;
        answers(self.command(host))
    }

    /// Does the same on an own thread.
    pub fn in_background(&self, host: &Netns) -> Result<thread::JoinHandle<Result<Vec<Duration>>>> {
        require("ping")?;
        let command = self.command(host);
        Ok(thread::spawn(move || answers(command)))
    }

    fn command(&self, host: &Netns) -> Command {
        let mut command = host.command("ping");
        command.args(["-n", "-W", "1", "-c", &self.count.to_string()]);
        command.args(["-i", &self.interval.as_secs_f64().to_string()]);
        if let Some(address) = self.from {
            command.args(["-I", &address.to_string()]);
        }
        command.arg(self.to.to_string());
        command
    }
}

fn answers(mut command: Command) -> Result<Vec<Duration>> {
    let output = command.output().map_err(|error| unreadable(error.to_string()))?;
    // Status 1 means that some requests were not answered.
    match output.status.code() {
        Some(0 | 1) => Ok(round_trips(&String::from_utf8_lossy(&output.stdout))),
        _ => Err(unreadable(String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn round_trips(text: &str) -> Vec<Duration> {
    let millis = |line: &str| line.split_once("time=")?.1.split_whitespace().next()?.parse::<f64>().ok();
    text.lines().filter_map(millis).map(|millis| Duration::from_secs_f64(millis / 1e3)).collect()
}

fn unreadable(message: impl Into<String>) -> LabError {
    LabError::Unreadable { tool: "ping", message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_requests_have_a_time_and_lost_ones_have_none() {
        let text =
            "PING 10.0.0.1\n64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 time=20.4 ms\nno answer yet for icmp_seq=2\n";
        assert_eq!(round_trips(text), [Duration::from_micros(20_400)]);
    }
}
