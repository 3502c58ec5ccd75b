//! Paths: each is one way from a local socket to one address of a peer.
//!
//! [`Path`] is the part that plain and native mode share: where the path leads, whether it is usable, what went over
//! it. Each mode keeps its own state beside it (`peer::plain::PlainPath`, `peer::native::NativePath`).

pub mod ack;
pub mod ack_generator;
pub mod config;
mod damping;
pub mod delivery_rate;
pub mod estimator;
mod health;
mod liveness;
mod loss_gate;
mod migration;
mod number_set;
mod packet_pair;
mod packet_train;
pub mod pmtu;
mod prober;
pub mod rtt;
pub mod sample;
mod send_rate;
pub mod sent_packets;
mod table;
pub mod windowed_filter;

use std::net::SocketAddr;

use crate::time::Time;

pub use crate::id::{LinkId, MAX_PATHS, PathId, PathSeq, PathSet, RemotePathId};
use config::{LivenessConfig, PathConfig, ProbeConfig};
pub use damping::Damping;
pub use health::{Demotion, DownCause, Health, HealthChange, PathState};
pub use liveness::Liveness;
pub use migration::{AddressState, MAX_FRAMES as MAX_VALIDATION_FRAMES, PathValidation};
pub use prober::Prober;
pub use send_rate::SendRate;
pub use table::PathTable;

/// The link of a removed path: no socket has this number.
const NO_LINK: LinkId = LinkId(u8::MAX);
/// The two bits of ECN (RFC 3168).
const ECN: u8 = 0b11;

/// Counts datagrams in one direction of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams.
    pub packets: u64,
    /// Their bytes, from the GRE header on.
    pub bytes: u64,
}

impl Traffic {
    /// Counts one datagram of `bytes`.
    pub fn count(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

/// The state of a path that both modes have.
#[derive(Debug)]
pub struct Path {
    /// Its identifier.
    pub id: PathId,
    /// Its name in the configuration and in `mpt status`; empty while the slot is vacant.
    pub name: String,
    /// The socket that it uses.
    pub link: LinkId,
    /// The peer's address on it.
    pub remote: SocketAddr,
    /// The configured share.
    pub weight: u32,
    /// The evidence for and against its use.
    pub health: Health,
    /// The source of the evidence that it is alive.
    pub liveness: Liveness,
    /// Datagrams sent.
    pub sent: Traffic,
    /// Datagrams received.
    pub received: Traffic,
    /// True if the socket's buffer was full when the peer was last flushed.
    pub blocked: bool,
}

impl Path {
    /// Makes a path with a known remote address. It counts as up until there is evidence against it, unless
    /// `config.alive` is false: then it must first prove that it is alive.
    pub fn new(now: Time, slot: u8, config: &PathConfig, probe: Option<ProbeConfig>) -> Self {
        let default = probe.map_or(LivenessConfig::Off, LivenessConfig::Probes);
        let mut liveness = Liveness::new(now, config.liveness.unwrap_or(default));
        if !config.alive {
            liveness.declare_dead(now);
        }
        let answers = config.alive || matches!(liveness, Liveness::Off);
        Self {
            id: PathId { slot, generation: 0 },
            name: config.name.clone(),
            link: config.link,
            remote: config.remote.expect("a path without an address is not made"),
            weight: config.weight,
            health: Health { answers, ..Health::default() },
            liveness,
            sent: Traffic::default(),
            received: Traffic::default(),
            blocked: false,
        }
    }

    /// Returns true if the path carries traffic.
    pub fn is_up(&self) -> bool {
        self.health.state().is_up()
    }

    /// Changes the evidence about the path, and returns both states for the caller to act on.
    pub fn update_health(&mut self, update: impl FnOnce(&mut Health)) -> HealthChange {
        let before = self.health;
        update(&mut self.health);
        HealthChange { before, after: self.health }
    }

    /// Handles a change of the carrier of an interface: returns true if the path keeps its answers. None if the event
    /// is about another interface, or the carrier is as before: an interface has other events, too.
    ///
    /// A path that was alive before the carrier was lost must prove that it is alive afterwards.
    pub fn on_carrier(&mut self, now: Time, link: LinkId, carrier: bool) -> Option<bool> {
        let changed = self.link == link && self.health.carrier != carrier;
        changed.then(|| self.health.answers && !self.liveness.declare_dead(now))
    }

    /// Sends the next probe at once, where the path is probed.
    pub fn probe_now(&mut self, now: Time) {
        if let Some(prober) = self.liveness.prober() {
            prober.probe_now(now);
        }
    }

    /// Empties its slot. Later slots keep their numbers.
    pub fn vacate(&mut self) {
        self.name.clear();
        (self.link, self.liveness) = (NO_LINK, Liveness::Off);
        self.health = Health { enabled: false, ..Health::default() };
    }

    /// Returns true if its slot is free for another path.
    pub fn is_vacant(&self) -> bool {
        self.name.is_empty()
    }

    /// Returns DSCP and ECN of the outer header for a packet with the type of service `inner`.
    ///
    /// The original MPT loses a congestion mark that a router sets, so packets to it are not ECN-capable (RFC 6040
    /// section 4.1: compatibility mode).
    pub fn outer_tos(&self, inner: u8) -> u8 {
        match self.liveness {
            Liveness::Keepalives(_) => inner & !ECN,
            Liveness::Probes(_) | Liveness::Off => inner,
        }
    }
}
