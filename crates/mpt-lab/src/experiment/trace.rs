//! Pictures of the core's estimates for each path while one TCP flow runs in the simulator, and the event traces of
//! both ends as qlog.

use super::sim::Simulation;
use crate::{
    chart::{Chart, Line},
    error::{Context as _, Result},
    plan::Case,
    tunnel::Mode,
};
use mpt_proto::trace::qlog::{self, QlogHeader};
use mpt_proto::tuning::Tuning;
use mpt_sim::{host::tcp::TcpSink, net::Network, seed::Seed};
use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// Interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a case in native mode and draws rates, queues and buffered bytes over time. Writes the event traces of both
/// ends into the folder `qlog`, if there is one: `CASE-near.sqlog` and `CASE-far.sqlog`.
///
/// # Errors
/// Returns an error if the simulator cannot run the case, or a file cannot be written.
pub fn trace(case: &Case, seed: Seed, length: Duration, qlog: Option<&Path>) -> Result<Vec<Chart>> {
    let simulation = Simulation {
        case,
        mode: Mode::Native,
        tuning: Tuning::default(),
        seed,
        length,
        quick: true,
        offset: Duration::ZERO,
    };
    let mut traced = Curves::new(case.paths.len());
    let mut files = qlog.map(|folder| TraceFiles::create(folder, &case.name)).transpose()?;
    simulation.run_sampled(SAMPLE_INTERVAL, files.is_some(), &mut |net, at| {
        traced.sample(net, at);
        files.as_mut().map_or(Ok(()), |files| files.write(net))
    })?;
    files.map_or(Ok(()), TraceFiles::close)?;
    Ok(traced.charts(&case.name))
}

/// The qlog files of both ends.
struct TraceFiles {
    files: [(PathBuf, BufWriter<File>); 2],
    text: String,
}

impl TraceFiles {
    /// Creates the folder if it is missing, and the files with their headers.
    fn create(folder: &Path, case: &str) -> Result<Self> {
        fs::create_dir_all(folder).context(format!("cannot create {}", folder.display()))?;
        let safe: String =
            case.chars().map(|c| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' }).collect();
        let mut text = String::new();
        let mut create = |end: &str| {
            let path = folder.join(format!("{safe}-{end}.sqlog"));
            let mut file = BufWriter::new(File::create(&path).context(format!("cannot create {}", path.display()))?);
            text.clear();
            qlog::write_header(&mut text, &QlogHeader { title: case, vantage_point: end, wall_clock: None });
            file.write_all(text.as_bytes()).context(format!("cannot write {}", path.display()))?;
            Ok((path, file))
        };
        let files = [create("near")?, create("far")?];
        Ok(Self { files, text })
    }

    /// Writes the events since the last call.
    fn write(&mut self, net: &mut Network) -> Result<()> {
        for (end, (path, file)) in self.files.iter_mut().enumerate() {
            self.text.clear();
            while let Some(record) = net.poll_trace(end) {
                qlog::write_event(&mut self.text, &record);
            }
            file.write_all(self.text.as_bytes()).context(format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn close(self) -> Result<()> {
        let [near, far] = self.files;
        [near, far]
            .into_iter()
            .try_for_each(|(path, mut file)| file.flush().context(format!("cannot write {}", path.display())))
    }
}

/// Curves under construction.
struct Curves {
    goodput: Line,
    estimates: Vec<Line>,
    queues: Vec<Line>,
    waiting: Line,
    held: Line,
    received: u64,
}

impl Curves {
    fn new(paths: usize) -> Self {
        let of_paths = || (0..paths).map(|path| line(&format!("path {}", path + 1), path)).collect();
        Self {
            goodput: line("goodput", paths),
            estimates: of_paths(),
            queues: of_paths(),
            waiting: line("at the sender", 0),
            held: line("at the receiver", 1),
            received: 0,
        }
    }

    fn sample(&mut self, net: &Network, at: Duration) {
        let (x, bytes) = (at.as_secs_f64(), net.host::<TcpSink>(1).bytes());
        self.goodput.points.push((x, (bytes - self.received) as f64 * 8e-6 / SAMPLE_INTERVAL.as_secs_f64()));
        self.received = bytes;
        let [near, far] = [0, 1].map(|end| net.endpoint(end).status().peers.swap_remove(0));
        for ((estimates, queues), path) in self.estimates.iter_mut().zip(&mut self.queues).zip(&near.paths) {
            estimates.points.push((x, path.rate.map_or(0.0, |rate| rate.bits() as f64 * 1e-6)));
            queues.points.push((x, path.queue.unwrap_or_default().as_secs_f64() * 1e3));
        }
        self.waiting.points.push((x, near.queued_bytes as f64 * 1e-3));
        self.held.points.push((x, far.ledger.held as f64 * PACKET_BYTES * 1e-3));
    }

    fn charts(self, name: &str) -> Vec<Chart> {
        let chart = |title: &str, unit: &str, lines| Chart {
            title: format!("{name}: {title}"),
            unit: unit.into(),
            lines,
            ..Chart::default()
        };
        let rates = self.estimates.into_iter().chain([self.goodput]).collect();
        vec![
            chart("estimated rate of each path, and goodput", "Mbit/s", rates),
            chart("queue on each path, by one-way delay", "ms", self.queues),
            chart("waiting in the tunnel", "kB", vec![self.waiting, self.held]),
        ]
    }
}

fn line(name: &str, colour: usize) -> Line {
    Line { name: name.into(), colour, points: Vec::new(), marked: false }
}

/// Approximate bytes of a full packet.
const PACKET_BYTES: f64 = 1_400.0;
