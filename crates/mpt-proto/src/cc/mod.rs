//! Congestion control: how much each path may have in flight, and how fast it may send.
//!
//! One controller per peer holds all of the peer's paths, so coupling is a look at a neighbour. Slow start, recovery and
//! accounting are written once, in [`windowed`]; Reno, CUBIC, LIA, OLIA, BALIA and wVegas are the few lines in which the
//! papers differ. [`rate`] is the default and another kind: it measures what a path delivers and sends that fast.
//!
//! | name | what | source |
//! |---|---|---|
//! | `rate` | rate-based, bounded by delay, blind to random loss | [`rate`] |
//! | `cubic` | each path a CUBIC flow | RFC 9438 |
//! | `reno` | each path a Reno flow | RFC 5681 |
//! | `lia` | coupled: together as one Reno on the best path | RFC 6356 |
//! | `olia` | coupled: moves window to the best paths | draft-khalili-mptcp-congestion-control-05 |
//! | `balia` | coupled: between LIA and OLIA | draft-walid-mptcp-congestion-control-04 |
//! | `wvegas` | coupled by delay | draft-xu-mptcp-congestion-control-05 |
//! | `off` | sends at the configured rate, or as fast as it can | |
//!
//! What is in flight is counted by `path::feedback`; here is only the limit. Adding an algorithm is one file, one
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
use std::time::Duration;

use crate::path::sample::{AckSample, LossSample};
use crate::path::{MAX_PATHS, PathId};
use crate::time::{Rate, Time};
use windowed::Windowed;

/// The congestion controller of one peer.
#[derive(Debug)]
pub struct Controller {
    algorithm: Algorithm,
    caps: [Rate; MAX_PATHS],
}

impl Controller {
    /// A controller without paths.
    pub fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, caps: [Rate::MAX; MAX_PATHS] }
    }

    /// Adds a path that carries datagrams of up to `datagram` bytes, in place of whatever had its slot. It never sends
    /// faster than `cap`, if there is one.
    pub fn add_path(&mut self, path: PathId, datagram: u64, cap: Option<Rate>) {
        self.caps[slot(path)] = cap.unwrap_or(Rate::MAX);
        self.control_mut().add_path(path, datagram);
    }

    /// Forgets a path.
    pub fn remove_path(&mut self, path: PathId) {
        self.control_mut().remove_path(path);
    }

    /// Packets were sent, `in_flight` bytes are under way with them.
    pub fn on_sent(&mut self, path: PathId, now: Time, in_flight: u64) {
        self.control_mut().on_sent(path, now, in_flight);
    }

    /// Packets were acknowledged.
    pub fn on_ack(&mut self, path: PathId, ack: &AckSample) {
        self.control_mut().on_ack(path, ack);
    }

    /// Packets were declared lost.
    pub fn on_loss(&mut self, path: PathId, loss: &LossSample) {
        self.control_mut().on_loss(path, loss);
    }

    /// The path went down.
    pub fn on_failure(&mut self, path: PathId) {
        self.control_mut().on_failure(path);
    }

    /// `packets` that were declared lost had arrived.
    pub fn on_spurious_loss(&mut self, path: PathId, packets: u64) {
        self.control_mut().on_spurious_loss(path, packets);
    }

    /// An ACK reported packets marked Congestion Experienced, the latest of them sent at `newest_sent`.
    pub fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time) {
        self.control_mut().on_ecn(path, now, newest_sent);
    }

    /// How many bytes may be in flight.
    pub fn window(&self, path: PathId) -> u64 {
        self.control().window(path)
    }

    /// How many bytes may be sent while `in_flight` are under way.
    pub fn room(&self, path: PathId, in_flight: u64) -> u64 {
        self.window(path).saturating_sub(in_flight)
    }

    /// How fast to send.
    pub fn pacing(&self, path: PathId) -> Rate {
        self.control().pacing(path).min(self.caps[slot(path)])
    }

    /// How many bytes may leave at once: half a millisecond's worth, one packet at least, one GSO send at most.
    pub fn burst(&self, path: PathId) -> u64 {
        self.pacing(path).bytes_in(BURST_TIME).clamp(DATAGRAM, MAX_BURST * DATAGRAM)
    }

    /// The rate of the path's bottleneck as the controller believes it, for predicting arrivals; none while unknown.
    pub fn bottleneck(&self, path: PathId) -> Option<Rate> {
        self.control().bottleneck(path)
    }

    /// The fraction of packets that the path loses however slowly one sends; none while that is unknown.
    pub fn baseline_loss(&self, path: PathId) -> Option<f64> {
        self.control().baseline_loss(path)
    }

    /// Whether it is not known yet how much the path takes: each round trip brings more.
    pub fn in_startup(&self, path: PathId) -> bool {
        self.control().in_startup(path)
    }

    /// Whether it was never found out how much the path takes.
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

/// Every algorithm there is, and a place for somebody's experiment.
#[derive(Debug)]
pub enum Algorithm {
    /// No control.
    Off(Off),
    /// RFC 5681 on every path.
    Reno(Windowed<reno::Reno>),
    /// RFC 9438 on every path.
    Cubic(Windowed<cubic::Cubic>),
    /// RFC 6356.
    Lia(Windowed<lia::Lia>),
    /// Opportunistic linked increases.
    Olia(Windowed<olia::Olia>),
    /// Balanced linked adaptation.
    Balia(Windowed<balia::Balia>),
    /// Weighted Vegas.
    Wvegas(Windowed<wvegas::Wvegas>),
    /// The default.
    Rate(rate::RateBased),
    /// One from outside.
    Custom(Box<dyn CongestionControl + Send>),
}

impl Algorithm {
    /// Makes one of the named kind.
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

/// The algorithms by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerKind {
    /// No control.
    Off,
    /// RFC 5681 on every path.
    Reno,
    /// RFC 9438 on every path.
    Cubic,
    /// RFC 6356.
    Lia,
    /// Opportunistic linked increases.
    Olia,
    /// Balanced linked adaptation.
    Balia,
    /// Weighted Vegas.
    Wvegas,
    /// Rate-based, bounded by delay.
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

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("custom", |(name, _)| name)
    }
}

/// What every controller answers. Words about a path that is gone are ignored.
pub trait CongestionControl: fmt::Debug {
    /// Adds a path that carries datagrams of up to `datagram` bytes.
    fn add_path(&mut self, path: PathId, datagram: u64);
    /// Forgets a path.
    fn remove_path(&mut self, path: PathId);
    /// Packets were sent; `in_flight` counts them.
    fn on_sent(&mut self, _path: PathId, _now: Time, _in_flight: u64) {}
    /// Packets were acknowledged.
    fn on_ack(&mut self, path: PathId, ack: &AckSample);
    /// Packets were declared lost.
    fn on_loss(&mut self, path: PathId, loss: &LossSample);
    /// The path went down, until something is acknowledged on it.
    fn on_failure(&mut self, _path: PathId) {}
    /// Packets that were declared lost had arrived.
    fn on_spurious_loss(&mut self, _path: PathId, _packets: u64) {}
    /// Packets arrived marked.
    fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time);
    /// Bytes that may be in flight; none on a path that is not known.
    fn window(&self, path: PathId) -> u64;
    /// How fast to send.
    fn pacing(&self, path: PathId) -> Rate;
    /// The rate of the bottleneck, if the algorithm estimates one.
    fn bottleneck(&self, path: PathId) -> Option<Rate>;
    /// The fraction of packets that the path loses however slowly one sends, if the algorithm tells that from congestion.
    fn baseline_loss(&self, _: PathId) -> Option<f64> {
        None
    }
    /// Whether it is not known yet how much the path takes: each round trip brings more.
    fn in_startup(&self, _: PathId) -> bool {
        false
    }
    /// Whether it was never found out how much the path takes.
    fn never_filled(&self, _: PathId) -> bool {
        false
    }
}

/// Sends whatever there is.
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

/// A burst this long is invisible beside the jitter of any Internet path, and long enough for GSO to pay.
const BURST_TIME: Duration = Duration::from_micros(500);
/// Segments that fit in one 64 KiB `UDP_SEGMENT` send.
const MAX_BURST: u64 = 44;
/// A full datagram, for bursts.
const DATAGRAM: u64 = 1_452;

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathId = PathId { slot: 3, generation: 1 };

    #[test]
    fn every_kind_has_a_name_of_its_own() {
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
    fn a_late_word_about_a_path_that_is_gone_does_not_touch_its_successor() {
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
