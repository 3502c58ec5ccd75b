//! The same cases in virtual time: MPT's core and the simulator's TCP on modelled links. This needs no privileges, and
//! the same seed gives the same figures.
//!
//! The tunnel has [`SETTLING_TIME`] for its handshake before the flow starts, as in the laboratory, and the links'
//! schedules start with the flow. Other tunnels, UDP, and flows that are not greedy are not simulated.

use super::{
    ceiling::{ideal, is_download},
    contender::{Contender, SETTLING_TIME},
    outage::outage,
    result::Run,
};
use crate::{
    error::{LabError, Result},
    plan::{Action, Case, Congestion, Load, Metric},
    traffic::bulk::{Sample, rates},
    tunnel::{Layout, Mode},
};
use mpt_proto::{
    config::{Config, NativeConfig, PathConfig, PeerConfig, PlainFraming, Protocol},
    crypto::{
        handshake::{Capabilities, Clock, Identity},
        keys::KeyPair,
    },
    endpoint::Endpoint,
    packet::Merge,
    path::LinkId,
    sched,
    sessions::SessionTable,
    time::{Rate, Time},
    tuning::Tuning,
};
use mpt_sim::{
    direct::Direct,
    host::{
        Host,
        tcp::{TcpSink, TcpSource},
    },
    link::PathSpec,
    net::{Network, address},
    seed::Seed,
};
use std::time::Duration;

/// Parameters of a simulation.
pub(super) struct Simulation<'a> {
    pub(super) case: &'a Case,
    pub(super) mode: Mode,
    /// Rules of native mode that are on.
    pub(super) tuning: Tuning,
    pub(super) seed: Seed,
    pub(super) length: Duration,
    pub(super) quick: bool,
    /// Delay of the flow's start in the tunnel, by which two seeds differ on links without random loss and jitter.
    pub(super) offset: Duration,
}

impl Simulation<'_> {
    /// Runs a contender.
    pub(super) fn run(&self, contender: Contender) -> Result<Run> {
        match self.case.traffic.load {
            Load::Tcp { streams: 1, .. } | Load::Bulk | Load::Http { .. } | Load::Ftp { .. } => {}
            _ => return Err(LabError::Inapplicable("the simulator supports only one greedy TCP flow")),
        }
        match contender {
            Contender::Solo(path) => Ok(self.direct(&self.oriented(&self.case.paths[path]))),
            Contender::Ideal => match ideal(&self.case.paths) {
                Some(path) => Ok(self.direct(&self.oriented(&path))),
                None => Err(LabError::Inapplicable("an ideal link needs constant, limited rates")),
            },
            Contender::Mpt if self.mode == Mode::Original && self.has_bbr() => {
                Err(LabError::Inapplicable("the simulator's TCP for the original MPT has no BBR"))
            }
            Contender::Mpt => self.tunnel(),
            Contender::Mptcp | Contender::Competitor(_) => Err(LabError::Inapplicable("only MPT is simulated")),
        }
    }

    fn direct(&self, path: &PathSpec) -> Run {
        let mut net = Direct::new(self.seed, path, self.hosts(1_500, Time::START));
        net.run(self.length);
        Run { journal: net.journal(), ..self.result(net.host::<TcpSink>(1), Duration::ZERO, false) }
    }

    /// Returns a network between `hosts` over one path without a tunnel.
    pub(super) fn without_tunnel(&self, path: usize, hosts: [Box<dyn Host>; 2]) -> Direct {
        Direct::new(self.seed, &self.oriented(&self.case.paths[path]), hosts)
    }

    fn tunnel(&self) -> Result<Run> {
        let mut net = self.established(self.greedy());
        for event in &self.case.events {
            net.run(SETTLING_TIME + event.at.of(self.quick));
            apply_action(&mut net, event.path, event.action)?;
        }
        net.run(SETTLING_TIME + self.length);
        Ok(Run { journal: net.journal(), ..self.result(net.host::<TcpSink>(1), SETTLING_TIME, true) })
    }

    /// Runs the tunnel and calls `look` every `step` from the flow's start.
    ///
    /// # Errors
    /// The case cannot be simulated, or `look` failed.
    pub(super) fn run_sampled(
        &self,
        step: Duration,
        traced: bool,
        look: &mut dyn FnMut(&mut Network, Duration) -> Result<()>,
    ) -> Result<()> {
        let mut net = self.network(self.greedy());
        net.set_trace(traced);
        self.establish(&mut net);
        let mut at = Duration::ZERO;
        let mut events = self.case.events.iter().peekable();
        while at < self.length {
            at += step;
            while let Some(event) = events.next_if(|event| event.at.of(self.quick) <= at) {
                net.run(SETTLING_TIME + event.at.of(self.quick));
                apply_action(&mut net, event.path, event.action)?;
            }
            net.run(SETTLING_TIME + at);
            look(&mut net, at)?;
        }
        Ok(())
    }

    fn paths(&self) -> Vec<PathSpec> {
        self.case.paths.iter().map(|path| self.oriented(path)).collect()
    }

    fn layout<'p>(&self, paths: &'p [PathSpec]) -> Layout<'p> {
        let settings = self.case.tunnel.clone();
        Layout { paths, settings, inner: self.case.inner, outer: self.case.outer, mode: self.mode }
    }

    /// Returns the MTU in the tunnel.
    pub(super) fn mtu(&self) -> usize {
        self.layout(&self.case.paths).mtu()
    }

    /// Returns the hosts of one greedy TCP flow through the tunnel.
    fn greedy(&self) -> [Box<dyn Host>; 2] {
        let (mtu, start) = (self.mtu(), Time::after(SETTLING_TIME + self.offset));
        match self.mode {
            Mode::Original => hosts_before_rack(mtu, start),
            Mode::Native | Mode::Plain => self.hosts(mtu, start),
        }
    }

    /// Returns the hosts of one greedy TCP flow with the congestion control of the case.
    fn hosts(&self, mtu: usize, start: Time) -> [Box<dyn Host>; 2] {
        let source = TcpSource::new(mtu).starting_at(start);
        let source = if self.has_bbr() { source.with_bbr() } else { source };
        [Box::new(source), Box::new(TcpSink::new(mtu))]
    }

    fn has_bbr(&self) -> bool {
        matches!(self.case.traffic.load, Load::Tcp { congestion: Congestion::Bbr, .. })
    }

    /// Returns a network between `hosts` with an established tunnel.
    pub(super) fn established(&self, hosts: [Box<dyn Host>; 2]) -> Network {
        let mut net = self.network(hosts);
        self.establish(&mut net);
        net
    }

    /// Returns a network between `hosts` whose tunnel has no session yet.
    fn network(&self, hosts: [Box<dyn Host>; 2]) -> Network {
        let paths = self.paths();
        let layout = self.layout(&paths);
        let ends = [endpoint(0, &layout, self.tuning), endpoint(1, &layout, self.tuning)];
        let mut net = Network::between(self.seed, ends, &paths, hosts);
        net.omit_law_checks();
        net
    }

    /// Lets the tunnel establish its session; the links' schedules start at the flow's start.
    fn establish(&self, net: &mut Network) {
        net.run(SETTLING_TIME);
        for (number, path) in self.paths().iter().enumerate() {
            net.link(number, 0).change(Time::after(SETTLING_TIME), &path.there);
            net.link(number, 1).change(Time::after(SETTLING_TIME), &path.back);
        }
    }

    /// Returns the figures of a flow that starts at `begin`; `events` adds those of the case's outages.
    pub(super) fn result(&self, sink: &TcpSink, begin: Duration, events: bool) -> Run {
        let sample = |(at, bytes): &(Time, u64)| Sample {
            at: Duration::from_nanos(at.as_nanos()).saturating_sub(begin),
            bytes: *bytes,
        };
        let samples: Vec<Sample> = sink.series.iter().map(sample).collect();
        let goodput = rates(&samples, Duration::from_millis(100), self.length);
        let mut run = Run { goodput, bytes: sink.bytes(), ..Run::default() };
        run.metrics.insert(Metric::Goodput, sink.bytes() as f64 * 8e-6 / self.length.as_secs_f64());
        if events {
            let events: Vec<Duration> = self.case.events.iter().map(|event| event.at.of(self.quick)).collect();
            run.metrics.extend(outage(&events, &samples, &run.goodput, self.length));
        }
        run.arrivals = samples;
        run
    }

    /// Swaps the directions of a download's path: the simulated flow always goes from A to B.
    fn oriented(&self, path: &PathSpec) -> PathSpec {
        match is_download(self.case) {
            true => PathSpec { there: path.back.clone(), back: path.there.clone() },
            false => path.clone(),
        }
    }
}

/// The TCP in the papers predates RACK (RFC 8985).
fn hosts_before_rack(mtu: usize, start: Time) -> [Box<dyn Host>; 2] {
    let source = TcpSource::new(mtu).starting_at(start).before_rack();
    [Box::new(source), Box::new(TcpSink::new(mtu))]
}

fn apply_action(net: &mut Network, path: usize, what: Action) -> Result<()> {
    let cut = match what {
        Action::Unplug | Action::Cut => true,
        Action::Plug | Action::Restore => false,
        Action::Renumber => return Err(LabError::Inapplicable("simulated addresses do not change")),
    };
    net.cut(path, cut);
    if matches!(what, Action::Unplug | Action::Plug) {
        net.carrier(0, path, !cut);
    }
    Ok(())
}

fn endpoint(end: usize, layout: &Layout<'_>, tuning: Tuning) -> Endpoint {
    let keys = |end: usize| KeyPair::generate([end as u8 + 1; 32]);
    let protocol = match layout.mode {
        Mode::Native => Protocol::Native(NativeConfig { tuning, ..NativeConfig::new(*keys(1 - end).public()) }),
        Mode::Plain => Protocol::Plain(PlainFraming { sequence: true, ..PlainFraming::default() }),
        Mode::Original => Protocol::Plain(PlainFraming::default()),
    };
    let paths = (0..layout.paths.len()).map(|path| path_config(end, path, layout)).collect();
    let defaults = PeerConfig::new("peer", protocol, paths);
    let named =
        |name: &String| sched::SchedulerKind::NAMES.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind);
    let peer = PeerConfig {
        networks: vec![EVERYTHING.parse().expect("a prefix")],
        scheduler: layout.settings.scheduler.as_ref().and_then(named).map_or(defaults.scheduler, Into::into),
        resequence: defaults.resequence.filter(|_| layout.mode != Mode::Original),
        ..defaults
    };
    let config = Config { identity: None, mtu: layout.mtu(), merge: Merge::default(), peers: vec![peer] };
    match layout.mode {
        Mode::Native => {
            let identity =
                Identity { keys: keys(end), capabilities: Capabilities::new(true), clock: Clock::new(UNIX_TIME) };
            Endpoint::native(Time::START, &config, SessionTable::new(identity, [end as u8 + 7; 32]))
        }
        Mode::Plain | Mode::Original => Endpoint::new(Time::START, &config),
    }
}

fn path_config(end: usize, path: usize, layout: &Layout<'_>) -> PathConfig {
    let spec = &layout.paths[path];
    let rate = if end == 0 { spec.there.start.rate } else { spec.back.start.rate };
    let speed = if rate == Rate::MAX { 1 } else { (rate.bits() / 1_000_000).max(1) as u32 };
    PathConfig {
        weight: layout.settings.weights.as_ref().map_or(speed, |weights| weights[path]),
        ..PathConfig::new(format!("path{}", path + 1), LinkId(path as u8), address(1 - end, path))
    }
}

const EVERYTHING: &str = "0.0.0.0/0";

/// Unix time at the start; any value works for the handshake if both ends have the same.
const UNIX_TIME: Duration = Duration::from_secs(365 * 86_400);
