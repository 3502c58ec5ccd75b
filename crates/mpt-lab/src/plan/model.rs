//! An expanded plan: every case with its paths, traffic, events and published figures.

use super::metric::Metric;
use crate::topology::Family;
use mpt_sim::link::PathSpec;
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};

/// One experiment: a family of cases that differ along its axes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Key on the command line, such as `E1.I`.
    pub key: String,
    /// Title, one line.
    pub title: String,
    /// Source of the experiment.
    pub paper: String,
    /// Length of a measurement, in a full and in a quick run.
    pub length: RunDuration,
    /// Number of repetitions of every case.
    pub repetitions: u32,
    /// Kind of figure for the results.
    pub figure: Figure,
    /// Quantities in which the cases differ; empty if the cases are listed one by one.
    pub axes: Vec<Axis>,
    /// The cases; the first axis is the outermost.
    pub cases: Vec<Case>,
    /// Claims about the results.
    pub claims: Vec<Claim>,
}

impl Plan {
    /// Returns the metric in which the paper publishes its single paths: the first one that it publishes.
    pub fn published_metric(&self) -> Option<Metric> {
        self.cases.iter().flat_map(|case| case.published.keys()).min().copied()
    }

    /// Adds the cases of another selection from the same plan.
    pub fn merge(&mut self, other: Self) {
        let new = other.cases.into_iter().filter(|case| self.cases.iter().all(|known| known.name != case.name));
        let new: Vec<Case> = new.collect();
        self.cases.extend(new);
    }
}

/// A time in a full run and in a quick run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunDuration {
    /// Time in a full run.
    pub full: Duration,
    /// Time with `--quick`.
    pub quick: Duration,
}

impl RunDuration {
    /// Returns the time that applies.
    pub fn of(self, quick: bool) -> Duration {
        if quick { self.quick } else { self.full }
    }
}

/// A quantity in which the cases differ.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name, as used in braces.
    pub name: String,
    /// Unit; may be empty.
    pub unit: String,
    /// Values as text.
    pub values: Vec<String>,
}

impl Axis {
    /// Returns the name with its unit.
    pub fn labelled(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{}, {}", self.name, self.unit) }
    }
}

/// One measurement of an experiment.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name: the values along the axes joined by slashes, or the name in the plan.
    pub name: String,
    /// Values along the axes.
    pub at: Vec<String>,
    /// True if it is part of a quick run.
    pub quick: bool,
    /// The paths.
    pub paths: Vec<PathSpec>,
    /// Settings of the tunnel.
    pub tunnel: Settings,
    /// IP version of the tunnel's addresses.
    pub inner: Family,
    /// IP version of the paths.
    pub outer: Family,
    /// Traffic of the case.
    pub traffic: Traffic,
    /// Events during the measurement, in order of time.
    pub events: Vec<Event>,
    /// Published figures of the paper's tunnel.
    pub published: BTreeMap<Metric, f64>,
    /// Published figures of the paper's single paths.
    pub published_solo: Vec<f64>,
}

impl Case {
    /// Returns a case of one CUBIC flow over these paths.
    pub fn one_flow(name: String, paths: Vec<PathSpec>) -> Self {
        Self {
            name,
            at: Vec::new(),
            quick: true,
            paths,
            tunnel: Settings::default(),
            inner: Family::V4,
            outer: Family::V4,
            traffic: Traffic { load: Load::Tcp { congestion: Congestion::Cubic, streams: 1 }, beside: Vec::new() },
            events: Vec::new(),
            published: BTreeMap::new(),
            published_solo: Vec::new(),
        }
    }

    /// Selects the congestion control of its one flow.
    pub fn with_congestion(mut self, congestion: Congestion) -> Self {
        self.traffic.load = Load::Tcp { congestion, streams: 1 };
        self
    }

    /// Returns the links and what happens to them, each as its name or time and a text.
    pub fn links(&self, quick: bool) -> Vec<(String, String)> {
        let paths = self.paths.iter().enumerate();
        let paths = paths.map(|(path, spec)| (format!("path {}", path + 1), spec.to_string()));
        let event = |event: &Event| {
            let at = format!("at {} s", event.at.of(quick).as_secs_f64());
            (at, format!("{} path {}", event.action.name(), event.path + 1))
        };
        paths.chain(self.events.iter().map(event)).collect()
    }
}

/// Settings of a tunnel in an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Static shares of the paths; their rates, if absent.
    pub weights: Option<Vec<u32>>,
    /// Scheduler; the tunnel's default, if absent.
    pub scheduler: Option<String>,
    /// Upper limit of the inner MTU; the largest that fits, if absent.
    pub mtu: Option<usize>,
}

/// Traffic between host A and host B.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Traffic that is measured.
    pub load: Load,
    /// Traffic beside the load.
    pub beside: Vec<Beside>,
}

/// The traffic that is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// iperf3 over TCP.
    Tcp {
        /// The congestion control of the sender.
        congestion: Congestion,
        /// Number of flows.
        streams: u32,
    },
    /// iperf3 over TCP at a fixed rate, with round-trip times from its packets.
    Paced {
        /// Rate in Mbit/s.
        mbit: f64,
        /// Size of a write in bytes.
        block: usize,
        /// Size of the socket buffer in bytes.
        window: usize,
    },
    /// iperf3 over UDP at a fixed rate, by default the ceiling of the tunnel.
    Udp {
        /// Rate in Mbit/s.
        mbit: Option<f64>,
        /// Size of a datagram's payload in bytes.
        payload: usize,
    },
    /// A download of a file from a stock web server.
    Http {
        /// Size of the file in MByte.
        mbyte: u64,
    },
    /// A download of a file from a stock FTP server.
    Ftp {
        /// Size of the file in MByte.
        mbyte: u64,
    },
    /// A download over QUIC with a stock implementation at both ends.
    Quic,
    /// One TCP flow whose gaps are measured to 10 ms.
    Bulk,
    /// A number of echo requests.
    Ping {
        /// Number of requests.
        count: u32,
    },
}

/// Traffic beside the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Beside {
    /// A VoIP call: timestamped packets of 200 bytes every 20 ms.
    Voice,
    /// Echo requests.
    Ping,
    /// Bursts of 20 writes every 1 to 2 seconds: 100 kbit/s from A to B, 500 kbit/s back.
    Background,
}

/// A sender's congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// Linux's default.
    #[default]
    Cubic,
    /// BBR.
    Bbr,
}

impl Congestion {
    /// Returns the kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }
}

/// An event on a path during a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// Time of the event.
    pub at: RunDuration,
    /// Path, from zero.
    pub path: usize,
    /// Action on the path.
    pub action: Action,
}

/// An action on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Host A loses the carrier.
    Unplug,
    /// The carrier comes back.
    Plug,
    /// Packets are dropped while the interface stays up.
    Cut,
    /// Packets are delivered again.
    Restore,
    /// Host A's address on the path changes.
    Renumber,
}

impl Action {
    /// Returns the name in a plan.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unplug => "unplug",
            Self::Plug => "plug",
            Self::Cut => "cut",
            Self::Restore => "restore",
            Self::Renumber => "renumber",
        }
    }
}

/// Kind of figure for an experiment's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Figure {
    /// Lines over the first axis; one picture for each combination of the others.
    Lines,
    /// Bars for each case.
    #[default]
    Bars,
    /// Bars for each pair of values of two axes.
    Grid,
    /// Throughput over time, per path, for each case.
    Time,
}

/// A claim about the results.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Metric of the claim.
    pub metric: Metric,
    /// Reference of the ratio.
    pub of: Reference,
    /// Minimum ratio to the reference.
    pub at_least: Option<f64>,
    /// Maximum ratio to the reference.
    pub at_most: Option<f64>,
    /// Cases to which the claim applies; all, if empty.
    pub cases: Vec<String>,
    /// True if the claim is about the tunnel as in the papers: static weights, no resequencing.
    pub original: bool,
}

/// Reference of a claim's ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reference {
    /// Goodput of a perfect tunnel.
    Ceiling,
    /// A single link of the summed rate, in the same run.
    Ideal,
    /// The best path alone, in the same run.
    Solo,
    /// Kernel MPTCP, in the same run.
    Mptcp,
    /// The base case of this variation, in the same run; its name is the part before the slash.
    Stem,
    /// The published figure.
    Published,
    /// One unit of the metric.
    Unit,
}
