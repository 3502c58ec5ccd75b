//! One measurement: traffic on a contender, what happens to the paths meanwhile, and what comes of it.

use super::{ceiling::downwards, contender::Standing, outage::outage, result::Run};
use crate::{
    error::{LabError, Result},
    plan::{Beside, Case, Event, Happening, Load, Metric},
    topology::Host,
    traffic::{
        acks::Capture,
        background::Background,
        bulk::{self, Bulk, Route},
        download::{Download, Protocol},
        iperf::{self, Iperf},
        ping::Ping,
        quic::Quic,
        voice::{self, Call},
    },
    tunnel::Mode,
};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// A measurement to be made.
pub(super) struct Measurement<'a> {
    pub(super) case: &'a Case,
    pub(super) standing: &'a Standing<'a>,
    /// How MPT speaks, whoever is measured: all are offered the same.
    pub(super) mode: Mode,
    pub(super) length: Duration,
    pub(super) quick: bool,
    /// Whether the case's events happen.
    pub(super) events: bool,
}

impl Measurement<'_> {
    /// Lets the traffic run. `progress` is told the share that is done.
    pub(super) fn run(&self, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let standing = self.standing;
        let quiet = Quiet::listen(self)?;
        standing.begin_schedules(self.case);
        let before = processor_seconds(&standing.processes);
        let mut watch = Watch::new(self);
        let company = Company::start(self)?;
        let result = self.load(&mut |share| {
            watch.look();
            progress(share);
        });
        // Whatever failed, the next contender finds the paths as they were.
        let watched = watch.finish();
        let mut run = result?;
        company.finish(&quiet, &mut run)?;
        (run.paths, run.events) = watched?;
        let events: Vec<Duration> = run.events.iter().map(|(at, _)| Duration::from_secs_f64(*at)).collect();
        run.metrics.extend(outage(&events, &run.arrivals, &run.goodput, self.length));
        let spent = processor_seconds(&standing.processes).zip(before).map(|(after, before)| after - before);
        run.cpu_s_per_gb = spent.filter(|_| run.bytes > 0).map(|seconds| seconds / (run.bytes as f64 / 1e9));
        Ok(run)
    }

    fn load(&self, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        match &self.case.traffic.load {
            Load::Tcp { congestion, streams } => {
                let load = iperf::Load::Tcp { streams: *streams };
                self.iperf(Iperf { congestion: Some(congestion.name()), ..self.plain_iperf(load) }, progress)
            }
            Load::Udp { mbit, payload } => {
                let mbit = mbit.unwrap_or_else(|| self.offered());
                let load = iperf::Load::Udp { mbit, payload: *payload };
                self.iperf(self.plain_iperf(load), progress)
            }
            Load::Paced { mbit, block, window } => self.paced(*mbit, *block, *window, progress),
            Load::Http { mbyte } => self.download(Protocol::Http, *mbyte, progress),
            Load::Ftp { mbyte } => self.download(Protocol::Ftp, *mbyte, progress),
            Load::Quic => self.quic(progress),
            Load::Bulk => self.bulk(progress),
            Load::Ping { count } => self.ping(*count),
        }
    }

    fn plain_iperf(&self, load: iperf::Load) -> Iperf {
        let Standing { from, to, mptcp, .. } = *self.standing;
        Iperf { load, from, mptcp, ..Iperf::tcp(to, self.length) }
    }

    fn iperf(&self, iperf: Iperf, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let topology = &self.standing.topology;
        let measured = iperf.run(&topology.a, &topology.b, progress)?;
        let bytes = measured.goodput * 1e6 / 8.0 * self.length.as_secs_f64();
        let mut run = Run { goodput: measured.series, bytes: bytes as u64, ..Run::default() };
        run.metrics.insert(Metric::Goodput, measured.goodput);
        run.metrics.extend(measured.lost.map(|share| (Metric::Lost, share * 100.0)));
        Ok(run)
    }

    fn paced(&self, mbit: f64, block: usize, window: usize, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let capture = Capture::start(&self.standing.topology.a, &self.standing.device)?;
        let load = iperf::Load::PacedTcp { mbit, block, window };
        let mut run = self.iperf(self.plain_iperf(load), progress)?;
        let delays = capture.finish()?;
        let steps: Vec<f64> = delays.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
        if !steps.is_empty() {
            run.metrics.insert(Metric::Delay, mean(&delays));
            run.metrics.insert(Metric::DelayVariance, variance(&delays));
            run.metrics.insert(Metric::Jitter, mean(&steps));
            run.metrics.insert(Metric::JitterVariance, variance(&steps));
        }
        run.delays = delays;
        Ok(run)
    }

    fn download(&self, protocol: Protocol, mbyte: u64, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let Standing { from, to, mptcp, .. } = *self.standing;
        let download = Download { protocol, mbyte, from, to, time: self.length, mptcp };
        let downloaded = download.run(&self.standing.topology, progress)?;
        let mbit = downloaded.mbit();
        let metrics = [(Metric::Goodput, mbit), (Metric::Download, mbyte as f64 * 8.0 / mbit)];
        Ok(Run { metrics: metrics.into(), bytes: downloaded.bytes, ..Run::default() })
    }

    fn quic(&self, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let Standing { from, to, mptcp, .. } = *self.standing;
        if mptcp {
            return Err(LabError::Inapplicable("QUIC does not run over multipath TCP"));
        }
        let samples = Quic { from, to, time: self.length }.run(&self.standing.topology, progress)?;
        Ok(greedy(&samples, self.length))
    }

    fn bulk(&self, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let topology = &self.standing.topology;
        let flow = Bulk::start(&topology.a, &topology.b, self.route())?;
        while flow.elapsed() < self.length {
            progress(flow.elapsed().as_secs_f64() / self.length.as_secs_f64());
            thread::sleep(Duration::from_millis(10));
        }
        let (end, arrivals) = (flow.elapsed(), flow.samples());
        let run = greedy(&arrivals, end);
        Ok(Run { arrivals, ..run })
    }

    fn ping(&self, count: u32) -> Result<Run> {
        let Standing { from, to, .. } = *self.standing;
        let ping = Ping { from, to, count, interval: Duration::from_millis(100) };
        let trips: Vec<f64> = ping.run(&self.standing.topology.a)?.into_iter().map(ms).collect();
        let metrics = [(Metric::Jitter, voice::jitter(&trips)), (Metric::Delay, mean(&trips) / 2.0)];
        Ok(Run { metrics: metrics.into(), delays: trips.iter().map(|trip| trip / 2.0).collect(), ..Run::default() })
    }

    fn route(&self) -> Route {
        let Standing { from, to, mptcp, .. } = *self.standing;
        Route { from, to, mptcp }
    }

    /// What UDP offers: a little less than all that the paths could carry through the tunnel.
    fn offered(&self) -> f64 {
        super::ceiling::of(self.case, self.mode, Duration::from_secs(1), self.quick)
            .map_or(UNSHAPED, |mbit| mbit * 0.98)
    }
}

/// Goodput over time and as a whole, until `end`.
pub(super) fn greedy(samples: &[bulk::Sample], end: Duration) -> Run {
    let bytes = samples.last().map_or(0, |sample| sample.bytes);
    let metrics = [(Metric::Goodput, bytes as f64 * 8e-6 / end.as_secs_f64())];
    Run { goodput: bulk::rates(samples, RESOLUTION, end), metrics: metrics.into(), bytes, ..Run::default() }
}

/// Medians without the load, in ms: what is above them later is what the load added.
struct Quiet {
    call: Option<f64>,
    ping: Option<f64>,
}

impl Quiet {
    fn listen(measurement: &Measurement<'_>) -> Result<Self> {
        let Standing { from, to, topology, .. } = measurement.standing;
        let beside = |what| measurement.case.traffic.beside.contains(&what);
        let median = |values: &[f64]| (!values.is_empty()).then(|| quantile(values, 0.5));
        let call = || Call::start(&topology.a, &topology.b, *from, *to, QUIET).map(Call::finish);
        let call = beside(Beside::Voice).then(call).transpose()?;
        let ping = Ping { from: *from, to: *to, count: 20, interval: QUIET / 20 };
        let trips = beside(Beside::Ping).then(|| ping.run(&topology.a)).transpose()?.unwrap_or_default();
        let trips: Vec<f64> = trips.into_iter().map(ms).collect();
        Ok(Self { call: call.and_then(|quality| median(&quality.delays)), ping: median(&trips) })
    }
}

/// What goes on beside the load.
struct Company {
    call: Option<Call>,
    pings: Option<thread::JoinHandle<Result<Vec<Duration>>>>,
    /// How many echo requests there are.
    asked: u32,
    _background: Option<Background>,
}

impl Company {
    fn start(measurement: &Measurement<'_>) -> Result<Self> {
        let Standing { from, to, topology, .. } = measurement.standing;
        let beside = |what| measurement.case.traffic.beside.contains(&what);
        let call = || Call::start(&topology.a, &topology.b, *from, *to, measurement.length);
        let background = || Background::start(&topology.a, &topology.b, measurement.route());
        let asked = (measurement.length.as_millis() / 50) as u32;
        let ping = Ping { from: *from, to: *to, count: asked, interval: Duration::from_millis(50) };
        Ok(Self {
            call: beside(Beside::Voice).then(call).transpose()?,
            pings: beside(Beside::Ping).then(|| ping.in_background(&topology.a)).transpose()?,
            asked,
            _background: beside(Beside::Background).then(background).transpose()?,
        })
    }

    fn finish(self, quiet: &Quiet, run: &mut Run) -> Result<()> {
        if let Some(call) = self.call {
            let quality = call.finish();
            run.metrics.insert(Metric::VoiceLost, quality.lost * 100.0);
            if !quality.delays.is_empty() {
                note(run, &quality.delays, [Metric::VoiceDelay, Metric::VoiceDelayP99], 0.0);
                run.metrics.insert(Metric::VoiceJitter, quality.jitter);
                run.metrics.insert(Metric::VoiceGap, quality.gap);
                if let Some(quiet) = quiet.call {
                    note(run, &quality.delays, [Metric::VoiceAdded, Metric::VoiceAddedP99], quiet);
                }
                run.delays = quality.delays;
            }
        }
        if let Some(pings) = self.pings {
            let trips = pings.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let trips: Vec<f64> = trips.into_iter().map(ms).collect();
            let lost = 1.0 - trips.len() as f64 / f64::from(self.asked);
            run.metrics.insert(Metric::PingLost, lost * 100.0);
            if !trips.is_empty() {
                note(run, &trips, [Metric::Ping, Metric::PingP99], 0.0);
            }
            if let Some(quiet) = quiet.ping.filter(|_| !trips.is_empty()) {
                note(run, &trips, [Metric::PingAdded, Metric::PingAddedP99], quiet);
            }
        }
        Ok(())
    }
}

/// Median and 99th percentile above `base`.
fn note(run: &mut Run, values: &[f64], [median, p99]: [Metric; 2], base: f64) {
    run.metrics.insert(median, quantile(values, 0.5) - base);
    run.metrics.insert(p99, quantile(values, 0.99) - base);
}

/// Makes events happen, and notes what comes out of every path.
struct Watch<'a> {
    measurement: &'a Measurement<'a>,
    /// The first look, with which the flow begins: connecting takes time.
    started: Option<Instant>,
    pending: Vec<Event>,
    happened: Vec<(f64, String)>,
    /// Seconds, and bytes that came out of each path.
    carried: Vec<(f64, Vec<u64>)>,
    failed: Result<()>,
}

type Watched = (Vec<Vec<(f64, f64)>>, Vec<(f64, String)>);

impl<'a> Watch<'a> {
    fn new(measurement: &'a Measurement<'a>) -> Self {
        let pending = if measurement.events { measurement.case.events.clone() } else { Vec::new() };
        let (happened, carried) = (Vec::new(), Vec::new());
        Self { measurement, started: None, pending, happened, carried, failed: Ok(()) }
    }

    fn look(&mut self) {
        let started = *self.started.get_or_insert_with(Instant::now);
        let now = started.elapsed();
        while let Some(event) = self.pending.first().filter(|event| event.at.of(self.measurement.quick) <= now).copied()
        {
            self.pending.remove(0);
            if let Err(error) = self.make(event.path, event.what) {
                self.failed = Err(error);
            }
            self.happened.push((started.elapsed().as_secs_f64(), told(event)));
        }
        if self.carried.last().is_none_or(|(at, _)| now.as_secs_f64() - at >= RESOLUTION.as_secs_f64()) {
            self.carried.extend(self.count().map(|bytes| (now.as_secs_f64(), bytes)));
        }
    }

    fn make(&self, path: usize, what: Happening) -> Result<()> {
        let topology = &self.measurement.standing.topology;
        match what {
            Happening::Unplug => topology.unplug(path, Host::A)?,
            Happening::Plug => topology.plug(path, Host::A)?,
            Happening::Cut => topology.cut(path),
            Happening::Restore => topology.restore(path),
            Happening::Renumber => topology.renumber(path, true)?,
        }
        Ok(())
    }

    fn count(&self) -> Option<Vec<u64>> {
        let line = usize::from(downwards(self.measurement.case));
        let report = self.measurement.standing.topology.report()?;
        Some(report.lines.iter().skip(line).step_by(2).map(|line| line.link.delivered_bytes).collect())
    }

    /// Puts back what events changed; what was noted.
    fn finish(self) -> Result<Watched> {
        let mut restored = Ok(());
        for event in self.measurement.case.events.iter().filter(|_| self.measurement.events) {
            restored = restored.and(self.undo(*event));
        }
        self.failed.and(restored)?;
        let paths = self.carried.first().map_or(0, |(_, bytes)| bytes.len());
        Ok(((0..paths).map(|path| rates(&self.carried, path)).collect(), self.happened))
    }

    fn undo(&self, event: Event) -> Result<()> {
        let topology = &self.measurement.standing.topology;
        match event.what {
            Happening::Renumber if self.happened.iter().any(|(_, what)| *what == told(event)) => {
                topology.renumber(event.path, false)
            }
            Happening::Unplug => topology.plug(event.path, Host::A),
            Happening::Cut => {
                topology.restore(event.path);
                Ok(())
            }
            Happening::Renumber | Happening::Plug | Happening::Restore => Ok(()),
        }
    }
}

/// The programs that a case's traffic takes.
pub(super) fn tools(case: &Case) -> Vec<&'static str> {
    let mut tools: Vec<&str> = match case.traffic.load {
        Load::Tcp { .. } | Load::Udp { .. } => vec!["iperf3"],
        Load::Paced { .. } => vec!["iperf3", "tcpdump", "tshark"],
        Load::Http { .. } => Protocol::Http.tools().into(),
        Load::Ftp { .. } => Protocol::Ftp.tools().into(),
        Load::Quic | Load::Bulk => Vec::new(),
        Load::Ping { .. } => vec!["ping"],
    };
    tools.extend(case.traffic.beside.contains(&Beside::Ping).then_some("ping"));
    tools
}

fn told(event: Event) -> String {
    let what = match event.what {
        Happening::Unplug => "pulled",
        Happening::Plug => "back",
        Happening::Cut => "silent",
        Happening::Restore => "back",
        Happening::Renumber => "renumbered",
    };
    format!("path {} {what}", event.path + 1)
}

fn rates(carried: &[(f64, Vec<u64>)], path: usize) -> Vec<(f64, f64)> {
    let rate = |pair: &[(f64, Vec<u64>)]| {
        let bytes = pair[1].1[path].saturating_sub(pair[0].1[path]);
        (pair[1].0, bytes as f64 * 8e-6 / (pair[1].0 - pair[0].0))
    };
    carried.windows(2).map(rate).collect()
}

/// What processes have used so far; none where there are none.
fn processor_seconds(processes: &[u32]) -> Option<f64> {
    let ticks = |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // proc_pid_stat(5): the name in parentheses may have blanks; user and system time are the 12th and 13th after it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
    };
    let sum = processes.iter().map(ticks).sum::<Option<f64>>()?;
    (!processes.is_empty()).then_some(sum / TICKS)
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len().max(1) as f64
}

/// Of values that are there.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * q).round() as usize]
}

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

const RESOLUTION: Duration = Duration::from_millis(100);

/// How long a call and echo requests are listened to before the load.
const QUIET: Duration = Duration::from_secs(1);

/// USER_HZ of every Linux architecture that is left (proc_pid_stat(5)).
const TICKS: f64 = 100.0;

/// Mbit/s, where nothing limits what is offered.
const UNSHAPED: f64 = 2_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_textbook() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!((mean(&values), variance(&values)), (5.0, 4.0));
        assert_eq!((quantile(&values, 0.0), quantile(&values, 1.0), quantile(&[3.0], 0.5)), (2.0, 9.0, 3.0));
    }

    #[test]
    fn a_process_has_used_some_time() {
        assert!(processor_seconds(&[std::process::id()]).is_some());
        assert_eq!(processor_seconds(&[]), None);
    }
}
