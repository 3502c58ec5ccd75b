//! Results of a demonstration as a table and as a picture.

use crate::{
    chart::{self, Chart, Line},
    error::{LabError, Result},
    traffic::{
        bulk::{Sample, longest_gap, rates},
        iperf::Measured,
    },
    wire::Report,
};
use mpt_sim::link::PathSpec;
use std::{fmt, path::Path, time::Duration};

/// All figures of a demonstration in Mbit/s of TCP payload at the receiver.
#[derive(Debug)]
pub struct DemoResult {
    /// The paths.
    pub paths: Vec<PathSpec>,
    /// Each path alone.
    pub solo: Vec<Measured>,
    /// Goodput of a perfect tunnel.
    pub ceiling: Option<f64>,
    /// The tunnel's measurement, or the reason why there is none.
    pub tunnel: std::result::Result<Measured, LabError>,
    /// Kernel MPTCP's measurement, or the reason why there is none.
    pub mptcp: std::result::Result<Measured, LabError>,
    /// Cable pull under the tunnel.
    pub tunnel_pull: Option<Pull>,
    /// Cable pull under kernel MPTCP.
    pub mptcp_pull: Option<Pull>,
    /// Timing report of the wire.
    pub wire: Option<Report>,
}

/// A transfer during which a cable is pulled and put back.
#[derive(Clone, Debug)]
pub struct Pull {
    /// Time at which the cable was pulled.
    pub pulled: Duration,
    /// Time at which the cable was put back.
    pub plugged: Duration,
    /// Time at which the transfer ended.
    pub end: Duration,
    /// Bytes received over time.
    pub samples: Vec<Sample>,
}

impl Pull {
    /// Returns the longest time without progress while the cable was out, to 10 ms.
    pub fn gap(&self) -> Duration {
        longest_gap(&self.samples, self.pulled, self.plugged, self.end)
    }

    fn line(&self, name: &str, colour: usize) -> Line {
        Line { name: name.into(), colour, points: rates(&self.samples, RESOLUTION, self.end), marked: false }
    }
}

impl DemoResult {
    /// Draws throughput over time into an SVG file.
    pub fn draw(&self, file: &Path) -> Result<()> {
        chart::draw(file, &[self.side_by_side(), self.pulled()])
    }

    fn side_by_side(&self) -> Chart {
        let solo = self.solo.iter().enumerate();
        let mut lines: Vec<Line> = solo
            .map(|(path, measured)| line(&format!("path {} alone", path + 1), FIRST_PATH + path, measured))
            .collect();
        lines.extend(self.tunnel.as_ref().ok().map(|measured| line("MPT", TUNNEL, measured)));
        lines.extend(self.mptcp.as_ref().ok().map(|measured| line("kernel MPTCP", MPTCP, measured)));
        Chart {
            title: "One TCP flow: each path alone, and all together".into(),
            unit: UNIT.into(),
            lines,
            levels: self.ceiling.map(|mbit| (mbit, format!("ceiling {mbit:.1}"))).into_iter().collect(),
            ..Chart::default()
        }
    }

    fn pulled(&self) -> Chart {
        let tunnel = self.tunnel_pull.as_ref().map(|pull| pull.line("MPT", TUNNEL));
        let mptcp = self.mptcp_pull.as_ref().map(|pull| pull.line("kernel MPTCP", MPTCP));
        let either = self.mptcp_pull.as_ref().or(self.tunnel_pull.as_ref());
        let at = |time: Duration, what: &str| (time.as_secs_f64(), format!("\u{a0}{what}"));
        Chart {
            title: format!("One TCP flow: the cable of path {} is pulled and put back", self.paths.len()),
            unit: UNIT.into(),
            lines: tunnel.into_iter().chain(mptcp).collect(),
            events: either.into_iter().flat_map(|pull| [at(pull.pulled, "pulled"), at(pull.plugged, "back")]).collect(),
            ..Chart::default()
        }
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, name: &str, mbit: f64) -> fmt::Result {
        match self.ceiling {
            Some(ceiling) => writeln!(f, "{name:<40} {mbit:>8.2} {:>9.1} %", mbit / ceiling * 100.0),
            None => writeln!(f, "{name:<40} {mbit:>8.2}"),
        }
    }
}

impl fmt::Display for DemoResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<40} {:>8} {:>11}", "one TCP flow", "Mbit/s", "of ceiling")?;
        for (number, measured) in self.solo.iter().enumerate() {
            self.row(f, &format!("path {} alone", number + 1), measured.goodput)?;
        }
        if let Some(ceiling) = self.ceiling {
            self.row(f, "ceiling of a tunnel over all", ceiling)?;
        }
        for (name, measured) in [("MPT over all", &self.tunnel), ("kernel MPTCP over all", &self.mptcp)] {
            match measured {
                Ok(measured) => self.row(f, name, measured.goodput)?,
                Err(_) => writeln!(f, "{name:<40} {:>8}", "absent")?,
            }
        }
        writeln!(f, "\n{:<40} {:>8}", format!("cable of path {} pulled in mid-transfer", self.paths.len()), "gap, ms")?;
        let pulls = [("MPT", &self.tunnel_pull), ("kernel MPTCP", &self.mptcp_pull)];
        for (name, pull) in pulls {
            let gap = pull.as_ref().map_or("absent".into(), |pull| pull.gap().as_millis().to_string());
            writeln!(f, "{name:<40} {gap:>8}")?;
        }
        Ok(())
    }
}

fn line(name: &str, colour: usize, measured: &Measured) -> Line {
    Line { name: name.into(), colour, points: measured.series.clone(), marked: false }
}

/// Colours in the palette.
const TUNNEL: usize = 0;
const MPTCP: usize = 1;
const FIRST_PATH: usize = 2;

const UNIT: &str = "TCP payload, Mbit/s";

/// Interval of the rates in the picture: fine enough to show a gap, coarse enough to average single frames.
const RESOLUTION: Duration = Duration::from_millis(100);
