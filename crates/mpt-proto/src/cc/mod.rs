//! Congestion control: limits the bytes in flight and the sending rate of each path.
//!
//! One controller per peer holds all of the peer's paths, so that coupled algorithms can read the other paths. Slow
//! start, recovery and accounting are written once, in [`windowed`]; Reno, CUBIC, LIA, OLIA, BALIA and wVegas contain
//! only what differs between the papers. [`rate`], the default, paces at the measured delivery rate.
//!
//! | name | algorithm | source |
//! |---|---|---|
//! | `rate` | rate-based, delay-bounded, ignores random loss | [`rate`] |
//! | `cubic` | each path a CUBIC flow | RFC 9438 |
//! | `reno` | each path a Reno flow | RFC 5681 |
//! | `lia` | coupled: all paths together like one Reno flow on the best path | RFC 6356 |
//! | `olia` | coupled: moves window to the best paths | draft-khalili-mptcp-congestion-control-05 |
//! | `balia` | coupled: between LIA and OLIA | draft-walid-mptcp-congestion-control-04 |
//! | `wvegas` | coupled by delay | draft-xu-mptcp-congestion-control-05 |
//! | `off` | no control: the configured rate, or no limit | |
//!
//! `path::estimator` counts the bytes in flight; this module only sets the limit.
//! `docs/guide/add-a-congestion-controller.md` adds an algorithm, from outside the crate with a [`ControllerFactory`],
//! or inside it.

pub mod balia;
pub mod cubic;
pub mod lia;
pub mod olia;
pub mod rate;
pub mod reno;
mod slots;
pub mod windowed;
pub mod wvegas;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::{MAX_PATHS, PathId};
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};
use crate::tuning::Tuning;
use crate::tuning::cc::pacing::{BURST_TIME, MAX_BURST};
use windowed::Windowed;

/// Congestion controller of all paths of one peer.
#[derive(Debug)]
pub struct Controller {
    algorithm: Box<dyn CongestionControl + Send>,
    caps: [Rate; MAX_PATHS],
}

impl Controller {
    /// Creates a controller without paths.
    pub fn new(algorithm: Box<dyn CongestionControl + Send>) -> Self {
        Self { algorithm, caps: [Rate::MAX; MAX_PATHS] }
    }

    /// Adds a path that carries datagrams of up to `datagram` bytes and replaces any path in its slot. `cap` limits the
    /// pacing rate.
    pub fn add_path(&mut self, path: PathId, datagram: u64, cap: Option<Rate>) {
        self.caps[slot(path)] = cap.unwrap_or(Rate::MAX);
        self.algorithm.add_path(path, datagram);
    }

    /// Removes a path.
    pub fn remove_path(&mut self, path: PathId) {
        self.algorithm.remove_path(path);
    }

    /// Records sent packets; `in_flight` is the number of bytes in flight, including them.
    pub fn on_sent(&mut self, path: PathId, now: Time, in_flight: u64) {
        self.algorithm.on_sent(path, now, in_flight);
    }

    /// Processes an acknowledgement.
    pub fn on_ack(&mut self, path: PathId, ack: &AckSample) {
        self.algorithm.on_ack(path, ack);
    }

    /// Processes packets that were declared lost.
    pub fn on_loss(&mut self, path: PathId, loss: &LossSample) {
        self.algorithm.on_loss(path, loss);
    }

    /// Records that the path went down.
    pub fn on_failure(&mut self, path: PathId) {
        self.algorithm.on_failure(path);
    }

    /// Records that `packets` packets declared lost have arrived.
    pub fn on_spurious_loss(&mut self, path: PathId, packets: u64) {
        self.algorithm.on_spurious_loss(path, packets);
    }

    /// Processes an ACK that reports CE-marked packets; the latest of them was sent at `newest_sent`.
    pub fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time) {
        self.algorithm.on_ecn(path, now, newest_sent);
    }

    /// Returns the congestion window in bytes.
    pub fn window(&self, path: PathId) -> u64 {
        self.algorithm.window(path)
    }

    /// Returns how many more bytes may be sent while `in_flight` bytes are in flight.
    pub fn room(&self, path: PathId, in_flight: u64) -> u64 {
        self.window(path).saturating_sub(in_flight)
    }

    /// Returns the pacing rate.
    pub fn pacing(&self, path: PathId) -> Rate {
        self.algorithm.pacing(path).min(self.caps[slot(path)])
    }

    /// Returns how many bytes may be sent in one batch: the bytes of 0.5 ms or less, at least one packet, at most one
    /// GSO batch.
    pub fn burst(&self, path: PathId) -> u64 {
        let time = (self.max_burst_time(path) / 2).min(BURST_TIME);
        self.pacing(path).bytes_in(time).clamp(DATAGRAM, MAX_BURST * DATAGRAM)
    }

    /// Returns by how much a pacer may be late without losing its turn. What it permitted meanwhile leaves at once.
    pub fn max_burst_time(&self, path: PathId) -> Duration {
        self.algorithm.max_burst_time(path)
    }

    /// Returns the estimated bottleneck rate, used to predict arrival times; `None` while unknown.
    pub fn bottleneck(&self, path: PathId) -> Option<Rate> {
        self.algorithm.bottleneck(path)
    }

    /// Returns the fraction of packets that the path loses at any sending rate; `None` while unknown.
    pub fn baseline_loss(&self, path: PathId) -> Option<f64> {
        self.algorithm.baseline_loss(path)
    }

    /// Returns true while start-up still increases the rate every round trip.
    pub fn in_startup(&self, path: PathId) -> bool {
        self.algorithm.in_startup(path)
    }

    /// Returns true if the path has never been filled, so its capacity is unknown.
    pub fn never_filled(&self, path: PathId) -> bool {
        self.algorithm.never_filled(path)
    }
}

/// Names the algorithms for the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerKind {
    /// No congestion control.
    Off,
    /// RFC 5681 on every path.
    Reno,
    /// RFC 9438 on every path.
    Cubic,
    /// Linked increases, RFC 6356.
    Lia,
    /// Opportunistic linked increases.
    Olia,
    /// Balanced linked adaptation.
    Balia,
    /// Weighted Vegas.
    Wvegas,
    /// Rate-based, delay-bounded.
    #[default]
    Rate,
}

impl ControllerKind {
    /// Every algorithm with its name in the configuration.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("rate", Self::Rate),
        ("cubic", Self::Cubic),
        ("reno", Self::Reno),
        ("lia", Self::Lia),
        ("olia", Self::Olia),
        ("balia", Self::Balia),
        ("wvegas", Self::Wvegas),
        ("off", Self::Off),
    ];

    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Creates a controller of this kind.
    pub fn build(self) -> Box<dyn CongestionControl + Send> {
        match self {
            Self::Off => Box::new(Off),
            Self::Reno => Box::new(Windowed::<reno::Reno>::default()),
            Self::Cubic => Box::new(Windowed::<cubic::Cubic>::default()),
            Self::Lia => Box::new(Windowed::<lia::Lia>::default()),
            Self::Olia => Box::new(Windowed::<olia::Olia>::default()),
            Self::Balia => Box::new(Windowed::<balia::Balia>::default()),
            Self::Wvegas => Box::new(Windowed::<wvegas::Wvegas>::default()),
            Self::Rate => Box::new(rate::RateBased::default()),
        }
    }
}

/// Makes the congestion controller of a peer, which serves all of its paths. Each peer gets its own, when it is added.
///
/// Every closure that returns a boxed controller is a factory with the name `custom`.
pub trait ControllerFactory: Send + Sync {
    /// Makes a controller without paths.
    fn build(&self) -> Box<dyn CongestionControl + Send>;

    /// Returns the name of the controller, for `Debug`.
    fn name(&self) -> &'static str {
        "custom"
    }
}

impl<F: Fn() -> Box<dyn CongestionControl + Send> + Send + Sync> ControllerFactory for F {
    fn build(&self) -> Box<dyn CongestionControl + Send> {
        self()
    }
}

/// Selects the congestion controller of a peer.
#[derive(Clone)]
pub enum ControllerConfig {
    /// A controller of this crate.
    Builtin(ControllerKind),
    /// A controller from outside.
    Custom(Arc<dyn ControllerFactory>),
}

impl ControllerConfig {
    /// Selects a controller from outside this crate.
    pub fn custom(factory: impl ControllerFactory + 'static) -> Self {
        Self::Custom(Arc::new(factory))
    }

    /// Returns the name of the controller.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Builtin(kind) => kind.name(),
            Self::Custom(factory) => factory.name(),
        }
    }

    /// Makes the controller, with the heuristics in `tuning` if it is the default one.
    pub(crate) fn build(&self, tuning: Tuning) -> Box<dyn CongestionControl + Send> {
        match self {
            Self::Builtin(ControllerKind::Rate) => Box::new(rate::RateBased::new(tuning)),
            Self::Builtin(kind) => kind.build(),
            Self::Custom(factory) => factory.build(),
        }
    }
}

impl From<ControllerKind> for ControllerConfig {
    fn from(kind: ControllerKind) -> Self {
        Self::Builtin(kind)
    }
}

/// Two built-in controllers are equal if their kinds are; two from outside if they come from the same factory.
impl PartialEq for ControllerConfig {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Builtin(kind), Self::Builtin(other)) => kind == other,
            (Self::Custom(factory), Self::Custom(other)) => Arc::ptr_eq(factory, other),
            (Self::Builtin(_), Self::Custom(_)) | (Self::Custom(_), Self::Builtin(_)) => false,
        }
    }
}

impl Eq for ControllerConfig {}

impl fmt::Debug for ControllerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ControllerConfig({})", self.name())
    }
}

/// The interface of a congestion controller. One instance serves all paths of one peer, and lives as long as the peer.
///
/// Windows and amounts are in bytes of UDP payload, the tunnel's headers included. The index of a path is
/// [`PathId::slot`], below [`MAX_PATHS`]; a path that replaces another in its slot has a different `generation`. Calls
/// for a path that was removed must have no effect.
///
/// The endpoint counts the bytes in flight, declares losses and paces: it sends on a path while [`Self::window`]
/// exceeds the bytes in flight, at no more than [`Self::pacing`].
pub trait CongestionControl: fmt::Debug {
    /// Adds a path that carries datagrams of up to `datagram` bytes, and replaces any other in its slot. It is called
    /// again for the same path if its address changed, which makes earlier measurements useless.
    fn add_path(&mut self, path: PathId, datagram: u64);
    /// Removes a path.
    fn remove_path(&mut self, path: PathId);
    /// Records a batch that was sent at `now`; `in_flight` includes it.
    fn on_sent(&mut self, _path: PathId, _now: Time, _in_flight: u64) {}
    /// Processes an ACK that acknowledges at least one packet for the first time.
    fn on_ack(&mut self, path: PathId, ack: &AckSample);
    /// Processes packets that were declared lost, after the ACK that showed it, or after a timeout.
    fn on_loss(&mut self, path: PathId, loss: &LossSample);
    /// Records that the path is down until something is acknowledged on it. The packets in flight were reported with
    /// [`Self::on_loss`] before.
    fn on_failure(&mut self, _path: PathId) {}
    /// Records that `packets` packets that were declared lost have arrived.
    fn on_spurious_loss(&mut self, _path: PathId, _packets: u64) {}
    /// Processes an ACK that reports packets with the ECN mark CE, after [`Self::on_ack`] for the same ACK. The latest
    /// packet that it acknowledges was sent at `newest_sent`.
    fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time);
    /// Returns the congestion window in bytes; 0 for an unknown path, [`u64::MAX`] for no limit. A window of a known
    /// path below one datagram stops the path until the window grows.
    fn window(&self, path: PathId) -> u64;
    /// Returns the rate at which datagrams leave; [`Rate::MAX`] for no pacing. [`Rate::ZERO`] is for unknown paths
    /// only: a packet at this rate takes 584 years.
    fn pacing(&self, path: PathId) -> Rate;
    /// Returns the time for which packets may be sent at once without overflowing the bottleneck's buffer, as far as
    /// overflows have shown it. The default is no limit.
    fn max_burst_time(&self, _: PathId) -> Duration {
        Duration::MAX
    }
    /// Returns the bottleneck rate, if the algorithm estimates one. Schedulers predict arrival times with it, and with
    /// the pacing rate if it is `None`.
    fn bottleneck(&self, path: PathId) -> Option<Rate>;
    /// Returns the fraction of packets, 0.0 to 1.0, that are lost at any sending rate; `None` if the algorithm does not
    /// distinguish it from congestion loss. It controls the amount of forward error correction.
    fn baseline_loss(&self, _: PathId) -> Option<f64> {
        None
    }
    /// Returns true while start-up still increases the rate every round trip: the queue of inner packets may then be
    /// longer.
    fn in_startup(&self, _: PathId) -> bool {
        false
    }
    /// Returns true if the path has never been filled, so its capacity is unknown: duplicates of packets may then
    /// measure it.
    fn never_filled(&self, _: PathId) -> bool {
        false
    }
}

/// Sends without any limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Off;

impl CongestionControl for Off {
    fn add_path(&mut self, _: PathId, _: u64) {}
    fn remove_path(&mut self, _: PathId) {}
    fn on_ack(&mut self, _: PathId, _: &AckSample) {}
    fn on_loss(&mut self, _: PathId, _: &LossSample) {}
    fn on_ecn(&mut self, _: PathId, _: Time, _: Time) {}
    fn window(&self, _: PathId) -> u64 {
        u64::MAX
    }
    fn pacing(&self, _: PathId) -> Rate {
        Rate::MAX
    }
    fn bottleneck(&self, _: PathId) -> Option<Rate> {
        None
    }
}

fn slot(path: PathId) -> usize {
    usize::from(path.slot) % MAX_PATHS
}

/// Bytes of a full datagram; the unit of bursts.
const DATAGRAM: u64 = 1_452;

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathId = PathId { slot: 3, generation: 1 };

    #[test]
    fn every_kind_has_a_unique_name() {
        for (name, kind) in ControllerKind::NAMES {
            assert_eq!(kind.name(), *name);
        }
        assert_eq!(ControllerKind::default().name(), "rate");
    }

    #[test]
    fn a_cap_bounds_every_algorithm() {
        let cap = Rate::from_bits(100_000);
        for (name, kind) in ControllerKind::NAMES {
            let mut controller = Controller::new(kind.build());
            controller.add_path(PATH, 1_400, Some(cap));
            assert_eq!(controller.pacing(PATH), cap, "{name}");
        }
    }

    #[test]
    fn off_is_the_configured_rate_and_no_window() {
        let mut controller = Controller::new(ControllerKind::Off.build());
        controller.add_path(PATH, 1_400, None);
        assert_eq!((controller.room(PATH, 1 << 40), controller.pacing(PATH)), (u64::MAX - (1 << 40), Rate::MAX));
    }

    #[test]
    fn a_burst_is_half_a_millisecond_between_one_packet_and_one_gso_send() {
        let mut controller = Controller::new(ControllerKind::Off.build());
        let mut burst_at = |mbit: u64| {
            controller.add_path(PATH, 1_452, Some(Rate::from_bits(mbit * 1_000_000)));
            controller.burst(PATH)
        };
        assert_eq!((burst_at(1), burst_at(100), burst_at(10_000)), (1_452, 6_250, 44 * 1_452));
    }

    #[test]
    fn calls_for_a_removed_path_do_not_change_its_successor() {
        let successor = PathId { generation: 2, ..PATH };
        for (name, kind) in ControllerKind::NAMES.iter().filter(|(_, kind)| *kind != ControllerKind::Off) {
            let mut controller = Controller::new(kind.build());
            controller.add_path(PATH, 1_400, None);
            controller.add_path(successor, 1_400, None);
            let before = controller.window(successor);
            controller.on_ack(PATH, &AckSample { acked: 1 << 20, packets: 700, ..AckSample::default() });
            controller.on_loss(PATH, &LossSample { bytes: 1_400, packets: 1, ..LossSample::default() });
            assert_eq!((controller.window(PATH), controller.window(successor)), (0, before), "{name}");
        }
    }
}
