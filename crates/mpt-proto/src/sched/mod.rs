//! Schedulers: which path a packet takes.
//!
//! A scheduler sees a [`Scene`], all that may be known, and says where the next packet goes. It is asked once per *run*: the
//! corridor may send several packets after one another on the path that was chosen, as many as [`View::burst`]
//! allows, so that what is sent together can leave in one system call. What was sent is reported to [`Schedule::on_sent`].
//!
//! `docs/design/schedulers.md` says what each is for. Adding one is a file, a variant and a name. Where a packet of class realtime goes is not a
//! scheduler's affair: [`urgent`].

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

/// What a scheduler may know about a path that can be used.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathSnapshot {
    /// Which path.
    pub id: PathId,
    /// Configured share, 1 to 10000; counts for [`Kind::Weighted`] alone.
    pub weight: u32,
    /// Smoothed round-trip time; zero while unknown.
    pub srtt: Duration,
    /// Its variation (RFC 6298).
    pub rtt_var: Duration,
    /// The least round-trip time of late; zero while unknown.
    pub min_rtt: Duration,
    /// Bytes that may be sent before the path's window, its pacer or its socket is full.
    pub room: u64,
    /// As `room`, when its pacer is not asked.
    pub window: u64,
    /// Bytes that may be in flight.
    pub cwnd: u64,
    /// Bytes that are.
    pub in_flight: u64,
    /// For how long the oldest of them has been, if it is an inner packet.
    pub oldest: Duration,
    /// Bytes worth sending on it in one go.
    pub burst: u64,
    /// What its bottleneck passes, as far as is known.
    pub rate: Rate,
    /// One-way delay, more than that of the fastest path. Its queue is part of it.
    pub delay: Duration,
    /// When it will have room, as far as can be foreseen; zero when it has.
    pub opens_in: Duration,
    /// Whether only its pacer keeps it from sending, so that waiting alone will open it.
    pub paced: bool,
}

/// Everything that a scheduler may use for a decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchedInput<'a> {
    /// The paths that are up, in order of their slots.
    pub snapshots: &'a [PathSnapshot],
    /// Those that the packet may take.
    pub candidates: PathSet,
    /// Bytes that leave before the flow to be scheduled has nothing more to send, the next packet included.
    pub backlog: u64,
    /// The time.
    pub now: Time,
    /// The flow's bucket.
    pub bucket: u16,
}

impl PathSnapshot {
    /// Bytes that are in flight when the path is full: its window, or a round trip at its rate where the window is kept wider than that.
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

    /// Returns those that have room for `len` bytes.
    pub fn open(&self, len: usize) -> impl Iterator<Item = &'a PathSnapshot> + Clone + use<'a> {
        self.paths().filter(move |path| path.room >= len as u64)
    }
}

/// Where the next packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Over this path, which has room.
    Send(PathId),
    /// Over this path, which has room, but not this packet: so many bytes leave over other paths before one that goes over this
    /// one now arrives, so a packet of its flow that has these in front of it goes there, and arrives in its turn.
    Ahead(PathId, u64),
    /// Nowhere yet.
    Wait,
}

impl Decision {
    /// The path, if it is one.
    pub fn path(self) -> Option<PathId> {
        match self {
            Self::Send(path) | Self::Ahead(path, _) => Some(path),
            Self::Wait => None,
        }
    }
}

/// A packet in flight on one path that is to be sent on another as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpportunisticRetransmit {
    /// The oldest on this path.
    pub from: PathId,
    /// On this one, which has room for it.
    pub to: PathId,
}

/// A way to choose.
pub trait Schedule {
    /// Chooses a path for a packet of `len` bytes, overhead included.
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision;

    /// After [`Decision::Wait`]: when asking again may bring another answer, if time alone can bring one.
    fn wait(&self, _len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        opening(input, |_| true)
    }

    /// `bytes` were sent on `path`.
    fn on_sent(&mut self, _path: PathId, _bytes: usize, _scene: &SchedInput<'_>) {}

    /// Nothing waits to be sent. What is in flight may be sent again.
    fn on_idle(&mut self, _scene: &SchedInput<'_>) -> Option<OpportunisticRetransmit> {
        None
    }

    /// Whether a flow's packets must not be sent over several paths, whatever their class.
    fn keeps_flows(&self) -> bool {
        false
    }

    /// Whether every packet goes over every path.
    fn is_redundant(&self) -> bool {
        false
    }
}

/// When the pacer of a path that would be taken lets go.
fn opening(input: &SchedInput<'_>, is_taken: impl Fn(&PathSnapshot) -> bool) -> Option<Duration> {
    let paced = input.paths().filter(|path| path.paced && !path.opens_in.is_zero());
    paced.filter(|path| is_taken(path)).map(|path| path.opens_in).min()
}

/// The path with the lowest round-trip time.
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
    /// The path with the lowest round-trip time, the next one when that is full.
    MinRtt,
    /// The path on which the packet arrives first, which may be worth a wait.
    Earliest,
    /// As `MinRtt`, but off a slow path that would block the fast one.
    Blest,
    /// As `MinRtt`, but waiting for the fast path when that completes sooner.
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

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("custom", |(name, _)| name)
    }
}

/// A scheduler at work.
pub enum Scheduler {
    /// [`Kind::Weighted`] and [`Kind::RoundRobin`].
    Weighted(Weighted),
    /// [`Kind::MinRtt`].
    MinRtt(MinRtt),
    /// [`Kind::Earliest`].
    Earliest(Earliest),
    /// [`Kind::Blest`].
    Blest(Blest),
    /// [`Kind::Ecf`].
    Ecf(Ecf),
    /// [`Kind::Flow`].
    Flow(PerFlow),
    /// [`Kind::Redundant`].
    Redundant(Redundant),
    /// [`Kind::Rp`].
    Rp(Rp),
    /// [`Kind::Bm`].
    Bm(Bm),
    /// Somebody's experiment.
    Custom(Box<dyn Schedule + Send>),
}

impl Scheduler {
    /// Makes one of the named kind.
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
