//! Processor time, wake-ups and system calls of a tunnel under one flow, for each end.
//!
//! Tunnels run by turns, and the table has medians over the rounds, so that a change of the machine's load affects all
//! of them. Processor seconds are those of the tunnel's processes, not of the applications and the links.

mod counters;
mod cpu_share;
mod load;
mod ratio;

pub use load::CostLoad;
pub use ratio::ratios;

use super::statistics::quantile;
use crate::{
    competitors::{self, Competitor},
    error::{LabError, Result},
    topology::{Family, Host, Hosts, Topology},
    traffic::{iperf::Iperf, voice::Call},
    tunnel::{Layout, Mode, Tunnel, inner_address},
};
use counters::{Counters, count_calls};
use cpu_share::CpuShare;
use mpt_sim::{link::PathSpec, seed::Seed};
use std::{fmt, net::IpAddr, path::PathBuf, time::Duration};

/// Parameters of the measurement.
#[derive(Clone, Debug)]
pub struct Cost {
    /// The links between the hosts.
    pub paths: Vec<PathSpec>,
    /// The paths are cables, without the wire; of the links only the number counts.
    pub direct: bool,
    /// Duration of the flow.
    pub time: Duration,
    /// Number of measurements of each tunnel.
    pub rounds: u32,
    /// Limits each end to this share of a processor, in percent.
    pub cpu: Option<u32>,
    /// A call runs beside the flow.
    pub call: bool,
    /// The flow.
    pub load: CostLoad,
}

/// A tunnel to measure.
#[derive(Clone, Debug)]
pub enum Subject {
    /// MPT: its name in the table, the program, or that beside this one, and the mode.
    Mpt(String, Option<PathBuf>, Mode),
    /// Another tunnel.
    Other(&'static Competitor),
}

/// The cost of one end: medians over the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EndCost {
    /// Time in user space, in the unit of the load.
    pub user: f64,
    /// Time in the kernel, likewise.
    pub system: f64,
    /// Voluntary context switches per packet.
    pub wakeups: f64,
    /// Resident memory at the end, MB.
    pub memory: f64,
    /// System calls per packet, for each kind of [`CALLS`]. Absent without `perf`.
    pub calls: Option<[f64; CALLS.len()]>,
}

/// One-way delay of a call beside the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CallDelay {
    /// Median in ms.
    pub median: f64,
    /// 99th percentile in ms.
    pub p99: f64,
    /// Lost packets in percent.
    pub lost: f64,
}

/// The cost of a tunnel.
#[derive(Clone, Debug)]
pub struct Row {
    /// The tunnel.
    pub name: String,
    /// The row of the null tunnel to compare with.
    pub baseline: Option<&'static str>,
    /// Goodput of the flow, in the unit of the load: median, minimum, maximum.
    pub goodput: [f64; 3],
    /// The sending and the receiving end.
    pub ends: [EndCost; 2],
    /// Processor time of both ends, likewise.
    pub total: [f64; 3],
    /// Goodput and processor time of each round.
    pub rounds: Vec<[f64; 2]>,
    /// The call, if there was one: medians over the rounds.
    pub call: Option<CallDelay>,
}

/// Kinds of system calls, and the calls that belong to them. The last kind has all others.
pub const CALLS: [(&str, &[&str]); 6] = [
    ("wait", &["epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6", "clock_nanosleep"]),
    ("recv", &["recvmmsg", "recvmsg", "recvfrom"]),
    ("send", &["sendmmsg", "sendmsg", "sendto"]),
    ("read", &["read", "readv"]),
    ("write", &["write", "writev"]),
    ("other", &[]),
];

/// One round.
struct CostSample {
    goodput: f64,
    ends: [EndCost; 2],
    call: Option<CallDelay>,
}

impl CostSample {
    fn total(&self) -> f64 {
        self.ends.iter().map(|end| end.user + end.system).sum()
    }
}

impl Subject {
    /// Returns the other tunnel of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn other(name: &str) -> std::result::Result<Self, String> {
        let found = competitors::ALL.iter().find(|competitor| competitor.name == name);
        let names = || competitors::ALL.iter().map(|competitor| competitor.name).collect::<Vec<_>>().join(", ");
        found.map(Self::Other).ok_or_else(|| format!("unknown tunnel '{name}'; hint: {}", names()))
    }

    fn name(&self) -> &str {
        match self {
            Self::Mpt(name, ..) => name,
            Self::Other(competitor) => competitor.name,
        }
    }

    fn baseline(&self) -> Option<&'static str> {
        match self {
            Self::Mpt(.., Mode::Native) => Some(competitors::NULL[1].name),
            Self::Mpt(..) => Some(competitors::NULL[0].name),
            Self::Other(_) => None,
        }
    }

    /// Starts the tunnel and measures it once.
    fn measure(&self, cost: &Cost, hosts: &Hosts) -> Result<CostSample> {
        match self {
            Self::Mpt(_, program, mode) => {
                let layout = Layout { mode: *mode, ..Layout::native(&cost.paths) };
                let tunnel = Tunnel::up_with(hosts, &layout, program.as_deref())?;
                let [a, b] = tunnel.processes()[..] else { unreachable!("a tunnel has two ends") };
                cost.sample(hosts, inner_address(Host::B, Family::V4), &[vec![a], vec![b]])
            }
            Self::Other(competitor) => {
                let tunnel = competitor.up(hosts, &cost.paths)?;
                cost.sample(hosts, competitors::inner_address(Host::B), &tunnel.ends())
            }
        }
    }
}

impl Cost {
    /// Measures all subjects by turns. A subject that fails is reported and left out.
    ///
    /// # Errors
    /// No network namespaces, or links that cannot be built.
    pub fn run(&self, subjects: &[Subject], report: &mut dyn FnMut(String)) -> Result<Vec<Row>> {
        let mut samples: Vec<Vec<CostSample>> = subjects.iter().map(|_| Vec::new()).collect();
        let mut failed = vec![false; subjects.len()];
        for round in 0..self.rounds {
            for (number, subject) in
                subjects.iter().enumerate().filter(|(number, _)| !failed[*number]).collect::<Vec<_>>()
            {
                match self.on_new_hosts(round, subject)? {
                    Ok(sample) => samples[number].push(sample),
                    Err(error) => {
                        report(format!("absent: {}: {error}", subject.name()));
                        failed[number] = true;
                    }
                }
            }
        }
        let measured = subjects.iter().zip(&samples).filter(|(_, samples)| !samples.is_empty());
        Ok(measured.map(|(subject, samples)| Row::new(subject, samples)).collect())
    }

    /// Builds hosts and measures a subject once. The outer error is that of the hosts.
    fn on_new_hosts(&self, round: u32, subject: &Subject) -> Result<Result<CostSample>> {
        let name = Topology::unique_name();
        if self.direct {
            return Ok(subject.measure(self, &Hosts::direct(&name, self.paths.len())?));
        }
        let topology = Topology::build(&name, &self.paths, Seed(1 + u64::from(round)))?;
        Ok(subject.measure(self, &topology))
    }

    /// Measures a tunnel that is up. The first second is not counted: it has the start of the flow.
    fn sample(&self, hosts: &Hosts, to: IpAddr, ends: &[Vec<u32>; 2]) -> Result<CostSample> {
        let warm_up = Iperf::tcp(to, WARM_UP);
        warm_up.run(&hosts.a, &hosts.b, &mut |_| {})?;
        let share = |end: usize, percent| CpuShare::limit(&format!("{}-{end}", hosts.a.name()), &ends[end], percent);
        let _shares = self.cpu.map(|percent| Ok([share(0, percent)?, share(1, percent)?])).transpose()?;
        let call = || Call::start(&hosts.a, &hosts.b, None, to, self.time);
        let call = self.call.then(call).transpose()?;
        let before = Counters::start(ends);
        let (goodput, bytes) = self.flow(hosts, to, self.time)?;
        let mut costs = before.finish(self.load, bytes);
        let call = call.map(Call::finish).filter(|quality| !quality.delays.is_empty()).map(|quality| CallDelay {
            median: quantile(&quality.delays, 0.5),
            p99: quantile(&quality.delays, 0.99),
            lost: quality.lost * 100.0,
        });
        let calls = count_calls(ends, self.load, || Ok(self.flow(hosts, to, CALLS_TIME)?.1))?;
        costs.iter_mut().zip(calls).for_each(|(end, calls)| end.calls = calls);
        Ok(CostSample { goodput: self.load.rate(goodput), ends: costs, call })
    }

    /// Returns the goodput of a flow in Mbit/s, and the bytes that arrived.
    fn flow(&self, hosts: &Hosts, to: IpAddr, time: Duration) -> Result<(f64, f64)> {
        let goodput = self.load.iperf(to, time).run(&hosts.a, &hosts.b, &mut |_| {})?.goodput;
        if goodput <= 0.0 {
            return Err(LabError::Failed { command: "iperf3".into(), message: "nothing arrived".into() });
        }
        Ok((goodput, goodput * 1e6 / 8.0 * time.as_secs_f64()))
    }
}

/// Length of the flow before the measurement.
const WARM_UP: Duration = Duration::from_secs(1);
/// Length of the flow during which system calls are counted.
const CALLS_TIME: Duration = Duration::from_secs(2);

impl Row {
    fn new(subject: &Subject, samples: &[CostSample]) -> Self {
        let of = |f: &dyn Fn(&CostSample) -> f64| samples.iter().map(f).collect::<Vec<_>>();
        let end = |end: usize| EndCost {
            user: quantile(&of(&|sample| sample.ends[end].user), 0.5),
            system: quantile(&of(&|sample| sample.ends[end].system), 0.5),
            wakeups: quantile(&of(&|sample| sample.ends[end].wakeups), 0.5),
            memory: quantile(&of(&|sample| sample.ends[end].memory), 0.5),
            calls: samples.iter().all(|sample| sample.ends[end].calls.is_some()).then(|| {
                let call = |kind: usize| quantile(&of(&|s| s.ends[end].calls.unwrap_or_default()[kind]), 0.5);
                std::array::from_fn(call)
            }),
        };
        Self {
            name: subject.name().to_owned(),
            baseline: subject.baseline(),
            goodput: range(&of(&|sample| sample.goodput)),
            ends: [end(0), end(1)],
            total: range(&of(&CostSample::total)),
            rounds: samples.iter().map(|sample| [sample.goodput, sample.total()]).collect(),
            call: samples.iter().all(|sample| sample.call.is_some()).then(|| {
                let call = |f: fn(&CallDelay) -> f64| quantile(&of(&|s| f(&s.call.unwrap_or_default())), 0.5);
                CallDelay { median: call(|c| c.median), p99: call(|c| c.p99), lost: call(|c| c.lost) }
            }),
        }
    }
}

/// Returns the packets that one call of this kind carries in the mean.
fn packets_per_call(calls: &[f64; CALLS.len()], kind: &str) -> f64 {
    let calls = CALLS.iter().zip(calls).find(|((name, _), _)| *name == kind);
    calls.map_or(0.0, |(_, calls)| 1.0 / calls)
}

/// Returns median, minimum and maximum.
fn range(values: &[f64]) -> [f64; 3] {
    [0.5, 0.0, 1.0].map(|q| quantile(values, q))
}

/// Writes the table's head.
pub fn head(load: CostLoad) -> String {
    let [rate, cost] = load.units().map(|unit| format!("{unit} (range)"));
    let calls: String = CALLS.iter().map(|(name, _)| format!(" {name:>6}")).collect();
    format!(
        "{:<22} {rate:>24} {cost:>21}  {:<8} {:>6} {:>6} {:>7} {:>5} {:>6}{calls} {:>6} {:>6}\n",
        "tunnel", "end", "user", "system", "wakeups", "MB", "calls", "in", "out"
    )
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [goodput, least, most] = self.goodput.map(|mbit| format!("{mbit:.0}"));
        let [total, low, high] = self.total;
        let goodput = format!("{goodput} ({least}-{most})");
        let total = format!("{total:.2} ({low:.2}-{high:.2})");
        // The calls that take the flow's packets in, and that pass them on.
        let ways = [["read", "send"], ["recv", "write"]];
        for ((end, name), way) in self.ends.iter().zip(["sender", "receiver"]).zip(ways) {
            let first = name == "sender";
            let shown = |text: &str| if first { text.to_owned() } else { String::new() };
            write!(f, "{:<22} {:>24} {:>21}  {name:<8}", shown(&self.name), shown(&goodput), shown(&total))?;
            write!(f, " {:>6.2} {:>6.2} {:>7.2} {:>5.1}", end.user, end.system, end.wakeups, end.memory)?;
            match end.calls {
                Some(calls) => {
                    write!(f, " {:>6.2}", calls.iter().sum::<f64>())?;
                    calls.iter().try_for_each(|calls| write!(f, " {calls:>6.2}"))?;
                    way.iter().try_for_each(|kind| write!(f, " {:>6.2}", packets_per_call(&calls, kind)))?;
                }
                None => write!(f, " {:>6}", "-")?,
            }
            writeln!(f)?;
        }
        if let Some(CallDelay { median, p99, lost }) = self.call {
            writeln!(f, "  call: delay {median:.2} ms, 99 % within {p99:.2} ms, {lost:.1} % lost")?;
        }
        Ok(())
    }
}
