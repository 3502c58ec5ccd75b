//! How long acknowledgements take, from a capture of the flow's packets at the sender.
//!
//! The thesis takes half of it for the one-way delay, and the difference of consecutive ones for jitter.

use super::Running;
use crate::{
    error::{During, Result, require, run},
    topology::{Folder, Netns},
};
use std::{
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// A capture under way.
pub struct Capture {
    tcpdump: Running,
    folder: Folder,
}

impl Capture {
    /// Captures headers of iperf3's packets on `device`.
    pub fn start(host: &Netns, device: &str) -> Result<Self> {
        ["tcpdump", "tshark"].into_iter().try_for_each(require)?;
        let folder = Folder::create(&format!("{}-capture", host.name()))?;
        let mut command = host.command("tcpdump");
        command
            .args(["-i", device, "-s", "120", "-U", "--immediate-mode", "-Z", "root", "-w"])
            .arg(folder.0.join("packets"));
        command.args(["tcp", "port", "5201"]).stdout(Stdio::null()).stderr(Stdio::null());
        let tcpdump = Running(command.spawn().during("tcpdump")?);
        Ok(Self { tcpdump, folder })
    }

    /// Ends the capture; half of the time to each acknowledgement, in ms.
    pub fn finish(self) -> Result<Vec<f64>> {
        let Self { tcpdump, folder } = self;
        // Every packet is written as it comes. The laboratory keeps signals that could be caught from its children.
        thread::sleep(Duration::from_millis(200));
        drop(tcpdump);
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(folder.0.join("packets"));
        // Large flows are the data connection; iperf3's control connection acknowledges a handful of packets.
        tshark.args(["-Y", "tcp.analysis.ack_rtt && tcp.len == 0 && tcp.srcport == 5201"]);
        tshark.args(["-T", "fields", "-e", "tcp.stream", "-e", "tcp.analysis.ack_rtt"]);
        Ok(halves(&run(&mut tshark)?))
    }
}

/// Half the round trips of the streams that are not the first, in ms.
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
