//! Who takes part: each path alone, a single link of the summed rate, MPT, the kernel's multipath TCP, other tunnels.

use super::ceiling::ideal;
use crate::{
    error::{LabError, Result},
    plan::Case,
    rivals::{self, Rival, RivalTunnel},
    topology::{Family, Host, Topology, address, interface},
    traffic::mptcp,
    tunnel::{self, Layout, Mode, Tunnel, inner_address},
};
use mpt_sim::seed::Seed;
use std::{net::IpAddr, thread, time::Duration};

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Contender {
    /// One path alone, without a tunnel; from zero.
    Solo(usize),
    /// A single link of the summed rate: what is physically possible.
    Ideal,
    /// The kernel's multipath TCP.
    Mptcp,
    /// MPT.
    Mpt,
    /// Another tunnel.
    Rival(&'static Rival),
}

/// What contenders stand on.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub(super) topology: &'a Topology,
    pub(super) case: &'a Case,
    pub(super) mode: Mode,
    pub(super) seed: Seed,
}

/// A contender that is up; it goes down when this is dropped.
pub(super) struct Standing<'a> {
    pub(super) topology: Floor<'a>,
    /// The address on host A to send from; the system's choice, if absent.
    pub(super) from: Option<IpAddr>,
    /// The address on host B.
    pub(super) to: IpAddr,
    /// The interface of host A that its packets pass as the application made them.
    pub(super) device: String,
    /// Whether applications have to use multipath TCP.
    pub(super) mptcp: bool,
    /// Its processes.
    pub(super) processes: Vec<u32>,
    _alive: Option<Alive>,
}

/// The topology of the case, or one of its own.
pub(super) enum Floor<'a> {
    Shared(&'a Topology),
    Own(Box<Topology>),
}

impl std::ops::Deref for Floor<'_> {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        match self {
            Self::Shared(topology) => topology,
            Self::Own(topology) => topology,
        }
    }
}

/// What has to be kept for a contender to live.
enum Alive {
    Mpt { _tunnel: Tunnel },
    Rival { _tunnel: RivalTunnel },
}

impl Standing<'_> {
    /// Lets the schedules of links begin.
    pub(super) fn begin_schedules(&self, case: &Case) {
        if let Floor::Shared(topology) = self.topology {
            case.paths.iter().enumerate().for_each(|(path, spec)| topology.change(path, spec.clone()));
        }
    }
}

impl Contender {
    /// What `--against` takes, besides the names of other tunnels.
    pub const NAMES: [&str; 3] = ["solo", "ideal", "mptcp"];

    /// Those that a name stands for in a case: every path for `solo`.
    pub fn named(name: &str, case: &Case) -> Vec<Self> {
        match name {
            "solo" => (0..case.paths.len()).map(Self::Solo).collect(),
            "ideal" => vec![Self::Ideal],
            "mptcp" => vec![Self::Mptcp],
            other => rivals::ALL.iter().filter(|rival| rival.name == other).map(Self::Rival).collect(),
        }
    }

    /// Its name in results.
    pub fn name(&self) -> String {
        match self {
            Self::Solo(path) => format!("path {}", path + 1),
            Self::Ideal => "ideal".into(),
            Self::Mptcp => "mptcp".into(),
            Self::Mpt => "mpt".into(),
            Self::Rival(rival) => rival.name.into(),
        }
    }

    /// Whether what happens to paths happens to it: what a single path is worth, it is worth undisturbed.
    pub(super) fn meets_events(&self) -> bool {
        !matches!(self, Self::Solo(_) | Self::Ideal)
    }

    /// Brings it up.
    pub(super) fn stand<'a>(&self, ground: &Ground<'a>) -> Result<Standing<'a>> {
        let Ground { topology, case, .. } = *ground;
        match self {
            Self::Solo(path) => Ok(bare(Floor::Shared(topology), *path, case.inner)),
            Self::Ideal => stand_ideal(ground),
            Self::Mptcp => stand_mptcp(ground),
            Self::Mpt => stand_mpt(ground),
            Self::Rival(rival) => stand_rival(ground, rival),
        }
    }
}

/// Applications on a path itself.
fn bare(topology: Floor<'_>, path: usize, family: Family) -> Standing<'_> {
    let end = |host| address(host, path, family);
    Standing {
        topology,
        from: Some(end(Host::A)),
        to: end(Host::B),
        device: interface(path),
        mptcp: false,
        processes: Vec::new(),
        _alive: None,
    }
}

fn stand_ideal<'a>(ground: &Ground<'a>) -> Result<Standing<'a>> {
    let Some(path) = ideal(&ground.case.paths) else {
        return Err(LabError::Inapplicable("a single link of rates that change, or are not limited"));
    };
    let name = format!("{}-ideal", Topology::unique_name());
    let topology = Topology::build(&name, &[path], ground.seed.fork("ideal"))?;
    Ok(bare(Floor::Own(Box::new(topology)), 0, ground.case.inner))
}

fn stand_mptcp<'a>(ground: &Ground<'a>) -> Result<Standing<'a>> {
    if ground.case.inner == Family::V6 {
        return Err(LabError::Inapplicable("multipath TCP is prepared over IPv4"));
    }
    mptcp::prepare(ground.topology)?;
    let to = address(Host::B, 0, Family::V4);
    let standing = bare(Floor::Shared(ground.topology), 0, Family::V4);
    Ok(Standing { from: None, to, device: "any".into(), mptcp: true, ..standing })
}

/// For how long a tunnel has been up when it is measured: enough for a handshake and a first estimate over a satellite.
pub(crate) const SETTLED: Duration = Duration::from_secs(2);

fn stand_mpt<'a>(ground: &Ground<'a>) -> Result<Standing<'a>> {
    let Ground { topology, case, mode, .. } = *ground;
    let layout = layout(case, mode);
    let tunnel = Tunnel::up(topology, &layout)?;
    thread::sleep(SETTLED);
    Ok(Standing {
        topology: Floor::Shared(topology),
        from: None,
        to: inner_address(Host::B, case.inner),
        device: tunnel::INTERFACE.into(),
        mptcp: false,
        processes: tunnel.processes(),
        _alive: Some(Alive::Mpt { _tunnel: tunnel }),
    })
}

/// An adaptive tunnel is told weights, too; its default scheduler does not look at them, `weighted` and `flow` do.
fn layout(case: &Case, mode: Mode) -> Layout<'_> {
    let settings = case.tunnel.clone();
    Layout { paths: &case.paths, settings, inner: case.inner, outer: case.outer, mode }
}

fn stand_rival<'a>(ground: &Ground<'a>, rival: &'static Rival) -> Result<Standing<'a>> {
    let tunnel = rival.up(ground.topology, &ground.case.paths)?;
    thread::sleep(SETTLED);
    Ok(Standing {
        topology: Floor::Shared(ground.topology),
        from: None,
        to: rivals::inner_address(Host::B),
        device: rivals::INTERFACE.into(),
        mptcp: false,
        processes: tunnel.processes(),
        _alive: Some(Alive::Rival { _tunnel: tunnel }),
    })
}
