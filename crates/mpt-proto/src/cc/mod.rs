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
//! `path::estimator` counts the bytes in flight; this module only sets the limit. A new algorithm needs one file, one
//! variant and one name.

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

use crate::id::{MAX_PATHS, PathId};
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};
use crate::tuning::cc::pacing::{BURST_TIME, MAX_BURST};
use windowed::Windowed;

/// Congestion controller of all paths of one peer.
#[derive(Debug)]
pub struct Controller {
    algorithm: Algorithm,
    caps: [Rate; MAX_PATHS],
}

impl Controller {
    /// Creates a controller without paths.
    pub fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, caps: [Rate::MAX; MAX_PATHS] }
    }

    /// Adds a path that carries datagrams of up to `datagram` bytes and replaces any path in its slot. `cap` limits the
    /// pacing rate.
    pub fn add_path(&mut self, path: PathId, datagram: u64, cap: Option<Rate>) {
        self.caps[slot(path)] = cap.unwrap_or(Rate::MAX);
        self.control_mut().add_path(path, datagram);
    }

    /// Removes a path.
    pub fn remove_path(&mut self, path: PathId) {
        self.control_mut().remove_path(path);
    }

    /// Records sent packets; `in_flight` is the number of bytes in flight, including them.
    pub fn on_sent(&mut self, path: PathId, now: Time, in_flight: u64) {
        self.control_mut().on_sent(path, now, in_flight);
    }

    /// Processes an acknowledgement.
    pub fn on_ack(&mut self, path: PathId, ack: &AckSample) {
        self.control_mut().on_ack(path, ack);
    }

    /// Processes packets that were declared lost.
    pub fn on_loss(&mut self, path: PathId, loss: &LossSample) {
        self.control_mut().on_loss(path, loss);
    }

    /// Records that the path went down.
    pub fn on_failure(&mut self, path: PathId) {
        self.control_mut().on_failure(path);
    }

    /// Records that `packets` packets declared lost have arrived.
    pub fn on_spurious_loss(&mut self, path: PathId, packets: u64) {
        self.control_mut().on_spurious_loss(path, packets);
    }

    /// Processes an ACK that reports CE-marked packets; the latest of them was sent at `newest_sent`.
    pub fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time) {
        self.control_mut().on_ecn(path, now, newest_sent);
    }

    /// Returns the congestion window in bytes.
    pub fn window(&self, path: PathId) -> u64 {
        self.control().window(path)
    }

    /// Returns how many more bytes may be sent while `in_flight` bytes are in flight.
    pub fn room(&self, path: PathId, in_flight: u64) -> u64 {
        self.window(path).saturating_sub(in_flight)
    }

    /// Returns the pacing rate.
    pub fn pacing(&self, path: PathId) -> Rate {
        self.control().pacing(path).min(self.caps[slot(path)])
    }

    /// Returns how many bytes may be sent at once: the bytes of 0.5 ms, at least one packet, at most one GSO batch.
    pub fn burst(&self, path: PathId) -> u64 {
        self.pacing(path).bytes_in(BURST_TIME).clamp(DATAGRAM, MAX_BURST * DATAGRAM)
    }

    /// Returns the estimated bottleneck rate, used to predict arrival times; `None` while unknown.
    pub fn bottleneck(&self, path: PathId) -> Option<Rate> {
        self.control().bottleneck(path)
    }

    /// Returns the fraction of packets that the path loses at any sending rate; `None` while unknown.
    pub fn baseline_loss(&self, path: PathId) -> Option<f64> {
        self.control().baseline_loss(path)
    }

    /// Returns true while start-up still increases the rate every round trip.
    pub fn in_startup(&self, path: PathId) -> bool {
        self.control().in_startup(path)
    }

    /// Returns true if the path has never been filled, so its capacity is unknown.
    pub fn never_filled(&self, path: PathId) -> bool {
        self.control().never_filled(path)
    }

    fn control(&self) -> &dyn CongestionControl {
        match &self.algorithm {
            Algorithm::Off(c) => c,
            Algorithm::Reno(c) => c,
            Algorithm::Cubic(c) => c,
            Algorithm::Lia(c) => c,
            Algorithm::Olia(c) => c,
            Algorithm::Balia(c) => c,
            Algorithm::Wvegas(c) => c,
            Algorithm::Rate(c) => c,
            Algorithm::Custom(c) => c.as_ref(),
        }
    }

    fn control_mut(&mut self) -> &mut dyn CongestionControl {
        match &mut self.algorithm {
            Algorithm::Off(c) => c,
            Algorithm::Reno(c) => c,
            Algorithm::Cubic(c) => c,
            Algorithm::Lia(c) => c,
            Algorithm::Olia(c) => c,
            Algorithm::Balia(c) => c,
            Algorithm::Wvegas(c) => c,
            Algorithm::Rate(c) => c,
            Algorithm::Custom(c) => c.as_mut(),
        }
    }
}

/// All algorithms, and a variant for external ones.
#[derive(Debug)]
pub enum Algorithm {
    /// No congestion control.
    Off(Off),
    /// RFC 5681 on every path.
    Reno(Windowed<reno::Reno>),
    /// RFC 9438 on every path.
    Cubic(Windowed<cubic::Cubic>),
    /// Linked increases, RFC 6356.
    Lia(Windowed<lia::Lia>),
    /// Opportunistic linked increases.
    Olia(Windowed<olia::Olia>),
    /// Balanced linked adaptation.
    Balia(Windowed<balia::Balia>),
    /// Weighted Vegas.
    Wvegas(Windowed<wvegas::Wvegas>),
    /// The rate-based default.
    Rate(rate::RateBased),
    /// An implementation from outside this crate.
    Custom(Box<dyn CongestionControl + Send>),
}

impl Algorithm {
    /// Creates the algorithm of the given kind.
    pub fn new(kind: ControllerKind) -> Self {
        match kind {
            ControllerKind::Off => Self::Off(Off),
            ControllerKind::Reno => Self::Reno(Windowed::default()),
            ControllerKind::Cubic => Self::Cubic(Windowed::default()),
            ControllerKind::Lia => Self::Lia(Windowed::default()),
            ControllerKind::Olia => Self::Olia(Windowed::default()),
            ControllerKind::Balia => Self::Balia(Windowed::default()),
            ControllerKind::Wvegas => Self::Wvegas(Windowed::default()),
            ControllerKind::Rate => Self::Rate(rate::RateBased::default()),
        }
    }
}

impl Default for Algorithm {
    fn default() -> Self {
        Self::new(ControllerKind::default())
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
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("custom", |(name, _)| name)
    }
}

/// The interface of a congestion controller. Calls for a path that was removed have no effect.
pub trait CongestionControl: fmt::Debug {
    /// Adds a path that carries datagrams of up to `datagram` bytes.
    fn add_path(&mut self, path: PathId, datagram: u64);
    /// Removes a path.
    fn remove_path(&mut self, path: PathId);
    /// Records sent packets; `in_flight` includes them.
    fn on_sent(&mut self, _path: PathId, _now: Time, _in_flight: u64) {}
    /// Processes an acknowledgement.
    fn on_ack(&mut self, path: PathId, ack: &AckSample);
    /// Processes packets that were declared lost.
    fn on_loss(&mut self, path: PathId, loss: &LossSample);
    /// Records that the path is down until something is acknowledged on it.
    fn on_failure(&mut self, _path: PathId) {}
    /// Records that packets declared lost have arrived.
    fn on_spurious_loss(&mut self, _path: PathId, _packets: u64) {}
    /// Processes CE-marked packets.
    fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time);
    /// Returns the congestion window in bytes; 0 for an unknown path.
    fn window(&self, path: PathId) -> u64;
    /// Returns the pacing rate.
    fn pacing(&self, path: PathId) -> Rate;
    /// Returns the bottleneck rate, if the algorithm estimates one.
    fn bottleneck(&self, path: PathId) -> Option<Rate>;
    /// Returns the fraction of packets lost at any rate, if the algorithm distinguishes it from congestion loss.
    fn baseline_loss(&self, _: PathId) -> Option<f64> {
        None
    }
    /// Returns true while start-up still increases the rate every round trip.
    fn in_startup(&self, _: PathId) -> bool {
        false
    }
    /// Returns true if the path has never been filled, so its capacity is unknown.
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
            let mut controller = Controller::new(Algorithm::new(*kind));
            controller.add_path(PATH, 1_400, Some(cap));
            assert_eq!(controller.pacing(PATH), cap, "{name}");
        }
    }

    #[test]
    fn off_is_the_configured_rate_and_no_window() {
        let mut controller = Controller::new(Algorithm::Off(Off));
        controller.add_path(PATH, 1_400, None);
        assert_eq!((controller.room(PATH, 1 << 40), controller.pacing(PATH)), (u64::MAX - (1 << 40), Rate::MAX));
    }

    #[test]
    fn a_burst_is_half_a_millisecond_between_one_packet_and_one_gso_send() {
        let mut controller = Controller::new(Algorithm::Off(Off));
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
            let mut controller = Controller::new(Algorithm::new(*kind));
            controller.add_path(PATH, 1_400, None);
            controller.add_path(successor, 1_400, None);
            let before = controller.window(successor);
            controller.on_ack(PATH, &AckSample { acked: 1 << 20, packets: 700, ..AckSample::default() });
            controller.on_loss(PATH, &LossSample { bytes: 1_400, packets: 1, ..LossSample::default() });
            assert_eq!((controller.window(PATH), controller.window(successor)), (0, before), "{name}");
        }
    }
}
