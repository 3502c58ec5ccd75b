//! Acknowledgement delays, from a capture of the flow's packets at the sender.
//!
//! The thesis uses half of it as one-way delay, and the difference of consecutive values as jitter.

use super::ChildProcess;
use crate::{
    error::{Context, Result, require, run},
    topology::{Folder, Netns},
};
use std::{
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// A capture in progress.
pub struct AckCapture {
    tcpdump: ChildProcess,
    folder: Folder,
}

impl AckCapture {
    /// Captures headers of iperf3's packets on `device`.
    pub fn start(host: &Netns, device: &str) -> Result<Self> {
        ["tcpdump", "tshark"].into_iter().try_for_each(require)?;
        let folder = Folder::create(&format!("{}-capture", host.name()))?;
        let mut command = host.command("tcpdump");
        command
            .args(["-i", device, "-s", "120", "-U", "--immediate-mode", "-Z", "root", "-w"])
            .arg(folder.0.join("packets"));
        command.args(["tcp", "port", "5201"]).stdout(Stdio::null()).stderr(Stdio::null());
        let tcpdump = ChildProcess(command.spawn().context("tcpdump")?);
        Ok(Self { tcpdump, folder })
    }

    /// Ends the capture and returns half of the time to each ACK, in ms.
    pub fn finish(self) -> Result<Vec<f64>> {
        let Self { tcpdump, folder } = self;
        // tcpdump writes every packet at once. It is killed, because signals that can be caught are blocked in child
        // processes.
        thread::sleep(Duration::from_millis(200));
        drop(tcpdump);
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(folder.0.join("packets"));
        // Large streams are the data connection; iperf3's control connection has only a handful of ACKs.
        tshark.args(["-Y", "tcp.analysis.ack_rtt && tcp.len == 0 && tcp.srcport == 5201"]);
        tshark.args(["-T", "fields", "-e", "tcp.stream", "-e", "tcp.analysis.ack_rtt"]);
        Ok(halves(&run(&mut tshark)?))
    }
}

/// Returns half the round-trip times of all streams but the first, in ms.
fn halves(text: &str) -> Vec<f64> {
    let line = |line: &str| {
        let (stream, seconds) = line.split_once('\t')?;
        Some((stream.parse::<u32>().ok()?, seconds.parse::<f64>().ok()?))
    };
    let all: Vec<(u32, f64)> = text.lines().filter_map(line).collect();
    let control = all.iter().map(|(stream, _)| *stream).min();
    all.iter().filter(|(stream, _)| Some(*stream) != control).map(|(_, seconds)| seconds * 500.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_connection_does_not_count() {
        assert_eq!(halves("0\t0.1\n1\t0.05\n1\t0.06\n0\t0.2\n"), [25.0, 30.0]);
    }
}
