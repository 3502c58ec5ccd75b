//! Contenders: each path alone, a single link of the summed rate, MPT, kernel MPTCP, other tunnels.

use super::ceiling::ideal;
use crate::{
    competitors::{self, Competitor, CompetitorTunnel},
    error::{LabError, Result},
    plan::Case,
    topology::{Family, Host, Topology, address, interface},
    traffic::mptcp,
    tunnel::{self, Layout, Mode, Tunnel, inner_address},
};
use mpt_sim::seed::Seed;
use std::{net::IpAddr, thread, time::Duration};

/// A contender of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Contender {
    /// One path alone, without a tunnel; numbered from zero.
    Solo(usize),
    /// A single link of the summed rate: the physical limit.
    Ideal,
    /// Kernel MPTCP.
    Mptcp,
    /// MPT.
    Mpt,
    /// Another tunnel.
    Competitor(&'static Competitor),
}

/// Parameters for starting a contender.
#[derive(Clone, Copy)]
pub(super) struct Testbed<'a> {
    pub(super) topology: &'a Topology,
    pub(super) case: &'a Case,
    pub(super) mode: Mode,
    pub(super) seed: Seed,
}

/// A contender that is up; dropping this takes it down.
pub(super) struct Running<'a> {
    pub(super) topology: TopologyRef<'a>,
    /// Source address on host A; chosen by the system if absent.
    pub(super) from: Option<IpAddr>,
    /// The address on host B.
    pub(super) to: IpAddr,
    /// Interface of host A that carries the application's packets unmodified.
    pub(super) device: String,
    /// True if applications must use MPTCP sockets.
    pub(super) mptcp: bool,
    /// Process IDs of the contender.
    pub(super) processes: Vec<u32>,
    _guard: Option<TunnelGuard>,
}

/// The topology of the case, or an own one.
pub(super) enum TopologyRef<'a> {
    Shared(&'a Topology),
    Own(Box<Topology>),
}

impl std::ops::Deref for TopologyRef<'_> {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        match self {
            Self::Shared(topology) => topology,
            Self::Own(topology) => topology,
        }
    }
}

/// Keeps the contender's processes alive.
enum TunnelGuard {
    Mpt { _tunnel: Tunnel },
    Competitor { _tunnel: CompetitorTunnel },
}

impl Running<'_> {
    /// Starts the schedules of the links.
    pub(super) fn begin_schedules(&self, case: &Case) {
        if let TopologyRef::Shared(topology) = self.topology {
            case.paths.iter().enumerate().for_each(|(path, spec)| topology.change(path, spec.clone()));
        }
    }
}

impl Contender {
    /// Values of `--against` besides the names of other tunnels.
    pub const NAMES: [&str; 3] = ["solo", "ideal", "mptcp"];

    /// Returns the contenders that a name means in a case: every path for `solo`.
    pub fn named(name: &str, case: &Case) -> Vec<Self> {
        match name {
            "solo" => (0..case.paths.len()).map(Self::Solo).collect(),
            "ideal" => vec![Self::Ideal],
            "mptcp" => vec![Self::Mptcp],
            other => {
                competitors::ALL.iter().filter(|competitor| competitor.name == other).map(Self::Competitor).collect()
            }
        }
    }

    /// Returns the name in results.
    pub fn name(&self) -> String {
        match self {
            Self::Solo(path) => format!("path {}", path + 1),
            Self::Ideal => "ideal".into(),
            Self::Mptcp => "mptcp".into(),
            Self::Mpt => "mpt".into(),
            Self::Competitor(competitor) => competitor.name.into(),
        }
    }

    /// Returns true if the case's events apply. Single paths are the reference and are measured without events.
    pub(super) fn is_subject_to_events(&self) -> bool {
        !matches!(self, Self::Solo(_) | Self::Ideal)
    }

    /// Starts the contender.
    pub(super) fn start<'a>(&self, testbed: &Testbed<'a>) -> Result<Running<'a>> {
        let Testbed { topology, case, .. } = *testbed;
        match self {
            Self::Solo(path) => Ok(without_tunnel(TopologyRef::Shared(topology), *path, case.inner)),
            Self::Ideal => start_ideal(testbed),
            Self::Mptcp => start_mptcp(testbed),
            Self::Mpt => start_mpt(testbed),
            Self::Competitor(competitor) => start_competitor(testbed, competitor),
        }
    }
}

/// Returns a contender that uses a path directly.
fn without_tunnel(topology: TopologyRef<'_>, path: usize, family: Family) -> Running<'_> {
    let end = |host| address(host, path, family);
    Running {
        topology,
        from: Some(end(Host::A)),
        to: end(Host::B),
        device: interface(path),
        mptcp: false,
        processes: Vec::new(),
        _guard: None,
    }
}

fn start_ideal<'a>(testbed: &Testbed<'a>) -> Result<Running<'a>> {
    let Some(path) = ideal(&testbed.case.paths) else {
        return Err(LabError::Inapplicable("an ideal link needs constant, limited rates"));
    };
    let name = format!("{}-ideal", Topology::unique_name());
    let topology = Topology::build(&name, &[path], testbed.seed.fork("ideal"))?;
    Ok(without_tunnel(TopologyRef::Own(Box::new(topology)), 0, testbed.case.inner))
}

fn start_mptcp<'a>(testbed: &Testbed<'a>) -> Result<Running<'a>> {
    if testbed.case.inner == Family::V6 {
        return Err(LabError::Inapplicable("MPTCP is configured over IPv4 only"));
    }
    mptcp::prepare(testbed.topology)?;
    let to = address(Host::B, 0, Family::V4);
    let path = without_tunnel(TopologyRef::Shared(testbed.topology), 0, Family::V4);
    Ok(Running { from: None, to, device: "any".into(), mptcp: true, ..path })
}

/// Time from a tunnel's start to its measurement: enough for a handshake and a first estimate over a satellite link.
pub(crate) const SETTLING_TIME: Duration = Duration::from_secs(2);

fn start_mpt<'a>(testbed: &Testbed<'a>) -> Result<Running<'a>> {
    let Testbed { topology, case, mode, .. } = *testbed;
    let layout = layout(case, mode);
    let tunnel = Tunnel::up(topology, &layout)?;
    thread::sleep(SETTLING_TIME);
    Ok(Running {
        topology: TopologyRef::Shared(topology),
        from: None,
        to: inner_address(Host::B, case.inner),
        device: tunnel::INTERFACE.into(),
        mptcp: false,
        processes: tunnel.processes(),
        _guard: Some(TunnelGuard::Mpt { _tunnel: tunnel }),
    })
}

/// Weights are set in native mode as well: only the schedulers `weighted` and `flow` use them, the default one does
/// not.
fn layout(case: &Case, mode: Mode) -> Layout<'_> {
    let settings = case.tunnel.clone();
    Layout { paths: &case.paths, settings, inner: case.inner, outer: case.outer, mode }
}

fn start_competitor<'a>(testbed: &Testbed<'a>, competitor: &'static Competitor) -> Result<Running<'a>> {
    let tunnel = competitor.up(testbed.topology, &testbed.case.paths)?;
    thread::sleep(SETTLING_TIME);
    Ok(Running {
        topology: TopologyRef::Shared(testbed.topology),
        from: None,
        to: competitors::inner_address(Host::B),
        device: competitors::tunnel_interface(Host::A).into(),
        mptcp: false,
        processes: tunnel.processes(),
        _guard: Some(TunnelGuard::Competitor { _tunnel: tunnel }),
    })
}
