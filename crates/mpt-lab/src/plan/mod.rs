//! Experiments as files: what is built, what is sent, what was published, what must come out.
//!
//! ```text
//! lab/*.toml -> file (serde, with positions) -> expand (axes to cases, text to links) -> Plan
//!                        \                          \
//!                         '-------- Problem: file:line: what; hint <
//! ```
//!
//! The catalogue is part of the program, so that `mpt-lab run E1.I` works anywhere; a plan of one's own is named by its file.
//! `docs/guide/lab.md` is the reference of the format.

mod catalogue;
mod expand;
mod file;
mod metric;
mod problem;
#[cfg(test)]
mod tests;

pub use catalogue::{catalogue, select};
pub use metric::Metric;
pub use problem::Problem;

use crate::topology::Family;
use mpt_sim::link::PathSpec;
use serde::Deserialize;
use std::{collections::BTreeMap, path::Path, time::Duration};

/// One experiment: a family of cases that differ along its axes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it is called on the command line, such as `E1.I`.
    pub key: String,
    /// What it shows, in a line.
    pub title: String,
    /// Where it comes from.
    pub paper: String,
    /// Length of a measurement, and of one with `--quick`.
    pub length: Lengths,
    /// How often every case is measured.
    pub repetitions: u32,
    /// How its results are drawn.
    pub figure: Figure,
    /// What the cases differ in; none where they are listed one by one.
    pub axes: Vec<Axis>,
    /// The cases, those of the first axis outermost.
    pub cases: Vec<Case>,
    /// What must come out.
    pub claims: Vec<Claim>,
}

impl Plan {
    /// The figure that the paper publishes first: what its single paths are published in.
    pub fn published_metric(&self) -> Option<Metric> {
        self.cases.iter().flat_map(|case| case.published.keys()).min().copied()
    }

    /// Adds the cases of another selection from the same plan.
    pub fn take(&mut self, other: Self) {
        let new = other.cases.into_iter().filter(|case| self.cases.iter().all(|known| known.name != case.name));
        let new: Vec<Case> = new.collect();
        self.cases.extend(new);
    }
}

/// A time in a full run, and in a quick one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    /// In a full run.
    pub full: Duration,
    /// With `--quick`.
    pub quick: Duration,
}

impl Lengths {
    /// The one that counts.
    pub fn of(self, quick: bool) -> Duration {
        if quick { self.quick } else { self.full }
    }
}

/// One value after the other of something the cases differ in.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The word that stands for it in braces.
    pub name: String,
    /// Its unit, empty where it has none.
    pub unit: String,
    /// Its values as text.
    pub values: Vec<String>,
}

impl Axis {
    /// Its name with its unit.
    pub fn labelled(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{}, {}", self.name, self.unit) }
    }
}

/// One measurement of an experiment.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name: its values along the axes with slashes between, or what the plan calls it.
    pub name: String,
    /// Its values along the axes.
    pub at: Vec<String>,
    /// Whether it is part of a quick run.
    pub quick: bool,
    /// The paths.
    pub paths: Vec<PathSpec>,
    /// What the tunnel is told.
    pub tunnel: Settings,
    /// IP version of the tunnel's addresses.
    pub inner: Family,
    /// IP version of the paths.
    pub outer: Family,
    /// What is sent.
    pub traffic: Traffic,
    /// What happens on the way, in order of time.
    pub events: Vec<Event>,
    /// What the paper's tunnel reached.
    pub published: BTreeMap<Metric, f64>,
    /// What the paper's single paths reached.
    pub published_solo: Vec<f64>,
}

/// What a tunnel is told about an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Static shares of the paths; their speeds, if absent.
    pub weights: Option<Vec<u32>>,
    /// The scheduler; the tunnel's default, if absent.
    pub scheduler: Option<String>,
    /// Inner MTU, as far as it fits; what fits, if absent.
    pub mtu: Option<usize>,
}

/// What is sent from host A to host B, and what is sent or asked meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// What is measured.
    pub load: Load,
    /// What goes on beside it.
    pub beside: Vec<Beside>,
}

/// The traffic that is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// iperf3 over TCP.
    Tcp {
        /// The congestion control of the sender.
        congestion: Congestion,
        /// How many flows.
        streams: u32,
    },
    /// iperf3 over TCP at a rate, with round trips from its packets.
    Paced {
        /// The rate.
        mbit: f64,
        /// The size of a write.
        block: usize,
        /// The socket buffer.
        window: usize,
    },
    /// iperf3 over UDP at a rate, by default what a perfect tunnel could carry.
    Udp {
        /// The rate.
        mbit: Option<f64>,
        /// The size of a datagram's payload.
        payload: usize,
    },
    /// A download of so many MByte from a stock web server.
    Http {
        /// The size of the file.
        mbyte: u64,
    },
    /// The same from a stock FTP server.
    Ftp {
        /// The size of the file.
        mbyte: u64,
    },
    /// A download over QUIC with a stock implementation at both ends.
    Quic,
    /// One TCP flow whose gaps are seen to 10 ms.
    Bulk,
    /// So many echo requests.
    Ping {
        /// How many.
        count: u32,
    },
}

/// What goes on beside the traffic that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Beside {
    /// A call: 200 bytes every 20 ms, stamped.
    Voice,
    /// Echo requests.
    Ping,
    /// Bursts of 20 writes every 1 to 2 seconds: 100 kbit/s from A to B, 500 kbit/s back.
    Background,
}

/// A sender's congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// Linux' default.
    #[default]
    Cubic,
    /// BBR.
    Bbr,
}

impl Congestion {
    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }
}

/// Something that happens to a path during a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// When.
    pub at: Lengths,
    /// To which path, from zero.
    pub path: usize,
    /// What.
    pub what: Happening,
}

/// What can happen to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Happening {
    /// Host A loses the carrier.
    Unplug,
    /// The carrier comes back.
    Plug,
    /// Packets vanish, the interface stays up.
    Cut,
    /// They arrive again.
    Restore,
    /// Host A's address on the path changes.
    Renumber,
}

/// How an experiment's results are drawn.
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

/// Something that must come out.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Of which figure.
    pub metric: Metric,
    /// What it is measured by.
    pub of: Yardstick,
    /// The ratio to it that is reached at least.
    pub at_least: Option<f64>,
    /// The ratio to it that is never passed.
    pub at_most: Option<f64>,
    /// For which cases; all, if empty.
    pub cases: Vec<String>,
    /// Whether it is about the tunnel as the papers had it: static weights, no resequencing.
    pub original: bool,
}

/// What a claim's ratio is taken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Yardstick {
    /// What a perfect tunnel could deliver.
    Ceiling,
    /// A single link of the summed rate, in the same run.
    Ideal,
    /// The best path alone, in the same run.
    Solo,
    /// The kernel's multipath TCP, in the same run.
    Mptcp,
    /// The case that this one is a variation of, which is named by what stands before the slash, in the same run.
    Stem,
    /// The paper's figure.
    Published,
    /// One unit of the metric.
    Unit,
}

/// Reads a plan from the text of `file`.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn parse(file: &Path, text: &str) -> Result<Plan, Problem> {
    expand::plan(&file::read(file, text)?, &problem::Source { file, text })
}
