//! One measurement: traffic over a contender, events on the paths, and the resulting figures.

use super::{
    ceiling::is_download,
    contender::Running,
    outage::outage,
    result::Run,
    statistics::{mean, ms, quantile, variance},
};
use crate::{
    error::{LabError, Result},
    plan::{Action, Beside, Case, Event, Load, Metric},
    topology::Host,
    traffic::{
        acks::AckCapture,
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

/// Parameters of a measurement.
pub(super) struct Measurement<'a> {
    pub(super) case: &'a Case,
    pub(super) running: &'a Running<'a>,
    /// MPT's mode. It also sets the load of the other contenders, so that all get the same.
    pub(super) mode: Mode,
    pub(super) length: Duration,
    pub(super) quick: bool,
    /// True if the case's events apply.
    pub(super) events: bool,
}

impl Measurement<'_> {
    /// Runs the traffic. `progress` gets the finished share.
    pub(super) fn run(&self, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let running = self.running;
        let baseline = Baseline::measure(self)?;
        running.begin_schedules(self.case);
        let before = processor_seconds(&running.processes);
        let mut player = EventPlayer::new(self);
        let side_traffic = SideTraffic::start(self)?;
        let result = self.load(&mut |share| {
            player.poll();
            progress(share);
        });
        // Restores the paths for the next contender even if the load failed.
        let played = player.finish();
        let mut run = result?;
        side_traffic.finish(&baseline, &mut run)?;
        (run.paths, run.events) = played?;
        let events: Vec<Duration> = run.events.iter().map(|(at, _)| Duration::from_secs_f64(*at)).collect();
        run.metrics.extend(outage(&events, &run.arrivals, &run.goodput, self.length));
        let spent = processor_seconds(&running.processes).zip(before).map(|(after, before)| after - before);
        run.cpu_s_per_gb = spent.filter(|_| run.bytes > 0).map(|seconds| seconds / (run.bytes as f64 / 1e9));
        Ok(run)
    }

    fn load(&self, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        match &self.case.traffic.load {
            Load::Tcp { congestion, streams } => {
                let load = iperf::IperfLoad::Tcp { streams: *streams };
                self.iperf(Iperf { congestion: Some(congestion.name()), ..self.plain_iperf(load) }, progress)
            }
            Load::Udp { mbit, payload } => {
                let mbit = mbit.unwrap_or_else(|| self.offered());
                let load = iperf::IperfLoad::Udp { mbit, payload: *payload };
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

    fn plain_iperf(&self, load: iperf::IperfLoad) -> Iperf {
        let Running { from, to, mptcp, .. } = *self.running;
        Iperf { load, from, mptcp, ..Iperf::tcp(to, self.length) }
    }

    fn iperf(&self, iperf: Iperf, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let topology = &self.running.topology;
        let measured = iperf.run(&topology.a, &topology.b, progress)?;
        let bytes = measured.goodput * 1e6 / 8.0 * self.length.as_secs_f64();
        let mut run = Run { goodput: measured.series, bytes: bytes as u64, ..Run::default() };
        run.metrics.insert(Metric::Goodput, measured.goodput);
        run.metrics.extend(measured.lost.map(|share| (Metric::Lost, share * 100.0)));
        Ok(run)
    }

    fn paced(&self, mbit: f64, block: usize, window: usize, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let capture = AckCapture::start(&self.running.topology.a, &self.running.device)?;
        let load = iperf::IperfLoad::PacedTcp { mbit, block, window };
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
        let Running { from, to, mptcp, .. } = *self.running;
        let download = Download { protocol, mbyte, from, to, time: self.length, mptcp };
        let downloaded = download.run(&self.running.topology, progress)?;
        let mbit = downloaded.mbit();
        let metrics = [(Metric::Goodput, mbit), (Metric::Download, mbyte as f64 * 8.0 / mbit)];
        Ok(Run { metrics: metrics.into(), bytes: downloaded.bytes, ..Run::default() })
    }

    fn quic(&self, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let Running { from, to, mptcp, .. } = *self.running;
        if mptcp {
            return Err(LabError::Inapplicable("QUIC does not run over MPTCP"));
        }
        let samples = Quic { from, to, time: self.length }.run(&self.running.topology, progress)?;
        Ok(bulk_run(&samples, self.length))
    }

    fn bulk(&self, progress: &mut dyn FnMut(f64)) -> Result<Run> {
        let topology = &self.running.topology;
        let flow = Bulk::start(&topology.a, &topology.b, self.route())?;
        while flow.elapsed() < self.length {
            progress(flow.elapsed().as_secs_f64() / self.length.as_secs_f64());
            thread::sleep(Duration::from_millis(10));
        }
        let (end, arrivals) = (flow.elapsed(), flow.samples());
        let run = bulk_run(&arrivals, end);
        Ok(Run { arrivals, ..run })
    }

    fn ping(&self, count: u32) -> Result<Run> {
        let Running { from, to, .. } = *self.running;
        let ping = Ping { from, to, count, interval: Duration::from_millis(100) };
        let trips: Vec<f64> = ping.run(&self.running.topology.a)?.into_iter().map(ms).collect();
        let metrics = [(Metric::Jitter, voice::jitter(&trips)), (Metric::Delay, mean(&trips) / 2.0)];
        Ok(Run { metrics: metrics.into(), delays: trips.iter().map(|trip| trip / 2.0).collect(), ..Run::default() })
    }

    fn route(&self) -> Route {
        let Running { from, to, mptcp, .. } = *self.running;
        Route { from, to, mptcp }
    }

    /// Returns the offered UDP load: slightly less than the paths can carry through the tunnel.
    fn offered(&self) -> f64 {
        super::ceiling::of(self.case, self.mode, Duration::from_secs(1), self.quick)
            .map_or(UNSHAPED_MBIT, |mbit| mbit * 0.98)
    }
}

/// Returns a run with goodput over time and in total until `end`.
pub(super) fn bulk_run(samples: &[bulk::Sample], end: Duration) -> Run {
    let bytes = samples.last().map_or(0, |sample| sample.bytes);
    let metrics = [(Metric::Goodput, bytes as f64 * 8e-6 / end.as_secs_f64())];
    Run { goodput: bulk::rates(samples, RESOLUTION, end), metrics: metrics.into(), bytes, ..Run::default() }
}

/// Medians without the load in ms; the load's added delay is measured against them.
struct Baseline {
    call: Option<f64>,
    ping: Option<f64>,
}

impl Baseline {
    fn measure(measurement: &Measurement<'_>) -> Result<Self> {
        let Running { from, to, topology, .. } = measurement.running;
        let beside = |what| measurement.case.traffic.beside.contains(&what);
        let median = |values: &[f64]| (!values.is_empty()).then(|| quantile(values, 0.5));
        let call = || Call::start(&topology.a, &topology.b, *from, *to, BASELINE_TIME).map(Call::finish);
        let call = beside(Beside::Voice).then(call).transpose()?;
        let ping = Ping { from: *from, to: *to, count: 20, interval: BASELINE_TIME / 20 };
        let trips = beside(Beside::Ping).then(|| ping.run(&topology.a)).transpose()?.unwrap_or_default();
        let trips: Vec<f64> = trips.into_iter().map(ms).collect();
        Ok(Self { call: call.and_then(|quality| median(&quality.delays)), ping: median(&trips) })
    }
}

/// Traffic beside the load.
struct SideTraffic {
    call: Option<Call>,
    pings: Option<thread::JoinHandle<Result<Vec<Duration>>>>,
    /// Number of echo requests.
    requests: u32,
    _background: Option<Background>,
}

impl SideTraffic {
    fn start(measurement: &Measurement<'_>) -> Result<Self> {
        let Running { from, to, topology, .. } = measurement.running;
        let beside = |what| measurement.case.traffic.beside.contains(&what);
        let call = || Call::start(&topology.a, &topology.b, *from, *to, measurement.length);
        let background = || Background::start(&topology.a, &topology.b, measurement.route());
        let requests = (measurement.length.as_millis() / 50) as u32;
        let ping = Ping { from: *from, to: *to, count: requests, interval: Duration::from_millis(50) };
        Ok(Self {
            call: beside(Beside::Voice).then(call).transpose()?,
            pings: beside(Beside::Ping).then(|| ping.in_background(&topology.a)).transpose()?,
            requests,
            _background: beside(Beside::Background).then(background).transpose()?,
        })
    }

    fn finish(self, baseline: &Baseline, run: &mut Run) -> Result<()> {
        if let Some(call) = self.call {
            let quality = call.finish();
            run.metrics.insert(Metric::VoiceLost, quality.lost * 100.0);
            if !quality.delays.is_empty() {
                insert_quantiles(run, &quality.delays, [Metric::VoiceDelay, Metric::VoiceDelayP99], 0.0);
                run.metrics.insert(Metric::VoiceJitter, quality.jitter);
                run.metrics.insert(Metric::VoiceGap, quality.gap);
                if let Some(baseline) = baseline.call {
                    insert_quantiles(run, &quality.delays, [Metric::VoiceAdded, Metric::VoiceAddedP99], baseline);
                }
                run.delays = quality.delays;
            }
        }
        if let Some(pings) = self.pings {
            let trips = pings.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let trips: Vec<f64> = trips.into_iter().map(ms).collect();
            let lost = 1.0 - trips.len() as f64 / f64::from(self.requests);
            run.metrics.insert(Metric::PingLost, lost * 100.0);
            if !trips.is_empty() {
                insert_quantiles(run, &trips, [Metric::Ping, Metric::PingP99], 0.0);
            }
            if let Some(baseline) = baseline.ping.filter(|_| !trips.is_empty()) {
                insert_quantiles(run, &trips, [Metric::PingAdded, Metric::PingAddedP99], baseline);
            }
        }
        Ok(())
    }
}

/// Inserts median and 99th percentile relative to `base`.
fn insert_quantiles(run: &mut Run, values: &[f64], [median, p99]: [Metric; 2], base: f64) {
    run.metrics.insert(median, quantile(values, 0.5) - base);
    run.metrics.insert(p99, quantile(values, 0.99) - base);
}

/// Applies events and records the bytes delivered by every path.
struct EventPlayer<'a> {
    measurement: &'a Measurement<'a>,
    /// Time of the first poll, at which the flow starts; connecting takes time before that.
    started: Option<Instant>,
    pending: Vec<Event>,
    applied: Vec<(f64, String)>,
    /// Seconds, and bytes delivered by each path.
    delivered: Vec<(f64, Vec<u64>)>,
    failed: Result<()>,
}

type PathsAndEvents = (Vec<Vec<(f64, f64)>>, Vec<(f64, String)>);

impl<'a> EventPlayer<'a> {
    fn new(measurement: &'a Measurement<'a>) -> Self {
        let pending = if measurement.events { measurement.case.events.clone() } else { Vec::new() };
        let (applied, delivered) = (Vec::new(), Vec::new());
        Self { measurement, started: None, pending, applied, delivered, failed: Ok(()) }
    }

    fn poll(&mut self) {
        let started = *self.started.get_or_insert_with(Instant::now);
        let now = started.elapsed();
        while let Some(event) = self.pending.first().filter(|event| event.at.of(self.measurement.quick) <= now).copied()
        {
            self.pending.remove(0);
            if let Err(error) = self.apply(event.path, event.action) {
                self.failed = Err(error);
            }
            self.applied.push((started.elapsed().as_secs_f64(), description(event)));
        }
        if self.delivered.last().is_none_or(|(at, _)| now.as_secs_f64() - at >= RESOLUTION.as_secs_f64()) {
            self.delivered.extend(self.delivered_bytes().map(|bytes| (now.as_secs_f64(), bytes)));
        }
    }

    fn apply(&self, path: usize, what: Action) -> Result<()> {
        let topology = &self.measurement.running.topology;
        match what {
            Action::Unplug => topology.unplug(path, Host::A)?,
            Action::Plug => topology.plug(path, Host::A)?,
            Action::Cut => topology.cut(path),
            Action::Restore => topology.restore(path),
            Action::Renumber => topology.renumber(path, true)?,
        }
        Ok(())
    }

    fn delivered_bytes(&self) -> Option<Vec<u64>> {
        let line = usize::from(is_download(self.measurement.case));
        let report = self.measurement.running.topology.report()?;
        Some(report.lines.iter().skip(line).step_by(2).map(|line| line.link.delivered_bytes).collect())
    }

    /// Reverts the events; returns rates per path and the applied events.
    fn finish(self) -> Result<PathsAndEvents> {
        let mut restored = Ok(());
        for event in self.measurement.case.events.iter().filter(|_| self.measurement.events) {
            restored = restored.and(self.undo(*event));
        }
        self.failed.and(restored)?;
        let paths = self.delivered.first().map_or(0, |(_, bytes)| bytes.len());
        Ok(((0..paths).map(|path| rates(&self.delivered, path)).collect(), self.applied))
    }

    fn undo(&self, event: Event) -> Result<()> {
        let topology = &self.measurement.running.topology;
        match event.action {
            Action::Renumber if self.applied.iter().any(|(_, what)| *what == description(event)) => {
                topology.renumber(event.path, false)
            }
            Action::Unplug => topology.plug(event.path, Host::A),
            Action::Cut => {
                topology.restore(event.path);
                Ok(())
            }
            Action::Renumber | Action::Plug | Action::Restore => Ok(()),
        }
    }
}

/// Returns the programs that a case's traffic needs.
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

fn description(event: Event) -> String {
    let what = match event.action {
        Action::Unplug => "pulled",
        Action::Plug => "back",
        Action::Cut => "silent",
        Action::Restore => "back",
        Action::Renumber => "renumbered",
    };
    format!("path {} {what}", event.path + 1)
}

fn rates(delivered: &[(f64, Vec<u64>)], path: usize) -> Vec<(f64, f64)> {
    let rate = |pair: &[(f64, Vec<u64>)]| {
        let bytes = pair[1].1[path].saturating_sub(pair[0].1[path]);
        (pair[1].0, bytes as f64 * 8e-6 / (pair[1].0 - pair[0].0))
    };
    delivered.windows(2).map(rate).collect()
}

/// Returns the processor time of processes; none for an empty list.
fn processor_seconds(processes: &[u32]) -> Option<f64> {
    let ticks = |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // proc_pid_stat(5): user and system time are the 12th and 13th field after the name, which may have blanks.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
    };
    let sum = processes.iter().map(ticks).sum::<Option<f64>>()?;
    (!processes.is_empty()).then_some(sum / TICKS_PER_SECOND)
}

const RESOLUTION: Duration = Duration::from_millis(100);

/// Length of the baseline measurement before the load.
const BASELINE_TIME: Duration = Duration::from_secs(1);

/// USER_HZ on all current Linux architectures (proc_pid_stat(5)).
const TICKS_PER_SECOND: f64 = 100.0;

/// Offered load in Mbit/s if the paths have no rate.
const UNSHAPED_MBIT: f64 = 2_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_of_a_running_process_is_known() {
        assert!(processor_seconds(&[std::process::id()]).is_some());
        assert_eq!(processor_seconds(&[]), None);
    }
}
