//! Schedulers: the choice of the path that a packet takes.
//!
//! A scheduler gets a [`SchedInput`], which contains all that it may use, and returns a [`Decision`]. The endpoint
//! calls it once per batch: it may send several packets on the chosen path, up to [`PathSnapshot::burst`] bytes, so
//! that they leave in one system call, and reports them with [`Schedule::on_sent`].
//!
//! `docs/design/schedulers.md` describes each scheduler; `docs/guide/add-a-scheduler.md` adds one, from outside the
//! crate with a [`SchedulerFactory`], or inside it. Realtime packets do not pass the scheduler: see [`urgent()`].

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
use std::sync::Arc;
use std::time::Duration;

use crate::id::{PathId, PathSet};
use crate::time::{Rate, Time};
use crate::tuning::sched::earliest::MAX_DOUBLINGS;
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

/// The state of a path that is up, for a scheduler.
///
/// Plain mode measures little of a path: there `id`, `weight`, `srtt`, `room`, `burst` and `rate` have values, and all
/// other fields are zero. `room` is then either 0 or [`u64::MAX`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PathSnapshot {
    /// The path.
    pub id: PathId,
    /// The configured share, 1 to 10000; only [`SchedulerKind::Weighted`] uses it.
    pub weight: u32,
    /// Smoothed round-trip time; zero while unknown.
    pub srtt: Duration,
    /// Variation of the round-trip time (RFC 6298); zero while unknown.
    pub rtt_var: Duration,
    /// Lowest round-trip time of the last ten seconds; zero while unknown.
    pub min_rtt: Duration,
    /// Bytes that may be sent at once; 0 while the path's window, its pacer or its socket permits none.
    pub room: u64,
    /// Bytes that the window permits, without regard to the pacer; 0 while the socket's buffer is full.
    pub window: u64,
    /// Congestion window in bytes; [`u64::MAX`] without congestion control.
    pub cwnd: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Time since the oldest packet in flight was sent; zero if none is or if it contains no inner packet.
    pub oldest: Duration,
    /// Bytes that a batch on this path may contain; a batch always contains at least one packet.
    pub burst: u64,
    /// Estimated rate of the bottleneck; never zero in native mode.
    pub rate: Rate,
    /// One-way delay in excess of the fastest path's; zero for the fastest one. It includes the path's queue, and the
    /// delay that losses cost on average.
    pub delay: Duration,
    /// Estimated time until the path has room for a full datagram; zero if it has.
    pub opens_in: Duration,
    /// True if the pacer alone may keep the path from sending: the window has room for a full datagram, and so has the
    /// socket. `opens_in` is then exact.
    pub paced: bool,
    /// True in start-up, where the rate doubles in each round trip.
    pub doubles: bool,
}

/// All values that a scheduler may use for a decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchedInput<'a> {
    /// The paths that are up, in order of their slots, candidates or not.
    pub snapshots: &'a [PathSnapshot],
    /// The paths that the packet may take: rules, the packet's length, and a reserved path restrict them.
    pub candidates: PathSet,
    /// Bytes that leave until the backlog of the packet's flow is sent: its own, the packet included, and those of the
    /// flows that it takes turns with.
    pub backlog: u64,
    /// The time of the decision.
    pub now: Time,
    /// The bucket of the packet's flow: flows with the same hash share one.
    pub bucket: u16,
}

impl PathSnapshot {
    /// Returns the bytes that the path delivers within `time`. In start-up, the rate at the end counts for all of it.
    fn bytes_in(&self, time: Duration) -> u64 {
        let rounds = match self.doubles && !self.srtt.is_zero() {
            true => (time.as_secs_f64() / self.srtt.as_secs_f64()).min(MAX_DOUBLINGS),
            false => 0.0,
        };
        // 2 to the power of the rounds, with a straight line between whole numbers.
        let factor = (1.0 + rounds.fract()) * (1u64 << rounds as u32) as f64;
        (self.rate.bytes_in(time) as f64 * factor) as u64
    }

    /// Returns the bytes in flight when the path is full: its window, or a round trip at its rate if the window is
    /// larger.
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

/// The path of the next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The packet goes on this path, which has room.
    Send(PathId),
    /// This path, which has room, gets a later packet of the flow: the one that leaves after this number of bytes of
    /// the [`SchedInput::backlog`], or the flow's last. So many bytes leave on other paths before a packet on this path
    /// arrives, so the later packet arrives in order. Plain mode and retransmissions treat it as `Send`.
    Ahead(PathId, u64),
    /// No path gets a packet of this flow yet.
    Wait,
}

impl Decision {
    /// Returns the path; `None` for [`Self::Wait`].
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
    /// The path whose oldest packet is sent again.
    pub from: PathId,
    /// The path on which it is sent, which has room for a full datagram.
    pub to: PathId,
}

/// The interface of a scheduler. One instance serves one peer, and lives as long as the peer.
///
/// Order of calls for each batch: [`Self::choose`], then [`Self::on_sent`] if packets left; after [`Decision::Wait`],
/// [`Self::wait`]. Each call gets a fresh [`SchedInput`]; nothing in it may be kept for the next call but the values of
/// [`PathId`], whose `slot` is below [`MAX_PATHS`](crate::MAX_PATHS). A path that replaces another in its slot has a
/// different `generation`.
///
/// In native mode, realtime packets do not reach the scheduler, and interactive packets take the path on which they
/// arrive first, unless [`Self::keeps_flows`] or [`Self::is_redundant`] returns true. In plain mode every packet does.
pub trait Schedule: fmt::Debug {
    /// Chooses a path for a packet of `len` bytes, the tunnel's headers included.
    ///
    /// It is called once per batch: the endpoint sends up to [`PathSnapshot::burst`] bytes of the same class on the
    /// path before it calls again. The path must be one of [`SchedInput::open`]; any other decision counts as
    /// [`Decision::Wait`]. After `Wait` the endpoint offers the packets of other flows, then waits for an ACK, the end
    /// of [`Self::wait`], or another event.
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision;

    /// Returns the time after which [`Self::choose`] may decide otherwise although nothing is received in between;
    /// `None` if time alone cannot change the decision. It is called after [`Decision::Wait`] in native mode, with the
    /// same arguments.
    ///
    /// The default is the time until the first pacer permits a packet.
    fn wait(&self, _len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        opening(input, |_| true)
    }

    /// Records that `bytes` were sent on `path`, the tunnel's headers included: packets that this scheduler assigned,
    /// that a rule or a class assigned, duplicates and repair symbols. [`SchedInput::backlog`] is that of all flows
    /// here.
    fn on_sent(&mut self, _path: PathId, _bytes: usize, _input: &SchedInput<'_>) {}

    /// Returns a packet in flight to send again on another path. It is called in native mode at the end of a turn in
    /// which no packet is left to send. `backlog` and `bucket` of the input are 0.
    fn on_idle(&mut self, _input: &SchedInput<'_>) -> Option<OpportunisticRetransmit> {
        None
    }

    /// Returns true if the packets of one flow must stay on one path, whatever their class. A batch then contains
    /// packets of one flow only.
    fn keeps_flows(&self) -> bool {
        false
    }

    /// Returns true if every packet is sent on every path: the endpoint sends the copies on the paths that were not
    /// chosen.
    fn is_redundant(&self) -> bool {
        false
    }

    /// Returns true if [`Self::choose`] predicts arrival times from `rate`, `delay` and `opens_in`, and spreads a flow
    /// over all paths that shorten its backlog. Native mode then keeps bulk traffic off a path that adds little to the
    /// total rate and has the lowest delay, and measures paths that were never filled with duplicates of packets.
    /// False: the candidates are all paths that are up, and only packets that the scheduler assigns measure a path.
    fn predicts_arrival(&self) -> bool {
        false
    }
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        (**self).choose(len, input)
    }
    fn wait(&self, len: usize, input: &SchedInput<'_>) -> Option<Duration> {
        (**self).wait(len, input)
    }
    fn on_sent(&mut self, path: PathId, bytes: usize, input: &SchedInput<'_>) {
        (**self).on_sent(path, bytes, input);
    }
    fn on_idle(&mut self, input: &SchedInput<'_>) -> Option<OpportunisticRetransmit> {
        (**self).on_idle(input)
    }
    fn keeps_flows(&self) -> bool {
        (**self).keeps_flows()
    }
    fn is_redundant(&self) -> bool {
        (**self).is_redundant()
    }
    fn predicts_arrival(&self) -> bool {
        (**self).predicts_arrival()
    }
}

/// Makes the scheduler of a peer. Each peer gets its own, when it is added.
///
/// Every closure that returns a boxed scheduler is a factory with the name `custom`.
pub trait SchedulerFactory: Send + Sync {
    /// Makes a scheduler without state.
    fn build(&self) -> Box<dyn Schedule + Send>;

    /// Returns the name in [`PeerStatus::scheduler`](crate::stats::PeerStatus::scheduler).
    fn name(&self) -> &'static str {
        "custom"
    }
}

impl<F: Fn() -> Box<dyn Schedule + Send> + Send + Sync> SchedulerFactory for F {
    fn build(&self) -> Box<dyn Schedule + Send> {
        self()
    }
}

/// Selects the scheduler of a peer.
#[derive(Clone)]
pub enum SchedulerConfig {
    /// A scheduler of this crate.
    Builtin(SchedulerKind),
    /// A scheduler from outside.
    Custom(Arc<dyn SchedulerFactory>),
}

impl SchedulerConfig {
    /// Selects a scheduler from outside this crate.
    pub fn custom(factory: impl SchedulerFactory + 'static) -> Self {
        Self::Custom(Arc::new(factory))
    }

    /// Returns the name of the scheduler.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Builtin(kind) => kind.name(),
            Self::Custom(factory) => factory.name(),
        }
    }

    pub(crate) fn build(&self) -> Box<dyn Schedule + Send> {
        match self {
            Self::Builtin(kind) => kind.build(),
            Self::Custom(factory) => factory.build(),
        }
    }
}

impl From<SchedulerKind> for SchedulerConfig {
    fn from(kind: SchedulerKind) -> Self {
        Self::Builtin(kind)
    }
}

impl fmt::Debug for SchedulerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SchedulerConfig({})", self.name())
    }
}

/// Returns the scheduler's decision; [`Decision::Wait`] if its path is no candidate or has too little room, which only
/// a scheduler from outside this crate decides.
pub(crate) fn choose(scheduler: &mut impl Schedule, len: usize, input: &SchedInput<'_>) -> Decision {
    let decision = scheduler.choose(len, input);
    let is_open = |id| input.open(len).any(|path| path.id == id);
    if decision.path().is_none_or(is_open) { decision } else { Decision::Wait }
}

/// Returns the time until the first pacer permits a packet, of the paths for which `is_taken` returns true.
fn opening(input: &SchedInput<'_>, is_taken: impl Fn(&PathSnapshot) -> bool) -> Option<Duration> {
    let paced = input.paths().filter(|path| path.paced && !path.opens_in.is_zero());
    paced.filter(|path| is_taken(path)).map(|path| path.opens_in).min()
}

/// Returns the path with the lowest round-trip time.
fn fastest<'v>(paths: impl Iterator<Item = &'v PathSnapshot>) -> Option<&'v PathSnapshot> {
    paths.min_by_key(|path| (path.srtt, path.id))
}

/// Names the schedulers for the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Shares by configured weight.
    #[default]
    Weighted,
    /// Equal shares.
    RoundRobin,
    /// The path with the lowest round-trip time, the next one when that is full.
    MinRtt,
    /// The path on which the packet arrives first, after a wait if that is earlier.
    Earliest,
    /// As `MinRtt`, without a slow path that would block the fast one.
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

    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Makes a scheduler of this kind.
    pub fn build(self) -> Box<dyn Schedule + Send> {
        match self {
            Self::Weighted => Box::new(Weighted::by_weight()),
            Self::RoundRobin => Box::new(Weighted::evenly()),
            Self::MinRtt => Box::new(MinRtt),
            Self::Earliest => Box::new(Earliest),
            Self::Blest => Box::new(Blest::default()),
            Self::Ecf => Box::new(Ecf::default()),
            Self::Flow => Box::new(PerFlow::default()),
            Self::Redundant => Box::new(Redundant),
            Self::Rp => Box::new(Rp::default()),
            Self::Bm => Box::new(Bm),
        }
    }
}

#[cfg(test)]
mod conformance;
