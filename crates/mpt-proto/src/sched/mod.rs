//! Schedulers: which path a packet takes.
//!
//! A scheduler sees a [`Scene`], all that may be known, and says where the next packet goes. It is asked once per *run*: the
//! corridor may send several packets after one another on the path that was chosen, as many as [`View::burst`]
//! allows, so that what is sent together can leave in one system call. What was sent is reported to [`Schedule::on_sent`].
//!
//! Adding one is a file, a variant and a name.

mod earliest;
mod min_rtt;
mod weighted;

use std::fmt;
use std::time::Duration;

use crate::path::PathId;
use crate::time::Rate;
use earliest::Earliest;
use min_rtt::MinRtt;
use weighted::Weighted;

/// What a scheduler may know about a path that can be used.
#[derive(Clone, Copy, Debug, Default)]
pub struct View {
    /// Which path.
    pub id: PathId,
    /// Configured share, 1 to 10000; counts for [`Kind::Weighted`] alone.
    pub weight: u32,
    /// Smoothed round-trip time; zero while unknown.
    pub srtt: Duration,
    /// Bytes that may be sent before the path's window, its pacer or its socket is full.
    pub room: u64,
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

/// All a scheduler may look at: the paths that are up, in order of their slots.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The paths.
    pub paths: &'a [View],
    /// Bytes that wait in the flow to be scheduled, the next packet included.
    pub backlog: u64,
}

impl Scene<'_> {
    /// The paths with room for `len` bytes.
    pub fn open(&self, len: usize) -> impl Iterator<Item = &View> {
        self.paths.iter().filter(move |path| path.room >= len as u64)
    }
}

/// Where the next packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Over this path, which has room.
    Send(PathId),
    /// Nowhere yet.
    Wait,
}

/// A way to choose.
pub trait Schedule {
    /// Chooses a path for a packet of `len` bytes, overhead included.
    fn choose(&mut self, len: usize, scene: &Scene<'_>) -> Decision;

    /// After [`Decision::Wait`]: when asking again may bring another answer, if time alone can bring one.
    fn wait(&self, _len: usize, scene: &Scene<'_>) -> Option<Duration> {
        scene.paths.iter().filter(|path| path.paced && !path.opens_in.is_zero()).map(|path| path.opens_in).min()
    }

    /// `bytes` were sent on `path`.
    fn on_sent(&mut self, _path: PathId, _bytes: usize, _scene: &Scene<'_>) {}
}

/// The schedulers by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Shares by configured weight.
    #[default]
    Weighted,
    /// Equal shares.
    RoundRobin,
    /// The path with the lowest round-trip time, the next one when that is full.
    MinRtt,
    /// The path on which the packet arrives first, which may be worth a wait.
    Earliest,
}

impl Kind {
    /// Every scheduler with its name in the configuration.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("weighted", Self::Weighted),
        ("round-robin", Self::RoundRobin),
        ("min-rtt", Self::MinRtt),
        ("earliest", Self::Earliest),
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
    /// Somebody's experiment.
    Custom(Box<dyn Schedule + Send>),
}

impl Scheduler {
    /// Makes one of the named kind.
    pub fn new(kind: Kind) -> Self {
        match kind {
            Kind::Weighted => Self::Weighted(Weighted::by_weight()),
            Kind::RoundRobin => Self::Weighted(Weighted::evenly()),
            Kind::MinRtt => Self::MinRtt(MinRtt),
            Kind::Earliest => Self::Earliest(Earliest),
        }
    }
}

impl Schedule for Scheduler {
    fn choose(&mut self, len: usize, scene: &Scene<'_>) -> Decision {
        match self {
            Self::Weighted(s) => s.choose(len, scene),
            Self::MinRtt(s) => s.choose(len, scene),
            Self::Earliest(s) => s.choose(len, scene),
            Self::Custom(s) => s.choose(len, scene),
        }
    }

    fn wait(&self, len: usize, scene: &Scene<'_>) -> Option<Duration> {
        match self {
            Self::Weighted(s) => s.wait(len, scene),
            Self::MinRtt(s) => s.wait(len, scene),
            Self::Earliest(s) => s.wait(len, scene),
            Self::Custom(s) => s.wait(len, scene),
        }
    }

    fn on_sent(&mut self, path: PathId, bytes: usize, scene: &Scene<'_>) {
        match self {
            Self::Weighted(s) => s.on_sent(path, bytes, scene),
            Self::MinRtt(s) => s.on_sent(path, bytes, scene),
            Self::Earliest(s) => s.on_sent(path, bytes, scene),
            Self::Custom(s) => s.on_sent(path, bytes, scene),
        }
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weighted(_) => "Weighted",
            Self::MinRtt(_) => "MinRtt",
            Self::Earliest(_) => "Earliest",
            Self::Custom(_) => "Custom",
        })
    }
}

#[cfg(test)]
mod conformance;
