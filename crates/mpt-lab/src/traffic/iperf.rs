//! iperf3 at both ends, read from its JSON; goodput is the receiver's figure, not the sender's.

use super::ChildProcess;
use crate::{
    error::{Context, LabError, Result, require},
    topology::Netns,
};
use serde_json::Value;
use std::{
    io::Read,
    net::IpAddr,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Parameters of one run of iperf3.
#[derive(Clone, Debug)]
pub struct Iperf {
    /// Load to send.
    pub load: IperfLoad,
    /// The sender's address, which selects its path; chosen by the system if absent.
    pub from: Option<IpAddr>,
    /// The receiver's address.
    pub to: IpAddr,
    /// Duration of sending.
    pub time: Duration,
    /// Interval of the goodput series, at least 100 ms.
    pub interval: Duration,
    /// True for MPTCP in place of TCP.
    pub mptcp: bool,
    /// The sender's congestion control; the host's default if absent.
    pub congestion: Option<&'static str>,
}

/// Load that iperf3 sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IperfLoad {
    /// Greedy TCP in a number of streams.
    Tcp {
        /// Number of streams.
        streams: u32,
    },
    /// TCP at a limited rate, without Nagle's algorithm.
    PacedTcp {
        /// Rate in Mbit/s.
        mbit: f64,
        /// Size of a write in bytes.
        block: usize,
        /// Size of both sockets' buffers in bytes.
        window: usize,
    },
    /// UDP at a fixed rate.
    Udp {
        /// Rate in Mbit/s.
        mbit: f64,
        /// Size of a datagram's payload in bytes.
        payload: usize,
    },
}

/// Results of a run of iperf3.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Received payload, Mbit/s.
    pub goodput: f64,
    /// Segments that TCP retransmitted.
    pub retransmits: Option<u64>,
    /// Mean over the run of the sender's smoothed RTT.
    pub round_trip: Option<Duration>,
    /// Share of lost datagrams; UDP only.
    pub lost: Option<f64>,
    /// RFC 3550 jitter; UDP only.
    pub jitter: Option<Duration>,
    /// End of each interval in seconds since the start, and the Mbit/s received in it.
    pub series: Vec<(f64, f64)>,
    /// Processor use of the sending iperf3; 1 is one whole processor.
    pub sender_cpu: f64,
    /// Processor use of the receiving iperf3.
    pub receiver_cpu: f64,
}

impl Iperf {
    /// Returns a TCP run to `to` for `time`, with a series of 100 ms.
    pub fn tcp(to: IpAddr, time: Duration) -> Self {
        Self {
            load: IperfLoad::Tcp { streams: 1 },
            from: None,
            to,
            time,
            interval: Duration::from_millis(100),
            mptcp: false,
            congestion: None,
        }
    }

    /// Sets the sender's address.
    pub fn from(mut self, address: IpAddr) -> Self {
        self.from = Some(address);
        self
    }

    /// Selects MPTCP.
    pub fn over_mptcp(mut self) -> Self {
        self.mptcp = true;
        self
    }

    /// Runs from one host to the other. `progress` gets the finished share, from 0 to 1.
    pub fn run(&self, sender: &Netns, receiver: &Netns, progress: &mut dyn FnMut(f64)) -> Result<Measured> {
        require("iperf3")?;
        if self.mptcp {
            require("mptcpize")?;
        }
        let mut server = ChildProcess(self.server(receiver).spawn().context("iperf3 -s")?);
        wait_for_listener(receiver)?;
        let mut client = ChildProcess(self.client(sender).spawn().context("iperf3 -c")?);
        let sent = self.finish(&mut client, progress)?;
        let received = self.finish(&mut server, &mut |_| {})?;
        read(&sent, &received)
    }

    fn server(&self, host: &Netns) -> Command {
        let mut command = self.program(host);
        command.args(["-s", "-1", "-J", "-i", &self.interval.as_secs_f64().to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    fn client(&self, host: &Netns) -> Command {
        let mut command = self.program(host);
        command.args(["-c", &self.to.to_string(), "-J", "-t", &self.time.as_secs_f64().ceil().to_string()]);
        if let Some(address) = self.from {
            command.args(["-B", &address.to_string()]);
        }
        match self.load {
            IperfLoad::Tcp { streams } => drop(command.args(["-P", &streams.to_string()])),
            IperfLoad::PacedTcp { mbit, block, window } => {
                let (block, window) = (block.to_string(), window.to_string());
                command.args(["-b", &format!("{mbit}M"), "-l", &block, "-w", &window, "-N"]);
            }
            IperfLoad::Udp { mbit, payload } => {
                command.args(["-u", "-b", &format!("{mbit}M"), "-l", &payload.to_string()]);
            }
        }
        if let Some(congestion) = self.congestion {
            command.args(["-C", congestion]);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    fn program(&self, host: &Netns) -> Command {
        if !self.mptcp {
            return host.command("iperf3");
        }
        let mut command = host.command("mptcpize");
        command.args(["run", "iperf3"]);
        command
    }

    /// Waits for the end of one side and returns its output.
    fn finish(&self, side: &mut ChildProcess, progress: &mut dyn FnMut(f64)) -> Result<Value> {
        let mut output = side.0.stdout.take().expect("stdout is piped");
        let reader = thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).map(|_| text)
        });
        let start = Instant::now();
        while side.0.try_wait().context("iperf3")?.is_none() {
            if start.elapsed() > self.time + TIMEOUT {
                return Err(unreadable("it did not end"));
            }
            progress((start.elapsed().as_secs_f64() / self.time.as_secs_f64()).min(1.0));
            thread::sleep(Duration::from_millis(50));
        }
        let text = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).context("read iperf3")?;
        let value: Value = serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        value["error"].as_str().map_or(Ok(()), |error| Err(unreadable(error)))?;
        Ok(value)
    }
}

/// Waits until iperf3 listens, because a client fails if it starts earlier.
fn wait_for_listener(host: &Netns) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        if !host.sh("ss -Hltn sport = :5201")?.is_empty() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(unreadable("the server does not listen"))
}

fn read(sent: &Value, received: &Value) -> Result<Measured> {
    let udp = &received["end"]["sum"]["lost_percent"];
    let goodput = if udp.is_number() { udp_goodput(received) } else { tcp_goodput(received) };
    let goodput = goodput.ok_or_else(|| unreadable("no sum at the receiver"))?;
    let cpu = |side: &Value| side["end"]["cpu_utilization_percent"]["host_total"].as_f64().unwrap_or(0.0) / 100.0;
    let rtt = sent["end"]["streams"][0]["sender"]["mean_rtt"].as_u64();
    Ok(Measured {
        goodput: goodput / 1e6,
        retransmits: sent["end"]["sum_sent"]["retransmits"].as_u64(),
        round_trip: rtt.filter(|rtt| *rtt > 0).map(Duration::from_micros),
        lost: udp.as_f64().map(|percent| percent / 100.0),
        jitter: received["end"]["sum"]["jitter_ms"].as_f64().map(|ms| Duration::from_secs_f64(ms / 1e3)),
        series: received["intervals"].as_array().into_iter().flatten().filter_map(interval).collect(),
        sender_cpu: cpu(sent),
        receiver_cpu: cpu(received),
    })
}

fn tcp_goodput(received: &Value) -> Option<f64> {
    received["end"]["sum_received"]["bits_per_second"].as_f64()
}

/// Sums the intervals, because version 3.12 reports a sum of zero for UDP at the receiver.
fn udp_goodput(received: &Value) -> Option<f64> {
    let intervals = received["intervals"].as_array()?;
    let bytes: f64 = intervals.iter().filter_map(|interval| interval["sum"]["bytes"].as_f64()).sum();
    Some(bytes * 8.0 / intervals.last()?["sum"]["end"].as_f64()?)
}

fn interval(interval: &Value) -> Option<(f64, f64)> {
    let sum = &interval["sum"];
    Some((sum["end"].as_f64()?, sum["bits_per_second"].as_f64()? / 1e6))
}

fn unreadable(message: impl Into<String>) -> LabError {
    LabError::Unreadable { tool: "iperf3", message: message.into() }
}

/// Time limit for iperf3 to start, and to end after its duration: the last bytes may wait in a deep queue.
const TIMEOUT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn goodput_is_the_receivers_and_retransmits_the_senders() {
        let sent = json!({"end": {
            "sum_sent": {"bits_per_second": 9.9e6, "retransmits": 7},
            "streams": [{"sender": {"mean_rtt": 20_100}}],
            "cpu_utilization_percent": {"host_total": 3.0}}});
        let received = json!({
            "intervals": [{"sum": {"end": 0.1, "bits_per_second": 9.5e6}}],
            "end": {"sum_received": {"bits_per_second": 9.4e6}, "cpu_utilization_percent": {"host_total": 5.0}}});
        let measured = read(&sent, &received).unwrap();
        assert_eq!((measured.goodput, measured.retransmits), (9.4, Some(7)));
        assert_eq!(measured.round_trip, Some(Duration::from_micros(20_100)));
        assert_eq!(measured.series, [(0.1, 9.5)]);
        assert_eq!((measured.sender_cpu, measured.receiver_cpu), (0.03, 0.05));
    }

    #[test]
    fn goodput_of_udp_is_the_sum_of_the_intervals() {
        let received = json!({
            "intervals": [{"sum": {"end": 0.5, "bytes": 50_000}}, {"sum": {"end": 1.0, "bytes": 75_000}}],
            "end": {"sum": {"bits_per_second": 0.0, "lost_percent": 2.5, "jitter_ms": 0.25}}});
        let measured = read(&json!({}), &received).unwrap();
        assert_eq!((measured.goodput, measured.lost), (1.0, Some(0.025)));
        assert_eq!(measured.jitter, Some(Duration::from_micros(250)));
    }

    #[test]
    fn an_answer_without_a_sum_is_an_error() {
        assert!(read(&json!({}), &json!({})).is_err());
    }
}
