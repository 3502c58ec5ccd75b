//! Schedulers choose the path of each packet.
//!
//! A scheduler gets a [`SchedInput`] and returns a [`Decision`] for the next packet. There is one decision per batch:
//! up to [`PathSnapshot::burst`] bytes may be sent on the chosen path, so that they leave in one system call. The bytes
//! sent are reported to [`Schedule::on_sent`].
//!
//! `docs/design/schedulers.md` describes the purpose of each. A new one is a file, a variant and a name. Packets of
//! class realtime do not pass a scheduler: see [`urgent()`].

mod blest;
mod bm;
mod earliest;
mod ecf;
mod min_rtt;
mod per_flow;
mod redundant;
pub mod reserve;
mod rp;
mod urgent;
mod weighted;

use std::fmt;
use std::time::Duration;

use crate::id::{PathId, PathSet};
use crate::time::{Rate, Time};
use blest::Blest;
use bm::Bm;
pub use earliest::Earliest;
use ecf::Ecf;
use min_rtt::MinRtt;
use per_flow::PerFlow;
use redundant::Redundant;
use rp::Rp;
pub use urgent::urgent;
use weighted::Weighted;

/// The state of a usable path.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathSnapshot {
    /// Its identifier.
    pub id: PathId,
    /// Configured share, 1 to 10000; used by [`SchedulerKind::Weighted`] only.
    pub weight: u32,
    /// Smoothed round-trip time; zero while unknown.
    pub srtt: Duration,
    /// RTT variation (RFC 6298).
    pub rtt_var: Duration,
    /// Recent minimum of the round-trip time; zero while unknown.
    pub min_rtt: Duration,
    /// Bytes that may be sent before the path's window, its pacer or its socket is full.
    pub room: u64,
    /// As `room`, without the pacer's limit.
    pub window: u64,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Age of the oldest packet in flight, if it is an inner packet.
    pub oldest: Duration,
    /// Bytes of one batch.
    pub burst: u64,
    /// Estimated rate of the bottleneck.
    pub rate: Rate,
    /// One-way delay above that of the fastest path, with queueing delay.
    pub delay: Duration,
    /// Estimated time until it has room; zero if it has.
    pub opens_in: Duration,
    /// True if only its pacer limits it, so that it opens without an ACK.
    pub paced: bool,
}

/// The input of a decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchedInput<'a> {
    /// Paths that are up, in order of their slots.
    pub snapshots: &'a [PathSnapshot],
    /// Paths that the packet may take.
    pub candidates: PathSet,
    /// Bytes to be sent until the flow to be scheduled has an empty queue, with the next packet.
    pub backlog: u64,
    /// Current time.
    pub now: Time,
    /// Bucket of the flow.
    pub bucket: u16,
}

impl PathSnapshot {
    /// Returns the bytes in flight of a full path: its BDP, but at most its window.
    fn flight(&self) -> u64 {
        let filled = self.rate.bytes_in(self.srtt);
        if filled == 0 { self.cwnd } else { self.cwnd.min(filled) }
    }
}

impl<'a> SchedInput<'a> {
    /// Returns the paths that the packet may take, in order of their slots.
    pub fn paths(&self) -> impl Iterator<Item = &'a PathSnapshot> + Clone + use<'a> {
        let candidates = self.candidates;
        self.snapshots.iter().filter(move |path| candidates.contains(path.id))
    }

    /// Returns the candidates that have room for `len` bytes.
    pub fn open(&self, len: usize) -> impl Iterator<Item = &'a PathSnapshot> + Clone + use<'a> {
        self.paths().filter(move |path| path.room >= len as u64)
    }
}

/// The path of the next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Sends it on this path, which has room.
    Send(PathId),
    /// Sends a later packet of the flow on this path, which has room: the one behind this many bytes, which other paths
    /// pass before it arrives. So it arrives in order.
    Ahead(PathId, u64),
    /// Sends nothing yet.
    Wait,
}

impl Decision {
    /// Returns the path, unless it is [`Self::Wait`].
    pub fn path(self) -> Option<PathId> {
        match self {
            Self::Send(path) | Self::Ahead(path, _) => Some(path),
            Self::Wait => None,
        }
    }
}

/// A packet in flight on one path that is also sent on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpportunisticRetransmit {
    /// Path whose oldest packet is sent.
    pub from: PathId,
    /// Path that it is sent on, which has room for it.
    pub to: PathId,
}

/// A scheduling algorithm.
pub trait Schedule {
    /// Chooses a path for a packet of `len` bytes, overhead included.
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision;

    /// After [`Decision::Wait`], returns the time after which the decision may change; `None` if only an event changes
    /// it.
    fn wait(&self, _len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        opening(input, |_| true)
    }

    /// Notes that `bytes` were sent on `path`.
    fn on_sent(&mut self, _path: PathId, _bytes: usize, _scene: &SchedInput<'_>) {}

    /// Called when the queue is empty. Returns a packet in flight to be sent again, if any.
    fn on_idle(&mut self, _scene: &SchedInput<'_>) -> Option<OpportunisticRetransmit> {
        None
    }

    /// Returns true if each flow must stay on one path, in every class.
    fn keeps_flows(&self) -> bool {
        false
    }

    /// Returns true if every packet is sent on every path.
    fn is_redundant(&self) -> bool {
        false
    }
}

/// Returns the time until the first pacer of the paths in `is_taken` opens.
fn opening(input: &SchedInput<'_>, is_taken: impl Fn(&PathSnapshot) -> bool) -> Option<Duration> {
    let paced = input.paths().filter(|path| path.paced && !path.opens_in.is_zero());
    paced.filter(|path| is_taken(path)).map(|path| path.opens_in).min()
}

/// Returns the path with the lowest smoothed RTT.
fn fastest<'v>(paths: impl Iterator<Item = &'v PathSnapshot>) -> Option<&'v PathSnapshot> {
    paths.min_by_key(|path| (path.srtt, path.id))
}

/// The schedulers by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Shares by configured weight.
    #[default]
    Weighted,
    /// Equal shares.
    RoundRobin,
    /// Lowest RTT first, the next path when that is full.
    MinRtt,
    /// Earliest arrival; may wait for a faster path.
    Earliest,
    /// As `MinRtt`, but without slow paths that would block the fast one.
    Blest,
    /// As `MinRtt`, but waits for the fast path if that completes sooner.
    Ecf,
    /// Each flow on one path.
    Flow,
    /// Every packet on every path.
    Redundant,
    /// As `MinRtt`, with opportunistic retransmission and penalisation.
    Rp,
    /// As `MinRtt`, with bufferbloat mitigation.
    Bm,
}

impl SchedulerKind {
    /// Every scheduler with its name in the configuration.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("weighted", Self::Weighted),
        ("round-robin", Self::RoundRobin),
        ("min-rtt", Self::MinRtt),
        ("earliest", Self::Earliest),
        ("blest", Self::Blest),
        ("ecf", Self::Ecf),
        ("flow", Self::Flow),
        ("redundant", Self::Redundant),
        ("rp", Self::Rp),
        ("bm", Self::Bm),
    ];

    /// Returns its name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("custom", |(name, _)| name)
    }
}

/// A scheduler with its state.
pub enum Scheduler {
    /// [`SchedulerKind::Weighted`] and [`SchedulerKind::RoundRobin`].
    Weighted(Weighted),
    /// [`SchedulerKind::MinRtt`].
    MinRtt(MinRtt),
    /// [`SchedulerKind::Earliest`].
    Earliest(Earliest),
    /// [`SchedulerKind::Blest`].
    Blest(Blest),
    /// [`SchedulerKind::Ecf`].
    Ecf(Ecf),
    /// [`SchedulerKind::Flow`].
    Flow(PerFlow),
    /// [`SchedulerKind::Redundant`].
    Redundant(Redundant),
    /// [`SchedulerKind::Rp`].
    Rp(Rp),
    /// [`SchedulerKind::Bm`].
    Bm(Bm),
    /// Any other implementation.
    Custom(Box<dyn Schedule + Send>),
}

impl Scheduler {
    /// Makes a scheduler of this kind.
    pub fn new(kind: SchedulerKind) -> Self {
        match kind {
            SchedulerKind::Weighted => Self::Weighted(Weighted::by_weight()),
            SchedulerKind::RoundRobin => Self::Weighted(Weighted::evenly()),
            SchedulerKind::MinRtt => Self::MinRtt(MinRtt),
            SchedulerKind::Earliest => Self::Earliest(Earliest),
            SchedulerKind::Blest => Self::Blest(Blest::default()),
            SchedulerKind::Ecf => Self::Ecf(Ecf::default()),
            SchedulerKind::Flow => Self::Flow(PerFlow::default()),
            SchedulerKind::Redundant => Self::Redundant(Redundant),
            SchedulerKind::Rp => Self::Rp(Rp::default()),
            SchedulerKind::Bm => Self::Bm(Bm),
        }
    }

    fn inner(&self) -> &dyn Schedule {
        match self {
            Self::Weighted(s) => s,
            Self::MinRtt(s) => s,
            Self::Earliest(s) => s,
            Self::Blest(s) => s,
            Self::Ecf(s) => s,
            Self::Flow(s) => s,
            Self::Redundant(s) => s,
            Self::Rp(s) => s,
            Self::Bm(s) => s,
            Self::Custom(s) => s.as_ref(),
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Schedule {
        match self {
            Self::Weighted(s) => s,
            Self::MinRtt(s) => s,
            Self::Earliest(s) => s,
            Self::Blest(s) => s,
            Self::Ecf(s) => s,
            Self::Flow(s) => s,
            Self::Redundant(s) => s,
            Self::Rp(s) => s,
            Self::Bm(s) => s,
            Self::Custom(s) => s.as_mut(),
        }
    }
}

impl Schedule for Scheduler {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        self.inner_mut().choose(len, input)
    }

    fn wait(&self, len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        self.inner().wait(len, input)
    }

    fn on_sent(&mut self, path: PathId, bytes: usize, input: &SchedInput<'_>) {
        self.inner_mut().on_sent(path, bytes, input);
    }

    fn on_idle(&mut self, input: &SchedInput<'_>) -> Option<OpportunisticRetransmit> {
        self.inner_mut().on_idle(input)
    }

    fn keeps_flows(&self) -> bool {
        self.inner().keeps_flows()
    }

    fn is_redundant(&self) -> bool {
        self.inner().is_redundant()
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scheduler")
    }
}

#[cfg(test)]
mod conformance;
